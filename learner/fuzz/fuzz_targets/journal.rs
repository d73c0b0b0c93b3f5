//! Opens any bytes, and changed journals, as the files of a journal. What was read stays, in front
//! of what is appended, or opening is an error.

#![no_main]

use std::{cell::LazyCell, fs};

use learner::journal::{self, JournalEntry, NewTerm};
use learner_fuzz::mutate;
use libfuzzer_sys::{fuzz_mutator, fuzz_target};
use proto::{EncodedGroup, v1::SubmitRequest};

/// The files of a journal, in the order of their terms.
const FILES: [&str; 3] = [
    "journal/000000.bin",
    "journal/000001.bin",
    "journal/000002.bin",
];
/// What an input begins with: where reading begins and the lengths of the first two files.
const LENGTHS: usize = 6;
const HEADER: usize = 16;

thread_local! {
    static SEEDS: LazyCell<Vec<Vec<u8>>> = LazyCell::new(seeds);
}

fuzz_target!(|data: &[u8]| {
    let Some((from, files)) = split(data) else {
        return;
    };
    let folder = tempfile::tempdir().expect("a temporary folder");
    let run = folder.path();
    fs::create_dir(run.join("journal")).expect("a folder");
    for (name, content) in FILES.iter().zip(files) {
        // An absent file is one without a byte.
        if !content.is_empty() {
            fs::write(run.join(name), content).expect("a file");
        }
    }
    let _ = journal::bytes(run);
    if let Ok(groups) = journal::read(run) {
        assert!(groups.take(data.len() + 1).count() <= data.len());
    }
    let opened = NewTerm::begin(run).and_then(|term| term.open(from));
    let Ok((mut journal, mut entries)) = opened else {
        return;
    };
    let size: usize = entries.iter().map(|entry| entry.group.bytes().len()).sum();
    assert!(size <= data.len() * FILES.len());
    assert!(entries.iter().all(|entry| entry.offset >= from));
    let added = group(99);
    let end = journal.end();
    assert_eq!(journal.append(&[added.clone()]).expect("room"), [end]);
    drop(journal);
    let term = NewTerm::begin(run).expect("a term");
    let (_, again) = term.open(from).expect("a journal that was open");
    entries.push(JournalEntry {
        offset: end,
        group: added,
    });
    assert_eq!(again, entries);
});

fuzz_mutator!(|data: &mut [u8], size: usize, max_size: usize, seed: u32| {
    let size = SEEDS.with(|seeds| mutate(data, size, max_size, seed, seeds));
    // Without this, nearly every change ends the reading at its record.
    if seed & 1 == 0 {
        restore_checksums(&mut data[..size]);
    }
    size
});

/// Returns the byte that reading begins at, and the files.
fn split(data: &[u8]) -> Option<(u64, [&[u8]; 3])> {
    let (lengths, rest) = data.split_at_checked(LENGTHS)?;
    let number = |at: usize| usize::from(u16::from_le_bytes([lengths[at], lengths[at + 1]]));
    let (first, rest) = rest.split_at(number(2).min(rest.len()));
    let (second, third) = rest.split_at(number(4).min(rest.len()));
    Some((number(0) as u64, [first, second, third]))
}

fn restore_checksums(data: &mut [u8]) {
    let Some((_, files)) = split(data) else {
        return;
    };
    let [first, second, _] = files.map(<[u8]>::len);
    let starts = [
        LENGTHS + HEADER,
        LENGTHS + first + HEADER,
        LENGTHS + first + second + HEADER,
    ];
    let ends = [LENGTHS + first, LENGTHS + first + second, data.len()];
    for (start, end) in starts.into_iter().zip(ends) {
        let mut at = start;
        while at + 8 < end {
            let [a, b, c, d] = [data[at], data[at + 1], data[at + 2], data[at + 3]];
            let length = u32::from_le_bytes([a, b, c, d]) as usize;
            let Some(payload) = data.get(at + 8..at.saturating_add(8 + length).min(end)) else {
                break;
            };
            let crc = crc32fast::hash(payload);
            data[at + 4..at + 8].copy_from_slice(&crc.to_le_bytes());
            at += 8 + length;
        }
    }
}

fn group(index: u64) -> EncodedGroup {
    EncodedGroup::from(&SubmitRequest {
        group_index: index,
        actor_id: "a".repeat(index as usize % 7),
        ..SubmitRequest::default()
    })
}

/// Journals of two terms: one that begins here, and one that was copied from an object store.
fn seeds() -> Vec<Vec<u8>> {
    let folder = tempfile::tempdir().expect("a temporary folder");
    let run = folder.path();
    for groups in [[group(1), group(2)], [group(3), group(4)]] {
        let term = NewTerm::begin(run).expect("a term");
        let (mut journal, _) = term.open(0).expect("a journal");
        journal.append(&groups).expect("room");
    }
    let file = |name| fs::read(run.join(name)).expect("a file");
    let (first, second) = (file(FILES[1]), file(FILES[2]));
    vec![input([&[], &first, &second]), input([&first, &second, &[]])]
}

fn input(files: [&[u8]; 3]) -> Vec<u8> {
    let lengths = [0, files[0].len() as u16, files[1].len() as u16];
    let lengths = lengths.map(u16::to_le_bytes).concat();
    [lengths, files.concat()].concat()
}

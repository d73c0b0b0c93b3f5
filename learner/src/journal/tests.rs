use std::{
    fs::{self, OpenOptions},
    io::Write as _,
};

use super::{terms::MAGIC, *};

fn group(group_index: u64) -> EncodedGroup {
    let request = SubmitRequest {
        actor_id: "a".to_owned(),
        group_index,
        lease_id: 9,
        ..SubmitRequest::default()
    };
    EncodedGroup::from(&request)
}

fn open(run_dir: &Path, from: u64) -> Result<(Journal, Vec<JournalEntry>)> {
    NewTerm::begin(run_dir)?.open(from)
}

fn append(journal: &mut Journal, index: u64) -> u64 {
    journal.append(&[group(index)]).unwrap()[0]
}

/// Returns the group indices and offsets that opening the journal finds.
fn opened(run_dir: &Path, from: u64) -> (Journal, Vec<(u64, u64)>) {
    let (journal, entries) = open(run_dir, from).unwrap();
    let found = entries
        .iter()
        .map(|it| (it.offset, it.group.decode().unwrap().group_index));
    (journal, found.collect())
}

fn indices(run_dir: &Path) -> Vec<u64> {
    let groups = read(run_dir).unwrap();
    groups.map(|group| group.unwrap().group_index).collect()
}

/// The file of term `number`.
fn file(run_dir: &Path, number: u64) -> PathBuf {
    run_dir.join("journal").join(format!("{number:06}.bin"))
}

#[test]
fn the_format_stays_and_what_was_copied_is_read_before_the_first_term() {
    let run = tempfile::tempdir().unwrap();
    append(&mut open(run.path(), 0).unwrap().0, 7);
    let payload = [0x0a, 1, b'a', 0x10, 7, 0x18, 9];
    let mut records = vec![7, 0, 0, 0];
    records.extend(crc32fast::hash(&payload).to_le_bytes());
    records.extend(payload);
    let header = [b"SQLENVJ1".as_slice(), &[0; 8]].concat();
    assert_eq!(
        fs::read(file(run.path(), 1)).unwrap(),
        [header, records.clone()].concat()
    );

    let fetched = tempfile::tempdir().unwrap();
    for _ in 0..2 {
        let (mut file, _) = open_copies(fetched.path()).unwrap();
        file.write_all(&records).unwrap();
    }
    let (mut journal, found) = opened(fetched.path(), 0);
    let length = records.len() as u64;
    assert_eq!(found, [(0, 7), (length, 7)]);
    assert_eq!(append(&mut journal, 8), 2 * length);
    assert_eq!(indices(fetched.path()), [7, 7, 8]);
}

#[test]
fn groups_come_back_in_order_and_from_an_offset_over_several_terms() {
    let run = tempfile::tempdir().unwrap();
    let (mut journal, found) = opened(run.path(), 0);
    assert_eq!(found, []);
    let one = append(&mut journal, 1);
    let both = journal.append(&[group(2), group(3)]).unwrap();
    let (mut journal, found) = opened(run.path(), both[0]);
    assert_eq!(found, [(both[0], 2), (both[1], 3)]);
    let four = append(&mut journal, 4);
    let end = journal.end();
    for (from, expected) in [
        (0, vec![(one, 1), (both[0], 2), (both[1], 3), (four, 4)]),
        (both[1], vec![(both[1], 3), (four, 4)]),
        (four, vec![(four, 4)]),
        (end, vec![]),
    ] {
        assert_eq!(opened(run.path(), from).1, expected, "from {from}");
    }
    assert_eq!(indices(run.path()), [1, 2, 3, 4]);
    let fault = open(run.path(), end + 1).unwrap_err().to_string();
    assert!(fault.contains("groups are lost"), "{fault}");
}

/// What the older learner wrote and did not acknowledge is not part of the run.
#[test]
fn a_learner_that_was_replaced_stops_and_its_last_group_does_not_count() {
    let run = tempfile::tempdir().unwrap();
    let (mut older, _) = opened(run.path(), 0);
    append(&mut older, 1);
    older.check_newest().unwrap();
    let (mut newer, found) = opened(run.path(), 0);
    assert_eq!(found.len(), 1);
    for fault in [
        older.append(&[group(2)]).unwrap_err(),
        older.check_newest().unwrap_err(),
        older.publish(1).unwrap_err(),
    ] {
        let text = fault.to_string();
        assert!(matches!(fault, LearnerError::Replaced { .. }), "{text}");
        assert!(
            text.contains("another learner has opened the run"),
            "{text}"
        );
    }
    append(&mut newer, 3);
    newer.publish(1).unwrap();
    assert_eq!(indices(run.path()), [1, 3]);
}

/// A learner may be suspended for long while it reads its checkpoint.
#[test]
fn a_learner_that_was_replaced_before_it_opened_the_journal_changes_nothing() {
    let run = tempfile::tempdir().unwrap();
    append(&mut opened(run.path(), 0).0, 1);
    let older = [(); 2].map(|()| NewTerm::begin(run.path()).unwrap());
    let (mut newer, _) = opened(run.path(), 0);
    append(&mut newer, 2);
    // The second one has read a checkpoint of the newer learner.
    for (older, from) in older.into_iter().zip([0, newer.end()]) {
        assert!(older.check_newest().is_err());
        let fault = older.open(from).unwrap_err();
        assert!(matches!(fault, LearnerError::Replaced { .. }), "{fault}");
    }
    assert_eq!(indices(run.path()), [1, 2]);
}

#[test]
fn a_folder_that_is_moved_under_its_learner_is_named() {
    let parent = tempfile::tempdir().unwrap();
    let run = parent.path().join("run");
    fs::create_dir(&run).unwrap();
    let (mut journal, _) = opened(&run, 0);
    append(&mut journal, 1);
    fs::rename(&run, parent.path().join("elsewhere")).unwrap();
    for fault in [
        journal.check_newest().unwrap_err(),
        journal.append(&[group(2)]).unwrap_err(),
        journal.append(&[group(3)]).unwrap_err(),
        journal.publish(1).unwrap_err(),
    ] {
        let text = fault.to_string();
        assert!(text.contains("moved or removed"), "{text}");
        assert!(!text.contains("another learner"), "{text}");
    }
}

/// A learner that is killed after it began a term leaves a file without header.
#[test]
fn a_term_that_was_begun_only_replaces_the_one_before_and_has_no_groups() {
    let run = tempfile::tempdir().unwrap();
    let (mut older, _) = opened(run.path(), 0);
    append(&mut older, 1);
    fs::write(file(run.path(), 2), b"SQL").unwrap();
    assert!(older.check_newest().is_err());
    let (mut newer, found) = opened(run.path(), 0);
    assert_eq!(found.len(), 1);
    append(&mut newer, 2);
    assert_eq!(indices(run.path()), [1, 2]);
    // One whose header is zeros was begun as well, before a crash of the machine.
    fs::write(file(run.path(), 4), [0; 16]).unwrap();
    assert_eq!(indices(run.path()), [1, 2]);
    fs::write(file(run.path(), 5), [1; 16]).unwrap();
    let fault = open(run.path(), 0).unwrap_err().to_string();
    assert!(
        fault.contains("is not a journal of this program"),
        "{fault}"
    );
}

/// `/dev/full` takes no byte and cannot be cut: a disk that is full and fails.
#[test]
fn a_full_disk_is_named_and_a_journal_that_cannot_be_mended_takes_nothing_more() {
    let run = tempfile::tempdir().unwrap();
    let (mut journal, _) = opened(run.path(), 0);
    let full = Path::new("/dev/full");
    let Ok(device) = OpenOptions::new().write(true).open(full) else {
        let _ = writeln!(io::stderr(), "SKIPPED: no /dev/full on this system");
        return;
    };
    let end = journal.end();
    (journal.file, journal.of_term.path) = (device, full.to_owned());
    let fault = journal.append(&[group(1)]).unwrap_err().to_string();
    assert!(
        fault.starts_with("cannot append to the journal /dev/full: ")
            && fault.ends_with("continue the run from its last checkpoint"),
        "{fault}"
    );
    let fault = journal.append(&[group(1)]).unwrap_err().to_string();
    assert!(
        fault.starts_with("the journal takes no more groups after a failure: cannot append"),
        "{fault}"
    );
    assert_eq!(journal.end(), end);
}

#[test]
fn a_torn_tail_of_any_length_is_left_out_and_appending_goes_on() {
    let run = tempfile::tempdir().unwrap();
    let (mut journal, _) = opened(run.path(), 0);
    let offsets: Vec<u64> = (1..4).map(|index| append(&mut journal, index)).collect();
    let first = file(run.path(), 1);
    let whole = fs::read(&first).unwrap();
    for length in journal.of_term.position(offsets[2])..whole.len() as u64 {
        let copy = tempfile::tempdir().unwrap();
        fs::create_dir(copy.path().join("journal")).unwrap();
        fs::write(file(copy.path(), 1), &whole[..length as usize]).unwrap();
        assert_eq!(indices(copy.path()), [1, 2], "read up to {length}");
        let (mut journal, found) = opened(copy.path(), 0);
        assert_eq!(found.len(), 2, "cut at {length}");
        assert_eq!(append(&mut journal, 4), offsets[2]);
        assert_eq!(indices(copy.path()), [1, 2, 4]);
    }
}

#[test]
fn a_changed_byte_or_a_hole_ends_a_term() {
    let run = tempfile::tempdir().unwrap();
    let (mut journal, _) = opened(run.path(), 0);
    let offsets: Vec<u64> = (1..4).map(|index| append(&mut journal, index)).collect();
    let first = file(run.path(), 1);
    let whole = fs::read(&first).unwrap();
    for at in journal.of_term.position(offsets[2]) as usize..whole.len() {
        let mut changed = whole.clone();
        changed[at] ^= 0x40;
        fs::write(&first, &changed).unwrap();
        assert_eq!(indices(run.path()), [1, 2], "byte {at}");
    }
    fs::write(&first, [whole.as_slice(), &[0; 100]].concat()).unwrap();
    assert_eq!(indices(run.path()), [1, 2, 3]);
}

/// The learner of the second term read the groups of the first one, so they are part of the run.
#[test]
fn a_changed_byte_in_front_of_another_term_is_refused() {
    let run = tempfile::tempdir().unwrap();
    let (mut journal, _) = opened(run.path(), 0);
    let [_, damaged] = [1, 2].map(|index| append(&mut journal, index));
    let third = append(&mut opened(run.path(), 0).0, 3);
    let first = file(run.path(), 1);
    let whole = fs::read(&first).unwrap();
    for at in journal.of_term.position(damaged) as usize..whole.len() {
        let mut changed = whole.clone();
        changed[at] ^= 1;
        fs::write(&first, &changed).unwrap();
        for fault in [
            open(run.path(), 0).unwrap_err(),
            open(run.path(), damaged).unwrap_err(),
            read(run.path()).unwrap().find_map(Result::err).unwrap(),
        ] {
            let text = fault.to_string();
            assert!(
                text.contains("000001.bin: has a damaged record at byte 15 of the journal, ")
                    && text.contains("the next file begins at byte 30: groups are lost; restore"),
                "byte {at}: {text}"
            );
        }
    }
    // A checkpoint that needs no earlier group continues.
    assert_eq!(opened(run.path(), third).1, [(third, 3)]);
}

/// Header bytes that a disk damaged, and files that are lost or cut.
#[test]
fn files_that_do_not_follow_each_other_are_refused_by_name() {
    let run = tempfile::tempdir().unwrap();
    let mut offsets = Vec::new();
    for index in 1..4 {
        offsets.push(append(&mut opened(run.path(), 0).0, index));
    }
    let [first, second] = [1, 2].map(|number| file(run.path(), number));
    let [whole_first, whole] = [&first, &second].map(|path| fs::read(path).unwrap());
    let assert_refused = |from: u64, name: u64, expected: &str| {
        let fault = open(run.path(), from).unwrap_err().to_string();
        let file = format!("{name:06}.bin");
        assert!(fault.contains(expected) && fault.contains(&file), "{fault}");
    };
    for (start, name, expected) in [
        (
            1 << 20,
            3,
            "before the file of the term before it (byte 1048576)",
        ),
        (
            offsets[2],
            1,
            "but the next file begins at byte 30: groups are lost",
        ),
        (u64::MAX, 2, "not a journal of this program"),
        (u64::MAX - 40, 2, "not a journal of this program"),
    ] {
        let header = [MAGIC.as_slice(), &start.to_le_bytes()].concat();
        fs::write(&second, [&header, &whole[header.len()..]].concat()).unwrap();
        assert_refused(0, name, expected);
    }
    fs::write(&second, whole).unwrap();
    fs::write(&first, &whole_first[..whole_first.len() - 1]).unwrap();
    assert_refused(0, 1, "groups are lost");
    fs::remove_file(&first).unwrap();
    assert_refused(offsets[0], 2, "no file holds the groups before it");
    // A checkpoint that needs no earlier group continues.
    assert_eq!(
        opened(run.path(), offsets[1]).1,
        [(offsets[1], 2), (offsets[2], 3)]
    );
}

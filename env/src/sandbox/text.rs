//! `instr`, `replace` and `substr` in linear time, and `trim` within a bound.
//!
//! Invariant: the result is that of SQLite's function of that name; tests compare the two. SQLite's
//! own take quadratic time, except for `substr`; memmem is linear. `trim` looks up each length that
//! a character of its set has. Valid characters have at most four lengths, so it is linear for
//! them. Broken ones may have any length, so it stops at a bound. Pure. There is no SQLite here.

use std::collections::{BTreeSet, HashMap};

use memchr::memmem;

/// Which ends `trim` trims.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Sides {
    Left,
    Right,
    Both,
}

/// Returns the position of the first `needle` in `haystack`, in characters from 1; 0 for none. In
/// blobs it counts bytes.
pub(super) fn instr(haystack: &[u8], needle: &[u8], is_text: bool) -> i64 {
    let starts = |byte: &u8| !is_text || !is_continuation(*byte);
    let found = match needle.first() {
        None => Some(0),
        // No character begins like this, but SQLite compares at the start of the haystack all the
        // same.
        Some(first) if is_text && is_continuation(*first) => {
            haystack.starts_with(needle).then_some(0)
        }
        Some(_) => memmem::find(haystack, needle),
    };
    found.map_or(0, |at| {
        let skipped = haystack.get(1..=at).unwrap_or_default();
        1 + skipped.iter().filter(|byte| starts(byte)).count() as i64
    })
}

/// Replaces each `pattern` in `text`, leftmost first. `allow` gets the bytes of the result before
/// it is made.
///
/// # Errors
/// `allow` fails.
pub(super) fn replace<E>(
    text: &[u8],
    pattern: &[u8],
    replacement: &[u8],
    allow: impl FnOnce(u64) -> Result<(), E>,
) -> Result<Vec<u8>, E> {
    // SQLite treats a pattern that begins with NUL as empty.
    if pattern.first().is_none_or(|first| *first == 0) {
        allow(text.len() as u64)?;
        return Ok(text.to_vec());
    }
    let needle = memmem::Finder::new(pattern);
    let count = needle.find_iter(text).count();
    let kept = text.len() - count * pattern.len();
    allow(kept as u64 + count as u64 * replacement.len() as u64)?;
    let mut replaced = Vec::with_capacity(kept + count * replacement.len());
    let mut rest = text;
    while let Some(at) = needle.find(rest) {
        replaced.extend_from_slice(&rest[..at]);
        replaced.extend_from_slice(replacement);
        rest = &rest[at + pattern.len()..];
    }
    replaced.extend_from_slice(rest);
    Ok(replaced)
}

/// Returns `text` without the characters of `set` at its ends, and the number of bytes examined.
/// The text is `None` if that number exceeds `most`.
pub(super) fn trim<'a>(
    text: &'a [u8],
    set: &[u8],
    sides: Sides,
    most: u64,
) -> (Option<&'a [u8]>, u64) {
    let mut work = TrimWork { bytes: 0, most };
    let rest = trim_within(text, set, sides, &mut work);
    (rest, work.bytes)
}

fn trim_within<'a>(
    text: &'a [u8],
    set: &[u8],
    sides: Sides,
    work: &mut TrimWork,
) -> Option<&'a [u8]> {
    let set = CharacterSet::new(set, work)?;
    let mut rest = text;
    if sides != Sides::Right {
        while let Some(length) = set.match_length(|length| rest.get(..length), work)? {
            rest = &rest[length..];
        }
    }
    if sides != Sides::Left {
        let last = |rest: &'a [u8], length| Some(&rest[rest.len().checked_sub(length)?..]);
        while let Some(length) = set.match_length(|length| last(rest, length), work)? {
            rest = &rest[..rest.len() - length];
        }
    }
    Some(rest)
}

/// Returns the `length` characters of `text` from position `start` on. Positions count from 1, or
/// from the end where `start` is negative. A negative `length` selects the characters before
/// `start`.
pub(super) fn substr(text: &str, start: i64, length: i64) -> &str {
    let from = match start {
        // Position 0 is the one before the first character.
        0.. => i128::from(start) - 1,
        _ => text.chars().count() as i128 + i128::from(start),
    };
    let to = from + i128::from(length);
    let skip = |rest: &str, count: i128| {
        let count = usize::try_from(count.max(0)).unwrap_or(usize::MAX);
        let end = rest.char_indices().nth(count);
        end.map_or(rest.len(), |(index, _)| index)
    };
    let (low, high) = (from.min(to).max(0), from.max(to).max(0));
    let rest = &text[skip(text, low)..];
    &rest[..skip(rest, high - low)]
}

fn is_continuation(byte: u8) -> bool {
    byte & 0xc0 == 0x80
}

/// Cost of storing or looking up a character of several bytes, in examined bytes.
const LOOKUP_BYTES: u64 = 16;

/// The bytes that a `trim` examines, and its bound on them.
struct TrimWork {
    bytes: u64,
    most: u64,
}

impl TrimWork {
    /// Adds bytes before they are examined. Returns `None` if the sum exceeds the bound.
    fn add(&mut self, bytes: u64) -> Option<()> {
        self.bytes += bytes;
        (self.bytes <= self.most).then_some(())
    }
}

/// The characters to trim, found by their bytes. Where two match, the first one of the set counts.
struct CharacterSet<'a> {
    /// Places in the set of characters of one byte.
    single: [Option<usize>; 256],
    /// Places of longer characters. A broken character may have any length.
    longer: HashMap<&'a [u8], usize>,
    lengths: BTreeSet<usize>,
    /// Bytes examined to look up a character of each length.
    match_bytes: u64,
}

impl<'a> CharacterSet<'a> {
    /// Reads the characters before the first NUL. Returns `None` if that is too much work.
    fn new(set: &'a [u8], work: &mut TrimWork) -> Option<Self> {
        let end = set.iter().position(|byte| *byte == 0);
        let mut rest = &set[..end.unwrap_or(set.len())];
        work.add(rest.len() as u64)?;
        let mut made = Self {
            single: [None; 256],
            longer: HashMap::new(),
            lengths: BTreeSet::new(),
            match_bytes: 1,
        };
        let mut place = 0;
        while let Some(first) = rest.first() {
            let tail = rest[1..].iter().take_while(|byte| is_continuation(**byte));
            let length = if *first < 0xc0 { 1 } else { 1 + tail.count() };
            if length == 1 {
                made.single[usize::from(*first)].get_or_insert(place);
            } else {
                work.add(LOOKUP_BYTES)?;
                made.longer.entry(&rest[..length]).or_insert(place);
                if made.lengths.insert(length) {
                    made.match_bytes += LOOKUP_BYTES + length as u64;
                }
            }
            place += 1;
            rest = &rest[length..];
        }
        Some(made)
    }

    /// Returns the length of the character that `piece` offers, if it is in the set. The outer
    /// `None` means that looking it up is too much work.
    fn match_length<'b>(
        &self,
        piece: impl Fn(usize) -> Option<&'b [u8]>,
        work: &mut TrimWork,
    ) -> Option<Option<usize>> {
        work.add(self.match_bytes)?;
        let single = piece(1)
            .and_then(|piece| self.single[usize::from(piece[0])])
            .map(|place| (place, 1));
        let longer = self.lengths.iter().filter_map(|length| {
            let place = self.longer.get(piece(*length)?)?;
            Some((*place, *length))
        });
        Some(longer.chain(single).min().map(|(_, length)| length))
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Returns characters of 1 to 361 bytes, 64 KiB in all. No valid text has them.
    pub(crate) fn broken_characters() -> Vec<u8> {
        let mut set = Vec::new();
        for tail in 0..361 {
            set.push(0xc0);
            set.resize(set.len() + tail, 0x80);
        }
        set
    }

    #[test]
    fn long_texts_take_linear_time() {
        // Quadratic, these are 10^12 comparisons.
        let text = vec![b'a'; 1 << 20];
        let mut needle = vec![b'a'; 1 << 19];
        needle.push(b'b');
        assert_eq!(instr(&text, &needle, true), 0);
        let allow = |bytes: u64| (bytes == 1 << 20).then_some(()).ok_or(bytes);
        assert_eq!(replace(&text, &needle, b"", allow), Ok(text.clone()));
        let set: String = ('\u{1000}'..'\u{9000}').collect();
        let (rest, work) = trim(set.as_bytes(), set.as_bytes(), Sides::Both, u64::MAX);
        assert_eq!(rest, Some(b"".as_slice()));
        assert!(work < 100 * set.len() as u64, "{work}");
    }

    #[test]
    fn trim_stops_at_its_bound() {
        let (text, set) = (vec![0xc0_u8; 1 << 20], broken_characters());
        let set_bytes = set.len() as u64;
        let most: u64 = 1 << 20;
        for sides in [Sides::Left, Sides::Right, Sides::Both] {
            let (rest, work) = trim(&text, &set, sides, most);
            assert_eq!(rest, None, "{sides:?}");
            assert!(work > most && work < most + 2 * set_bytes, "{work}");
        }
        // Reading the set counts, too.
        for most in [1_000, set_bytes + 1_000] {
            let (rest, work) = trim(b"a", &set, Sides::Both, most);
            assert_eq!(rest, None, "{most}");
            assert!(work > most && work <= most + set_bytes, "{work}");
        }
    }

    /// The result would have a terabyte.
    #[test]
    fn growth_is_known_before_the_result_is_made() {
        let text = vec![b'a'; 1 << 20];
        assert_eq!(replace(&text, b"a", &text, Err), Err(1 << 40));
        assert_eq!(replace(b"abcab", b"ab", b"x", Err), Err(3));
    }
}

//! LIKE and GLOB, with the work they take.
//!
//! Invariant: the result is that of SQLite's own functions, also for broken UTF-8; tests compare
//! the two. A wildcard for many characters is tried from left to right and is final once a later
//! one is reached, so the work is at most text times pattern. Pure. There is no SQLite here.

/// The syntax of a pattern.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum PatternSyntax {
    /// `%` and `_`; ASCII letters match in any case; with an escape character or none.
    Like {
        /// The character after which a wildcard stands for itself.
        escape: Option<u32>,
    },
    /// `*`, `?` and `[...]`, in exact case.
    Glob,
}

/// One part of a pattern.
enum PatternPart {
    /// Any number of any characters.
    Many,
    /// Any one character.
    One,
    /// This character.
    Character(u32),
    /// One character of a set, or one outside of it.
    Set {
        ranges: Vec<(u32, u32)>,
        inverted: bool,
    },
    /// No character: the pattern is broken here.
    Never,
}

/// Returns whether `text` matches `pattern`, and the comparisons made. The result is `None` once
/// they exceed `max_comparisons`. Text and pattern end at their first NUL.
pub(super) fn matches(
    pattern: &[u8],
    text: &[u8],
    syntax: PatternSyntax,
    max_comparisons: u64,
) -> (Option<bool>, u64) {
    let parts = parse(pattern, syntax);
    let is_like = matches!(syntax, PatternSyntax::Like { .. });
    let mut comparisons = parts.len() as u64;
    let (mut rest, mut next) = (text, 0);
    // Where to continue when a part does not match: after the last `Many`, one character further.
    let mut retry: Option<(&[u8], usize)> = None;
    loop {
        comparisons += 1;
        if comparisons > max_comparisons {
            return (None, comparisons);
        }
        if matches!(parts.get(next), Some(PatternPart::Many)) {
            next += 1;
            if next == parts.len() {
                return (Some(true), comparisons);
            }
            retry = Some((rest, next));
            continue;
        }
        let character = read(&mut rest);
        if let Some(PatternPart::Set { ranges, .. }) = parts.get(next) {
            comparisons += ranges.len() as u64;
        }
        match (parts.get(next), character) {
            (None, None) => return (Some(true), comparisons),
            (Some(part), Some(character)) if fits(part, character, is_like) => {
                next += 1;
                continue;
            }
            // No later position can match either, since the text is used up.
            (Some(_), None) => return (Some(false), comparisons),
            (None | Some(_), Some(_)) => {}
        }
        let Some((from, part)) = &mut retry else {
            return (Some(false), comparisons);
        };
        read(from);
        (rest, next) = (*from, *part);
    }
}

fn fits(part: &PatternPart, character: u32, any_case: bool) -> bool {
    match part {
        PatternPart::One => true,
        PatternPart::Character(own) => {
            *own == character || any_case && lower(*own) == lower(character)
        }
        PatternPart::Set { ranges, inverted } => {
            let within = ranges
                .iter()
                .any(|(low, high)| (low..=high).contains(&&character));
            within != *inverted
        }
        PatternPart::Many | PatternPart::Never => false,
    }
}

/// Returns an ASCII letter in lower case, any other character as it is.
fn lower(character: u32) -> u32 {
    match u8::try_from(character) {
        Ok(byte) => u32::from(byte.to_ascii_lowercase()),
        Err(_) => character,
    }
}

fn parse(pattern: &[u8], syntax: PatternSyntax) -> Vec<PatternPart> {
    let (many, one, escape) = match syntax {
        PatternSyntax::Like { escape } => ('%', '_', escape),
        PatternSyntax::Glob => ('*', '?', None),
    };
    let mut rest = pattern;
    let mut parts = Vec::new();
    while let Some(character) = read(&mut rest) {
        parts.push(match character {
            // This comes first, since the escape character may be a wildcard.
            _ if Some(character) == escape => {
                read(&mut rest).map_or(PatternPart::Never, PatternPart::Character)
            }
            _ if character == u32::from(many) => PatternPart::Many,
            _ if character == u32::from(one) => PatternPart::One,
            _ if syntax == PatternSyntax::Glob && character == u32::from('[') => set(&mut rest),
            _ => PatternPart::Character(character),
        });
    }
    parts
}

/// Parses a set after its `[`. A `]` at the start, and a `-` at the start or end, stand for
/// themselves.
fn set(rest: &mut &[u8]) -> PatternPart {
    let mut ranges = Vec::new();
    let mut next = read(rest);
    let inverted = next == Some(u32::from('^'));
    if inverted {
        next = read(rest);
    }
    if next == Some(u32::from(']')) {
        ranges.push((u32::from(']'), u32::from(']')));
        next = read(rest);
    }
    let mut prior = None;
    loop {
        let Some(character) = next else {
            return PatternPart::Never;
        };
        if character == u32::from(']') {
            return PatternPart::Set { ranges, inverted };
        }
        let ends_range = !matches!(rest.first(), None | Some(b']' | 0));
        match prior {
            Some(low) if character == u32::from('-') && ends_range => {
                ranges.extend(read(rest).map(|high| (low, high)));
                prior = None;
            }
            _ => {
                ranges.push((character, character));
                prior = Some(character);
            }
        }
        next = read(rest);
    }
}

/// Removes one character from the front, as SQLite reads broken UTF-8: a lead byte with all its
/// continuation bytes, else one byte. Returns `None` at the end or a NUL.
pub(super) fn read(rest: &mut &[u8]) -> Option<u32> {
    let (first, mut tail) = rest.split_first().filter(|(first, _)| **first != 0)?;
    let mut character = u32::from(*first);
    if *first >= 0xc0 {
        let payload_bits = match first {
            0xc0..=0xdf => 0x1f,
            0xe0..=0xef => 0x0f,
            0xf0..=0xf7 => 0x07,
            0xf8..=0xfb => 0x03,
            0xfc | 0xfd => 0x01,
            _ => 0,
        };
        character &= payload_bits;
        while let Some((next, after)) = tail.split_first().filter(|(next, _)| **next & 0xc0 == 0x80)
        {
            character = (character << 6).wrapping_add(u32::from(next & 0x3f));
            tail = after;
        }
        if character < 0x80 || character & 0xffff_f800 == 0xd800 {
            character = 0xfffd;
        }
    }
    *rest = tail;
    Some(character)
}

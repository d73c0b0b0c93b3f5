//! Shortens text that a message, an observation or a reply repeats.

use std::borrow::Cow;

/// Returns `text` if it has at most `max_bytes`, else its longest prefix of whole characters that
/// fits, followed by an ellipsis.
pub fn truncated(text: &str, max_bytes: usize) -> Cow<'_, str> {
    if text.len() <= max_bytes {
        return text.into();
    }
    let is_end = |end: &usize| text.is_char_boundary(*end);
    let end = (0..=max_bytes).rev().find(is_end).unwrap_or_default();
    format!("{}…", &text[..end]).into()
}

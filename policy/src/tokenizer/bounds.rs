//! Bounds for tokenizers of unknown origin: reading one takes little stack, and text grows little
//! when it is encoded or decoded.

use serde::Deserialize;
use serde_json::Value;
use tokenizers::{DecoderWrapper, NormalizerWrapper, PreTokenizerWrapper};

/// The deepest nesting of a tokenizer's JSON. Those of Qwen, Llama and SmolLM have 7 levels, and
/// reading takes stack in proportion, and time that doubles with each level.
const MOST_NESTING: usize = 16;
/// How many times as long the steps of a part may make a text. A blank that becomes U+2581 grows
/// three times.
const MOST_GROWTH: usize = 64;

/// Checks the bytes of a `tokenizer.json` before the library reads them.
///
/// # Errors
/// The reason why they are refused.
pub(super) fn check_nesting(bytes: &[u8]) -> Result<(), String> {
    if nesting(bytes) > MOST_NESTING {
        return Err(format!(
            "nests deeper than {MOST_NESTING} levels, which no tokenizer does; use the tokenizer \
             of the model"
        ));
    }
    Ok(())
}

/// The parts of a tokenizer that change text, as the library reads them: a file may spell them in
/// several ways.
#[derive(Deserialize)]
pub(super) struct TextParts {
    #[serde(default)]
    normalizer: Option<NormalizerWrapper>,
    #[serde(default)]
    pre_tokenizer: Option<PreTokenizerWrapper>,
    #[serde(default)]
    decoder: Option<DecoderWrapper>,
}

/// Checks how much longer the parts of a tokenizer may make a text. They are read alone: the
/// library normalizes added tokens while it reads the whole.
///
/// # Errors
/// The reason why the tokenizer is refused.
pub(super) fn check_growth(parts: &TextParts) -> Result<(), String> {
    for (name, part) in [
        ("normalizer", serde_json::to_value(&parts.normalizer)),
        ("pre_tokenizer", serde_json::to_value(&parts.pre_tokenizer)),
        ("decoder", serde_json::to_value(&parts.decoder)),
    ] {
        let part = part.map_err(|error| format!("{name}: {error}"))?;
        if growth(&part) > MOST_GROWTH {
            return Err(format!(
                "{name}: its steps make a text more than {MOST_GROWTH} times as long; use the \
                 tokenizer of the model"
            ));
        }
    }
    Ok(())
}

/// Returns how many times as long the steps of a part may make a text, one after the other.
fn growth(part: &Value) -> usize {
    let inner = match part {
        Value::Array(items) => items.iter().fold(1, times),
        Value::Object(fields) => fields.values().fold(1, times),
        _ => return 1,
    };
    inner.saturating_mul(growth_of_step(part))
}

fn times(product: usize, part: &Value) -> usize {
    product.saturating_mul(growth(part))
}

/// The same for one step. An empty text is found before each character.
fn growth_of_step(step: &Value) -> usize {
    const EMPTY_IS_REPLACED: usize = 3;
    let is_empty = |field: &str| step[field].as_str() == Some("");
    match step["type"].as_str() {
        Some("Replace") => replacement_growth(step),
        // A byte becomes a character of up to two bytes.
        Some("ByteLevel") => 2,
        // A map of characters to texts. Those of SentencePiece follow NFKC.
        Some("Precompiled") => 8,
        Some("BPEDecoder") if is_empty("suffix") => EMPTY_IS_REPLACED,
        Some("CTC") if is_empty("word_delimiter_token") => EMPTY_IS_REPLACED,
        _ => 1,
    }
}

fn replacement_growth(step: &Value) -> usize {
    let content = step["content"].as_str().map_or(0, str::len);
    if let Some(pattern) = step["pattern"]["String"]
        .as_str()
        .filter(|it| !it.is_empty())
    {
        return content.div_ceil(pattern.len()).max(1);
    }
    let regex = step["pattern"]["Regex"].as_str().unwrap_or_default();
    match matches_text(regex) {
        true => content.max(1),
        false => content + 1,
    }
}

/// Returns whether a regular expression plainly matches no empty text: characters that mean
/// themselves, the last of them perhaps repeated, such as ` {2,}`.
fn matches_text(regex: &str) -> bool {
    let is_positive = |times: &str| {
        let digits_and_commas = |c: char| c.is_ascii_digit() || c == ',';
        times.starts_with(|c: char| ('1'..='9').contains(&c))
            && times.chars().all(digits_and_commas)
    };
    let repeated = regex.strip_suffix('}').and_then(|it| it.split_once('{'));
    let text = match repeated {
        Some((text, times)) if is_positive(times) => text,
        _ => regex.strip_suffix('+').unwrap_or(regex),
    };
    !text.is_empty() && !text.contains(r"\^$.|?*+()[]{}".chars().collect::<Vec<_>>().as_slice())
}

/// Returns how deep the arrays and objects of a JSON text nest.
fn nesting(json: &[u8]) -> usize {
    let (mut depth, mut deepest) = (0_usize, 0);
    let mut bytes = json.iter();
    while let Some(byte) = bytes.next() {
        match byte {
            b'[' | b'{' => {
                depth += 1;
                deepest = deepest.max(depth);
            }
            b']' | b'}' => depth = depth.saturating_sub(1),
            b'"' => {
                while let Some(byte) = bytes.next() {
                    match byte {
                        b'"' => break,
                        b'\\' => drop(bytes.next()),
                        _ => {}
                    }
                }
            }
            _ => {}
        }
    }
    deepest
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn brackets_in_strings_do_not_nest() {
        assert_eq!(nesting(br#"{"a": "[[[\"[", "b": [1, {"c": "\\"}]}"#), 3);
    }

    #[test]
    fn steps_multiply() {
        let replace = |pattern: Value, content: &str| json!({"type": "Replace", "pattern": pattern, "content": content});
        let blank = replace(json!({"String": " "}), "\u{2581}");
        let quote = replace(json!({"String": "``"}), "\"");
        let letters = replace(json!({"Regex": "a?"}), "bcd");
        let blanks = replace(json!({"Regex": " {2,}"}), "\u{2581}");
        let bytes = json!({"type": "ByteLevel", "add_prefix_space": false});
        for (step, expected) in [
            (&blank, 3),
            (&quote, 1),
            (&letters, 4),
            (&blanks, 3),
            (&replace(json!({"Regex": "()"}), "a"), 2),
            (&replace(json!({"Regex": "a{1}|"}), "a"), 2),
            (&replace(json!({"Regex": "a{1}|b{1}"}), "a"), 2),
            (&replace(json!({"Regex": "a{0,1}"}), "a"), 2),
            (&replace(json!({"String": ""}), ""), 1),
            (&bytes, 2),
            (&json!({"type": "BPEDecoder", "suffix": ""}), 3),
            (&json!({"type": "BPEDecoder", "suffix": "</w>"}), 1),
            (
                &json!({"type": "Precompiled", "precompiled_charsmap": ""}),
                8,
            ),
            (&Value::Null, 1),
        ] {
            assert_eq!(growth(step), expected, "{step}");
        }
        let all = json!({"type": "Sequence", "normalizers": [blank, quote, letters, bytes]});
        assert_eq!(growth(&all), 24);
    }

    /// T5's and XLM-R's normalizer.
    #[test]
    fn the_parts_of_known_tokenizers_are_within_the_bound() {
        let sentencepiece = json!({"type": "Sequence", "normalizers": [
            {"type": "Precompiled", "precompiled_charsmap": ""},
            {"type": "Strip", "strip_left": false, "strip_right": true},
            {"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "\u{2581}"}]});
        assert!(growth(&sentencepiece) <= MOST_GROWTH);
    }
}

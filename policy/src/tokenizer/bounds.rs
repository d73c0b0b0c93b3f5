//! Bounds for tokenizers of unknown origin: reading one takes little stack, and text grows little
//! when it is encoded or decoded.

use serde::Deserialize;
use serde_json::Value;

/// The deepest nesting of a tokenizer's JSON. Those of Qwen, Llama and SmolLM have 7 levels, and
/// reading takes stack in proportion, and time that doubles with each level.
const MOST_NESTING: usize = 16;
/// How many times as long the replacements of a part may make a text. A blank that becomes U+2581
/// grows three times.
const MOST_GROWTH: usize = 64;

/// The parts of a tokenizer that change text.
#[derive(Deserialize)]
struct TextParts {
    #[serde(default)]
    normalizer: Value,
    #[serde(default)]
    pre_tokenizer: Value,
    #[serde(default)]
    decoder: Value,
}

/// Checks the bytes of a `tokenizer.json` before the library reads them. What is no JSON is left to
/// the library.
///
/// # Errors
/// The reason why it is refused.
pub(super) fn check(bytes: &[u8]) -> Result<(), String> {
    if nesting(bytes) > MOST_NESTING {
        return Err(format!(
            "nests deeper than {MOST_NESTING} levels, which no tokenizer does; use the tokenizer \
             of the model"
        ));
    }
    let Ok(parts) = serde_json::from_slice::<TextParts>(bytes) else {
        return Ok(());
    };
    for (name, part) in [
        ("normalizer", &parts.normalizer),
        ("pre_tokenizer", &parts.pre_tokenizer),
        ("decoder", &parts.decoder),
    ] {
        if growth(part) > MOST_GROWTH {
            return Err(format!(
                "{name}: its replacements make a text more than {MOST_GROWTH} times as long; use \
                 the tokenizer of the model"
            ));
        }
    }
    Ok(())
}

/// Returns how many times as long the replacements in a part may make a text, one after the other.
fn growth(part: &Value) -> usize {
    let inner = match part {
        Value::Array(items) => items.iter().fold(1, times),
        Value::Object(fields) => fields.values().fold(1, times),
        _ => return 1,
    };
    inner.saturating_mul(replacement_growth(part))
}

fn times(product: usize, part: &Value) -> usize {
    product.saturating_mul(growth(part))
}

/// The same for one replacement. A regular expression may match the empty text before each
/// character.
fn replacement_growth(part: &Value) -> usize {
    if part["type"] != "Replace" {
        return 1;
    }
    let content = part["content"].as_str().map_or(0, str::len);
    match part["pattern"]["String"].as_str() {
        Some(pattern) if !pattern.is_empty() => content.div_ceil(pattern.len()).max(1),
        _ => content + 1,
    }
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
    use super::*;

    #[test]
    fn brackets_in_strings_do_not_nest() {
        assert_eq!(nesting(br#"{"a": "[[[\"[", "b": [1, {"c": "\\"}]}"#), 3);
    }

    #[test]
    fn replacements_multiply() {
        let replace = |pattern: Value, content: &str| serde_json::json!({"type": "Replace", "pattern": pattern, "content": content});
        let blank = replace(serde_json::json!({"String": " "}), "\u{2581}");
        let quote = replace(serde_json::json!({"String": "``"}), "\"");
        let letters = replace(serde_json::json!({"Regex": "a?"}), "bcd");
        assert_eq!(growth(&blank), 3);
        assert_eq!(growth(&quote), 1);
        assert_eq!(growth(&letters), 4);
        let all = serde_json::json!({"type": "Sequence", "normalizers": [blank, quote, letters]});
        assert_eq!(growth(&all), 12);
        assert_eq!(growth(&Value::Null), 1);
    }
}

//! Bounds for tokenizers of unknown origin: reading one takes little stack, and text grows little
//! when it is encoded or decoded.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use serde::Deserialize;
use serde_json::Value;
use tokenizers::{DecoderWrapper, NormalizerWrapper, PreTokenizerWrapper};

/// The deepest nesting of a tokenizer's JSON. Those of Qwen, Llama and SmolLM have 7 levels, and
/// reading takes stack in proportion, and time that doubles with each level.
const MOST_NESTING: usize = 16;
/// How many times as long the steps of a part may make a text. Those of XLM-R and T5 reach 99: the
/// longest text of their map has 33 bytes, and a blank that becomes U+2581 grows three times.
const MOST_GROWTH: usize = 128;

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
    normalizer: Option<NormalizerWrapper>,
    pre_tokenizer: Option<PreTokenizerWrapper>,
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

/// The same for one step.
fn growth_of_step(step: &Value) -> usize {
    // An empty text is found before each character, and at the end.
    const EMPTY_IS_REPLACED: usize = 3;
    let is_empty = |field: &str| step[field].as_str() == Some("");
    match step["type"].as_str() {
        Some("Replace") => replacement_growth(step),
        Some("Prepend") => 1 + step["prepend"].as_str().map_or(0, str::len),
        // A character of up to four bytes is put before a piece and in place of each blank.
        Some("Metaspace") => 5,
        // A blank is put before a piece, and a byte becomes a character of up to two bytes.
        Some("ByteLevel") => 4,
        // A blank is put before a token.
        Some("WordPiece") => 2,
        // The largest growth of a character in UTF-8 (the FAQ of Unicode on normalization).
        Some("NFC" | "NFD") => 3,
        Some("NFKC" | "NFKD") => 11,
        Some("Lowercase") => 2,
        // Blanks around Chinese characters, NFD and lower case.
        Some("BertNormalizer") => 5,
        Some("Precompiled") => longest_text(step),
        Some("BPEDecoder") if is_empty("suffix") => EMPTY_IS_REPLACED,
        Some("CTC") if is_empty("word_delimiter_token") => EMPTY_IS_REPLACED,
        _ => 1,
    }
}

/// Returns the bytes of the longest text in a map of SentencePiece: the length of a trie, the trie,
/// and texts that each end with a zero byte.
fn longest_text(step: &Value) -> usize {
    let map = step["precompiled_charsmap"].as_str().unwrap_or_default();
    let map = BASE64_STANDARD.decode(map).unwrap_or_default();
    let length = map.first_chunk::<4>();
    let trie = length.map_or(0, |&it| u32::from_le_bytes(it) as usize / 4 * 4);
    let texts = map.get(4 + trie..).unwrap_or_default();
    let lengths = texts.split(|&byte| byte == 0).map(<[u8]>::len);
    lengths.max().unwrap_or(0).max(1)
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
    use tokenizers::{NormalizedString, Normalizer as _};

    use super::*;

    /// Returns a map of SentencePiece with one text.
    fn map_to(text: &str) -> Value {
        let mut map = 4_u32.to_le_bytes().to_vec();
        map.extend([0; 4]);
        map.extend(text.bytes());
        map.push(0);
        json!({"type": "Precompiled", "precompiled_charsmap": BASE64_STANDARD.encode(map)})
    }

    fn normalizers(steps: &[Value]) -> Value {
        json!({"type": "Sequence", "normalizers": steps})
    }

    /// Returns why a part is refused as the library reads it; none if it is not.
    fn refusal(name: &str, part: &Value) -> Option<String> {
        let parts: TextParts = serde_json::from_value(json!({name: part})).unwrap();
        check_growth(&parts).err()
    }

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
            (&bytes, 4),
            (&json!({"type": "BPEDecoder", "suffix": ""}), 3),
            (&json!({"type": "BPEDecoder", "suffix": "</w>"}), 1),
            (&json!({"type": "WordPiece", "prefix": "##"}), 2),
            (&json!({"type": "Prepend", "prepend": "\u{2581}"}), 4),
            (&json!({"type": "Metaspace", "replacement": "\u{2581}"}), 5),
            (&map_to("twelve bytes"), 12),
            (&map_to(""), 1),
            (
                &json!({"type": "Precompiled", "precompiled_charsmap": ""}),
                1,
            ),
            (&Value::Null, 1),
        ] {
            assert_eq!(growth(step), expected, "{step}");
        }
        let all = normalizers(&[blank, quote, letters, bytes]);
        assert_eq!(growth(&all), 48);
    }

    /// The texts are those that grow most.
    #[test]
    fn no_step_of_the_library_exceeds_its_growth() {
        let bert = json!({"type": "BertNormalizer", "clean_text": true,
            "handle_chinese_chars": true, "strip_accents": null, "lowercase": true});
        for (step, text) in [
            (json!({"type": "Prepend", "prepend": "\u{2581}"}), "a"),
            (json!({"type": "NFC"}), "\u{1d160}"),
            (json!({"type": "NFD"}), "\u{390}"),
            (json!({"type": "NFKC"}), "\u{fdfa}"),
            (json!({"type": "NFKD"}), "\u{fdfa}"),
            (json!({"type": "Lowercase"}), "\u{130}"),
            (json!({"type": "ByteLevel"}), "\n"),
            (bert, "\u{4e00}"),
        ] {
            let normalizer: NormalizerWrapper = serde_json::from_value(step.clone()).unwrap();
            let mut normalized = NormalizedString::from(text);
            normalizer.normalize(&mut normalized).unwrap();
            let (before, after) = (text.len(), normalized.get().len());
            assert!(after > before && after <= growth(&step) * before, "{step}");
        }
    }

    /// With pieces of one character, each prefix would double their number.
    #[test]
    fn prefixes_of_single_characters_are_refused_in_a_chain() {
        let chain = |pairs: usize| {
            let steps: Vec<Value> = "abcdefghij"
                .chars()
                .take(pairs)
                .flat_map(|replacement| {
                    let pieces = json!({"type": "FixedLength", "length": 1});
                    let prefix = json!({"type": "Metaspace", "replacement": replacement,
                        "prepend_scheme": "always", "split": false});
                    [pieces, prefix]
                })
                .collect();
            json!({"type": "Sequence", "pretokenizers": steps})
        };
        assert_eq!(refusal("pre_tokenizer", &chain(1)), None);
        let refused = refusal("pre_tokenizer", &chain(10)).unwrap();
        assert!(refused.starts_with("pre_tokenizer: its steps"), "{refused}");
    }

    /// U+FDFA has 3 bytes, and NFKC makes 33 of them.
    #[test]
    fn characters_that_expand_again_and_again_are_refused() {
        let expanded = "\u{635}\u{644}\u{649} \u{627}\u{644}\u{644}\u{647} \
                        \u{639}\u{644}\u{64a}\u{647} \u{648}\u{633}\u{644}\u{645}";
        let back = json!({"type": "Replace", "pattern": {"String": expanded},
            "content": "\u{fdfa}".repeat(11)});
        assert_eq!((expanded.len(), growth(&back)), (33, 1));
        let pair = [back, json!({"type": "NFKC"})];
        let chain = |pairs: usize| normalizers(&vec![pair.clone(); pairs].concat());
        assert_eq!(refusal("normalizer", &chain(1)), None);
        assert!(refusal("normalizer", &chain(3)).is_some());
    }

    /// The library would put it before each added token while it reads the tokenizer.
    #[test]
    fn long_prefixes_are_refused() {
        let prefix = |bytes: usize| json!({"type": "Prepend", "prepend": "a".repeat(bytes)});
        assert_eq!(refusal("normalizer", &prefix(100)), None);
        assert!(refusal("normalizer", &prefix(1_000_000)).is_some());
    }

    #[test]
    fn maps_to_long_texts_are_refused() {
        assert_eq!(refusal("normalizer", &map_to(&"a".repeat(100))), None);
        assert!(refusal("normalizer", &map_to(&"a".repeat(10_000))).is_some());
    }

    #[test]
    fn the_parts_of_known_tokenizers_are_within_the_bound() {
        let blank = json!({"type": "Replace", "pattern": {"String": " "}, "content": "\u{2581}"});
        let bytes = json!({"type": "ByteLevel", "add_prefix_space": false, "trim_offsets": true,
            "use_regex": false});
        // T5 and XLM-R, Llama 2, and Qwen.
        let sentencepiece = normalizers(&[
            map_to(&"a".repeat(33)),
            json!({"type": "Strip", "strip_left": false, "strip_right": true}),
            json!({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": "\u{2581}"}),
        ]);
        let llama = normalizers(&[json!({"type": "Prepend", "prepend": "\u{2581}"}), blank]);
        for (name, part, expected) in [
            ("normalizer", sentencepiece, 99),
            ("normalizer", llama, 12),
            ("normalizer", json!({"type": "NFC"}), 3),
            ("pre_tokenizer", bytes, 4),
        ] {
            assert_eq!(growth(&part), expected, "{part}");
            assert_eq!(refusal(name, &part), None, "{part}");
        }
    }
}

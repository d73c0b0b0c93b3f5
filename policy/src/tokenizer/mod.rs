//! A tokenizer: text to token ids and back, by a `tokenizer.json` of Hugging Face's `tokenizers`.
//!
//! Invariant: encoding and decoding add and drop no token. Templates write every control token
//! themselves, and decoding keeps them, so byte-level tokenizers give `decode(encode(text)) ==
//! text`.

mod bounds;

use std::panic::{AssertUnwindSafe, catch_unwind};

use tokenizers::{Tokenizer as HfTokenizer, models::ModelWrapper};

use crate::error::{PolicyError, Result};

/// The file that holds a tokenizer.
pub(crate) const FILE: &str = "tokenizer.json";

/// A loaded tokenizer.
#[derive(Debug, Clone)]
pub struct Tokenizer {
    inner: HfTokenizer,
    vocabulary_size: usize,
}

/// A token as the vocabulary writes it.
pub(crate) struct Piece {
    /// Its text; of tokens that are not added, in the characters of the tokenizer's alphabet.
    pub(crate) text: String,
    /// Whether it is matched before the text is cut into pieces.
    pub(crate) is_added: bool,
    /// Whether it is a control token, such as the end of a turn.
    pub(crate) is_control: bool,
}

impl Tokenizer {
    /// Reads the bytes of a `tokenizer.json`.
    ///
    /// # Errors
    /// [`PolicyError::File`] if it is not a tokenizer.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let refused = |reason: String| PolicyError::file(FILE, reason);
        bounds::check_nesting(bytes).map_err(refused)?;
        let damaged = |error: String| refused(format!("not a tokenizer: {error}"));
        let parts = unpanicked(|| Ok(serde_json::from_slice(bytes)?)).map_err(damaged)?;
        bounds::check_growth(&parts).map_err(refused)?;
        let mut inner = unpanicked(|| HfTokenizer::from_bytes(bytes)).map_err(damaged)?;
        // Some files carry the padding, the truncation and the dropout of a training pipeline; here
        // every text is encoded whole and alone, to the same tokens each time.
        if let ModelWrapper::BPE(model) = inner.get_model()
            && model.dropout.is_some()
        {
            let mut model = model.clone();
            model.dropout = None;
            inner.with_model(model);
        }
        inner.with_padding(None);
        inner
            .with_truncation(None)
            .map_err(|error| PolicyError::file(FILE, error))?;
        let last = inner.get_vocab(true).into_values().max();
        Ok(Self {
            vocabulary_size: last.map_or(0, |id| id as usize + 1),
            inner,
        })
    }

    /// Returns one more than the largest id. A model may have more logit columns, which mean
    /// nothing.
    pub fn vocabulary_size(&self) -> usize {
        self.vocabulary_size
    }

    /// Returns the ids of `text`. Control tokens in it become those tokens, as in transformers.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        let encoding = unpanicked(|| self.inner.encode_fast(text, false)).map_err(|error| {
            PolicyError::Text(format!("{FILE} cannot encode {text:?}: {error}"))
        })?;
        Ok(encoding.get_ids().to_vec())
    }

    /// Returns the text of `ids`, control tokens included. Bytes that are not UTF-8 become U+FFFD,
    /// unknown ids nothing.
    pub fn decode(&self, ids: &[u32]) -> Result<String> {
        unpanicked(|| self.inner.decode(ids, false))
            .map_err(|error| PolicyError::Text(format!("{FILE} cannot decode {ids:?}: {error}")))
    }

    /// Returns the id of the token with the text `text`, if there is one.
    pub(crate) fn id_of(&self, text: &str) -> Option<u32> {
        self.inner.token_to_id(text)
    }

    /// Returns the tokens as the vocabulary writes them, by id; none where an id has no token.
    pub(crate) fn pieces(&self) -> Vec<Option<Piece>> {
        let all_added = self.inner.get_added_tokens_decoder();
        let piece = |id: u32| {
            let added = all_added.get(&id);
            Some(Piece {
                text: self.inner.id_to_token(id)?,
                is_added: added.is_some(),
                is_control: added.is_some_and(|token| token.special),
            })
        };
        (0..self.vocabulary_size as u32).map(piece).collect()
    }

    /// Returns the id and text of the added token that `text` begins with: a control token or
    /// another one that never merges with its neighbours.
    pub(crate) fn leading_added_token(&self, text: &str) -> Result<Option<(u32, String)>> {
        let first = self.encode(text)?.first().copied();
        let added = self.inner.get_added_tokens_decoder();
        Ok(first.and_then(|id| added.get(&id).map(|token| (id, token.content.clone()))))
    }

    /// Returns the ids of the added tokens whose text ends with `ending`, ascending.
    pub(crate) fn added_tokens_ending_with(&self, ending: &str) -> Vec<u32> {
        let added = self.inner.get_added_tokens_decoder();
        let mut ids: Vec<u32> = added
            .iter()
            .filter(|(_, token)| token.content.ends_with(ending))
            .map(|(&id, _)| id)
            .collect();
        ids.sort_unstable();
        ids
    }
}

/// Runs a call of the library, which panics with some parts of a tokenizer of unknown origin, also
/// where a part that it has parsed once does not parse again.
fn unpanicked<T>(call: impl FnOnce() -> tokenizers::Result<T>) -> Result<T, String> {
    match catch_unwind(AssertUnwindSafe(call)) {
        Ok(result) => result.map_err(|error| error.to_string()),
        Err(_) => Err("a part of it is damaged".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    /// Returns the file of the embedded tokenizer.
    fn embedded() -> Vec<u8> {
        let mut files = crate::embedded::files().into_iter();
        files.find(|(name, _)| name == FILE).unwrap().1
    }

    /// Returns the embedded tokenizer with a part replaced.
    fn with(part: &str, value: Value) -> Result<Tokenizer> {
        let mut json: Value = serde_json::from_slice(&embedded()).unwrap();
        json[part] = value;
        Tokenizer::from_bytes(json.to_string().as_bytes())
    }

    #[test]
    fn nested_normalizers_are_refused_before_they_are_read() {
        let nested = |levels: usize| {
            (0..levels).fold(
                json!({"type": "NFC"}),
                |inner, _| json!({"type": "Sequence", "normalizers": [inner]}),
            )
        };
        with("normalizer", nested(2)).unwrap();
        for levels in [20, 60, 100_000] {
            // Written by hand: serde_json would overflow the stack as well.
            let open = r#"{"type": "Sequence", "normalizers": ["#.repeat(levels);
            let close = "]}".repeat(levels);
            let text = format!(r#"{{"normalizer": {open}{{"type": "NFC"}}{close}}}"#);
            let refusal = Tokenizer::from_bytes(text.as_bytes())
                .unwrap_err()
                .to_string();
            assert!(
                refusal.contains("tokenizer.json: nests deeper"),
                "{refusal}"
            );
        }
    }

    #[test]
    fn a_damaged_part_is_an_error() {
        let damaged = json!({"type": "Precompiled", "precompiled_charsmap": "%"});
        let refusal = with("normalizer", damaged).unwrap_err().to_string();
        assert!(refusal.contains("not a tokenizer"), "{refusal}");
    }

    /// Each newline would become 2^36 of them.
    #[test]
    fn replacements_that_grow_are_refused() {
        let twice = json!({"type": "Replace", "pattern": {"String": "\n"}, "content": "\n\n"});
        let all = json!({"type": "Sequence", "normalizers": vec![twice.clone(); 36]});
        let refusal = with("normalizer", all).unwrap_err().to_string();
        assert!(refusal.contains("tokenizer.json: normalizer"), "{refusal}");
        with("normalizer", twice.clone()).unwrap();
        // The library reads steps without a type as well.
        let plain = json!({"pattern": {"String": "\n"}, "content": "\n\n"});
        let all = json!({"type": "Sequence", "normalizers": vec![plain; 36]});
        with("normalizer", all).unwrap_err();
        // It normalizes added tokens while it reads them.
        let mut json: Value = serde_json::from_slice(&embedded()).unwrap();
        json["normalizer"] = json!({"type": "Sequence", "normalizers": vec![twice; 36]});
        let mut added = json["added_tokens"][0].clone();
        added["id"] = json!(json["model"]["vocab"].as_object().unwrap().len() + 100);
        added["content"] = json!("\n");
        added["normalized"] = json!(true);
        json["added_tokens"].as_array_mut().unwrap().push(added);
        Tokenizer::from_bytes(json.to_string().as_bytes()).unwrap_err();
    }

    #[test]
    fn a_part_that_panics_is_an_error() {
        let pieces = json!({"type": "FixedLength", "length": 0});
        let tokenizer = with("pre_tokenizer", pieces).unwrap();
        let refusal = tokenizer.encode("text").unwrap_err().to_string();
        assert!(refusal.contains("cannot encode"), "{refusal}");
        let strip = json!({"type": "Strip", "content": "t", "start": 0, "stop": 9});
        let tokenizer = with("decoder", strip).unwrap();
        let ids = tokenizer.encode("t").unwrap();
        let refusal = tokenizer.decode(&ids).unwrap_err().to_string();
        assert!(refusal.contains("cannot decode"), "{refusal}");
    }

    #[test]
    fn dropout_is_for_trainings_of_tokenizers() {
        let bytes = embedded();
        let mut json: Value = serde_json::from_slice(&bytes).unwrap();
        json["model"]["dropout"] = json!(0.9);
        let dropping = Tokenizer::from_bytes(json.to_string().as_bytes()).unwrap();
        let text = "SELECT count(*) FROM customers WHERE country = 'Japan'";
        let plain = Tokenizer::from_bytes(&bytes).unwrap().encode(text).unwrap();
        assert_eq!(dropping.encode(text).unwrap(), plain);
    }

    proptest::proptest! {
        #![proptest_config(proptest::test_runner::Config::with_cases(64))]
        #[test]
        fn any_change_of_a_byte_is_read_or_refused(at: proptest::sample::Index, to: u8) {
            let mut bytes = embedded();
            let at = at.index(bytes.len());
            bytes[at] = to;
            drop(Tokenizer::from_bytes(&bytes));
        }
    }
}

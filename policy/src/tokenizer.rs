//! A tokenizer: text to token ids and back, by a `tokenizer.json` of Hugging Face's `tokenizers`.
//!
//! Invariant: encoding and decoding add and drop no token. Templates write every control token
//! themselves, and decoding keeps them, so byte-level tokenizers give `decode(encode(text)) ==
//! text`.

use tokenizers::Tokenizer as HfTokenizer;

use crate::error::{PolicyError, Result};

/// The file that holds a tokenizer.
pub(crate) const FILE: &str = "tokenizer.json";

/// A loaded tokenizer.
#[derive(Debug, Clone)]
pub struct Tokenizer {
    inner: HfTokenizer,
    vocabulary_size: usize,
}

impl Tokenizer {
    /// Reads the bytes of a `tokenizer.json`.
    ///
    /// # Errors
    /// [`PolicyError::File`] if it is not a tokenizer.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let mut inner = HfTokenizer::from_bytes(bytes)
            .map_err(|error| PolicyError::file(FILE, format!("not a tokenizer: {error}")))?;
        // Some files carry the padding and truncation of a training pipeline; here every text is
        // encoded whole and alone.
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
        let encoding = self.inner.encode_fast(text, false).map_err(|error| {
            PolicyError::Text(format!("{FILE} cannot encode {text:?}: {error}"))
        })?;
        Ok(encoding.get_ids().to_vec())
    }

    /// Returns the text of `ids`, control tokens included. Bytes that are not UTF-8 become U+FFFD,
    /// unknown ids nothing.
    pub fn decode(&self, ids: &[u32]) -> Result<String> {
        self.inner
            .decode(ids, false)
            .map_err(|error| PolicyError::Text(format!("{FILE} cannot decode {ids:?}: {error}")))
    }

    /// Returns the id of the token with the text `text`, if there is one.
    pub fn id_of(&self, text: &str) -> Option<u32> {
        self.inner.token_to_id(text)
    }

    /// Returns the id and text of the added token that `text` begins with: a control token or
    /// another one that never merges with its neighbours.
    pub fn leading_added_token(&self, text: &str) -> Result<Option<(u32, String)>> {
        let first = self.encode(text)?.first().copied();
        let added = self.inner.get_added_tokens_decoder();
        Ok(first.and_then(|id| added.get(&id).map(|token| (id, token.content.clone()))))
    }

    /// Returns the ids of the added tokens whose text ends with `ending`, ascending.
    pub fn added_tokens_ending_with(&self, ending: &str) -> Vec<u32> {
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

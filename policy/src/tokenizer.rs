//! Text to token ids and back: a `tokenizer.json` of Hugging Face's `tokenizers`.
//!
//! Invariant: no token is added or dropped on either way: templates write every control token themselves, and decoding
//! keeps them, so byte-level tokenizers give `decode(encode(text)) == text`.

use std::path::Path;

use tokenizers::Tokenizer as Inner;

use crate::error::{PolicyError, Result};

/// The file that holds a tokenizer.
pub(crate) const FILE: &str = "tokenizer.json";

/// A loaded tokenizer.
#[derive(Debug, Clone)]
pub struct Tokenizer {
    inner: Inner,
    vocabulary_size: usize,
}

impl Tokenizer {
    /// Reads the bytes of a `tokenizer.json`.
    pub fn from_bytes(bytes: &[u8]) -> Result<Self> {
        let mut inner = Inner::from_bytes(bytes).map_err(|error| {
            PolicyError::file(Path::new(FILE), format!("not a tokenizer: {error}"))
        })?;
        // Settings of a training pipeline that some files carry; here every text is encoded whole and alone.
        inner.with_padding(None);
        inner
            .with_truncation(None)
            .map_err(|error| PolicyError::file(Path::new(FILE), error))?;
        let last = inner.get_vocab(true).into_values().max();
        Ok(Self {
            vocabulary_size: last.map_or(0, |id| id as usize + 1),
            inner,
        })
    }

    /// One more than the largest id. A model may have more logit columns; they mean nothing.
    pub fn vocabulary_size(&self) -> usize {
        self.vocabulary_size
    }

    /// The ids of `text`. Control tokens spelled out in it become those tokens, as in transformers.
    pub fn encode(&self, text: &str) -> Result<Vec<u32>> {
        let encoding = self.inner.encode_fast(text, false).map_err(|error| {
            PolicyError::Text(format!("{FILE} cannot encode {text:?}: {error}"))
        })?;
        Ok(encoding.get_ids().to_vec())
    }

    /// The text of `ids`, control tokens included. Bytes that are not UTF-8 become U+FFFD, unknown ids nothing.
    pub fn decode(&self, ids: &[u32]) -> Result<String> {
        self.inner
            .decode(ids, false)
            .map_err(|error| PolicyError::Text(format!("{FILE} cannot decode {ids:?}: {error}")))
    }

    /// The id of the token that is spelled `text`, if there is one.
    pub fn id_of(&self, text: &str) -> Option<u32> {
        self.inner.token_to_id(text)
    }

    /// The id and text of the added token that `text` begins with: a control token or another one that never merges with
    /// its neighbours.
    pub fn leading_added_token(&self, text: &str) -> Result<Option<(u32, String)>> {
        let first = self.encode(text)?.first().copied();
        let added = self.inner.get_added_tokens_decoder();
        Ok(first.and_then(|id| added.get(&id).map(|token| (id, token.content.clone()))))
    }

    /// The ids of the added tokens whose text ends with `ending`, ascending.
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

//! The bytes of a vocabulary's tokens, which a grammar is matched against.

use std::sync::Arc;

use toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};

use crate::chat::Chat;
use crate::error::{PolicyError, Result};
use crate::tokenizer;

/// The tokens of a vocabulary.
pub(super) struct Vocabulary {
    /// The tokens by their bytes. Control tokens and the end of a turn have bytes that no grammar
    /// names. A token that ends with the end of a turn has those of its text.
    pub(super) trie: TokEnv,
    /// The stop tokens that have no other text than an end.
    pub(super) ends: Vec<u32>,
}

impl Vocabulary {
    /// Reads the vocabulary of a chat, whose turns end with the text `turn_end`.
    ///
    /// # Errors
    /// The tokenizer is not byte-level, so a token has no bytes of its own.
    pub(super) fn new(chat: &Chat, turn_end: &str) -> Result<Self> {
        let (stop_ids, bytes_of) = (chat.stop_ids(), characters_to_bytes());
        let (mut tokens, mut ends) = (Vec::new(), Vec::new());
        for (id, piece) in (0_u32..).zip(chat.tokenizer().pieces()) {
            let is_stop = stop_ids.contains(&id);
            let is_more = |text: &str| text.len() > turn_end.len() && text.ends_with(turn_end);
            tokens.push(match piece {
                None => Vec::new(),
                Some(piece) if is_stop && is_more(&piece.text) => piece.text.into_bytes(),
                Some(piece) if is_stop || piece.is_control => {
                    ends.extend(is_stop.then_some(id));
                    let mut marked = vec![TokTrie::SPECIAL_TOKEN_MARKER];
                    marked.extend_from_slice(format!("<control_{id}>").as_bytes());
                    marked
                }
                Some(piece) if piece.is_added => piece.text.into_bytes(),
                Some(piece) => bytes(&piece.text, &bytes_of)?,
            });
        }
        let end = stop_ids.first().copied().unwrap_or_default();
        let trie = TokTrie::from(&TokRxInfo::new(tokens.len() as u32, end), &tokens);
        Ok(Self {
            trie: Arc::new(ApproximateTokEnv::new(trie)),
            ends,
        })
    }
}

fn bytes(piece: &str, bytes_of: &[Option<u8>]) -> Result<Vec<u8>> {
    let byte = |letter: char| bytes_of.get(letter as usize).copied().flatten();
    piece.chars().map(byte).collect::<Option<_>>().ok_or_else(|| {
        PolicyError::file(
            tokenizer::FILE,
            format!(
                "the token {piece:?} is not made of bytes; rollout.constraint needs a byte-level \
                 tokenizer, such as those of Qwen, Llama 3 and SmolLM"
            ),
        )
    })
}

/// Returns the byte of each character of a byte-level tokenizer's alphabet. Printable characters
/// stand for themselves; the others follow from U+0100 on (GPT-2's `bytes_to_unicode`,
/// openai/gpt-2:src/encoder.py).
fn characters_to_bytes() -> Vec<Option<u8>> {
    let mut bytes = vec![None; 0x200];
    let mut next = 0x100;
    for byte in 0..=u8::MAX {
        let place = match byte {
            b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff => usize::from(byte),
            _ => {
                next += 1;
                next - 1
            }
        };
        bytes[place] = Some(byte);
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_has_a_character() {
        let found = characters_to_bytes();
        let mut all: Vec<u8> = found.iter().copied().flatten().collect();
        all.sort_unstable();
        assert_eq!(all, (0..=u8::MAX).collect::<Vec<_>>());
        assert_eq!(found['Ġ' as usize], Some(b' '));
        assert_eq!(found['Ċ' as usize], Some(b'\n'));
    }

    #[test]
    fn tokens_have_the_bytes_that_they_decode_to() {
        let chat = crate::embedded::model(0).unwrap().chat;
        let env = Vocabulary::new(&chat, "<|im_end|>").unwrap().trie;
        let text = "<tool_call>\n{\"name\": \"query\"} SELECT count(*) FROM größe";
        let ids = chat.encode(text).unwrap();
        assert_eq!(env.tok_trie().decode(&ids), text.as_bytes());
    }
}

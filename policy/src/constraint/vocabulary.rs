//! The bytes of a vocabulary's tokens, which a grammar is matched against.

use toktrie::{ApproximateTokEnv, TokEnv, TokRxInfo, TokTrie};

use crate::chat::Chat;
use crate::error::{PolicyError, Result};
use crate::tokenizer;

/// Returns the tokens as a trie of their bytes. Control tokens have none, since no grammar names
/// them. A token that ends with the end of a turn has the bytes of its text.
///
/// # Errors
/// The tokenizer is not byte-level, so a token has no bytes of its own.
pub(super) fn token_trie(chat: &Chat) -> Result<TokEnv> {
    let Some(&end) = chat.stop_ids().first() else {
        return Err(PolicyError::file(
            tokenizer::FILE,
            "has no token that ends a turn",
        ));
    };
    let bytes_of = characters_to_bytes();
    let mut tokens = Vec::with_capacity(chat.vocabulary_size());
    for id in 0..chat.vocabulary_size() as u32 {
        tokens.push(match chat.tokenizer().piece(id) {
            None => Vec::new(),
            Some(piece) if piece.is_control => {
                let mut marked = vec![TokTrie::SPECIAL_TOKEN_MARKER];
                marked.extend_from_slice(format!("<control_{id}>").as_bytes());
                marked
            }
            Some(piece) if piece.is_added => piece.text.into_bytes(),
            Some(piece) => bytes(&piece.text, &bytes_of)?,
        });
    }
    let info = TokRxInfo::new(tokens.len() as u32, end);
    let trie = TokTrie::from(&info, &tokens);
    Ok(std::sync::Arc::new(ApproximateTokEnv::new(trie)))
}

/// Returns the stop tokens that have no other text than the end of a turn.
pub(super) fn ends(chat: &Chat) -> Vec<u32> {
    let is_end = |id: &&u32| {
        chat.tokenizer()
            .piece(**id)
            .is_some_and(|piece| piece.is_control)
    };
    let (stop_ids, first) = (chat.stop_ids(), &chat.stop_ids()[..1]);
    let others = stop_ids[1..].iter().filter(is_end);
    first.iter().chain(others).copied().collect()
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
        let chat = crate::tiny::model(0).unwrap().chat;
        let env = token_trie(&chat).unwrap();
        let text = "<tool_call>\n{\"name\": \"query\"} SELECT count(*) FROM größe";
        let ids = chat.encode(text).unwrap();
        assert_eq!(env.tok_trie().decode(&ids), text.as_bytes());
    }
}

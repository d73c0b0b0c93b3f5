//! The episode token: an episode's state, signed.
//!
//! Layout: key id (4 bytes), HMAC-SHA256 (32 bytes) over key id and body, body (protobuf).
//! Invariant: only a holder of the key can make a token that opens. The same state, version and
//! expiry seal to the same bytes, so that Step is idempotent; the expiry is fixed at Reset. The
//! time is an argument.

use hmac::{Hmac, KeyInit, Mac};
use prost::Message;
use sha2::{Digest, Sha256};

use crate::episode::EpisodeState;

const KEY_ID_BYTES: usize = 4;
const HEADER_BYTES: usize = KEY_ID_BYTES + 32;
/// Largest token that is checked, far above any honest one. It bounds the work for a hostile one.
const MAX_TOKEN_BYTES: usize = 16 << 20;

/// Why a token is refused. Each message names the remedy.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// The token is too short or too long.
    #[error(
        "episode token is malformed ({0} bytes); pass on the bytes of the newest reply unchanged"
    )]
    Malformed(usize),
    /// A node with another key made it.
    #[error(
        "episode token was signed with key {theirs}, this node has key {ours}; give all nodes the \
         same signing_key, or call Reset again"
    )]
    ForeignKey {
        /// Key id in the token.
        theirs: String,
        /// Key id of this node.
        ours: String,
    },
    /// The signature does not match: the token was forged or altered.
    #[error(
        "episode token is forged or altered: its signature does not match; pass on the bytes of \
         the newest reply unchanged"
    )]
    Forged,
    /// It is too old, by so many seconds.
    #[error("episode token expired {0} s ago; call Reset again, or raise token_ttl_seconds")]
    Expired(u64),
    /// It was made under other rules.
    #[error(
        "episode token is of environment version {theirs}, this node serves {ours}; call Reset \
         again"
    )]
    ForeignVersion {
        /// Version in the token.
        theirs: String,
        /// Version of this node.
        ours: String,
    },
    /// The question is unknown here, or it or its database differs.
    #[error(
        "episode token is for question {question_id:?}, which this node does not have or has with \
         another text, answer or database; serve the same dataset on all nodes, or call Reset again"
    )]
    ForeignDatabase {
        /// The question.
        question_id: String,
    },
}

/// The content of a token.
#[derive(Clone, PartialEq, Eq, Message)]
pub(crate) struct TokenBody {
    #[prost(string, tag = "1")]
    pub(crate) environment_version: String,
    #[prost(uint64, tag = "2")]
    pub(crate) expires_at_unix_seconds: u64,
    /// Identifies the question with its answer and its database, by [`TokenKey::name_of`].
    #[prost(string, tag = "3")]
    pub(crate) question_name: String,
    #[prost(message, required, tag = "4")]
    pub(crate) state: EpisodeState,
}

/// The key that seals and opens tokens.
#[derive(Clone)]
pub(crate) struct TokenKey {
    id: [u8; KEY_ID_BYTES],
    mac: Hmac<Sha256>,
}

impl TokenKey {
    pub(crate) fn new(key: &[u8]) -> Self {
        let mut id = [0; KEY_ID_BYTES];
        id.copy_from_slice(&Sha256::digest(key)[..KEY_ID_BYTES]);
        Self {
            id,
            mac: Hmac::new_from_slice(key).expect("HMAC takes keys of any length: this is a bug"),
        }
    }

    /// Returns the key's public name.
    pub(crate) fn id(&self) -> String {
        hex::encode(self.id)
    }

    /// Returns a name of a hash that only a holder of the key can compute. Whoever has a token
    /// could otherwise try which answer gives the hash.
    pub(crate) fn name_of(&self, sha256: &str) -> String {
        let mac = self.mac.clone().chain_update(sha256);
        hex::encode(mac.finalize().into_bytes())
    }

    pub(crate) fn seal(&self, body: &TokenBody) -> Vec<u8> {
        let mut token = Vec::with_capacity(HEADER_BYTES + body.encoded_len());
        token.extend(self.id);
        token.extend([0; 32]);
        body.encode(&mut token)
            .expect("a Vec grows as needed: this is a bug");
        let signature = self
            .signature(&token[HEADER_BYTES..])
            .finalize()
            .into_bytes();
        token[KEY_ID_BYTES..HEADER_BYTES].copy_from_slice(&signature);
        token
    }

    /// Checks signature, version and expiry in this order, and returns the content.
    pub(crate) fn open(
        &self,
        token: &[u8],
        environment_version: &str,
        now_unix_seconds: u64,
    ) -> Result<TokenBody, TokenError> {
        let malformed = || TokenError::Malformed(token.len());
        if !(HEADER_BYTES..=MAX_TOKEN_BYTES).contains(&token.len()) {
            return Err(malformed());
        }
        let (header, body) = token.split_at(HEADER_BYTES);
        let (id, signature) = header.split_at(KEY_ID_BYTES);
        if id != self.id {
            return Err(TokenError::ForeignKey {
                theirs: hex::encode(id),
                ours: self.id(),
            });
        }
        self.signature(body)
            .verify_slice(signature)
            .map_err(|_| TokenError::Forged)?;
        let body = TokenBody::decode(body).map_err(|_| malformed())?;
        if body.environment_version != environment_version {
            return Err(TokenError::ForeignVersion {
                theirs: body.environment_version,
                ours: environment_version.to_owned(),
            });
        }
        if now_unix_seconds > body.expires_at_unix_seconds {
            return Err(TokenError::Expired(
                now_unix_seconds - body.expires_at_unix_seconds,
            ));
        }
        Ok(body)
    }

    fn signature(&self, body: &[u8]) -> Hmac<Sha256> {
        self.mac.clone().chain_update(self.id).chain_update(body)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const KEY: &[u8] = b"a key of at least thirty-two bytes";

    fn body() -> TokenBody {
        TokenBody {
            environment_version: "1-ab".to_owned(),
            expires_at_unix_seconds: 1_000,
            question_name: "00".to_owned(),
            state: EpisodeState {
                question_id: "q".to_owned(),
                history: vec!["DESCRIBE cars".to_owned()],
                query_keys: vec![7, 8],
                step_budget: 15,
                ..EpisodeState::default()
            },
        }
    }

    #[test]
    fn opens_what_it_sealed_and_seals_the_same_bytes() {
        let key = TokenKey::new(KEY);
        let token = key.seal(&body());
        assert_eq!(token, key.seal(&body()));
        assert_eq!(key.open(&token, "1-ab", 1_000), Ok(body()));
        assert!(token.len() < 120, "{} bytes", token.len());
    }

    #[test]
    fn refuses_with_the_reason() {
        let key = TokenKey::new(KEY);
        let token = key.seal(&body());
        let expired = key.open(&token, "1-ab", 1_030).unwrap_err();
        assert_eq!(expired, TokenError::Expired(30));
        let foreign = key.open(&token, "2-ab", 0).unwrap_err();
        assert!(matches!(foreign, TokenError::ForeignVersion { .. }));
        let other = TokenKey::new(b"another key of at least thirty-two bytes");
        let foreign = other.open(&token, "1-ab", 0).unwrap_err();
        assert!(matches!(foreign, TokenError::ForeignKey { .. }));
        assert_eq!(key.open(b"", "1-ab", 0), Err(TokenError::Malformed(0)));
        assert_eq!(
            key.open(&token[..35], "1-ab", 0),
            Err(TokenError::Malformed(35))
        );
        assert_eq!(key.open(&token[..40], "1-ab", 0), Err(TokenError::Forged));
    }

    proptest! {
        #[test]
        fn any_altered_byte_is_refused(at in 0..200_usize, flip in 1..=255_u8) {
            let key = TokenKey::new(KEY);
            let mut token = key.seal(&body());
            let at = at % token.len();
            token[at] ^= flip;
            prop_assert!(key.open(&token, "1-ab", 0).is_err());
        }

        #[test]
        fn any_bytes_are_refused_without_a_panic(
            token in proptest::collection::vec(any::<u8>(), 0..200),
        ) {
            prop_assert!(TokenKey::new(KEY).open(&token, "1-ab", 0).is_err());
        }
    }
}

//! The bearer token that a server requires.
//!
//! Invariant: tokens are compared by their hashes, so the time that this takes tells nothing about
//! the token.

use std::path::Path;

use sha2::{Digest, Sha256};
use tonic::{Request, Status, service::Interceptor};

use crate::dial::FileError;

/// A shorter token could be guessed.
const MIN_TOKEN_BYTES: usize = 16;

/// The token's hash.
#[derive(Clone, Copy)]
pub struct BearerToken([u8; 32]);

impl BearerToken {
    /// Reads the token from a file. Returns none if no file is named.
    ///
    /// # Errors
    /// The file cannot be read or its token is short; names `setting`.
    pub fn open(setting: &'static str, path: Option<&Path>) -> Result<Option<Self>, FileError> {
        let Some(path) = path else { return Ok(None) };
        let refuse = |problem: String| FileError {
            setting,
            path: path.to_owned(),
            reason: format!(
                "it {problem}; give a text file with a token of at least {MIN_TOKEN_BYTES} bytes"
            ),
        };
        let text = std::fs::read_to_string(path)
            .map_err(|error| refuse(format!("cannot be read: {error}")))?;
        let token = text.trim();
        if token.len() < MIN_TOKEN_BYTES {
            return Err(refuse(format!("holds {} bytes", token.len())));
        }
        // A header could not carry another one.
        if !token.bytes().all(|it| it == b' ' || it.is_ascii_graphic()) {
            return Err(refuse("is not one line of ASCII".to_owned()));
        }
        Ok(Some(Self(Sha256::digest(token).into())))
    }

    /// Returns whether `token` is the token.
    pub fn equals(&self, token: &[u8]) -> bool {
        <[u8; 32]>::from(Sha256::digest(token)) == self.0
    }
}

/// Returns what an authorization header presents, if it is of this scheme.
pub fn credentials_of<'a>(header: &'a str, scheme: &str) -> Option<&'a str> {
    let (given, credentials) = header.split_once(' ')?;
    given
        .eq_ignore_ascii_case(scheme)
        .then_some(credentials.trim())
}

/// Refuses calls without a token by UNAUTHENTICATED.
#[derive(Clone)]
pub struct RequireToken {
    /// The token; every call passes without one.
    pub token: Option<BearerToken>,
    /// What a refused caller should do.
    pub remedy: &'static str,
}

impl Interceptor for RequireToken {
    fn call(&mut self, request: Request<()>) -> Result<Request<()>, Status> {
        let Some(expected) = &self.token else {
            return Ok(request);
        };
        let header = request.metadata().get("authorization");
        let presented = header
            .and_then(|value| value.to_str().ok())
            .and_then(|value| credentials_of(value, "bearer"));
        match presented {
            Some(token) if expected.equals(token.as_bytes()) => Ok(request),
            _ => Err(Status::unauthenticated(self.remedy)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_token_of_the_file_passes() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        std::fs::write(&path, "a secret of some length\n").unwrap();
        let token = BearerToken::open("token_file", Some(&path)).unwrap();
        let mut check = RequireToken {
            token,
            remedy: "send a token",
        };
        let mut passes = |header: Option<&str>| {
            let mut request = Request::new(());
            if let Some(header) = header {
                let value = header.parse().unwrap();
                request.metadata_mut().insert("authorization", value);
            }
            check.call(request).is_ok()
        };
        assert!(passes(Some("Bearer a secret of some length")));
        assert!(passes(Some("bearer  a secret of some length ")));
        for refused in [
            None,
            Some("Bearer another secret of some length"),
            Some("Bearer a secret of some lengt"),
            Some("Basic a secret of some length"),
            Some("Bearer"),
        ] {
            assert!(!passes(refused), "{refused:?}");
        }
        for (text, problem) in [
            ("short", "holds 5 bytes"),
            ("a secret of some léngth", "is not one line of ASCII"),
            ("an-old-secret\na-new-secret", "is not one line of ASCII"),
        ] {
            std::fs::write(&path, text).unwrap();
            let refused = BearerToken::open("token_file", Some(&path)).err().unwrap();
            assert!(refused.to_string().contains(problem), "{refused}");
        }
    }
}

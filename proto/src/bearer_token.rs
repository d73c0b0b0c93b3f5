//! The bearer token that a server requires and a client sends.
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
    /// The file cannot be read, or its token is short or not one line of ASCII; names `setting`.
    pub fn open(setting: &'static str, path: Option<&Path>) -> Result<Option<Self>, FileError> {
        let Some(path) = path else { return Ok(None) };
        let token = read(setting, path)?;
        Ok(Some(Self(Sha256::digest(token).into())))
    }

    /// Returns whether `token` is the token.
    pub fn equals(&self, token: &[u8]) -> bool {
        <[u8; 32]>::from(Sha256::digest(token)) == self.0
    }
}

/// Reads a token from a file. Servers and clients refuse the same files.
///
/// # Errors
/// As [`BearerToken::open`].
pub(crate) fn read(setting: &'static str, path: &Path) -> Result<String, FileError> {
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
    Ok(token.to_owned())
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
    use crate::dial::Credentials;

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
    }

    #[test]
    fn servers_and_clients_refuse_the_same_files() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("token");
        let client = Credentials {
            bearer_token_file: Some(path.clone()),
            ..Credentials::default()
        };
        let not_utf8 = b"a secret of some l\xe9ngth".as_slice();
        for (text, problem) in [
            (not_utf8, "cannot be read"),
            ("short".as_bytes(), "holds 5 bytes"),
            (
                "a secret of some léngth".as_bytes(),
                "is not one line of ASCII",
            ),
            (
                "an-old-secret\na-new-secret".as_bytes(),
                "is not one line of ASCII",
            ),
        ] {
            std::fs::write(&path, text).unwrap();
            let by_server = BearerToken::open("token_file", Some(&path)).err().unwrap();
            let by_client = client.bearer().unwrap_err();
            for refused in [by_server, by_client] {
                assert!(refused.to_string().contains(problem), "{refused}");
            }
        }
    }
}

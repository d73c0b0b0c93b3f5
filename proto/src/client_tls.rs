//! TLS of a client: the authorities that it trusts, and its own certificate.
//!
//! Invariant: a file that cannot be used is an error that names it, before a connection is made.

use std::path::{Path, PathBuf};

use tokio_rustls::rustls::{
    RootCertStore,
    crypto::ring,
    pki_types::{PrivateKeyDer, TrustAnchor, pem::PemObject as _},
    sign::CertifiedKey,
};
use tonic::transport::{ClientTlsConfig, Identity};

use crate::{
    dial::{Credentials, FileError},
    server_tls::{certificates_in, refuse},
};

/// The files of credentials for TLS, with what they held when they were read.
#[derive(Clone, PartialEq)]
pub(crate) struct ClientTls {
    authorities: Option<PemFile>,
    certificate_and_key: Option<(PemFile, PemFile)>,
}

#[derive(Clone, PartialEq)]
struct PemFile {
    setting: &'static str,
    path: PathBuf,
    pem: Vec<u8>,
}

impl ClientTls {
    pub(crate) fn read(credentials: &Credentials) -> Result<Self, FileError> {
        const PAIR: &str = "certificate_and_key_files";
        let authorities = credentials.ca_file.as_ref();
        let read_pair = |(certificate, key): &(PathBuf, PathBuf)| {
            let certificate = PemFile::read(PAIR, certificate)?;
            Ok::<_, FileError>((certificate, PemFile::read(PAIR, key)?))
        };
        let pair = credentials.certificate_and_key_files.as_ref();
        Ok(Self {
            authorities: authorities
                .map(|path| PemFile::read("ca_file", path))
                .transpose()?,
            certificate_and_key: pair.map(read_pair).transpose()?,
        })
    }

    /// Returns what tonic needs to know. What it would refuse or ignore is refused here by its
    /// file.
    pub(crate) fn config(&self) -> Result<ClientTlsConfig, FileError> {
        let tls = ClientTlsConfig::new();
        let tls = match &self.authorities {
            None => tls.with_enabled_roots(),
            Some(file) => tls.trust_anchors(file.trust_anchors()?),
        };
        match &self.certificate_and_key {
            None => Ok(tls),
            Some((certificate, key)) => Ok(tls.identity(identity(certificate, key)?)),
        }
    }
}

impl PemFile {
    fn read(setting: &'static str, path: &Path) -> Result<Self, FileError> {
        let pem = std::fs::read(path).map_err(|error| refuse(setting, path, &error))?;
        Ok(Self {
            setting,
            path: path.to_owned(),
            pem,
        })
    }

    /// Returns the authorities of the file. A large bundle may have some that rustls cannot read.
    fn trust_anchors(&self) -> Result<Vec<TrustAnchor<'static>>, FileError> {
        let certificates = certificates_in(self.setting, &self.path, &self.pem)?;
        let mut roots = RootCertStore::empty();
        match roots.add_parsable_certificates(certificates) {
            (0, _) => Err(self.refuse(&"it holds no certificate that can be read")),
            _ => Ok(roots.roots),
        }
    }

    fn refuse(&self, problem: &dyn std::fmt::Display) -> FileError {
        refuse(self.setting, &self.path, problem)
    }
}

/// Returns the certificate of a client. Its key must fit.
fn identity(certificate: &PemFile, key: &PemFile) -> Result<Identity, FileError> {
    let chain = certificates_in(certificate.setting, &certificate.path, &certificate.pem)?;
    let private_key =
        PrivateKeyDer::from_pem_slice(&key.pem).map_err(|error| key.refuse(&error))?;
    CertifiedKey::from_der(chain, private_key, &ring::default_provider())
        .map_err(|error| key.refuse(&error))?;
    Ok(Identity::from_pem(&certificate.pem, &key.pem))
}

//! A certificate authority for tests of servers. The tests of `learner` and `env-node` use it.

use std::{
    fs,
    path::{Path, PathBuf},
};

use proto::{Credentials, TlsConfig};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair, date_time_ymd};
use tempfile::TempDir;

/// Writes a file into `folder` and returns its path.
pub(crate) fn write(folder: &Path, name: &str, text: &str) -> PathBuf {
    let path = folder.join(name);
    fs::write(&path, text).unwrap();
    path
}

/// A certificate authority, and files that it signed.
pub(crate) struct Authority {
    folder: TempDir,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    pub(crate) fn new() -> Self {
        let mut params = CertificateParams::new(vec![]).unwrap();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().unwrap();
        Self {
            folder: tempfile::tempdir().unwrap(),
            issuer: CertifiedIssuer::self_signed(params, key).unwrap(),
        }
    }

    /// Returns the file of the authority's own certificate.
    pub(crate) fn file(&self) -> PathBuf {
        write(self.folder.path(), "ca.pem", &self.issuer.pem())
    }

    /// Signs a certificate. Returns its file and that of its key.
    pub(crate) fn sign(&self, name: &str) -> (PathBuf, PathBuf) {
        self.sign_with(name, |_| {})
    }

    /// Signs a certificate that was valid until 2001. Returns its file and that of its key.
    pub(crate) fn sign_expired(&self, name: &str) -> (PathBuf, PathBuf) {
        self.sign_with(name, |params| {
            params.not_before = date_time_ymd(2000, 1, 1);
            params.not_after = date_time_ymd(2001, 1, 1);
        })
    }

    fn sign_with(
        &self,
        name: &str,
        change: impl FnOnce(&mut CertificateParams),
    ) -> (PathBuf, PathBuf) {
        let key = KeyPair::generate().unwrap();
        let mut params = CertificateParams::new(vec![name.to_owned()]).unwrap();
        change(&mut params);
        let certificate = params.signed_by(&key, &self.issuer).unwrap();
        let folder = self.folder.path();
        (
            write(folder, &format!("{name}.pem"), &certificate.pem()),
            write(folder, &format!("{name}.key"), &key.serialize_pem()),
        )
    }

    /// Returns the settings of a server `localhost` with the authority of its clients.
    pub(crate) fn tls(&self, client_ca_file: Option<PathBuf>) -> TlsConfig {
        let (certificate_file, key_file) = self.sign("localhost");
        TlsConfig {
            certificate_file,
            key_file,
            client_ca_file,
        }
    }

    /// Returns the settings of a server `localhost` whose certificate has expired.
    pub(crate) fn expired_tls(&self) -> TlsConfig {
        let (certificate_file, key_file) = self.sign_expired("localhost");
        TlsConfig {
            certificate_file,
            key_file,
            client_ca_file: None,
        }
    }

    /// Returns the credentials of a client that trusts the authority.
    pub(crate) fn trusted(&self) -> Credentials {
        Credentials {
            ca_file: Some(self.file()),
            ..Credentials::default()
        }
    }
}

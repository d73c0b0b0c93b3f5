//! TLS of a server: its certificate, and the certificate authorities of its clients.
//!
//! Invariant: files that cannot be used never replace ones that could, for instance while a renewal
//! has written the certificate and not yet the key. Open connections keep their certificates.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use tokio::{sync::watch, time::sleep};
use tokio_rustls::{
    TlsAcceptor,
    rustls::{
        self, RootCertStore,
        crypto::ring,
        pki_types::{CertificateDer, PrivateKeyDer, pem::PemObject},
        server::WebPkiClientVerifier,
    },
};

use crate::dial::FileError;

/// How often the files are read again.
const RELOAD_INTERVAL: Duration = Duration::from_secs(60);

/// Files for TLS, in PEM. They are read again every minute, so certificates can be renewed in
/// place.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct TlsConfig {
    /// The server's certificate, with its chain.
    pub certificate_file: PathBuf,
    /// The certificate's private key.
    pub key_file: PathBuf,
    /// Certificate authorities of clients. If given, a client without a certificate from one of
    /// them is refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_ca_file: Option<PathBuf>,
}

/// The TLS of new connections, or none without a setting.
pub struct ServerTls(Option<ReloadedTls>);

struct ReloadedTls {
    files: TlsConfig,
    acceptor: watch::Sender<TlsAcceptor>,
}

impl ServerTls {
    /// Reads the files.
    ///
    /// # Errors
    /// Names the setting, under `server.tls`, whose file cannot be used.
    pub fn open(config: Option<&TlsConfig>) -> Result<Self, FileError> {
        let reloaded = config.map(|files| {
            Ok::<_, FileError>(ReloadedTls {
                files: files.clone(),
                acceptor: watch::Sender::new(acceptor(files)?),
            })
        });
        Ok(Self(reloaded.transpose()?))
    }

    /// Returns the acceptor for the next connection.
    pub fn acceptor(&self) -> Option<TlsAcceptor> {
        self.0.as_ref().map(|tls| tls.acceptor.borrow().clone())
    }

    /// Reads the files again and again. Never resolves.
    pub async fn reload_forever(&self) {
        let Some(tls) = &self.0 else {
            return std::future::pending().await;
        };
        loop {
            sleep(RELOAD_INTERVAL).await;
            tls.reload().await;
        }
    }
}

impl ReloadedTls {
    async fn reload(&self) {
        let files = self.files.clone();
        // A volume that does not answer must not stop the port, which waits for the same task.
        let read = tokio::task::spawn_blocking(move || acceptor(&files)).await;
        match read.unwrap_or_else(|panic| std::panic::resume_unwind(panic.into_panic())) {
            Ok(acceptor) => {
                self.acceptor.send_replace(acceptor);
            }
            Err(error) => tracing::warn!(
                %error,
                "the TLS files cannot be used; keeping the certificates read before"
            ),
        }
    }
}

fn acceptor(files: &TlsConfig) -> Result<TlsAcceptor, FileError> {
    let certificates = certificates("server.tls.certificate_file", &files.certificate_file)?;
    let key = PrivateKeyDer::from_pem_file(&files.key_file)
        .map_err(|error| refuse("server.tls.key_file", &files.key_file, &error))?;
    let builder = rustls::ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("ring speaks TLS 1.2 and 1.3: this is a bug");
    let builder = match &files.client_ca_file {
        None => builder.with_no_client_auth(),
        Some(path) => builder.with_client_cert_verifier(verifier(path)?),
    };
    let mut config = builder
        .with_single_cert(certificates, key)
        .map_err(|error| refuse("server.tls.key_file", &files.key_file, &error))?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

fn verifier(path: &Path) -> Result<Arc<dyn rustls::server::danger::ClientCertVerifier>, FileError> {
    const FIELD: &str = "server.tls.client_ca_file";
    let mut roots = RootCertStore::empty();
    for certificate in certificates(FIELD, path)? {
        roots
            .add(certificate)
            .map_err(|error| refuse(FIELD, path, &error))?;
    }
    let provider = Arc::new(ring::default_provider());
    WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider)
        .build()
        .map_err(|error| refuse(FIELD, path, &error))
}

/// Reads the certificates of a PEM file. A file without any is refused.
fn certificates(
    field: &'static str,
    path: &Path,
) -> Result<Vec<CertificateDer<'static>>, FileError> {
    let pem = std::fs::read(path).map_err(|error| refuse(field, path, &error))?;
    certificates_in(field, path, &pem)
}

/// Returns the certificates of a PEM file that was read.
pub(crate) fn certificates_in(
    field: &'static str,
    path: &Path,
    pem: &[u8],
) -> Result<Vec<CertificateDer<'static>>, FileError> {
    let parsed: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let certificates = parsed.map_err(|error| refuse(field, path, &error))?;
    if certificates.is_empty() {
        return Err(refuse(field, path, &"it holds no certificate"));
    }
    Ok(certificates)
}

pub(crate) fn refuse(
    setting: &'static str,
    path: &Path,
    problem: &dyn std::fmt::Display,
) -> FileError {
    FileError {
        setting,
        path: path.to_owned(),
        reason: format!(
            "{problem}; give a PEM file that this process may read and that fits the others"
        ),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[tokio::test]
    async fn renewed_files_replace_the_old_and_broken_ones_do_not() {
        let folder = tempfile::tempdir().unwrap();
        let files = TlsConfig {
            certificate_file: folder.path().join("certificate.pem"),
            key_file: folder.path().join("key.pem"),
            client_ca_file: None,
        };
        let renew = || {
            let names = vec!["localhost".to_owned()];
            let signed = rcgen::generate_simple_self_signed(names).unwrap();
            fs::write(&files.certificate_file, signed.cert.pem()).unwrap();
            fs::write(&files.key_file, signed.signing_key.serialize_pem()).unwrap();
        };
        renew();
        let tls = ServerTls::open(Some(&files)).unwrap();
        let reload = async || {
            let before = tls.acceptor().unwrap();
            tls.0.as_ref().unwrap().reload().await;
            !Arc::ptr_eq(before.config(), tls.acceptor().unwrap().config())
        };
        renew();
        assert!(reload().await);
        fs::write(&files.certificate_file, "").unwrap();
        assert!(!reload().await);
        renew();
        assert!(reload().await);
    }
}

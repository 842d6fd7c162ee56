//! TLS on the connections to the server, with rustls.
//!
//! Invariants: with [`Trust::System`] and [`Trust::File`] the certificate must be valid, for the name in the URL. With
//! [`Trust::Anyone`] it is not checked, as `sslmode=require` means it: that protects from listeners, not from impostors.

use std::future::Future;
use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use greenroom_store::StoreError;
use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::CryptoProvider;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::tls::{ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream};
use tokio_rustls::TlsConnector;

use crate::options::unsuitable;

/// Whose certificate is accepted.
#[derive(Debug, Clone)]
pub(crate) enum Trust {
    /// Anyone's.
    Anyone,
    /// One that the system trusts.
    System,
    /// One that an authority in this file of PEM certificates has signed.
    File(PathBuf),
}

/// Makes handshakes.
#[derive(Clone)]
pub(crate) struct Tls {
    config: Arc<ClientConfig>,
    checks_names: bool,
}

impl Tls {
    pub(crate) fn new(trust: &Trust) -> Result<Self, StoreError> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let failed = |error: &dyn std::fmt::Display| unsuitable(format!("TLS cannot be set up: {error}"));
        let verifier: Arc<dyn ServerCertVerifier> = match trust {
            Trust::Anyone => Arc::new(Unchecked(Arc::clone(&provider))),
            Trust::System => {
                let verifier = rustls_platform_verifier::Verifier::new(Arc::clone(&provider));
                Arc::new(verifier.map_err(|error| failed(&error))?)
            }
            Trust::File(path) => {
                let unreadable = |error: &dyn std::fmt::Display| {
                    unsuitable(format!(
                        "the certificates in {} (`sslrootcert`) cannot be read: {error}",
                        path.display()
                    ))
                };
                let mut roots = RootCertStore::empty();
                for certificate in CertificateDer::pem_file_iter(path).map_err(|error| unreadable(&error))? {
                    let certificate = certificate.map_err(|error| unreadable(&error))?;
                    roots.add(certificate).map_err(|error| unreadable(&error))?;
                }
                let verifier =
                    WebPkiServerVerifier::builder_with_provider(roots.into(), Arc::clone(&provider));
                verifier.build().map_err(|error| unreadable(&error))?
            }
        };
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| failed(&error))?
            .dangerous()
            .with_custom_certificate_verifier(verifier)
            .with_no_client_auth();
        Ok(Self { config: config.into(), checks_names: !matches!(trust, Trust::Anyone) })
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> MakeTlsConnect<S> for Tls {
    type Stream = Encrypted<S>;
    type TlsConnect = Handshake;
    type Error = rustls::Error;

    fn make_tls_connect(&mut self, domain: &str) -> Result<Handshake, rustls::Error> {
        let name = ServerName::try_from(domain.to_owned());
        let name = match name {
            Ok(name) => name,
            Err(_) if !self.checks_names => ServerName::IpAddress(std::net::Ipv4Addr::LOCALHOST.into()),
            Err(_) => {
                return Err(rustls::Error::General("the host's name cannot be in a certificate".to_owned()));
            }
        };
        Ok(Handshake { connector: TlsConnector::from(Arc::clone(&self.config)), name })
    }
}

/// A handshake that is to be made.
pub(crate) struct Handshake {
    connector: TlsConnector,
    name: ServerName<'static>,
}

impl<S: AsyncRead + AsyncWrite + Unpin + Send + 'static> TlsConnect<S> for Handshake {
    type Stream = Encrypted<S>;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<Encrypted<S>>> + Send>>;

    fn connect(self, stream: S) -> Self::Future {
        Box::pin(
            async move { self.connector.connect(self.name, stream).await.map(|inner| Encrypted { inner }) },
        )
    }
}

/// An encrypted connection.
pub(crate) struct Encrypted<S> {
    inner: tokio_rustls::client::TlsStream<S>,
}

impl<S: AsyncRead + AsyncWrite + Unpin> TlsStream for Encrypted<S> {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncRead for Encrypted<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_read(cx, buffer)
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> AsyncWrite for Encrypted<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.inner).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.inner).poll_shutdown(cx)
    }
}

/// Accepts every certificate. The signatures of the handshake are still checked.
#[derive(Debug)]
struct Unchecked(Arc<CryptoProvider>);

impl ServerCertVerifier for Unchecked {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let schemes = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls12_signature(message, certificate, signed, schemes)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let schemes = &self.0.signature_verification_algorithms;
        rustls::crypto::verify_tls13_signature(message, certificate, signed, schemes)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.0.signature_verification_algorithms.supported_schemes()
    }
}

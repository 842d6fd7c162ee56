//! The request that all calls to a server have in common, as async-openai makes it.
//!
//! async-openai knows the API: its paths, the query and the headers. It writes and parses the URL and collects the headers
//! for each request anew, although neither ever changes. So it makes one request, and each call is that one with a body of
//! its own.
//!
//! Invariants: calls to a server differ in their bodies alone.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use async_openai::Client;
use async_openai::config::Config;
use async_openai::error::OpenAIError;
use async_openai::middleware::HttpRequestFactory;
use bytes::Bytes;
use parking_lot::Mutex;
use serde::de::IgnoredAny;

use super::Endpoint;

/// A request without the body of a call.
pub(super) struct Template(reqwest::Request);

impl fmt::Debug for Template {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The URL and the headers may carry a key.
        f.write_str("Template")
    }
}

impl Template {
    /// The request of a call to this endpoint.
    ///
    /// # Errors
    /// No request can be made with the endpoint's URL and headers.
    pub(super) async fn of(client: reqwest::Client, endpoint: &Arc<Endpoint>) -> Result<Self, OpenAIError> {
        let (keeper, endpoint) = (Keeper::default(), Arc::<Endpoint>::clone(endpoint) as Arc<dyn Config>);
        let client = Client::build(client, endpoint).with_http_service(keeper.clone());
        let _: IgnoredAny = client.chat().create_byot(serde_json::Map::new()).await?;
        let made = keeper.0.lock().take();
        Ok(Self(made.expect("the service was called with the request")))
    }

    /// The request of one call.
    pub(super) fn with_body(&self, body: Bytes) -> reqwest::Request {
        let mut request = self.0.try_clone().expect("a body in memory can be cloned");
        *request.body_mut() = Some(body.into());
        request
    }
}

/// What async-openai reads in place of an answer: an answer without content, in JSON.
const EMPTY_ANSWER: &str = "null";

/// An HTTP service that sends nothing and keeps the request.
#[derive(Clone, Default)]
struct Keeper(Arc<Mutex<Option<reqwest::Request>>>);

impl tower::Service<HttpRequestFactory> for Keeper {
    type Response = reqwest::Response;
    type Error = OpenAIError;
    type Future = Pin<Box<dyn Future<Output = Result<reqwest::Response, OpenAIError>> + Send>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), OpenAIError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: HttpRequestFactory) -> Self::Future {
        let kept = Arc::clone(&self.0);
        Box::pin(async move {
            let request = request.build().await?;
            *kept.lock() = Some(request);
            Ok(http::Response::new(EMPTY_ANSWER).into())
        })
    }
}

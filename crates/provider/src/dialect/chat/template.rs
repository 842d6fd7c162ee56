//! The request that all calls to a server have in common, as async-openai makes it.
//!
//! async-openai knows the API: its paths, the query and the headers. It writes and parses the URL and collects the headers
//! for each request anew, although neither ever changes. So it makes one request, and each call is that one with a body of
//! its own.
//!
//! Invariants: nothing is sent here.

use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use async_openai::Client;
use async_openai::config::Config;
use async_openai::error::OpenAIError;
use async_openai::middleware::HttpRequestFactory;
use futures_util::FutureExt;
use http::HeaderMap;
use parking_lot::Mutex;
use secrecy::SecretString;
use serde::de::IgnoredAny;

use crate::transport::Endpoint;

/// Makes the request of a call to this endpoint, without a body.
///
/// # Errors
/// No request can be made with the endpoint's URL and headers.
pub(super) fn request(
    client: &reqwest::Client,
    endpoint: &Arc<Endpoint>,
) -> Result<reqwest::Request, String> {
    let keeper = Keeper::default();
    let of_chat = OfChat { endpoint: Arc::clone(endpoint), no_key: SecretString::from(String::new()) };
    let client = Client::build(client.clone(), Arc::new(of_chat) as Arc<dyn Config>);
    let client = client.with_http_service(keeper.clone());
    let chat = client.chat();
    let made = chat.create_byot::<_, IgnoredAny>(serde_json::Map::new());
    // The keeper answers at once, so that there is nothing to wait for.
    let made = made.now_or_never().ok_or("the library waits for an answer")?;
    made.map_err(|error| error.to_string())?;
    let mut request = keeper.0.lock().take().ok_or("the library sent no request")?;
    *request.body_mut() = None;
    Ok(request)
}

/// The endpoint as async-openai's configuration. Its own is not used because it reads the environment.
struct OfChat {
    endpoint: Arc<Endpoint>,
    // The trait requires a key; the real one is in the endpoint's headers, marked as sensitive.
    no_key: SecretString,
}

impl fmt::Debug for OfChat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.endpoint.fmt(f)
    }
}

impl Config for OfChat {
    fn headers(&self) -> HeaderMap {
        self.endpoint.headers.clone()
    }

    fn url(&self, path: &str) -> String {
        format!("{}{path}", self.endpoint.base)
    }

    fn query(&self) -> Vec<(&str, &str)> {
        self.endpoint.query.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect()
    }

    fn api_base(&self) -> &str {
        &self.endpoint.base
    }

    fn api_key(&self) -> &SecretString {
        &self.no_key
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

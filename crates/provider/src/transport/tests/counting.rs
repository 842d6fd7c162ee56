//! Token counts with servers that support the operation, that do not support it, and whose support is unknown.

use std::sync::atomic::Ordering;

use super::{HttpProvider, Play, options, refusal, request, serve};
use crate::{Api, Provider, ServerOptions};

/// A status that says that there is no such operation is asked for once; any other refusal is an error, and says nothing
/// about the next time.
#[tokio::test]
async fn a_server_without_the_operation_is_asked_once() {
    for api in [Api::Anthropic, Api::Responses, Api::Gemini] {
        for (status, is_missing) in
            [(404, true), (405, true), (501, true), (400, false), (403, false), (529, false)]
        {
            let server = serve(Play::Close(refusal(&format!("{status} Refused"), "", "{}"))).await;
            let provider = HttpProvider::new(ServerOptions { api, ..options(&server.base_url) });
            let provider = provider.expect("good options");
            for _ in 0..2 {
                let counted = provider.count_tokens(request()).await;
                assert_eq!(counted.is_ok_and(|tokens| tokens.is_none()), is_missing, "{api:?} {status}");
            }
            let asked = server.requests.load(Ordering::Relaxed);
            assert_eq!(asked, if is_missing { 1 } else { 2 }, "{api:?} {status}");
        }
    }
}

/// Bedrock and Vertex have no such path for Anthropic's models. They are not asked: a request would fail, since nobody
/// answers at these addresses here.
#[tokio::test(start_paused = true)]
async fn places_without_the_operation_are_not_asked() {
    for base_url in [
        "https://bedrock-runtime.region.amazonaws.com:1/anthropic/v1",
        "https://bedrock-mantle.region.api.aws:1/anthropic/v1",
        "https://region-aiplatform.googleapis.com:1/v1/projects/p/locations/l/publishers/anthropic/models",
    ] {
        let options = ServerOptions { api: Api::Anthropic, ..options(base_url) };
        let provider = HttpProvider::new(options).expect("good options");
        assert_eq!(provider.count_tokens(request()).await.expect("it is not asked"), None, "{base_url}");
    }
}

//! Addresses of servers, and the requests that are pinned.

mod goldens;

use super::is_openai;
use crate::ServerOptions;

/// The servers that get fields which strict servers refuse.
#[test]
fn servers_of_openai_and_azure_are_recognised() {
    for (base_url, expected) in [
        ("https://api.openai.com/v1", true),
        ("https://mine.openai.azure.com/openai/v1", true),
        ("https://mine.services.ai.azure.com/openai/v1", true),
        ("https://mine.services.ai.azure.com/openai/v1?api-version=preview", true),
        // Other vendors' APIs of the same resource.
        ("https://mine.services.ai.azure.com/models", false),
        ("https://mine.services.ai.azure.com/anthropic/v1", false),
        ("https://mine.services.ai.azure.com.example.org/openai/v1", false),
        ("https://api.openai.com.example.org/v1", false),
        ("https://bedrock-mantle.eu-west-1.api.aws/openai/v1", false),
        ("http://localhost:11434/v1", false),
    ] {
        let options =
            ServerOptions { base_url: base_url.parse().expect("a URL"), ..ServerOptions::default() };
        assert_eq!(is_openai(&options), expected, "{base_url}");
    }
}

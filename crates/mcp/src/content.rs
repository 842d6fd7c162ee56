//! The result of a call, as the model reads it.
//!
//! Invariants: nothing of a result is dropped silently: what a model cannot be shown is named.

use greenroom_kernel::{Block, Image, ToolStatus};
use greenroom_tools::ToolOutput;
use rmcp::model::{CallToolResult, ContentBlock, ResourceContents};

/// Converts a result.
pub(crate) fn output(result: CallToolResult) -> ToolOutput {
    let CallToolResult { content, structured_content, is_error, .. } = result;
    let mut blocks: Vec<Block> = content.into_iter().map(block).collect();
    // The text of a structured result is its JSON, by the protocol; some servers send only one of the two.
    if let Some(value) = structured_content.filter(|_| blocks.is_empty()) {
        blocks.push(Block::Text(value.to_string()));
    }
    let (status, nothing) = match is_error {
        Some(true) => (ToolStatus::Error, "the tool failed, and did not say why"),
        Some(false) | None => (ToolStatus::Ok, "(no output)"),
    };
    if blocks.is_empty() {
        blocks.push(Block::Text(nothing.to_owned()));
    }
    ToolOutput::new(blocks, status, Vec::new())
}

fn block(content: ContentBlock) -> Block {
    let text = match content {
        ContentBlock::Text(text) => text.text,
        ContentBlock::Image(image) => match Image::from_base64(&image.mime_type, &image.data) {
            Ok(image) => return Block::Image(image),
            Err(error) => format!("[an image of type {:?} that cannot be shown: {error}]", image.mime_type),
        },
        ContentBlock::Audio(audio) => left_out("a sound", &audio.mime_type, &audio.data),
        ContentBlock::Resource(resource) => match resource.resource {
            ResourceContents::TextResourceContents { uri, text, .. } => format!("{uri}:\n{text}"),
            ResourceContents::BlobResourceContents { uri, mime_type, blob, .. } => {
                let kind = mime_type.unwrap_or_default();
                match Image::from_base64(&kind, &blob) {
                    Ok(image) => return Block::Image(image),
                    Err(_not_an_image) => left_out(&format!("the content of {uri}"), &kind, &blob),
                }
            }
            other => format!("[a resource of an unknown kind: {}]", json(&other)),
        },
        ContentBlock::ResourceLink(link) => {
            let about = [link.title, link.description].into_iter().flatten().collect::<Vec<_>>().join(": ");
            format!(
                "[resource {} ({}){}{about}]",
                link.name,
                link.uri,
                if about.is_empty() { "" } else { " " }
            )
        }
        other => format!("[content of an unknown kind: {}]", json(&other)),
    };
    Block::Text(text)
}

fn left_out(what: &str, kind: &str, base64: &str) -> String {
    format!("[{what}, {kind}, about {} bytes, is not shown]", base64.len() / 4 * 3)
}

fn json(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

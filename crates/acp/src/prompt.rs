//! A prompt of an editor as a prompt of a session.
//!
//! Invariants: the text keeps its order; attached texts follow it, each marked with its source, and cannot pass for the
//! user's words; content that cannot be sent is named in the text and not dropped silently.

use std::path::Path;

use agent_client_protocol::v1::schema::{
    ContentBlock, EmbeddedResource, EmbeddedResourceResource, ImageContent, ResourceLink,
};
use greenroom_chat::attached;
use greenroom_server::operations::ImageData;
use url::Url;

#[cfg(test)]
mod tests;

/// A prompt.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Prompt {
    pub(crate) text: String,
    pub(crate) images: Vec<ImageData>,
}

impl Prompt {
    /// Reads the blocks of a prompt. Paths in `folder` are written relative to it.
    pub(crate) fn read(blocks: Vec<ContentBlock>, folder: &Path) -> Self {
        let (mut prompt, mut attached) = (Self::default(), String::new());
        for block in blocks {
            match block {
                ContentBlock::Text(text) => prompt.text.push_str(&text.text),
                ContentBlock::Image(ImageContent { data, mime_type, .. }) => {
                    prompt.images.push(ImageData { media_type: mime_type, data });
                }
                ContentBlock::ResourceLink(ResourceLink { name, uri, .. }) => {
                    prompt.text.push_str(&shown(&uri, folder).unwrap_or_else(|| format!("{name} ({uri})")));
                }
                ContentBlock::Resource(EmbeddedResource { resource, .. }) => match resource {
                    EmbeddedResourceResource::TextResourceContents(content) => {
                        let path = shown(&content.uri, folder).unwrap_or_else(|| content.uri.clone());
                        if prompt.text.ends_with(|before: char| !before.is_whitespace()) {
                            prompt.text.push(' ');
                        }
                        prompt.text.push_str(&path);
                        attached.push_str(&attached::write(&path, &content.text));
                    }
                    EmbeddedResourceResource::BlobResourceContents(content) => {
                        match content.mime_type.filter(|kind| kind.starts_with("image/")) {
                            Some(media_type) => {
                                prompt.images.push(ImageData { media_type, data: content.blob });
                            }
                            None => prompt.text.push_str(&left_out(&content.uri)),
                        }
                    }
                    _ => prompt.text.push_str(&left_out("a resource")),
                },
                ContentBlock::Audio(_) => prompt.text.push_str(&left_out("a recording")),
                _ => prompt.text.push_str(&left_out("content")),
            }
        }
        prompt.text.push_str(&attached);
        prompt
    }
}

fn left_out(what: &str) -> String {
    format!("[{what}, which cannot be sent to the model]")
}

/// Returns the path of a file's address, relative to the folder if it is inside.
fn shown(uri: &str, folder: &Path) -> Option<String> {
    let url = Url::parse(uri).ok().filter(|url| url.scheme() == "file")?;
    let path = url.to_file_path().ok()?;
    let path = path.strip_prefix(folder).map(Path::to_path_buf).unwrap_or(path);
    // An editor writes the lines of a selection as `#L10:20`.
    let lines = url.fragment().map(|lines| format!(" ({lines})")).unwrap_or_default();
    let path = if path.as_os_str().is_empty() { Path::new(".") } else { &path };
    Some(format!("{}{lines}", path.display()))
}

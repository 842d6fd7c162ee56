//! Images in messages, recognised by their bytes.
//!
//! Invariants: an image created here is of a kind that models accept, its media type matches its bytes, and
//! its base64 has neither line breaks nor other characters that a server might reject.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

#[cfg(test)]
mod tests;

/// An image that is part of a message, not a link to one.
#[derive(Debug, Clone, PartialEq)]
pub struct Image {
    /// The media type, such as `image/png`.
    pub media_type: String,
    /// The bytes, base64 encoded as they are sent.
    pub data: String,
}

impl Image {
    /// Creates an image from its bytes: PNG, JPEG, GIF or WebP, recognised by the bytes themselves.
    ///
    /// # Errors
    /// If the bytes are none of these.
    ///
    /// ```
    /// use greenroom_kernel::Image;
    /// let image = Image::new(b"GIF89a...")?;
    /// assert_eq!(image.media_type, "image/gif");
    /// assert!(Image::new(b"%PDF-1.7").is_err());
    /// # Ok::<(), greenroom_kernel::ImageError>(())
    /// ```
    pub fn new(bytes: impl AsRef<[u8]>) -> Result<Self, ImageError> {
        let bytes = bytes.as_ref();
        let media_type = media_type(bytes).ok_or(ImageError::NoImage)?;
        Ok(Self { media_type: media_type.to_owned(), data: STANDARD.encode(bytes) })
    }

    /// Creates an image from base64, as other programs send it. White space in it is ignored.
    ///
    /// # Errors
    /// If it is not valid base64, not a PNG, JPEG, GIF or WebP image, or not of the kind that `media_type`
    /// names.
    pub fn from_base64(media_type: &str, base64: &str) -> Result<Self, ImageError> {
        let compact: String = base64.chars().filter(|c| !c.is_ascii_whitespace()).collect();
        let bytes = STANDARD.decode(compact).map_err(|error| ImageError::Base64(error.to_string()))?;
        let image = Self::new(bytes)?;
        let said = media_type.to_ascii_lowercase();
        // A common alias.
        let said = if said == "image/jpg" { "image/jpeg" } else { &said };
        if said != image.media_type {
            return Err(ImageError::OtherKind { said: said.to_owned(), found: image.media_type });
        }
        Ok(image)
    }
}

/// Why something is not an image for a model.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ImageError {
    /// The bytes are not an image of a kind that models accept.
    #[error("not a PNG, JPEG, GIF or WebP image")]
    NoImage,
    /// The text is not valid base64.
    #[error("the image is not valid base64: {0}")]
    Base64(String),
    /// The bytes are another kind of image than stated.
    #[error("the image is declared as {said:?} but is {found:?}")]
    OtherKind {
        /// The given media type.
        said: String,
        /// The media type of the bytes.
        found: String,
    },
}

/// Returns the media type of an image by its first bytes, whatever its name; `None` if models do not accept
/// its kind.
pub fn media_type(head: &[u8]) -> Option<&'static str> {
    if head.starts_with(b"\x89PNG\r\n\x1a\n") {
        Some("image/png")
    } else if head.starts_with(b"\xff\xd8\xff") {
        Some("image/jpeg")
    } else if head.starts_with(b"GIF87a") || head.starts_with(b"GIF89a") {
        Some("image/gif")
    } else if head.starts_with(b"RIFF") && head.get(8..12) == Some(b"WEBP") {
        Some("image/webp")
    } else {
        None
    }
}

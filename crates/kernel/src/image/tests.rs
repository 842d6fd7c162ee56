//! Recognised and rejected images.

use super::{Image, ImageError};

#[test]
fn the_bytes_say_what_an_image_is() {
    for (bytes, media_type) in [
        (&b"\x89PNG\r\n\x1a\nrest"[..], "image/png"),
        (b"\xff\xd8\xff\xe0rest", "image/jpeg"),
        (b"GIF87arest", "image/gif"),
        (b"GIF89arest", "image/gif"),
        (b"RIFF\x00\x00\x00\x00WEBPrest", "image/webp"),
    ] {
        let image = Image::new(bytes).expect("an image");
        assert_eq!(image.media_type, media_type);
        assert_eq!(Image::from_base64(media_type, &image.data), Ok(image));
    }
    for bytes in [&b""[..], b"%PDF-1.7", b"RIFF\x00\x00\x00\x00WAVE", b"\x89PN", b"<svg/>"] {
        assert_eq!(Image::new(bytes), Err(ImageError::NoImage), "{bytes:?}");
    }
}

#[test]
fn base64_is_read_and_written_anew() {
    let png = "iVBORw0KGgo=";
    assert_eq!(Image::from_base64("image/png", "iVBO\r\nRw0K Ggo=\n").expect("an image").data, png);
    assert_eq!(Image::from_base64("IMAGE/PNG", png).expect("an image").media_type, "image/png");
    assert!(Image::from_base64("image/jpg", "/9j/4A==").is_ok());
    for (media_type, data, error) in [
        ("application/pdf", "not base64!!", "the image is not valid base64: Invalid symbol 33, offset 9."),
        ("image/png", "", "not a PNG, JPEG, GIF or WebP image"),
        ("image/png", "AAAA", "not a PNG, JPEG, GIF or WebP image"),
        ("image/gif", png, "the image is declared as \"image/gif\" but is \"image/png\""),
        ("application/pdf", png, "the image is declared as \"application/pdf\" but is \"image/png\""),
    ] {
        let refused = Image::from_base64(media_type, data).expect_err("no image");
        assert_eq!(refused.to_string(), error);
    }
}

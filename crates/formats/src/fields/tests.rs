//! Sections of a text, and images in URLs.

use super::*;

#[test]
fn sections() {
    for (text, expected) in [
        ("<a>1</a>", true),
        (" <a>1</a>\n <b b>2</b b>\n", true),
        ("<a>cut o", false),
        ("<a>1</a> and why?", false),
        ("why <a>1</a>", false),
        ("<c>1</c>", false),
        ("<a >1</a>", false),
        ("", false),
    ] {
        assert_eq!(is_only_sections(text, &["a", "b b"]), expected, "{text}");
    }
}

#[test]
fn images_in_urls() {
    let image = image_of_url("data:image/gif;base64,R0lGODlhLi4u").expect("a GIF");
    assert_eq!((image.media_type.as_str(), image.data.as_str()), ("image/gif", "R0lGODlhLi4u"));
    for url in ["https://example.org/a.gif", "data:image/png;base64,R0lGODlhLi4u", "data:image/gif,GIF89a"] {
        assert_eq!(image_of_url(url), None, "{url}");
    }
}

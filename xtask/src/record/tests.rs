//! Rows with colours, and when they are visible.

use std::time::Duration;

use super::svg::{Frame, draw, text};

#[test]
fn rows_are_drawn_once_with_the_times_at_which_they_are_seen() {
    let frame =
        |seconds, picture: &str| Frame { at: Duration::from_secs(seconds), picture: picture.to_owned() };
    let frames = [
        frame(0, "one\n\x1b[1;31mtwo\x1b[0m < 3\n"),
        frame(1, "one\n"),
        frame(2, "one\n\x1b[1;31mtwo\x1b[0m < 3\n"),
    ];
    let svg = draw(&frames, 20, 5);
    assert_eq!(svg.matches("one").count(), 1);
    assert_eq!(svg.matches("two").count(), 1);
    assert!(svg.contains("<tspan x=\"14\" fill=\"#e06c75\" font-weight=\"bold\">two</tspan>"), "{svg}");
    assert!(svg.contains("> &lt; 3</tspan>"), "{svg}");
    // Two seconds of pictures, and three for the last.
    assert!(svg.contains("values=\"visible;hidden;visible\" keyTimes=\"0.00000;0.20000;0.40000\""), "{svg}");
    assert_eq!(svg.matches("<animate").count(), 1, "what is always there does not move: {svg}");
    assert_eq!(text("\x1b[2ma\x1b[0mb\nc\n"), "ab\nc\n");
}

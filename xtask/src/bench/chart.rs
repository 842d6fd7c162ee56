//! Charts as SVG: bars of how far each goal is reached, and lines of the resources that a runtime uses under
//! load.
//!
//! Invariants: the text of a chart is escaped; a chart is readable on light and on dark pages.

use std::fmt::Write as _;

const STYLE: &str = "<style>text{font:12px sans-serif;fill:#777}.met{fill:#3a8f5c}.short{fill:#c9772b}\
    line,path{stroke:#777;fill:none}path{stroke:#3a6ea5;stroke-width:1.5}</style>";

/// Draws a bar for each goal; the line is where a goal is met.
pub(crate) fn goals(reached: &[(String, f64)]) -> String {
    const ROW: usize = 20;
    const LEFT: f64 = 420.0;
    /// The width of a goal that is just met.
    const MET: f64 = 150.0;
    let height = reached.len() * ROW + 30;
    let mut svg = begin(800, height);
    for (index, (what, share)) in reached.iter().enumerate() {
        let (class, width) = (if *share >= 1.0 { "met" } else { "short" }, share.min(2.3) * MET);
        let (y, shown) = (index * ROW + 24, share.min(99.0));
        let _ = writeln!(
            svg,
            "<text x=\"{}\" y=\"{}\" text-anchor=\"end\">{}</text>\
             <rect class=\"{class}\" x=\"{LEFT}\" y=\"{y}\" width=\"{width:.1}\" height=\"14\"/>\
             <text x=\"{:.1}\" y=\"{}\">{shown:.2}</text>",
            LEFT - 8.0,
            y + 11,
            escaped(what),
            LEFT + width + 4.0,
            y + 11
        );
    }
    let _ = writeln!(
        svg,
        "<line x1=\"{0}\" y1=\"18\" x2=\"{0}\" y2=\"{height}\" stroke-dasharray=\"4\"/>\
         <text x=\"{0}\" y=\"12\" text-anchor=\"middle\">goal</text></svg>",
        LEFT + MET
    );
    svg
}

/// Draws a panel of lines for each of memory, descriptors, tasks and disk, over time.
pub(crate) fn growth(samples: &[Vec<f64>]) -> String {
    const PANELS: [(&str, usize); 4] = [("RSS, MiB", 1), ("descriptors", 2), ("tasks", 3), ("disk, MiB", 4)];
    const WIDTH: f64 = 340.0;
    const HEIGHT: f64 = 120.0;
    let mut svg = begin(800, 340);
    let end = samples.iter().filter_map(|sample| sample.first()).fold(1.0, |a: f64, b| a.max(*b));
    for (index, (name, column)) in PANELS.into_iter().enumerate() {
        let values = || samples.iter().filter_map(|sample| Some((*sample.first()?, *sample.get(column)?)));
        let top = values().map(|(_, value)| value).fold(1.0, f64::max) * 1.1;
        #[expect(clippy::cast_precision_loss, reason = "four panels")]
        let (left, bottom) = (50.0 + 390.0 * (index % 2) as f64, 150.0 + 165.0 * (index / 2) as f64);
        let mut path = String::new();
        for (at, value) in values() {
            let mark = if path.is_empty() { 'M' } else { 'L' };
            let (x, y) = (left + at / end * WIDTH, bottom - value / top * HEIGHT);
            let _ = write!(path, "{mark}{x:.1} {y:.1}");
        }
        let (right, over, minutes) = (left + WIDTH, bottom - HEIGHT, end / 60.0);
        let (of_top, of_name, of_time) = (over + 8.0, over - 6.0, bottom + 14.0);
        let _ = writeln!(
            svg,
            "<text x=\"{left}\" y=\"{of_name}\">{name}</text>\
             <text x=\"{}\" y=\"{of_top}\" text-anchor=\"end\">{top:.0}</text>\
             <text x=\"{right}\" y=\"{of_time}\" text-anchor=\"end\">{minutes:.1} min</text>\
             <line x1=\"{left}\" y1=\"{bottom}\" x2=\"{right}\" y2=\"{bottom}\"/><path d=\"{path}\"/>",
            left - 6.0
        );
    }
    svg.push_str("</svg>\n");
    svg
}

fn begin(width: usize, height: usize) -> String {
    format!("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\">{STYLE}\n")
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

//! Parsing of a benchmark's output.

use super::figures::{Figures, Run, of_output, samples};
use super::{Options, chart, page};

fn run() -> Run {
    Run { date: "2026-11-22".to_owned(), machine: "2 × test".to_owned(), load: "0.10".to_owned() }
}

fn figures(said: &str) -> Figures {
    let mut figures = Figures::default();
    figures.replace("fleet", of_output(said).expect("figures"), &run());
    figures
}

#[test]
fn figures_are_read_and_kept() {
    let said = "| a table |\nfigure\tfleet/disk_64/rate\t1200.5\truns/s\t0.45\nfigure\tfleet/x\t3\ts\t-\n";
    let mut figures = figures(said);
    assert_eq!(figures.0.len(), 2);
    assert_eq!(figures.0["fleet/disk_64/rate"].0.ratio, Some(0.45));
    assert_eq!(figures.0["fleet/x"].0.ratio, None);
    assert_eq!(Figures::parse(&figures.text()).expect("what was written is read"), figures);
    // Those of the same benchmark are replaced, those of others stay.
    figures.replace("store", of_output("figure\tstore/a\t1\ts\t-").expect("a figure"), &run());
    figures.replace("fleet", of_output("figure\tfleet/y\t1\ts\t-").expect("a figure"), &run());
    assert_eq!(figures.0.keys().collect::<Vec<_>>(), ["fleet/y", "store/a"]);
    assert!(of_output("figure\tfleet/x\tmany\ts\t-").is_err());
    assert_eq!(samples("sample\t1.0\t2.5\nelse").expect("a sample"), [[1.0, 2.5]]);
}

#[test]
fn the_table_says_what_was_met_and_what_was_not_measured() {
    let said = "figure\tfleet/disk_64/rate\t1200.5\truns/s\t0.45\nfigure\tfleet/disk_64/cpu\t300\tµs\t2.2\n";
    let text = "before\n<!-- The table below is written by `cargo xtask bench`. -->\nold\n\
                <!-- The end of the table. -->\nafter\n";
    let text = page::with_table(text, &figures(said)).expect("a page with marks");
    assert!(text.starts_with("before\n") && text.ends_with("after\n") && !text.contains("old"), "{text}");
    let line = |what: &str| text.lines().find(|line| line.contains(what)).expect("a line").to_owned();
    assert!(line("log on disk, 64 in flight").contains("| **0.45 ×** | short | 1200"), "{text}");
    assert!(line("… CPU a run").contains("| **2.20 ×** | met | 300 µs |"), "{text}");
    assert!(line("1,000 live idle").contains("not measured"), "{text}");
    assert_eq!(text.lines().filter(|line| line.contains(" met |")).count(), 1);
    assert!(page::with_table("no marks", &figures(said)).is_err());
}

/// A goal whose figure no benchmark prints would stay unmeasured unnoticed.
#[test]
fn each_goal_was_measured() {
    let docs = super::docs();
    let figures = Figures::read(&docs.join("performance/figures.tsv")).expect("the figures");
    let page = std::fs::read_to_string(docs.join("performance.md")).expect("the page");
    let page = page::with_table(&page, &figures).expect("a page with marks");
    let missing: Vec<&str> = page.lines().filter(|line| line.contains("| not measured |")).collect();
    assert!(missing.is_empty(), "{missing:#?}");
    assert!(page.lines().filter(|line| line.contains(" met |")).count() > 40);
}

#[test]
fn charts_show_each_goal_and_each_line() {
    let svg = chart::goals(&[("a < b".to_owned(), 0.5), ("c".to_owned(), 1.5)]);
    assert_eq!(svg.matches("<rect").count(), 2);
    assert!(
        svg.contains("a &lt; b") && svg.contains("class=\"short\"") && svg.contains("class=\"met\""),
        "{svg}"
    );
    let svg = chart::growth(&[vec![0.0, 10.0, 5.0, 7.0, 1.0, 0.0], vec![60.0, 12.0, 5.0, 7.0, 2.0, 9.0]]);
    assert_eq!(svg.matches("<path d=\"M").count(), 4);
    assert!(svg.contains("1.0 min"), "{svg}");
}

#[test]
fn the_command_line_is_checked() {
    let read = |words: &[&str]| Options::read(words.iter().map(|word| (*word).to_owned()));
    assert!(read(&[]).expect("all").names.len() > 10);
    assert_eq!(read(&["store", "--quick"]).expect("one").names, ["store"]);
    assert!(read(&["--page"]).expect("none").names.is_empty());
    for wrong in [&["nothing"][..], &["--fast"], &["growth", "--minutes"], &["growth", "--minutes", "0"]] {
        assert!(read(wrong).is_err(), "{wrong:?}");
    }
}

//! Rendering, pieces of any size, and rows that never change.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use super::*;

fn texts(rows: &[Row]) -> Vec<String> {
    rows.iter().map(|row| row.text().trim_end().to_owned()).collect()
}

fn whole(text: &str, width: usize) -> Vec<String> {
    let mut markdown = Markdown::new(width);
    let mut rows = markdown.push(text);
    rows.extend(markdown.finish());
    texts(&rows)
}

const LONG: &str = "# A title\n\nSome **bold** text with `code` and a [link](https://example.org), which goes \
                    on\nover two lines.\n\n- one\n- two with *stress*\n  - nested\n  - again\n\n1. first\n2. second\n\n\
                    ```rust\nfn main() {\n    println!(\"日本語\");\n}\n```\n\n> a quote\n> of two lines\n\n| a | b |\n|---|---|\n\
                    | 1 | two |\n\n---\n\nThe end.\n";

#[test]
fn it_looks_like_what_it_means() {
    assert_eq!(
        whole(LONG, 50),
        [
            "A title",
            "",
            "Some bold text with code and a link",
            "(https://example.org), which goes on over two",
            "lines.",
            "",
            "• one",
            "• two with stress",
            "  • nested",
            "  • again",
            "1. first",
            "2. second",
            "",
            "  fn main() {",
            "      println!(\"日本語\");",
            "  }",
            "",
            "│ a quote of two lines",
            "",
            "a │ b",
            "──┼────",
            "1 │ two",
            "",
            "────────────────────────────────────────",
            "",
            "The end.",
        ]
    );
}

#[test]
fn code_in_a_language_has_colours_and_its_text_unchanged() {
    let mut markdown = Markdown::new(60);
    let rows = markdown.push("```rust\nlet text = \"a\"; // why\n```\n");
    let mut out = String::new();
    rows[0].render(Some(greenroom_terminal::theme::Theme::Dark), &mut out);
    assert_eq!(rows[0].text(), "  let text = \"a\"; // why");
    assert!(out.contains("\x1b[32m") && out.contains("\x1b[35m"), "a string and a keyword: {out:?}");
    let rows = markdown.push("```nosuchlanguage\nlet text\n```\n");
    let mut out = String::new();
    rows.last().unwrap().render(Some(greenroom_terminal::theme::Theme::Dark), &mut out);
    assert_eq!(out, "  let text");
}

#[test]
fn however_it_is_cut_into_pieces_the_rows_are_the_same() {
    let mut cases = 0;
    for width in [20, 50, 100] {
        let wanted = whole(LONG, width);
        for size in 1..40 {
            let chars: Vec<char> = LONG.chars().collect();
            let (mut markdown, mut rows) = (Markdown::new(width), Vec::new());
            for piece in chars.chunks(size) {
                let piece: String = piece.iter().collect();
                rows.extend(markdown.push(&piece));
            }
            rows.extend(markdown.finish());
            assert_eq!(texts(&rows), wanted, "in pieces of {size}");
            cases += 1;
        }
    }
    assert_eq!(cases, 117);
}

/// Finished and unfinished rows together equal the rows of the whole text so far.
#[test]
fn what_is_coming_is_seen_as_it_will_be() {
    let mut markdown = Markdown::new(40);
    let mut rows = markdown.push("One paragraph.\n\nTwo that is **bol");
    assert_eq!(texts(&rows), ["One paragraph."]);
    assert_eq!(texts(&markdown.tail()), ["", "Two that is **bol"]);
    rows.extend(markdown.push("d** now.\n\n```\ncode"));
    assert_eq!(texts(&rows), ["One paragraph.", "", "Two that is bold now.", ""]);
    assert_eq!(texts(&markdown.tail()), ["  code"]);
    rows.extend(markdown.push(" goes on\nnext"));
    assert_eq!(rows.last().unwrap().text(), "  code goes on");
    assert_eq!(texts(&markdown.tail()), ["  next"]);
}

#[test]
fn lists_go_on_over_empty_lines_and_hold_code() {
    assert_eq!(
        whole(
            "1. one\n\n   more of one\n\n2. two\n   ```\n   code\n   ```\n3. three\nrest of three\n\nafter\n",
            40
        ),
        ["1. one", "   more of one", "2. two", "     code", "3. three rest of three", "", "after"]
    );
}

#[test]
fn a_table_without_room_for_it_is_a_list_of_its_cells() {
    assert_eq!(
        whole("| name | what it does |\n|--|--|\n| one | something that is long |\n", 24),
        ["name: one", "what it does: something", "  that is long", "─"]
    );
}

#[test]
fn what_a_model_says_steers_no_terminal() {
    let mut markdown = Markdown::new(40);
    let mut rows = markdown.push("a\x1b]0;owned\x07b\n\n```\n\x1b[2J\n```\n<b\x1b[2J>\n");
    rows.extend(markdown.tail());
    rows.extend(markdown.finish());
    for row in rows {
        let mut out = String::new();
        row.render(None, &mut out);
        assert!(!out.contains(char::is_control), "{out:?}");
    }
}

#[test]
fn a_block_without_an_end_costs_no_more_than_its_end() {
    let mut markdown = Markdown::new(80);
    let given = markdown.push(&"word ".repeat(100_000)).len();
    let tail = markdown.tail();
    assert!(tail.len() < 200, "{}", tail.len());
    assert_eq!(given + markdown.finish().len(), 100_000 / 16);
    // A table is not finished before its end.
    markdown.push(&"| a | b |\n".repeat(20_000));
    assert!(markdown.tail().len() < 2_000, "{}", markdown.tail().len());
}

/// A paragraph of `bytes` bytes on one line, with emphasis, code, links and lone marks.
fn prose(bytes: usize) -> String {
    let mut text = String::new();
    for number in 0.. {
        if text.len() >= bytes {
            break;
        }
        text.push_str(match number % 7 {
            0 => "Some *stressed words* and ",
            1 => "`code of two words` with 2 * 3 and ",
            2 => "a [link of words](https://example.org/path) in ",
            3 => "snake_case_names [1] in **bold text that goes on** and ",
            4 => "日本語の文、とても長い。それから ",
            5 => "- no item - and 1. no number and ",
            _ => "plain words, one after the other, ",
        });
    }
    text
}

#[test]
fn a_long_paragraph_is_given_out_row_by_row_and_reads_as_if_it_was_not() {
    let text = prose(20_000);
    for width in [29, 79] {
        let wanted = texts(&blocks(&text, width));
        assert_eq!(whole(&text, width), wanted, "at {width} columns");
        for size in [1, 7, 333] {
            let chars: Vec<char> = text.chars().collect();
            let (mut markdown, mut rows, mut most) = (Markdown::new(width), Vec::new(), 0);
            for piece in chars.chunks(size) {
                let piece: String = piece.iter().collect();
                rows.extend(markdown.push(&piece));
                // Returned and unfinished rows together are the start of the paragraph.
                if rows.len().is_multiple_of(40) {
                    most = most.max(markdown.tail().len());
                }
            }
            assert!(
                rows.len() + 3 * PART_BYTES_MAX / width > wanted.len(),
                "{} rows were held back",
                rows.len()
            );
            assert!(most < 2 * PART_BYTES_MAX / width, "{most} rows were redrawn");
            rows.extend(markdown.finish());
            assert_eq!(texts(&rows), wanted, "in pieces of {size} at {width} columns");
        }
    }
}

#[test]
fn a_long_paragraph_stays_whole_when_the_width_changes_in_its_middle() {
    let text: String = (0..2_000).map(|number| format!("word{number} ")).collect();
    let (mut markdown, mut rows) = (Markdown::new(80), Vec::new());
    for (number, piece) in text.as_bytes().chunks(97).enumerate() {
        markdown.set_width([80, 36, 30, 64][number % 4]);
        rows.extend(markdown.push(std::str::from_utf8(piece).unwrap()));
    }
    rows.extend(markdown.finish());
    let words = texts(&rows).join(" ");
    assert_eq!(words.split_whitespace().collect::<Vec<_>>(), text.split_whitespace().collect::<Vec<_>>());
}

#[test]
fn a_lone_mark_does_not_hold_a_paragraph_back_for_ever() {
    let text = format!("a *mark that is never closed {}", "word ".repeat(4_000));
    let mut markdown = Markdown::new(80);
    let given = markdown.push(&text);
    assert!(given.len() > 200, "{}", given.len());
    assert!(given[0].text().starts_with("a *mark that"), "{:?}", given[0]);
}

#[test]
fn a_long_item_is_given_out_part_by_part() {
    let nested: String =
        (0..30).map(|number| format!("   - part {number} with *words* that take some room\n")).collect();
    let code: String = (0..30).map(|number| format!("   let line_{number} = {number};\n")).collect();
    let text = format!("1. the item\n{nested}\n   more of it\n\n   ```rust\n{code}   ```\n2. next\n");
    for width in [29, 60] {
        let wanted = texts(&blocks(&text, width));
        let (mut markdown, mut rows, mut held) = (Markdown::new(width), Vec::new(), 0);
        for piece in text.split_inclusive(' ') {
            rows.extend(markdown.push(piece));
            if piece.ends_with('\n') || piece.starts_with('-') {
                held = held.max(markdown.tail().len());
            }
        }
        // Lines of code are short.
        assert!(held < 40, "{held} rows were held back");
        rows.extend(markdown.finish());
        assert_eq!(texts(&rows), wanted, "at {width} columns");
        assert_eq!(whole(&text, width), wanted);
    }
    // The width may change: returned rows are not repeated.
    let (mut markdown, mut rows) = (Markdown::new(60), Vec::new());
    for (number, line) in text.split_inclusive('\n').enumerate() {
        markdown.set_width([60, 30, 44][number % 3]);
        rows.extend(markdown.push(line));
    }
    rows.extend(markdown.finish());
    let all = texts(&rows).join(" ");
    for number in 0..30 {
        assert_eq!(all.matches(&format!("part {number} with")).count(), 1, "part {number}");
        assert_eq!(all.matches(&format!("let line_{number} =")).count(), 1, "line {number}");
    }
}

#[test]
fn columns_of_a_table_stand_as_it_says() {
    assert_eq!(
        whole("| a | number | mid |\n|:--|--:|:-:|\n| x | 7 | y |\n| long | 1000 | wider |\n", 40),
        ["a    │ number │  mid", "─────┼────────┼──────", "x    │      7 │   y", "long │   1000 │ wider"]
    );
}

//! What it looks like; pieces of any size; what is finished stays.

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
    rows[0].render(true, &mut out);
    assert_eq!(rows[0].text(), "  let text = \"a\"; // why");
    assert!(out.contains("\x1b[32m") && out.contains("\x1b[35m"), "a string and a keyword: {out:?}");
    let rows = markdown.push("```nosuchlanguage\nlet text\n```\n");
    let mut out = String::new();
    rows.last().unwrap().render(true, &mut out);
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

/// What is finished and what is coming, together, are what the text so far would be as a whole.
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
        row.render(false, &mut out);
        assert!(!out.contains(char::is_control), "{out:?}");
    }
}

#[test]
fn a_block_without_an_end_costs_no_more_than_its_end() {
    let mut markdown = Markdown::new(80);
    markdown.push(&"word ".repeat(100_000));
    let tail = markdown.tail();
    assert!(tail.len() < 200, "{}", tail.len());
    assert_eq!(texts(&markdown.finish()).len(), 100_000 / 16);
}

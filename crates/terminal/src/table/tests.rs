//! Tables of every width.

use super::{Column, Layout};
use crate::screen::columns;

const COLUMNS: [Column; 4] =
    [Column::text("TITLE", 9), Column::text("ID", 8), Column::number("SIZE", 3), Column::text("FOLDER", 1)];

fn rows() -> Vec<[String; 4]> {
    let row = |title: &str, id: &str, size: &str, folder: &str| [title, id, size, folder].map(str::to_owned);
    vec![
        row("a title that is rather long and goes on for a while", "chat-2026", "12", "~/src/one"),
        row("短い題名", "run-2026", "1,234", "~/two"),
    ]
}

fn table(width: usize) -> Vec<String> {
    let layout = Layout::new(COLUMNS, &rows(), width);
    std::iter::once(layout.head()).chain(rows().iter().map(|row| layout.row(row))).collect()
}

#[test]
fn columns_leave_before_the_first_one_does() {
    for (width, expected) in [
        (100, "TITLE ID SIZE FOLDER"),
        (60, "TITLE ID SIZE FOLDER"),
        (50, "TITLE ID SIZE"),
        (40, "TITLE ID"),
        (30, "TITLE"),
        (10, "TITLE"),
    ] {
        let head: Vec<String> = table(width)[0].split_whitespace().map(str::to_owned).collect();
        assert_eq!(head.join(" "), expected, "{width}: {:#?}", table(width));
    }
}

#[test]
fn no_row_is_wider_than_the_width() {
    for width in 5..120 {
        for row in table(width) {
            assert!(columns(&row) <= width, "{width}: {row:?}");
        }
    }
}

#[test]
fn numbers_are_on_the_right_and_an_empty_column_is_left_out() {
    let table = table(100);
    assert!(table[1].contains("     12  ~/src") && table[2].contains("  1,234  ~/two"), "{table:#?}");
    let mut rows = rows();
    rows.iter_mut().for_each(|row| row[2].clear());
    assert!(!Layout::new(COLUMNS, &rows, 100).head().contains("SIZE"));
}

//! Enter chooses the marked row.

use super::*;

fn picker() -> Picker {
    let item = |value: &str| Item {
        value: value.to_owned(),
        label: format!("About {value}"),
        detail: String::new(),
    };
    Picker::new(
        Purpose::Resume,
        "Resume session",
        (0..25).map(|number| item(&format!("s{number}"))).collect(),
    )
}

fn press(picker: &mut Picker, code: KeyCode) -> Picked {
    picker.key(KeyEvent::from(code))
}

#[test]
fn what_is_chosen_is_the_row_that_is_marked() {
    let mut picker = picker();
    for _ in 0..12 {
        press(&mut picker, KeyCode::Down);
    }
    let (rows, _) = picker.layout(40);
    let marked: Vec<String> = rows.iter().map(Row::text).filter(|row| row.contains('❯')).collect();
    assert_eq!(marked, ["  ❯ About s12  "]);
    assert_eq!(press(&mut picker, KeyCode::Enter), Picked::Chosen("s12".to_owned()));
    press(&mut picker, KeyCode::Home);
    press(&mut picker, KeyCode::Up);
    assert_eq!(press(&mut picker, KeyCode::Enter), Picked::Chosen("s24".to_owned()));
}

#[test]
fn typing_narrows_it_and_nothing_can_be_chosen_where_nothing_matches() {
    let mut picker = picker();
    for c in "about S2".chars() {
        press(&mut picker, KeyCode::Char(c));
    }
    assert_eq!(press(&mut picker, KeyCode::Enter), Picked::Chosen("s2".to_owned()));
    press(&mut picker, KeyCode::Char('x'));
    assert_eq!(press(&mut picker, KeyCode::Enter), Picked::Waits);
    assert_eq!(press(&mut picker, KeyCode::Esc), Picked::Left);
}

//! Every part of a value has a place, a path back to the root, and a cost.

use serde_json::json;

use super::*;

#[test]
fn the_parts_of_a_value_are_numbered_in_their_order() {
    let value = json!({ "b": [1, [2]], "a": { "c": null }, "d": [] });
    let mut steps = Steps::new(1_000);
    let mut places = Places::new(&value, &mut steps).expect("it is small");
    assert_eq!((places.all(), 1_000 - steps.left()), (0..8, 80));
    let paths: Vec<String> = places.all().map(|id| places.path(id)).collect();
    assert_eq!(paths, ["", "/b", "/a", "/d", "/b/0", "/b/1", "/a/c", "/b/1/0"]);
    let parts: Vec<_> = places.all().map(|id| places.parts(id)).collect();
    assert_eq!(parts, [1..4, 4..6, 6..7, 7..7, 7..7, 7..8, 8..8, 8..8]);
    assert_eq!(places.members(0).collect::<Vec<_>>(), [("b", 1), ("a", 2), ("d", 3)]);
    assert_eq!(places.members(1).count(), 0);
    let name = places.add_name(6, "c");
    assert_eq!((places.content(name), places.value(name)), (Content::Name("c"), None));
    assert_eq!((places.path(name), places.parts(name)), ("/a/c".to_owned(), 0..0));
    for left in 0..80 {
        assert_eq!(Places::new(&value, &mut Steps::new(left)).err(), Some(NoPlaces::Spent), "{left}");
    }
}

#[test]
fn a_value_may_be_nested_only_so_deep() {
    let nested = |depth: usize, list: bool| {
        (0..depth).fold(json!(1), |value, _| if list { json!([value]) } else { json!({ "a": value }) })
    };
    for list in [true, false] {
        let new = |depth| {
            Places::new(&nested(depth, list), &mut Steps::new(10_000)).map(|places| places.all()).err()
        };
        assert_eq!(new(128), None);
        assert_eq!(new(129), Some(NoPlaces::TooDeep));
    }
}

#[test]
fn long_names_and_long_paths_are_cut() {
    let name = |letters: usize| "n".repeat(letters);
    let path = |names: &[String]| {
        let value = names.iter().rev().fold(json!(1), |value, name| json!({ name.clone(): value }));
        let mut steps = Steps::new(10_000);
        let places = Places::new(&value, &mut steps).expect("it is small");
        places.path(places.all().end - 1)
    };
    assert_eq!(path(&["a/b~c".to_owned()]), "/a~1b~0c");
    assert_eq!(path(&[name(60)]), format!("/{}", name(60)));
    assert_eq!(path(&[name(61)]), format!("/{}…", name(60)));
    assert_eq!(path(&vec![name(60); 4]), format!("/{}", name(60)).repeat(4));
    let five = [vec![name(60); 4], vec!["a".to_owned()]].concat();
    assert_eq!(path(&five), format!("/…{}/a", format!("/{}", name(60)).repeat(4)));
}

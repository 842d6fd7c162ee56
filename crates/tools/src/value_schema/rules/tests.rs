//! Values are compared, counted and shown as JSON schema specifies, in any notation.

use serde_json::json;

use super::*;

fn number(value: &Value) -> Number {
    value.as_number().cloned().expect("it is a number")
}

#[test]
fn a_value_has_its_type_and_a_whole_number_is_an_integer() {
    for (value, types) in [
        (json!(null), &["null"][..]),
        (json!(true), &["boolean"]),
        (json!(1), &["integer", "number"]),
        (json!(u64::MAX), &["integer", "number"]),
        (json!(-2.0), &["integer", "number"]),
        (json!(1e300), &["integer", "number"]),
        (json!(0.5), &["number"]),
        (json!("1"), &["string"]),
        (json!([]), &["array"]),
        (json!({}), &["object"]),
    ] {
        for (name, kind) in Type::ALL {
            assert_eq!(kind.has(&value), types.contains(&name), "{value}: {name}");
            assert_eq!((kind.name(), Type::named(name)), (name, Some(kind)));
        }
    }
    assert_eq!(Type::named("text"), None);
}

/// Beyond 2^53 floats cannot distinguish integers, and beyond 1e30 all are compared as floats.
#[test]
fn bounds_are_exact_for_integers() {
    for (value, limit, order) in [
        (json!(1), json!(2), Ordering::Less),
        (json!(2), json!(2.0), Ordering::Equal),
        (json!(2.5), json!(2), Ordering::Greater),
        (json!(-1), json!(u64::MAX), Ordering::Less),
        (json!(9_007_199_254_740_993_u64), json!(9_007_199_254_740_992.0), Ordering::Greater),
        (json!(9_007_199_254_740_993_u64), json!(9_007_199_254_740_992_u64), Ordering::Greater),
        (json!(u64::MAX), json!(18_446_744_073_709_551_615.0), Ordering::Less),
        (json!(1e40), json!(1e39), Ordering::Greater),
        (json!(-1e40), json!(1e300), Ordering::Less),
        (json!(1e30), json!(1e30), Ordering::Equal),
    ] {
        for (bound, holds) in [
            (Bound::Minimum, order != Ordering::Less),
            (Bound::Maximum, order != Ordering::Greater),
            (Bound::ExclusiveMinimum, order == Ordering::Greater),
            (Bound::ExclusiveMaximum, order == Ordering::Less),
        ] {
            let said = bound.holds(&number(&value), &number(&limit));
            assert_eq!(said, holds, "{value} {} {limit}", bound.sign());
        }
    }
    for (value, expect) in [(json!(0), false), (json!(-0.1), false), (json!(1e-300), true), (json!(1), true)]
    {
        assert_eq!(is_positive(&number(&value)), expect, "{value}");
    }
}

#[test]
fn a_multiple_is_as_exact_as_floats_tell() {
    for (value, of, expect) in [
        (json!(9), json!(3), true),
        (json!(-9), json!(3.0), true),
        (json!(10), json!(3), false),
        (json!(0), json!(0.3), true),
        (json!(0.07), json!(0.01), true),
        (json!(123_456_789.01), json!(0.01), true),
        (json!(0.075), json!(0.01), false),
        (json!(-4.5), json!(1.5), true),
        (json!(10_000_000_000.3), json!(1), false),
        (json!(1e-10), json!(1), false),
        (json!(1e308), json!(1e-5), false),
        (json!(u64::MAX), json!(5), true),
        (json!(u64::MAX), json!(2), false),
    ] {
        assert_eq!(is_multiple(&number(&value), &number(&of)), expect, "{value} of {of}");
    }
}

fn canonical(value: &Value) -> (String, u64) {
    let mut steps = Steps::new(1_000_000);
    let text = canonical_text(value, &mut steps).expect("it costs little");
    (text, 1_000_000 - steps.left())
}

#[test]
fn equal_values_share_a_text_and_others_do_not() {
    let different = [
        json!(null),
        json!(true),
        json!(1),
        json!(1.5),
        json!(1e300),
        json!("1"),
        json!("true"),
        json!([1]),
        json!([1, 1]),
        json!([[1], 1]),
        json!([[1, 1]]),
        json!(["a", "b"]),
        json!(["a,1\"b"]),
        json!({ "a": 1 }),
        json!({ "a": { "b": 1 } }),
        json!({ "a": 1, "b": 1 }),
        json!(["a", 1]),
    ];
    for (at, one) in different.iter().enumerate() {
        for (other_at, other) in different.iter().enumerate() {
            assert_eq!(canonical(one).0 == canonical(other).0, at == other_at, "{one} and {other}");
        }
    }
    assert_eq!(
        canonical(&json!([1.0, { "b": 2, "a": "x" }])).0,
        canonical(&json!([1, { "a": "x", "b": 2.0 }])).0
    );
}

/// Escapes would make a text six times as long as what was counted for it.
#[test]
fn a_canonical_text_is_as_long_as_what_it_was_counted_as() {
    let (text, steps) = canonical(&json!("\u{1}".repeat(4_000)));
    assert!(text.len() < 4_010, "{}", text.len());
    assert_eq!(steps, 20 + 1_000);
    assert_eq!(canonical(&json!([1, [null]])).1, 4 * 20);
    assert_eq!(canonical(&json!({ "a": 1, "name": 2 })).1, 3 * 20 + 2 * 10 + 1);
}

#[test]
fn values_are_known_and_shown_shortly() {
    let mut steps = Steps::new(1_000_000);
    let mut check = |values: &[Value], known: &Value, unknown: &Value, shown: &str| {
        let values = Values::new(values, &mut steps).expect("it costs little");
        assert_eq!(values.contain(known, &mut steps), Ok(true), "{known}");
        assert_eq!(values.contain(unknown, &mut steps), Ok(false), "{unknown}");
        assert_eq!(values.shown, shown);
    };
    check(&[json!(1)], &json!(1.0), &json!([1]), "want 1");
    check(&[json!({ "a": 1 }), json!([])], &json!([]), &json!({}), "want one of an object, an array");
    check(&[json!([2])], &json!([2]), &json!([1]), "want an array");
    let long: Vec<Value> = (0..100).map(|n| json!(n)).collect();
    let shown = (0..80).map(|n| n.to_string()).collect::<Vec<_>>().join(", ");
    check(&long, &json!(99), &json!(100), &format!("want one of {}…", &shown[..160]));
    // Strings that cannot be among them are not read.
    let mut none = Steps::new(1_000);
    let values = Values::new(&[json!(1)], &mut none).expect("it costs little");
    assert_eq!(values.contain(&json!(vec![1; 1_000]), &mut none), Ok(false));
    assert_eq!(shown_text(80), format!("{:?}", "x".repeat(80)));
    assert_eq!(shown_text(81), format!("{:?}", format!("{}…", "x".repeat(80))));
}

fn shown_text(characters: usize) -> String {
    shown(&json!("x".repeat(characters)))
}

//! The results of `JSON.stringify(JSON.parse(text))`, by the rules of ECMAScript's `Number::toString` and
//! `QuoteJSONString`.

use super::stringify;

fn check(text: &str, expected: &str) {
    let value = serde_json::from_str(text).expect("the case is valid JSON");
    assert_eq!(stringify(&value), expected, "{text}");
}

#[test]
fn numbers() {
    for (text, expected) in [
        ("1", "1"),
        ("-1", "-1"),
        ("1.0", "1"),
        ("-0", "0"),
        ("-0.0", "0"),
        ("2.50", "2.5"),
        ("1e2", "100"),
        ("123456.789", "123456.789"),
        ("1e20", "100000000000000000000"),
        ("1e21", "1e+21"),
        ("1.5e300", "1.5e+300"),
        ("0.000001", "0.000001"),
        ("0.0000001", "1e-7"),
        ("1.25e-9", "1.25e-9"),
        ("-1.25e-9", "-1.25e-9"),
        ("0.30000000000000004", "0.30000000000000004"),
        ("9007199254740992", "9007199254740992"),
        ("9007199254740993", "9007199254740992"),
        ("-9007199254740993", "-9007199254740992"),
        ("18446744073709551615", "18446744073709552000"),
        ("123456789012345680000", "123456789012345680000"),
        ("5e-324", "5e-324"),
    ] {
        check(text, expected);
    }
}

#[test]
fn everything_else() {
    check("{ \"b\" : [ 1 , null , true ] , \"a\" : { } }", r#"{"b":[1,null,true],"a":{}}"#);
    check(r#""\u00e9\/\u2028\u0007\u007f\n\"""#, "\"é/\u{2028}\\u0007\u{7f}\\n\\\"\"");
    check(r#"{"k\n":"😀"}"#, r#"{"k\n":"😀"}"#);
}

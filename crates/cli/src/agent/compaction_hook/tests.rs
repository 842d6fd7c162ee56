//! What a hook prints, and the decision that it is.

use super::*;

#[test]
fn a_decision_is_one_json_object() {
    let supplied = Supplied { summary: "All is well.".into(), first_kept: None };
    for (printed, expected) in [
        ("", BeforeCompact::Continue),
        (" \n", BeforeCompact::Continue),
        (r#"{"decision": "continue"}"#, BeforeCompact::Continue),
        (r#"{"decision": "cancel", "reason": "not now"}"#, BeforeCompact::Cancel("not now".into())),
        ("{\"decision\": \"focus\",\n \"focus\": \"units\"}\n", BeforeCompact::Focus("units".into())),
        (r#"{"decision": "supply", "summary": "All is well."}"#, BeforeCompact::Supply(supplied)),
    ] {
        assert_eq!(decided(printed), expected, "{printed}");
    }
    for printed in [
        "continue",
        "{}",
        r#"{"decision": "stop"}"#,
        r#"{"decision": "cancel"}"#,
        r#"{"decision": "continue", "summary": "x"}"#,
        r#"{"decision": "continue"} {"decision": "continue"}"#,
    ] {
        assert!(
            matches!(decided(printed), BeforeCompact::Skip(why) if why.contains("printed no decision")),
            "{printed}"
        );
    }
}

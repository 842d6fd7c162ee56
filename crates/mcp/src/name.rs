//! The names of tools: `mcp__SERVER__TOOL`.
//!
//! Invariants: a name is one that every provider accepts, and unique within its server; it stays the same as long as the
//! server lists its tools in the same order.

/// The longest name that providers accept, in bytes.
const NAME_BYTES_MAX: usize = 64;

/// Whether a server can have this name: 1 to 32 letters, digits, `-`, and `_` that are not doubled, so that the names of two
/// servers' tools never look alike; the last character is no `_`.
pub fn is_server_name(name: &str) -> bool {
    let valid = |letter: char| letter.is_ascii_alphanumeric() || matches!(letter, '_' | '-');
    (1..=32).contains(&name.len()) && name.chars().all(valid) && !name.contains("__") && !name.ends_with('_')
}

/// Returns the name under which a model calls the tool `tool` of the server `server`.
pub(crate) fn tool_name(server: &str, tool: &str, is_taken: impl Fn(&str) -> bool) -> String {
    let plain = |letter: char| {
        if letter.is_ascii_alphanumeric() || matches!(letter, '_' | '-') { letter } else { '_' }
    };
    let whole: String = format!("mcp__{server}__{tool}").chars().map(plain).collect();
    let with = |suffix: &str| {
        let end = whole.len().min(NAME_BYTES_MAX - suffix.len());
        format!("{}{suffix}", &whole[..end])
    };
    let first = with("");
    if !is_taken(&first) {
        return first;
    }
    (2_u64..)
        .map(|number| with(&format!("_{number}")))
        .find(|name| !is_taken(name))
        .expect("numbers do not end")
}

/// Whether a name matches a pattern, in which `*` stands for any text.
pub(crate) fn matches(pattern: &str, name: &str) -> bool {
    let Some((head, rest)) = pattern.split_once('*') else { return pattern == name };
    let Some(mut left) = name.strip_prefix(head) else { return false };
    let parts: Vec<&str> = rest.split('*').collect();
    let Some((tail, middle)) = parts.split_last() else { return true };
    for part in middle {
        let Some(at) = left.find(part) else { return false };
        left = &left[at + part.len()..];
    }
    left.ends_with(tail)
}

#[cfg(test)]
mod tests {
    //! Names of all kinds.

    use super::{is_server_name, matches, tool_name};

    #[test]
    fn names_of_tools_are_those_that_providers_accept() {
        let long = "x".repeat(80);
        for (server, tool, expected) in [
            ("github", "create_issue", "mcp__github__create_issue".to_owned()),
            ("a-b", "files/read.all", "mcp__a-b__files_read_all".to_owned()),
            ("s", "über", "mcp__s___ber".to_owned()),
            ("s", &long, format!("mcp__s__{}", "x".repeat(56))),
            ("s", "", "mcp__s__".to_owned()),
        ] {
            assert_eq!(tool_name(server, tool, |_| false), expected, "{server} {tool}");
        }
        let taken = ["mcp__s__a".to_owned(), "mcp__s__a_2".to_owned(), format!("mcp__s__{}", "x".repeat(56))];
        let is_taken = |name: &str| taken.iter().any(|taken| taken == name);
        assert_eq!(tool_name("s", "a", is_taken), "mcp__s__a_3");
        assert_eq!(tool_name("s", &long, is_taken), format!("mcp__s__{}_2", "x".repeat(54)));
    }

    #[test]
    fn names_of_servers() {
        for (name, expected) in [
            ("github", true),
            ("my-server_2", true),
            ("", false),
            ("a__b", false),
            ("a_", false),
            ("a b", false),
            ("é", false),
            (&*"x".repeat(33), false),
        ] {
            assert_eq!(is_server_name(name), expected, "{name:?}");
        }
    }

    #[test]
    fn patterns() {
        for (pattern, name, expected) in [
            ("get", "get", true),
            ("get", "get_x", false),
            ("get_*", "get_x", true),
            ("get_*", "forget_x", false),
            ("*", "", true),
            ("*_issue", "get_issue", true),
            ("*_issue", "get_issues", false),
            ("*a*b*", "xaxbx", true),
            ("*a*b*", "xbxax", false),
            ("a*a", "a", false),
            ("a*b*c", "abbc", true),
        ] {
            assert_eq!(matches(pattern, name), expected, "{pattern} {name}");
        }
    }
}

//! Translates messages of the configuration's parser for people who do not know the program's types.
//!
//! Invariants: an unknown message is unchanged, and no message names one of our types.

#[cfg(test)]
mod tests;

/// Translates a message of the parser, without the position at its end.
pub(super) fn plain(message: &str) -> String {
    let message = message.split(" at line ").next().unwrap_or_default();
    let (key, said) = match message.find("invalid type: ").or_else(|| message.find("invalid value: ")) {
        Some(at) => message.split_at(at),
        None => return in_general(message),
    };
    let said = said.trim_start_matches("invalid type: ").trim_start_matches("invalid value: ");
    match said.rsplit_once(", expected ") {
        Some((found, wanted)) => format!("{key}must be {}, not {}", self::wanted(wanted), self::found(found)),
        None => in_general(message),
    }
}

fn in_general(message: &str) -> String {
    match message.split_once("data did not match any variant of untagged enum ") {
        Some((key, "NetworkConfig")) => format!("{key}must be `none`, `all`, or a list of hosts"),
        Some((key, "UnknownWindowText")) => format!("{key}must be a number of tokens, or `disable`"),
        Some((key, _)) => format!("{key}has an invalid form"),
        None if message.contains("duplicate entry with key ") => {
            message.replace("duplicate entry with key ", "duplicate key: ").replace('"', "")
        }
        None => {
            message.replace("unknown field ", "unknown key ").replace("unknown variant ", "unknown value ")
        }
    }
}

/// Translates the expected value.
fn wanted(wanted: &str) -> String {
    let words = match wanted {
        "u8" | "u16" | "u32" | "u64" | "u128" | "usize" => "a whole number that is not negative",
        "i8" | "i16" | "i32" | "i64" | "i128" | "isize" => "a whole number",
        "f32" | "f64" => "a number",
        "a string" | "string" | "str" | "borrowed string" => "a text",
        "a boolean" | "bool" => "true or false",
        "a sequence" | "sequence" => "a list",
        "a map" | "map" => "a section with keys of its own",
        "option" => "a value or null",
        "unit" => "empty",
        // A number that no YAML type can hold.
        "any YAML value" => "a smaller number",
        "socket address" => "an address with a port, such as 127.0.0.1:7878",
        _ if wanted.starts_with("struct ") => "a section with keys of its own",
        _ if wanted.starts_with("enum ") => "one of its possible values",
        other => other,
    };
    words.to_owned()
}

/// Translates the actual value.
fn found(found: &str) -> String {
    let value = |kind: &str| {
        let value = found.strip_prefix(kind)?;
        Some(
            value
                .trim()
                .trim_end_matches(" as u128")
                .trim_end_matches(" as i128")
                .trim_matches('`')
                .to_owned(),
        )
    };
    if let Some(number) = value("integer ").or_else(|| value("floating point ")).or_else(|| value("boolean "))
    {
        return number;
    }
    if let Some(text) = value("string ") {
        return format!("the text {text}");
    }
    match found {
        "map" => "a section",
        "sequence" => "a list",
        "unit value" | "Option value" | "null" => "nothing",
        other => other,
    }
    .to_owned()
}

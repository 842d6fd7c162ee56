//! JSON as JavaScript's `JSON.stringify` writes it: compact, keys in their original order, numbers as
//! JavaScript prints them.
//!
//! Invariants: the arguments of a tool call, in this form, are as long here as in the systems that we compare
//! with, in any white space, escapes or number notation.

use serde_json::{Number, Value};

#[cfg(test)]
mod tests;

/// The largest integer up to which JavaScript's numbers are exact.
const SAFE_INTEGER: u64 = 1 << 53;

/// Returns `value` as `JSON.stringify` writes it.
pub fn stringify(value: &Value) -> String {
    let mut out = String::new();
    write_value(value, &mut out);
    out
}

fn write_value(value: &Value, out: &mut String) {
    match value {
        Value::Null | Value::Bool(_) | Value::String(_) => out.push_str(&value.to_string()),
        Value::Number(number) => out.push_str(&number_text(number)),
        Value::Array(items) => {
            out.push('[');
            for (index, item) in items.iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                write_value(item, out);
            }
            out.push(']');
        }
        Value::Object(fields) => {
            out.push('{');
            for (index, (key, field)) in fields.iter().enumerate() {
                if index > 0 {
                    out.push(',');
                }
                out.push_str(&Value::from(key.as_str()).to_string());
                out.push(':');
                write_value(field, out);
            }
            out.push('}');
        }
    }
}

fn number_text(number: &Number) -> String {
    if number.as_u64().is_some_and(|n| n <= SAFE_INTEGER)
        || number.as_i64().is_some_and(|n| n.unsigned_abs() <= SAFE_INTEGER)
    {
        return number.to_string();
    }
    number.as_f64().filter(|float| float.is_finite()).map_or_else(|| "null".to_owned(), float_text)
}

/// Returns a number as JavaScript's `String(number)` writes it: the shortest digits that read back as the
/// same number, as a plain decimal from 1e-6 up to 1e21, otherwise with an exponent.
fn float_text(float: f64) -> String {
    if float == 0.0 {
        return "0".into();
    }
    let scientific = format!("{:e}", float.abs());
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let digits = mantissa.replace('.', "");
    let sign = if float < 0.0 { "-" } else { "" };
    let count = i32::try_from(digits.len()).unwrap_or(i32::MAX);
    let zeros = |count: i32| "0".repeat(usize::try_from(count).unwrap_or(0));
    let text = match exponent {
        0..21 if count <= exponent + 1 => digits.clone() + &zeros(exponent + 1 - count),
        0..21 => {
            let (whole, part) = digits.split_at(usize::try_from(exponent + 1).unwrap_or(0));
            format!("{whole}.{part}")
        }
        -6..0 => format!("0.{}{digits}", zeros(-exponent - 1)),
        _ => {
            let (first, rest) = digits.split_at(1);
            let point = if rest.is_empty() { "" } else { "." };
            let plus = if exponent > 0 { "+" } else { "" };
            format!("{first}{point}{rest}e{plus}{exponent}")
        }
    };
    format!("{sign}{text}")
}

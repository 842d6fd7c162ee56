//! Lines are parsed as a shell does, and written candidates are parsed back.

use super::CommandLine;

#[test]
fn words_are_without_quotes_and_redirections() {
    for (text, words) in [
        ("greenroom show de", &["greenroom", "show", "de"][..]),
        ("greenroom show ", &["greenroom", "show", ""]),
        ("greenroom  show\t'a b' \"c \\\" d\" e\\ f", &["greenroom", "show", "a b", "c \" d", "e f"]),
        ("greenroom show \"it's \\n", &["greenroom", "show", "it's \\n"]),
        ("greenroom show a''b'c", &["greenroom", "show", "abc"]),
        ("greenroom show a\\", &["greenroom", "show", "a"]),
        ("greenroom show team:al", &["greenroom", "show", "team:al"]),
        ("greenroom show '' x", &["greenroom", "show", "", "x"]),
        ("greenroom show x > out te", &["greenroom", "show", "x", "te"]),
        ("greenroom show x>out te", &["greenroom", "show", "x", "te"]),
        ("greenroom show x 2>>out te", &["greenroom", "show", "x", "te"]),
        ("greenroom show x 2 >out te", &["greenroom", "show", "x", "2", "te"]),
        ("greenroom show <'in put' te", &["greenroom", "show", "te"]),
        ("greenroom show \\> '<' te", &["greenroom", "show", ">", "<", "te"]),
    ] {
        assert_eq!(CommandLine::read(text).words, words, "{text}");
    }
}

#[test]
fn what_is_written_reads_back() {
    let values = ["team:alpha", "my session", "it's", "a\"b`c$d\\e", "*?[x]", "ü ß", "#a!b", "~/a b", "-x=y"];
    let mut tried = 0;
    for value in values {
        for typed in ["", "'", "\"", "x", "x:", "'x':", "x\\ ", "x\"y z"] {
            let text = format!("greenroom show {typed}");
            let kept = CommandLine::read(&text).words[2].clone();
            // Bash replaces the text after the last colon or the open quote.
            for replaced in ["", typed.rsplit([':', '"', '\'']).next().expect("a part")] {
                let whole = format!("{kept}{value}");
                let line = CommandLine::read(&text);
                let written = line.written(&text, replaced, &whole).expect("it can be written");
                let stands = format!("{}{written}", text.strip_suffix(replaced).expect("it ends so"));
                assert_eq!(CommandLine::read(&stands).words[2], whole, "{typed} {replaced} {stands}");
                tried += 1;
            }
        }
    }
    assert_eq!(tried, values.len() * 8 * 2);
    assert_eq!(CommandLine::read("greenroom show b").written("greenroom show b", "b", "a\nb"), None);
}

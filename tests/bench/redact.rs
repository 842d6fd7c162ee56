//! The cost of redaction, by the length of the text, and for each piece of a stream.
//!
//! The baseline is the count of the text's tokens, which is made of everything that is recorded. The text is ordinary
//! code without a secret: that is the case that has to be cheap.

use std::time::Duration;

use greenroom_kernel::Message;
use greenroom_kernel::redact::{RedactedStream, Redactor};
use greenroom_kernel::size::{Estimator, message_tokens};
use greenroom_tests::measure::{figure, micros, ratio, scaled, time_of, title};

/// The sizes of the texts, in bytes.
const SIZES: [usize; 3] = [2_000, 50_000, 1_000_000];
/// How many values are known: a full environment.
const VALUES: usize = 30;
/// The size of the pieces of a stream, in bytes, and how many there are.
const PIECE: usize = 4;
const PIECES: usize = 1_000;

fn main() {
    let redactor = Redactor::with_shapes();
    redactor.add(
        (0..VALUES)
            .map(|number| (format!("NAME_{number}"), format!("sk-{number}/aB3+dE5={number}fG7hI9jK1"))),
    );
    let code = include_str!("measure.rs");
    title("redaction, by the length of the text", "counting its tokens");
    println!("| bytes     | count µs | values µs | ratio | all µs   | ratio |");
    println!("|-----------|----------|-----------|-------|----------|-------|");
    for bytes in SIZES {
        let text: String = code.chars().cycle().take(bytes).collect();
        let message = Message::user(text.clone());
        let runs = scaled(4_000_000 / bytes).max(3);
        let count = micros(time_of(runs, || message_tokens(&message, Estimator::Classes)));
        let values = micros(time_of(runs, || redactor.values(&text).len()));
        let all = micros(time_of(runs, || redactor.all(&text).len()));
        println!(
            "| {bytes:>9} | {count:>8.1} | {values:>9.1} | {:>5.2} | {all:>8.1} | {:>5.2} |",
            ratio(values, count),
            ratio(all, count)
        );
        figure(&format!("redact/{bytes}/values"), values, "µs", Some(ratio(values, count)));
        figure(&format!("redact/{bytes}/all"), all, "µs", Some(ratio(all, count)));
    }
    let pieces: Vec<String> = code
        .as_bytes()
        .chunks(PIECE)
        .cycle()
        .take(PIECES)
        .map(|piece| String::from_utf8_lossy(piece).into_owned())
        .collect();
    let stream = |redactor: &Redactor| {
        let mut stream = RedactedStream::default();
        let shown: usize = pieces.iter().map(|piece| stream.push(redactor, piece.clone()).len()).sum();
        shown + stream.end(redactor).len()
    };
    let each = |time: Duration| micros(time) * 1e3 / f64::from(u32::try_from(PIECES).unwrap_or(u32::MAX));
    let off = each(time_of(scaled(200), || stream(&Redactor::default())));
    let on = each(time_of(scaled(200), || stream(&redactor)));
    println!("\na piece of a stream: {on:.0} ns, without values {off:.0} ns");
    figure("redact/piece", on, "ns", None);
}

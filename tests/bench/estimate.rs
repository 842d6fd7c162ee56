//! Speed of size estimates: the pass by character classes against characters / 4.
//!
//! Sizes are estimated once for every entry, so this is a cost of every message, not of every request.

use greenroom_kernel::size::{Estimator, text_tokens};
use greenroom_tests::measure::{figure, ratio, scaled, time_of, title};

fn main() {
    title("estimating the size of texts, in MB/s", "characters / 4 over the same text");
    let rows = [
        (
            "prose",
            "The harbour was quiet when the first boats came back, and nobody asked what they had seen. ",
        ),
        ("code", include_str!("measure.rs")),
        (
            "JSON",
            r#"{"id":"call_83af","name":"read","arguments":{"path":"src/main.rs","line":1204,"ok":true}},"#,
        ),
        ("Chinese", "这个会话的旧部分已经被压缩，请从这里继续工作，不要重复已经完成的步骤。"),
        ("mixed", "Änderung in src/größe.rs: ✅ 12 tests, 3 übersprungen — Привет, 世界! "),
    ];
    println!("| text    | char4 MB/s | classes MB/s | ratio |");
    println!("|---------|------------|--------------|-------|");
    for (name, piece) in rows {
        let text = piece.repeat(1_000_000 / piece.len());
        let rate = |estimator| {
            let time = time_of(scaled(50), || text_tokens(std::hint::black_box(&text), estimator));
            #[expect(clippy::cast_precision_loss, reason = "a megabyte")]
            let bytes = text.len() as f64;
            bytes / 1e6 / time.as_secs_f64()
        };
        let (char4, classes) = (rate(Estimator::Char4), rate(Estimator::Classes));
        println!("| {name:<7} | {char4:>10.0} | {classes:>12.0} | {:>5.2} |", ratio(classes, char4));
        figure(&format!("estimate/{name}/classes"), classes, "MB/s", Some(ratio(classes, char4)));
    }
}

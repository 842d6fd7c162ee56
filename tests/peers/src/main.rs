//! Estimating sizes against counting them: `cargo xtask bench peers`.
//!
//! The baseline is tiktoken-rs with the encoding of the models of today (`o200k_base`), over the same text.

use std::time::{Duration, Instant};

use greenroom_kernel::size::{Estimator, text_tokens};

const TEXTS: [(&str, &str); 3] = [
    ("prose", "The harbour was quiet when the first boats came back, and nobody asked what they had seen. "),
    ("code", include_str!("main.rs")),
    ("chinese", "这个会话的旧部分已经被压缩，请从这里继续工作，不要重复已经完成的步骤。"),
];

fn main() {
    let is_quick = std::env::args().any(|argument| argument == "--quick");
    let rounds = if is_quick { 3 } else { 15 };
    let counter = tiktoken_rs::o200k_base().expect("an encoding");
    println!("estimating sizes, in MB/s\nbaseline: tiktoken-rs, o200k_base\n");
    println!("| text    | tiktoken-rs MB/s | estimate MB/s | ratio | estimate / count |");
    println!("|---------|------------------|---------------|-------|------------------|");
    for (name, piece) in TEXTS {
        let text = piece.repeat(400_000 / piece.len());
        let (mut counted, mut estimated) = (Vec::new(), Vec::new());
        let (mut count, mut estimate) = (0, 0);
        for _ in 0..rounds {
            counted.push(time(|| count = counter.encode_ordinary(&text).len()));
            estimated.push(time(|| estimate = text_tokens(&text, Estimator::Classes)));
        }
        let rate = |times: &mut Vec<Duration>| {
            times.sort();
            text.len() as f64 / 1e6 / times[times.len() / 2].as_secs_f64()
        };
        let (count_rate, estimate_rate) = (rate(&mut counted), rate(&mut estimated));
        let ratio = estimate_rate / count_rate;
        let size = estimate as f64 / count as f64;
        println!("| {name:<7} | {count_rate:>16.1} | {estimate_rate:>13.1} | {ratio:>5.1} | {size:>16.2} |");
        println!("figure\tpeers/estimate/{name}\t{estimate_rate:.4}\tMB/s\t{ratio:.4}");
    }
}

fn time(mut work: impl FnMut()) -> Duration {
    let began = Instant::now();
    work();
    began.elapsed()
}

//! How long it takes from a key to the screen in `greenroom chat`, while an answer streams in 200 pieces a second.
//!
//! The binary runs at a pseudo-terminal, and a simulated model streams to it. Keys are pressed one after the other, each
//! another character, and a time ends when that character is written to the terminal. There is no baseline.

mod pseudo_terminal;

use std::time::{Duration, Instant};

use greenroom_simulator::{Answer, CallInfo, Function, Pace, SeenRequest, Simulator, SimulatorOptions};
use greenroom_tests::measure::{figure, percentile, scaled, title};

use self::pseudo_terminal::AtTerminal;

/// Between two pieces of the answer, in milliseconds: 200 a second.
const BETWEEN_MS: u64 = 5;
/// Between two keys: people type ten a second when they are quick.
const BETWEEN_KEYS: Duration = Duration::from_millis(37);
/// The first of the characters that are typed, which no answer has.
const FIRST: u32 = 0x4E00;
/// After so many keys the line is cleared, so that it stays a line.
const LINE: u32 = 25;

fn main() {
    let keys = u32::try_from(scaled(1_000)).expect("few keys");
    title(&format!("{keys} keys in a chat into which {} pieces a second stream", 1_000 / BETWEEN_MS), "none");
    println!("| streaming | median, ms | p99, ms | worst, ms |");
    println!("|-----------|------------|---------|-----------|");
    for streams in [false, true] {
        let mut times = measured(keys, streams);
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        let (median, p99) = (ms(percentile(&mut times, 50)), ms(percentile(&mut times, 99)));
        let worst = ms(times.iter().copied().max().unwrap_or_default());
        let name = if streams { "yes" } else { "no" };
        println!("| {name:<9} | {median:>10.2} | {p99:>7.2} | {worst:>9.2} |");
        figure(&format!("keys/streaming_{name}/median"), median, "ms", None);
        figure(&format!("keys/streaming_{name}/p99"), p99, "ms", None);
    }
}

fn measured(keys: u32, streams: bool) -> Vec<Duration> {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let script = Function(|_: &SeenRequest, _: CallInfo| {
        // Prose with some Markdown, cut into small pieces, for longer than the keys take.
        let text = "Some **bold** words, `code` and a line of prose.\n\n- an item of a list\n\n```rust\nlet x = 1;\n```\n\n";
        let pieces = 60_000;
        Answer::text(text.repeat(pieces / 12)).with_pace(Pace {
            chunks: pieces,
            first_ms: 1,
            between_ms: BETWEEN_MS,
        })
    });
    let simulator = Simulator::new(SimulatorOptions::new(script));
    let server = runtime.block_on(simulator.serve()).expect("a server");
    let folder = tempfile::tempdir().expect("a folder");
    let url = server.base_url().to_string();
    let arguments = ["chat", "--base-url", &url, "--model", "simulated", "--no-tools", "--no-host"];
    let mut chat = AtTerminal::start(folder.path(), &arguments);
    // It draws: in a chat of plain lines the terminal itself would echo each key at once.
    chat.wait_for(b"\x1b[?2004h");
    chat.wait_for(b"/help lists");
    if streams {
        chat.press("go\r".as_bytes());
        chat.wait_for(b"code");
    }
    let mut times = Vec::new();
    for number in 0..keys {
        if number % LINE == 0 {
            chat.press(b"\x15");
        }
        std::thread::sleep(BETWEEN_KEYS);
        let c = char::from_u32(FIRST + number).expect("it is one");
        let mut bytes = [0; 4];
        let bytes = c.encode_utf8(&mut bytes).as_bytes();
        let pressed = Instant::now();
        chat.press(bytes);
        times.push(chat.wait_for(bytes).saturating_duration_since(pressed));
    }
    times
}

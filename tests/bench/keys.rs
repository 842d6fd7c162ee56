//! Latency from a key press to the screen in `greenroom chat`, while an answer streams in 200 pieces per
//! second.
//!
//! The binary runs on a pseudo-terminal, and a simulated model streams to it. Keys are pressed one after the
//! other, each another character, and a measurement ends when that character is written to the terminal.
//! There is no baseline.

mod pseudo_terminal;

use std::path::Path;
use std::time::{Duration, Instant};

use greenroom_simulator::{
    Answer, CallInfo, Function, Pace, SeenRequest, Simulator, SimulatorOptions, SimulatorServer,
};
use greenroom_tests::measure::{figure, percentile, scaled, title};

use self::pseudo_terminal::AtTerminal;

/// The time between two pieces of the answer, in milliseconds: 200 per second.
const BETWEEN_MS: u64 = 5;
/// The time between two keys: fast typists type ten per second.
const BETWEEN_KEYS: Duration = Duration::from_millis(37);
/// The first of the typed characters, which no answer contains.
const FIRST: u32 = 0x4E00;
/// The number of keys after which the line is cleared, so that it stays one line.
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
    let ms = |time: Duration| time.as_secs_f64() * 1e3;
    let mut times = interrupted(scaled(50));
    let (median, worst) =
        (ms(percentile(&mut times, 50)), ms(times.iter().copied().max().unwrap_or_default()));
    println!("\nFrom Esc to \"interrupted\" while it streams: median {median:.2} ms, worst {worst:.2} ms");
    figure("keys/interrupt/median", median, "ms", None);
    figure("keys/interrupt/worst", worst, "ms", None);
    let count = scaled(20);
    let [short, long] = [20, 10_000].map(|entries| ms(percentile(&mut opened(entries, count), 50)));
    println!("A session of 20 entries opens in {short:.0} ms, one of 10,000 in {long:.0} ms");
    figure("keys/open_20/median", short, "ms", None);
    figure("keys/open_10000/median", long, "ms", None);
}

/// Serves a model that streams for longer than any measurement takes.
fn serve(runtime: &tokio::runtime::Runtime) -> (SimulatorServer, String) {
    let script = Function(|_: &SeenRequest, _: CallInfo| {
        // Prose with some Markdown, split into small pieces, for longer than the keys take.
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
    let url = server.base_url().to_string();
    (server, url)
}

/// Starts a chat that draws: in a chat with plain lines the terminal itself would echo each key at once.
fn at_chat(url: &str, folder: &Path) -> AtTerminal {
    let arguments = ["chat", "--base-url", url, "--model", "simulated", "--no-tools", "--no-host"];
    let mut chat = AtTerminal::start(folder, &arguments);
    chat.wait_for(b"\x1b[?2004h");
    chat.wait_for(b"/help the commands");
    chat
}

/// Measures from Esc to "interrupted" on the screen, while an answer streams.
fn interrupted(times: usize) -> Vec<Duration> {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let (_simulator, url) = serve(&runtime);
    let folder = tempfile::tempdir().expect("a folder");
    let mut chat = at_chat(&url, folder.path());
    (0..times)
        .map(|_| {
            chat.press("go\r".as_bytes());
            chat.wait_for(b"Esc interrupts");
            chat.wait_for(b"code");
            std::thread::sleep(BETWEEN_KEYS);
            let pressed = Instant::now();
            chat.press(b"\x1b");
            chat.wait_for(b"Interrupted").saturating_duration_since(pressed)
        })
        .collect()
}

/// Measures from the start of a chat until the newest message of a session of this many entries is on the
/// screen.
fn opened(entries: usize, times: usize) -> Vec<Duration> {
    let folder = tempfile::tempdir().expect("a folder");
    let id = |number: usize| format!("{number:08x}");
    let mut lines = vec![
        serde_json::json!({ "type": "session", "version": 3, "id": "long", "cwd": "/", "timestamp": "2026-01-02T03:04:05.000Z" })
            .to_string(),
    ];
    for number in 0..entries {
        let role = if number % 2 == 0 { "user" } else { "assistant" };
        let parent = number.checked_sub(1).map(|before| id(before + 1));
        lines.push(
            serde_json::json!({
                "type": "message", "id": id(number + 1), "timestamp": "2026-01-02T03:04:05.000Z", "parentId": parent,
                "message": {
                    "role": role, "content": [{ "type": "text", "text": format!("**message** number {number}.") }],
                    "provider": "openai", "model": "gpt-5.5", "timestamp": 1_767_323_045_000_u64, "stopReason": "stop",
                },
            })
            .to_string(),
        );
    }
    let file = folder.path().join("long.jsonl");
    std::fs::write(&file, lines.join("\n")).expect("it is written");
    let imported = pseudo_terminal::command(folder.path())
        .args(["import", &file.to_string_lossy(), "--json"])
        .output()
        .expect("the binary runs");
    let imported: serde_json::Value = serde_json::from_slice(&imported.stdout).expect("it is JSON");
    let session = imported["session_id"].as_str().expect("it is named").to_owned();
    let newest = format!("number {}.", entries - 1);
    let url = "http://127.0.0.1:9/v1";
    let arguments =
        ["chat", "--base-url", url, "--model", "simulated", "--no-tools", "--no-host", "--session", &session];
    (0..times)
        .map(|_| {
            let began = Instant::now();
            let mut chat = AtTerminal::start(folder.path(), &arguments);
            chat.wait_for(newest.as_bytes()).saturating_duration_since(began)
        })
        .collect()
}

fn measured(keys: u32, streams: bool) -> Vec<Duration> {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime");
    let (_simulator, url) = serve(&runtime);
    let folder = tempfile::tempdir().expect("a folder");
    let mut chat = at_chat(&url, folder.path());
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

//! Two long synthetic sessions with corrections, one in English and one in German: what matters is said now and then,
//! between calls that read and run things.

use greenroom_kernel::{
    AssistantMessage, Block, EntryKind, Message, Part, StopReason, ToolCall, ToolResult, ToolStatus,
};

use super::sessions::Session;

/// How many calls stand between two scenes.
const CALLS_BETWEEN: usize = 7;
/// How many words a file that is read has.
const WORDS: usize = 420;

/// What is said or done at one point.
#[derive(Clone, Copy)]
enum Scene {
    User(&'static str),
    Model(&'static str),
    /// A command, its output, and whether it failed.
    Ran(&'static str, &'static str, bool),
}

use Scene::{Model, Ran, User};

const HARBOUR: [Scene; 26] = [
    User(
        "Build the gauge service. Please never touch anything under legacy/, and don't add a new dependency for the parsing.",
    ),
    Ran("cargo build", "error[E0502]: cannot borrow `gauges` as mutable\n --> src/gauge/parser.rs:31", true),
    Model("I'll change src/gauge/parser.rs so that it takes the gauges by value."),
    Ran("cargo build", "Finished dev in 3.1 s", false),
    User(
        "One more thing: every error must be a typed HarbourError. The protocol is described at https://harbour.example/protocol/v3.",
    ),
    Model("The line is read twice because the checksum covers the header too."),
    User("No, the depth is in centimetres, not in metres."),
    Model("Fixed: the depth is kept in centimetres. There are 37 gauges in config/berths.toml."),
    Ran("./serve", "thread 'flush' panicked at src/flush.rs:88:9:\nslot taken", true),
    Model("The root cause is that the ring buffer overwrites its oldest slot before the flush."),
    User("The flush should take at most 250 ms. And the public function names should stay as they are."),
    Ran("git commit -am flush", "[main 9f3c2ab] Flush before the slot is reused", false),
    Model("The overflow is fixed in 9f3c2ab."),
    User("Actually use version 3 of the protocol, I was wrong about version 2."),
    Model("I decided to keep the tides in a B-tree keyed by minute instead of a vector."),
    User("Fine. From now on each commit must build on its own."),
    Ran("cargo test", "test result: ok. 64 passed; fixtures from tests/fixtures/spring_tide.csv", false),
    Model("The parser is finished and all 64 tests pass."),
    User("Next the alarm. And always store times in UTC."),
    Ran("env", "HARBOUR_LISTEN_PORT=7070\nHOME=/home/harbour", false),
    Model("Not yet done: the alarm still needs a test for two gauges at once."),
    User("Go on with the export."),
    Model("The export is blocked until the berth list is complete."),
    User("Then look at the berths first."),
    Model("I am reading config/berths.toml now."),
    User("Go on."),
];

const HAFEN: [Scene; 24] = [
    User(
        "Bau den Pegeldienst. Fass auf keinen Fall etwas unter altbestand/ an, und bitte keine neue Abhängigkeit für das Lesen der Pegel.",
    ),
    Ran("cargo build", "error[E0308]: mismatched types\n --> src/pegel/leser.rs:12", true),
    Model("Ich ändere src/pegel/leser.rs, damit die Typen stimmen."),
    Ran("cargo build", "Finished dev in 2.8 s", false),
    User(
        "Noch etwas: Jeder Fehler muss ein PegelFehler sein. Das Protokoll steht unter https://hafen.example/protokoll/3.",
    ),
    Model("Es gibt 52 Pegel in config/liegeplaetze.toml."),
    User("Nein, die Tiefe ist in Zentimetern, nicht in Metern."),
    Model("Die Tiefe steht jetzt in Zentimetern."),
    Ran("./dienst", "thread 'schreiben' panicked at src/schreiben.rs:41:5:\nPlatz belegt", true),
    Model("Die Ursache: der Ringpuffer überschreibt den ältesten Platz vor dem Schreiben."),
    User(
        "Ein Schreibvorgang darf höchstens 300 ms dauern, und die öffentlichen Namen bleiben, wie sie sind.",
    ),
    Ran("git commit -am ueberlauf", "[main 7ab31c0] Erst schreiben, dann wiederverwenden", false),
    Model("Behoben in 7ab31c0."),
    User("Doch lieber Fassung 3 des Protokolls, Fassung 2 war mein Irrtum."),
    Model("Ich habe mich für einen B-Baum nach Minuten entschieden."),
    User("Gut. Zeiten immer in UTC speichern."),
    Ran("cargo test", "test result: ok. 41 passed; Daten aus tests/daten/springtide.csv", false),
    Model("Der Leser ist fertig, alle 41 Prüfungen laufen durch."),
    User("Jetzt der Alarm."),
    Ran("env", "HAFEN_PORT=7071\nHOME=/home/hafen", false),
    Model("Offen ist noch eine Prüfung des Alarms mit zwei Pegeln. Der Alarm liegt in src/alarm.rs."),
    User("Weiter mit dem Export."),
    Model("Ich lese die Liegeplätze."),
    User("Weiter."),
];

/// Returns a synthetic session; `None` if it has no such name.
pub(super) fn read(name: &str) -> Option<Session> {
    let (scenes, words): (&[Scene], [&str; 8]) = match name {
        "synthetic_harbour" => {
            (&HARBOUR, ["tide", "berth", "let", "gauge", "match", "level", "return", "quay"])
        }
        "synthetic_hafen" => {
            (&HAFEN, ["Tide", "Liegeplatz", "let", "Pegel", "match", "Stand", "Mole", "Kai"])
        }
        _ => return None,
    };
    let mut kinds = Vec::new();
    let mut calls = 0;
    for scene in scenes {
        match scene {
            User(text) => kinds.push(EntryKind::message(Message::user(*text))),
            Model(text) => kinds.push(says(vec![Part::Text((*text).to_owned())], StopReason::Stop)),
            Ran(command, output, failed) => {
                let arguments = serde_json::json!({ "command": command }).to_string();
                call(&mut kinds, &mut calls, "bash", arguments, (*output).to_owned(), *failed);
            }
        }
        for _ in 0..CALLS_BETWEEN {
            let file = calls;
            let arguments = serde_json::json!({ "path": format!("src/part_{file}.rs") }).to_string();
            let text: Vec<String> = (0..WORDS)
                .map(|at| {
                    let word = words[(at * 7 + file * 3) % words.len()];
                    if at % 9 == 8 { format!("{word}\n") } else { word.to_owned() }
                })
                .collect();
            call(&mut kinds, &mut calls, "read", arguments, text.join(" "), false);
        }
    }
    Some(Session::of(kinds))
}

fn says(content: Vec<Part>, stop: StopReason) -> EntryKind {
    EntryKind::message(Message::Assistant(AssistantMessage::new(content, "recorded", "recorded", stop)))
}

fn call(
    kinds: &mut Vec<EntryKind>,
    calls: &mut usize,
    name: &str,
    arguments: String,
    output: String,
    failed: bool,
) {
    let id = format!("call-{calls}");
    *calls += 1;
    let part = Part::ToolCall(ToolCall { id: id.clone(), name: name.to_owned(), arguments });
    kinds.push(says(vec![part], StopReason::ToolCalls));
    kinds.push(EntryKind::message(Message::ToolResult(ToolResult {
        call_id: id,
        tool_name: name.to_owned(),
        content: vec![Block::Text(output)],
        status: if failed { ToolStatus::Error } else { ToolStatus::Ok },
        touched: Vec::new(),
    })));
}

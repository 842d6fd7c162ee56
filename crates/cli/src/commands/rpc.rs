//! `greenroom rpc`: the runtime for other programs, as JSON-RPC on standard input and output.
//!
//! Invariants: only the protocol is written to standard output, in complete lines; if a host has the store,
//! requests are passed to it, and to the next one if it ends, or handled here if there is none; requests that
//! a host left open are answered anyway; a silent host is named on standard error, and awaited; when the
//! command ends, runs in progress are interrupted cleanly.

use std::cell::{Cell, RefCell};
use std::sync::Arc;

use anyhow::Result;
use greenroom::{Delivery, EventType, Filter};
use greenroom_server::operations::ClientKind;
use greenroom_server::{LINE_BYTES_MAX, Unanswered};
use greenroom_terminal::Interrupts;
use serde_json::json;
use tokio::io::{
    AsyncBufRead, AsyncBufReadExt as _, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _, BufReader,
};
use tokio::sync::mpsc;

use crate::agent::choice;
use crate::agent::{self, Stay};
use crate::args::{Global, RpcArgs};
use crate::host::{self, Answering, Patience, RawConnection, Setup, Who};

/// How many bytes may be on their way to the runtime in this process.
const PIPE_BYTES: usize = 1 << 16;
/// The message to the program when its host has ended.
const NEXT_HOST: &str = "the host has ended; further requests go to the next one, and sessions must be started again \
    before their events are sent";

/// A piece of standard input: a line, or a part of one that is too long.
struct Piece {
    bytes: Vec<u8>,
    part: Part,
}

/// The part of a line.
enum Part {
    Whole,
    /// The start of a line that is too long.
    Beginning,
    Rest,
}

/// Runs the command until standard input ends or it is interrupted: through the host, if one has the store.
pub(crate) async fn run(global: &Global, args: &RpcArgs) -> Result<u8> {
    let mut args = RpcArgs { model: args.model.clone() };
    choice::complete(global, &mut args.model).await?;
    let args = &args;
    let interrupts = Interrupts::new()?;
    let patience = Some(Patience::to_the_end(global));
    let who = Who {
        kind: ClientKind::Run,
        agent: Some(&args.model),
        checks_server: false,
        patience,
        last_valid: None,
    };
    let mut said = standard_input();
    let mut is_next = false;
    loop {
        let reaching = async {
            match global.no_host {
                true => Ok(None),
                false => host::reach_raw(global, &who).await,
            }
        };
        let line = tokio::select! {
            biased;
            () = interrupts.next() => return Ok(0),
            line = reaching => line?,
        };
        if std::mem::replace(&mut is_next, true) {
            tell_of_next_host().await?;
        }
        let Some(RawConnection { input, output, warnings, watch: _watch }) = line else {
            return serve(global, args, &interrupts, said).await;
        };
        warnings.iter().try_for_each(|warning| agent::warn(global, warning))?;
        let is_over = tokio::select! {
            biased;
            // The end of the connection aborts its runs.
            () = interrupts.next() => return Ok(0),
            is_over = hand_on(input, output, &mut said) => is_over?,
        };
        if is_over {
            return Ok(0);
        }
    }
}

/// Reads standard input until it ends.
fn standard_input() -> mpsc::Receiver<Piece> {
    let (pieces, said) = mpsc::channel(1);
    tokio::spawn(async move {
        let mut input = BufReader::new(tokio::io::stdin());
        let mut is_new = true;
        while let Some(bytes) = piece(&mut input).await {
            let is_whole = bytes.ends_with(b"\n") || (bytes.len() as u64) < LINE_BYTES_MAX;
            let part = match (is_new, is_whole) {
                (true, true) => Part::Whole,
                (true, false) => Part::Beginning,
                (false, _) => Part::Rest,
            };
            let piece = Piece { part, bytes };
            is_new = is_whole;
            if pieces.send(piece).await.is_err() {
                return;
            }
        }
    });
    said
}

/// Returns the next line, or as much of it as is examined. An input that cannot be read counts as ended.
async fn piece(input: &mut (impl AsyncBufRead + Unpin)) -> Option<Vec<u8>> {
    let mut bytes = Vec::new();
    let read = input.take(LINE_BYTES_MAX).read_until(b'\n', &mut bytes).await;
    read.is_ok_and(|count| count > 0).then_some(bytes)
}

/// Tells the program that another host gets its requests.
async fn tell_of_next_host() -> Result<()> {
    let told = json!({ "jsonrpc": "2.0", "method": "client/warning", "params": { "message": NEXT_HOST } });
    say(&format!("{told}\n")).await
}

async fn say(text: &str) -> Result<()> {
    let mut out = tokio::io::stdout();
    out.write_all(text.as_bytes()).await?;
    Ok(out.flush().await?)
}

/// Passes input to a host, and its output to standard output. Returns whether everything is done; otherwise
/// the host has ended, and the callers were told.
async fn hand_on(
    mut input: impl AsyncBufRead + Unpin,
    mut output: impl AsyncWrite + Unpin,
    said: &mut mpsc::Receiver<Piece>,
) -> Result<bool> {
    let (unanswered, is_over) = (RefCell::new(Unanswered::default()), Cell::new(false));
    let asking = async {
        while let Some(Piece { bytes, part }) = said.recv().await {
            match part {
                Part::Whole => unanswered.borrow_mut().asks(&bytes),
                Part::Beginning => unanswered.borrow_mut().asks_too_much(&bytes),
                Part::Rest => {}
            }
            if output.write_all(&bytes).await.is_err() {
                // The task that reads from the host detects its end.
                std::future::pending::<()>().await;
            }
        }
        is_over.set(true);
        let _ = output.shutdown().await;
        std::future::pending::<()>().await;
    };
    let hearing = async {
        let mut out = tokio::io::stdout();
        let mut line = Vec::new();
        loop {
            line.clear();
            // An incomplete line is dropped.
            if input.read_until(b'\n', &mut line).await.is_err() || !line.ends_with(b"\n") {
                return anyhow::Ok(());
            }
            unanswered.borrow_mut().hears(&line);
            out.write_all(&line).await?;
            out.flush().await?;
        }
    };
    tokio::select! {
        () = asking => {}
        heard = hearing => heard?,
    }
    for line in unanswered.into_inner().host_ended() {
        say(&format!("{line}\n")).await?;
    }
    Ok(is_over.get())
}

/// Holds the store in this process, and serves other commands too. The program is served directly, and not as a
/// client of this host, because problems of its configuration must be events of its sessions.
async fn serve(
    global: &Global,
    args: &RpcArgs,
    interrupts: &Interrupts,
    mut said: mpsc::Receiver<Piece>,
) -> Result<u8> {
    let setup = Setup::new(global, &args.model, Stay::Unwatched).await?;
    let answering = Answering::begin(global, &setup.runtime)?.part_of("greenroom rpc");
    let agent = Arc::new(setup.agent.clone());
    let (mut near, far) = tokio::io::duplex(PIPE_BYTES);
    tokio::spawn(async move {
        // The receiver may be gone; the end of this task ends its input.
        while let Some(piece) = said.recv().await {
            if near.write_all(&piece.bytes).await.is_err() {
                return;
            }
        }
    });
    let served = greenroom_server::serve(&setup.runtime, agent, far, tokio::io::stdout());
    let mut begun = setup.runtime.subscribe(Filter::all().kinds([EventType::RunStart]));
    let noting = async {
        while let Some(delivery) = begun.next().await {
            note(&setup, delivery).await;
        }
    };
    let result = tokio::select! {
        biased;
        () = interrupts.next() => Ok(()),
        () = answering.must_end() => Ok(()),
        result = served => result,
        () = noting => Ok(()),
    };
    while let Some(delivery) = begun.try_next() {
        note(&setup, delivery).await;
    }
    answering.end(setup.runtime, async {}).await?;
    result?;
    Ok(0)
}

/// Notes the folder of a session that was started here. A session without a noted folder is found by its id.
async fn note(setup: &Setup, delivery: Delivery) {
    if let Delivery::Event(event) = delivery
        && let Ok(session) = setup.runtime.session(&event.session).await
    {
        let _ = setup.note_folder(&session).await;
    }
}

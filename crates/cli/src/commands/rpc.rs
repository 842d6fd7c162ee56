//! `greenroom rpc`: the runtime for other programs, as JSON-RPC on standard input and output.
//!
//! Invariants: only the protocol is written to standard output, in complete lines; if a host has the store,
//! requests are passed to it, and to the next one if it ends, or handled here if there is none; requests that
//! a host left open are answered anyway; a silent host is named on standard error, and awaited; when the input ends
//! or the command is interrupted, runs in progress are interrupted cleanly, and open requests get their answers and
//! outcomes, after an interruption within [`END_MAX`]; a second interruption ends the process.

use std::cell::{Cell, RefCell};
use std::sync::Arc;
use std::time::Duration;

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
use tokio::time::Instant;

use crate::agent::choice;
use crate::agent::{self, Stay};
use crate::args::{Global, RpcArgs};
use crate::host::own::END_MAX;
use crate::host::{self, Answering, Patience, RawConnection, Setup, Who};

/// How many bytes may be on their way to the runtime in this process.
const PIPE_BYTES: usize = 1 << 16;
/// How long the outcomes of open requests are awaited after an interruption, so that there is time left to end.
const OUTCOMES_MAX: Duration = END_MAX.saturating_sub(Duration::from_secs(2));
/// How long the program may take to read the answers that a host did not give.
const READ_MAX: Duration = Duration::from_secs(1);
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
        if hand_on(input, output, &mut said, &interrupts).await? {
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

/// Passes input to a host until that ends or this command is interrupted, and the host's output to standard output.
/// Returns whether everything is done; otherwise the host has ended, and the callers were told.
async fn hand_on(
    mut input: impl AsyncBufRead + Unpin,
    mut output: impl AsyncWrite + Unpin,
    said: &mut mpsc::Receiver<Piece>,
    interrupts: &Interrupts,
) -> Result<bool> {
    let (unanswered, is_over) = (RefCell::new(Unanswered::default()), Cell::new(false));
    let asking = async {
        let passing = async {
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
        };
        let is_interrupted = tokio::select! {
            biased;
            () = interrupts.next() => true,
            () = passing => false,
        };
        is_over.set(true);
        // The host aborts the runs of this connection, and sends their outcomes before it closes it.
        let _ = output.shutdown().await;
        if !is_interrupted {
            std::future::pending::<()>().await;
        }
        tokio::time::sleep(OUTCOMES_MAX).await;
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
    let telling = async {
        for line in unanswered.into_inner().host_ended() {
            say(&format!("{line}\n")).await?;
        }
        anyhow::Ok(())
    };
    if is_over.get() {
        tokio::time::timeout(READ_MAX, telling).await.unwrap_or(Ok(()))?;
        return Ok(true);
    }
    telling.await?;
    Ok(false)
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
    // The end of this task ends the input.
    let feeding = tokio::spawn(async move {
        while let Some(piece) = said.recv().await {
            if near.write_all(&piece.bytes).await.is_err() {
                return;
            }
        }
    });
    let runtime = setup.runtime.clone();
    let served = greenroom_server::serve(&runtime, agent, far, tokio::io::stdout());
    tokio::pin!(served);
    let mut begun = setup.runtime.subscribe(Filter::all().kinds([EventType::RunStart]));
    let noting = async {
        while let Some(delivery) = begun.next().await {
            note(&setup, delivery).await;
        }
    };
    let must_end = async {
        tokio::select! {
            () = interrupts.next() => {}
            () = answering.must_end() => {}
        }
    };
    let result = tokio::select! {
        biased;
        () = must_end => None,
        result = &mut served => Some(result),
        () = noting => None,
    };
    let asked = Instant::now();
    let result = match result {
        Some(result) => result,
        None => {
            feeding.abort();
            // Whoever does not read the outcomes in time misses them.
            tokio::time::timeout_at(asked + OUTCOMES_MAX, served).await.unwrap_or(Ok(()))
        }
    };
    while let Some(delivery) = begun.try_next() {
        note(&setup, delivery).await;
    }
    answering.end_by(setup.runtime, asked + END_MAX).await?;
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

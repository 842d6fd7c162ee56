//! `greenroom rpc`: the runtime for other programs, JSON-RPC on standard input and output.
//!
//! Invariants: nothing but the protocol goes to standard output; when it is to end, running runs are interrupted in
//! order.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::Result;
use greenroom::{Delivery, EventType, Filter};
use greenroom_server::ClientError;
use greenroom_server::operations::ClientKind;
use tokio::io::{AsyncWriteExt as _, BufReader};
use tokio::net::unix::{OwnedReadHalf, OwnedWriteHalf};

use crate::host::{self, Answering, Line, Who};
use crate::interrupt::Interrupts;
use crate::options::{Global, RpcArgs};
use crate::setup::{self, Setup, Stay};

/// Runs it, until standard input ends or it is interrupted: at the host, where one has the store.
pub(crate) async fn run(global: &Global, args: &RpcArgs) -> Result<u8> {
    let interrupts = Interrupts::new()?;
    let who = Who { kind: ClientKind::Run, agent: Some(&args.model), checks_server: false, patience: None };
    let line = if global.no_host { None } else { host::reach_line(global, &who).await? };
    if let Some(Line { input, output, warnings }) = line {
        warnings.iter().try_for_each(|warning| setup::warn(global, warning))?;
        return tokio::select! {
            biased;
            // The end of the connection aborts the runs that it began.
            () = interrupts.next() => Ok(0),
            handed_on = hand_on(input, output) => handed_on,
        };
    }
    let setup = Setup::new(global, &args.model, Stay::Unwatched).await?;
    let answering = Answering::begin(global, &setup.runtime)?.part_of("greenroom rpc");
    let agent = Arc::new(setup.agent.clone());
    let served = greenroom_server::serve(&setup.runtime, agent, tokio::io::stdin(), tokio::io::stdout());
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

/// Hands on what comes from standard input to a host, and its answers to standard output.
async fn hand_on(mut input: BufReader<OwnedReadHalf>, mut output: OwnedWriteHalf) -> Result<u8> {
    let is_over = Arc::new(AtomicBool::new(false));
    let said_all = Arc::clone(&is_over);
    let saying = tokio::spawn(async move {
        let mut said = tokio::io::stdin();
        // A host that is gone is found where it is read from.
        let _ = tokio::io::copy(&mut said, &mut output).await;
        said_all.store(true, Ordering::SeqCst);
        let _ = output.shutdown().await;
    });
    let heard = tokio::io::copy_buf(&mut input, &mut tokio::io::stdout()).await;
    saying.abort();
    heard?;
    tokio::io::stdout().flush().await?;
    match is_over.load(Ordering::SeqCst) {
        true => Ok(0),
        false => Err(ClientError::Disconnected.into()),
    }
}

/// Notes the folder of a session that was begun here. One that cannot be noted is found by its id.
async fn note(setup: &Setup, delivery: Delivery) {
    if let Delivery::Event(event) = delivery
        && let Ok(session) = setup.runtime.session(&event.session).await
    {
        let _ = setup.note_folder(&session).await;
    }
}

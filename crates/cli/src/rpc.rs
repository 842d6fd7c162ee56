//! `greenroom rpc`: the runtime for other programs, JSON-RPC on standard input and output.
//!
//! Invariants: nothing but the protocol goes to standard output; when it is to end, running runs are interrupted in
//! order.

use std::sync::Arc;

use anyhow::Result;
use greenroom::{Delivery, EventType, Filter};

use crate::host::Answering;
use crate::interrupt::Interrupts;
use crate::options::{Global, RpcArgs};
use crate::setup::{Setup, Stay};

/// Runs it, until standard input ends or it is interrupted.
pub(crate) async fn run(global: &Global, args: &RpcArgs) -> Result<u8> {
    let interrupts = Interrupts::new()?;
    let setup = Setup::new(global, &args.model, Stay::Unwatched).await?;
    let answering = Answering::begin(global, &setup.runtime)?;
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

/// Notes the folder of a session that was begun here. One that cannot be noted is found by its id.
async fn note(setup: &Setup, delivery: Delivery) {
    if let Delivery::Event(event) = delivery
        && let Ok(session) = setup.runtime.session(&event.session).await
    {
        let _ = setup.note_folder(&session).await;
    }
}

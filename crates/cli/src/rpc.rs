//! `greenroom rpc`: the runtime for other programs, JSON-RPC on standard input and output.
//!
//! Invariants: nothing but the protocol goes to standard output; when it is to end, running runs are interrupted in
//! order.

use std::sync::Arc;

use anyhow::Result;

use crate::host::Answering;
use crate::interrupt::Interrupts;
use crate::options::{Global, RpcArgs};
use crate::setup::{self, Setup, Stay};

/// Runs it, until standard input ends or it is interrupted.
pub(crate) async fn run(global: &Global, args: &RpcArgs) -> Result<u8> {
    let interrupts = Interrupts::new()?;
    let setup = Setup::new(global, &args.model, Stay::Unwatched).await?;
    let answering = Answering::begin(global, &setup.runtime)?;
    let agent = Arc::new(setup.agent.clone());
    let served = greenroom_server::serve(&setup.runtime, agent, tokio::io::stdin(), tokio::io::stdout());
    let result = tokio::select! {
        biased;
        () = interrupts.next() => Ok(()),
        result = served => result,
    };
    drop(answering);
    setup::end(setup.runtime, async {}).await?;
    result?;
    Ok(0)
}

//! `greenroom rpc`: the runtime for other programs, JSON-RPC on standard input and output.
//!
//! Always true: nothing but the protocol goes to standard output.

use std::sync::Arc;

use anyhow::Result;

use crate::options::{Global, RpcArgs};
use crate::setup::Setup;

/// Runs it, until standard input ends.
pub(crate) async fn run(global: &Global, args: &RpcArgs) -> Result<u8> {
    let setup = Setup::new(global, &args.model).await?;
    let agent = Arc::new(setup.agent.clone());
    greenroom_server::serve(&setup.runtime, agent, tokio::io::stdin(), tokio::io::stdout()).await?;
    setup.runtime.shutdown().await?;
    Ok(0)
}

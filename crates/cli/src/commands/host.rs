//! `greenroom host`: holds the store for all terminals until it is not needed.
//!
//! Invariants: the process that started it reads one line: that it is ready, or why not; it ends by itself
//! when no client is connected and no work is in progress.

use std::time::Duration;

use anyhow::Result;
use greenroom::Runtime;
use greenroom_terminal::{ColorChoice, Interrupts, Screen};

use crate::args::{Global, HostArgs};
use crate::host::{self, Answering, Nobody, READY, Terms, own};
use crate::{agent, error};

/// Runs the host until it is not needed.
pub(crate) async fn run(global: &Global, args: &HostArgs) -> Result<u8> {
    // It belongs to no terminal. If it already leads a group, it was started by hand.
    let _ = rustix::process::setsid();
    if args.stop {
        return host::stop(global, args.force).await;
    }
    match begin(global, args).await {
        Ok(code) => Ok(code),
        Err(error) => {
            if !Screen::stdout(ColorChoice::Never).is_terminal() {
                // The starting process reads this as the reason.
                tell_starter(&format!("{} {}", error::exit_code(&error), error::line(&error)));
            }
            Err(error)
        }
    }
}

async fn begin(global: &Global, args: &HostArgs) -> Result<u8> {
    host::check_possible().map_err(|reason| error::usage(format!("there is no host here: {reason}")))?;
    let interrupts = Interrupts::new()?;
    let terms = match Terms::told(args) {
        Some(terms) => terms,
        // Only the user's own file is used: each client may be in another folder.
        None => {
            let terms = Terms::of(&agent::config(global)?.own);
            Terms { idle_s: args.idle.unwrap_or(terms.idle_s), ..terms }
        }
    };
    let idle_s = terms.idle_s;
    let builder = Runtime::builder()
        .redactor(crate::error::secrets::redactor().clone())
        .provider(std::sync::Arc::new(Nobody))
        .data_dir(agent::data_dir(global)?);
    let builder = builder.inputs_max(terms.inputs_max).live_sessions_max(terms.live_sessions_max);
    let builder = builder.retention(terms.retention.policy());
    // Limits by label are those of the user's own file, whoever starts the host.
    let limits = agent::config(global).map(|loaded| loaded.own.limits).unwrap_or_default();
    let builder = limits.by_label(builder);
    let runtime = own::start(global, builder).await?;
    let answering = Answering::begin(global, &runtime)?;
    if Screen::stdout(ColorChoice::Never).is_terminal() {
        let line =
            format!("The host answers; it ends after {idle_s} s without clients and work, or with Ctrl-C.");
        Screen::stdout(global.color).line(line)?;
    } else {
        tell_starter(READY);
    }
    tracing::info!("the host answers; it ends after {idle_s} s without clients and work");
    tokio::select! {
        biased;
        () = interrupts.next() => {}
        () = answering.gone.notified() => {}
        () = answering.host.idle(Duration::from_secs(idle_s)) => {}
    }
    answering.end(runtime, async {}).await?;
    tracing::info!("the host has ended");
    Ok(0)
}

/// Writes the only line to the starting process.
fn tell_starter(text: &str) {
    let _ = Screen::stdout(ColorChoice::Never).line(text);
    // The starting process waits for the end of this output. Nothing else is ever written to it.
    if let Ok(null) = std::fs::OpenOptions::new().write(true).open("/dev/null") {
        let _ = rustix::stdio::dup2_stdout(&null);
    }
}

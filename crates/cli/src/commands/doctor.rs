//! `greenroom doctor`: checks what a chat needs, and says how to repair what is broken.
//!
//! Invariants: nothing is changed, nothing but MCP servers is started, nothing that is created stays, and no model is
//! called; each problem comes with its remedy.

use std::io::{self, ErrorKind, Write as _};
use std::path::Path;
use std::time::Duration;

use anyhow::Result;
use greenroom::provider::Provider as _;
use greenroom_files::private;
use greenroom_kernel::FailureClass;
use greenroom_mcp::Connection;
use greenroom_terminal::screen::one_line;
use greenroom_terminal::{Look, Row, Screen, format};
use greenroom_tools::builtin::bash::Helper;
use serde::Serialize;

use crate::agent::choice::{self, Choice};
use crate::agent::mcp::connect_those;
use crate::agent::server::Server;
use crate::agent::{self, local};
use crate::args::{DoctorArgs, Global, ModelArgs};
use crate::commands::serve::tokens;
use crate::config::surroundings::Surroundings;
use crate::config::{Loaded, kept_keys};
use crate::error;
use crate::host::{self, source};

/// The checks of a cluster.
mod cluster;

/// How long the server may take to list its models.
const LISTED_WITHIN: Duration = Duration::from_secs(5);

/// The size of the file that is written to check the store's disk, in bytes: about what a step of a run writes.
const WRITTEN_BYTES: usize = 64 * 1024;

/// What to do about a damaged store.
pub(super) const DAMAGED_REMEDY: &str = "`greenroom store check` lists what is lost; restore a backup, or let sessions \
    continue without it with `greenroom store accept-loss`";

/// The result of one check.
#[derive(Debug, Serialize)]
struct Check {
    /// What was checked.
    check: &'static str,
    ok: bool,
    /// What was found.
    found: String,
    /// What to do about it.
    #[serde(skip_serializing_if = "Option::is_none")]
    remedy: Option<String>,
}

impl Check {
    fn ok(check: &'static str, found: impl Into<String>) -> Self {
        Self { check, ok: true, found: found.into(), remedy: None }
    }

    fn bad(check: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { check, ok: false, found: found.into(), remedy: Some(remedy.into()) }
    }
}

/// Runs the command. The exit code is not 0 if something needs repair.
pub(crate) async fn run(global: &Global, args: &DoctorArgs) -> Result<u8> {
    let here = Surroundings::here();
    let mut checks = Vec::new();
    if !args.cluster {
        checks.extend(of_machine(global, args, &here).await?);
    }
    checks.extend(cluster::checks(args, &here).await);
    let mut screen = Screen::stdout(global.color);
    if args.json {
        screen.pretty_json(&checks)?;
    } else {
        for check in &checks {
            show(&mut screen, check)?;
        }
    }
    Ok(if checks.iter().all(|check| check.ok) { 0 } else { error::USAGE })
}

/// The checks of this machine: its configuration, its model's server, its store and its host.
async fn of_machine(global: &Global, args: &DoctorArgs, here: &Surroundings) -> Result<Vec<Check>> {
    let mut checks = Vec::new();
    match agent::load_config(global, here) {
        Ok(loaded) => {
            checks.push(configuration(&loaded));
            checks.extend(kept_keys::problem().map(|problem| {
                Check::bad(
                    "kept keys",
                    problem,
                    "repair the file, or remove it and run `greenroom login` again",
                )
            }));
            checks.extend(server(global, args, &loaded, here).await?);
            checks.push(sandbox(global, &loaded, here).await?);
            checks.extend(mcp_servers(&loaded, here).await);
            checks.extend(serve(global, &loaded, here).await?);
        }
        Err(error) => {
            checks.push(Check::bad("configuration", error::line(&error), "`greenroom config edit` opens it"))
        }
    }
    checks.push(store(global).await);
    checks.push(host(global).await);
    Ok(checks)
}

fn show(screen: &mut Screen, check: &Check) -> Result<()> {
    let (mark, look) = if check.ok { ("✓", Look::GOOD) } else { ("✗", Look::BAD) };
    let found = check.found.lines().map(str::trim).collect::<Vec<_>>().join(" ");
    screen.line(
        Row::new(mark, look).and(&format!(" {}: {}", check.check, one_line(&found, 400)), Look::PLAIN),
    )?;
    for remedy in check.remedy.iter().flat_map(|remedy| remedy.lines()) {
        screen.line(Row::styled(Look::DIM, format!("  {remedy}")))?;
    }
    Ok(())
}

fn configuration(loaded: &Loaded) -> Check {
    let files: Vec<String> = loaded.files.iter().map(|file| file.display().to_string()).collect();
    let files = if files.is_empty() { "no file; the defaults apply".to_owned() } else { files.join(", ") };
    match &*loaded.warnings {
        [] => Check::ok("configuration", files),
        warnings => Check::bad("configuration", files, warnings.join("\n")),
    }
}

/// Checks the key, the server, and the model.
async fn server(
    global: &Global,
    args: &DoctorArgs,
    loaded: &Loaded,
    here: &Surroundings,
) -> Result<Vec<Check>> {
    let mut model = ModelArgs { server: args.server.clone(), ..ModelArgs::bare() };
    let choice = choice::complete(global, &mut model).await?;
    let named = agent::named_model(&model, here);
    let asked = named.as_deref().unwrap_or(&loaded.config.model).to_owned();
    let own_model = named.as_deref().unwrap_or(&loaded.own.model);
    let server = Server::chosen(loaded, &args.server, own_model, true, here)?;
    let name = server.name().unwrap_or("given by its address");
    let address = format!("{name}, {}", server.base_url());
    if choice == Choice::NoKey {
        let found = local::running_now();
        let running =
            found.first().map(|found| format!("\n{} runs here: --base-url {}", found.name, found.address));
        let remedy = format!("`greenroom login` stores one{}", running.unwrap_or_default());
        return Ok(vec![Check::bad("key", format!("none for {name}"), remedy)]);
    }
    let provider = match server.provider(&args.server, true, &agent::data_dir(global)?) {
        Ok(provider) => provider,
        Err(error) => return Ok(vec![Check::bad("key", error::line(&error), "see above")]),
    };
    let served = match tokio::time::timeout(LISTED_WITHIN, provider.served()).await {
        Ok(Ok(served)) => served,
        Ok(Err(error)) if error.failure.class == FailureClass::Auth => {
            let remedy = format!("`greenroom login {name}` stores another key");
            return Ok(vec![Check::bad("key", format!("{name} refuses it: {}", error.failure), remedy)]);
        }
        Ok(Err(error)) => {
            let remedy = match local::usual_name(server.base_url()) {
                Some(program) => format!("check that {program} is running"),
                None => "check that the server is running and its address is correct".to_owned(),
            };
            return Ok(vec![Check::bad("server", format!("{address}: {}", error.failure), remedy)]);
        }
        Err(_) => {
            return Ok(vec![Check::bad("server", format!("{address} does not answer"), "check its address")]);
        }
    };
    let mut checks = vec![Check::ok(
        "server",
        format!("{address} lists {}", format::count(served.models.len() as u64, "model")),
    )];
    checks.push(match choice {
        Choice::OneOf { models, .. } => Check::bad(
            "model",
            "none is chosen",
            format!("`greenroom config set model NAME`: {}", models.join(", ")),
        ),
        Choice::Made | Choice::NoKey | Choice::NotListed { .. }
            if served.models.is_empty() || served.find(&asked).is_some() =>
        {
            Check::ok("model", asked)
        }
        Choice::Made | Choice::NoKey | Choice::NotListed { .. } => Check::bad(
            "model",
            format!("{asked} is not in the server's list"),
            "`greenroom models` shows the list; `greenroom config set model NAME` chooses one",
        ),
    });
    Ok(checks)
}

/// Checks what protects the user from commands of the model.
async fn sandbox(global: &Global, loaded: &Loaded, here: &Surroundings) -> Result<Check> {
    let closed = agent::closed(global, here)?;
    let sandbox = loaded.config.sandbox.sandbox(None, &here.folder(), closed, here);
    let has_helper = Helper::this_program().is_ok();
    Ok(match tokio::task::spawn_blocking(move || sandbox.check(has_helper)).await? {
        Ok(protection) => {
            let found = format!("{:?}", protection.mode()).to_lowercase();
            match protection.gaps() {
                gaps if gaps.is_empty() => Check::ok("sandbox", found),
                gaps => Check::ok("sandbox", format!("{found}; {}", gaps.join("; "))),
            }
        }
        Err(reason) => {
            Check::bad("sandbox", reason, "commands of the model are refused until then; docs/security.md")
        }
    })
}

/// Checks each MCP server.
async fn mcp_servers(loaded: &Loaded, here: &Surroundings) -> Vec<Check> {
    let connected = connect_those(&loaded.config, |_, _| true, &here.folder(), here).await;
    let check = |(name, connected): (&str, Result<Connection, String>)| match connected {
        Ok(connection) => {
            let count = format::count(connection.tools().len() as u64, "tool");
            Check::ok("MCP server", format!("{name}: {count}"))
        }
        Err(reason) => {
            let remedy = format!(
                "chats and runs start without its tools; `greenroom config set mcp_servers.{name}.enabled false` \
                                  turns it off"
            );
            Check::bad("MCP server", reason, remedy)
        }
    };
    connected.into_iter().map(check).collect()
}

/// Checks the tokens of `serve`, if there are any.
async fn serve(global: &Global, loaded: &Loaded, here: &Surroundings) -> Result<Option<Check>> {
    let path = agent::data_dir(global)?.join(agent::TOKEN_FILE);
    Ok(match tokens::check(&path, &loaded.config.serve.tokens, here).await {
        Ok(0) => None,
        Ok(count) => Some(Check::ok("serve", format::count(count as u64, "token"))),
        Err(error) => {
            Some(Check::bad("serve", error::line(&error), "`greenroom serve` does not start until then"))
        }
    })
}

async fn store(global: &Global) -> Check {
    let dir = match agent::data_dir(global) {
        Ok(dir) => dir,
        Err(error) => return Check::bad("store", error::line(&error), "name another one with --data-dir"),
    };
    let looked = source::look(global, async |source| source.damage().await).await;
    let shown = dir.display();
    match looked {
        Ok(None) => Check::ok("store", format!("{shown} does not exist yet; the first session creates it")),
        Ok(Some(damage)) if damage.is_empty() => match try_to_write(&dir) {
            Ok(()) => Check::ok("store", shown.to_string()),
            Err(error) => Check::bad("store", format!("{shown} cannot be written: {error}"), remedy(&error)),
        },
        Ok(Some(damage)) => Check::bad("store", format!("{shown}: {}", damage.join("; ")), DAMAGED_REMEDY),
        Err(error) => Check::bad("store", error::line(&error), "`greenroom store check` shows details"),
    }
}

/// Writes a file beside those of the store, whoever has that open, and removes it.
fn try_to_write(dir: &Path) -> io::Result<()> {
    let path = dir.join(format!(".doctor-{}", std::process::id()));
    let written = private::create_new(&path)
        .and_then(|mut file| file.write_all(&[0; WRITTEN_BYTES]).and_then(|()| file.sync_all()));
    match (written, std::fs::remove_file(&path)) {
        (Err(error), _) | (Ok(()), Err(error)) => Err(error),
        (Ok(()), Ok(())) => Ok(()),
    }
}

/// Returns what to do if the store's directory cannot be written.
fn remedy(error: &io::Error) -> &'static str {
    let kind = error.kind();
    if matches!(kind, ErrorKind::StorageFull | ErrorKind::QuotaExceeded) {
        "free some space, or name a directory on another disk with --data-dir; `greenroom prune --dry-run` lists old sessions"
    } else if kind == ErrorKind::ReadOnlyFilesystem {
        "mount its file system for writing, or name another directory with --data-dir"
    } else if kind == ErrorKind::PermissionDenied {
        "make the directory yours with chown and chmod, or name another one with --data-dir"
    } else {
        "check its disk, or name another directory with --data-dir"
    }
}

async fn host(global: &Global) -> Check {
    if let Err(reason) = host::check_possible() {
        return Check::ok("host", format!("none is used: {reason}"));
    }
    match host::reach_to_look(global).await {
        Ok(Some(_)) => Check::ok("host", "one is running"),
        Ok(None) => Check::ok("host", "none is running; `chat` and `run` start one"),
        Err(error) => Check::bad("host", error::line(&error), "`greenroom host --stop --force` ends it"),
    }
}

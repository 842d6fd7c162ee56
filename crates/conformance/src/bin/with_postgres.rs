//! Runs a command with a PostgreSQL server of its own, whose URL the command finds in `GREENROOM_TEST_POSTGRES`:
//! `cargo run -p greenroom-conformance --bin with_postgres -- cargo nextest run -p greenroom-tests --test it`.

use std::process::{Command, ExitCode};

use greenroom_conformance::server::Server;

#[expect(clippy::print_stderr, reason = "a program says what it lacks")]
fn main() -> ExitCode {
    let mut arguments = std::env::args_os().skip(1);
    let Some(program) = arguments.next() else {
        eprintln!("usage: with_postgres COMMAND [ARGUMENT]...");
        return ExitCode::from(2);
    };
    let Some(server) = Server::start() else { return ExitCode::SUCCESS };
    let status = Command::new(program).args(arguments).env("GREENROOM_TEST_POSTGRES", server.url()).status();
    match status {
        Ok(status) => ExitCode::from(u8::try_from(status.code().unwrap_or(1)).unwrap_or(1)),
        Err(error) => {
            eprintln!("error: the command does not start: {error}");
            ExitCode::from(2)
        }
    }
}

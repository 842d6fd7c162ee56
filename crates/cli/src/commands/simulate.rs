//! `greenroom simulate`: a scripted model behind the APIs of OpenAI, Anthropic and Google, for tests of clients in any
//! language.
//!
//! Invariants: the first line on standard output is the base URL, and nothing else is printed there; it uses
//! no store, configuration or key. It ends when it is interrupted, and says whether the script and the client
//! agreed.

use std::net::SocketAddr;
use std::path::Path;

use anyhow::{Context as _, Result};
use greenroom::serde_json::Value;
use greenroom_files as files;
use greenroom_simulator::{
    Answer, Echo, Fault, ListForm, Pace, Point, RetryAfter, Rule, ScriptedModel, Simulator, SimulatorOptions,
};
use greenroom_terminal::{Interrupts, Screen};
use serde::Deserialize;

use crate::args::{Global, SimulateArgs};
use crate::error::{FAILED, usage};

/// The largest script, in bytes.
const SCRIPT_BYTES_MAX: u64 = 16 << 20;

/// A script file.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
struct ScriptFile {
    /// The answers, in the order of the calls.
    #[serde(default)]
    answers: Vec<AnswerSpec>,
    /// The model's name in the list of models.
    model: Option<String>,
    /// The window, in tokens.
    window: Option<u64>,
}

/// One answer of a script.
#[derive(Debug, Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct AnswerSpec {
    text: String,
    reasoning: String,
    /// Tool calls.
    calls: Vec<CallSpec>,
    /// A fault, instead of the answer or with it.
    fault: Option<FaultName>,
    /// The status of `fault: server_error`.
    status: Option<u16>,
    /// How long `fault: rate_limited` asks the client to wait, in seconds.
    retry_after_s: Option<u64>,
    /// The time before the first piece, in milliseconds.
    after_ms: u64,
    /// The time between two pieces, in milliseconds.
    between_ms: u64,
    /// The number of pieces of the answer.
    pieces: Option<usize>,
    /// Text that the newest user message must contain.
    expect_user: Option<String>,
    /// The required result of a tool.
    expect_tool_result: Option<ExpectedResult>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct CallSpec {
    tool: String,
    #[serde(default)]
    arguments: Option<Value>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct ExpectedResult {
    tool: String,
    contains: String,
}

/// The faults, by name.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(rename_all = "snake_case")]
enum FaultName {
    RateLimited,
    ServerError,
    Loading,
    Refused,
    Reset,
    Stall,
    EmptyStream,
    ErrorEvent,
    EofBeforeFinish,
    Malformed,
    Overflow,
}

impl AnswerSpec {
    fn answer(self) -> Answer {
        let mut answer = Answer::text(self.text).with_reasoning(self.reasoning);
        for CallSpec { tool, arguments } in self.calls {
            answer =
                answer.and_call(tool, &arguments.unwrap_or_else(|| Value::Object(serde_json::Map::new())));
        }
        let chunks = self.pieces.unwrap_or(Pace::default().chunks).max(1);
        answer = answer.with_pace(Pace { chunks, first_ms: self.after_ms, between_ms: self.between_ms });
        if let Some(text) = self.expect_user {
            answer = answer.expect_user(text);
        }
        if let Some(ExpectedResult { tool, contains }) = self.expect_tool_result {
            answer = answer.expect_tool_result(tool, contains);
        }
        answer = answer.without_locations();
        let Some(fault) = self.fault else { return answer };
        if answer.text.is_empty() && answer.calls.is_empty() {
            answer.text = "this answer is only partial".to_owned();
        }
        let retry_after = self.retry_after_s.map_or(RetryAfter::Missing, RetryAfter::Seconds);
        answer.with_fault(match fault {
            FaultName::RateLimited => Fault::RateLimited(retry_after),
            FaultName::ServerError => Fault::ServerError(self.status.unwrap_or(500)),
            FaultName::Loading => Fault::Loading,
            FaultName::Refused => Fault::Refused,
            FaultName::Reset => Fault::Reset(Point::MidStream),
            FaultName::Stall => Fault::Stall { at: Point::MidStream, ping_every_ms: None, for_ms: None },
            FaultName::EmptyStream => Fault::EmptyStream,
            FaultName::ErrorEvent => Fault::ErrorEvent,
            FaultName::EofBeforeFinish => Fault::EofBeforeFinish,
            FaultName::Malformed => Fault::MalformedSse,
            FaultName::Overflow => Fault::Overflow(greenroom_simulator::ErrorDialect::default()),
        })
    }
}

/// Serves the model until it is interrupted.
pub(crate) async fn run(global: &Global, args: &SimulateArgs) -> Result<u8> {
    let file = match &args.script {
        Some(path) => read_script(path)?,
        None => ScriptFile::default(),
    };
    let mut answers: Vec<Answer> = file.answers.into_iter().map(AnswerSpec::answer).collect();
    answers.extend(args.say.iter().map(Answer::text));
    let change = |options: &mut SimulatorOptions| {
        options.model = args.model.clone().or(file.model).unwrap_or_else(|| options.model.clone());
        options.window = args.window.or(file.window).unwrap_or(options.window);
        if args.window.or(file.window).is_some() {
            // A window that is chosen is told, as vLLM does.
            options.list = ListForm::Vllm;
        }
        options.require_key.clone_from(&args.require_key);
        options.tolerates = Rule::ACCEPTED_BY_SERVERS;
        options.counts_tokens = true;
    };
    let interrupts = Interrupts::new()?;
    if answers.is_empty() {
        let mut options = SimulatorOptions::new(Echo);
        change(&mut options);
        serve(global, args.listen, &Simulator::new(options), "it echoes its input", &interrupts).await?;
        return Ok(0);
    }
    let about =
        format!("its script has {} answer{}", answers.len(), if answers.len() == 1 { "" } else { "s" });
    let model = ScriptedModel::new(answers).options(change);
    serve(global, args.listen, model.simulator(), &about, &interrupts).await?;
    let problems = model.problems();
    let mut screen = Screen::stderr(global.color);
    for problem in &problems {
        screen.line(format!("- {problem}"))?;
    }
    Ok(if problems.is_empty() { 0 } else { FAILED })
}

async fn serve(
    global: &Global,
    listen: SocketAddr,
    simulator: &Simulator,
    about: &str,
    interrupts: &Interrupts,
) -> Result<()> {
    let server = simulator.serve_at(listen).await.with_context(|| format!("listen on {listen}"))?;
    let url = server.base_url();
    Screen::stdout(global.color).line(url.to_string())?;
    let key = simulator.options().require_key.as_deref().unwrap_or("any");
    let mut screen = Screen::stderr(global.color);
    screen.line(format!("A simulated model serves at this address; {about}. Ctrl-C ends it."))?;
    screen.line(format!("  export OPENAI_BASE_URL={url} OPENAI_API_KEY={key}"))?;
    screen
        .line(format!("  export ANTHROPIC_BASE_URL=http://{} ANTHROPIC_API_KEY={key}", server.address()))?;
    interrupts.next().await;
    server.stop().await;
    screen.line(format!("{} calls", simulator.calls()))?;
    Ok(())
}

fn read_script(path: &Path) -> Result<ScriptFile> {
    let shown = path.display();
    let bytes =
        files::read(path, SCRIPT_BYTES_MAX).map_err(|error| usage(format!("--script {shown}: {error}")))?;
    let text = String::from_utf8(bytes).map_err(|_| usage(format!("--script {shown}: not valid UTF-8")))?;
    let file: ScriptFile =
        serde_norway::from_str(&text).map_err(|error| usage(format!("--script {shown}: {error}")))?;
    if file.answers.is_empty() {
        return Err(usage(format!(
            "--script {shown}: it has no `answers`; `greenroom simulate --help` shows a script"
        )));
    }
    Ok(file)
}

#[cfg(test)]
mod tests;

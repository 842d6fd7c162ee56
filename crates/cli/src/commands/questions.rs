//! `greenroom questions` and `greenroom answer`: questions of tools to people.
//!
//! Invariants: listing changes nothing, and works while a program uses the store; an answer is in the log
//! before the command reports it. No model is called: the waiting run continues when the program with its
//! tools opens the session.

use anyhow::Result;
use greenroom::{EntryId, GivenAnswer, PendingQuestion, QuestionKind, Runtime, State};
use greenroom_server::Client;
use greenroom_server::operations::{AnswerQuestion, ListQuestions};
use greenroom_simulator::Simulator;
use greenroom_store::{Store, StoreError};
use greenroom_terminal::screen::variable;
use greenroom_terminal::{Look, Row, Screen};
use serde_json::{Value, json};

use crate::agent::{self, ask_user};
use crate::args::{AnswerArgs, Global, QuestionsArgs};
use crate::error;
use crate::host::{self, link, source, stored};

/// Lists the questions, oldest first.
pub(crate) async fn list(global: &Global, args: &QuestionsArgs) -> Result<u8> {
    let mut screen = Screen::stdout(global.color);
    let given = args.session.as_deref();
    let listed = source::look(global, async |source| source.questions(global, given).await).await?;
    let (mut questions, code) = match (listed, given) {
        (Some(listed), _) => listed,
        (None, Some(given)) => return Err(StoreError::NotFound { session: given.to_owned() }.into()),
        (None, None) => (Vec::new(), 0),
    };
    questions.sort_by_key(|question| question.asked_at_ms);
    for question in &questions {
        if args.json {
            screen.json(question)?;
        } else {
            show(&mut screen, question)?;
        }
    }
    if questions.is_empty() && !args.json {
        screen.line("No open questions.")?;
    }
    Ok(code)
}

/// Says how an answered run continues if no program is performing it.
fn goes_on(state: &State, id: &str) -> String {
    match ask_user::is_all_that_waits(state) {
        true => format!("Answered. The run continues in a chat at a terminal: `greenroom resume {id}`."),
        false => "Answered. The run continues when the program with its tools opens the session.".to_owned(),
    }
}

/// Answers a question.
pub(crate) async fn answer(global: &Global, args: &AnswerArgs) -> Result<u8> {
    if !agent::data_dir(global)?.exists() {
        return Err(StoreError::NotFound { session: args.session.clone() }.into());
    }
    let known = async |host: &Client| {
        let session_id = link::resolve_known(host, &args.session).await?;
        let listed = host.call(ListQuestions { session_id: Some(session_id.clone()) }).await?;
        Ok((session_id, listed.questions))
    };
    if let Some((host, (session_id, questions))) = host::reach_to_change_and(global, known).await? {
        return answer_at(global, &host, args, session_id, questions).await;
    }
    let store = stored::store(global).await.map_err(|error| match error::is_store_in_use(&error) {
        true => error.context("the program that uses the store must be given the answer"),
        false => error,
    })?;
    let id = stored::resolve_known(&store, &args.session)?;
    let runtime = without_agents(store).await?;
    let result = give(&runtime, &id, args).await;
    runtime.shutdown().await?;
    let state = result?;
    let mut screen = Screen::stdout(global.color);
    if args.json {
        screen.pretty_json(&json!({ "session_id": id, "question_id": args.question }))?;
    } else {
        screen.line(goes_on(&state, &id))?;
    }
    Ok(0)
}

/// Answers a question through the host that has the store.
async fn answer_at(
    global: &Global,
    host: &Client,
    args: &AnswerArgs,
    session_id: String,
    questions: Vec<PendingQuestion>,
) -> Result<u8> {
    let question_id = EntryId(args.question);
    let asked = questions.into_iter().find(|asked| asked.id == question_id);
    let value = value(asked.as_ref().map(|asked| &asked.question.kind), args)?;
    let by = args.by.clone().or_else(|| variable("USER"));
    host.call(AnswerQuestion { session_id: session_id.clone(), question_id, value, by }).await?;
    let mut screen = Screen::stdout(global.color);
    if args.json {
        screen.pretty_json(&json!({ "session_id": session_id, "question_id": args.question }))?;
    } else {
        screen.line("Answered. The run continues, at once if the program with its tools is running.")?;
    }
    Ok(0)
}

/// Records the answer. Returns the session's state afterwards.
async fn give(runtime: &Runtime, id: &str, args: &AnswerArgs) -> Result<State> {
    let session = runtime.session(id).await?;
    let question = EntryId(args.question);
    let asked = session.questions().await?.into_iter().find(|asked| asked.id == question);
    let value = value(asked.as_ref().map(|asked| &asked.question.kind), args)?;
    let mut answer = GivenAnswer::from(value);
    answer.by = args.by.clone().or_else(|| variable("USER"));
    session.answer(question, answer).await?;
    Ok(session.state().await?)
}

/// Converts the answer into the form that the question requires.
fn value(kind: Option<&QuestionKind>, args: &AnswerArgs) -> Result<Value> {
    // The session refuses an answer to a closed question, and knows how it ended.
    Ok(match kind {
        Some(QuestionKind::Form { .. }) => serde_json::from_str(&args.value)
            .map_err(|error| error::usage(format!("the answer to a form must be JSON: {error}")))?,
        Some(QuestionKind::Choice { several: true, .. }) => {
            serde_json::from_str(&args.value).unwrap_or_else(|_| Value::from(args.value.as_str()))
        }
        Some(QuestionKind::Text | QuestionKind::Choice { several: false, .. } | _) | None => {
            Value::from(args.value.as_str())
        }
    })
}

/// Starts a runtime over the store in which no session has an agent. The model is never called.
async fn without_agents(store: Store) -> Result<Runtime> {
    Ok(Runtime::builder().provider(Simulator::echo().provider()).store(store).start().await?)
}

fn show(screen: &mut Screen, question: &PendingQuestion) -> Result<()> {
    let head = format!("{} {}  {}", question.session, question.id, question.tool);
    screen.line(Row::styled(Look::DIM, head))?;
    screen.line(format!("  {}", question.question.text))?;
    if let Some(details) = &question.question.details {
        details.lines().try_for_each(|line| screen.line(format!("  {line}")))?;
    }
    screen.line(Row::styled(Look::DIM, format!("  {}", wanted(&question.question.kind))))?;
    Ok(())
}

/// Describes the possible answers in one line.
pub(crate) fn wanted(kind: &QuestionKind) -> String {
    match kind {
        QuestionKind::Choice { choices, several: false } => format!("one of: {}", choices.join(", ")),
        QuestionKind::Choice { choices, several: true } => {
            format!("some of, as a JSON list: {}", choices.join(", "))
        }
        QuestionKind::Form { schema } => format!("JSON as this schema says: {schema}"),
        QuestionKind::Text | _ => "any text".to_owned(),
    }
}

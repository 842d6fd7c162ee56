//! `greenroom questions` and `greenroom answer`: questions of tools to people.
//!
//! Invariants: listing changes nothing, and works while a program uses the store; an answer is in the log
//! before the command reports it; at a terminal, what an answer approves is shown and confirmed first. No model is called: the waiting run continues when the program with its
//! tools opens the session.

use anyhow::Result;
use greenroom::{Approved, EntryId, GivenAnswer, PendingQuestion, Question, QuestionKind, State};
use greenroom_server::Client;
use greenroom_server::operations::{AnswerQuestion, GetState, ListQuestions};
use greenroom_terminal::screen::variable;
use greenroom_terminal::{Look, Row, Screen, approvals};
use serde_json::{Value, json};

use crate::agent::{self, ask_user};
use crate::args::{AnswerArgs, Global, QuestionsArgs};
use crate::commands::confirm;
use crate::error;
use crate::host::{self, Changes, source};

/// Lists the questions, oldest first.
pub(crate) async fn list(global: &Global, args: &QuestionsArgs) -> Result<u8> {
    let mut screen = Screen::stdout(global.color);
    let given = args.session.as_deref();
    let listed = source::look(global, async |source| source.questions(global, given).await).await?;
    let (mut questions, code) = match (listed, given) {
        (Some(listed), _) => listed,
        (None, Some(given)) => return Err(host::not_found(given)),
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
        return Err(host::not_found(&args.session));
    }
    let known = async |client: &Client| {
        let session_id = host::resolve_known(client, &args.session).await?;
        let listed = client.call(ListQuestions { session_id: Some(session_id.clone()) }).await?;
        Ok((session_id, listed.questions))
    };
    let opened = Changes::open_and(global, known).await;
    let (changes, (session_id, questions)) =
        opened.map_err(|error| match error::is_store_in_use(&error) {
            true => error.context("give the answer to the program that uses the store"),
            false => error,
        })?;
    let asked = questions.iter().find(|asked| asked.id == EntryId(args.question));
    let given = match is_meant(global, args, asked).await {
        Ok(true) => give(&changes, args, &session_id, asked).await.map(Some),
        Ok(false) => Ok(None),
        Err(error) => Err(error),
    };
    changes.end().await?;
    let Some(text) = given? else {
        Screen::stderr(global.color).line("Not answered.")?;
        return Ok(error::FAILED);
    };
    let mut screen = Screen::stdout(global.color);
    if args.json {
        screen.pretty_json(&json!({ "session_id": session_id, "question_id": args.question }))?;
    } else {
        screen.line(text)?;
    }
    Ok(0)
}

/// Shows the call that an answer would approve, and asks whether the user means it. Only at a terminal: a program has
/// read the question.
async fn is_meant(global: &Global, args: &AnswerArgs, asked: Option<&PendingQuestion>) -> Result<bool> {
    let mut screen = Screen::stderr(global.color);
    let is_approval = |asked: &&PendingQuestion| matches!(asked.question.kind, QuestionKind::Approval { .. });
    let Some(asked) = asked.filter(is_approval).filter(|_| confirm::can_ask(&screen)) else {
        return Ok(true);
    };
    show(&mut screen, asked)?;
    let approved = GivenAnswer::from(args.value.as_str()).approved();
    if args.yes || !matches!(approved, Some(Approved::Once | Approved::Always)) {
        return Ok(true);
    }
    confirm::agrees(&mut screen, &format!("Answer {:?}?", args.value)).await
}

/// Records the answer. Returns how the run continues.
async fn give(
    changes: &Changes,
    args: &AnswerArgs,
    id: &str,
    asked: Option<&PendingQuestion>,
) -> Result<String> {
    let (session_id, question_id) = (id.to_owned(), EntryId(args.question));
    let value = value(asked.map(|asked| &asked.question.kind), args)?;
    let by = args.by.clone().or_else(|| variable("USER"));
    let answer = AnswerQuestion { session_id: session_id.clone(), question_id, value, by };
    changes.client.call(answer).await?;
    if changes.is_host() {
        return Ok(
            "Answered. The run continues, at once if the program with its tools is running.".to_owned()
        );
    }
    Ok(goes_on(&changes.client.call(GetState { session_id }).await?, id))
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

fn show(screen: &mut Screen, question: &PendingQuestion) -> Result<()> {
    let head = format!("{} {}  {}", question.session, question.id, question.tool);
    screen.line(Row::styled(Look::DIM, head))?;
    let Question { text, details, kind, .. } = &question.question;
    if let QuestionKind::Approval { approval } = kind {
        for row in approvals::lines(text, approval, true).iter().flat_map(|line| line.rows(usize::MAX)) {
            screen.line(Row::plain("  ").then(row))?;
        }
    } else {
        screen.line(format!("  {text}"))?;
    }
    if let Some(details) = details {
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
        QuestionKind::Form { schema } => format!("JSON that matches this schema: {schema}"),
        QuestionKind::Approval { approval } => approval.answers().to_owned(),
        QuestionKind::Text | _ => "any text".to_owned(),
    }
}

//! `greenroom show`: prints a stored session.
//!
//! Invariants: the intact parts of a damaged session are shown, with a note about the missing ones; nothing
//! is changed.

use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use anyhow::Result;
use greenroom::internal::call_cost;
use greenroom::{Compacted, CompactionRecord, QuestionEnd};
use greenroom_kernel::compactions;
use greenroom_kernel::entry::{ChildStage, CompactionOutcome, Entry, EntryId, EntryKind};
use greenroom_kernel::message::{Block, blocks_text};
use greenroom_kernel::path::{ActivePath, path_to};
use greenroom_kernel::size::Estimator;
use greenroom_kernel::usage::{ContextUsage, Measured, Ratio, Reports, Window, WindowSource, measure};
use greenroom_kernel::{AssistantMessage, Message, Part, RunOutcome, StopReason, ToolResult, ToolStatus};
use greenroom_server::operations::Said;
use greenroom_terminal::screen::one_line;
use greenroom_terminal::{Look, Row, Screen, format, time};
use serde_json::json;

use crate::args::{Global, ShowArgs};
use crate::commands::tree;
use crate::error;
use crate::host::source::{self, Stored};

impl Stored {
    /// Returns the path to the leaf; all remaining entries if a part of it is lost.
    pub(crate) fn path(&self) -> Vec<Arc<Entry>> {
        path_to(&self.entries, self.summary.leaf).unwrap_or_else(|_| self.entries.clone())
    }

    fn context(&self) -> ContextUsage {
        let tokens = self.summary.context_tokens;
        let measured = measure(&self.path(), Estimator::Classes, 0, Ratio::default(), Reports::Believed);
        let usage_tokens = measured.usage_tokens.min(tokens);
        // The source of the window was recorded with the last run.
        let source = self.entries.iter().rev().find_map(|entry| {
            if let EntryKind::RunEnded { context, .. } = &entry.kind {
                Some(context.window_source)
            } else {
                None
            }
        });
        let source = source.unwrap_or(WindowSource::Unknown);
        ContextUsage::new(
            Measured { usage_tokens, trailing_tokens: tokens - usage_tokens },
            Window { tokens: self.summary.context_window, source },
        )
    }

    /// Returns what the compactions did, oldest first.
    fn compactions(&self) -> Vec<CompactionRecord> {
        compactions::list(&self.entries, self.summary.leaf, &call_cost())
    }

    /// Returns the path to the leaf, oldest first: messages, calls, and the compactions that replaced older
    /// parts in the model's view.
    pub(crate) fn conversation(&self) -> Vec<Said> {
        self.path().iter().filter_map(|entry| Said::of(entry)).collect()
    }

    /// Returns the first entry that the model sees verbatim, and the compaction that replaces those before
    /// it.
    fn kept_from(&self) -> Option<(EntryId, EntryId)> {
        let path = self.path();
        let entry = path.get(ActivePath::of(&path).compaction?)?;
        Some((entry.kind.as_compaction()?.first_kept?, entry.id))
    }

    fn losses(&self) -> Vec<String> {
        losses(&self.lost, self.summary.lost_from)
    }

    /// Prints to standard error what a command's output lacks, and returns its exit code.
    pub(crate) fn say_losses(&self, global: &Global) -> Result<u8> {
        let losses = self.losses();
        if !losses.is_empty() {
            Screen::stderr(global.color).line(format!(
                "greenroom: session {} is damaged: {} cannot be read; the intact part is shown",
                self.summary.id,
                losses.join(", ")
            ))?;
        }
        // Damage of the store itself was reported when it was opened.
        Ok(if losses.is_empty() && !self.is_uncertain { 0 } else { error::STORE })
    }

    /// Returns the input in the inbox, oldest first.
    pub(crate) fn waiting(&self) -> Vec<&Arc<Entry>> {
        self.entries.iter().filter(|entry| self.inbox.contains(&entry.id)).collect()
    }
}

/// Describes lost entries. `quarantined_from` is the first lost entry of a quarantined session.
pub(crate) fn losses(lost: &[(EntryId, EntryId)], quarantined_from: Option<EntryId>) -> Vec<String> {
    let ranges = lost.iter().map(|(from, until)| {
        let last = until.0.saturating_sub(1);
        if from.0 == last { format!("entry {from}") } else { format!("entries {from} to {last}") }
    });
    let mut losses: Vec<String> = ranges.collect();
    if losses.is_empty()
        && let Some(from) = quarantined_from
    {
        losses.push(format!("the entries from {from} on"));
    }
    losses
}

/// Runs the command.
pub(crate) async fn run(global: &Global, args: &ShowArgs) -> Result<u8> {
    if args.tree {
        return tree::run(global, args).await;
    }
    let stored = Stored::read(global, &args.id).await?;
    let losses = stored.losses();
    let mut screen = Screen::stdout(global.color);
    if let Some(number) = args.compaction {
        compaction(&mut screen, &stored, number, args.json)?;
    } else if args.json {
        let mut value = json!({
            "id": stored.summary.id,
            "title": stored.summary.shown_title(),
            "labels": stored.summary.labels,
            "model": stored.summary.model,
            "state": source::state(&stored.summary, stored.used),
            "entries": stored.summary.entries,
            "context": stored.context(),
            "compactions": stored.compactions(),
            "conversation": stored.conversation(),
        });
        if !losses.is_empty() {
            value["lost"] = json!(stored.lost.iter().map(|(from, until)| [from, until]).collect::<Vec<_>>());
        }
        screen.pretty_json(&value)?;
    } else {
        conversation(&mut screen, &stored)?;
    }
    stored.say_losses(global)
}

/// Shows all about one compaction. `number` counts from the oldest; 0 stands for the newest.
fn compaction(screen: &mut Screen, stored: &Stored, number: u64, as_json: bool) -> Result<()> {
    let count = stored.compactions().len() as u64;
    let wanted = if number == 0 { count } else { number };
    let found = compactions::details(&stored.entries, stored.summary.leaf, wanted, &call_cost());
    let Some(found) = found else {
        let id = &stored.summary.id;
        anyhow::bail!(match count {
            0 => format!("session {id} has no compactions"),
            1 => format!("session {id} has 1 compaction, and no number {number}"),
            _ => format!("session {id} has {count} compactions, and no number {number}"),
        });
    };
    if as_json {
        return Ok(screen.pretty_json(&json!(found))?);
    }
    Ok(screen.line(greenroom_terminal::compactions::details(&found).join("\n"))?)
}

fn conversation(screen: &mut Screen, stored: &Stored) -> Result<()> {
    let summary = &stored.summary;
    let id = &summary.id;
    screen.line(Row::styled(Look::BOLD, id.as_str()).then(format!(
        "  {}, {}, {}, {}, {}",
        one_line(&summary.model, 40),
        format::count(summary.entries, "entry"),
        format::fill(&stored.context()),
        format::count(summary.compactions, "compaction"),
        source::state(summary, stored.used),
    )))?;
    let dates = format!(
        "begun {}, last {}",
        time::rfc3339(summary.created_at_ms),
        time::rfc3339(summary.updated_at_ms)
    );
    let dates = Row::styled(Look::DIM, &dates);
    screen.line(dates)?;
    let path: HashSet<EntryId> = stored.path().iter().map(|entry| entry.id).collect();
    let mut elsewhere = 0_u64;
    let mut results: HashMap<&str, &ToolResult> = HashMap::new();
    for entry in &stored.entries {
        if let Some(Message::ToolResult(result)) = entry.kind.as_message().map(|message| &**message) {
            results.insert(&result.call_id, result);
        }
    }
    let kept_from = stored.kept_from();
    let mut losses = stored.lost.iter().peekable();
    for entry in &stored.entries {
        while let Some((from, until)) = losses.next_if(|(from, _)| *from < entry.id) {
            let text = format!("── {} entries are lost here ──", until.0 - from.0);
            let text = Row::styled(Look::BAD, &text);
            screen.line(text)?;
        }
        if entry.kind.is_on_path() && !path.contains(&entry.id) {
            elsewhere += 1;
            continue;
        }
        if let Some((_, summary)) = kept_from.filter(|(first_kept, _)| *first_kept == entry.id) {
            let text = format!("the model sees the summary of entry {summary} instead of the messages above");
            mark(screen, Look::NOTE, &text)?;
        }
        show_entry(screen, entry, &results)?;
    }
    for (from, until) in losses {
        let text = Row::styled(Look::BAD, format!("── {} entries are lost here ──", until.0 - from.0));
        screen.line(text)?;
    }
    if elsewhere > 0 {
        screen.line("")?;
        let text = format!("{elsewhere} entries are on other branches.");
        let text = Row::styled(Look::DIM, &text);
        screen.line(text)?;
    }
    for entry in stored.waiting() {
        if let EntryKind::Inbox { content, .. } = &entry.kind {
            speech(screen, "you, waiting", Look::WARN, &with_images(content))?;
        }
    }
    if summary.has_open_run && summary.questions == 0 && !stored.used.goes_on() {
        screen.line("")?;
        let text = format!(
            "Its newest prompt has no complete answer: /continue in `greenroom chat --session {id}` resumes it."
        );
        let text = Row::styled(Look::WARN, &text);
        screen.line(text)?;
    }
    Ok(())
}

fn show_entry(screen: &mut Screen, entry: &Arc<Entry>, results: &HashMap<&str, &ToolResult>) -> Result<()> {
    #[expect(clippy::wildcard_enum_match_arm, reason = "the others are not shown")]
    match &entry.kind {
        EntryKind::Message { message, .. } => match &**message {
            Message::User(content) => speech(screen, "you", Look::GOOD, &with_images(content)),
            Message::Assistant(assistant) => answer(screen, assistant, results),
            // Shown with its call.
            Message::ToolResult(_) => Ok(()),
        },
        EntryKind::Shell(shell) => speech(screen, "you ran", Look::GOOD, &shell.command),
        EntryKind::Custom(custom) => speech(screen, &custom.kind, Look::GOOD, &with_images(&custom.content)),
        EntryKind::BranchSummary { summary, .. } => {
            speech(screen, "from the previous branch", Look::NOTE, summary)
        }
        EntryKind::CompactionEnded(ended) => {
            // The end of an installed compaction is shown with its own entry, a failure here.
            compacted(
                screen,
                &Compacted::from(&**ended),
                matches!(ended.outcome, CompactionOutcome::Nothing { .. }),
            )
        }
        EntryKind::CompactionUndone { compaction } => {
            mark(screen, Look::NOTE, &format!("compaction {compaction} was undone"))
        }
        EntryKind::ModelChange { provider, model } => {
            mark(screen, Look::DIM, &format!("from here on {model} answers ({provider})"))
        }
        EntryKind::RunEnded { outcome, .. } => match outcome {
            RunOutcome::Aborted => mark(screen, Look::WARN, "the run was aborted"),
            RunOutcome::Interrupted => mark(screen, Look::WARN, "the run was interrupted: its process ended"),
            RunOutcome::Failed(failure) => {
                mark(screen, Look::BAD, &format!("the run failed ({}): {failure}", failure.class))
            }
            RunOutcome::Stopped { reason } => {
                mark(screen, Look::BAD, &format!("the run was stopped: {reason}"))
            }
            RunOutcome::Completed | RunOutcome::Unknown | _ => Ok(()),
        },
        EntryKind::Question(asked) => {
            mark(screen, Look::WARN, &format!("question {}: {}", entry.id, asked.question.text))
        }
        EntryKind::QuestionEnded { question, end } => match end {
            QuestionEnd::Answered(answer) => {
                let by = answer.by.as_ref().map(|by| format!(" by {by}")).unwrap_or_default();
                mark(screen, Look::WARN, &format!("question {question} was answered{by}: {answer}"))
            }
            QuestionEnd::Expired => mark(screen, Look::WARN, &format!("question {question} has expired")),
            QuestionEnd::Withdrawn | _ => {
                mark(screen, Look::WARN, &format!("question {question} was withdrawn"))
            }
        },
        EntryKind::Pin { entry, pinned } => mark(
            screen,
            Look::DIM,
            &format!("entry {entry} was {}", if *pinned { "pinned" } else { "released" }),
        ),
        EntryKind::Child(child) => match &child.stage {
            ChildStage::Started => {
                mark(screen, Look::DIM, &format!("{} works in session {}", child.name, child.session))
            }
            ChildStage::Ended { outcome, .. } => {
                let reason = outcome.reason().map(|reason| format!(": {reason}")).unwrap_or_default();
                mark(screen, Look::DIM, &format!("{} {outcome}{reason}", child.name))
            }
        },
        EntryKind::HandOff(hand_off) => {
            mark(screen, Look::NOTE, &format!("from here on {} answers for {}", hand_off.to, hand_off.from))
        }
        EntryKind::Compaction(compaction) => {
            speech(screen, &format!("summary, entry {}", entry.id), Look::NOTE, &compaction.summary)
        }
        _ => Ok(()),
    }
}

/// Returns the text, and below it a line for each image.
fn with_images(content: &[Block]) -> String {
    let images = content.iter().filter_map(|block| match block {
        Block::Image(image) => {
            // Base64 has four characters for three bytes.
            let bytes = format::bytes(image.data.trim_end_matches('=').len() as u64 * 3 / 4);
            Some(format!("[image: {}, {bytes}]", image.media_type))
        }
        Block::Text(_) | Block::Native(_) | _ => None,
    });
    let text = Some(blocks_text(content)).filter(|text| !text.is_empty());
    text.into_iter().chain(images).collect::<Vec<_>>().join("\n")
}

fn speech(screen: &mut Screen, who: &str, look: Look, text: &str) -> Result<()> {
    screen.line("")?;
    let space = if text.is_empty() { "" } else { " " };
    Ok(screen.line(Row::styled(look, format!("{who} ›")).then(format!("{space}{}", text.trim_end())))?)
}

fn answer(
    screen: &mut Screen,
    assistant: &AssistantMessage,
    results: &HashMap<&str, &ToolResult>,
) -> Result<()> {
    let text = assistant.text();
    if !text.trim().is_empty() {
        speech(screen, "agent", Look::BOLD, text.trim())?;
    }
    for call in assistant.content.iter().filter_map(Part::as_tool_call) {
        let told = format::call(&call.name, &call.arguments, 90);
        let (sign, look, what) = match results.get(call.id.as_str()) {
            None => ("?", Look::WARN, "no result".to_owned()),
            Some(result) => {
                let text = blocks_text(&result.content);
                let lines = match text.lines().next() {
                    // A sentence instead of matches is not one of them.
                    Some("no line matches") => "no match".to_owned(),
                    Some(_) | None => format::count(text.lines().count() as u64, "line"),
                };
                match result.status {
                    ToolStatus::Ok => ("✓", Look::DIM, lines),
                    ToolStatus::Error => ("✗", Look::WARN, one_line(&text, 80)),
                    ToolStatus::Interrupted => ("✗", Look::WARN, "interrupted".to_owned()),
                }
            }
        };
        let line = Row::styled(look, format!("  {sign} {told}  {what}"));
        screen.line(line)?;
    }
    match assistant.stop {
        StopReason::Length => mark(screen, Look::WARN, "the answer reached its length limit"),
        StopReason::ContentFilter => mark(screen, Look::WARN, "the answer was cut by the content filter"),
        StopReason::Aborted => mark(screen, Look::WARN, "the answer was interrupted here"),
        StopReason::Error => {
            let error = assistant.error.as_deref().unwrap_or("the provider failed");
            mark(screen, Look::BAD, &format!("the answer broke off: {error}"))
        }
        StopReason::Stop | StopReason::ToolCalls | StopReason::Unknown | _ => Ok(()),
    }
}

fn compacted(screen: &mut Screen, end: &Compacted, is_nothing: bool) -> Result<()> {
    if is_nothing { Ok(()) } else { mark(screen, Look::NOTE, &format::compaction(end)) }
}

fn mark(screen: &mut Screen, look: Look, text: &str) -> Result<()> {
    let line = Row::styled(look, format!("── {} ──", one_line(text, 200)));
    Ok(screen.line(line)?)
}

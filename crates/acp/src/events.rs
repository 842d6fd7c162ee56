//! The events of a session, as the editor is told of them, and the questions that they ask.
//!
//! Invariants: events are told in their order; a question is asked once, and the request for permission ends with it, or
//! with the connection.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use agent_client_protocol::Client as Editor;
use agent_client_protocol::v1::ConnectionTo;
use agent_client_protocol::v1::schema::{
    ContentChunk, NoticeSeverity, RequestPermissionOutcome, RequestPermissionRequest, SessionId,
    SessionNotification, SessionUpdate,
};
use greenroom::{EntryId, Event, EventKind, Question};
use greenroom_chat::Backend;
use greenroom_kernel::RunOutcome;
use greenroom_server::{Events, Received};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use crate::questions;
use crate::updates::Updates;

/// The connection to the editor, for one session.
#[derive(Clone)]
pub(crate) struct Line {
    pub(crate) editor: ConnectionTo<Editor>,
    pub(crate) session: SessionId,
}

impl Line {
    pub(crate) fn send(&self, updates: impl IntoIterator<Item = SessionUpdate>) {
        for update in updates {
            // Without the editor nobody reads them.
            let _ = self.editor.send_notification(SessionNotification::new(self.session.clone(), update));
        }
    }
}

/// What the turns and the events have in common.
pub(crate) struct Shared {
    pub(crate) updates: Mutex<Updates>,
    /// The question that the next prompt answers.
    pub(crate) asked: Mutex<Option<(EntryId, Question)>>,
    /// Whether the editor has cancelled the turn.
    pub(crate) is_cancelled: AtomicBool,
    pub(crate) title: Mutex<Option<String>>,
}

/// How far the events were told.
#[derive(Debug, Clone, Default)]
pub(crate) struct Progress {
    /// How many runs have ended.
    pub(crate) ended: u64,
    /// How the newest of them ended.
    pub(crate) outcome: Option<RunOutcome>,
    /// How many questions needed words.
    pub(crate) asked: u64,
    /// The newest durable event.
    pub(crate) seen: Option<u64>,
}

/// Sends the events of a session to the editor until the connection ends.
pub(crate) async fn tell(
    mut events: Events,
    backend: Backend,
    line: Line,
    shared: Arc<Shared>,
    folder: PathBuf,
    told: watch::Sender<Progress>,
) {
    // A request for permission ends with its question, and with the connection.
    let mut asking: HashMap<EntryId, AbortOnDropHandle<()>> = HashMap::new();
    let mut seen = None;
    while let Some(received) = events.next().await {
        let events: Vec<Arc<Event>> = match received {
            Received::Event(event) => vec![event],
            Received::Gap { from_seq: Some(from), .. } => {
                let missed = backend.since(from).await.unwrap_or_default();
                missed.into_iter().map(Arc::new).collect()
            }
            Received::Gap { from_seq: None, .. } => continue,
            Received::Warning(text) => {
                let updates = shared.updates.lock().notice(NoticeSeverity::Warning, &text);
                line.send(updates);
                continue;
            }
        };
        for event in events {
            if event.is_durable() {
                // Missed events may come twice.
                if seen.is_some_and(|seen| event.seq <= seen) {
                    continue;
                }
                seen = Some(event.seq);
            }
            let updates = shared.updates.lock().event(&event);
            line.send(updates);
            #[expect(clippy::wildcard_enum_match_arm, reason = "all other events are only shown")]
            match &event.kind {
                EventKind::QuestionAsked { entry_id, call_id, question, .. } => {
                    match questions::asking(call_id, question, &folder) {
                        Some(request) => {
                            let asked = Asked { id: *entry_id, question: question.clone(), asking: request };
                            let task = ask(line.clone(), backend.clone(), Arc::clone(&shared), asked);
                            asking.insert(*entry_id, AbortOnDropHandle::new(tokio::spawn(task)));
                        }
                        None => {
                            say(&line, &questions::in_words(question));
                            *shared.asked.lock() = Some((*entry_id, question.clone()));
                            told.send_modify(|told| told.asked += 1);
                        }
                    }
                }
                EventKind::QuestionEnded { question, .. } => {
                    asking.remove(question);
                    let mut asked = shared.asked.lock();
                    if asked.as_ref().is_some_and(|(id, _)| id == question) {
                        *asked = None;
                    }
                }
                EventKind::RunEnd { outcome, .. } => told.send_modify(|told| {
                    told.ended += 1;
                    told.outcome = Some(outcome.clone());
                }),
                _ => {}
            }
            told.send_if_modified(|told| std::mem::replace(&mut told.seen, seen) != seen);
        }
    }
    let updates = shared.updates.lock().close();
    line.send(updates);
}

/// A question, as it is asked at the editor.
pub(crate) struct Asked {
    pub(crate) id: EntryId,
    pub(crate) question: Question,
    pub(crate) asking: questions::Asking,
}

/// Asks the person at the editor, and has the answer sent.
pub(crate) async fn ask(line: Line, backend: Backend, shared: Arc<Shared>, asked: Asked) {
    let Asked { id, question, asking } = asked;
    let request = RequestPermissionRequest::new(line.session.clone(), asking.call, asking.options);
    let response = line.editor.send_request(request).block_task().await;
    // This task ends with the question, which the answer ends.
    drop(tokio::spawn(async move {
        let problem = match response {
            Ok(response) => match response.outcome {
                RequestPermissionOutcome::Selected(chosen) => {
                    answer(&backend, id, &question, &chosen.option_id.0).await
                }
                RequestPermissionOutcome::Cancelled | _ => Err(None),
            },
            Err(error) => {
                Err(Some(format!("The editor did not answer the request for permission: {}", error.message)))
            }
        };
        // Without an answer that lets the call run, the run ends.
        if let Err(problem) = problem {
            if let Some(problem) = problem {
                let updates = shared.updates.lock().notice(NoticeSeverity::Error, &problem);
                line.send(updates);
            }
            let _ = backend.interrupt().await;
        }
    }));
}

/// Sends the answer of an option.
///
/// # Errors
/// The call does not run; if it was not refused, for this reason.
async fn answer(
    backend: &Backend,
    id: EntryId,
    question: &Question,
    option: &str,
) -> Result<(), Option<String>> {
    let offered = questions::answer(question, option);
    let value =
        offered.ok_or_else(|| Some(format!("The editor chose {option:?}, which was not offered.")))?;
    let refuses = questions::refuses(question, &value);
    backend.answer(id, value, None).await.map_err(|error| Some(error.to_string()))?;
    if refuses { Err(None) } else { Ok(()) }
}

/// Sends a message of the agent that is not part of the conversation.
pub(crate) fn say(line: &Line, text: &str) {
    let chunk = ContentChunk::new(text.to_owned().into());
    line.send([SessionUpdate::AgentMessageChunk(chunk)]);
}

//! Forwards the events of a session to the editor, and asks the person there the questions among them.
//!
//! Invariants: events are forwarded in their order; a question is asked once, and the request to the editor ends with it, or
//! with the connection.

use std::collections::HashMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use agent_client_protocol::Client as Editor;
use agent_client_protocol::v1::ConnectionTo;
use agent_client_protocol::v1::schema::{
    ContentChunk, CreateElicitationRequest, ElicitationAction, ElicitationFormMode, ElicitationSessionScope,
    NoticeSeverity, RequestPermissionOutcome, RequestPermissionRequest, SessionId, SessionNotification,
    SessionUpdate,
};
use greenroom::{EntryId, Event, EventKind, Question};
use greenroom_chat::Backend;
use greenroom_kernel::RunOutcome;
use greenroom_server::{Events, Received};
use parking_lot::Mutex;
use tokio::sync::watch;
use tokio_util::task::AbortOnDropHandle;

use crate::options::{self, Choices};
use crate::questions::{self, Asking};
use crate::updates::{self, Updates};

/// The connection to the editor, for one session.
#[derive(Clone)]
pub(crate) struct EditorChannel {
    pub(crate) editor: ConnectionTo<Editor>,
    pub(crate) session: SessionId,
}

impl EditorChannel {
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
    /// What is chosen for the session now.
    pub(crate) choices: Mutex<Choices>,
}

/// How far the events were forwarded.
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
pub(crate) async fn forward(
    mut received_events: Events,
    backend: Backend,
    channel: EditorChannel,
    shared: Arc<Shared>,
    folder: PathBuf,
    told: watch::Sender<Progress>,
) {
    // A request to the editor ends with its question, and with the connection.
    let mut asking: HashMap<EntryId, AbortOnDropHandle<()>> = HashMap::new();
    let mut seen = told.borrow().seen;
    let has_forms = shared.updates.lock().abilities.forms;
    // An event that was received behind pieces of an answer.
    let mut behind = None;
    while let Some(received) = match behind.take() {
        Some(received) => Some(received),
        None => received_events.next().await,
    } {
        let events: Vec<Arc<Event>> = match received {
            Received::Event(event) => vec![event],
            Received::Gap { from_seq, .. } => {
                shared.updates.lock().gap();
                let Some(from) = from_seq else { continue };
                let missed = backend.since(from).await.unwrap_or_default();
                missed.into_iter().map(Arc::new).collect()
            }
            Received::Warning(text) => {
                let updates = shared.updates.lock().notice(NoticeSeverity::Warning, &text);
                channel.send(updates);
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
            let mut updates = shared.updates.lock().event(&event);
            // Pieces of an answer that have arrived already are sent as one.
            if matches!(event.kind, EventKind::MessageDelta { .. }) {
                while let Some(received) = received_events.try_next() {
                    match received {
                        Received::Event(next) if matches!(next.kind, EventKind::MessageDelta { .. }) => {
                            updates::append(&mut updates, shared.updates.lock().event(&next));
                        }
                        other @ (Received::Event(_) | Received::Gap { .. } | Received::Warning(_)) => {
                            behind = Some(other);
                            break;
                        }
                    }
                }
            }
            channel.send(updates);
            #[expect(clippy::wildcard_enum_match_arm, reason = "all other events are only shown")]
            match &event.kind {
                EventKind::QuestionAsked { entry_id, call_id, question, .. } => {
                    match questions::asking(call_id, question, &folder, has_forms) {
                        Some(request) => {
                            let asked = Asked { id: *entry_id, question: question.clone(), asking: request };
                            let task = ask(channel.clone(), backend.clone(), Arc::clone(&shared), asked);
                            asking.insert(*entry_id, AbortOnDropHandle::new(tokio::spawn(task)));
                        }
                        None => {
                            say(&channel, &questions::in_words(question));
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
                EventKind::ModeChanged { mode } => {
                    if let Ok(mode) = options::mode(mode) {
                        shared.choices.lock().mode = Some(mode);
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
    channel.send(updates);
}

/// A question, as it is asked at the editor.
pub(crate) struct Asked {
    pub(crate) id: EntryId,
    pub(crate) question: Question,
    pub(crate) asking: Asking,
}

/// Asks the person at the editor, and has the answer sent.
pub(crate) async fn ask(channel: EditorChannel, backend: Backend, shared: Arc<Shared>, asked: Asked) {
    let Asked { id, question, asking } = asked;
    let answered = match asking {
        Asking::Permission(call, options) => {
            let request = RequestPermissionRequest::new(channel.session.clone(), call, options);
            let response = channel.editor.send_request(request).block_task().await;
            response.map(|response| match response.outcome {
                RequestPermissionOutcome::Selected(chosen) => {
                    let option = chosen.option_id.0;
                    let wrong = || format!("The editor chose {option:?}, which was not offered.");
                    Some(questions::answer(&question, &option).ok_or_else(wrong))
                }
                RequestPermissionOutcome::Cancelled | _ => None,
            })
        }
        Asking::Form(schema, message) => {
            let scope = ElicitationSessionScope::new(channel.session.clone());
            let form = ElicitationFormMode::new(scope, schema);
            let response =
                channel.editor.send_request(CreateElicitationRequest::new(form, message)).block_task().await;
            response.map(|response| match response.action {
                ElicitationAction::Accept(accepted) => {
                    let wrong = || "The editor's form has no answer.".to_owned();
                    Some(questions::filled(&question, accepted.content).ok_or_else(wrong))
                }
                ElicitationAction::Decline | ElicitationAction::Cancel | _ => None,
            })
        }
    };
    // This task ends with the question, which the answer ends.
    drop(tokio::spawn(async move {
        let problem = match answered {
            Ok(Some(Ok(value))) => {
                let answer = backend.answer(id, value.clone(), None);
                let answered = match questions::refuses(&question, &value) {
                    // The call is denied before the run ends. Until the interruption comes, the run continues.
                    true => tokio::join!(biased; answer, backend.interrupt()).0,
                    false => answer.await,
                };
                match answered {
                    Ok(()) => return,
                    Err(error) => Some(error.to_string()),
                }
            }
            Ok(Some(Err(problem))) => Some(problem),
            Ok(None) => None,
            Err(error) => Some(format!("The editor did not answer the question: {}", error.message)),
        };
        if let Some(problem) = problem {
            let updates = shared.updates.lock().notice(NoticeSeverity::Error, &problem);
            channel.send(updates);
        }
        // Without an answer that lets the call run, the run ends.
        let _ = backend.interrupt().await;
    }));
}

/// Sends a message of the agent that is not part of the conversation.
pub(crate) fn say(channel: &EditorChannel, text: &str) {
    let chunk = ContentChunk::new(text.to_owned().into());
    channel.send([SessionUpdate::AgentMessageChunk(chunk)]);
}

//! Where commands look that show what is stored: at the host, where one has the store, else into the store itself.
//!
//! Invariants: what is given is the same in both cases, so each command has one way of showing it; nothing is changed, made
//! or woken.

use std::sync::Arc;

use anyhow::Result;
use greenroom::questions::list_stored;
use greenroom::{PendingQuestion, Status};
use greenroom_kernel::Head;
use greenroom_kernel::entry::{Entry, EntryId};
use greenroom_server::operations::{CopyHeads, CopySession, FindSession, ListQuestions, StoreLosses};
use greenroom_server::{Client, ClientError, ProblemKind};
use greenroom_store::{SessionCopy, StoreError};
use greenroom_terminal::time;

use super::link::ATTEMPTS;
use super::stored::{self, Looked};
use crate::args::Global;
use crate::error::{self, usage};
use crate::{agent, host};

/// Where to look.
pub(crate) enum Source {
    /// The host that has the store.
    Host(Client),
    /// The store, also where a program has it that cannot be asked.
    Store(Looked),
}

/// All sessions, without their logs.
#[derive(Default)]
pub(crate) struct Heads {
    /// By id.
    pub(crate) sessions: Vec<KnownHead>,
    /// The exit code of a command that tells of all of them.
    pub(crate) code: u8,
}

/// How a session stands.
#[derive(Debug, Clone)]
pub(crate) struct KnownHead {
    pub(crate) id: String,
    pub(crate) head: Head,
    /// Who may be at work on it.
    pub(crate) used: Use,
}

/// Who may be at work on a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    /// Nobody is: what is open in its log was interrupted.
    Nobody,
    /// Whoever has the store may be.
    Somebody,
    /// It is live, and does this.
    Live(Status),
}

impl Use {
    /// Whether what is open in its log may go on.
    pub(crate) fn goes_on(self) -> bool {
        self.open() != "interrupted"
    }

    /// What becomes of work that is open in its log.
    pub(crate) fn open(self) -> &'static str {
        match self {
            Self::Nobody => "interrupted",
            // Its end could not be written: the disk may be full.
            Self::Live(Status::Idle) => "interrupted",
            Self::Live(Status::Waiting) => "waiting",
            Self::Somebody | Self::Live(_) => "running",
        }
    }
}

/// A stored session, as much of it as can be read.
pub(crate) struct Stored {
    /// Its whole id.
    pub(crate) id: String,
    /// What is known of it.
    pub(crate) head: Head,
    /// Its entries, in order.
    pub(crate) entries: Vec<Arc<Entry>>,
    /// The ranges that are lost: the first, and the one after the last.
    pub(crate) lost: Vec<(EntryId, EntryId)>,
    /// Who may be at work on it.
    pub(crate) used: Use,
    /// Whether nobody knows what a damaged part of the journal held: then the newest entries may be missing.
    pub(crate) is_uncertain: bool,
}

impl Stored {
    /// Reads it. `id` may be the beginning of its id.
    pub(crate) async fn read(global: &Global, id: &str) -> Result<Self> {
        let stored = look(global, async |source| source.session(global, id).await).await?;
        stored.ok_or_else(|| StoreError::NotFound { session: id.to_owned() }.into())
    }
}

/// Looks: at the host, or into the store. A host that ends meanwhile is not asked again. `None`: there is no store.
///
/// # Errors
/// Those of `read`; or neither can be looked into.
pub(crate) async fn look<T>(global: &Global, read: impl AsyncFn(&Source) -> Result<T>) -> Result<Option<T>> {
    if !agent::data_dir(global)?.exists() {
        return Ok(None);
    }
    let mut attempt = 1;
    loop {
        let source = Source::open(global).await?;
        let result = read(&source).await;
        if let Source::Store(looked) = source {
            looked.store.close().await?;
        }
        match result {
            Err(error) if attempt < ATTEMPTS && host::is_gone(&error) => attempt += 1,
            Err(error) if host::is_silent(&error) => {
                let source = Source::beside(global, error).await?;
                let result = read(&source).await;
                if let Source::Store(looked) = source {
                    looked.store.close().await?;
                }
                return result.map(Some);
            }
            result => return result.map(Some),
        }
    }
}

impl Source {
    async fn open(global: &Global) -> Result<Self> {
        match host::reach_to_look(global).await {
            Ok(Some(client)) => Ok(Self::Host(client)),
            Ok(None) => Ok(Self::Store(stored::look(global).await?)),
            Err(error) => Self::beside(global, error).await,
        }
    }

    /// The store itself: whoever may read it may do so beside a host that they cannot ask. `error` says why they cannot.
    async fn beside(global: &Global, error: anyhow::Error) -> Result<Self> {
        let looked = match stored::look(global).await {
            Ok(looked) => looked,
            Err(_) => return Err(error),
        };
        if host::is_silent(&error) {
            agent::warn(global, &format!("{}; this is what the store holds", error::line(&error)))?;
        }
        Ok(Self::Store(looked))
    }

    /// All sessions.
    pub(crate) async fn heads(&self, global: &Global) -> Result<Heads> {
        match self {
            Self::Host(client) => {
                let copied = client.call(CopyHeads {}).await?;
                let code = tell(global, &copied.losses)?;
                let sessions = copied.sessions.into_iter().map(|copied| {
                    let head = copied.head()?;
                    Ok(KnownHead { id: copied.id, head, used: used(copied.is_live, copied.status) })
                });
                Ok(Heads { sessions: sessions.collect::<Result<_>>()?, code })
            }
            Self::Store(Looked { store, is_in_use }) => {
                let sessions = store.list()?.into_iter();
                let sessions =
                    sessions.map(|(id, head)| KnownHead { id, head, used: used(*is_in_use, None) });
                Ok(Heads { sessions: sessions.collect(), code: stored::completeness(store) })
            }
        }
    }

    /// A session with its log. `given` may be the beginning of its id.
    pub(crate) async fn session(&self, global: &Global, given: &str) -> Result<Stored> {
        let not_found = |id: String| anyhow::Error::from(StoreError::NotFound { session: id });
        let (id, copy, used, is_uncertain) = match self {
            Self::Host(client) => {
                let id = self.known(given).await?;
                let copied = match client.call(CopySession { session_id: id.clone() }).await {
                    Err(error) if error.kind() == Some(ProblemKind::NoSession) => return Err(not_found(id)),
                    copied => copied?,
                };
                tell(global, &copied.losses)?;
                (id, copied.copy()?, used(copied.is_live, copied.status), copied.losses.is_uncertain)
            }
            Self::Store(Looked { store, is_in_use }) => {
                let id = stored::resolve(store, given)?;
                let copy = store.copy(&id)?.ok_or_else(|| not_found(id.clone()))?;
                (id, copy, used(*is_in_use, None), !store.unknown_losses().is_empty())
            }
        };
        let SessionCopy { head, entries, lost } = copy;
        let entries = entries.into_iter().map(Arc::new).collect();
        Ok(Stored { id, head, entries, lost, used, is_uncertain })
    }

    /// The questions that wait, of one session or of all, and the exit code.
    pub(crate) async fn questions(
        &self,
        global: &Global,
        given: Option<&str>,
    ) -> Result<(Vec<PendingQuestion>, u8)> {
        match self {
            Self::Host(client) => {
                let session_id = match given {
                    Some(given) => Some(self.known(given).await?),
                    None => None,
                };
                let code = match given {
                    Some(_) => 0,
                    None => self.heads(global).await?.code,
                };
                Ok((client.call(ListQuestions { session_id }).await?.questions, code))
            }
            Self::Store(Looked { store, .. }) => {
                let (sessions, code) = match given {
                    Some(given) => (vec![stored::resolve_known(store, given)?], 0),
                    None => {
                        let asks = store.list()?.into_iter().filter(|(_, head)| !head.questions.is_empty());
                        (asks.map(|(id, _)| id).collect(), stored::completeness(store))
                    }
                };
                let (mut questions, now_ms) = (Vec::new(), time::now_ms());
                for session in sessions {
                    questions.extend(list_stored(store, &session, now_ms)?);
                }
                Ok((questions, code))
            }
        }
    }

    /// The id of the session that the user means.
    async fn known(&self, given: &str) -> Result<String> {
        let Self::Host(client) = self else { return Ok(given.to_owned()) };
        match client.call(FindSession { prefix: given.to_owned() }).await {
            Ok(found) => Ok(found.session_id),
            Err(ClientError::Parameters(text)) => Err(usage(text)),
            Err(error) if error.kind() == Some(ProblemKind::NoSession) => {
                Err(StoreError::NotFound { session: given.to_owned() }.into())
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// Who may be at work on a session that may be live.
fn used(is_live: bool, status: Option<Status>) -> Use {
    match (is_live, status) {
        (false, _) => Use::Nobody,
        (true, None) => Use::Somebody,
        (true, Some(status)) => Use::Live(status),
    }
}

/// Says what the store is known to lack, and gives the exit code of a command that tells of all of it.
fn tell(global: &Global, losses: &StoreLosses) -> Result<u8> {
    stored::warn_of_others(global)?;
    for notice in &losses.notices {
        agent::warn(global, &format!("{notice}; `greenroom store check` says what is lost"))?;
    }
    Ok(if losses.is_uncertain { error::STORE } else { 0 })
}

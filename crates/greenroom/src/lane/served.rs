//! The data that a lane's server reports about its models.
//!
//! Invariants: a server that does not reply or has no list is not an error: then nothing is known. A caller
//! waits for the list at most [`FIRST_WAIT`], and the server is asked again at most once in [`AGAIN_AFTER`].

use std::sync::Arc;
use std::time::Duration;

use greenroom_provider::{Provider, Served, ServedModel};
use parking_lot::{Mutex, RwLock};
use tokio::sync::watch;
use tokio::time::Instant;

/// How long opening a session waits for the list at most. A list that arrives later is used from then on.
const FIRST_WAIT: Duration = Duration::from_secs(3);
/// The minimum time between two requests for the list.
const AGAIN_AFTER: Duration = Duration::from_secs(30);

/// The models of one server.
pub(crate) struct ServedModels {
    provider: Arc<dyn Provider>,
    first: watch::Sender<bool>,
    known: RwLock<Served>,
    asked_at: Mutex<Option<Instant>>,
}

impl ServedModels {
    pub(crate) fn new(provider: Arc<dyn Provider>) -> Self {
        Self {
            provider,
            first: watch::Sender::new(false),
            known: RwLock::default(),
            asked_at: Mutex::new(None),
        }
    }

    /// Requests the list on the first call, and waits a moment for the reply.
    pub(crate) async fn ask_once(self: &Arc<Self>) {
        let mut answered = self.first.subscribe();
        let began = {
            let mut asked_at = self.asked_at.lock();
            *asked_at.get_or_insert_with(|| {
                // The request continues if its first caller is dropped.
                let served = Arc::clone(self);
                tokio::spawn(async move { served.ask().await });
                Instant::now()
            })
        };
        let _ = tokio::time::timeout_at(began + FIRST_WAIT, answered.wait_for(|answered| *answered)).await;
    }

    /// Requests the list again in the background, because it may have changed.
    pub(crate) fn ask_again(self: &Arc<Self>) {
        {
            let mut asked_at = self.asked_at.lock();
            if asked_at.is_some_and(|at| at.elapsed() < AGAIN_AFTER) {
                return;
            }
            *asked_at = Some(Instant::now());
        }
        let served = Arc::clone(self);
        tokio::spawn(async move { served.ask().await });
    }

    /// Whether the server reports a model's window only after loading the model, and has not reported it yet.
    pub(crate) fn may_tell_more(&self, model: &str) -> bool {
        let known = self.known.read();
        known.knows_loaded_only && known.find(model).is_none_or(|model| model.window_tokens.is_none())
    }

    /// Returns the reported data about a model.
    pub(crate) fn find(&self, model: &str) -> Option<ServedModel> {
        self.known.read().find(model).cloned()
    }

    async fn ask(&self) {
        match self.provider.served().await {
            Ok(served) => {
                let told = served.models.iter().filter(|model| model.window_tokens.is_some()).count();
                tracing::debug!(
                    provider = self.provider.name(),
                    models = served.models.len(),
                    told,
                    "the server listed its models"
                );
                *self.known.write() = served;
            }
            Err(error) => {
                tracing::debug!(provider = self.provider.name(), %error, "the server does not list its models");
            }
        }
        self.first.send_replace(true);
    }
}

//! The thread that applies staged changes to the index database while the writer continues with the journal.
//!
//! Invariants: one move at a time, requested by the writer alone. The writer knows how many bytes of the
//! journal the move covers, and waits for its end before it acknowledges anything that would leave the index
//! too far behind.

use std::sync::{Arc, mpsc};
use std::thread::JoinHandle;

use crate::error::StoreError;
use crate::index::Index;

/// How often freed memory is collected after a move; each time up to 512 pieces of it. Most attempts collect nothing:
/// one does only if no reader has been in sled since before the last.
const COLLECTIONS: usize = 512;
/// After this many attempts, readers get a turn.
const COLLECTIONS_AT_ONCE: usize = 64;

/// Moves staged changes to the database, and syncs it.
#[derive(Debug)]
pub(crate) struct Mover {
    index: Arc<Index>,
    /// Started with the first move.
    thread: Option<Thread>,
    /// How many bytes of the journal the move in progress covers.
    under_way: Option<u64>,
    /// Whether the writer is waiting for a move.
    #[cfg(test)]
    pub(crate) is_waited_for: Arc<std::sync::atomic::AtomicBool>,
}

#[derive(Debug)]
struct Thread {
    orders: mpsc::Sender<()>,
    done: mpsc::Receiver<()>,
    handle: JoinHandle<()>,
}

impl Mover {
    pub(crate) fn new(index: Arc<Index>) -> Self {
        Self {
            index,
            thread: None,
            under_way: None,
            #[cfg(test)]
            is_waited_for: Arc::default(),
        }
    }

    /// Returns how many bytes of the journal the move in progress covers; 0 if there is none.
    pub(crate) fn under_way(&mut self) -> u64 {
        let is_working = |thread: &Thread| matches!(thread.done.try_recv(), Err(mpsc::TryRecvError::Empty));
        self.under_way = self.under_way.filter(|_| self.thread.as_ref().is_some_and(is_working));
        self.under_way.unwrap_or(0)
    }

    /// Begins to move the staged changes, which cover `bytes` bytes of the journal. A move in progress ends
    /// first.
    pub(crate) fn begin(&mut self, bytes: u64) -> Result<(), StoreError> {
        self.wait();
        if !self.index.begin_move()? {
            return Ok(());
        }
        if self.thread.is_none() {
            self.thread = Thread::start(&self.index);
        }
        match &self.thread {
            Some(thread) if thread.orders.send(()).is_ok() => self.under_way = Some(bytes),
            // There is no thread, or it panicked: appends wait for the move.
            Some(_) | None => move_and_sync(&self.index),
        }
        Ok(())
    }

    /// Waits until no move is in progress.
    pub(crate) fn wait(&mut self) {
        if self.under_way.take().is_some()
            && let Some(thread) = &self.thread
        {
            #[cfg(test)]
            self.is_waited_for.store(true, std::sync::atomic::Ordering::SeqCst);
            // A thread that is gone moves nothing any more.
            let _ = thread.done.recv();
            #[cfg(test)]
            self.is_waited_for.store(false, std::sync::atomic::Ordering::SeqCst);
        }
    }

    /// Waits for the move in progress, and ends the thread.
    pub(crate) fn end(&mut self) {
        self.wait();
        if let Some(Thread { orders, done, handle }) = self.thread.take() {
            drop((orders, done));
            // The thread reports its failures itself.
            drop(handle.join());
        }
    }
}

impl Drop for Mover {
    fn drop(&mut self) {
        self.end();
    }
}

impl Thread {
    fn start(index: &Arc<Index>) -> Option<Self> {
        let (orders, asked) = mpsc::channel();
        let (tell, done) = mpsc::channel();
        let index = Arc::clone(index);
        let work = move || {
            while asked.recv().is_ok() {
                move_and_sync(&index);
                if tell.send(()).is_err() {
                    break;
                }
                collect_garbage();
            }
        };
        match std::thread::Builder::new().name("greenroom-index".to_owned()).spawn(work) {
            Ok(handle) => Some(Self { orders, done, handle }),
            Err(error) => {
                tracing::warn!(%error, "cannot start the index thread; appends wait for the index");
                None
            }
        }
    }
}

fn move_and_sync(index: &Index) {
    if let Err(error) = index.finish_move().and_then(|()| index.sync()) {
        tracing::error!(%error, "the index cannot be written; the journal continues without it");
    }
}

/// Frees memory that sled replaced. sled does so itself if a thread calls it often; this thread calls it
/// seldom, with much at a time.
fn collect_garbage() {
    for attempt in 1..=COLLECTIONS {
        crossbeam_epoch::pin().flush();
        if attempt % COLLECTIONS_AT_ONCE == 0 {
            std::thread::yield_now();
        }
    }
}

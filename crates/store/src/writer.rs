//! The one thread that writes: group commit over all sessions.
//!
//! Invariants: a reply is sent after the bytes it speaks of were synced, never before. After a failed write or sync
//! nothing behind the last acknowledged byte is trusted: it is cut off and the cut synced, or the segment is left
//! for a new one, before anything else is written. Until that works every append fails, typed, and reading goes on.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use greenroom_kernel::EntryId;
use tokio::sync::{mpsc, oneshot};

use crate::error::StoreError;
use crate::files::{File, OpenMode, write_all_at};
use crate::head::Head;
use crate::index::Index;
use crate::indexer::{Effect, Indexer, kind_of};
use crate::journal::manifest::{Listed, Manifest, State};
use crate::journal::segments::{Segments, random_seed};
use crate::journal::{Frame, NewFrame, SEGMENT_HEADER_BYTES, SegmentHeader, first_chain, footer};
use crate::lock::DirectoryLock;
use crate::reader;
use crate::record::{self, StoredRecord};
use crate::{Appended, head};

/// A group holds no more than this many bytes (and one more command).
const GROUP_BYTES_MAX: u64 = 16 << 20;
/// A group holds no more commands than this.
const GROUP_COMMANDS_MAX: usize = 4_096;
/// So much may wait in memory to be moved to sled while there is more to write.
const STAGED_BYTES_MAX: usize = 8 << 20;
/// Beyond this, nothing is written that the index would have to know: it does not work.
const STAGED_BYTES_LIMIT: usize = 512 << 20;

type Reply<T> = oneshot::Sender<Result<T, StoreError>>;

/// What the writer is asked to do.
#[derive(Debug)]
pub(crate) enum Command {
    /// Entries, already encoded.
    Append(Box<AppendCommand>),
    /// A learned fact.
    LearnedPut { key: String, value: Vec<u8>, reply: Reply<()> },
    /// The session is to go.
    Delete { session: String, reply: Reply<()> },
    /// The session is to go on without what was lost.
    AcceptLoss { session: String, reply: Reply<Head> },
    /// Mostly dead segments are to be rewritten; answers how many bytes that freed.
    Reclaim { reply: Reply<u64> },
    /// Nothing more will come.
    Close { reply: Reply<()> },
}

/// An append, as it comes from the caller's thread.
#[derive(Debug)]
pub(crate) struct AppendCommand {
    pub(crate) session: String,
    /// The first entry's sequence number; the head's count where there are none.
    pub(crate) sequence: u64,
    pub(crate) count: u32,
    pub(crate) key: Option<String>,
    pub(crate) head: Head,
    pub(crate) payload: Vec<u8>,
    pub(crate) reply: Reply<Appended>,
}

/// The segment that is written to.
#[derive(Debug)]
pub(crate) struct Active {
    pub(crate) id: u64,
    pub(crate) seed: u32,
    pub(crate) file: Arc<dyn File>,
    /// Everything before this is acknowledged.
    pub(crate) end: u64,
    /// The chain there.
    pub(crate) chain: u32,
    /// Its frames, for the footer.
    pub(crate) frames: Vec<Frame>,
}

/// Who waits for a frame.
enum Waiting {
    Append(Reply<Appended>, Appended),
    Unit(Reply<()>),
    Nobody,
}

impl Waiting {
    fn answer(self, outcome: &Result<(), StoreError>) {
        // Whoever does not wait any more does not mind.
        match self {
            Self::Append(reply, appended) => drop(reply.send(outcome.clone().map(|()| appended))),
            Self::Unit(reply) => drop(reply.send(outcome.clone())),
            Self::Nobody => {}
        }
    }
}

/// A frame of the group, and what it does once it is durable.
struct Pending {
    frame: NewFrame,
    effect: Effect,
}

#[derive(Default)]
struct Group {
    pending: Vec<Pending>,
    waiting: Vec<Waiting>,
    bytes: u64,
    /// How many entries each session will have.
    entries: HashMap<String, u64>,
    keys: HashMap<(String, String), EntryId>,
}

/// What the thread owns.
#[derive(Debug)]
pub(crate) struct Writer {
    pub(crate) segments: Arc<Segments>,
    pub(crate) index: Arc<Index>,
    pub(crate) indexer: Indexer,
    pub(crate) manifest: Manifest,
    pub(crate) active: Active,
    pub(crate) segment_bytes: u64,
    /// A write failed: what stands behind `active.end` is not known.
    pub(crate) is_suspect: bool,
    /// The manifest on disk may not be the one in memory.
    pub(crate) is_manifest_dirty: bool,
    /// Something was deleted since the last reclaim.
    pub(crate) is_reclaim_due: bool,
    /// Held until the thread ends.
    pub(crate) lock: DirectoryLock,
}

impl Writer {
    /// Works until it is told to close, or nobody can tell it anything any more.
    pub(crate) fn run(mut self, mut commands: mpsc::Receiver<Command>) {
        let mut closing = None;
        while let Some(command) = commands.blocking_recv() {
            let mut next = Some(command);
            let mut group = Group::default();
            while let Some(command) = next.take() {
                if let Some(barrier) = self.join(command, &mut group) {
                    self.commit(std::mem::take(&mut group));
                    closing = self.perform(barrier);
                    break;
                }
                if group.bytes < GROUP_BYTES_MAX && group.waiting.len() < GROUP_COMMANDS_MAX {
                    next = commands.try_recv().ok();
                }
            }
            self.commit(group);
            if closing.is_some() {
                break;
            }
            let is_idle = commands.is_empty();
            if is_idle || self.index.staged_bytes() > STAGED_BYTES_MAX {
                self.settle();
            }
            if is_idle && std::mem::take(&mut self.is_reclaim_due) {
                if let Err(error) = self.reclaim() {
                    tracing::warn!(%error, "cannot reclaim the space of deleted sessions now");
                }
                self.settle();
            }
        }
        commands.close();
        self.finish();
        // What came after the close is refused: its replies are dropped with the queue.
        drop(commands);
        let Self { lock, .. } = self;
        drop(lock);
        if let Some(reply) = closing {
            drop(reply.send(Ok(())));
        }
    }

    fn settle(&self) {
        if let Err(error) = self.index.settle() {
            tracing::error!(%error, "the index cannot be written; the journal goes on without it");
        }
    }

    /// Notes how far everything is durable, and closes the index.
    fn finish(&mut self) {
        let end = self.active.end;
        let stored = self.repair().and_then(|()| {
            if let Some(listed) = self.manifest.get_mut(self.active.id) {
                listed.state = State::Active { floor: end };
            }
            self.manifest.store(self.segments.files.as_ref(), &self.segments.dir)
        });
        if let Err(error) = stored {
            tracing::warn!(%error, "cannot note that the store was closed; the next start finds out by itself");
        }
        self.index.close();
    }

    /// Takes a command into the group; gives it back if it cannot be part of one.
    fn join(&mut self, command: Command, group: &mut Group) -> Option<Command> {
        match command {
            Command::Append(append) => self.join_append(*append, group),
            Command::LearnedPut { key, value, reply } => {
                let record = StoredRecord::Learned { key, value };
                match encode_frame("", 0, &record) {
                    Ok(frame) => group.push(frame, record.into(), Waiting::Unit(reply)),
                    Err(error) => drop(reply.send(Err(error))),
                }
            }
            Command::Delete { .. }
            | Command::AcceptLoss { .. }
            | Command::Reclaim { .. }
            | Command::Close { .. } => return Some(command),
        }
        None
    }

    fn join_append(&mut self, append: AppendCommand, group: &mut Group) {
        let AppendCommand { session, sequence, count, key, head, payload, reply } = append;
        match self.admit(&session, sequence, key.as_deref(), group) {
            Err(error) => drop(reply.send(Err(error))),
            Ok(Some(first)) => {
                // Answered with the group, since what it repeats may be part of it.
                group.waiting.push(Waiting::Append(reply, Appended::Duplicate { first }));
            }
            Ok(None) => {
                let next = sequence + u64::from(count);
                group.entries.insert(session.clone(), next);
                if let Some(key) = &key {
                    group.keys.insert((session.clone(), key.clone()), EntryId(sequence));
                }
                let frame =
                    NewFrame { kind: crate::journal::FrameKind::Append, session, sequence, count, payload };
                let appended = Appended::Written { first: EntryId(sequence), next: EntryId(next) };
                group.push(
                    frame,
                    Effect::Append { key, head: Box::new(head) },
                    Waiting::Append(reply, appended),
                );
            }
        }
    }

    /// Whether the session takes the batch: `Some` if its key was used before.
    fn admit(
        &mut self,
        session: &str,
        sequence: u64,
        key: Option<&str>,
        group: &Group,
    ) -> Result<Option<EntryId>, StoreError> {
        let known = self.indexer.known(session)?;
        if let Some(key) = key {
            if let Some(first) = group.keys.get(&(session.to_owned(), key.to_owned())) {
                return Ok(Some(*first));
            }
            if let Some((first, _)) = self.index.used_key(session, key)? {
                return Ok(Some(first));
            }
        }
        if let Some(from) = known.and_then(|known| known.lost_from) {
            return Err(StoreError::Quarantined { session: session.to_owned(), from });
        }
        let expected = group.entries.get(session).copied().or(known.map(|known| known.entries)).unwrap_or(0);
        if sequence != expected {
            return Err(StoreError::Sequence {
                session: session.to_owned(),
                expected: EntryId(expected),
                got: EntryId(sequence),
            });
        }
        Ok(None)
    }

    /// Does what stands alone; gives the reply of a close.
    fn perform(&mut self, command: Command) -> Option<Reply<()>> {
        match command {
            Command::Append(_) | Command::LearnedPut { .. } => {}
            Command::Close { reply } => return Some(reply),
            Command::Delete { session, reply } => drop(reply.send(self.delete(&session))),
            Command::AcceptLoss { session, reply } => drop(reply.send(self.accept_loss(&session))),
            Command::Reclaim { reply } => drop(reply.send(self.reclaim())),
        }
        None
    }

    fn delete(&mut self, session: &str) -> Result<(), StoreError> {
        let known = self.indexer.known(session)?;
        let known = known.ok_or_else(|| StoreError::NotFound { session: session.to_owned() })?;
        self.write_record(session, known.entries, StoredRecord::Deleted)?;
        self.is_reclaim_due = true;
        Ok(())
    }

    fn accept_loss(&mut self, session: &str) -> Result<Head, StoreError> {
        let row = self.index.row(session)?;
        let row = row.ok_or_else(|| StoreError::NotFound { session: session.to_owned() })?;
        let Some(lost_from) = row.head.lost_from else { return Ok(row.head) };
        let mut head = reader::head_after_loss(&self.index, &self.segments, session, &row.head, lost_from)?;
        head.lost_from = None;
        head.state = head::SessionState::Idle;
        let record = StoredRecord::LossAccepted { head: Box::new(head.clone()) };
        self.write_record(session, head.entries, record)?;
        Ok(head)
    }

    /// Writes one record by itself.
    pub(crate) fn write_record(
        &mut self,
        session: &str,
        sequence: u64,
        record: StoredRecord,
    ) -> Result<(), StoreError> {
        let frame = encode_frame(session, sequence, &record)?;
        let mut group = Group::default();
        group.push(frame, record.into(), Waiting::Nobody);
        self.write(group.pending, group.bytes)
    }

    fn commit(&mut self, group: Group) {
        if group.waiting.is_empty() {
            return;
        }
        let outcome = if group.pending.is_empty() { Ok(()) } else { self.write(group.pending, group.bytes) };
        for waiting in group.waiting {
            waiting.answer(&outcome);
        }
    }

    /// Makes the frames durable and visible, all or (after an error) none.
    fn write(&mut self, pending: Vec<Pending>, bytes: u64) -> Result<(), StoreError> {
        if self.index.staged_bytes() > STAGED_BYTES_LIMIT {
            self.index.settle()?;
        }
        self.repair()?;
        if self.active.end + bytes > self.segment_bytes && !self.active.frames.is_empty() {
            self.rotate(true)?;
        }
        let mut buffer = Vec::with_capacity(usize::try_from(bytes).expect("a group fits the memory"));
        let (group, mut chain) = (self.active.end, self.active.chain);
        let mut placed = Vec::with_capacity(pending.len());
        for Pending { frame, effect } in pending {
            let (frame, next) = frame.encode(&mut buffer, group, self.active.seed, chain);
            chain = next;
            placed.push((frame, chain, effect));
        }
        let file = Arc::clone(&self.active.file);
        if let Err(error) = write_all_at(file.as_ref(), &buffer, group).and_then(|()| file.sync()) {
            let error = StoreError::io("write", &self.segments.path(self.active.id), error);
            self.is_suspect = true;
            if let Err(error) = self.repair() {
                tracing::error!(%error, "the journal cannot be written; it can be read, and each append tries again");
            }
            return Err(error);
        }
        self.active.end += bytes;
        self.active.chain = chain;
        for (frame, chain, effect) in placed {
            if let Err(error) = self.indexer.apply(self.active.id, &frame, chain, effect) {
                // It is durable, and so acknowledged; the index is built again at the next start.
                self.index.suspect(&error.to_string());
            }
            self.active.frames.push(frame);
        }
        self.indexer.publish();
        Ok(())
    }

    /// Makes the files what memory says they are, after a failure.
    pub(crate) fn repair(&mut self) -> Result<(), StoreError> {
        if self.is_suspect {
            let path = self.segments.path(self.active.id);
            let cut = self.active.file.truncate(self.active.end).and_then(|()| self.active.file.sync());
            if let Err(error) = cut {
                // Perhaps only this file is beyond repair.
                let error = StoreError::io("mend", &path, error);
                return self.rotate(false).map_err(|_| error);
            }
            self.is_suspect = false;
        }
        if self.is_manifest_dirty {
            self.manifest.store(self.segments.files.as_ref(), &self.segments.dir)?;
            self.is_manifest_dirty = false;
        }
        Ok(())
    }

    /// Begins a new segment. The old one gets its footer, or is left as it is where it cannot be trusted.
    pub(crate) fn rotate(&mut self, seals: bool) -> Result<(), StoreError> {
        let header =
            SegmentHeader { id: self.manifest.next_id, order: self.next_order(), seed: random_seed() };
        self.manifest.next_id += 1;
        let file = match self.segments.create(&header) {
            Ok(file) => file,
            Err(error) => {
                // An empty segment that is not listed is removed at the next start, if not now.
                drop(self.segments.files.remove(&self.segments.path(header.id)));
                return Err(error);
            }
        };
        let length = self.active.end;
        let state = if seals {
            let digest = self.active.chain;
            let bytes = footer(&self.active.frames, length, digest);
            let written = write_all_at(self.active.file.as_ref(), &bytes, length);
            if let Err(error) = written.and_then(|()| self.active.file.sync()) {
                self.is_suspect = true;
                drop(self.segments.files.remove(&self.segments.path(header.id)));
                return Err(StoreError::io("seal", &self.segments.path(self.active.id), error));
            }
            State::Sealed { length, frames: self.active.frames.len() as u64, digest }
        } else {
            State::Abandoned { length }
        };
        let before = self.manifest.clone();
        if let Some(listed) = self.manifest.get_mut(self.active.id) {
            listed.state = state;
        }
        let state = State::Active { floor: SEGMENT_HEADER_BYTES };
        self.manifest.segments.push(Listed { id: header.id, order: header.order, seed: header.seed, state });
        if let Err(error) = self.manifest.store(self.segments.files.as_ref(), &self.segments.dir) {
            // Either list may be on disk now: the old one is written again before anything else happens.
            self.manifest = before;
            self.is_suspect = true;
            self.is_manifest_dirty = true;
            return Err(error);
        }
        self.is_suspect = false;
        self.is_manifest_dirty = false;
        self.begin(header, file);
        Ok(())
    }

    fn next_order(&self) -> u64 {
        let highest = self.manifest.segments.iter().map(|listed| listed.order).max();
        highest.map_or(self.manifest.next_id, |order| order + 1)
    }

    fn begin(&mut self, header: SegmentHeader, file: Arc<dyn File>) {
        self.segments.add(header.id, header.seed, Some(Arc::clone(&file)));
        let chain = first_chain(header.id, header.seed);
        self.indexer.begin_segment(header.id, header.order, header.seed, chain);
        self.active = Active {
            id: header.id,
            seed: header.seed,
            file,
            end: SEGMENT_HEADER_BYTES,
            chain,
            frames: Vec::new(),
        };
    }
}

impl Group {
    fn push(&mut self, frame: NewFrame, effect: Effect, waiting: Waiting) {
        self.bytes += frame.length();
        self.pending.push(Pending { frame, effect });
        self.waiting.push(waiting);
    }
}

fn encode_frame(session: &str, sequence: u64, record: &StoredRecord) -> Result<NewFrame, StoreError> {
    let payload = record::encode(record)?;
    Ok(NewFrame { kind: kind_of(record), session: session.to_owned(), sequence, count: 0, payload })
}

/// Runs the writer and lets no panic of its escape unseen.
pub(crate) fn run(writer: Writer, commands: mpsc::Receiver<Command>) {
    let index = Arc::clone(&writer.index);
    if catch_unwind(AssertUnwindSafe(|| writer.run(commands))).is_err() {
        index.close();
        tracing::error!("the store's writer panicked; the store takes nothing more until it is opened again");
    }
}

/// Opens a segment to go on writing to it.
pub(crate) fn open_active(segments: &Segments, id: u64) -> Result<Arc<dyn File>, StoreError> {
    let path = segments.path(id);
    segments.files.open(&path, OpenMode::Write).map_err(|error| StoreError::io("open", &path, error))
}

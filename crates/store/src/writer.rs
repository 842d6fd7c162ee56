//! The one writer thread: group commit over all sessions.
//!
//! The writer takes as many commands from its queue as are available (up to a limit), writes their frames
//! with one write and one sync, and answers them all.
//!
//! Invariants:
//!
//! - A caller is answered after its bytes were synced, never before.
//! - After a failed write or sync, nothing behind the last acknowledged byte is trusted. Before anything else
//!   is written, it is cut off and the cut synced, or a new segment is begun. Until that works, every append
//!   fails with a typed error, and reading continues.
//! - The writer's view of its segment is compared with the file before and after every write. If the two
//!   differ, the group is refused with [`StoreError::Invariant`], and the next one goes to a new segment. The
//!   writer's own mistakes never cause a panic.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use greenroom_kernel::EntryId;
use greenroom_kernel::head::{Head, LoggedState};
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};

use crate::bytes::to_u64;
use crate::error::StoreError;
use crate::files::{File, OpenMode, write_all_at};
use crate::index::Index;
use crate::indexer::{Effect, Indexer, kind_of};
use crate::journal::frames::Frames;
use crate::journal::list::OpenList;
use crate::journal::manifest::{Manifest, SegmentState, UnknownLoss};
use crate::journal::segments::Segments;
use crate::journal::{Frame, FrameKind, NewFrame, SEGMENT_HEADER_BYTES};
use crate::lock::DirectoryLock;
use crate::parts::{Part, PartKind};
use crate::record::{self, StoredRecord};
use crate::{Appended, BATCH_BYTES_MAX, check_size, reader};

mod checks;
mod erase_again;
mod indexing;
mod lists;
mod mover;
mod rotation;
mod snapshot;

#[cfg(test)]
mod tests;

pub(crate) use erase_again::EraseAgain;
pub(crate) use indexing::STAGED_BYTES_MAX;
pub(crate) use mover::Mover;
pub(crate) use snapshot::{Copied, OPENED_FIRST, OPENED_MAX, OpenedFile, OpenedSegment, Snapshot};

/// The maximum size of a group in bytes, not counting its last command.
const GROUP_BYTES_MAX: u64 = 16 << 20;
/// The maximum number of commands in a group.
const GROUP_COMMANDS_MAX: usize = 4_096;
/// The maximum number of acknowledged bytes of the journal that are listed nowhere else. If a disk cuts off data behind
/// the [list](crate::journal::list) and behind the index's checkpoint, the loss is not detected, so the
/// amount must be small.
pub(crate) const UNLISTED_BYTES_MAX: u64 = if cfg!(test) { 2 << 10 } else { 512 << 10 };
/// With staged index changes of this many bytes, sled evidently does not work, and nothing more is written.
const STAGED_BYTES_LIMIT: usize = 512 << 20;

/// After a group with fewer callers than this, the next group starts without a pause.
const PAUSE_CALLERS_MIN: usize = 16;
/// How long the writer pauses for more commands. Each pause is longer than the one before, because waking up costs
/// more than waiting; all together are about as long as a sync.
const PAUSES: [Duration; 4] = [
    Duration::from_micros(50),
    Duration::from_micros(100),
    Duration::from_micros(200),
    Duration::from_micros(400),
];
/// The largest buffer that is kept from one group to the next, in bytes.
const BUFFER_BYTES_MAX: usize = 2 << 20;

type Reply<T> = oneshot::Sender<Result<T, StoreError>>;

/// A command to the writer.
#[derive(Debug)]
pub(crate) enum Command {
    /// Append an encoded batch.
    Append(AppendCommand),
    /// Append a part of a batch that takes several frames. It has no idempotency key of its own: that of the
    /// batch is only looked up.
    Part { batch: u64, part: AppendCommand },
    /// Append the last part of such a batch.
    Commit { batch: u64, part: AppendCommand },
    /// Discard the session's uncommitted batch.
    DropParts { session: String },
    /// Store a fact.
    LearnedPut { key: String, value: Vec<u8>, reply: Reply<()> },
    /// Delete the session.
    Delete { session: String, reply: Reply<()> },
    /// Let the session continue without its lost entries.
    AcceptLoss { session: String, reply: Reply<Head> },
    /// Accept that the losses with the segment are unknown; the reply is whether there was such a loss.
    AcceptUnknown { segment: u64, reply: Reply<bool> },
    /// Rewrite the segments that are mostly dead; the reply is the number of bytes freed.
    Reclaim { reply: Reply<u64> },
    /// Describe the journal for a backup that has copied these segments, and open at most `limit` others.
    Snapshot { copied: Copied, limit: usize, reply: Reply<Snapshot> },
    /// Close the store.
    Close { reply: Reply<()> },
}

/// An append, as prepared on the caller's thread.
#[derive(Debug)]
pub(crate) struct AppendCommand {
    pub(crate) session: Arc<str>,
    /// The sequence number of the first entry; of the session's next entry if the batch has none.
    pub(crate) sequence: u64,
    /// The number of entries.
    pub(crate) count: u32,
    /// The idempotency key.
    pub(crate) key: Option<String>,
    /// The head after the entries.
    pub(crate) head: Arc<Head>,
    /// The encoded record.
    pub(crate) payload: Vec<u8>,
    pub(crate) reply: Reply<Appended>,
}

impl AppendCommand {
    /// Creates the command to append a part of a batch, or a whole one, behind the session's entries before `sequence`.
    ///
    /// # Errors
    /// [`StoreError::TooLarge`].
    pub(crate) fn new(
        session: &str,
        sequence: EntryId,
        key: Option<String>,
        part: Part,
        reply: Reply<Appended>,
    ) -> Result<(PartKind, Self), StoreError> {
        let Part { kind, count, head, payload } = part;
        check_size("bytes", payload.len(), BATCH_BYTES_MAX)?;
        let count = u32::try_from(count).expect("a frame of 32 MiB has fewer entries");
        let (session, sequence) = (session.into(), sequence.0);
        Ok((kind, Self { session, sequence, count, key, head, payload, reply }))
    }
}

/// The segment that is being written to.
#[derive(Debug)]
pub(crate) struct Active {
    pub(crate) id: u64,
    pub(crate) seed: u32,
    pub(crate) file: Arc<dyn File>,
    /// Everything before this offset is acknowledged.
    pub(crate) end: u64,
    /// The chain that the next frame must have.
    pub(crate) chain: u32,
    /// The segment's frames, for its footer.
    pub(crate) frames: Frames,
}

impl Active {
    /// Returns where the last frame ends; where the header ends if there is no frame.
    fn frames_end(&self) -> u64 {
        self.frames.end().unwrap_or(SEGMENT_HEADER_BYTES)
    }
}

/// The state of the active segment's file behind `active.end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Tail {
    /// Nothing.
    Empty,
    /// A write failed, and some of its bytes may be there. They must be cut off.
    Unknown,
    /// The file's end differs from the writer's view. The segment must not be written to.
    Wrong,
}

/// How the active segment is left when a new one is begun.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Rotation {
    /// The segment gets a footer.
    Seal,
    /// The segment is left unchanged, because its end cannot be trusted.
    Abandon,
}

/// The receiver of the result of a frame.
enum Caller {
    Append(Reply<Appended>, Appended),
    Unit(Reply<()>),
    Nobody,
}

impl Caller {
    fn answer(self, outcome: &Result<(), StoreError>) {
        // The receiver may have been dropped.
        match self {
            Self::Append(reply, appended) => drop(reply.send(outcome.clone().map(|()| appended))),
            Self::Unit(reply) => drop(reply.send(outcome.clone())),
            Self::Nobody => {}
        }
    }
}

/// A frame of a group, and its effect on the index once it is durable.
struct Pending {
    frame: NewFrame,
    effect: Effect,
}

/// An encoded frame.
struct EncodedFrame {
    frame: Frame,
    /// The chain that the next frame must have.
    next_chain: u32,
    effect: Effect,
}

/// Commands that are committed together.
#[derive(Default)]
struct Group {
    pending: Vec<Pending>,
    callers: Vec<Caller>,
    /// The length of all frames, in bytes.
    bytes: u64,
    /// The number of entries that each session of the group will have.
    entries: HashMap<Arc<str>, u64>,
    /// The session and idempotency key of each keyed batch in the group, and the batch's first entry.
    keys: HashMap<(Arc<str>, String), EntryId>,
}

/// The state of the writer thread.
#[derive(Debug)]
pub(crate) struct Writer {
    pub(crate) segments: Arc<Segments>,
    pub(crate) index: Arc<Index>,
    pub(crate) indexer: Indexer,
    pub(crate) manifest: Manifest,
    /// The losses without a record of what they affected, for readers: those of the manifest.
    pub(crate) unknown: Arc<Mutex<Vec<UnknownLoss>>>,
    /// The list of the active segment's frames, if it was written since the store was opened or the segment
    /// begun.
    pub(crate) list: Option<OpenList>,
    /// The frames before this offset of the active segment are listed beside it, unless that failed.
    pub(crate) listed_end: u64,
    /// The number of bytes written to the journal since staged index changes last began to move to sled.
    pub(crate) unindexed_bytes: u64,
    /// The number of frames among them.
    pub(crate) unindexed_frames: u64,
    pub(crate) mover: Mover,
    pub(crate) active: Active,
    /// The size at which a segment is sealed, in bytes.
    pub(crate) segment_bytes: u64,
    pub(crate) tail: Tail,
    /// The buffer in which the bytes of a group are assembled.
    pub(crate) buffer: Vec<u8>,
    /// Whether the manifest on the disk may differ from the one in memory.
    pub(crate) is_manifest_dirty: bool,
    /// Whether something was deleted since the last reclaim.
    pub(crate) is_reclaim_due: bool,
    /// The schedule for erasing deleted data again, if that failed.
    pub(crate) erase_again: Option<EraseAgain>,
    /// A file that is removed when the disk is full, so that a session can be deleted; and its size.
    pub(crate) reserve: PathBuf,
    pub(crate) reserve_bytes: u64,
    /// Held until the thread ends.
    pub(crate) lock: DirectoryLock,
}

impl Writer {
    /// Runs until it is told to close, or until all senders of commands are gone.
    pub(crate) fn run(mut self, mut commands: mpsc::Receiver<Command>) {
        let (mut closing, mut callers, mut group) = (None, 0, Group::default());
        if self.erase_again.is_some() {
            self.reclaim_when_idle(true);
        }
        while let Some(command) = commands.blocking_recv() {
            let mut next = Some(command);
            await_more_commands(callers, || commands.len(), std::thread::sleep);
            while let Some(command) = next.take() {
                if let Some(alone) = self.join(command, &mut group) {
                    self.commit(&mut group);
                    closing = self.perform(alone);
                    break;
                }
                if group.bytes < GROUP_BYTES_MAX && group.callers.len() < GROUP_COMMANDS_MAX {
                    next = commands.try_recv().ok();
                }
            }
            callers = group.callers.len();
            self.commit(&mut group);
            if closing.is_some() {
                break;
            }
            self.index_if_due();
            if commands.is_empty() {
                let erases = self.erase_again.as_mut().is_some_and(EraseAgain::is_due);
                if std::mem::take(&mut self.is_reclaim_due) || erases {
                    self.reclaim_when_idle(erases);
                }
            }
        }
        commands.close();
        self.finish();
        // Commands that arrive after the close are refused: dropping the queue drops their replies.
        drop(commands);
        let Self { lock, .. } = self;
        drop(lock);
        if let Some(reply) = closing {
            drop(reply.send(Ok(())));
        }
    }

    /// Reclaims the space of deleted sessions while no command is waiting.
    fn reclaim_when_idle(&mut self, erases: bool) {
        if let Err(error) = self.reclaim(erases) {
            tracing::warn!(%error, "cannot reclaim the space of deleted sessions now");
        }
        self.flush_index();
    }

    /// Records in the manifest how far everything is durable, and closes the index.
    fn finish(&mut self) {
        if let Err(error) = self.lock.check_in_place() {
            tracing::error!("{error}");
            self.mover.end();
            self.index.abandon();
            return;
        }
        let end = self.active.end;
        self.list_frames();
        let stored = self.repair().and_then(|()| {
            if let Some(listed) = self.manifest.get_mut(self.active.id) {
                listed.state = SegmentState::Active { floor: end };
            }
            self.manifest.store(self.segments.files.as_ref(), &self.segments.dir)
        });
        if let Err(error) = stored {
            tracing::warn!(%error, "cannot record that the store was closed; the next start detects it");
        }
        self.mover.end();
        self.index.close();
    }

    /// Accepts that the losses with a segment are unknown. Returns whether there was such a loss.
    fn accept_unknown(&mut self, segment: u64) -> Result<bool, StoreError> {
        self.repair()?;
        let before = self.manifest.unknown.clone();
        let mut is_found = false;
        for unknown in self.manifest.unknown.iter_mut().filter(|unknown| unknown.segment == segment) {
            is_found |= !unknown.is_accepted;
            unknown.is_accepted = true;
        }
        if is_found && let Err(error) = self.manifest.store(self.segments.files.as_ref(), &self.segments.dir)
        {
            self.manifest.unknown = before;
            self.is_manifest_dirty = true;
            return Err(error);
        }
        self.unknown.lock().clone_from(&self.manifest.unknown);
        Ok(is_found)
    }

    /// Takes a command into the group. Returns it if it has to be performed alone.
    fn join(&mut self, command: Command, group: &mut Group) -> Option<Command> {
        match command {
            Command::Append(append) => self.join_append(append, group),
            Command::LearnedPut { key, value, reply } => {
                let record = StoredRecord::Learned { key, value };
                match encode_frame("", 0, &record) {
                    Ok(frame) => group.push(frame, record.into(), Caller::Unit(reply)),
                    Err(error) => drop(reply.send(Err(error))),
                }
            }
            Command::Part { .. }
            | Command::Commit { .. }
            | Command::DropParts { .. }
            | Command::Delete { .. }
            | Command::AcceptLoss { .. }
            | Command::AcceptUnknown { .. }
            | Command::Reclaim { .. }
            | Command::Snapshot { .. }
            | Command::Close { .. } => return Some(command),
        }
        None
    }

    fn join_append(&mut self, append: AppendCommand, group: &mut Group) {
        match self.admit(&append, group) {
            Err(error) => drop(append.reply.send(Err(error))),
            Ok(Some(first)) => {
                // It is answered together with the group, because the batch that it repeats may be part of
                // the group.
                group.callers.push(Caller::Append(append.reply, Appended::Duplicate { first }));
            }
            Ok(None) => {
                let AppendCommand { session, sequence, count, key, head, payload, reply } = append;
                let next = head.entries;
                group.entries.insert(session.clone(), next);
                if let Some(key) = &key {
                    group.keys.insert((session.clone(), key.clone()), EntryId(sequence));
                }
                let frame = NewFrame { kind: FrameKind::Append, session, sequence, count, payload };
                let appended = Appended::Written { first: EntryId(sequence), next: EntryId(next) };
                group.push(frame, Effect::Append { key, head }, Caller::Append(reply, appended));
            }
        }
    }

    /// Checks that the session can take the batch. `Some` is the first entry of the batch that used the same
    /// key before.
    fn admit(&mut self, append: &AppendCommand, group: &Group) -> Result<Option<EntryId>, StoreError> {
        let AppendCommand { session, sequence, count, key, head, .. } = append;
        if let Some(key) = key {
            if let Some(first) = group.keys.get(&(session.clone(), key.clone())) {
                return Ok(Some(*first));
            }
            if let Some((first, _)) = self.index.used_key(session, key)? {
                return Ok(Some(first));
            }
        }
        let expected = match group.entries.get(session) {
            // Its earlier batch in the group was admitted, so it has lost nothing.
            Some(entries) => *entries,
            None => {
                let known = self.indexer.known(session)?;
                if let Some(from) = known.and_then(|known| known.lost_from) {
                    return Err(StoreError::Quarantined { session: session.to_string(), from });
                }
                known.map_or(0, |known| known.entries)
            }
        };
        if *sequence != expected {
            return Err(StoreError::Sequence {
                session: session.to_string(),
                expected: EntryId(expected),
                got: EntryId(*sequence),
            });
        }
        // The caller's side has checked this already; this is the matching check.
        let is_counted = sequence.checked_add(u64::from(*count)) == Some(head.entries);
        StoreError::ensure(is_counted, "a head counts exactly the entries up to the end of its batch")?;
        Ok(None)
    }

    /// Performs a command that is not part of a group. Returns the reply of a close.
    fn perform(&mut self, command: Command) -> Option<Reply<()>> {
        match command {
            // These join a group.
            Command::Append(_) | Command::LearnedPut { .. } => {}
            Command::Part { batch, part } => {
                let answer = self.append_part(batch, &part, false);
                drop(part.reply.send(answer));
            }
            Command::Commit { batch, part } => {
                let answer = self.append_part(batch, &part, true);
                drop(part.reply.send(answer));
            }
            Command::DropParts { session } => {
                // As long as the end of the segment is not repaired, the next start may find the commit
                // there.
                if self.repair().is_ok() {
                    if let Err(error) = self.indexer.drop_parts(&session) {
                        self.index.mark_suspect(&error.to_string());
                    }
                    self.indexer.publish();
                    self.is_reclaim_due = true;
                }
            }
            Command::Close { reply } => return Some(reply),
            Command::Delete { session, reply } => drop(reply.send(self.delete(&session))),
            Command::AcceptLoss { session, reply } => drop(reply.send(self.accept_loss(&session))),
            Command::AcceptUnknown { segment, reply } => drop(reply.send(self.accept_unknown(segment))),
            Command::Reclaim { reply } => drop(reply.send(self.reclaim(true))),
            Command::Snapshot { copied, limit, reply } => drop(reply.send(self.snapshot(&copied, limit))),
        }
        None
    }

    /// Appends one part of a batch that takes several frames. The last one makes the whole batch count.
    fn append_part(
        &mut self,
        batch: u64,
        part: &AppendCommand,
        is_last: bool,
    ) -> Result<Appended, StoreError> {
        let AppendCommand { session, sequence, count, key, head, payload, .. } = part;
        let known = self.indexer.known(session)?;
        if let Some(key) = key
            && let Some((first, _)) = self.index.used_key(session, key)?
        {
            return Ok(Appended::Duplicate { first });
        }
        if let Some(from) = known.and_then(|known| known.lost_from) {
            return Err(StoreError::Quarantined { session: session.to_string(), from });
        }
        let expected = self.part_begins_at(session, batch)?;
        if *sequence != expected {
            let (expected, got) = (EntryId(expected), EntryId(*sequence));
            return Err(StoreError::Sequence { session: session.to_string(), expected, got });
        }
        let (kind, effect) = if is_last {
            let effect = Effect::Commit { batch, key: key.clone(), head: head.clone() };
            (FrameKind::Commit, effect)
        } else {
            (FrameKind::Part, Effect::Part { batch })
        };
        let (session, payload) = (session.clone(), payload.clone());
        let frame = NewFrame { kind, session, sequence: *sequence, count: *count, payload };
        let mut group = Group::default();
        group.push(frame, effect, Caller::Nobody);
        self.write_alone(group)?;
        Ok(Appended::Written { first: EntryId(*sequence), next: EntryId(sequence + u64::from(*count)) })
    }

    /// Returns where the next part of a batch begins: behind its other parts, or behind the session's last
    /// entry.
    fn part_begins_at(&mut self, session: &str, batch: u64) -> Result<u64, StoreError> {
        match self.indexer.uncommitted(session) {
            Some(begun) if begun.batch == batch => Ok(begun.end),
            Some(_) | None => Ok(self.indexer.known(session)?.map_or(0, |known| known.entries)),
        }
    }

    fn delete(&mut self, session: &str) -> Result<(), StoreError> {
        let known = self.indexer.known(session)?;
        let known = known.ok_or_else(|| StoreError::NotFound { session: session.to_owned() })?;
        self.with_reserve(|writer| writer.write_record(session, known.entries, StoredRecord::Deleted))?;
        self.is_reclaim_due = true;
        Ok(())
    }

    fn accept_loss(&mut self, session: &str) -> Result<Head, StoreError> {
        let row = self.index.row(session)?;
        let row = row.ok_or_else(|| StoreError::NotFound { session: session.to_owned() })?;
        let Some(lost_from) = row.head.lost_from else { return Ok(Arc::unwrap_or_clone(row.head)) };
        let mut head = reader::head_after_loss(&self.index, &self.segments, session, &row.head, lost_from)?;
        head.lost_from = None;
        head.state = LoggedState::Idle;
        let record = StoredRecord::LossAccepted { head: Arc::new(head.clone()) };
        self.write_record(session, head.entries, record)?;
        Ok(head)
    }

    /// Writes one record in a group of its own.
    pub(crate) fn write_record(
        &mut self,
        session: &str,
        sequence: u64,
        record: StoredRecord,
    ) -> Result<(), StoreError> {
        let frame = encode_frame(session, sequence, &record)?;
        let mut group = Group::default();
        group.push(frame, record.into(), Caller::Nobody);
        self.write_alone(group)
    }

    /// Writes a group that nobody is told of yet.
    fn write_alone(&mut self, mut group: Group) -> Result<(), StoreError> {
        let written = self.write(&mut group.pending, group.bytes);
        self.list_if_due();
        written
    }

    /// Commits the group, answers its callers, and empties it.
    fn commit(&mut self, group: &mut Group) {
        if group.callers.is_empty() {
            return;
        }
        let Group { pending, bytes, .. } = group;
        let outcome = if pending.is_empty() { Ok(()) } else { self.write(pending, *bytes) };
        for caller in group.callers.drain(..) {
            caller.answer(&outcome);
        }
        group.clear();
        self.list_if_due();
    }

    /// Makes the frames durable and visible: all of them, or none after an error. `bytes` is their length.
    fn write(&mut self, pending: &mut Vec<Pending>, bytes: u64) -> Result<(), StoreError> {
        self.lock.check_in_place()?;
        if self.index.staged_size().bytes > STAGED_BYTES_LIMIT {
            self.mover.wait();
            self.index.flush_staged()?;
        }
        self.repair()?;
        if self.active.end + bytes > self.segment_bytes && !self.active.frames.is_empty() {
            self.rotate(Rotation::Seal)?;
        }
        let mut buffer = std::mem::take(&mut self.buffer);
        buffer.clear();
        buffer.reserve(usize::try_from(bytes).expect("a group fits the memory"));
        let (start, mut chain) = (self.active.end, self.active.chain);
        let mut placed = Vec::with_capacity(pending.len());
        for Pending { frame, effect } in pending.drain(..) {
            let (frame, next_chain) = frame.encode(&mut buffer, start, self.active.seed, chain);
            chain = next_chain;
            placed.push(EncodedFrame { frame, next_chain, effect });
        }
        self.check_group(&placed)?;
        self.check_place(&placed, start + to_u64(buffer.len()), start + bytes)?;
        let file = Arc::clone(&self.active.file);
        let written = write_all_at(file.as_ref(), &buffer, start).and_then(|()| file.sync());
        if buffer.capacity() <= BUFFER_BYTES_MAX {
            self.buffer = buffer;
        }
        if let Err(error) = written {
            let error = StoreError::io("write", &self.segments.path(self.active.id), error);
            self.tail = Tail::Unknown;
            if let Err(error) = self.repair() {
                tracing::error!(%error, "the journal cannot be written, but can be read; each append retries");
            }
            return Err(error);
        }
        if let Err(error) = self.check_file_end(start + bytes) {
            if let Err(error) = self.repair() {
                tracing::error!(%error, "cannot begin a new segment; each append retries");
            }
            return Err(error);
        }
        // If the directory was removed meanwhile, this write was removed too: it is not acknowledged.
        if let Err(error) = self.lock.check_in_place() {
            self.tail = Tail::Unknown;
            return Err(error);
        }
        self.await_index();
        self.active.end = start + bytes;
        self.active.chain = chain;
        self.unindexed_bytes += bytes;
        self.unindexed_frames += to_u64(placed.len());
        for EncodedFrame { frame, next_chain, effect } in placed {
            if let Err(error) = self.indexer.apply(self.active.id, &frame, next_chain, effect) {
                // The frame is durable, so it is acknowledged. The next start rebuilds the index.
                self.index.mark_suspect(&error.to_string());
            }
            self.active.frames.push(&frame);
        }
        self.indexer.publish();
        Ok(())
    }
}

impl Group {
    /// Empties the group, but keeps its memory for the next one.
    fn clear(&mut self) {
        self.bytes = 0;
        self.pending.clear();
        self.callers.clear();
        self.entries.clear();
        self.keys.clear();
    }

    fn push(&mut self, frame: NewFrame, effect: Effect, caller: Caller) {
        self.bytes += frame.length();
        self.pending.push(Pending { frame, effect });
        self.callers.push(caller);
    }
}

/// After a group with many callers, pauses as long as more commands arrive, or until as many are waiting: one
/// sync for all is cheaper than several, and callers that were just answered are likely to send again.
/// `waiting` returns the number of commands in the queue.
fn await_more_commands(callers_before: usize, waiting: impl Fn() -> usize, mut pause: impl FnMut(Duration)) {
    if callers_before < PAUSE_CALLERS_MIN {
        return;
    }
    let mut known = waiting();
    for length in PAUSES {
        pause(length);
        let now = waiting();
        if now <= known || now >= callers_before {
            break;
        }
        known = now;
    }
}

/// Encodes a frame with a record that has no entries.
fn encode_frame(session: &str, sequence: u64, record: &StoredRecord) -> Result<NewFrame, StoreError> {
    let payload = record::encode(record)?;
    Ok(NewFrame { kind: kind_of(record), session: session.into(), sequence, count: 0, payload })
}

/// Runs the writer. If it panics, that is logged, and the store is closed.
pub(crate) fn run(writer: Writer, commands: mpsc::Receiver<Command>) {
    let index = Arc::clone(&writer.index);
    if catch_unwind(AssertUnwindSafe(|| writer.run(commands))).is_err() {
        index.close();
        tracing::error!("the store's writer panicked; the store accepts no more writes until it is reopened");
    }
}

/// Opens an existing segment for writing.
pub(crate) fn open_active(segments: &Segments, id: u64) -> Result<Arc<dyn File>, StoreError> {
    let path = segments.path(id);
    segments.files.open(&path, OpenMode::Write).map_err(|error| StoreError::io("open", &path, error))
}

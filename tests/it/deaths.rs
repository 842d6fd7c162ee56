//! Deaths: of an actor, a handler, a session, the process. Acknowledged data is there, open work is closed
//! once, and nobody else is affected.
//!
//! The behaviour of handles and sleeping sessions afterwards is in `handles` and `lifecycle`; whole lives
//! with deaths among everything else are in `simulation`.

/// A panic in any handler during a conversation: the session continues from its log.
mod handlers;
/// A panic, or the process's end, at any step of installing a compaction: the context is the old one or the new one.
mod installations;
/// A panic at any point of one session among a hundred: the others are the same to the byte.
mod isolation;
/// A real process over a store on the disk, killed again and again.
mod processes;
/// How often an actor is restarted, after which wait, and the message when it is given up.
mod restarts;

//! The runtime for other programs: JSON-RPC 2.0, one line a message.
//!
//! The one key decision: **this crate owns the wire's types.** What programs in other languages see is written
//! here, and changes with a version, whatever the actors' messages do. What is absent: files, the terminal,
//! sockets; a transport is two byte streams that the caller brings.

pub mod rpc;

pub use rpc::serve;

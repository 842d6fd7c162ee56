//! The runtime for other programs: JSON-RPC 2.0 over two byte streams with a typed client, and an HTTP API.
//!
//! The key decision: **this crate owns the wire types.** The types that programs in other languages see are
//! defined here and versioned, independently of the actors' messages. What is absent: files and the terminal; the HTTP
//! server is given its token, and creates none.
//!
//! Reading order: `operations` (everything that a client can ask, with its types), `problem` (errors on the wire), `rpc` and
//! `client` (JSON-RPC), `http`, `host` (a runtime that several clients share), `markdown` (a conversation for people), and the
//! agent that asks in `tests`.

pub mod client;
pub mod host;
pub mod http;
pub mod markdown;
pub mod operations;
pub mod problem;
pub mod rpc;
#[cfg(test)]
mod tests;

pub use client::{Client, ClientError, Events, Received, WeakClient, Working};
pub use host::{Defined, Definer, Host};
pub use http::{
    HttpOptions, HttpServer, NodeAnswer, TOKEN_CHARS_MIN, Token, TokenError, ask_node, check_token,
};
pub use problem::{Problem, ProblemKind};
pub use rpc::{LINE_BYTES_MAX, Unanswered, serve};

//! Integration tests, one module a subject. All models are simulated, and every request is checked.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

/// What a session has spent.
mod bill;
/// What tests of compactions share: conversations of known sizes, and looks into what happened.
mod compaction_fixtures;
/// Compactions through the actors.
mod compactions;
/// Several agents in one session, each for whoever brought it.
mod companions;
/// Something dies: an actor, a handler, a session, the process.
mod costs;
mod deaths;
mod estimates;
/// What each event says of itself.
mod events;
/// What goes wrong outside, and what becomes of it.
mod fallbacks;
mod faults;
/// Handles reach their sessions, whatever happened to those.
mod hand_offs;
mod handles;
/// Hooks around tool calls and model calls, and guards on input and output.
mod hooks;
/// Validators that send answers back, and instructions written for each run.
mod joining;
mod judged;
/// Idempotency keys.
mod keys;
/// Who is asked first where many sessions share a provider.
mod lanes;
/// Sessions that are opened, sleep and wake.
mod lifecycle;
/// Settings that change while sessions are open.
mod live;
/// How much a runtime takes on, and how many sessions it keeps in memory.
mod load;
/// Events that begin, and their ends.
mod pairs;
/// Every prompt that we write, as a provider gets it.
mod prompts;
mod questions;
/// Models that think aloud, and what their servers report.
mod reasoning;
/// A prompt as a request: typed, timed, streamed.
mod requests;
/// A run from the prompt to the reply: tools, steers, aborts, typed answers.
mod run_handles;
mod runs;
/// One module for each document that compaction was built after; its tests are that document's sentences.
mod seeds;
/// Model settings, from the agent to the wire.
mod settings;
/// Whole lives made of a seed, with faults, crashes and panics.
mod simulation;
/// Sessions that are put to sleep while somebody speaks to them.
mod sleep;
/// What is traced, and that no trace holds content.
mod spans;
/// The workspace as a whole: who may know whom, and what every file owes its reader.
mod structure;
/// An agent as a tool of another.
mod sub_agents;
/// What the tests share: runtimes over a simulator.
mod support;
mod teams;
/// What a prompt asks for besides its words, over restarts.
mod terms;
/// Tools as programs write them: their arguments, their state, what runs at the same time, and what may not wait.
mod tools;
/// How many messages a run takes.
mod traffic;
/// Windows that servers tell, and limits that they name.
mod unfinished;
mod windows;

//! Integration tests, one module a subject. All models are simulated, and every request is checked.
#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

/// What a session has spent.
mod bill;
/// What tests of compactions share: conversations of known sizes, and looks into what happened.
mod compaction_fixtures;
/// Compactions through the actors.
mod compactions;
/// Several agents in one session, each for the callers that brought it.
mod companions;
/// Limits in money: of a run, a session and a runtime.
mod costs;
/// Something dies: an actor, a handler, a session, the process.
mod deaths;
/// The files for operators in `deploy/`.
mod deploy;
/// What calls cost when no server says it.
mod estimates;
/// What each event says of itself.
mod events;
/// Other models that answer when an agent's own fails.
mod fallbacks;
/// What goes wrong outside: providers, disks, tools, callers.
mod faults;
/// What is still in the context after compactions, of recorded and of synthetic sessions.
mod fidelity;
/// Past and future events as one stream, and consumers.
mod follow;
/// Copies of sessions.
mod forks;
/// A conversation goes from one agent to another.
mod hand_offs;
/// Handles reach their sessions, whatever happened to the sessions.
mod handles;
/// Hooks around tool calls and model calls, and guards on input and output.
mod hooks;
/// A client that joins during a run sees what the others see.
mod joining;
/// Validators that send answers back, and instructions written for each run.
mod judged;
/// Idempotency keys.
mod keys;
/// Which call is made first when many sessions share a provider.
mod lanes;
/// Sessions that are opened, sleep and wake.
mod lifecycle;
/// How sessions are listed, named, copied and found.
mod listings;
/// Settings that change while sessions are open.
mod live;
/// How much a runtime takes on, and how many sessions it keeps in memory.
mod load;
/// Metrics, against the logs.
mod metrics;
/// The vendors' own APIs: what has to come back unchanged, and changes between vendors.
mod native;
/// Several nodes that share one storage.
mod nodes;
/// A program's own providers, and what they may answer.
mod own_providers;
/// Events that begin, and their ends.
mod pairs;
/// Panics whose message has a secret.
mod panics;
/// Requests that extend each other.
mod prefixes;
/// What is promised, a test for each.
mod promises;
/// Every prompt that we write, as a provider gets it.
mod prompts;
/// Questions that tools and hooks ask people.
mod questions;
/// Models that think aloud, and what their servers report.
mod reasoning;
/// Searches in what was said.
mod recall;
/// A prompt as a request: typed, timed, streamed.
mod requests;
/// Which sessions retention deletes, and which it never does.
mod retention;
/// Going back in a session, with the files.
mod rewinds;
/// Runs as handles: each is aborted, awaited and streamed by itself.
mod run_handles;
/// A run from the prompt to the reply: tools, steers, aborts, typed answers.
mod runs;
/// One module for each document that compaction was built after; its tests are that document's sentences.
mod seeds;
/// Model settings, from the agent to the wire.
mod settings;
/// Whole lives made of a seed, with faults, crashes and panics.
mod simulation;
/// Sessions that are put to sleep while a caller still speaks to them.
mod sleep;
/// What is traced, and that no trace holds content.
mod spans;
/// The workspace as a whole: which crate may use which, and what every file must tell its reader.
mod structure;
/// An agent as a tool of another.
mod sub_agents;
/// What the tests share: runtimes over a simulator.
mod support;
/// Agents that work for another one at the same time: watched, steered and aborted one by one.
mod teams;
/// Limits by label, and spending by label and time.
mod tenants;
/// What a prompt asks for besides its words, over restarts.
mod terms;
/// Tools as programs write them: their arguments, their state, what runs at the same time, and what may not wait.
mod tools;
/// How many messages a run takes.
mod traffic;
/// What the end of a process leaves undone.
mod unfinished;
/// Windows that servers tell, and limits that they name.
mod windows;

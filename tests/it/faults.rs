//! What goes wrong outside: providers, disks, tools that hang, floods, callers that go away. The session always
//! survives, and every fault that a test injects is shown to have happened.

/// Callers that go away at any moment leave no task and no process.
mod cancels;
/// More input than anyone can work off.
mod floods;
/// Guards that end a run.
mod guards;
/// Answers of a provider that is broken or means harm, as bytes.
mod hostile;
/// Answers that cannot be used as they are.
mod malformed;
/// Requests that are larger than the model's window.
mod overflow;
/// Every way in which a provider fails, in-process and over HTTP.
mod provider;
/// Retries: how long, how often, and when not.
mod retries;
/// Servers that say nothing where a request is too large.
mod silent;
/// Disks that are full or broken.
mod store;
/// Reports of usage that cannot be true.
mod usage;
/// Disks that fail while input waits.
mod waiting;

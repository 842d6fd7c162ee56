//! Failures outside: providers, disks, tools that hang, floods, callers that go away. The session always
//! survives, and every injected fault is shown to have happened.

/// Callers that go away at any moment leave no task and no process.
mod cancels;
/// More input than can be processed.
mod floods;
/// Guards that end a run.
mod guards;
/// Malformed and malicious answers of a provider, as bytes.
mod hostile;
/// Answers that cannot be used unchanged.
mod malformed;
/// Requests that are larger than the model's window.
mod overflow;
/// Answers that an own provider did not finish.
mod partial;
/// Every way in which a provider fails, in-process and over HTTP.
mod provider;
/// Retries: how long, how often, and when not.
mod retries;
/// Servers that are silent if a request is too large.
mod silent;
/// Disks that are full or broken.
mod store;
/// Implausible usage reports.
mod usage;
/// Disks that fail while input waits.
mod waiting;

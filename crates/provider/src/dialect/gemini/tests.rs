//! Requests and answers, as exact JSON.

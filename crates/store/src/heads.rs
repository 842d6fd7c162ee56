//! All sessions of a store, some at a time.
//!
//! Invariants: each session that exists the whole time is returned once, in the order of the ids as bytes; only the
//! heads of one page are in memory.

use greenroom_kernel::Head;

use crate::{Engine, StoreError};

/// Reads the heads of a store's sessions in pages.
#[derive(Debug)]
pub struct Heads<'a> {
    engine: &'a dyn Engine,
    /// The last session that was read, or the one after which the reading begins.
    after: Option<String>,
    size: usize,
    is_over: bool,
}

impl<'a> Heads<'a> {
    /// Reads the sessions after this id, or all, so many at once.
    pub fn new(engine: &'a dyn Engine, after: Option<String>, size: usize) -> Self {
        Self { engine, after, size, is_over: false }
    }

    /// Returns the next sessions; `None` after the last.
    ///
    /// # Errors
    /// Those of reading; the same sessions can be read again.
    pub async fn next(&mut self) -> Result<Option<Vec<(String, Head)>>, StoreError> {
        if self.is_over {
            return Ok(None);
        }
        let page = self.engine.page(self.after.as_deref(), self.size).await?;
        self.is_over = page.len() < self.size;
        if let Some((last, _)) = page.last() {
            self.after = Some(last.clone());
        }
        Ok(Some(page))
    }
}

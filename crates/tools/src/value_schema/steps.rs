//! The budget of a check, counted in steps and not in time, so that the same check ends the same way
//! everywhere.

#[cfg(test)]
mod tests;

/// The maximum cost of reading a schema.
pub(super) const READING_MAX: u64 = 2_000_000;

/// The maximum cost of checking a value.
pub(super) const CHECKING_MAX: u64 = 5_000_000;

/// The maximum cost of explaining why a value does not fit. When it is reached, the reasons found so far are
/// reported.
pub(super) const SAYING_MAX: u64 = 500_000;

/// The cost of a place in a value or a schema, an entry of a table, or a part of a rule. A state of a pattern
/// costs one step.
pub(super) const VISIT: u64 = 10;

/// How many bytes of text are read in one step.
const BYTES_PER_STEP: usize = 4;

/// The budget is spent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Spent;

/// The remaining budget.
#[derive(Debug)]
pub(super) struct Steps {
    left: u64,
}

impl Steps {
    pub(super) fn new(budget: u64) -> Self {
        Self { left: budget }
    }

    /// Counts a number of steps.
    pub(super) fn spend(&mut self, steps: u64) -> Result<(), Spent> {
        self.left = self.left.checked_sub(steps).ok_or(Spent)?;
        Ok(())
    }

    /// Counts visits of a number of things.
    pub(super) fn visit(&mut self, things: usize) -> Result<(), Spent> {
        self.spend((things as u64).saturating_mul(VISIT))
    }

    /// Counts the cost of reading a number of bytes.
    pub(super) fn read(&mut self, bytes: usize) -> Result<(), Spent> {
        self.spend((bytes / BYTES_PER_STEP) as u64)
    }

    /// Counts the lookup of each of these names in a table, which reads them.
    pub(super) fn look_up<'a>(&mut self, names: impl IntoIterator<Item = &'a String>) -> Result<(), Spent> {
        for name in names {
            self.visit(1)?;
            self.read(name.len())?;
        }
        Ok(())
    }

    #[cfg(test)]
    pub(super) fn left(&self) -> u64 {
        self.left
    }
}

//! Small numbers from a seed, for tests.

/// A random number generator (xorshift). Its seed must not be 0.
pub(crate) struct Random(u64);

impl Random {
    /// Neighbouring numbers give unlike generators.
    pub(crate) fn of(number: u64) -> Self {
        Self((number + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15))
    }

    pub(crate) fn below(&mut self, limit: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % limit as u64).expect("it is small")
    }
}

//! Finds the texts most similar to a given one, for hints in error messages.
//!
//! Invariants: similarity is in thousandths: 0 for nothing in common, 1,000 for equal except for case and
//! blanks.

use std::collections::HashMap;

/// The similarity of other texts to one text.
pub(crate) struct Likeness {
    pairs: HashMap<(char, char), usize>,
    count: usize,
}

impl Likeness {
    /// Counts the letter pairs of the text, once for all comparisons.
    pub(crate) fn to(text: &str) -> Self {
        let pairs = pairs(text);
        Self { count: pairs.values().sum(), pairs }
    }

    /// Returns the similarity of another text: the Dice coefficient of their letter pairs, in thousandths. The cost
    /// is one pass over the other text.
    pub(crate) fn of(&self, other: &str) -> usize {
        let other = pairs(other);
        let count = self.count + other.values().sum::<usize>();
        let common: usize =
            other.iter().map(|(pair, count)| (*count).min(self.pairs.get(pair).copied().unwrap_or(0))).sum();
        (2_000 * common).checked_div(count).unwrap_or(0)
    }
}

/// Returns the `count` candidates most similar to `wanted`, best first, without those that have little in
/// common with it.
pub(crate) fn nearest<'a>(
    wanted: &str,
    candidates: impl IntoIterator<Item = &'a str>,
    count: usize,
) -> Vec<&'a str> {
    const ALIKE_MIN: usize = 400;
    let likeness = Likeness::to(wanted);
    let mut scored: Vec<(usize, &str)> =
        candidates.into_iter().map(|candidate| (likeness.of(candidate), candidate)).collect();
    scored.retain(|(score, _)| *score >= ALIKE_MIN);
    scored.sort_by(|left, right| right.0.cmp(&left.0).then_with(|| left.1.cmp(right.1)));
    scored.into_iter().take(count).map(|(_, candidate)| candidate).collect()
}

/// Counts pairs of adjacent letters; the edges count too, so that a single letter has pairs.
fn pairs(text: &str) -> HashMap<(char, char), usize> {
    let mut letters: Vec<char> = vec!['\0'];
    letters.extend(text.chars().filter(|letter| !letter.is_whitespace()).flat_map(char::to_lowercase));
    letters.push('\0');
    let mut pairs = HashMap::new();
    for window in letters.windows(2) {
        *pairs.entry((window[0], window[1])).or_insert(0) += 1;
    }
    pairs
}

#[cfg(test)]
mod tests;

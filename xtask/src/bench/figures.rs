//! The figures of benchmarks: parsed from their output, and kept in a file with date, machine and load.
//!
//! Invariants: a figure's name is unique; the file is sorted by name, so that a new measurement is a small difference.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::Path;

use anyhow::{Context, Result};

/// A benchmark's result under one name.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Figure {
    pub(crate) value: f64,
    pub(crate) unit: String,
    /// The value relative to the baseline of the same run.
    pub(crate) ratio: Option<f64>,
}

/// When and where something was measured.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Run {
    pub(crate) date: String,
    pub(crate) machine: String,
    /// The machine's load before the run.
    pub(crate) load: String,
}

/// All figures, by name.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Figures(pub(crate) BTreeMap<String, (Figure, Run)>);

const HEADER: &str = "figure\tvalue\tunit\tratio to its baseline\tdate\tmachine\tload before";

impl Figures {
    /// Reads the figures from a file; none if it does not exist.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        match std::fs::read_to_string(path) {
            Ok(text) => Self::parse(&text).with_context(|| format!("read {}", path.display())),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(error).with_context(|| format!("read {}", path.display())),
        }
    }

    pub(crate) fn parse(text: &str) -> Result<Self> {
        let mut figures = BTreeMap::new();
        for line in text.lines().skip(1) {
            let fields: Vec<&str> = line.split('\t').collect();
            let [name, value, unit, ratio, date, machine, load] = fields[..] else {
                anyhow::bail!("a line must have seven fields: `{line}`");
            };
            let figure = figure(value, unit, ratio)?;
            let run = Run { date: date.to_owned(), machine: machine.to_owned(), load: load.to_owned() };
            figures.insert(name.to_owned(), (figure, run));
        }
        Ok(Self(figures))
    }

    pub(crate) fn text(&self) -> String {
        let mut text = format!("{HEADER}\n");
        for (name, (figure, run)) in &self.0 {
            let Figure { value, unit, ratio } = figure;
            let ratio = ratio.map_or_else(|| "-".to_owned(), |ratio| ratio.to_string());
            let _ = writeln!(
                text,
                "{name}\t{value}\t{unit}\t{ratio}\t{}\t{}\t{}",
                run.date, run.machine, run.load
            );
        }
        text
    }

    pub(crate) fn write(&self, path: &Path) -> Result<()> {
        std::fs::write(path, self.text()).with_context(|| format!("write {}", path.display()))
    }

    /// Replaces all figures of one benchmark.
    pub(crate) fn replace(&mut self, bench: &str, news: Vec<(String, Figure)>, run: &Run) {
        let names: Vec<&str> = news.iter().map(|(name, _)| name.as_str()).collect();
        self.0.retain(|name, _| !name.starts_with(&format!("{bench}/")) && !names.contains(&name.as_str()));
        self.0.extend(news.into_iter().map(|(name, figure)| (name, (figure, run.clone()))));
    }
}

/// Parses the figures in a benchmark's output: lines of `figure`, name, value, unit and ratio, separated by
/// tabs.
pub(crate) fn of_output(said: &str) -> Result<Vec<(String, Figure)>> {
    let lines = said.lines().filter_map(|line| line.strip_prefix("figure\t"));
    lines
        .map(|line| {
            let fields: Vec<&str> = line.split('\t').collect();
            let [name, value, unit, ratio] = fields[..] else {
                anyhow::bail!("a figure must have four fields: `{line}`");
            };
            Ok((name.to_owned(), figure(value, unit, ratio)?))
        })
        .collect()
}

/// Parses the samples in a benchmark's output: lines of `sample` and numbers.
pub(crate) fn samples(said: &str) -> Result<Vec<Vec<f64>>> {
    let lines = said.lines().filter_map(|line| line.strip_prefix("sample\t"));
    lines.map(|line| line.split('\t').map(number).collect()).collect()
}

fn figure(value: &str, unit: &str, ratio: &str) -> Result<Figure> {
    let ratio = if ratio == "-" { None } else { Some(number(ratio)?) };
    Ok(Figure { value: number(value)?, unit: unit.to_owned(), ratio })
}

fn number(text: &str) -> Result<f64> {
    text.parse().with_context(|| format!("`{text}` is not a number"))
}

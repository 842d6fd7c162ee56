//! Mutation testing: does any test detect changes to the code?
//!
//! Invariants: it runs by hand and not in continuous integration, since each mutant is a build; it changes a
//! copy of the tree, never the tree itself; only the tests of the changed crate are run.

use anyhow::{Context, Result, bail};

use crate::run::Cargo;

/// `cargo xtask mutants [FILE]...`: mutates these files, or all of the kernel.
pub(crate) fn mutants(files: impl Iterator<Item = String>) -> Result<()> {
    let files: Vec<String> = files.collect();
    let package = package(&files)?;
    if !Cargo::new(&["mutants", "--version"]).succeeds() {
        bail!("cargo-mutants is not installed: `cargo install cargo-mutants --locked` installs it");
    }
    let mut arguments = vec!["mutants", "--package", &package];
    arguments.extend(files.iter().flat_map(|file| ["--file", file]));
    // A mutant that loops for ever is detected, too; random tests take a while on a slow machine. The binary
    // is not a library; its unit tests are in it.
    let tests = if package == "greenroom-cli" { "--bins" } else { "--lib" };
    arguments.extend(["--minimum-test-timeout", "60", "--", tests]);
    Cargo::new(&arguments).run().context("some mutants were not caught: see mutants.out/missed.txt")?;
    Ok(())
}

/// Returns the package that these files belong to; the kernel if there are none.
fn package(files: &[String]) -> Result<String> {
    let Some(first) = files.first() else { return Ok("greenroom-kernel".to_owned()) };
    let folder = |file: &str| {
        let folder = file.strip_prefix("crates/")?.split('/').next()?;
        Some(folder.to_owned())
    };
    let Some(name) = folder(first) else {
        bail!("`{first}` is not a file of a crate, such as crates/kernel/src/plan.rs");
    };
    if let Some(other) = files.iter().find(|file| folder(file).as_ref() != Some(&name)) {
        bail!("`{other}` is not in the same crate as `{first}`: mutate one crate at a time");
    }
    Ok(if name == "greenroom" { name } else { format!("greenroom-{name}") })
}

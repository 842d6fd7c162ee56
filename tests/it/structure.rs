//! Properties of the workspace as a whole: allowed dependencies, and requirements on every file.
//!
//! Invariants: these tests only read files, so they report what a reviewer of the checkout would report.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// The crates of ours that each one may use. A new crate needs a line here, and a place in
/// `docs/architecture.md`.
const EDGES: &[(&str, &[&str])] = &[
    ("greenroom-kernel", &[]),
    ("greenroom-store", &["greenroom-kernel"]),
    ("greenroom-postgres", &["greenroom-kernel", "greenroom-store"]),
    ("greenroom-conformance", &["greenroom-kernel", "greenroom-store", "greenroom-postgres"]),
    ("greenroom-provider", &["greenroom-kernel"]),
    ("greenroom-tools", &["greenroom-kernel"]),
    ("greenroom-formats", &["greenroom-kernel"]),
    ("greenroom-mcp", &["greenroom-kernel", "greenroom-provider", "greenroom-tools"]),
    ("greenroom-policy", &[]),
    ("greenroom-files", &[]),
    ("greenroom-simulator", &["greenroom-kernel", "greenroom-provider"]),
    (
        "greenroom",
        &[
            "greenroom-kernel", "greenroom-policy", "greenroom-postgres", "greenroom-store",
            "greenroom-provider", "greenroom-tools",
        ],
    ),
    ("greenroom-server", &["greenroom", "greenroom-formats", "greenroom-kernel", "greenroom-store"]),
    ("greenroom-terminal", &["greenroom", "greenroom-formats", "greenroom-kernel", "greenroom-tools"]),
    // It accesses sessions only through the server's client: no store.
    (
        "greenroom-chat",
        &[
            "greenroom", "greenroom-files", "greenroom-kernel", "greenroom-server", "greenroom-terminal",
            "greenroom-tools",
        ],
    ),
    // So does it, with the chat's requests and commands.
    (
        "greenroom-acp",
        &["greenroom", "greenroom-chat", "greenroom-kernel", "greenroom-server", "greenroom-terminal"],
    ),
    (
        "greenroom-cli",
        &[
            "greenroom", "greenroom-acp", "greenroom-chat", "greenroom-server", "greenroom-files",
            "greenroom-formats", "greenroom-simulator", "greenroom-kernel", "greenroom-mcp",
            "greenroom-store", "greenroom-terminal", "greenroom-tools",
        ],
    ),
];

/// A crate that has rooms.
struct Rooms {
    sources: &'static str,
    /// Files that belong to no room: a table of contents, a test.
    outside: &'static [&'static str],
    /// The rooms, and which others each one may touch.
    rooms: &'static [(&'static str, &'static [&'static str])],
    /// The minimum number of references between modules that must be found, so that the test is not vacuous.
    references_min: usize,
}

/// The crates that have rooms. No reference points up, so a circle stays within a room; ADR 36 and ADR 37
/// give the reasons.
const ROOMS: &[Rooms] = &[
    Rooms {
        sources: "crates/greenroom/src/",
        outside: &["lib", "schemas"],
        rooms: &[
            ("api", &["actors", "core", "agent", "lane", "limits", "events", "values"]),
            ("actors", &["core", "agent", "lane", "limits", "events", "values"]),
            ("core", &["agent", "lane", "limits", "events", "values"]),
            // An agent may bring its own provider, with its limits.
            ("agent", &["lane", "limits", "values"]),
            ("lane", &["events", "values"]),
            ("limits", &["values"]),
            ("events", &["values"]),
            ("values", &[]),
        ],
        references_min: 400,
    },
    Rooms {
        sources: "crates/cli/src/",
        outside: &["main"],
        rooms: &[
            ("commands", &["host", "agent", "config", "args", "error"]),
            ("host", &["agent", "config", "args", "error"]),
            ("agent", &["config", "args", "error"]),
            ("config", &["error"]),
            ("args", &["config"]),
            ("error", &[]),
        ],
        references_min: 150,
    },
];

/// Libraries that only one crate may use, so that they can be replaced there.
const OWNED: &[(&str, &str)] = &[
    ("sled", "greenroom-store"),
    ("bincode", "greenroom-store"),
    ("crc32c", "greenroom-store"),
    ("tokio-rustls", "greenroom-postgres"),
    ("async-openai", "greenroom-provider"),
    ("reqwest", "greenroom-provider"),
    ("hyper-rustls", "greenroom-provider"),
    ("ractor", "greenroom"),
    ("rmcp", "greenroom-mcp"),
    ("agent-client-protocol", "greenroom-acp"),
    ("axum", "greenroom-server"),
    ("clap", "greenroom-cli"),
    ("crossterm", "greenroom-terminal"),
    ("tracing-subscriber", "greenroom-cli"),
    ("opentelemetry-otlp", "greenroom-cli"),
    ("prometheus-client", "greenroom"),
];

/// Forbidden in a pure crate: waiting, storage, network, clocks, random numbers.
const IMPURE: &[&str] = &[
    "tokio", "tokio-util", "futures-util", "ractor", "sled", "bincode", "reqwest", "async-openai", "axum",
    "hyper", "rustix", "chrono", "time", "jiff", "humantime", "uuid", "ulid", "rand", "fastrand",
    "getrandom", "tempfile",
];

/// The maximum length of a source file, in lines, except for tests.
const LINES_MAX: usize = 700;

/// Words that reveal the machine or the tools with which a file was written, split so that they do not occur
/// here.
const FORBIDDEN: &[&str] = &[
    concat!("/wo", "rk/"),
    concat!("/ro", "ot/"),
    concat!("/ho", "me/user/"),
    concat!("shared/", "design"),
    concat!("helper_", "common"),
    concat!("co-", "authored-by"),
    concat!("generated ", "with"),
    concat!("generated by ", "an "),
    concat!("as an ai ", "language"),
    concat!("chat", "gpt"),
    concat!("fix", "me:"),
    concat!("to", "do:"),
];

#[test]
fn crates_know_only_whom_they_may() {
    let edges: BTreeMap<&str, &[&str]> = EDGES.iter().copied().collect();
    for manifest in manifests() {
        let name = manifest.name.as_str();
        let allowed = edges.get(name).unwrap_or_else(|| panic!("{name} has no line in EDGES"));
        for used in manifest.dependencies.iter().filter(|used| used.starts_with("greenroom")) {
            assert!(allowed.contains(&used.as_str()), "{name} must not depend on {used}");
        }
    }
}

#[test]
fn rooms_touch_only_whom_they_may() {
    let wrong: Vec<String> = ROOMS.iter().flat_map(wrong_references).collect();
    assert!(wrong.is_empty(), "{} arrows that may not be:\n{}", wrong.len(), wrong.join("\n"));
}

/// Returns the references in a crate from a room to one that it must not use.
fn wrong_references(Rooms { sources, outside, rooms, references_min }: &Rooms) -> Vec<String> {
    let rooms: BTreeMap<&str, &[&str]> = rooms.iter().copied().collect();
    let mut references = 0;
    let mut wrong = Vec::new();
    for file in source_files(sources) {
        let path = shown(&file);
        let inside = path.strip_prefix(sources).expect("it is below the sources").trim_end_matches(".rs");
        let (room, depth) = (inside.split('/').next().unwrap_or(inside), inside.matches('/').count());
        if outside.contains(&room) {
            continue;
        }
        let may = rooms.get(room).unwrap_or_else(|| panic!("{path} is in no room; ROOMS has them"));
        for (number, line) in code_lines(&read(&file)) {
            for rest in line.split("crate::").skip(1) {
                // `crate::{a, b::c}` names several.
                let named = match rest.strip_prefix('{') {
                    Some(group) => group.split(',').map(str::trim).collect(),
                    None => vec![rest],
                };
                for name in named {
                    let to = name.split(|letter: char| !letter.is_alphanumeric() && letter != '_').next();
                    let to = to.unwrap_or_default();
                    references += 1;
                    if to != room && !may.contains(&to) {
                        wrong.push(format!(
                            "{path}:{number}: `{room}` must not touch `crate::{to}`: {}",
                            line.trim()
                        ));
                    }
                }
            }
            if line.contains(&"super::".repeat(depth + 1)) {
                wrong.push(format!("{path}:{number}: leaves its room by `super`: {}", line.trim()));
            }
        }
    }
    assert!(references > *references_min, "only {references} references were found in {sources}");
    wrong
}

/// A file with so many modules has a page that names them.
const PAGE_MODULES_MIN: usize = 10;

/// The page of a crate is its table of contents, and so is that of a folder with many modules. That of `greenroom` is for
/// programs, and its rooms have pages of their own.
#[test]
fn a_page_names_its_modules() {
    let crates = ["chat", "files", "formats", "kernel", "policy", "server", "simulator", "terminal", "tools"];
    let (mut named, mut missing) = (0, Vec::new());
    for file in files(|path| {
        let name = shown(path);
        name.contains("/src/") && name.ends_with(".rs") && !name.ends_with("/tests.rs")
    }) {
        let (text, name) = (read(&file), shown(&file));
        let is_crate = crates.iter().any(|name_of| name == format!("crates/{name_of}/src/lib.rs"));
        let modules =
            code_lines(&text).filter(|(_, line)| line.ends_with(';') && line.contains("mod ")).count();
        if !is_crate && modules < PAGE_MODULES_MIN {
            continue;
        }
        let page: String = text.lines().filter(|line| line.starts_with("//!")).collect();
        for (_, line) in code_lines(&text) {
            let line = line.trim_start_matches("pub(crate) ").trim_start_matches("pub(super) ");
            let module = line.trim_start_matches("pub ").strip_prefix("mod ");
            let Some(module) = module.and_then(|rest| rest.strip_suffix(';')) else { continue };
            named += 1;
            if module != "tests" && !page.contains(&format!("`{module}`")) {
                missing.push(format!("{name}: {module}"));
            }
        }
    }
    assert!(named > 250, "only {named} modules were found");
    assert!(missing.is_empty(), "their page does not name these: {missing:?}");
}

/// Programs depend on `greenroom`, and their tests on the simulator: everything they need is reachable from
/// there.
#[test]
fn examples_and_guide_need_no_other_crate_of_ours() {
    let is_shown = |path: &Path| {
        let path = shown(path);
        path.starts_with("examples/") || path.starts_with("docs/guide/") || path == "README.md"
    };
    let shown_files = files(is_shown);
    assert!(shown_files.len() > 8, "the examples were not found");
    for file in shown_files {
        let text = read(&file);
        for inner in [
            "greenroom_kernel::", "greenroom_kernel", "greenroom_provider", "greenroom_tools",
            "greenroom_store",
        ] {
            assert!(!text.contains(inner), "{} reaches into {inner}", self::shown(&file));
        }
    }
}

/// A user of `greenroom` reads these names. All of them are named in `lib.rs`, each at one place; the prelude repeats some.
#[test]
fn the_library_has_few_names_and_each_has_one_path() {
    const NAMES_MAX: usize = 240;
    let text = read(&root().join("crates/greenroom/src/lib.rs"));
    let (mut module, mut item) = (String::new(), None::<String>);
    let mut names: Vec<(String, String)> = Vec::new();
    for (number, line) in code_lines(&text) {
        assert!(!line.contains("::*"), "lib.rs:{number}: a glob hides how many names there are");
        let trimmed = line.trim();
        if let Some(name) = trimmed.strip_prefix("pub mod ") {
            module = name.trim_end_matches([' ', '{', ';']).to_owned();
            names.push((String::new(), module.clone()));
            assert!(
                trimmed.ends_with('{'),
                "lib.rs:{number}: the names of a module in a file are not seen here"
            );
        } else if line == "}" && item.is_none() {
            module.clear();
        } else if let Some(rest) = trimmed.strip_prefix("pub use ") {
            item = Some(rest.to_owned());
        } else if let Some(item) = &mut item {
            item.push_str(trimmed);
        }
        if item.as_ref().is_some_and(|item| item.ends_with(';')) {
            let item = item.take().unwrap_or_default();
            let leaves =
                item.trim_end_matches(';').rsplit_once('{').map_or(item.as_str(), |(_, leaves)| leaves);
            let leaves = leaves.split([',', '}', ';']).map(str::trim).filter(|leaf| !leaf.is_empty());
            let name = |leaf: &str| {
                let leaf = leaf.rsplit(" as ").next().unwrap_or(leaf);
                leaf.rsplit("::").next().unwrap_or(leaf).to_owned()
            };
            names.extend(leaves.map(|leaf| (module.clone(), name(leaf))));
        }
    }
    let seen: Vec<_> =
        names.iter().filter(|(module, name)| module != "internal" && name != "internal").collect();
    assert!(seen.len() > 100, "only {} names were found", seen.len());
    assert!(seen.len() <= NAMES_MAX, "{} public names; at most {NAMES_MAX}", seen.len());
    let mut once = BTreeSet::new();
    for (module, name) in seen.iter().filter(|(module, _)| module != "prelude") {
        assert!(once.insert(name), "`{name}` has another path than `{module}`");
    }
}

/// What only its own crate uses is `pub(crate)`, so that the compiler reports it once nobody uses it. Types are not checked:
/// they may be parts of a public signature.
#[test]
fn functions_and_constants_are_public_for_another_crate() {
    let crates = ["chat", "files", "formats", "kernel", "server", "terminal", "tools"];
    let own = |path: &str| {
        crates.iter().position(|name| {
            path.strip_prefix("crates/")
                .and_then(|path| path.strip_prefix(name)?.strip_prefix("/src/"))
                .is_some()
        })
    };
    // The crates' sources that have a word, a bit each; the first bit is that of all other files.
    let mut users: BTreeMap<String, u32> = BTreeMap::new();
    for file in files(|path| path.extension().is_some_and(|extension| extension == "rs")) {
        let bit = 1 << own(&shown(&file)).map_or(0, |index| index + 1);
        for (_, line) in code_lines(&read(&file)) {
            for word in line.split(|letter: char| !letter.is_alphanumeric() && letter != '_') {
                match users.get_mut(word) {
                    Some(bits) => *bits |= bit,
                    None => drop(users.insert(word.to_owned(), bit)),
                }
            }
        }
    }
    let (mut found, mut wrong) = (0, Vec::new());
    for (index, name) in crates.iter().enumerate() {
        for file in source_files(&format!("crates/{name}/src/")) {
            for (number, line) in code_lines(&read(&file)) {
                let Some(item) = line.trim_start().strip_prefix("pub ") else { continue };
                let item = item.trim_start_matches("const ").trim_start_matches("async ");
                let item = if item.starts_with("fn ") { item.trim_start_matches("fn ") } else { item };
                let is_item = line.contains(" fn ") || line.contains("pub const ");
                let end = item.find(|letter: char| !letter.is_alphanumeric() && letter != '_');
                let Some(item) = end.map(|end| &item[..end]).filter(|item| is_item && !item.is_empty())
                else {
                    continue;
                };
                found += 1;
                if users[item] == 1 << (index + 1) {
                    wrong.push(format!("{}:{number}: {item}", shown(&file)));
                }
            }
        }
    }
    assert!(found > 600, "only {found} items were found");
    assert!(wrong.is_empty(), "only their own crate uses these:\n{}", wrong.join("\n"));
}

/// A test may import everything of the crate's root, its prelude and the test kit.
#[test]
fn the_test_kit_shares_no_name_with_the_crate() {
    let names = |file: &str, from: &str, before: &str| -> BTreeSet<String> {
        let text = read(&root().join(file));
        let part = text.split_once(from).expect("where it begins").1;
        let part = part.split_once(before).map_or(part, |(part, _)| part);
        let exports = part.split(';').filter(|item| item.contains("pub use "));
        exports
            .flat_map(|item| {
                item.rsplit("pub use ").next().unwrap_or_default().split(['{', '}', ',', ':', ' ', '\n'])
            })
            .filter(|name| name.starts_with(|letter: char| letter.is_ascii_uppercase()) || *name == "tool")
            .map(str::to_owned)
            .collect()
    };
    let root = names("crates/greenroom/src/lib.rs", "mod schemas;", "/// Model providers");
    let prelude = names("crates/greenroom/src/lib.rs", "pub mod prelude {", "\n}");
    let kit = names("crates/simulator/src/lib.rs", "pub mod check;", "/// Errors of the simulator");
    assert!(root.contains("GivenAnswer") && root.len() > 100, "{root:?}");
    assert!(prelude.contains("Reply") && prelude.contains("ToolError") && prelude.len() > 15, "{prelude:?}");
    assert!(kit.contains("Answer") && kit.contains("ScriptedModel") && kit.len() > 15, "{kit:?}");
    let both: Vec<_> = root.union(&prelude).filter(|name| kit.contains(*name)).collect();
    assert!(both.is_empty(), "named in both: {both:?}");
}

#[test]
fn some_libraries_have_one_owner() {
    for manifest in manifests() {
        for (library, owner) in OWNED {
            let uses_it = manifest.dependencies.contains(*library);
            assert!(!uses_it || manifest.name == *owner, "{} must not depend on {library}", manifest.name);
        }
    }
}

#[test]
fn the_kernel_is_pure() {
    let kernel = manifests().into_iter().find(|manifest| manifest.name == "greenroom-kernel").unwrap();
    for library in IMPURE {
        assert!(!kernel.dependencies.contains(*library), "the kernel must not depend on {library}");
    }
    for file in source_files("crates/kernel/src") {
        let text = read(&file);
        for word in ["Instant::now", "SystemTime::now", "std::fs", "std::net", "std::env", "std::thread"] {
            assert!(!text.contains(word), "{} uses {word}", shown(&file));
        }
    }
}

/// A module inserted between a comment and its module takes the comment, and leaves the other without one.
#[test]
fn every_module_of_these_tests_has_a_comment_of_its_own() {
    let text = read(&root().join("tests/it/main.rs"));
    let lines: Vec<&str> = text.lines().collect();
    let is_module = |line: &&str| line.starts_with("mod ");
    let bare: Vec<_> = lines.windows(2).filter(|pair| is_module(&pair[1])).collect();
    assert!(bare.len() > 30, "only {} modules", bare.len());
    let bare: Vec<_> = bare.iter().filter(|pair| !pair[0].starts_with("/// ")).map(|pair| pair[1]).collect();
    assert_eq!(bare, Vec::<&str>::new(), "these have no comment of their own");
}

#[test]
fn only_the_tools_start_processes_and_only_the_cli_prints() {
    for file in source_files("crates") {
        let path = shown(&file);
        for (number, line) in code_lines(&read(&file)) {
            // Also `process::Command::new`, but no other type whose name ends so.
            let starts = line
                .match_indices("Command::new(")
                .any(|(at, _)| !line[..at].ends_with(|before: char| before.is_alphanumeric()));
            // The conformance crate is for tests, and starts servers for them.
            let may_start = path.starts_with("crates/tools/") || path.starts_with("crates/conformance/");
            assert!(!starts || may_start, "{path}:{number} starts a process: {line}");
            let prints = ["println!(", "eprintln!(", "print!(", "eprint!("];
            let prints = prints.iter().any(|word| line.trim_start().starts_with(word));
            let may_print = path.starts_with("crates/cli/") || path.starts_with("crates/conformance/");
            assert!(!prints || may_print, "{path}:{number} prints: {line}");
        }
    }
}

/// Everything written to a terminal passes one place, which sanitises it. `rpc` and `acp` write to a program.
#[test]
fn only_the_screen_writes_to_the_terminal() {
    // The chat's frames consist of rows, which hold only sanitised text.
    let may = [
        "crates/terminal/src/screen.rs", "crates/terminal/src/input.rs", "crates/cli/src/commands/acp.rs",
        "crates/cli/src/commands/rpc.rs",
    ];
    let mut seen = 0;
    let folders = ["crates/cli/src", "crates/chat/src", "crates/terminal/src"];
    for file in folders.into_iter().flat_map(source_files) {
        let path = shown(&file);
        for (number, line) in code_lines(&read(&file)) {
            let writes = [
                "stdout()", "stderr()", "stdout_locked", "print!(", "println!(", "eprint!(", "eprintln!(",
                "dbg!(",
            ];
            let writes = writes.iter().any(|word| line.contains(word));
            assert!(
                !writes || may.contains(&path.as_str()),
                "{path}:{number} writes past the screen: {line}"
            );
            seen += usize::from(writes);
        }
    }
    assert!(seen >= 8, "{seen}: the screen itself is seen");
}

#[test]
fn every_crate_takes_the_workspace_lints() {
    for manifest in manifests() {
        let text = read(&manifest.path);
        assert!(text.contains("[lints]\nworkspace = true"), "{} has no [lints]", shown(&manifest.path));
    }
}

#[test]
fn every_source_file_begins_with_what_it_is_for() {
    for file in files(|path| path.extension().is_some_and(|extension| extension == "rs")) {
        let text = read(&file);
        let path = shown(&file);
        assert!(text.starts_with("//! "), "{path} does not begin with `//! `");
        assert!(
            file.file_name().is_some_and(|name| name != "mod.rs"),
            "{path}: use `name.rs` beside `name/`"
        );
        let lines = text.lines().count();
        assert!(is_test(&file) || lines <= LINES_MAX, "{path} has {lines} lines; at most {LINES_MAX}");
    }
}

#[test]
fn no_file_tells_where_it_was_written() {
    let is_text = |path: &Path| {
        let extension = path.extension().and_then(|extension| extension.to_str());
        matches!(extension, Some("rs" | "toml" | "md" | "sh" | "yml" | "yaml")) || path.ends_with(".ci/run")
    };
    for file in files(is_text) {
        let text = read(&file).to_lowercase();
        for word in FORBIDDEN {
            assert!(!text.contains(word), "{} contains {word:?}", shown(&file));
        }
    }
}

/// The programs in the documentation are documentation tests of the examples. Each page of the guide has one;
/// a page that is not among the tests, or a program that is not run, would be unchecked.
#[test]
fn every_program_of_the_documentation_is_run() {
    let pages = files(|path| {
        let name = shown(path);
        let is_page = name.starts_with("docs/") && path.extension().is_some_and(|it| it == "md");
        is_page && (name.starts_with("docs/guide/") || read(path).contains("```rust\n"))
    });
    let included = read(&root().join("examples/lib.rs"));
    let mut programs = 0;
    for page in &pages {
        let path = shown(page);
        let line = format!("#[doc = include_str!(\"../{path}\")]");
        assert!(included.contains(&line), "examples/lib.rs lacks {line}");
        let text = read(page);
        let openings = text.lines().filter(|line| line.starts_with("```")).step_by(2);
        for opening in openings {
            match opening.trim_start_matches('`') {
                "rust" => programs += 1,
                "" => panic!("{path}: a block without a language is taken for a program"),
                kind => assert!(!kind.starts_with("rust"), "{path}: {kind:?} is not run"),
            }
        }
    }
    assert!(programs >= pages.len() && programs > 0, "{programs} programs on {} pages", pages.len());
}

/// A link that leads nowhere is a page that was renamed, or a heading, and a reader who is lost.
#[test]
fn every_link_of_the_documentation_leads_somewhere() {
    let pages = files(|path| {
        let name = shown(path);
        let is_page =
            name.starts_with("docs/") || ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"].contains(&&*name);
        is_page && path.extension().is_some_and(|it| it == "md")
    });
    let (mut links, mut broken) = (0, Vec::new());
    for page in &pages {
        let text = prose(&read(page));
        for link in text.split("](").skip(1).filter_map(|rest| rest.split(')').next()) {
            if link.starts_with("http") {
                continue;
            }
            links += 1;
            let (path, anchor) = link.split_once('#').unwrap_or((link, ""));
            let target = if path.is_empty() { page.clone() } else { page.parent().unwrap().join(path) };
            let is_there = target.exists()
                && (anchor.is_empty()
                    || prose(&read(&target)).lines().any(|line| anchor_of(line) == Some(anchor.into())));
            if !is_there {
                broken.push(format!("{}: {link}", shown(page)));
            }
        }
    }
    assert!(links > 100, "only {links} links were found");
    assert!(broken.is_empty(), "links that lead nowhere:\n{}", broken.join("\n"));
}

/// The table of places is for newcomers, who cannot tell a file that was moved from one that they do not find.
#[test]
fn the_places_of_the_architecture_are_files() {
    let page = read(&root().join("docs/architecture.md"));
    let table = page.split_once("\n## Code locations\n").expect("the table").1;
    let (mut found, mut missing) = (0, Vec::new());
    for row in table.lines().filter(|line| line.starts_with("| ")) {
        let places = row.split(" | ").last().unwrap_or_default().split('`').skip(1).step_by(2);
        for place in places.filter(|place| place.contains('/')) {
            found += 1;
            let (name, path) = place.split_once('/').unwrap_or_default();
            let [inside, beside] = ["src/", ""].map(|folder| format!("crates/{name}/{folder}{path}"));
            if ![inside.as_str(), &beside, place].iter().any(|path| root().join(path).exists()) {
                missing.push(place.to_owned());
            }
        }
    }
    assert!(found > 60, "only {found} places were found");
    assert!(missing.is_empty(), "there are no such files: {missing:?}");
}

/// A page without its blocks of code.
fn prose(page: &str) -> String {
    page.split("\n```").step_by(2).map(|part| format!("{part}\n")).collect()
}

/// How a heading is linked to.
fn anchor_of(line: &str) -> Option<String> {
    let heading = line.strip_prefix('#')?.trim_start_matches('#').trim().to_lowercase();
    let kept = heading.chars().filter(|char| char.is_alphanumeric() || " -_".contains(*char));
    Some(kept.map(|char| if char == ' ' { '-' } else { char }).collect())
}

/// The relevant parts of a crate's manifest.
struct Manifest {
    path: PathBuf,
    name: String,
    /// The build dependencies, without those of tests.
    dependencies: BTreeSet<String>,
}

/// Returns the manifests of all crates.
fn manifests() -> Vec<Manifest> {
    let crates = files(|path| path.ends_with("Cargo.toml") && shown(path).starts_with("crates/"));
    assert!(crates.len() >= 7, "the crates were not found");
    crates.into_iter().map(manifest).collect()
}

fn manifest(path: PathBuf) -> Manifest {
    let (mut section, mut name) = (String::new(), String::new());
    let mut dependencies = BTreeSet::new();
    for line in read(&path).lines().map(str::trim) {
        if let Some(header) = line.strip_prefix('[') {
            section = header.trim_end_matches(']').to_owned();
            // `[dependencies.NAME]`
            dependencies.extend(section.strip_prefix("dependencies.").map(str::to_owned));
            continue;
        }
        let Some((key, value)) = line.split_once('=').filter(|_| !line.starts_with('#')) else { continue };
        let key = key.split('.').next().unwrap_or(key).trim();
        let is_dependencies = section.split('.').next_back() == Some("dependencies")
            || section.split('.').next_back() == Some("build-dependencies");
        if section == "package" && key == "name" {
            name = value.trim().trim_matches('"').to_owned();
        } else if is_dependencies {
            dependencies.insert(key.to_owned());
        }
    }
    Manifest { path, name, dependencies }
}

/// Returns the source files under a directory, without tests.
fn source_files(under: &str) -> Vec<PathBuf> {
    let found = files(|path| {
        let is_source = path.extension().is_some_and(|extension| extension == "rs");
        is_source && shown(path).starts_with(under) && !is_test(path)
    });
    assert!(!found.is_empty(), "there is nothing under {under}");
    found
}

/// Whether a file holds tests: `tests.rs`, `tests/…`.
fn is_test(path: &Path) -> bool {
    shown(path).split('/').any(|part| part == "tests" || part == "tests.rs")
}

/// Returns the lines that are not comments, numbered from 1.
fn code_lines(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let numbered = text.lines().enumerate().map(|(index, line)| (index + 1, line));
    numbered.filter(|(_, line)| !line.trim_start().starts_with("//"))
}

/// All wanted files of the checkout, without build output and hidden folders except `.ci`.
fn files(is_wanted: impl Fn(&Path) -> bool) -> Vec<PathBuf> {
    let (mut found, mut folders) = (Vec::new(), vec![root()]);
    while let Some(folder) = folders.pop() {
        for entry in folder.read_dir().unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
            if path.is_dir() && !path.is_symlink() {
                let is_build_output = name == "target" || path.join("CACHEDIR.TAG").exists();
                let is_hidden = name.starts_with('.') && name != ".ci";
                if !is_build_output && !is_hidden {
                    folders.push(path);
                }
            } else if is_wanted(&path) {
                found.push(path);
            }
        }
    }
    found.sort();
    found
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_owned()
}

/// Returns a path relative to the checkout.
fn shown(path: &Path) -> String {
    path.strip_prefix(root()).unwrap_or(path).to_string_lossy().replace('\\', "/")
}

fn read(path: &Path) -> String {
    std::fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", shown(path)))
}

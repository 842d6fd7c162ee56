//! The permissions of each layer, the source of each value, and which files are read at all.

use std::os::unix::fs::PermissionsExt as _;

use serde_json::json;

use greenroom_kernel::settings::COMPACT_PROMPT_BYTES_MAX;

use super::merge::can_be_null;
use super::permitted::expanded;
use super::*;
use crate::config::overrides;

mod addresses;
mod values;

/// A user's home, and a folder with a project.
struct Folders {
    dir: tempfile::TempDir,
}

impl Folders {
    fn new() -> Self {
        let place = Self { dir: tempfile::tempdir().expect("a folder") };
        for folder in [place.own().parent().expect("it is in a folder"), &place.work()] {
            std::fs::create_dir_all(folder).expect("a folder");
        }
        place
    }

    /// Creates these files; an empty text creates none.
    fn with(own: &str, project: &str) -> Self {
        let place = Self::new();
        for (path, text) in [(place.own(), own), (place.project(), project)] {
            if !text.is_empty() {
                place.write(&path, text, 0o600);
            }
        }
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().canonicalize().expect("it is there").join(name)
    }

    fn own(&self) -> PathBuf {
        self.path("home/.config/greenroom/greenroom.yaml")
    }

    fn work(&self) -> PathBuf {
        self.path("project")
    }

    fn project(&self) -> PathBuf {
        self.work().join(FILE_NAME)
    }

    fn write(&self, path: &Path, text: impl AsRef<[u8]>, mode: u32) {
        std::fs::write(path, text).expect("written");
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).expect("set");
    }

    fn surroundings(&self, variables: &[(&str, &str)]) -> Surroundings {
        let home = self.path("home");
        let mut variables: BTreeMap<&str, &str> = variables.iter().copied().collect();
        variables.entry("HOME").or_insert(home.to_str().expect("UTF-8"));
        let handed = json!({ "folder": self.work(), "variables": variables, "umask": 18 });
        Surroundings::of(serde_json::from_value(handed).expect("surroundings"))
    }

    fn load(&self, flags: &[&str]) -> Result<Loaded> {
        self.load_with(flags, &[])
    }

    fn load_with(&self, flags: &[&str], variables: &[(&str, &str)]) -> Result<Loaded> {
        let flags: Vec<String> = flags.iter().map(|flag| (*flag).to_owned()).collect();
        load(None, Overrides::read(&flags, &self.surroundings(variables))?)
    }

    fn error(&self) -> String {
        said(self.load(&[]))
    }
}

fn said<T>(result: Result<T>) -> String {
    result.err().map(|error| error.to_string()).unwrap_or_default()
}

fn value(text: &str) -> Value {
    serde_norway::from_str(text).expect("YAML")
}

/// Returns the effective value of this setting, as YAML.
fn holds(loaded: &Loaded, key: &str) -> String {
    let all = serde_norway::to_value(&loaded.config).expect("YAML");
    serde_norway::to_string(setting(&all, key).expect("there is such a setting"))
        .expect("YAML")
        .trim()
        .to_owned()
}

#[test]
fn a_project_chooses_and_lowers_and_loosens_nothing() {
    for (own, project, key, expect, notes) in [
        ("", "model: m", "model", "m", 0),
        ("model: a", "model: b", "model", "b", 0),
        ("", "compaction: { cut: nearest }", "compaction.cut", "nearest", 0),
        (
            "compaction: { threshold: 0.5 }", "compaction: { threshold: 0.9 }", "compaction.threshold",
            "0.9", 0,
        ),
        ("limits: { steps_max: 9 }", "limits: { steps_max: 8 }", "limits.steps_max", "8", 0),
        ("limits: { steps_max: 9 }", "limits: { steps_max: 9 }", "limits.steps_max", "9", 0),
        ("limits: { steps_max: 9 }", "limits: { steps_max: 10 }", "limits.steps_max", "9", 1),
        ("limits: { cost_usd_max: 1.5 }", "limits: { cost_usd_max: 1.6 }", "limits.cost_usd_max", "1.5", 1),
        ("", "limits: { cost_usd_max: 1.6 }", "limits.cost_usd_max", "1.6", 0),
        ("limits: { cost_usd_max: 1.5 }", "limits: { cost_usd_max: null }", "limits.cost_usd_max", "1.5", 0),
        // A limit that cannot be `null` is not lowered to its default either.
        ("limits: { steps_max: 3 }", "limits: { steps_max: null }", "limits.steps_max", "3", 0),
        ("limits: { steps_max: 3 }", "limits:", "limits.steps_max", "3", 0),
        ("context_window: 9000", "context_window: null", "context_window", "null", 0),
        ("context_window: 9000", "context_window: 10000", "context_window", "9000", 1),
        (
            "compaction: { context_window: 9000 }", "compaction: { context_window: null }",
            "compaction.context_window", "null", 0,
        ),
        (
            "compaction: { max_request_bytes: 9000 }",
            "compaction: { max_request_bytes: null }",
            "compaction.max_request_bytes",
            "9000",
            0,
        ),
        // A setting's old name works, too.
        (
            "compaction: { auto_compact_token_limit: 9000 }",
            "compaction: { model_auto_compact_token_limit: 8000 }",
            "compaction.auto_compact_token_limit",
            "8000",
            0,
        ),
        ("model: a", "# nothing", "model", "a", 0),
    ] {
        let loaded =
            Folders::with(own, project).load(&[]).unwrap_or_else(|error| panic!("{project}: {error}"));
        assert_eq!(holds(&loaded, key), expect, "{own} and {project}");
        assert_eq!((loaded.notes.len(), loaded.warnings.len()), (notes, 0), "{project}: {:?}", loaded.notes);
        for note in &loaded.notes {
            assert!(
                note.starts_with(&format!("{key} stays at {expect}: greenroom.yaml asks for ")),
                "{note}"
            );
        }
    }
}

#[test]
fn a_project_grants_nothing() {
    for (project, parts) in [
        ("providers: { x: { base_url: 'http://x' } }", &["line 1: providers: only your own file, "][..]),
        (
            "model: m\ntrusted_folders: [/]",
            &["project/greenroom.yaml, line 2: trusted_folders: only your own"],
        ),
        ("limits: { live_sessions_max: 7 }", &["line 1: limits.live_sessions_max: only your own"]),
        ("limits: { labels: { a: {} } }", &["line 1: limits.labels: only your own"]),
        ("models: { m: { price: { input: 0, output: 0 } } }", &["line 1: models: only your own"]),
        ("model_settings: { temperature: 1 }", &["line 1: model_settings: only your own"]),
        ("provider: { base_url: 'http://x/v1?key=k' }", &["line 1: provider: must be"]),
        ("provider: local", &["project/greenroom.yaml, line 1: provider: ", "local"]),
    ] {
        let error = Folders::with("", project).error();
        assert!(parts.iter().all(|part| error.contains(part)), "{project}: {error}");
    }
}

/// Neither a command that runs nor an address that gets a key comes from a project, even if the user trusts its folder
/// or has a provider of that name, and however it is written.
#[test]
fn a_project_runs_no_command_and_sends_no_key_anywhere() {
    let own = "provider: mine\nproviders: { mine: { base_url: 'http://localhost:1', key_command: 'pass show key' } }\n";
    for project in [
        "providers: { mine: { key_command: 'touch /tmp/here' } }",
        "providers: { mine: { base_url: 'http://elsewhere/v1' } }",
        "providers: { mine: { api_key_env: AWS_SECRET_ACCESS_KEY } }",
        "providers: { mine: { headers: { x: '${HOME}' } } }",
        "providers: { mine: { key_command_ttl_s: 1 } }",
        "providers: { mine: { in_flight_max: 10000 } }",
        "providers: { mine: { idle_timeout_s: 1000000 } }",
        "providers: { mine: { resend_reasoning: reasoning } }",
        "models: { 'gpt-5.5': { resend_reasoning: reasoning } }",
        "trusted_folders: ['/']",
        "providers: { other: { key_command: 'touch /tmp/here' } }\nprovider: other",
        "\"providers\": { \"mine\": { \"key_command\": \"touch /tmp/here\" } }",
        "providers: null",
        "providers: {}",
        "key_command: 'touch /tmp/here'",
        "base_url: 'http://elsewhere/v1'",
        "provider: { key_command: 'touch /tmp/here' }",
        "<<: { providers: { mine: { key_command: 'touch /tmp/here' } } }",
        "!!map providers: { mine: { key_command: 'touch /tmp/here' } }",
        "x: &x { mine: { key_command: 'touch /tmp/here' } }\nproviders: *x",
        "{}\n---\nproviders: { mine: { key_command: 'touch /tmp/here' } }",
        "defaults: &d { providers: { mine: { key_command: 'touch /tmp/here' } } }\n<<: *d",
        "limits: { key_command: 'touch /tmp/here' }",
        "compaction: { providers: { mine: { key_command: 'touch /tmp/here' } } }",
    ] {
        for trusts in [false, true] {
            let place = Folders::new();
            let trusted = format!("trusted_folders: [{:?}]\n", place.work());
            place.write(&place.own(), if trusts { format!("{own}{trusted}") } else { own.to_owned() }, 0o600);
            place.write(&place.project(), project, 0o600);
            let refused =
                place.load(&[]).map(|loaded| serde_norway::to_string(&loaded.config).expect("YAML"));
            let error =
                refused.map_or_else(|error| format!("{error:#}"), |config| panic!("{project}: {config}"));
            assert!(error.contains("project/greenroom.yaml"), "{project}: {error}");
        }
    }
}

/// Text in a folder goes to the user's own server by default. A project cannot redirect it.
#[test]
fn a_project_does_not_lead_away_from_the_users_own_server() {
    let local = "provider: local\nproviders: { local: { base_url: 'http://localhost:1' } }\n";
    let error = Folders::with(local, "model: m\nprovider: openai").error();
    assert!(error.contains("greenroom.yaml, line 2: provider: your own file chooses local"), "{error}");
    for (own, project, provider) in [
        (local, "model: m", "local"),
        (&local.replace("} }", "}, openai: {} }"), "provider: openai", "openai"),
        (&local.replace("provider: local\n", ""), "provider: openai", "openai"),
        (&local.replace("provider: local\n", ""), "provider: local", "local"),
    ] {
        let loaded = Folders::with(own, project).load(&[]).unwrap_or_else(|error| panic!("{own}: {error}"));
        assert_eq!(holds(&loaded, "provider"), provider, "{own}");
    }
    let error = said(Folders::with("provider: nobody", "model: m").load(&[]));
    assert!(error.contains(".config/greenroom/greenroom.yaml, line 1: provider: "), "{error}");
    let error = said(Folders::new().load(&["provider=nobody"]));
    assert!(error.contains("nobody") && !error.contains("line"), "{error}");
}

#[test]
fn a_projects_words_reach_the_model_only_where_the_folder_is_trusted() {
    for (trusted, is_trusted) in [
        ("WORK", true),
        ("~/../project", true),
        ("HOME", false),
        ("WORK/..", false),
        ("/no/such/folder", false),
    ] {
        for key in ["system_prompt", "append_system_prompt", "compaction.compact_prompt"] {
            let place = Folders::new();
            let mut own = Value::Null;
            let folder = trusted
                .replace("WORK", place.work().to_str().expect("UTF-8"))
                .replace("HOME", place.path("home").to_str().expect("UTF-8"));
            set(&mut own, "trusted_folders", value(&format!("[\"{folder}\"]")));
            set(&mut own, key, "Be mine. {messages}".into());
            place.write(&place.own(), serde_norway::to_string(&own).expect("YAML"), 0o600);
            let mut project = Value::Null;
            set(&mut project, key, "Be yours. {messages}".into());
            place.write(&place.project(), serde_norway::to_string(&project).expect("YAML"), 0o600);
            let loaded = place.load(&[]).unwrap_or_else(|error| panic!("{folder}: {error}"));
            let expect = if is_trusted { "Be yours. {messages}" } else { "Be mine. {messages}" };
            assert_eq!(holds(&loaded, key).trim_matches('\''), expect, "{folder}: {key}");
            assert_eq!(loaded.warnings.len(), usize::from(!is_trusted), "{folder}: {:?}", loaded.warnings);
            let here = format!("trusted_folders: [{:?}]", place.work());
            assert!(loaded.warnings.iter().all(|said| said.contains(&here) && said.contains(key)));
            // Removing the user's text works only in a trusted folder, and otherwise gives no warning.
            set(&mut project, key, Value::Null);
            place.write(&place.project(), serde_norway::to_string(&project).expect("YAML"), 0o600);
            let loaded = place.load(&[]).unwrap_or_else(|error| panic!("{folder}: {error}"));
            let expect = if is_trusted { "null" } else { "Be mine. {messages}" };
            assert_eq!(holds(&loaded, key).trim_matches('\''), expect, "{folder}: {key}");
            assert_eq!(loaded.warnings, [""; 0]);
        }
    }
}

#[test]
fn each_value_has_an_origin() {
    let own =
        "model: a\nlimits: { steps_max: 9, calls_max: 5, cost_usd_max: null }\ncompaction: {}\nproviders:\n";
    let project = "compaction: { cut: nearest }\nlimits: { steps_max: 10, calls_max: 4 }";
    let place = Folders::with(own, project);
    let loaded =
        place.load_with(&["limits.retries_max=2"], &[("GREENROOM_CONTEXT_WINDOW", "9000")]).expect("usable");
    let own = place.own().display().to_string();
    let project = format!("./{}", place.project().display());
    let origins: Vec<_> =
        loaded.origins.iter().map(|(parts, origin)| (parts.join("."), origin.as_str())).collect();
    let expect = [
        ("compaction.cut", project.as_str()),
        ("context_window", "GREENROOM_CONTEXT_WINDOW"),
        ("limits.calls_max", &project),
        ("limits.cost_usd_max", &own),
        ("limits.retries_max", "--set limits.retries_max"),
        // The project asked for more than it got.
        ("limits.steps_max", &own),
        ("model", &own),
    ];
    assert_eq!(origins, expect.map(|(key, origin)| (key.to_owned(), origin)));
    assert_eq!(loaded.files, [place.own(), place.project()]);
    assert_eq!((loaded.own.limits.steps_max, loaded.config.limits.calls_max), (9, 4));
    assert_eq!(loaded.own.limits.calls_max, 5);
    let texts = loaded.texts();
    assert_eq!(texts[0].as_deref().map(|text| &text[..8]), Some("model: a"));
    assert!(texts[1].as_deref().is_some_and(|text| text.starts_with("compaction: { cut")), "{texts:?}");
    assert_eq!(
        loaded.project,
        Some(value("{ compaction: { cut: nearest }, limits: { steps_max: 10, calls_max: 4 } }"))
    );
}

/// A section that a flag empties is unchanged, also with `null`.
#[test]
fn an_empty_section_has_no_origin() {
    for flag in ["compaction={}", "compaction=null", "limits={}"] {
        let loaded =
            Folders::with("model: a", "").load(&[flag]).unwrap_or_else(|error| panic!("{flag}: {error}"));
        assert_eq!(loaded.origins.len(), 1, "{flag}: {:?}", loaded.origins);
    }
}

/// A later layer may add what an earlier one lacks; if none does, the layer that needs it is named.
#[test]
fn what_is_missing_is_said_of_the_layer_that_needs_it() {
    let place = Folders::with("model: m\nproviders: { local: { in_flight_max: 2 } }\n", "");
    let error = place.error();
    assert!(error.contains("greenroom.yaml, line 2: providers.local: its base_url is missing"), "{error}");
    let loaded = place.load(&["providers.local.base_url=http://localhost:1"]).expect("it is there now");
    assert_eq!(holds(&loaded, "providers.local.in_flight_max"), "2");
    let error = said(place.load(&["providers={ other: { in_flight_max: 1 } }"]));
    assert!(error.contains("line 2: providers.local: its base_url is missing"), "{error}");
    let error = said(Folders::new().load(&["providers={ other: { in_flight_max: 1 } }"]));
    assert!(error.starts_with("--set providers: other: its base_url is missing"), "{error}");
}

#[test]
fn a_file_is_read_only_where_nobody_else_could_have_written_it() {
    let project = "model: p\n";
    let read = |mode: u32, own_mode: u32| {
        let place = Folders::new();
        place.write(&place.own(), "model: o\n", own_mode);
        place.write(&place.project(), project, mode);
        place.load(&[]).map(|loaded| (loaded.config.model, loaded.warnings.join("\n")))
    };
    for (mode, model) in [(0o600, "p"), (0o644, "p"), (0o620, "o"), (0o602, "o")] {
        let (chosen, warnings) = read(mode, 0o600).expect("it is usable");
        assert_eq!(chosen, model, "{mode:o}");
        assert_eq!(
            warnings.contains("./greenroom.yaml is not read: others may write it"),
            model == "o",
            "{warnings}"
        );
    }
    assert!(read(0o600, 0o660).is_ok(), "the user's group is the user's own");
    let error = said(read(0o600, 0o602));
    assert!(error.contains("greenroom.yaml is not read: everybody may write it"), "{error}");

    let place = Folders::with("model: o\n", "");
    std::os::unix::fs::symlink(place.own(), place.work().join("linked")).expect("a link");
    std::fs::rename(place.work().join("linked"), place.project()).expect("moved");
    // A link to the user's own file is that file.
    let loaded = place.load(&[]).expect("it is usable");
    assert_eq!((loaded.files.len(), loaded.warnings), (1, Vec::new()));
    std::fs::remove_file(place.project()).expect("removed");
    place.write(&place.path("elsewhere.yaml"), project, 0o600);
    std::os::unix::fs::symlink(place.path("elsewhere.yaml"), place.project()).expect("a link");
    let loaded = place.load(&[]).expect("it is usable");
    assert_eq!(
        (loaded.files.len(), loaded.warnings),
        (1, vec!["./greenroom.yaml is not read: it is a symbolic link".to_owned()])
    );
    std::fs::remove_file(place.project()).expect("removed");
    std::fs::create_dir(place.project()).expect("a folder");
    let loaded = place.load(&[]).expect("it is usable");
    assert_eq!(loaded.warnings, ["./greenroom.yaml is not read: not a regular file"]);
    std::fs::remove_dir(place.project()).expect("removed");
    // Problems that are not the project's fault give no warning.
    std::fs::remove_dir(place.work()).expect("removed");
    place.write(&place.work(), "no folder", 0o600);
    assert!(place.error().starts_with("cannot read the configuration "), "{}", place.error());
    std::fs::remove_file(place.work()).expect("removed");
    std::fs::create_dir(place.work()).expect("a folder");
    std::fs::remove_file(place.own()).expect("removed");
    assert_eq!(place.load(&[]).expect("none is needed").files, [""; 0].map(PathBuf::from));
    std::fs::create_dir(place.own()).expect("a folder");
    assert!(place.error().starts_with("cannot read the configuration "), "{}", place.error());
}

#[test]
fn a_file_that_is_large_deep_or_no_text_is_refused() {
    for (text, part) in [
        (vec![b'#'; 64 * 1024], ""),
        (vec![b'#'; 64 * 1024 + 1], "it has more than 65536 bytes"),
        (format!("#{}", "[{".repeat(1_000)).into_bytes(), ""),
        (format!("#{}[", "[{".repeat(1_000)).into_bytes(), "opens more than 2000 brackets"),
        (b"model: a\n#\n\xff".to_vec(), "line 3 is not UTF-8 text"),
        (b"model: a\nmodel: [\n".to_vec(), "greenroom.yaml, line "),
    ] {
        for is_own in [true, false] {
            let place = Folders::new();
            place.write(&if is_own { place.own() } else { place.project() }, &text, 0o600);
            let error = place.error();
            assert!(error.contains(part) && error.is_empty() == part.is_empty(), "{part}: {error}");
        }
    }
}

#[test]
fn a_file_that_is_named_stands_alone() {
    let place = Folders::with("model: o\nlimits: { steps_max: 3 }", "model: p");
    let named = place.path("named.yaml");
    place.write(&named, "context_window: 9000", 0o666);
    let surroundings = place.surroundings(&[]);
    let loaded =
        load(Some(&named), Overrides::read(&[], &surroundings).expect("none")).expect("it is usable");
    assert_eq!(
        (loaded.config.context_window, loaded.config.limits.steps_max),
        (Some(9_000), Config::default().limits.steps_max)
    );
    assert_eq!(loaded.files, std::slice::from_ref(&named));
    assert_eq!(Files::places(Some(&named), &surroundings), (Some(named.clone()), None));
    assert_eq!(Files::places(None, &surroundings), (Some(place.own()), Some(place.project())));
    let folder = place.own().parent().map(Path::to_owned).expect("it is in a folder");
    assert_eq!(users_places(Some(&named), &surroundings), [place.own(), folder.clone(), named]);
    assert_eq!(users_places(None, &surroundings), [place.own(), folder]);
}

#[test]
fn a_command_that_runs_or_was_killed_leaves_the_users_file_absent() {
    let place = Folders::with("", "");
    // What a mount needs as its place, so that a command cannot create the file.
    std::fs::create_dir(place.own()).expect("a folder");
    std::fs::set_permissions(place.own(), std::fs::Permissions::from_mode(0o1555)).expect("set");
    assert_eq!(place.load(&[]).expect("it is usable").files.len(), 0);
}

#[test]
fn the_users_own_file_is_where_absolute_variables_say() {
    let place = Folders::new();
    let own = |variables: &[(&str, &str)]| own_file(&place.surroundings(variables));
    assert_eq!(own(&[]), Some(place.own()));
    assert_eq!(own(&[("XDG_CONFIG_HOME", "/x")]), Some("/x/greenroom/greenroom.yaml".into()));
    assert_eq!(own(&[("XDG_CONFIG_HOME", "x")]), Some(place.own()));
    assert_eq!(own(&[("HOME", "home")]), None);
    let surroundings = place.surroundings(&[("HOME", "/h")]);
    for (folder, expect) in
        [("/a", Some("/a")), ("~/a", Some("/h/a")), ("~", None), ("a", None), ("~a", None)]
    {
        assert_eq!(expanded(folder, &surroundings), expect.map(PathBuf::from), "{folder}");
        assert_eq!(is_absolute(folder), expect.is_some(), "{folder}");
    }
}

/// The last valid texts of a command are merged by the same rules as files.
#[test]
fn what_was_held_is_put_together_as_files_are() {
    let place = Folders::with("model: [", "model: [");
    let held =
        [Some("limits: { steps_max: 3 }".to_owned()), Some("model: p\nlimits: { steps_max: 4 }".to_owned())];
    let read = |explicit: Option<&Path>, held: &Texts| {
        let overrides = Overrides::read(&[], &place.surroundings(&[])).expect("none");
        load_held(explicit, overrides, held, "it is broken").expect("it is usable")
    };
    let loaded = read(None, &held);
    assert_eq!((loaded.config.model.as_str(), loaded.config.limits.steps_max), ("p", 3));
    assert_eq!(loaded.warnings, ["the settings before the newest edit remain in effect: it is broken"]);
    assert_eq!(loaded.notes.len(), 1, "the project's file is no user's");
    assert_eq!(loaded.texts(), held);
    let loaded = read(Some(&place.own()), &[held[1].clone(), None]);
    assert_eq!((loaded.config.model.as_str(), loaded.config.limits.steps_max), ("p", 4));
    assert_eq!(read(None, &[None, None]).files.len(), 0);
}

#[test]
fn edits_that_tighten_are_told_apart() {
    for (key, expect) in [
        ("limits.steps_max", Some(Tighter::Lower)),
        ("context_window", Some(Tighter::Lower)),
        ("compaction.threshold", Some(Tighter::Lower)),
        ("compaction.reserve_tokens", Some(Tighter::Raise)),
        ("compaction.cut", None),
        ("system_prompt", None),
        ("providers", None),
    ] {
        assert_eq!(tighter(key), expect, "{key}");
    }
}

#[test]
fn settings_are_found_and_set_by_their_names() {
    let all = value("{ model: m, limits: { a: 1, b: { c: 2 } }, host: { d: 3 }, compaction: {}, 7: x }");
    let named: Vec<String> = settings_of(&all).into_iter().map(|(name, _)| name).collect();
    assert_eq!(named, ["model", "limits.a", "limits.b", "host"]);
    assert_eq!(settings_of(&value("x")), []);
    let parts: Vec<String> = leaves(&all).into_iter().map(|(parts, _)| parts.join(".")).collect();
    assert_eq!(parts, ["model", "limits.a", "limits.b.c", "host.d", "compaction", ""]);
    assert_eq!(leaves(&value("{}")), []);
    let name = |key: &str| key.split('.').map(str::to_owned).collect::<Vec<_>>();
    for (key, expect) in
        [("limits.b.c", Some("2")), ("host", Some("{ d: 3 }")), ("limits.x", None), ("model.x", None)]
    {
        let expect = expect.map(value);
        assert_eq!(setting(&all, key), expect.as_ref(), "{key}");
        assert_eq!(get(&all, &name(key)), expect.as_ref(), "{key}");
    }
    let mut some = value("{ model: m, limits: { a: 1 } }");
    set(&mut some, "limits.b.c", 2.into());
    set(&mut some, "model", "n".into());
    set(&mut some, "host.d", 3.into());
    set_parts(&mut some, &["model", "name"], "o".into());
    assert_eq!(some, value("{ model: { name: o }, limits: { a: 1, b: { c: 2 } }, host: { d: 3 } }"));
}

#[test]
fn a_prompts_file_is_read_where_its_author_may_name_it() {
    let place = Folders::new();
    let (own, project) = (place.own(), place.project());
    let folder = own.parent().expect("it is in a folder").to_owned();
    place.write(&folder.join("p.md"), "Mine.", 0o664);
    place.write(&folder.join("open.md"), "Anybody's.", 0o602);
    place.write(&place.work().join("p.md"), "Yours.", 0o600);
    place.write(&place.work().join("open.md"), "The group's.", 0o620);
    place.write(&place.path("beside.md"), "Elsewhere.", 0o600);
    std::os::unix::fs::symlink("../beside.md", place.work().join("link.md")).expect("a link");
    place.write(&folder.join("large.md"), "x".repeat(COMPACT_PROMPT_BYTES_MAX + 1), 0o600);
    place.write(&folder.join("full.md"), "x".repeat(COMPACT_PROMPT_BYTES_MAX), 0o600);
    let read = |path: &Path, author, name: &str| {
        read_prompt(&Source { path: path.to_owned(), text: String::new(), author }, name)
    };
    let outside = place.path("beside.md");
    let outside = outside.to_str().expect("UTF-8");
    for (author, name, expect) in [
        (Author::User, "p.md", Ok("Mine.")),
        (Author::User, outside, Ok("Elsewhere.")),
        (Author::User, "open.md", Err("others may write it")),
        (Author::User, "none.md", Err("cannot read ")),
        (Author::User, "", Err("the name of a file must follow")),
        (Author::User, "large.md", Err("it has more than")),
        (Author::Project, "p.md", Ok("Yours.")),
        (Author::Project, "../project/p.md", Ok("Yours.")),
        (Author::Project, outside, Err("it is outside the project")),
        (Author::Project, "../beside.md", Err("it is outside the project")),
        (Author::Project, "open.md", Err("others may write it")),
        (Author::Project, "link.md", Err("it is outside the project")),
    ] {
        let path = if author == Author::User { &own } else { &project };
        match (read(path, author, name), expect) {
            (Ok(text), Ok(expect)) => assert_eq!(text, expect, "{name}"),
            (Err(said), Err(part)) => assert!(said.contains(part), "{name}: {said}"),
            (read, expect) => panic!("{name}: {read:?}, want {expect:?}"),
        }
    }
    assert!(read(&own, Author::User, "full.md").is_ok());
    assert_eq!(given_prompt("file: p.md", &folder).as_deref(), Ok("Mine."));
    assert_eq!(given_prompt("p.md", &folder).as_deref(), Ok("p.md"));
    assert_eq!(prompt_file(" file: a b "), Some("a b"));
    assert_eq!(prompt_file("a file: b"), None);
    let named = prompt_files(
        &own,
        "system_prompt: 'file:a.md'\ncompaction: { compact_prompt: ' file:b.md' }\nappend_system_prompt: c.md",
    );
    assert_eq!(
        named.iter().collect::<std::collections::BTreeSet<_>>(),
        [&folder.join("a.md"), &folder.join("b.md")].into()
    );
    assert_eq!(prompt_files(&own, "["), [""; 0].map(PathBuf::from));

    // With the whole configuration, the error has the line of the name.
    place.write(&own, "model: m\nsystem_prompt: 'file:none.md'", 0o600);
    assert!(place.error().contains("line 2: system_prompt: none.md: cannot read "), "{}", place.error());
    place.write(&own, "system_prompt: 'file:'", 0o600);
    assert!(place.error().contains("line 1: system_prompt: the name of a file"), "{}", place.error());
    place.write(&own, "system_prompt: 'file:p.md'", 0o600);
    assert_eq!(place.load(&[]).expect("usable").config.system_prompt.as_deref(), Some("Mine."));
    // A file of an untrusted folder is not read.
    place.write(&project, "system_prompt: 'file:none.md'", 0o600);
    let loaded = place.load(&[]).expect("usable");
    assert_eq!((loaded.config.system_prompt.as_deref(), loaded.warnings.len()), (Some("Mine."), 1));
}

#[test]
fn null_is_the_default_of_what_cannot_be_off() {
    let default = Config::default();
    let default_of = |key: &str| {
        let all = serde_norway::to_value(&default).expect("YAML");
        serde_norway::to_string(setting(&all, key).expect("known")).expect("YAML").trim().to_owned()
    };
    for key in ["model", "limits.steps_max", "provider", "compaction.cut", "host.idle_s"] {
        let mut own = Value::Null;
        set(&mut own, key, Value::Null);
        let place = Folders::with(&serde_norway::to_string(&own).expect("YAML"), "");
        let loaded = place.load(&[]).unwrap_or_else(|error| panic!("{key}: {error}"));
        assert_eq!(holds(&loaded, key), default_of(key), "{key}");
        assert!(!can_be_null(key), "{key}");
    }
    for key in ["compaction.threshold", "context_window", "limits.cost_usd_max"] {
        let mut own = Value::Null;
        set(&mut own, key, Value::Null);
        let loaded =
            Folders::with(&serde_norway::to_string(&own).expect("YAML"), "").load(&[]).expect("usable");
        assert_eq!(holds(&loaded, key), "null", "{key}");
        assert!(can_be_null(key), "{key}");
    }
    // Another error in the file is reported anyway.
    let error = Folders::with("model: null\nlimits: { steps_max: x }", "").error();
    assert!(error.contains("line 2: limits.steps_max: must be"), "{error}");
}

#[test]
fn a_flags_value_is_as_a_files() {
    let read = |text: &str| overrides::read("--set limits", &["limits"], text, Path::new("/"));
    assert!(read("{ steps_max: 3 }").is_ok());
    assert!(said(read("{ steps_max: [}")).starts_with("--set limits"), "{}", said(read("{ steps_max: [}")));
}

/// Tags are refused, wherever they are; `!!` inside strings and comments is not a tag.
#[test]
fn tags_are_told_from_exclamation_marks() {
    for (text, is_tagged) in [
        ("a: !x b", true),
        ("!x a: b", true),
        ("a: [b, !x c]", true),
        ("a: { b: !x c }", true),
        ("a: '!x b' # !x", false),
    ] {
        assert_eq!(has_tag(&value(text)), is_tagged, "{text}");
    }
    for (text, is_tagged) in [
        ("a: !!str b", true),
        ("a: !<tag:yaml.org,2002:str> b", true),
        ("a: 'b!! !!str' # !!str", false),
        ("a: b", false),
        // Tags are searched only where they are possible.
        ("a: !x b", false),
    ] {
        assert_eq!(has_core_tag(text), is_tagged, "{text}");
    }
    for text in ["model: !x y", "model: !!str y"] {
        assert!(Folders::with(text, "").error().contains("it contains a YAML tag"), "{text}");
    }
}

#[test]
fn what_cannot_be_read_is_named_by_its_way() {
    let error = |text: &str| {
        let read: Result<Config, _> = serde_path_to_error::deserialize(&value(text));
        located(&read.expect_err("it cannot be read"))
    };
    assert!(
        error("limits: { steps_max: x }").starts_with("limits.steps_max: "),
        "{}",
        error("limits: { steps_max: x }")
    );
    assert!(error("7").starts_with("invalid type"), "{}", error("7"));
    assert!(own_file_shown().contains("greenroom/greenroom.yaml"), "{}", own_file_shown());
}

//! The effects of a project's file on the sandbox, as a table, and the resulting settings.

use super::*;

#[test]
fn a_project_only_restricts() {
    let value = |text: &str| serde_norway::from_str::<Value>(text).expect("YAML");
    for (key, held, asked, expect) in [
        ("mode", "auto", "bubblewrap", Some("bubblewrap")),
        ("mode", "off", "auto", Some("auto")),
        ("mode", "auto", "off", None),
        ("mode", "bubblewrap", "landlock", None),
        ("mode", "bubblewrap", "auto", None),
        ("network", "all", "none", Some("none")),
        ("network", "all", "[crates.io]", Some("[crates.io]")),
        ("network", "none", "all", None),
        ("network", "none", "[crates.io]", None),
        ("network", "['*.crates.io']", "[static.crates.io]", Some("[static.crates.io]")),
        ("network", "['*.crates.io']", "['static.crates.io:22']", None),
        ("network", "[crates.io]", "['*.crates.io']", None),
        ("network", "[crates.io]", "[crates.io, example.org]", None),
        ("network", "[crates.io]", "all", None),
        ("writable", "[/a, /b]", "[/b]", Some("[/b]")),
        ("writable", "[/a]", "[/a, /b]", None),
        ("read_only", "[/a]", "[b]", Some("[/a, b]")),
        ("hidden", "[/a]", "[]", Some("[/a]")),
        ("hidden", "[/a]", "[/a, b]", Some("[/a, b]")),
        ("processes_max", "1", "2", None),
    ] {
        let found = restricted(&format!("sandbox.{key}"), &value(held), &value(asked));
        assert_eq!(found, expect.map(value), "{key}: {held} -> {asked}");
    }
}

#[test]
fn settings_become_a_sandbox() {
    let surroundings = Surroundings::here();
    let config: SandboxConfig = serde_norway::from_str(
        "{ network: ['*.crates.io'], writable: [/w], read_only: [docs], hidden: [/h, x], memory_mib_max: 2 }",
    )
    .expect("YAML");
    assert_eq!(config.check(), Ok(()));
    let made = config.sandbox(None, "/ws".as_ref(), vec!["/store".into()], &surroundings);
    assert_eq!(made.mode, SandboxMode::Auto);
    assert_eq!(made.network, Network::Hosts(vec!["*.crates.io".parse().expect("a host")]));
    let paths = |texts: &[&str]| texts.iter().map(PathBuf::from).collect::<Vec<_>>();
    assert_eq!((made.writable, made.read_only), (paths(&["/w"]), paths(&["/ws/docs"])));
    assert_eq!((made.hidden, made.closed), (paths(&["/h", "/ws/x"]), paths(&["/store"])));
    assert_eq!(made.limits.memory_bytes_max, Some(2 << 20));
    let off = config.sandbox(Some(ModeConfig::Off), "/ws".as_ref(), Vec::new(), &surroundings);
    assert_eq!((off.mode, off.network), (SandboxMode::Off, Network::All));
    for wrong in ["{ network: ['http://x'] }", "{ writable: [x] }", "{ cpu_s_max: 0 }"] {
        let config: SandboxConfig = serde_norway::from_str(wrong).expect("YAML");
        assert!(config.check().is_err(), "{wrong}");
    }
}

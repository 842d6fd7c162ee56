//! `serve` takes the place of a host that is idle, answers other commands as a host does, and stays until it is ended.

use std::process::Stdio;

use greenroom_server::operations::ClientKind;
use serde_json::{Value, json};

use super::{Hosted, is_greenroom};
use crate::cli::support::{Running, ran};

const SERVE: [&str; 5] = ["serve", "--listen", "127.0.0.1:0", "--window", "100000"];

#[tokio::test(flavor = "multi_thread")]
async fn it_takes_the_place_of_an_idle_host_and_all_commands_work_beside_it() {
    let hosted = Hosted::new(3, 0).await;
    assert_eq!(hosted.say("a", "one").code, Some(0));
    let host = hosted.host().expect("a host is there");
    let mut serve = Running::start(hosted.command(&SERVE).stdin(Stdio::null()));
    let said = serve.wait_for_word("takes its place");
    assert!(said.contains(&format!("the idle host (process {}) has ended", host.as_raw_nonzero())), "{said}");
    serve.wait_for_word("greenroom serves http://");
    assert!(!is_greenroom(host));
    // It is the host now, of everything.
    assert_eq!(hosted.host().map(|host| host.as_raw_nonzero().get()), i32::try_from(serve.id()).ok());
    assert_eq!(hosted.say("a", "two").code, Some(0));
    let chat = hosted.client(ClientKind::Chat, json!({})).await;
    let shown = hosted.run(&["show", "a", "--json"]);
    let shown: Value = serde_json::from_str(&shown.stdout).unwrap_or_else(|_| panic!("{shown:?}"));
    assert_eq!(shown["conversation"].as_array().unwrap().len(), 4, "{shown}");
    assert_eq!(hosted.run(&["top", "--json"]).code, Some(0));
    assert_eq!(hosted.run(&["delete", "a"]).code, Some(0));
    chat.close().await;
    // It does not end for others, nobody being connected.
    for arguments in [&["host", "--stop"][..], &["run", "--no-host", "-p", "x"]] {
        let refused = hosted.run(arguments);
        assert_eq!(refused.code, Some(3), "{refused:?}");
        assert!(refused.stderr.contains("--force"), "{refused:?}");
        let who = format!("`greenroom serve` (process {}) has the store until it is ended", serve.id());
        assert!(refused.stderr.contains(&who) && refused.stdout.is_empty(), "{refused:?}");
    }
    let stopped = hosted.run(&["host", "--stop", "--force"]);
    assert!(stopped.code == Some(0) && stopped.stdout.contains("has ended"), "{stopped:?}");
    assert_eq!(serve.end().code, Some(0));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_host_that_is_in_use_keeps_the_store_and_is_named() {
    let hosted = Hosted::new(3, 0).await;
    hosted.start_host();
    let host = hosted.host().expect("a host is there").as_raw_nonzero();
    let _chat = hosted.client(ClientKind::Chat, json!({})).await;
    let in_use =
        format!("the host (process {host}) is in use: 1 client is connected, and 0 sessions are working");
    let no_host = ["run", "--no-host", "-p", "x"];
    for (arguments, advice) in
        [(&SERVE[..], "`greenroom host --stop --force`"), (&no_host, "or leave out --no-host")]
    {
        let refused = hosted.run(arguments);
        assert_eq!(refused.code, Some(3), "{refused:?}");
        assert!(refused.stderr.contains(&in_use) && refused.stderr.contains(advice), "{refused:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_demo_takes_the_place_of_an_idle_host_and_works_beside_one_that_is_in_use() {
    let hosted = Hosted::new(3, 0).await;
    std::fs::write(hosted.place.work().join("a.txt"), "Some words.\n".repeat(400)).unwrap();
    assert_eq!(hosted.say("a", "one").code, Some(0));
    let host = hosted.host().expect("a host is there");
    let demo = ["demo", "--fast", "--compactions", "1"];
    let mut watched = Running::start(hosted.command(&["demo", "--compactions", "1"]).stdin(Stdio::null()));
    watched.wait_for("read ");
    assert!(!is_greenroom(host));
    // Other terminals work beside it.
    assert_eq!(hosted.say("a", "two").code, Some(0));
    let ended = watched.end();
    assert_eq!((ended.code, ended.stderr.as_str()), (Some(0), ""), "{ended:?}");
    let listed = hosted.run(&["sessions"]);
    assert!(listed.stdout.contains("demo-"), "{listed:?}");
    // Beside a chat, it has a store of its own.
    hosted.start_host();
    let _chat = hosted.client(ClientKind::Chat, json!({})).await;
    let scratch = tempfile::tempdir().unwrap();
    let mut beside = hosted.command(&demo);
    let beside = ran(beside.env("TMPDIR", scratch.path()).output().unwrap());
    assert!(beside.code == Some(0) && beside.stderr.contains("your store is in use"), "{beside:?}");
    let dir = scratch.path().read_dir().unwrap().next().unwrap().unwrap().path();
    assert!(beside.stdout.contains(&format!("--data-dir {}", dir.display())), "{beside:?}");
    let shown = hosted.run(&["sessions", "--data-dir", &dir.display().to_string()]);
    assert!(shown.stdout.contains("demo-"), "{shown:?}");
}

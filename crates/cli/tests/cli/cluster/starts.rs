//! Nodes that cannot work with the others, and the log of one that works: what an operator gets to read.

use super::*;

/// What a node said before it ended, and that it ended with this code.
fn ended(running: Running, code: i32) -> String {
    let ran = running.end_within(END_WITHIN);
    assert_eq!(ran.code, Some(code), "{ran:?}");
    ran.stderr
}

#[test]
fn a_node_that_cannot_work_with_the_others_says_so() {
    let Some(mut cluster) = Cluster::start() else { return };
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let place = Place::new();
    let (data, others) = (place.store().display().to_string(), cluster.nodes[1].listen.clone());
    let other_secret = place.work().join("other").display().to_string();
    write_secret(Path::new(&other_secret), "another-another-another-another-\n");
    let own = [("--listen", &*free), ("--node", "new"), ("--data-dir", &data)];
    for (given, code, told) in [
        // The data directory of the node whose flags these are.
        (&own[..2], 2, "another node uses the data directory".to_owned()),
        (
            &[&own[..], &[("--cluster-secret-file", &*other_secret)]].concat(),
            2,
            "another cluster secret".into(),
        ),
        (
            &[&own[..], &[("--advertise", &*format!("http://{others}"))]].concat(),
            2,
            format!("node-1 announces the same address, http://{others}"),
        ),
        // The same address in another spelling.
        (
            &[
                &own[..],
                &[("--advertise", &*format!("http://localhost:{}", others.rsplit_once(':').unwrap().1))],
            ]
            .concat(),
            2,
            "node node-1 answers at http://localhost:".into(),
        ),
        (&[own[0], ("--node", "node-1"), own[2]], 3, "another process uses the node name node-1".into()),
    ] {
        let said = ended(cluster.node(0, given), code);
        assert!(said.contains(&told), "{given:?}: {said}");
    }
    // An address that nobody answers at is only reported: other nodes may reach it where this one does not. They name it
    // in the Host header.
    let mut node = cluster.node(0, &[&own[..], &[("--advertise", "http://Node.invalid:9/")]].concat());
    node.wait_for_word("does not reach itself at http://Node.invalid:9");
    node.wait_for_word("of a cluster");
    for (host, expected) in [("node.invalid:9", "200"), ("other.invalid:9", "421")] {
        let mut stream = TcpStream::connect(&*free).unwrap();
        write!(stream, "GET /healthz HTTP/1.0\r\nhost: {host}\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        assert_eq!(answer.split(' ').nth(1), Some(expected), "{host}: {answer}");
    }
    // A node that was killed is found, also if it had no sessions.
    node.signal(Signal::KILL);
    drop(node.end());
    std::thread::park_timeout(LEASE * 2);
    let checks = diagnosis(&cluster, &place, &cluster.secret);
    let of_new = checks.iter().find(|(_, _, found)| found.starts_with("new, ")).unwrap();
    assert!(!of_new.1 && of_new.2.contains("0 sessions; its lease expired"), "{checks:?}");
    // A day later it is forgotten.
    let nodes = "select string_agg(name, ' ' order by name) from greenroom.node";
    for (passed, expected) in [("23 hours", "new node-0 node-1 node-2"), ("25 hours", "node-0 node-1 node-2")]
    {
        let age =
            format!("update greenroom.node set expires = now() - interval '{passed}' where name = 'new'");
        cluster.server.sql(&age);
        let process = cluster.nodes[2].running.take().unwrap();
        process.signal(Signal::TERM);
        drop(process.end_within(END_WITHIN));
        cluster.start_node(2);
        assert_eq!(cluster.server.sql(nodes).trim(), expected);
    }
}

/// Without `-v`: what happens to a node is in its log.
#[test]
fn the_log_of_a_node_says_what_happens_to_it() {
    let Some(mut cluster) = Cluster::start() else { return };
    let process = cluster.nodes[0].running.take().unwrap();
    process.signal(Signal::TERM);
    drop(process.end_within(END_WITHIN));
    let mut node = cluster.node(0, &[]);
    node.wait_for_word("of a cluster");
    cluster.server.stop();
    // A node that starts meanwhile waits for the database, if it is told to.
    let place = Place::new();
    let data = place.store().display().to_string();
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let own = [("--listen", &*free), ("--node", "new"), ("--data-dir", &*data)];
    let said = ended(cluster.node(1, &own), 3);
    let count = said.matches("is not available").count();
    assert_eq!(count, 1, "{said}");
    let mut waiting = cluster.node(1, &[&own[..], &[("--wait-for-store", "100")]].concat());
    waiting.wait_for_word("waiting up to 100 s for it");
    let lost = node.wait_for_word("this node has lost its lease");
    assert!(lost.contains("the database could not renew it in time ("), "{lost}");
    let api = cluster.api(0);
    let (status, told) = api.ask("GET /v1/sessions/s/conversation", None, &Value::Null).unwrap();
    assert!(status == 503 && told["detail"].as_str().unwrap().matches("try again").count() == 1, "{told}");
    cluster.server.start_again();
    node.wait_for_word("this node has a lease again");
    waiting.wait_for_word("of a cluster");
    node.signal(Signal::STOP);
    std::thread::park_timeout(LEASE * 2);
    node.signal(Signal::CONT);
    let lost = node.wait_for_word("this node has lost its lease");
    // The server may have had the renewal already.
    assert!(lost.contains("did not run in time") || lost.contains("does not know the lease"), "{lost}");
}

#[test]
fn commands_for_files_say_that_they_do_not_use_the_database() {
    let Some(server) = Server::start() else { return };
    let folder = server.socket().parent().unwrap().display().to_string();
    let url = format!("postgresql:///postgres?user=postgres&host={folder}&sslmode=disable");
    let place = Place::new();
    let with = |arguments: &[&str]| {
        let mut command = place.command(arguments);
        command.env("GREENROOM_STORE", &url);
        super::super::support::ran(command.output().unwrap())
    };
    for (arguments, warns) in [
        (&["sessions"][..], true),
        (&["run", "hello", "--simulate", "--no-host"], true),
        (&["config"], false),
        (&["doctor", "--cluster"], false),
    ] {
        let ran = with(arguments);
        assert_eq!(ran.code, Some(0), "{ran:?}");
        assert_eq!(ran.stderr.contains("not those of the database in GREENROOM_STORE"), warns, "{ran:?}");
    }
    // The cluster alone: nothing else is missed, and without a database nothing is well.
    assert!(with(&["doctor", "--cluster"]).stdout.starts_with("✓ database: PostgreSQL"));
    let ran = place.run(&["doctor", "--cluster"]);
    assert!(ran.code == Some(2) && ran.stdout.contains("no database is named"), "{ran:?}");
    // A database without tables stays as it is.
    let ran = with(&["store", "copy", "--from"]);
    assert!(ran.code == Some(2) && ran.stderr.contains("no node has used it yet"), "{ran:?}");
    let tables = "select count(*) from pg_namespace where nspname = 'greenroom'";
    assert_eq!(server.sql(tables).trim(), "0");
}

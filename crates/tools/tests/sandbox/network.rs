//! A list of hosts: what commands reach through the proxy, and what they do not.
//!
//! Invariants: nothing outside this machine is contacted. The hosts are addresses of this machine that are listed
//! themselves, as only those may be private.

use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use greenroom_tools::sandbox::{Network, Sandbox};

use crate::environments::{Environment, block_on, call, registry, sandbox};
use crate::say;
use crate::victims::Victims;

/// Starts a server that answers each request with its own head.
fn server(count: &Arc<AtomicUsize>) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = listener.local_addr().expect("it is bound").port();
    let count = Arc::clone(count);
    std::thread::spawn(move || {
        while let Ok((mut stream, _)) = listener.accept() {
            count.fetch_add(1, Ordering::SeqCst);
            let mut head = Vec::new();
            let mut bytes = [0; 1024];
            while !head.windows(4).any(|four| four == b"\r\n\r\n") {
                match stream.read(&mut bytes) {
                    Ok(read @ 1..) => head.extend_from_slice(&bytes[..read]),
                    Ok(_) | Err(_) => break,
                }
            }
            let body = String::from_utf8_lossy(&head).into_owned();
            let answer = format!(
                "HTTP/1.1 200 OK\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
                body.len()
            );
            let _ = stream.write_all(answer.as_bytes());
        }
    });
    port
}

pub(crate) fn hosts_by_proxy() {
    let (allowed_count, other_count) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
    let (allowed, other) = (server(&allowed_count), server(&other_count));
    let victims = Victims::new();
    let hosts =
        [format!("127.0.0.1:{allowed}"), format!("localtest.example:{other}"), format!("localhost:{other}")];
    let hosts = hosts.iter().map(|host| host.parse().expect("a host")).collect();
    let sandbox = Sandbox { network: Network::Hosts(hosts), ..sandbox(&victims) };
    let Some(options) = Environment::Bubblewrap.options(sandbox) else { return };
    let curl = "curl -sS --max-time 20 --noproxy '' ";
    if !std::path::Path::new("/usr/bin/curl").exists() {
        say("SKIPPED: curl is not installed");
        return;
    }
    block_on(async {
        let registry = registry(&victims, options);
        for (command, expect) in [
            // By plain HTTP, with a head that is made for the server.
            (format!("{curl} http://127.0.0.1:{allowed}/a?b=c"), "GET /a?b=c HTTP/1.1\r\nHost: 127.0.0.1"),
            (
                format!("{curl} -H 'Proxy-Secret: x' http://127.0.0.1:{allowed}/ | grep -ci proxy; true"),
                "0\n",
            ),
            // By a tunnel.
            (format!("{curl} -p http://127.0.0.1:{allowed}/tunnel"), "GET /tunnel"),
            (format!("{curl} -p http://127.0.0.1:{other}/"), "response 403"),
            (format!("{curl} http://127.0.0.1:{other}/"), "is not in sandbox.network"),
            (format!("{curl} http://127.0.0.2:{allowed}/"), "is not in sandbox.network"),
            // A name that leads to an address that is not public.
            (format!("{curl} http://localhost:{other}/"), "which is not public"),
            (
                "curl -sS --max-time 20 http://example.org/; true".to_owned(),
                "example.org:80 is not in sandbox.network",
            ),
            // Around the proxy.
            (
                format!("curl -sS --max-time 5 --noproxy '*' http://127.0.0.1:{allowed}/ ; echo code $?"),
                "code 7",
            ),
            (format!("exec 3<>/dev/tcp/127.0.0.1/{allowed}; echo code $?"), "code 1"),
            ("curl -sS --noproxy '*' --max-time 5 http://192.0.2.1/; echo code $?".to_owned(), "code 7"),
            ("echo x > /dev/udp/192.0.2.1/53; echo code $?".to_owned(), "code 1"),
            // What the model reads then.
            (
                format!("{curl} -f http://127.0.0.1:{other}/"),
                "ask the user to add a host to `sandbox.network`",
            ),
        ] {
            let (_, output) = call(&registry, &command, 60_000).await;
            assert!(output.contains(expect), "{command}: {output}");
        }
    });
    assert_eq!(allowed_count.load(Ordering::SeqCst), 3, "three requests");
    assert_eq!(other_count.load(Ordering::SeqCst), 0, "nothing reached the other server");
}

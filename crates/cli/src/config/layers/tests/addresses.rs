//! Addresses in files: how they are written, and what is shown of them.

use std::net::{Ipv4Addr, SocketAddrV4};

use greenroom::provider::BaseUrl;

use super::{Folders, said};

/// Ways to write a URL that leads to this server, or that another parser could take for one that does not.
fn spellings(address: SocketAddrV4) -> Vec<String> {
    let port = address.port();
    let (host, number) = (*address.ip(), u32::from(*address.ip()));
    let [a, b, c, d] = host.octets();
    vec![
        format!("http://{address}/v1"),
        format!("http:{address}/ok/v1?x=://localhost"),
        format!("http:{address}/ok/v1/://localhost"),
        format!("http:/{address}/v1?://localhost"),
        format!("http:\\\\{address}/v1?://localhost"),
        format!("https:{address}?://localhost"),
        format!("HTTP://{address}/v1"),
        format!("HTTP:{address}/v1?://localhost"),
        format!("http:///{address}/v1"),
        format!("http://localhost:1@{address}/v1"),
        format!("http://localhost\\@{address}/v1"),
        format!("http://{address}\\@localhost/v1"),
        format!("http://{address}#@localhost/v1"),
        format!("http://{address}?@localhost/v1"),
        format!("ht\ttp://{address}/v1"),
        format!("http://\n{address}/v1"),
        format!("http:/\t/{address}/v1"),
        format!(" http://{address}/v1"),
        format!("http:\u{a0}//{address}/v1"),
        format!("{address}/v1"),
        format!("//{address}/v1"),
        format!("http://0.0.0.0:{port}/v1"),
        format!("http://localhost.:{port}/v1"),
        format!("http://LOCALHOST:{port}/v1"),
        format!("http://%6cocalhost:{port}/v1"),
        format!("http://localhost.evil.invalid:{port}/v1"),
        format!("http://127.1:{port}/v1"),
        format!("http://127.0.0.1.:{port}/v1"),
        format!("http://[::ffff:127.0.0.1]:{port}/v1"),
        format!("http://[0:0:0:0:0:0:0:1]:{port}/v1"),
        format!("http://ⓛocalhost:{port}/v1"),
        format!("http://{number}:{port}/v1"),
        format!("http://{number:#x}:{port}/v1"),
        format!("http://0{number:o}:{port}/v1"),
        format!("http://{a:#x}.{b}.{c}.{d:#x}:{port}/v1"),
        format!("http://{a}.{b}.{}:{port}/v1", u32::from(c) * 256 + u32::from(d)),
        format!("http://0{a:o}.{b}.{c}.{d}:{port}/v1"),
        format!("http://{host}.:{port}/v1"),
        format!("http://%3{}{}:{port}/v1", &host.to_string()[..1], &host.to_string()[1..]),
        format!("http://[::ffff:{host}]:{port}/v1"),
        format!("http://{host}:0{port}/v1"),
    ]
}

/// A text as a YAML string, with escapes.
fn quoted(text: &str) -> String {
    serde_json::to_string(text).expect("JSON")
}

#[test]
fn no_spelling_of_a_url_comes_from_a_project() {
    let spellings = spellings(SocketAddrV4::new(Ipv4Addr::new(192, 0, 2, 7), 4711));
    assert!(spellings.len() >= 40, "{}", spellings.len());
    for url in spellings.iter().map(|url| quoted(url)) {
        for project in [
            format!("provider: {{ base_url: {url} }}\n"),
            format!(
                "provider: evil\nproviders: {{ evil: {{ base_url: {url}, api_key_env: OPENAI_API_KEY }} }}\n"
            ),
        ] {
            let error = Folders::with("", &project).error();
            assert!(error.contains("project/greenroom.yaml, line "), "{project}: {error}");
        }
    }
}

#[test]
fn a_url_means_one_thing_wherever_it_is_written() {
    let address = SocketAddrV4::new(Ipv4Addr::new(192, 0, 2, 7), 4711);
    let mut refused = 0;
    for url in spellings(address) {
        // These say what they mean; or lead nowhere, by name.
        let is_plain = url == format!("http://{address}/v1") || url.starts_with(' ');
        if is_plain
            || url.starts_with("http://0.0.0.0")
            || url.contains("localhost.")
            || url.contains("?@localhost")
        {
            continue;
        }
        let parsed = url.parse::<BaseUrl>().expect_err(&url).to_string();
        let own = format!("provider: x\nproviders: {{ x: {{ base_url: {} }} }}\n", quoted(&url));
        for error in [parsed, Folders::with(&own, "").error()] {
            assert!(error.contains("base URL") && !error.contains('@'), "{url}: {error}");
            refused += 1;
        }
    }
    assert!(refused >= 60, "{refused}");
}

#[test]
fn no_error_shows_a_key_that_stands_in_an_address_or_in_place_of_a_variable() {
    for text in [
        "providers: { x: { base_url: 'https://me:sk-USER-123@gateway.invalid/v1' } }\n",
        "providers: { x: { base_url: 'https:\\me:sk-USER-123@gateway.invalid\\v1' } }\n",
        "providers: { x: { base_url: 'ftp://gateway.invalid/v1?sk-USER-123' } }\n",
        "providers: { x: { base_url: 'https://gateway.invalid/v1', api_key_env: sk-USER-123 } }\n",
        "provider: { base_url: 'https://me:sk-USER-123@gateway.invalid/v1' }\n",
        "provider: { base_url: 'https://gateway.invalid/v1?sk-USER-123' }\n",
    ] {
        for (own, project) in [(text, ""), ("", text)] {
            let error = Folders::with(own, project).load(&[]).map(|_| ()).expect_err(text);
            assert!(!format!("{error:?} {error:#}").contains("sk-USER"), "{text}: {error:#}");
        }
    }
    let error = said(Folders::new().load(&["providers.openai.api_key_env=sk-USER-123"]));
    assert!(!error.is_empty() && !error.contains("sk-USER"), "{error}");
}

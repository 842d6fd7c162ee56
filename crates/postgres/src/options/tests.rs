//! The options of a URL; its password is never repeated.

use super::*;

const SECRET: &str = "tulip/secret";

fn server(url: &str) -> Result<Server, StoreError> {
    PostgresOptions::new(url, "a").server()
}

#[test]
fn modes_of_encryption_are_read_as_users_know_them() {
    let cases = [
        ("postgres://h/d", Ok(SslMode::Prefer)),
        ("postgres://h/d?sslmode=disable", Ok(SslMode::Disable)),
        ("postgres://h/d?sslmode=prefer", Ok(SslMode::Prefer)),
        ("postgresql://h/d?connect_timeout=3&sslmode=require", Ok(SslMode::Require)),
        ("postgres://h/d?sslmode=verify-full&connect_timeout=3", Ok(SslMode::Require)),
        ("host=h dbname=d sslmode=require user=u", Ok(SslMode::Require)),
        ("host=h sslmode='disable'", Ok(SslMode::Disable)),
        ("postgres://h/d?sslmode=verify-ca", Err("another `sslmode`")),
        ("postgres://h/d?sslmode=verify-full&sslrootcert=%2Fnowhere%2Fca.pem", Err("/nowhere/ca.pem")),
        ("postgres://h/d?sslmod=require", Err("`sslmod`")),
        ("postgres://h/d?Sslmode=require", Err("cannot be read")),
        ("postgres://u:a@b@h/d", Err("%40")),
        ("dbname=d", Err("no host")),
        ("", Err("no host")),
    ];
    for (url, expected) in cases {
        match (server(url), expected) {
            (Ok(server), Ok(mode)) => assert_eq!(server.config.get_ssl_mode(), mode, "{url}"),
            (Err(error), Err(part)) => assert!(error.to_string().contains(part), "{url}: {error}"),
            (got, expected) => panic!("{url}: {got:?} instead of {expected:?}"),
        }
    }
    let server = server("postgres://u:p@h:77/d?sslmode=disable&connect_timeout=3").expect("it is read");
    assert_eq!(server.config.get_connect_timeout(), Some(&Duration::from_secs(3)), "the others remain");
    assert_eq!(server.config.get_ports(), [77]);
}

#[test]
fn a_password_is_shown_nowhere() {
    let encoded = SECRET.replace('/', "%2F");
    let urls = [
        format!("postgres://u:{encoded}@h/d"),
        format!("postgres://u:{SECRET}@h/d"),
        format!("postgres://u:{encoded}@h@i/d"),
        format!("postgres://u:{encoded}@h:{encoded}/d"),
        format!("host=h password={SECRET} port={SECRET}"),
        format!("host=h password={SECRET} {SECRET}={SECRET}"),
        format!("postgres://u:{encoded}@h/d?sslmode={SECRET}"),
        "postgres://u:a?tulip=b@h/d".to_owned(),
        "postgres://u:a?x=b&secret=c@h/d".to_owned(),
    ];
    for url in urls {
        let options = PostgresOptions::new(url.as_str(), "a");
        let server = options.server();
        let shown = match &server {
            Ok(server) => format!("{options:?} {server:?}"),
            Err(error) => format!("{options:?} {error} {error:?}"),
        };
        assert!(!shown.contains("tulip") && !shown.contains("secret"), "{shown}");
    }
}

#[test]
fn names_that_cannot_be_used_are_refused() {
    type Change = fn(&mut PostgresOptions);
    let cases: [(Change, &str); 7] = [
        (|options| options.schema = "Upper".to_owned(), "schema"),
        (|options| options.schema = "a\"; drop".to_owned(), "schema"),
        (|options| options.schema = String::new(), "schema"),
        (|options| options.node = String::new(), "name"),
        (|options| options.node = "a\nb".to_owned(), "name"),
        (|options| options.lease = Duration::from_millis(99), "100 ms"),
        (|options| options.writers = 0, "connection"),
    ];
    for (change, part) in cases {
        let mut options = PostgresOptions::new("postgres://h/d", "a");
        change(&mut options);
        let error = options.server().expect_err(part);
        assert!(matches!(&error, StoreError::Unsuitable { detail } if detail.contains(part)), "{error}");
    }
}

//! How long connections are kept that no call uses.

use bytes::Bytes;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::*;

/// Reads a request and answers it with two bytes.
async fn answer(socket: &mut TcpStream) {
    let mut request = Vec::new();
    while !request.ends_with(b"\r\n\r\n{}") {
        assert!(socket.read_buf(&mut request).await.expect("a request") > 0);
    }
    socket.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await.expect("the client reads");
}

#[tokio::test]
async fn a_connection_is_used_again_and_closed_when_nobody_needs_it() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let to = format!("http://{}/v1", listener.local_addr().expect("it is bound"));
    let options = ServerOptions { base_url: to.parse().expect("a URL"), ..ServerOptions::default() };
    let tls = crate::transport::connection::tls_for(&options).expect("TLS");
    let direct = Direct::new(&options, tls).expect("there is no proxy");
    let uri: Uri = to.parse().expect("a URI");
    let request = || {
        let mut request = Request::new(Pieces::from(vec![Bytes::from_static(b"{}")]));
        *request.method_mut() = http::Method::POST;
        request.headers_mut().insert(http::header::HOST, http::HeaderValue::from_static("localhost"));
        request
    };
    let ask = async || {
        let mut answer = direct.execute(&uri, request).await.expect("an answer");
        assert_eq!(answer.chunks.next().await.expect("a chunk").expect("it is whole"), "ok");
    };
    let ((), mut socket) = tokio::join!(ask(), async {
        let (mut socket, _) = listener.accept().await.expect("a connection comes");
        answer(&mut socket).await;
        socket
    });
    tokio::join!(ask(), answer(&mut socket));
    assert_eq!(direct.free.connections.lock().len(), 1);
    tokio::time::pause();
    tokio::time::advance(FREE_FOR).await;
    assert_eq!(socket.read(&mut [0; 1]).await.expect("it is closed in order"), 0);
    assert!(direct.free.connections.lock().is_empty() && !direct.free.is_watched.load(Ordering::Relaxed));
}

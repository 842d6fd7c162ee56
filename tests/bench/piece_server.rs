//! A server in a process of its own that streams answers of so many pieces, for benchmarks of what reading them costs.

use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// The pieces of one answer.
pub(crate) const PIECES: usize = 200;

/// The argument that makes a benchmark be the server, with the pause after each piece in microseconds.
const SERVE: &str = "serve-pieces=";

/// A running server, which ends with this value.
pub(crate) struct PieceServer {
    child: Child,
    /// The URL of its API.
    pub(crate) base_url: String,
}

impl PieceServer {
    /// Starts this program anew, as a server that pauses so long after each piece.
    pub(crate) fn start(pause: Duration) -> Self {
        let this = std::env::current_exe().expect("this program has a name");
        let mut child = Command::new(this)
            .arg(format!("{SERVE}{}", pause.as_micros()))
            .stdout(Stdio::piped())
            .spawn()
            .expect("this program runs");
        let mut port = String::new();
        let output = child.stdout.take().expect("it is piped");
        BufReader::new(output).read_line(&mut port).expect("the server says its port");
        let base_url = format!("http://127.0.0.1:{}/v1", port.trim());
        Self { child, base_url }
    }
}

impl Drop for PieceServer {
    fn drop(&mut self) {
        let _is_gone_already = self.child.kill();
        let _status = self.child.wait();
    }
}

/// Serves and never returns, if that is what this process was started for.
pub(crate) fn serve_if_asked() {
    let Some(pause) = std::env::args().find_map(|argument| Some(argument.strip_prefix(SERVE)?.to_owned()))
    else {
        return;
    };
    let pause = Duration::from_micros(pause.parse().expect("a number of microseconds"));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    runtime.expect("a thread").block_on(async {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        println!("{}", listener.local_addr().expect("it is bound").port());
        while let Ok((socket, _)) = listener.accept().await {
            tokio::spawn(answer_all(socket, pause));
        }
    });
}

async fn answer_all(mut socket: TcpStream, pause: Duration) {
    socket.set_nodelay(true).expect("a socket has the option");
    let mut request = Vec::new();
    while read_request(&mut socket, &mut request).await {
        let head = "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n";
        if socket.write_all(head.as_bytes()).await.is_err() {
            return;
        }
        for number in 0..PIECES {
            if socket.write_all(chunk(number).as_bytes()).await.is_err() {
                return;
            }
            if !pause.is_zero() {
                tokio::time::sleep(pause).await;
            }
        }
        let _client_is_gone = socket.write_all(format!("{}0\r\n\r\n", chunk(PIECES)).as_bytes()).await;
    }
}

/// One piece in one chunk of the body, and the end after the last.
fn chunk(number: usize) -> String {
    let event = |choice: &str| {
        format!(
            "data: {{\"id\":\"chatcmpl-1\",\"object\":\"chat.completion.chunk\",\"created\":1700000000,\
             \"model\":\"m\",\"choices\":[{{\"index\":0,{choice}}}]}}\n\n"
        )
    };
    let data = if number < PIECES {
        event(&format!("\"delta\":{{\"content\":\" word{number}\"}},\"finish_reason\":null"))
    } else {
        event("\"delta\":{},\"finish_reason\":\"stop\"") + "data: [DONE]\n\n"
    };
    format!("{:x}\r\n{data}\r\n", data.len())
}

/// Reads one request with its body; `false` when the client is gone.
async fn read_request(socket: &mut TcpStream, request: &mut Vec<u8>) -> bool {
    request.clear();
    loop {
        if let Some(head) = request.windows(4).position(|bytes| bytes == b"\r\n\r\n") {
            let text = String::from_utf8_lossy(&request[..head]).to_ascii_lowercase();
            let length = text.lines().find_map(|line| line.strip_prefix("content-length: "));
            let length = length.map_or(0, |length| length.parse::<usize>().expect("a length"));
            if request.len() >= head + 4 + length {
                return true;
            }
        }
        if socket.read_buf(request).await.unwrap_or(0) == 0 {
            return false;
        }
    }
}

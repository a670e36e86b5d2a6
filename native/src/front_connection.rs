//! One connection of the front: request after request, each answered by Python's batch or by the server behind.
//!
//! A request without a body, whose answer says its length, is an exchange with the server behind, after which the next
//! request is read here again. Everything else makes the connection a tunnel: all bytes pass, until one side ends.
//!
//! Invariant: a connection makes progress or is closed. The server behind has its own deadlines for what it reads.

use std::future::pending;
use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::watch::Receiver;
use tokio::time::{Instant, sleep_until, timeout};

use crate::front_queue::{Phase, Shared};
use crate::front_request::{Answer, Method, Request, length, read};

const CHUNK: usize = 1 << 16;
/// Room for the usual head.
const HEAD: usize = 1 << 10;
/// How long a connection that is refused may take to read it.
const REFUSE: Duration = Duration::from_secs(1);

/// The limits of connections, and the path of the server behind.
pub struct Limits {
    pub behind: PathBuf,
    pub connections: usize,
    pub refusal: Vec<u8>,
    /// From the first byte of a request, or from the connection on, to the end of its head.
    pub ask: Duration,
    /// From an answer to the first byte of the next request.
    pub idle: Duration,
    /// With nothing read of an answer that waits.
    pub read: Duration,
}

/// Tell a connection that there are too many.
pub async fn refuse(mut client: TcpStream, limits: std::sync::Arc<Limits>) {
    let told = async {
        client.write_all(&limits.refusal).await?;
        client.shutdown().await
    };
    let _ = timeout(REFUSE, told).await; // an error: it has gone
}

/// Serve a connection until it ends.
pub async fn run(client: TcpStream, shared: &Shared, limits: &Limits, phase: Receiver<Phase>) {
    let _ = client.set_nodelay(true);
    let connection = Connection {
        client,
        shared,
        limits,
        phase,
        bytes: Vec::new(),
        behind: None,
    };
    let _ = connection.serve().await; // an error: one of the two sides has gone
}

struct Connection<'a> {
    client: TcpStream,
    shared: &'a Shared,
    limits: &'a Limits,
    phase: Receiver<Phase>,
    /// What the client has sent and nobody has answered.
    bytes: Vec<u8>,
    behind: Option<UnixStream>,
}

impl Connection<'_> {
    async fn serve(mut self) -> io::Result<()> {
        let mut deadline = Instant::now() + self.limits.ask;
        loop {
            match read(&self.bytes, self.shared.hosts.get()) {
                Request::Partial => {
                    if !self.more(&mut deadline).await? {
                        return Ok(());
                    }
                    continue;
                }
                Request::Keys {
                    end,
                    target,
                    authorization,
                } => match self.shared.ask(target, authorization).await {
                    Some(answer) => {
                        self.bytes.drain(..end);
                        send(&mut self.client, &answer, self.limits.read).await?;
                    }
                    None if self.exchange(end, Method::Get).await? => {}
                    None => return self.tunnel().await,
                },
                Request::Plain { end, method } => {
                    if !self.exchange(end, method).await? {
                        return self.tunnel().await;
                    }
                }
                Request::Other => {
                    self.behind = None;
                    return self.tunnel().await;
                }
            }
            if *self.phase.borrow() >= Phase::Draining {
                return Ok(());
            }
            deadline = Instant::now()
                + if self.bytes.is_empty() {
                    self.limits.idle
                } else {
                    self.limits.ask
                };
        }
    }

    /// Read on until a line ends; return whether one did before the deadline, or before the front drains. The first byte of
    /// a request begins the time for its head.
    async fn more(&mut self, deadline: &mut Instant) -> io::Result<bool> {
        loop {
            let before = self.bytes.len();
            self.bytes.reserve(HEAD);
            tokio::select! {
                received = self.client.read_buf(&mut self.bytes) => {
                    if received? == 0 {
                        return Ok(false);
                    }
                }
                () = sleep_until(*deadline) => return Ok(false),
                _ = self.phase.wait_for(|&phase| phase >= Phase::Draining) => return Ok(false),
            }
            if before == 0 {
                *deadline = Instant::now() + self.limits.ask;
            }
            if self.bytes[before..].contains(&b'\n') || self.bytes.len() > CHUNK {
                return Ok(true);
            }
        }
    }

    /// Have the server behind answer the request; False: the connection is a tunnel from now on.
    async fn exchange(&mut self, end: usize, method: Method) -> io::Result<bool> {
        let kept = self.kept(method);
        let reused = kept.is_some();
        let mut behind = match kept {
            Some(kept) => kept,
            None => UnixStream::connect(&self.limits.behind).await?,
        };
        let mut answer = Vec::with_capacity(1024);
        let mut begun = begin(&mut behind, &self.bytes[..end], &mut answer).await;
        if reused && !matches!(begun, Ok(1..)) {
            behind = UnixStream::connect(&self.limits.behind).await?; // it was closed meanwhile, as idle ones are
            answer.clear();
            begun = begin(&mut behind, &self.bytes[..end], &mut answer).await;
        }
        if begun? == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        let whole = loop {
            match length(&answer, method) {
                Answer::Whole(whole) => break Some(whole),
                Answer::Open => break None,
                Answer::Partial if behind.read_buf(&mut answer).await? == 0 => break None,
                Answer::Partial => {}
            }
        };
        self.bytes.drain(..end);
        send(&mut self.client, &answer, self.limits.read).await?;
        if let Some(whole) = whole {
            self.pass(&mut behind, whole.saturating_sub(answer.len())).await?;
        }
        self.behind = Some(behind);
        Ok(whole.is_some())
    }

    /// Return the connection to the server behind, if it is still open and the request may be sent twice.
    fn kept(&mut self, method: Method) -> Option<UnixStream> {
        let kept = self.behind.take().filter(|_| method != Method::Other)?;
        let open = matches!(kept.try_read(&mut [0]), Err(error) if error.kind() == ErrorKind::WouldBlock);
        open.then_some(kept)
    }

    /// Pass the rest of an answer on, of so many bytes.
    async fn pass(&mut self, behind: &mut UnixStream, mut left: usize) -> io::Result<()> {
        let mut chunk = Vec::with_capacity(left.min(CHUNK));
        while left > 0 {
            chunk.clear();
            if behind.take(left.min(CHUNK) as u64).read_buf(&mut chunk).await? == 0 {
                return Err(ErrorKind::UnexpectedEof.into());
            }
            send(&mut self.client, &chunk, self.limits.read).await?;
            left -= chunk.len();
        }
        Ok(())
    }

    /// Pass all bytes on in both directions, until the server behind ends or the client fails.
    async fn tunnel(mut self) -> io::Result<()> {
        let mut behind = match self.behind.take() {
            Some(behind) => behind,
            None => UnixStream::connect(&self.limits.behind).await?,
        };
        let (mut from_client, mut to_client) = self.client.split();
        let (mut from_behind, mut to_behind) = behind.split();
        let asks = async {
            let mut chunk = self.bytes;
            // An error of the server behind: it has closed, and what it has answered before is still passed on.
            while to_behind.write_all(&chunk).await.is_ok() {
                chunk.clear();
                chunk.reserve(CHUNK);
                if from_client.read_buf(&mut chunk).await? == 0 {
                    let _ = to_behind.shutdown().await;
                    break;
                }
            }
            pending::<io::Result<()>>().await // the answer may still come
        };
        let answers = async {
            let mut chunk = Vec::with_capacity(CHUNK);
            while from_behind.read_buf(&mut chunk).await? > 0 {
                send(&mut to_client, &chunk, self.limits.read).await?;
                chunk.clear();
            }
            to_client.shutdown().await
        };
        tokio::select! {
            ended = asks => ended,
            ended = answers => ended,
        }
    }
}

/// Send a request, and read the beginning of the answer; return how much was read.
async fn begin(behind: &mut UnixStream, request: &[u8], answer: &mut Vec<u8>) -> io::Result<usize> {
    behind.write_all(request).await?;
    behind.read_buf(answer).await
}

/// Send all bytes.
///
/// Fails if the client reads nothing for too long.
async fn send(client: &mut (impl AsyncWrite + Unpin), mut bytes: &[u8], patience: Duration) -> io::Result<()> {
    while !bytes.is_empty() {
        match timeout(patience, client.write(bytes)).await?? {
            0 => return Err(ErrorKind::WriteZero.into()),
            sent => bytes = &bytes[sent..],
        }
    }
    Ok(())
}

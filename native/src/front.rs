//! The front of the query server: its socket and its connections, on one thread that needs no interpreter.
//!
//! Requests for keys wait in a queue. Python takes all that wait at a time, so the wait for the interpreter's lock is paid
//! once a batch, and gives their answers back as bytes. Every other request, and each that Python gives back, goes on to
//! the server behind the front (`front_connection`).
//!
//! Two threads of Python run in it: one in `serve`, one by turns in `wait`, `take` and `give`. So a panic is an error there.

use std::mem;
use std::net::TcpListener;
use std::os::fd::{FromRawFd, RawFd};
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use pyo3::prelude::*;
use pyo3::types::PyBytes;
use tokio::{net, runtime, time};

use crate::front_connection::{Limits, refuse, run};
use crate::front_queue::{Asked, Phase, Shared};
use crate::front_request::Hosts;
use crate::locked;

/// How long no connection is accepted after one could not be: there is no file descriptor left.
const PAUSE: Duration = Duration::from_millis(100);

/// Serve each connection that is made.
async fn accept(shared: &Arc<Shared>, listener: net::TcpListener, limits: &Arc<Limits>) {
    loop {
        match listener.accept().await {
            Ok((client, _)) if shared.open.load(Ordering::Relaxed) >= limits.connections => {
                shared.refuse();
                tokio::spawn(refuse(client, Arc::clone(limits)));
            }
            Ok((client, _)) => {
                let held = Held::of(shared);
                let (limits, phase) = (Arc::clone(limits), shared.phase.subscribe());
                tokio::spawn(async move { run(client, &held.0, &limits, phase).await });
            }
            Err(_) => time::sleep(PAUSE).await,
        }
    }
}

/// A connection that counts as open.
struct Held(Arc<Shared>);

impl Held {
    fn of(shared: &Arc<Shared>) -> Self {
        shared.open.fetch_add(1, Ordering::Relaxed);
        Self(Arc::clone(shared))
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.0.open.fetch_sub(1, Ordering::Relaxed);
    }
}

/// Ends the queue when `serve` ends, in whatever way.
struct Serving<'a>(&'a Shared);

impl Drop for Serving<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

#[pyclass(frozen)]
pub struct Front {
    shared: Arc<Shared>,
    limits: Arc<Limits>,
    listener: Mutex<Option<TcpListener>>,
}

#[pymethods]
impl Front {
    /// `listener`: the descriptor of a socket that listens, which the front closes. `behind`: the path of the socket of
    /// the server behind it. `refusal`: what a connection beyond the limit is told.
    #[new]
    fn new(
        listener: RawFd,
        behind: PathBuf,
        connections: usize,
        refusal: Vec<u8>,
        ask_s: f64,
        idle_s: f64,
        read_s: f64,
    ) -> PyResult<Self> {
        // SAFETY: the caller has given the descriptor away.
        let listener = unsafe { TcpListener::from_raw_fd(listener) };
        listener.set_nonblocking(true)?;
        let seconds = Duration::from_secs_f64;
        let limits = Limits {
            behind,
            connections,
            refusal,
            ask: seconds(ask_s),
            idle: seconds(idle_s),
            read: seconds(read_s),
        };
        Ok(Self {
            shared: Arc::new(Shared::new()),
            limits: Arc::new(limits),
            listener: Mutex::new(Some(listener)),
        })
    }

    /// Answer keys only to who asks by one of these names, by an address or by a name without a dot; the server behind
    /// judges any other. Once, before `serve`; otherwise by any name.
    fn known_as(&self, names: Vec<String>, suffixes: Vec<String>) {
        let _ = self.shared.hosts.set(Hosts { names, suffixes });
    }

    /// Accept connections and serve them, until `drain` and `end` were called.
    fn serve(&self, py: Python<'_>) -> PyResult<()> {
        let Some(listener) = locked(&self.listener).take() else {
            return Ok(());
        };
        py.detach(|| {
            let _serving = Serving(&self.shared);
            let runtime = runtime::Builder::new_current_thread().enable_all().build()?;
            runtime.block_on(async {
                let mut phase = self.shared.phase.subscribe();
                let listener = net::TcpListener::from_std(listener)?;
                tokio::select! {
                    () = accept(&self.shared, listener, &self.limits) => {}
                    _ = phase.wait_for(|&phase| phase >= Phase::Draining) => {}
                }
                let _ = phase.wait_for(|&phase| phase >= Phase::Ended).await;
                Ok(())
            })
        })
    }

    /// Wait until requests wait, or a connection was refused since the last time; False: the front has ended.
    fn wait(&self, py: Python<'_>) -> bool {
        py.detach(|| {
            let mut queue = self.shared.queue();
            while queue.waiting.is_empty() && queue.refused == queue.told && !queue.ended {
                queue = self.shared.changed.wait(queue).unwrap_or_else(PoisonError::into_inner);
            }
            queue.told = queue.refused;
            !queue.ended
        })
    }

    /// Return the target, the authorization and the age in seconds of each request that has waited for so long.
    fn take<'py>(&self, py: Python<'py>, age_s: f64) -> Vec<(Bound<'py, PyBytes>, Option<Bound<'py, PyBytes>>, f64)> {
        let mut queue = self.shared.queue();
        let now = Instant::now();
        let age = |asked: &Asked| now.duration_since(asked.at).as_secs_f64();
        let old = queue.waiting.partition_point(|asked| age(asked) >= age_s);
        // A request that the server behind has got meanwhile is not answered twice.
        let old = queue.waiting.drain(..old).filter(|asked| !asked.answer.is_closed());
        queue.taken = old.collect();
        queue.taken_at = Some(now);
        let taken = queue.taken.iter().map(|asked| {
            let authorization = asked.authorization.as_deref().map(|given| PyBytes::new(py, given));
            (PyBytes::new(py, &asked.target), authorization, age(asked))
        });
        taken.collect()
    }

    /// Send the answers of the requests that were taken last, in their order; None: the server behind answers.
    fn give(&self, answers: Vec<Option<Bound<'_, PyBytes>>>) {
        let taken = mem::take(&mut self.shared.queue().taken);
        for (asked, answer) in taken.into_iter().zip(answers) {
            // An error: who asked has gone.
            let _ = asked.answer.send(answer.map(|bytes| bytes.as_bytes().to_vec()));
        }
    }

    /// Return how many connections were refused.
    fn refused(&self) -> usize {
        self.shared.queue().refused
    }

    /// Return how many connections are open.
    fn open(&self) -> usize {
        self.shared.open.load(Ordering::Relaxed)
    }

    /// Have the server behind answer all requests from now on.
    fn pass_on(&self) {
        self.shared.end();
    }

    /// Accept no connection any more, and close each one after the request that is under way.
    fn drain(&self) {
        locked(&self.listener).take();
        self.shared.phase.send_modify(|phase| {
            if *phase < Phase::Draining {
                *phase = Phase::Draining;
            }
        });
    }

    /// Have `serve` and `wait` return; what is still open is cut off.
    fn end(&self) {
        self.shared.phase.send_replace(Phase::Ended);
        self.shared.end();
    }
}

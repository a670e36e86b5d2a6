//! What the connections of the front and Python share: the requests that wait, and what connections do from now on.

use std::collections::VecDeque;
use std::sync::atomic::AtomicUsize;
use std::sync::{Condvar, Mutex, MutexGuard, OnceLock};
use std::time::{Duration, Instant};

use tokio::sync::{oneshot, watch};
use tokio::time::timeout;

use crate::front_request::Hosts;
use crate::locked;

/// How long Python may be at one batch. Then one read in it waits for a disk, say, and the server behind has other threads.
const PATIENCE: Duration = Duration::from_secs(2);

/// What connections do from now on.
#[derive(Clone, Copy, PartialEq, PartialOrd)]
pub enum Phase {
    Serving,
    /// Finish the request that is under way.
    Draining,
    /// End.
    Ended,
}

/// A request for keys, and where its answer goes. None: the server behind the front answers it.
pub struct Asked {
    pub target: Vec<u8>,
    pub authorization: Option<Vec<u8>>,
    pub at: Instant,
    pub answer: oneshot::Sender<Option<Vec<u8>>>,
}

#[derive(Default)]
pub struct Queue {
    pub waiting: VecDeque<Asked>,
    pub taken: Vec<Asked>,
    pub taken_at: Option<Instant>,
    pub refused: usize,
    pub told: usize,
    pub ended: bool,
}

pub struct Shared {
    queue: Mutex<Queue>,
    pub changed: Condvar,
    pub open: AtomicUsize,
    pub phase: watch::Sender<Phase>,
    /// The names by which requests for keys are answered here; not set: any.
    pub hosts: OnceLock<Hosts>,
}

impl Queue {
    /// Whether Python answers, and is not at one batch for too long.
    fn answers(&self) -> bool {
        let stuck = self
            .taken_at
            .is_some_and(|at| !self.taken.is_empty() && at.elapsed() >= PATIENCE);
        !self.ended && !stuck
    }
}

impl Shared {
    pub fn new() -> Self {
        Self {
            queue: Mutex::default(),
            changed: Condvar::new(),
            open: AtomicUsize::new(0),
            phase: watch::Sender::new(Phase::Serving),
            hosts: OnceLock::new(),
        }
    }

    pub fn queue(&self) -> MutexGuard<'_, Queue> {
        locked(&self.queue)
    }

    /// Return the answer of Python; None: the server behind the front answers.
    pub async fn ask(&self, target: Vec<u8>, authorization: Option<Vec<u8>>) -> Option<Vec<u8>> {
        let (answer, mut answered) = oneshot::channel();
        {
            let mut queue = self.queue();
            if !queue.answers() {
                return None;
            }
            queue.waiting.push_back(Asked {
                target,
                authorization,
                at: Instant::now(),
                answer,
            });
        }
        self.changed.notify_one();
        loop {
            match timeout(PATIENCE / 2, &mut answered).await {
                Ok(answer) => return answer.ok().flatten(),
                Err(_) if !self.queue().answers() => return None,
                Err(_) => {}
            }
        }
    }

    /// Count a connection that was refused.
    pub fn refuse(&self) {
        self.queue().refused += 1;
        self.changed.notify_one();
    }

    /// Answer no request any more.
    pub fn end(&self) {
        let mut queue = self.queue();
        queue.ended = true;
        queue.waiting.clear();
        queue.taken.clear();
        drop(queue);
        self.changed.notify_all();
    }
}

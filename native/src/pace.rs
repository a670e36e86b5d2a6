//! How long a broker may keep a fetch for which it has no record: `fetch.wait.max.ms`, of a consumer that runs.
//!
//! librdkafka says that a partition has ended only with the next empty answer, and a partition that is assigned waits for
//! the answer that is under way. So fetches are short while an end is awaited. When all partitions have ended, short ones
//! would ask a hundred times a second for nothing, so they become long. A record ends a fetch at once, long or short.

use std::ffi::c_int;
use std::time::{Duration, Instant};

/// How long a broker may keep a fetch while all partitions have ended: a partition that is assigned then waits as long.
const LONG_MS: c_int = 100;
/// How long fetches stay short after partitions were assigned: more of them often follow.
const LINGER: Duration = Duration::from_secs(1);

/// Whether fetches of one consumer are short or long.
pub struct Pace {
    short_ms: c_int,
    long: bool,
    short_until: Option<Instant>,
}

impl Pace {
    /// Of a consumer whose fetches are short now: as short as it was configured.
    pub fn new(short_ms: c_int) -> Self {
        Self {
            short_ms,
            long: false,
            short_until: None,
        }
    }

    /// Partitions are about to be assigned. Returns what fetches must be set to; None: to what they are.
    pub fn on_assignment(&mut self, now: Instant) -> Option<c_int> {
        self.short_until = Some(now + LINGER);
        self.turn(false)
    }

    /// Looks whether all partitions have `ended`. Returns what fetches must be set to; None: to what they are.
    pub fn look(&mut self, now: Instant, ended: impl FnOnce() -> bool) -> Option<c_int> {
        let long = self.short_until.is_none_or(|until| now >= until) && ended();
        self.turn(long)
    }

    fn turn(&mut self, long: bool) -> Option<c_int> {
        if self.long == long || self.short_ms >= LONG_MS {
            return None;
        }
        self.long = long;
        Some(if long { LONG_MS } else { self.short_ms })
    }
}

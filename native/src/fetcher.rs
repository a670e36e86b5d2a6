//! What a consumer has fetched, by partition, as columns of Python.
//!
//! Messages are copied, hashed and dealt to key ranges without the interpreter's lock; then the objects are made of those
//! records that are in a range. Records of a partition that is held are kept here.
//!
//! Invariant: records of a partition have growing offsets from its position on, each once.
//! Invariant: a fetch that fails after records were taken is the last one: none is left out silently.
//! Invariant: no lock of ours is held while the interpreter's is waited for.

use crate::consumer::{Consumer, Error, Gone, take_made};
use crate::librdkafka::{PARTITION_EOF, name_of};
use crate::locked;
use crate::pace::Pace;
use crate::pile::{Pile, Row};
use crate::router::Router;
use pyo3::exceptions::{PyKeyError, PyRuntimeError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyInt, PyList, PyRange, PyString, PyTuple};
use std::collections::HashMap;
use std::ffi::{CString, c_int};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// After so many bytes a fetch ends.
const MOST_BYTES: usize = 32 << 20;
/// How long to wait, at first and at most, before the queues of partitions are forwarded again of which nothing has come.
const FIRST_LOOK: Duration = Duration::from_millis(2);
const LAST_LOOK: Duration = Duration::from_millis(50);
/// How many empty piles are kept for their memory.
const SPARES: usize = 4;

/// Fetches columns by a consumer of confluent-kafka, which it keeps alive until it is disconnected.
#[pyclass(frozen)]
pub struct Fetcher {
    state: Mutex<State>,
    owner: Mutex<Option<Py<PyAny>>>,
    /// The consumer of the state, for `wake`: the state is locked by the call that waits.
    waiting: Mutex<Option<Arc<Consumer>>>,
}

#[derive(Default)]
struct State {
    consumer: Option<Arc<Consumer>>,
    /// By id; None: the id is free.
    readings: Vec<Option<Reading>>,
    ids: HashMap<CString, HashMap<i32, usize>>,
    spares: Vec<Pile>,
    /// When queues are forwarded again, and how long it is until then the next time; None: something came of each.
    look: Option<(Instant, Duration)>,
    /// None: the consumer's fetches stay as they are.
    pace: Option<Pace>,
    /// Whether records were taken from their piles and no objects were made of them: there is no memory, say.
    lost: bool,
}

/// One partition that is read.
struct Reading {
    topic: CString,
    partition: i32,
    /// The offset after the last record that came.
    next: i64,
    held: bool,
    /// Whether it is assigned, and nothing has come since.
    expected: bool,
    /// Whether the last thing that came is its end.
    ended: bool,
    router: Option<Py<Router>>,
    /// Whether fetches say where stream time advances.
    advances: bool,
    pile: Pile,
}

/// What one fetch returns of a partition.
struct Part {
    id: usize,
    pile: Pile,
    /// The index of each slot's records; None: they are not cut.
    slots: Option<Vec<Vec<usize>>>,
    /// The stream time after each record, as if there were none before them.
    stream_times: Vec<i64>,
    /// Whether to say where that advances, if records are cut.
    advances: bool,
}

type Ids = Vec<usize>;

#[pymethods]
impl Fetcher {
    #[new]
    fn new() -> Self {
        Self {
            state: Mutex::default(),
            owner: Mutex::default(),
            waiting: Mutex::default(),
        }
    }

    /// Fetch by the consumer that this thread has just made; return whether this library is a plugin of it.
    fn connect(&self, py: Python<'_>, consumer: Py<PyAny>) -> bool {
        self.disconnect(py);
        let made = take_made();
        let found = made.is_some();
        *locked(&self.waiting) = made.clone();
        py.detach(|| {
            let mut state = self.locked();
            state.pace = made.as_ref().and_then(|it| it.fetch_wait_ms()).map(Pace::new);
            state.consumer = made;
        });
        if found {
            *self.owner.lock().unwrap_or_else(PoisonError::into_inner) = Some(consumer);
        }
        found
    }

    /// Let go of the consumer, which may be closed then. What it has fetched of partitions that are held is kept.
    fn disconnect(&self, py: Python<'_>) {
        locked(&self.waiting).take();
        py.detach(|| {
            if let Some(consumer) = self.locked().consumer.take() {
                consumer.release();
            }
        });
        let owner = self.owner.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(owner);
    }

    /// End the wait of the fetch that runs, or of the next one. Any thread.
    fn wake(&self) {
        if let Some(consumer) = locked(&self.waiting).as_ref() {
            consumer.wake();
        }
    }

    /// Read a partition from this offset; return its id.
    fn start(&self, py: Python<'_>, topic: &str, partition: i32, offset: i64) -> PyResult<usize> {
        let topic = CString::new(topic)?;
        Ok(py.detach(|| {
            let mut state = self.locked();
            let free = state.readings.iter().position(Option::is_none);
            let id = free.unwrap_or(state.readings.len());
            if free.is_none() {
                state.readings.push(None);
            }
            state.ids.entry(topic.clone()).or_default().insert(partition, id);
            state.readings[id] = Some(Reading {
                topic,
                partition,
                next: offset,
                held: false,
                expected: false,
                ended: false,
                router: None,
                advances: false,
                pile: Pile::default(),
            });
            id
        }))
    }

    /// Read a partition from another offset; drop what is here of it.
    fn seek(&self, py: Python<'_>, id: usize, offset: i64) -> PyResult<()> {
        self.with(py, id, |reading| {
            reading.next = offset;
            reading.pile = Pile::default();
        })
    }

    /// Read a partition no longer.
    fn stop(&self, py: Python<'_>, id: usize) {
        let stopped = py.detach(|| {
            let mut state = self.locked();
            let stopped = state.readings.get_mut(id)?.take()?;
            if let Some(partitions) = state.ids.get_mut(&stopped.topic) {
                partitions.remove(&stopped.partition);
                if partitions.is_empty() {
                    state.ids.remove(&stopped.topic);
                }
            }
            Some(stopped)
        });
        drop(stopped);
    }

    /// Have what is fetched of these partitions brought here, which are about to be assigned.
    fn expect(&self, py: Python<'_>, ids: Ids) -> PyResult<()> {
        py.detach(|| {
            let mut state = self.locked();
            for id in ids {
                if let Some(Some(reading)) = state.readings.get_mut(id) {
                    reading.expected = true;
                    reading.ended = false;
                }
            }
            let wait_ms = state.pace.as_mut().and_then(|it| it.on_assignment(Instant::now()));
            state.set_fetch_wait(wait_ms)?;
            state.look = Some((Instant::now() + FIRST_LOOK, FIRST_LOOK));
            state.forward()
        })
        .map_err(gone)
    }

    /// Stop or resume returning records of a partition.
    fn hold(&self, py: Python<'_>, id: usize, held: bool) -> PyResult<()> {
        self.with(py, id, |reading| reading.held = held)
    }

    /// Cut the records of a partition before objects are made of them, from the next fetch on; None: do not. `advances`:
    /// say where stream time advances, then.
    fn route(&self, py: Python<'_>, id: usize, router: Option<Py<Router>>, advances: bool) -> PyResult<()> {
        let before = self.with(py, id, |reading| {
            reading.advances = advances;
            std::mem::replace(&mut reading.router, router)
        })?;
        drop(before);
        Ok(())
    }

    /// Return the offset after the last record that came of a partition.
    fn fetched_to(&self, py: Python<'_>, id: usize) -> PyResult<i64> {
        self.with(py, id, |reading| reading.next)
    }

    /// Return how many records and events of a partition are kept, and their bytes.
    fn kept(&self, py: Python<'_>, id: usize) -> PyResult<(usize, usize)> {
        self.with(py, id, |reading| (reading.pile.count(), reading.pile.size()))
    }

    /// Return what `error_cb` would have been called with since the last call: codes, texts, and what makes it unusable.
    fn errors(&self, py: Python<'_>) -> Vec<Error> {
        py.detach(|| {
            self.locked()
                .consumer
                .as_ref()
                .map_or_else(Vec::new, |it| it.take_errors())
        })
    }

    /// Return what there is of each partition that is not held, no more than `most` records; and the partitions that are
    /// held, of which something came.
    ///
    /// Shape: a part is the id, the columns, the offset after the last record looked at (None: there was none), the
    /// stream time after it, the events, whether there are columns of each slot (None: it is empty) instead of all, and
    /// where stream time advances: offsets and times, as bytes of 64-bit integers.
    /// Columns are keys, values, timestamps, offsets, stream times, and headers or None. An event is the code, the text,
    /// the offset, and the offset after the record before it or None.
    fn fetch<'py>(&self, py: Python<'py>, most: usize, timeout_ms: c_int) -> PyResult<(Bound<'py, PyList>, Ids)> {
        let (parts, kept) = py.detach(|| {
            let mut state = self.locked();
            if state.lost {
                return Err(PyRuntimeError::new_err("records were lost when a fetch failed"));
            }
            let kept = if state.readings.iter().flatten().any(Reading::is_ready) {
                Ids::new()
            } else {
                state.receive(most, timeout_ms).map_err(gone)?
            };
            let parts = state.take(most);
            state.lost = !parts.is_empty();
            Ok((parts, kept))
        })?;
        let columns = PyList::empty(py);
        for part in &parts {
            columns.append(part.to_python(py)?)?;
        }
        py.detach(|| {
            let mut state = self.locked();
            state.lost = false;
            let room = SPARES.saturating_sub(state.spares.len());
            state
                .spares
                .extend(parts.into_iter().filter_map(|part| part.pile.recycled()).take(room));
        });
        Ok((columns, kept))
    }
}

impl Fetcher {
    /// The state, for a thread without the interpreter's lock. Also after a panic: it is never half written.
    fn locked(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Returns what `act` does, of a partition that is read.
    fn with<T: Send>(&self, py: Python<'_>, id: usize, act: impl FnOnce(&mut Reading) -> T + Send) -> PyResult<T> {
        py.detach(|| Some(act(self.locked().readings.get_mut(id)?.as_mut()?)))
            .ok_or_else(|| PyKeyError::new_err(id))
    }
}

impl Drop for Fetcher {
    /// The queue goes before the consumer, to which the last reference may be ours.
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        if let Some(consumer) = state.consumer.take() {
            consumer.release();
        }
    }
}

fn gone(_: Gone) -> PyErr {
    PyRuntimeError::new_err("the consumer is closed")
}

impl Reading {
    fn is_ready(&self) -> bool {
        !self.held && !self.pile.is_empty()
    }
}

impl State {
    /// Forwards the queues of partitions of which nothing has come since they were assigned.
    fn forward(&self) -> Result<(), Gone> {
        let expected = self.readings.iter().flatten().filter(|reading| reading.expected);
        self.consumer
            .as_ref()
            .ok_or(Gone)?
            .forward(expected.map(|reading| (reading.topic.as_c_str(), reading.partition)))
    }

    /// Forwards again if it is time; returns how long to wait for messages until the next time.
    fn look_after_expected(&mut self, until: Instant) -> Result<Duration, Gone> {
        let now = Instant::now();
        let mut wait = until.saturating_duration_since(now);
        if let Some((due, pause)) = self.look {
            if !self.readings.iter().flatten().any(|reading| reading.expected) {
                self.look = None;
            } else if now >= due {
                let pause = (2 * pause).min(LAST_LOOK);
                self.look = Some((now + pause, pause));
                self.forward()?;
                wait = wait.min(pause);
            } else {
                wait = wait.min(due - now);
            }
        }
        Ok(wait)
    }

    /// Has fetches kept for as long as suits what has come so far.
    fn look_after_pace(&mut self) -> Result<(), Gone> {
        let readings = &self.readings;
        let ended = || readings.iter().flatten().all(|reading| reading.ended);
        let wait_ms = self.pace.as_mut().and_then(|it| it.look(Instant::now(), ended));
        self.set_fetch_wait(wait_ms)
    }

    fn set_fetch_wait(&mut self, wait_ms: Option<c_int>) -> Result<(), Gone> {
        let Some(wait_ms) = wait_ms else {
            return Ok(());
        };
        if !self.consumer.as_ref().ok_or(Gone)?.set_fetch_wait(wait_ms)? {
            self.pace = None;
        }
        Ok(())
    }

    /// Moves messages to the piles of their partitions; returns the partitions that are held, of which something came.
    fn receive(&mut self, most: usize, timeout_ms: c_int) -> Result<Ids, Gone> {
        let until = Instant::now() + Duration::from_millis(u64::try_from(timeout_ms).unwrap_or(0));
        let mut kept = Ids::new();
        loop {
            let wait = self.look_after_expected(until)?;
            self.look_after_pace()?;
            // Rounded up: a wait of less than a millisecond would be none, again and again.
            let wait_ms = c_int::try_from(wait.as_micros().div_ceil(1000)).unwrap_or(c_int::MAX);
            let came = self.receive_once(most, wait_ms, &mut kept)?;
            let woken = self.consumer.as_ref().is_some_and(|consumer| consumer.was_woken());
            if came || woken || Instant::now() >= until {
                return Ok(kept);
            }
        }
    }

    fn receive_once(&mut self, most: usize, wait_ms: c_int, kept: &mut Ids) -> Result<bool, Gone> {
        let consumer = Arc::clone(self.consumer.as_ref().ok_or(Gone)?);
        let (mut came, mut size) = (false, 0);
        let (readings, ids, spares) = (&mut self.readings, &self.ids, &mut self.spares);
        // Of the message before: most often the next one is of the same partition. The topic is known by its pointer as
        // long as a message with it is alive, which those of one batch are.
        let mut last = None;
        consumer.receive(most, wait_ms, |functions, message, first| {
            came = true;
            // SAFETY: the message is alive until this returns, and has a topic, which is alive as long.
            let (topic, partition, error) = unsafe { ((*message).topic, (*message).partition, (*message).error) };
            let id = match last {
                Some((same, number, id)) if !first && same == topic && number == partition => id,
                _ => {
                    // SAFETY: as above.
                    let name = unsafe { name_of(functions, topic) };
                    let id = ids.get(name).and_then(|partitions| partitions.get(&partition)).copied();
                    last = Some((topic, partition, id));
                    id
                }
            };
            let Some(Some(Some(reading))) = id.map(|id| readings.get_mut(id)) else {
                return true;
            };
            reading.expected = false;
            reading.ended = error == PARTITION_EOF;
            if reading.pile.is_empty()
                && let Some(spare) = spares.pop()
            {
                reading.pile = spare;
            }
            if let Some(id) = id.filter(|id| reading.held && !kept.contains(id)) {
                kept.push(id);
            }
            let before = reading.pile.size();
            // SAFETY: the message is alive until this returns, and nobody else has it.
            reading.next = unsafe { reading.pile.add(functions, message, reading.next) };
            size += reading.pile.size() - before;
            size < MOST_BYTES
        })?;
        Ok(came)
    }

    /// Takes what there is of partitions that are not held, and cuts it.
    fn take(&mut self, most: usize) -> Vec<Part> {
        let mut left = most;
        let mut parts = Vec::new();
        for (id, reading) in self.readings.iter_mut().enumerate() {
            if left == 0 {
                break;
            }
            if let Some(reading) = reading.as_mut().filter(|reading| reading.is_ready()) {
                let pile = reading.pile.take(left);
                left -= pile.len();
                parts.push(Part::of(id, pile, reading.router.as_ref(), reading.advances));
            }
        }
        parts
    }
}

impl Part {
    fn of(id: usize, pile: Pile, router: Option<&Py<Router>>, advances: bool) -> Self {
        let mut stream_time = -1;
        let stream_times = pile
            .rows()
            .iter()
            .map(|row| {
                stream_time = row.timestamp.max(stream_time);
                stream_time
            })
            .collect();
        // Time marks advance stream time, are dropped, and are told from records in Python.
        let slots = router.filter(|_| !pile.rows().iter().any(Pile::is_bare)).map(|router| {
            let rows = pile.rows().iter();
            let router = router.get();
            router.deal(rows.map(|row| router.hash(pile.key(row), || row.offset)))
        });
        Self {
            id,
            pile,
            advances: advances && slots.is_some(),
            slots,
            stream_times,
        }
    }

    fn to_python<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyTuple>> {
        let rows = self.pile.rows();
        let columns = match &self.slots {
            None => self.columns(py, rows.len(), |i| i)?.into_any(),
            Some(slots) => {
                let all = PyList::empty(py);
                for slot in slots {
                    let some = (!slot.is_empty()).then(|| self.columns(py, slot.len(), |i| slot[i]));
                    all.append(some.transpose()?)?;
                }
                all.into_any()
            }
        };
        let events = PyList::empty(py);
        for event in self.pile.events() {
            let after = event.rows.checked_sub(1).map(|before| rows[before].offset + 1);
            events.append((event.code, &event.text, event.offset, after))?;
        }
        let next = rows.last().map(|row| row.offset + 1);
        let stream_time = self.stream_times.last().copied().unwrap_or(-1);
        let advances = self.advances.then(|| self.where_time_advances(py)).transpose()?;
        (
            self.id,
            columns,
            next,
            stream_time,
            events,
            self.slots.is_some(),
            advances,
        )
            .into_pyobject(py)
    }

    /// The offsets of the records at which stream time advances, and the times.
    fn where_time_advances<'py>(&self, py: Python<'py>) -> PyResult<(Bound<'py, PyBytes>, Bound<'py, PyBytes>)> {
        let times = &self.stream_times;
        let advances = |&i: &usize| times[i] > i.checked_sub(1).map_or(-1, |before| times[before]);
        let found: Vec<usize> = (0..times.len()).filter(advances).collect();
        let bytes = |at: &dyn Fn(usize) -> i64| {
            PyBytes::new_with(py, 8 * found.len(), |to| {
                for (to, &i) in to.chunks_exact_mut(8).zip(&found) {
                    to.copy_from_slice(&at(i).to_ne_bytes());
                }
                Ok(())
            })
        };
        Ok((bytes(&|i| self.pile.rows()[i].offset)?, bytes(&|i| times[i])?))
    }

    /// The columns of the records whose indexes `at` gives.
    fn columns<'py>(
        &self,
        py: Python<'py>,
        count: usize,
        at: impl Fn(usize) -> usize,
    ) -> PyResult<Bound<'py, PyTuple>> {
        let rows = self.pile.rows();
        let row = |i: usize| &rows[at(i)];
        let keys = PyList::new(
            py,
            (0..count).map(|i| self.pile.key(row(i)).map(|it| PyBytes::new(py, it))),
        )?;
        let values = PyList::new(
            py,
            (0..count).map(|i| self.pile.value(row(i)).map(|it| PyBytes::new(py, it))),
        )?;
        let timestamps = integers(py, count, |i| row(i).timestamp)?;
        let same = (0..count).all(|i| row(i).timestamp == self.stream_times[at(i)]);
        let stream_times = if same {
            timestamps.clone()
        } else {
            integers(py, count, |i| self.stream_times[at(i)])?
        };
        let holes = count > 0 && row(count - 1).offset - row(0).offset >= count.cast_signed() as i64;
        let offsets = if holes || count == 0 {
            integers(py, count, |i| row(i).offset)?.into_any()
        } else {
            let start = isize::try_from(row(0).offset)?;
            PyRange::new(py, start, start + count.cast_signed())?.into_any()
        };
        let headers = if (0..count).any(|i| self.pile.headers(row(i)).is_some()) {
            let all = PyList::empty(py);
            for i in 0..count {
                all.append(self.headers(py, row(i))?)?;
            }
            Some(all)
        } else {
            None
        };
        (keys, values, timestamps, offsets, stream_times, headers).into_pyobject(py)
    }

    fn headers<'py>(&self, py: Python<'py>, row: &Row) -> PyResult<Option<Bound<'py, PyList>>> {
        let Some(headers) = self.pile.headers(row) else {
            return Ok(None);
        };
        let list = PyList::empty(py);
        for (name, value) in headers {
            // As in pure Python, which cannot have a name that is not UTF-8.
            let name = PyString::new(py, str::from_utf8(name).unwrap_or("\u{fffd}"));
            list.append((name, value.map(|it| PyBytes::new(py, it))))?;
        }
        Ok(Some(list))
    }
}

/// A list of integers, in which equal neighbours are one object: records often have the timestamp of the one before.
fn integers<'py>(py: Python<'py>, count: usize, at: impl Fn(usize) -> i64) -> PyResult<Bound<'py, PyList>> {
    let mut last: Option<(i64, Bound<'py, PyInt>)> = None;
    PyList::new(
        py,
        (0..count).map(|i| {
            let value = at(i);
            match &last {
                Some((same, object)) if *same == value => object.clone(),
                _ => {
                    let object = PyInt::new(py, value);
                    last = Some((value, object.clone()));
                    object
                }
            }
        }),
    )
}

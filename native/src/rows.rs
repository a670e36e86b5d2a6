//! The write buffer of a built-in aggregation: one number for each key, or for each key and window, between two commits.
//!
//! `numbers` folds and serialises, `row_table` finds a row. What neither can do (a sum beyond 64 bits, a value that is no
//! number) is left to Python's own functions, row by row, so that the result is Python's. `coopstreams/state/native/native_table.py`
//! is the store around it, `table.py` the reference.

use crate::breathe;
use crate::join_side::JoinSide;
use crate::numbers::{Numbers, Value, WORD, serialised, word};
use crate::router::SEED;
use crate::row_table::{EMPTY, Place, Row, RowTable, placed, start_of};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PyString};
use std::collections::{BTreeMap, HashMap};
use std::hint::black_box;
use xxhash_rust::xxh64::xxh64;

/// What Kafka Streams writes behind the key in the changelog of a window store: a sequence number.
const SEQUENCE: [u8; 4] = [0; 4];
const NO_TIMESTAMP: i64 = -1;
/// The memory of an object for each byte of it: `state/table.py` has the same.
const LIVE_FACTOR: f64 = 4.0;
/// How many records are approached at once.
const BLOCK: usize = 32;

/// Tumbling or hopping windows. Units: milliseconds.
struct Windows {
    size: i64,
    advance: i64,
    grace: i64,
}

type Updates<'py> = (Bound<'py, PyList>, Bound<'py, PyList>, Bound<'py, PyList>);
type Family<'py> = (Option<i64>, Bound<'py, PyList>, Bound<'py, PyList>);
type Frozen<'py> = (Updates<'py>, Vec<Family<'py>>);

/// Value, timestamp and stored bytes of a row.
type Entry<'py> = (Py<PyAny>, i64, Option<Bound<'py, PyBytes>>);

/// What became of some records: the operator time after them, how many had no key, no value, or were late, the errors of
/// the reducer, and the updates in order if they were wanted.
type Added<'py> = (i64, usize, usize, usize, Vec<Py<PyAny>>, Option<Updates<'py>>);

#[pyclass]
pub struct Rows {
    numbers: Numbers,
    windows: Option<Windows>,
    rows: RowTable,
    /// The rows that changed since the last commit, in the order of their first change.
    dirty: Vec<u32>,
    by_start: BTreeMap<i64, Vec<u32>>,
    /// The headers of the record that changed a row last, until the row is forwarded.
    headers: HashMap<u32, Py<PyAny>>,
    /// How many commits there were.
    commits: u32,
    /// Some value is no number of the serde: the caller adds records one by one, so that errors belong to one.
    #[pyo3(get)]
    odd: bool,
    /// The row that `value` has returned, which `put` changes.
    at: u32,
    /// No window that starts later is in the database, unless it is also here: it need not be looked up.
    #[pyo3(get, set)]
    stored_to: i64,
    /// The average length of the values that Python has serialised.
    #[pyo3(get, set)]
    average: f64,
    /// Values that `updates` has serialised, until `freeze` takes them or a row changes.
    serialised: HashMap<u32, Py<PyBytes>>,
    /// The sessions of each key; None: rows are no sessions.
    sessions: Option<HashMap<Box<[u8]>, Sessions>>,
    /// The rows that `sessions` has returned.
    found: Vec<u32>,
    /// The windows that have had a record and are not closed, by their starts; None: nothing asks when windows close.
    open: Option<BTreeMap<i64, Open>>,
}

/// Open windows with one start.
#[derive(Default)]
struct Open {
    rows: Vec<u32>,
    /// The store keys of rows that have left the buffer, and perhaps come back.
    away: Vec<Box<[u8]>>,
}

/// The sessions of a key that have a value: end, start and index, ascending.
///
/// Invariant: all that end at `read` or later are here, in the buffer and of the database.
struct Sessions {
    known: Vec<(i64, i64, u32)>,
    read: i64,
}

#[pymethods]
impl Rows {
    /// `windows`: size, advance and grace in milliseconds. `sessions`: rows are sessions, which `sessions` and `merge` change.
    /// `closing`: `closed` returns windows when they close.
    #[new]
    #[pyo3(signature = (fold, serde, windows=None, *, sessions=false, closing=false))]
    fn new(fold: &str, serde: &str, windows: Option<(i64, i64, i64)>, sessions: bool, closing: bool) -> PyResult<Self> {
        let windows = match windows {
            Some((size, advance, grace)) if size > 0 && advance > 0 && grace >= 0 => {
                Some(Windows { size, advance, grace })
            }
            Some(_) => return Err(PyValueError::new_err("windows have a size and an advance")),
            None => None,
        };
        Ok(Self {
            numbers: Numbers::of(fold, serde)?,
            windows,
            rows: RowTable::new(),
            dirty: Vec::new(),
            by_start: BTreeMap::new(),
            headers: HashMap::new(),
            commits: 0,
            odd: false,
            at: EMPTY,
            stored_to: i64::MAX,
            average: 0.0,
            serialised: HashMap::new(),
            sessions: sessions.then(HashMap::new),
            found: Vec::new(),
            open: closing.then(BTreeMap::new),
        })
    }

    /// Whether the rows change by `value` and `put`, else by `add`.
    #[getter]
    fn by_record(&self) -> bool {
        self.numbers.by_record()
    }

    /// Return the value of the row of a key, or of its window from `start`; None: there is none. The row is the one that `put`,
    /// `restore` and `keep` change. `load(place)` returns a row that is not in the buffer, or None: of numbers its database bytes,
    /// else value, timestamp and stored bytes.
    pub fn value<'py>(
        &mut self,
        py: Python<'py>,
        key: &Bound<'py, PyBytes>,
        start: Option<i64>,
        load: &Bound<'py, PyAny>,
    ) -> PyResult<Py<PyAny>> {
        let plain = key.as_bytes();
        let hash = xxh64(plain, SEED);
        let at = placed(hash, start);
        self.at = match self.rows.find(at, plain, start) {
            Some(index) => index,
            None => self.load(py, at, Place::of((hash >> 56) as u8, plain, start), start, load)?,
        };
        if let (Some(open), Some(start)) = (&mut self.open, start)
            && !self.rows[self.at].open
        {
            self.rows[self.at].open = true;
            open.entry(start).or_default().rows.push(self.at);
        }
        let row = &self.rows[self.at];
        if row.expired {
            Ok(py.None())
        } else {
            row.value.object(py)
        }
    }

    /// Set the value of the row that `value` has returned; None deletes it. Return the row's timestamp, which is that of its
    /// latest record.
    pub fn put(&mut self, value: &Bound<'_, PyAny>, timestamp: i64) -> PyResult<i64> {
        let value = self.numbers.value_of(value)?;
        Ok(self.set(self.at, value, timestamp))
    }

    /// Set the value of the row that `value` has returned to what it was: a function has changed it in place, and then failed.
    fn restore(&mut self, value: &Bound<'_, PyAny>) -> PyResult<()> {
        self.serialised.remove(&self.at);
        self.rows[self.at].value = self.numbers.value_of(value)?;
        Ok(())
    }

    /// Keep the headers of the record that has changed the row that `value` has returned, or the sessions of `merge`.
    fn keep(&mut self, py: Python<'_>, headers: Py<PyAny>) {
        for &index in &self.found {
            self.headers.insert(index, headers.clone_ref(py));
        }
        self.headers.insert(self.at, headers);
    }

    /// Return a side of a join whose values are these rows. `load`: as of `value`; else as of `JoinSide::new`.
    fn side(slf: Py<Self>, load: Py<PyAny>, retention: i64, newest: i64, of_all: Py<PyList>) -> JoinSide {
        JoinSide::new(slf, load, retention, newest, of_all)
    }

    /// Return keys, values and timestamps of the windows that are closed at a stream time and have a value, ordered by start
    /// and key; they are open no more. With `encode` their values are serialised (`is_row`: as of `updates`), and if one cannot
    /// be, None is returned and nothing has changed. `load`: as of `value`.
    #[pyo3(signature = (stream_time, load, encode=None, is_row=true))]
    fn closed<'py>(
        &mut self,
        py: Python<'py>,
        stream_time: i64,
        load: &Bound<'py, PyAny>,
        encode: Option<&Bound<'py, PyAny>>,
        is_row: bool,
    ) -> PyResult<Option<Updates<'py>>> {
        let out = (PyList::empty(py), PyList::empty(py), PyList::empty(py));
        let mut done = Vec::new();
        while let Some(start) = self.closed_start(stream_time) {
            let indexes = self.of_start(py, start, load)?;
            for (at, &index) in indexes.iter().enumerate() {
                breathe(py, at);
                let row = &self.rows[index];
                if row.expired || row.value.is_null() {
                    continue;
                }
                let value = match encode {
                    None => row.value.object(py)?,
                    Some(encode) => match self.bytes_of(py, index, encode, is_row) {
                        Some(bytes) => bytes.into_any().unbind(),
                        None => {
                            done.push((start, indexes));
                            self.open_again(done);
                            return Ok(None);
                        }
                    },
                };
                let row = &self.rows[index];
                out.0.append(PyBytes::new(py, &row.place[1..]))?;
                out.1.append(value)?;
                out.2.append(row.timestamp)?;
            }
            done.push((start, indexes));
        }
        for (_, indexes) in done {
            for index in indexes {
                self.rows[index].open = false;
            }
        }
        Ok(Some(out))
    }

    /// The start of the earliest open window; None: no window is open.
    #[getter]
    fn first_open(&self) -> Option<i64> {
        let open = self.open.as_ref()?;
        open.first_key_value().map(|(&start, _)| start)
    }

    /// Have these windows, by their store keys, be the open ones.
    fn reopen(&mut self, keys: Vec<Bound<'_, PyBytes>>) {
        self.forget_open(i64::MAX);
        if let Some(open) = &mut self.open {
            for key in keys {
                let key = key.as_bytes();
                open.entry(start_of(key)).or_default().away.push(key.into());
            }
        }
    }

    /// Return value, start and end of the sessions of a key that end at `earliest_end` or later and start at `latest_start` or
    /// before, ordered by end. They are those that `merge` may absorb. `scan(key, first, last)` returns the sessions of the
    /// database that end from `first` to `last`: the end and start of each as bytes, and what `load` of `value` returns.
    fn sessions<'py>(
        &mut self,
        py: Python<'py>,
        key: &Bound<'py, PyBytes>,
        earliest_end: i64,
        latest_start: i64,
        scan: &Bound<'py, PyAny>,
    ) -> PyResult<Bound<'py, PyList>> {
        let plain = key.as_bytes();
        let stored_to = self.stored_to;
        let all = self.sessions.as_mut().ok_or_else(no_sessions)?;
        if !all.contains_key(plain) {
            let read = stored_to.saturating_add(1);
            all.insert(
                plain.into(),
                Sessions {
                    known: Vec::new(),
                    read,
                },
            );
        }
        let read = all[plain].read;
        if earliest_end < read && earliest_end <= stored_to {
            self.read_sessions(py, key, earliest_end, read - 1, scan)?;
        }
        let out = PyList::empty(py);
        self.found.clear();
        let of_key = &self.sessions.as_ref().ok_or_else(no_sessions)?[plain];
        let first = of_key.known.partition_point(|&(end, _, _)| end < earliest_end);
        for &(end, start, index) in &of_key.known[first..] {
            if start <= latest_start {
                out.append((self.rows[index].value.object(py)?, start, end))?;
                self.found.push(index);
            }
        }
        Ok(out)
    }

    /// Set the value of a session. `absorbs`: the sessions that `sessions` has returned are deleted, each at its end.
    /// `load`: as of `value`.
    #[allow(clippy::too_many_arguments, reason = "the parts of a session, and where it may be")]
    fn merge<'py>(
        &mut self,
        py: Python<'py>,
        key: &Bound<'py, PyBytes>,
        start: i64,
        end: i64,
        value: &Bound<'py, PyAny>,
        absorbs: bool,
        load: &Bound<'py, PyAny>,
    ) -> PyResult<()> {
        let plain = key.as_bytes();
        let value = self.numbers.value_of(value)?;
        if absorbs {
            for at in 0..self.found.len() {
                let index = self.found[at];
                let ended = self.time_of(&self.rows[index].place);
                self.set(index, Value::Null, ended);
                self.rows[index].timestamp = ended;
                self.forget_session(plain, index);
            }
        }
        let at = session_at(plain, start, end);
        let index = match self.rows.find(at.hash, &at.key, Some(start)) {
            Some(index) => index,
            None => self.load(py, at.hash, at.place(), Some(end), load)?,
        };
        let gone = value.is_null();
        self.set(index, value, end);
        self.rows[index].timestamp = end;
        self.at = index;
        if gone {
            self.forget_session(plain, index);
        } else {
            self.know_session(plain, end, start, index);
        }
        Ok(())
    }

    /// Return key and value of the row that began to differ from the database last; None: no row does.
    fn newest<'py>(&self, py: Python<'py>) -> PyResult<Option<(Bound<'py, PyBytes>, Py<PyAny>)>> {
        let Some(&index) = self.dirty.last() else {
            return Ok(None);
        };
        let row = &self.rows[index];
        Ok(Some((PyBytes::new(py, &row.place[1..]), row.value.object(py)?)))
    }

    /// Add records, in order. `values` are bytes or objects; without `drops_null_values` they are not looked at in a count.
    /// `before`: for each record, an operator time that others have reached before it. `births`: by which records are late, on
    /// a clock that only `before` advances; None: the records' timestamps are their time. `load(place)` returns the stored timestamp
    /// and value of a row that is not in the buffer, or None.
    #[allow(
        clippy::too_many_arguments,
        reason = "the columns of a batch, and what belongs to all of it"
    )]
    #[pyo3(signature = (keys, values, timestamps, before, operator_time, load, reduce, *, drops_null_values=false, headers=None, updates=false, births=None))]
    fn add<'py>(
        &mut self,
        py: Python<'py>,
        keys: &Bound<'py, PyAny>,
        values: Option<&Bound<'py, PyAny>>,
        timestamps: &Bound<'py, PyAny>,
        before: Option<&Bound<'py, PyAny>>,
        operator_time: i64,
        load: &Bound<'py, PyAny>,
        reduce: &Bound<'py, PyAny>,
        drops_null_values: bool,
        headers: Option<&Bound<'py, PyAny>>,
        updates: bool,
        births: Option<&Bound<'py, PyAny>>,
    ) -> PyResult<Added<'py>> {
        let keys = Column::of(keys)?;
        let values = values.map(Column::of).transpose()?;
        let timestamps = Column::of(timestamps)?;
        let before = before.map(Column::of).transpose()?;
        let headers = headers.map(Column::of).transpose()?;
        let births = births.map(Column::of).transpose()?;
        let columns = [
            Some(&timestamps),
            values.as_ref(),
            before.as_ref(),
            headers.as_ref(),
            births.as_ref(),
        ];
        if columns.into_iter().flatten().any(|column| column.len() != keys.len())
            || (values.is_none() && !self.numbers.is_count())
        {
            return Err(PyValueError::new_err("columns of one length"));
        }
        let mut out = updates.then(|| (PyList::empty(py), PyList::empty(py), PyList::empty(py)));
        let mut now = operator_time;
        let (mut null_keys, mut null_values, mut late) = (0, 0, 0);
        let mut errors = Vec::new();
        let mut hashes = [0; BLOCK];
        for i in 0..keys.len() {
            breathe(py, i);
            if i % BLOCK == 0 {
                self.approach(&keys, &timestamps, i, &mut hashes)?;
            }
            let key = keys.get(i)?;
            if let Some(before) = &before {
                now = now.max(before.get(i)?.extract()?);
            }
            if key.is_none() {
                null_keys += 1;
                continue;
            }
            let value = values.as_ref().map(|values| values.get(i)).transpose()?;
            if drops_null_values && value.as_ref().is_some_and(|value| value.is_none()) {
                null_values += 1;
                continue;
            }
            let plain = key.cast::<PyBytes>()?.as_bytes();
            let timestamp: i64 = timestamps.get(i)?.extract()?;
            let mut at = Change {
                key: &key,
                plain,
                hash: hashes[i % BLOCK],
                start: None,
                timestamp,
                value: value.as_ref(),
                headers: headers.as_ref().map(|headers| headers.get(i)).transpose()?,
            };
            let Some(windows) = &self.windows else {
                self.change(py, &at, load, reduce, &mut errors, out.as_mut())?;
                continue;
            };
            let born = match &births {
                Some(births) => now.max(births.get(i)?.extract()?),
                None => {
                    now = now.max(timestamp);
                    now
                }
            };
            let (size, advance, grace) = (windows.size, windows.advance, windows.grace);
            let mut start = windows.first(timestamp);
            while let Some(begin) = start {
                let closes = begin.checked_add(size).and_then(|end| end.checked_add(grace));
                if closes.is_some_and(|closes| closes <= born) {
                    late += 1;
                } else {
                    at.start = Some(begin);
                    if !self.change(py, &at, load, reduce, &mut errors, out.as_mut())? {
                        break; // the record fails once, with the windows that remain
                    }
                }
                start = (size != advance)
                    .then(|| begin.checked_add(advance))
                    .flatten()
                    .filter(|&next| next <= timestamp);
            }
        }
        Ok((now, null_keys, null_values, late, errors, out))
    }

    /// The length of a row in the database: a timestamp, and a number or, of a mean, a total and a count.
    #[getter]
    fn row_bytes(&self) -> usize {
        self.numbers.row_bytes()
    }

    /// Return value, timestamp and stored bytes of a row of the buffer; None: it is not there.
    fn row<'py>(&self, py: Python<'py>, key: &[u8]) -> PyResult<Option<Entry<'py>>> {
        let suffix = match (&self.windows, &self.sessions) {
            (_, Some(_)) => 2 * WORD,
            (Some(_), None) => WORD,
            (None, None) => 0,
        };
        let Some(length) = key.len().checked_sub(suffix) else {
            return Ok(None);
        };
        let plain = &key[..length];
        let found = if self.sessions.is_some() {
            let at = session_at(plain, start_of(key), self.time_of(key));
            self.rows.find(at.hash, &at.key, Some(at.start))
        } else {
            let start = self.windows.is_some().then(|| start_of(key));
            self.rows.find(placed(xxh64(plain, SEED), start), plain, start)
        };
        let Some(index) = found else {
            return Ok(None);
        };
        let row = &self.rows[index];
        if row.expired {
            return Ok(None);
        }
        Ok(Some((
            row.value.object(py)?,
            row.timestamp,
            self.numbers.stored_bytes(py, &row.stored)?,
        )))
    }

    /// Return the keys of the buffer that have not expired, in no order.
    fn keys<'py>(&self, py: Python<'py>) -> Vec<Bound<'py, PyBytes>> {
        let found = self.rows.iter().filter(|(_, row)| !row.expired);
        found.map(|(_, row)| PyBytes::new(py, &row.place[1..])).collect()
    }

    /// Return the changed rows in the order of their first change: key, value, timestamp, stored bytes, and the headers,
    /// which are forgotten.
    #[allow(clippy::type_complexity, reason = "the parts of an entry")]
    fn dirty<'py>(
        &mut self,
        py: Python<'py>,
    ) -> PyResult<
        Vec<(
            Bound<'py, PyBytes>,
            Py<PyAny>,
            i64,
            Option<Bound<'py, PyBytes>>,
            Option<Py<PyAny>>,
        )>,
    > {
        let mut headers = std::mem::take(&mut self.headers);
        let entries = self.dirty.iter().map(|&index| {
            let row = &self.rows[index];
            Ok((
                PyBytes::new(py, &row.place[1..]),
                row.value.object(py)?,
                row.timestamp,
                self.numbers.stored_bytes(py, &row.stored)?,
                headers.remove(&index),
            ))
        });
        entries.collect()
    }

    /// Return keys, serialised values (of a mean, the quotients) and timestamps of the changed rows in the order of their
    /// first change. A row that came and went since the last commit is left out. `encode` serialises objects; `is_row`: to the
    /// bytes that `freeze` will need again. None: some value is no number of the serde, or cannot be serialised, so that the
    /// rows go one by one.
    fn updates<'py>(
        &mut self,
        py: Python<'py>,
        encode: &Bound<'py, PyAny>,
        is_row: bool,
    ) -> PyResult<Option<Updates<'py>>> {
        if self.odd {
            return Ok(None);
        }
        let out = (PyList::empty(py), PyList::empty(py), PyList::empty(py));
        for (done, &index) in self.dirty.iter().enumerate() {
            breathe(py, done);
            let row = &self.rows[index];
            if !(row.value.is_null() && row.stored.is_null()) {
                out.0.append(PyBytes::new(py, &row.place[1..]))?;
                match &row.value {
                    Value::Object(object) => {
                        let Ok(bytes) = serialised(encode, object.bind(py)) else {
                            self.serialised.clear();
                            return Ok(None);
                        };
                        out.1.append(&bytes)?;
                        if is_row {
                            self.serialised.insert(index, bytes.unbind());
                        }
                    }
                    value if !self.numbers.is_plain(value) => {
                        self.serialised.clear();
                        return Ok(None);
                    }
                    Value::Mean(mean) => out
                        .1
                        .append(PyBytes::new(py, &(mean.0 / mean.1 as f64).to_be_bytes()))?,
                    value => out.1.append(self.numbers.plain_bytes(py, value))?,
                }
                out.2.append(row.timestamp)?;
            }
        }
        Ok(Some(out))
    }

    /// Return the place of a changed row outside of these key groups, the first in the order of places; None: all are inside.
    fn stray<'py>(&self, py: Python<'py>, first: u8, last: u8) -> Option<Bound<'py, PyBytes>> {
        let places = self.dirty.iter().map(|&index| &self.rows[index].place);
        places
            .filter(|place| !(first..=last).contains(&place[0]))
            .min_by(|a, b| a[..].cmp(&b[..]))
            .map(|place| PyBytes::new(py, place))
    }

    /// Serialise the changed rows, which are then clean: changelog keys, values and timestamps, ordered by place, and the
    /// places and database rows of each time segment (None without windows) from `horizon` on. `encode(value)`
    /// serialises what is no number of the serde; if that fails, `unwritable(key, error)` returns the error to raise. An error leaves the rows in no defined state: clear them.
    fn freeze<'py>(
        &mut self,
        py: Python<'py>,
        encode: &Bound<'py, PyAny>,
        unwritable: &Bound<'py, PyAny>,
        segment_ms: i64,
        horizon: i64,
    ) -> PyResult<Frozen<'py>> {
        let mut serialised = std::mem::take(&mut self.serialised);
        let (mut objects, mut lengths) = (0_usize, 0_usize);
        let mut dirty = std::mem::take(&mut self.dirty);
        let rows = &self.rows;
        py.detach(|| sort_by(&mut dirty, |index| &rows[index].place[..]));
        self.headers.clear();
        self.commits = self.commits.wrapping_add(1);
        let out = (PyList::empty(py), PyList::empty(py), PyList::empty(py));
        let mut families: Vec<Family<'py>> = Vec::new();
        let mut by_segment: HashMap<Option<i64>, usize> = HashMap::new();
        let mut last: Option<(Option<i64>, usize)> = None;
        let mut database_row = [0; 2 * WORD];
        for (done, index) in dirty.into_iter().enumerate() {
            breathe(py, done);
            let (value, stored) = {
                let row = &mut self.rows[index];
                row.dirty = false;
                row.commit = self.commits;
                if row.value.is_null() && row.stored.is_null() {
                    self.drop_expired(index);
                    continue;
                }
                let row = &self.rows[index];
                match serialised.remove(&index) {
                    Some(bytes) => {
                        let stored = Value::Object(bytes.clone_ref(py).into_any());
                        (Some(bytes.into_bound(py)), stored)
                    }
                    None => self
                        .numbers
                        .encoded(py, &row.place[1..], &row.value, encode, unwritable)?,
                }
            };
            let row = &mut self.rows[index];
            if let (Value::Object(_), Some(value)) = (&stored, &value) {
                objects += 1;
                lengths += value.as_bytes().len();
            }
            row.stored = stored;
            let row = &self.rows[index];
            let key = &row.place[1..];
            let time = self.is_timed().then(|| self.time_of(key));
            if self.windows.is_some() {
                out.0.append(joined(py, key, &SEQUENCE)?)?;
            } else {
                out.0.append(PyBytes::new(py, key))?;
            }
            out.2.append(row.timestamp)?;
            let segment = match time {
                None => None,
                Some(time) if time < horizon => {
                    out.1.append(value)?;
                    self.drop_expired(index);
                    continue;
                }
                Some(time) => Some(time.div_euclid(segment_ms.max(1))),
            };
            let family = match last {
                Some((known, family)) if known == segment => family,
                _ => *by_segment.entry(segment).or_insert_with(|| {
                    families.push((segment, PyList::empty(py), PyList::empty(py)));
                    families.len() - 1
                }),
            };
            last = Some((segment, family));
            families[family].1.append(PyBytes::new(py, &row.place))?;
            match &value {
                None => families[family].2.append(py.None())?,
                Some(value) if value.as_bytes().len() == WORD => {
                    database_row[..WORD].copy_from_slice(&row.timestamp.to_be_bytes());
                    database_row[WORD..].copy_from_slice(value.as_bytes());
                    families[family].2.append(PyBytes::new(py, &database_row))?;
                }
                Some(value) => {
                    families[family]
                        .2
                        .append(joined(py, &row.timestamp.to_be_bytes(), value.as_bytes())?)?
                }
            }
            out.1.append(value)?;
            self.drop_expired(index);
        }
        if objects > 0 {
            self.average = lengths as f64 / objects as f64;
        }
        Ok((out, families))
    }

    /// Forget all rows.
    fn clear(&mut self) {
        self.rows.clear();
        self.dirty.clear();
        self.by_start.clear();
        self.headers.clear();
        self.serialised.clear();
        if let Some(sessions) = &mut self.sessions {
            sessions.clear();
        }
        if let Some(open) = &mut self.open {
            open.clear();
        }
        self.odd = false;
    }

    /// Forget the windows that start before `horizon`. The next commit still writes those that changed.
    fn expire(&mut self, horizon: i64) {
        self.forget_open(horizon);
        while let Some(entry) = self.by_start.first_entry() {
            if *entry.key() >= horizon {
                return;
            }
            for index in entry.remove() {
                if let Some(plain) = self.plain_of_session(index) {
                    self.forget_session(&plain, index);
                    self.forget_key_without_sessions(&plain);
                }
                if self.rows[index].dirty {
                    self.rows[index].expired = true;
                } else {
                    self.rows.remove(index);
                }
            }
        }
    }

    /// Forget so many clean rows, first those that were not written for the longest time. Return the latest start of their
    /// windows; None: no window was forgotten.
    fn trim(&mut self, excess: usize) -> Option<i64> {
        let clean = self.rows.iter().filter(|(_, row)| !row.dirty);
        let mut clean: Vec<(u32, u32)> = clean.map(|(index, row)| (self.commits - row.commit, index)).collect();
        clean.sort_unstable_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(&b.1)));
        clean.truncate(excess);
        let mut latest = None;
        for &(_, index) in &clean {
            if self.is_timed() {
                let time = self.time_of(&self.rows[index].place);
                latest = latest.max(Some(time));
                self.evict_session(index, time);
                self.evict_open(index, time);
            }
            self.rows.remove(index);
        }
        let rows = &self.rows;
        for indexes in self.by_start.values_mut() {
            indexes.retain(|&index| rows.has(index));
        }
        self.by_start.retain(|_, indexes| !indexes.is_empty());
        for of_start in self.open.iter_mut().flat_map(BTreeMap::values_mut) {
            of_start.rows.retain(|&index| rows.has(index));
        }
        latest
    }

    /// Return the memory of the rows: of objects, approximately.
    fn size_bytes(&self) -> usize {
        let object = if self.numbers.is_other() {
            (LIVE_FACTOR * self.average) as usize
        } else {
            self.numbers.outside()
        };
        self.rows.size_bytes() + self.rows.len() * object
    }

    fn __len__(&self) -> usize {
        self.rows.len()
    }
}

/// Where a session is among the rows: the key with the session's end, which is found by the session's start.
struct SessionAt {
    group: u8,
    key: Vec<u8>,
    start: i64,
    hash: u64,
}

impl SessionAt {
    fn place(&self) -> Place {
        Place::of(self.group, &self.key, Some(self.start))
    }
}

fn session_at(plain: &[u8], start: i64, end: i64) -> SessionAt {
    let hash = xxh64(plain, SEED);
    SessionAt {
        group: (hash >> 56) as u8,
        key: [plain, &end.to_be_bytes()].concat(),
        start,
        hash: placed(hash ^ end as u64, Some(start)),
    }
}

fn no_sessions() -> PyErr {
    PyValueError::new_err("rows are no sessions")
}

/// A change of one row by one record.
struct Change<'a, 'py> {
    key: &'a Bound<'py, PyAny>,
    plain: &'a [u8],
    hash: u64,
    start: Option<i64>,
    timestamp: i64,
    value: Option<&'a Bound<'py, PyAny>>,
    headers: Option<Bound<'py, PyAny>>,
}

impl Windows {
    /// Return the start of the first window that holds a record; None: none does.
    fn first(&self, timestamp: i64) -> Option<i64> {
        if self.size == self.advance {
            return Some(timestamp - timestamp.rem_euclid(self.size));
        }
        let first = (timestamp - (self.size - self.advance)).max(0) / self.advance * self.advance;
        (first <= timestamp).then_some(first)
    }
}

impl Rows {
    /// Set the hashes of the keys from `first` on, and look at the rows that their records will change: each step for all
    /// of them, so that memory brings them together, and not one after the other.
    fn approach(&self, keys: &Column, timestamps: &Column, first: usize, hashes: &mut [u64; BLOCK]) -> PyResult<()> {
        let mut near = [EMPTY; BLOCK];
        for (at, i) in (first..keys.len().min(first + BLOCK)).enumerate() {
            let key = keys.get(i)?;
            let Ok(key) = key.cast::<PyBytes>() else { continue };
            hashes[at] = xxh64(key.as_bytes(), SEED);
            let start = match &self.windows {
                None => None,
                Some(windows) => windows.first(timestamps.get(i)?.extract()?),
            };
            near[at] = self.rows.near(placed(hashes[at], start));
        }
        let rows = near.iter().filter_map(|&index| self.rows.get(index));
        black_box(rows.fold(0, |seen, row| seen ^ row.hash));
        Ok(())
    }

    /// Add a record to a row; return whether it was. An error of the reducer changes nothing, and goes to `errors`.
    fn change<'py>(
        &mut self,
        py: Python<'py>,
        at: &Change<'_, 'py>,
        load: &Bound<'py, PyAny>,
        reduce: &Bound<'py, PyAny>,
        errors: &mut Vec<Py<PyAny>>,
        out: Option<&mut Updates<'py>>,
    ) -> PyResult<bool> {
        let hash = placed(at.hash, at.start);
        let index = match self.rows.find(hash, at.plain, at.start) {
            Some(index) => index,
            None => {
                let place = Place::of((at.hash >> 56) as u8, at.plain, at.start);
                self.load(py, hash, place, at.start, load)?
            }
        };
        let row = &self.rows[index];
        let old = if row.expired { &Value::Null } else { &row.value };
        let value = match self.numbers.folded(py, old, at.value, reduce) {
            Ok(value) => value,
            Err(error) => {
                errors.push(error.into_value(py).into_any());
                return Ok(false);
            }
        };
        self.odd |= !self.numbers.is_plain(&value);
        self.set(index, value, at.timestamp);
        if let Some(headers) = &at.headers {
            self.headers.insert(index, headers.clone().unbind());
        }
        if let Some(out) = out {
            let row = &self.rows[index];
            match at.start {
                None => out.0.append(at.key)?,
                Some(_) => out.0.append(PyBytes::new(py, &row.place[1..]))?,
            }
            out.1.append(self.numbers.plain_bytes(py, &row.value))?;
            out.2.append(row.timestamp)?;
        }
        Ok(true)
    }

    /// Set the value of a row, and mark it as changed; return its timestamp.
    fn set(&mut self, index: u32, value: Value, timestamp: i64) -> i64 {
        if !self.serialised.is_empty() {
            self.serialised.remove(&index);
        }
        let row = &mut self.rows[index];
        if row.expired {
            // The window begins again; its row keeps its place among the changed ones.
            (row.expired, row.value, row.stored, row.timestamp) = (false, Value::Null, Value::Null, NO_TIMESTAMP);
            let time = self.time_of(&self.rows[index].place);
            self.by_start.entry(time).or_default().push(index);
        }
        let row = &mut self.rows[index];
        if row.value.is_null() || timestamp > row.timestamp {
            row.timestamp = timestamp;
        }
        row.value = value;
        if !row.dirty {
            row.dirty = true;
            self.dirty.push(index);
        }
        row.timestamp
    }

    /// Return the index of a new row, with what is stored of it.
    fn load<'py>(
        &mut self,
        py: Python<'py>,
        hash: u64,
        place: Place,
        time: Option<i64>,
        load: &Bound<'py, PyAny>,
    ) -> PyResult<u32> {
        let found = if time.is_some_and(|time| time > self.stored_to) {
            None
        } else {
            Some(load.call1((PyBytes::new(py, &place),))?).filter(|found| !found.is_none())
        };
        self.enter(hash, place, time, found)
    }

    /// Return the index of a new row, with what a `load` has found.
    fn enter(&mut self, hash: u64, place: Place, time: Option<i64>, found: Option<Bound<'_, PyAny>>) -> PyResult<u32> {
        let (value, stored, timestamp) = match found {
            None => (Value::Null, Value::Null, NO_TIMESTAMP),
            Some(found) if self.numbers.is_other() => {
                let (value, timestamp, stored) = found.extract::<(Bound<'_, PyAny>, i64, Bound<'_, PyAny>)>()?;
                (
                    self.numbers.value_of(&value)?,
                    self.numbers.value_of(&stored)?,
                    timestamp,
                )
            }
            Some(found) => {
                let data = found.cast::<PyBytes>()?.as_bytes();
                if data.len() != self.numbers.row_bytes() {
                    return Err(PyValueError::new_err("a timestamp and a value"));
                }
                let number = &data[WORD..];
                (
                    self.numbers.decoded(number),
                    self.numbers.decoded(number),
                    word(&data[..WORD]),
                )
            }
        };
        let index = self.rows.add(Row {
            hash,
            value,
            stored,
            timestamp,
            commit: self.commits,
            dirty: false,
            expired: false,
            open: false,
            place,
        })?;
        if let Some(time) = time {
            self.by_start.entry(time).or_default().push(index);
        }
        Ok(index)
    }

    /// Return the start of the earliest open window, if it is closed at a stream time.
    fn closed_start(&self, stream_time: i64) -> Option<i64> {
        let windows = self.windows.as_ref()?;
        let first = self.first_open()?;
        let closes = first.checked_add(windows.size)?.checked_add(windows.grace)?;
        (closes <= stream_time).then_some(first)
    }

    /// Take the open windows with a start; return their rows in the order of the keys.
    fn of_start<'py>(&mut self, py: Python<'py>, start: i64, load: &Bound<'py, PyAny>) -> PyResult<Vec<u32>> {
        let found = self.open.as_mut().and_then(|open| open.remove(&start));
        let Open {
            rows: mut indexes,
            away,
        } = found.unwrap_or_default();
        let had_left = !away.is_empty();
        for key in away {
            let plain = &key[..key.len() - WORD];
            let hash = xxh64(plain, SEED);
            let at = placed(hash, Some(start));
            indexes.push(match self.rows.find(at, plain, Some(start)) {
                Some(index) => index,
                None => {
                    let place = Place::of((hash >> 56) as u8, plain, Some(start));
                    self.load(py, at, place, Some(start), load)?
                }
            });
        }
        let rows = &self.rows;
        py.detach(|| sort_by(&mut indexes, |index| &rows[index].place[1..]));
        if had_left {
            indexes.dedup();
        }
        Ok(indexes)
    }

    /// Put back windows that `of_start` has taken.
    fn open_again(&mut self, taken: Vec<(i64, Vec<u32>)>) {
        for (start, rows) in taken {
            for &index in &rows {
                self.rows[index].open = true;
            }
            if let Some(open) = &mut self.open {
                open.insert(start, Open { rows, away: Vec::new() });
            }
        }
    }

    /// Note that a row leaves the buffer, whose window is perhaps open.
    fn evict_open(&mut self, index: u32, start: i64) {
        let row = &self.rows[index];
        if row.open
            && let Some(of_start) = self.open.as_mut().and_then(|open| open.get_mut(&start))
        {
            of_start.away.push(row.place[1..].into());
        }
    }

    /// Forget the open windows that start before `horizon`.
    fn forget_open(&mut self, horizon: i64) {
        let Some(open) = &mut self.open else { return };
        while let Some(first) = open.first_entry() {
            if *first.key() >= horizon {
                return;
            }
            for index in first.remove().rows {
                self.rows[index].open = false;
            }
        }
    }

    /// Return the bytes of a value; None: it is no number of the serde, or cannot be serialised. `is_row`: as of `updates`.
    fn bytes_of<'py>(
        &mut self,
        py: Python<'py>,
        index: u32,
        encode: &Bound<'py, PyAny>,
        is_row: bool,
    ) -> Option<Bound<'py, PyBytes>> {
        match &self.rows[index].value {
            Value::Object(object) => {
                let bytes = serialised(encode, object.bind(py)).ok()?;
                if is_row && self.rows[index].dirty {
                    self.serialised.insert(index, bytes.clone().unbind());
                }
                Some(bytes)
            }
            value if self.numbers.is_plain(value) => self.numbers.plain_bytes(py, value),
            _ => None,
        }
    }

    /// Whether rows are windows or sessions, which expire by their times.
    fn is_timed(&self) -> bool {
        self.windows.is_some() || self.sessions.is_some()
    }

    /// Return the time at the end of a key by which its row expires: the start of a window, the end of a session.
    fn time_of(&self, key: &[u8]) -> i64 {
        if self.sessions.is_some() {
            start_of(&key[..key.len() - WORD])
        } else {
            start_of(key)
        }
    }

    /// Return the key of a session's row; None: rows are no sessions.
    fn plain_of_session(&self, index: u32) -> Option<Box<[u8]>> {
        let place = &self.rows[index].place;
        self.sessions.as_ref().map(|_| place[1..place.len() - 2 * WORD].into())
    }

    /// Put the sessions of a key in the database that end from `first` to `last` into the buffer.
    fn read_sessions<'py>(
        &mut self,
        py: Python<'py>,
        key: &Bound<'py, PyBytes>,
        first: i64,
        last: i64,
        scan: &Bound<'py, PyAny>,
    ) -> PyResult<()> {
        let plain = key.as_bytes();
        for row in scan.call1((key, first, last))?.try_iter()? {
            breathe(py, 1);
            let (times, found) = row?.extract::<(Bound<'py, PyBytes>, Bound<'py, PyAny>)>()?;
            let times = times.as_bytes();
            let (end, start) = (start_of(&times[..WORD]), start_of(times));
            let at = session_at(plain, start, end);
            if self.rows.find(at.hash, &at.key, Some(start)).is_none() {
                let index = self.enter(at.hash, at.place(), Some(end), Some(found))?;
                self.know_session(plain, end, start, index);
            }
        }
        if let Some(of_key) = self.sessions.as_mut().and_then(|all| all.get_mut(plain)) {
            of_key.read = first;
        }
        Ok(())
    }

    fn know_session(&mut self, plain: &[u8], end: i64, start: i64, index: u32) {
        if let Some(of_key) = self.sessions.as_mut().and_then(|all| all.get_mut(plain)) {
            let at = of_key.known.partition_point(|&known| known < (end, start, 0));
            if of_key.known.get(at).is_none_or(|&(e, s, _)| (e, s) != (end, start)) {
                of_key.known.insert(at, (end, start, index));
            }
        }
    }

    /// Forget a session that has no value any more, or leaves the buffer. A key may have hundreds, so it is searched for.
    fn forget_session(&mut self, plain: &[u8], index: u32) {
        let place = &self.rows[index].place;
        let (end, start) = (self.time_of(place), start_of(place));
        if let Some(of_key) = self.sessions.as_mut().and_then(|all| all.get_mut(plain))
            && let Ok(at) = of_key.known.binary_search(&(end, start, index))
        {
            of_key.known.remove(at);
        }
    }

    /// Note that a session leaves the buffer: its key is no more complete from its end on.
    fn evict_session(&mut self, index: u32, end: i64) {
        let Some(plain) = self.plain_of_session(index) else {
            return;
        };
        self.forget_session(&plain, index);
        if let Some(of_key) = self.sessions.as_mut().and_then(|all| all.get_mut(&plain)) {
            of_key.read = of_key.read.max(end.saturating_add(1));
        }
        self.forget_key_without_sessions(&plain);
    }

    /// Forget that a key has no session: what is in the buffer is known, and the database may be asked again.
    fn forget_key_without_sessions(&mut self, plain: &[u8]) {
        if let Some(all) = &mut self.sessions
            && all.get(plain).is_some_and(|of_key| of_key.known.is_empty())
        {
            all.remove(plain);
        }
    }

    fn drop_expired(&mut self, index: u32) {
        if self.rows[index].expired {
            self.rows.remove(index);
        }
    }
}

/// Sort indexes by bytes that lie apart: most comparisons are of their first 16, side by side.
fn sort_by<'a>(indexes: &mut [u32], bytes: impl Fn(u32) -> &'a [u8]) {
    let first = |index: &u32| {
        let (mut word, bytes) = ([0; 16], bytes(*index));
        let length = bytes.len().min(word.len());
        word[..length].copy_from_slice(&bytes[..length]);
        (u128::from_be_bytes(word), *index)
    };
    let mut keys: Vec<(u128, u32)> = indexes.iter().map(first).collect();
    keys.sort_unstable_by(|a, b| a.0.cmp(&b.0).then_with(|| bytes(a.1).cmp(bytes(b.1))));
    for (index, (_, sorted)) in indexes.iter_mut().zip(keys) {
        *index = sorted;
    }
}

/// A column of Python: a list, or any other sequence.
enum Column<'a, 'py> {
    List(&'a Bound<'py, PyList>),
    Items(Vec<Bound<'py, PyAny>>),
}

impl<'a, 'py> Column<'a, 'py> {
    fn of(column: &'a Bound<'py, PyAny>) -> PyResult<Self> {
        if let Ok(list) = column.cast::<PyList>() {
            return Ok(Self::List(list));
        }
        if column.is_instance_of::<PyString>() || column.is_instance_of::<PyBytes>() {
            return Err(PyTypeError::new_err("a column is a sequence of items"));
        }
        Ok(Self::Items(column.try_iter()?.collect::<PyResult<_>>()?))
    }

    fn len(&self) -> usize {
        match self {
            Self::List(list) => list.len(),
            Self::Items(items) => items.len(),
        }
    }

    fn get(&self, i: usize) -> PyResult<Bound<'py, PyAny>> {
        match self {
            Self::List(list) => list.get_item(i),
            Self::Items(items) => Ok(items[i].clone()),
        }
    }
}

fn joined<'py>(py: Python<'py>, front: &[u8], back: &[u8]) -> PyResult<Bound<'py, PyBytes>> {
    PyBytes::new_with(py, front.len() + back.len(), |bytes| {
        bytes[..front.len()].copy_from_slice(front);
        bytes[front.len()..].copy_from_slice(back);
        Ok(())
    })
}

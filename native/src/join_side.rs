//! One side of a join of two streams: the times of each key's records, and a search among them. The values are `rows`.
//!
//! `topology/operators/join_memory.py` is the reference (`_LiveSide`), and says what the times mean.

use crate::rows::Rows;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};
use std::collections::HashMap;

#[pyclass]
pub struct JoinSide {
    rows: Py<Rows>,
    /// `NativeTable.loaded` of the store.
    load: Py<PyAny>,
    retention: i64,
    /// The time of this side, and that at which the older records were removed last.
    newest: i64,
    swept: i64,
    /// The newest time of all tasks of the partition, in a list of one item that they share.
    of_all: Py<PyList>,
    /// The times of each key's records, ascending.
    times: HashMap<Box<[u8]>, Vec<i64>>,
}

#[pymethods]
impl JoinSide {
    /// The newest time of this side.
    #[getter]
    fn newest(&self) -> i64 {
        self.newest
    }

    /// Whether other tasks' records have a later time than this side.
    #[getter]
    fn is_behind(&self, py: Python<'_>) -> PyResult<bool> {
        Ok(self.time_of_all(py)? > self.newest)
    }

    /// Add the time of a record that the store already has.
    fn know(&mut self, key: &[u8], timestamp: i64) {
        let times = self.times.entry(key.into()).or_default();
        let at = times.partition_point(|&known| known < timestamp);
        times.insert(at, timestamp);
    }

    /// Advance the time of this side by the records of other tasks, up to `stream_time`; return whether `sweep` is due.
    fn observe_others(&mut self, py: Python<'_>, stream_time: i64) -> PyResult<bool> {
        let others = self.time_of_all(py)?;
        Ok(self.observe(others.min(stream_time)))
    }

    /// Store a record, unless it is already older than the retention; return whether `sweep` is due.
    fn put(
        &mut self,
        py: Python<'_>,
        key: &Bound<'_, PyBytes>,
        timestamp: i64,
        value: &Bound<'_, PyAny>,
    ) -> PyResult<bool> {
        let due = self.observe(timestamp);
        if timestamp > self.time_of_all(py)? {
            self.of_all.bind(py).set_item(0, timestamp)?;
        }
        if timestamp < self.oldest() {
            return Ok(due);
        }
        let rows = self.rows.clone_ref(py);
        let mut rows = rows.borrow_mut(py);
        let found = rows.value(py, key, Some(timestamp), self.load.bind(py))?;
        let values = match found.bind(py).cast::<PyList>() {
            Err(_) => {
                self.know(key.as_bytes(), timestamp);
                PyList::new(py, [value])?
            }
            Ok(before) => {
                // A list of its own: who searched before this record still has that one.
                let values = PyList::new(py, before)?;
                values.append(value)?;
                values
            }
        };
        rows.put(values.as_any(), timestamp)?;
        Ok(due)
    }

    /// Return the times of a key's records from `first` to `last` (inclusive, ascending), each with its values in the order
    /// of arrival.
    fn between<'py>(
        &self,
        py: Python<'py>,
        key: &Bound<'py, PyBytes>,
        first: i64,
        last: i64,
    ) -> PyResult<Vec<(i64, Py<PyAny>)>> {
        let Some(times) = self.times.get(key.as_bytes()) else {
            return Ok(Vec::new());
        };
        let first = first.max(self.oldest());
        let begin = times.partition_point(|&at| at < first);
        let end = times.partition_point(|&at| at <= last);
        if begin >= end {
            return Ok(Vec::new());
        }
        let mut rows = self.rows.borrow_mut(py);
        let load = self.load.bind(py);
        times[begin..end]
            .iter()
            .map(|&at| {
                let values = rows.value(py, key, Some(at), load)?;
                if values.is_none(py) {
                    return Err(PyValueError::new_err("a row whose time is known"));
                }
                Ok((at, values))
            })
            .collect()
    }

    /// Forget the times that are older than the retention.
    fn sweep(&mut self) {
        self.swept = self.newest;
        let oldest = self.oldest();
        self.times.retain(|_, times| {
            let kept = times.partition_point(|&at| at < oldest);
            times.drain(..kept);
            !times.is_empty()
        });
    }
}

impl JoinSide {
    /// `of_all`: see the field; `newest`: the time at which the side begins.
    pub fn new(rows: Py<Rows>, load: Py<PyAny>, retention: i64, newest: i64, of_all: Py<PyList>) -> Self {
        Self {
            rows,
            load,
            retention,
            newest,
            swept: newest,
            of_all,
            times: HashMap::new(),
        }
    }

    /// Advance the time of this side; return whether `sweep` is due.
    fn observe(&mut self, timestamp: i64) -> bool {
        if timestamp <= self.newest {
            return false;
        }
        self.newest = timestamp;
        timestamp - self.swept > self.retention
    }

    /// The oldest time of records that can still be found.
    fn oldest(&self) -> i64 {
        self.newest - self.retention + 1
    }

    fn time_of_all(&self, py: Python<'_>) -> PyResult<i64> {
        self.of_all.bind(py).get_item(0)?.extract()
    }
}

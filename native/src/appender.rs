//! Columns of Python to records of a producer.

use crate::breathe;
use crate::client::{Bytes, Client, Headers, Record, take_made};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyInt, PyList, PyString, PyTuple};
use std::ffi::{CString, c_int};
use std::sync::{Mutex, PoisonError};

/// librdkafka takes 0 for "now".
const EARLIEST: i64 = 1;

/// Appends columns of records by a producer of confluent-kafka, which it keeps alive until it is closed.
#[pyclass(frozen)]
pub struct Appender {
    client: &'static Client,
    owner: Mutex<Option<Py<PyAny>>>,
}

#[pymethods]
impl Appender {
    /// Return an appender for the producer that this thread has just made; None: this library was no plugin of it.
    #[staticmethod]
    fn of(producer: Py<PyAny>) -> Option<Self> {
        take_made().filter(|client| !client.is_destroyed()).map(|client| Self {
            client,
            owner: Mutex::new(Some(producer)),
        })
    }

    /// Queue the records from `start` on; return how many were taken, and the error of the next one: 0 if there is none.
    /// None: Python must do it, because something is neither bytes nor None.
    #[allow(clippy::too_many_arguments, reason = "the columns of a batch")]
    fn append(
        &self,
        py: Python<'_>,
        topic: &str,
        keys: &Bound<'_, PyAny>,
        values: &Bound<'_, PyAny>,
        timestamps: &Bound<'_, PyAny>,
        partitions: &Bound<'_, PyAny>,
        headers: Option<&Bound<'_, PyAny>>,
        start: usize,
    ) -> PyResult<Option<(usize, c_int)>> {
        let topic = CString::new(topic)?;
        let columns = [Some(keys), Some(values), Some(timestamps), headers];
        let count = keys.len()?;
        for column in columns.into_iter().flatten() {
            if column.len()? != count {
                return Ok(None);
            }
        }
        let mut held = Vec::with_capacity(2 * count.saturating_sub(start));
        let Some(records) = records(py, keys, values, timestamps, partitions, headers, start, &mut held)? else {
            return Ok(None);
        };
        let client = self.client;
        // SAFETY: `held` has a reference to each object whose bytes the records point to, and bytes never change.
        let result = py.detach(|| unsafe { client.produce(&topic, &records) });
        drop(held);
        Ok(Some(result))
    }

    /// Return error code and topic of the first record that was not delivered since the last call; None: all were.
    fn take_failure(&self) -> Option<(c_int, String)> {
        self.client.take_failure()
    }

    /// Return how many records were delivered, and how many were not.
    fn counts(&self) -> (u64, u64) {
        self.client.counts()
    }

    /// Return the offset after the last record that was delivered to a partition; None: none, or the broker did not say.
    fn delivered_to(&self, topic: &str, partition: i32) -> Option<i64> {
        self.client.delivered_to(topic, partition)
    }

    /// Let go of the producer. Idempotent.
    fn close(&self, py: Python<'_>) {
        let client = self.client;
        py.detach(|| client.release());
        let owner = self.owner.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(owner);
    }
}

impl Drop for Appender {
    /// The topics go before the producer, to which the last reference may be ours.
    fn drop(&mut self) {
        self.client.release();
    }
}

/// Returns the items of a column from `start` on.
fn items<'py>(column: &Bound<'py, PyAny>, start: usize) -> PyResult<Vec<Bound<'py, PyAny>>> {
    if let Ok(list) = column.cast::<PyList>() {
        Ok(list.iter().skip(start).collect())
    } else if let Ok(tuple) = column.cast::<PyTuple>() {
        Ok(tuple.iter().skip(start).collect())
    } else {
        column.try_iter()?.skip(start).collect()
    }
}

/// Returns where the bytes are: no pointer for None; `Err`: neither bytes nor None.
fn bytes_of(item: &Bound<'_, PyAny>) -> Result<Bytes, ()> {
    if let Ok(bytes) = item.cast::<PyBytes>() {
        Ok((bytes.as_bytes().as_ptr(), bytes.as_bytes().len()))
    } else if item.is_none() {
        Ok((std::ptr::null(), 0))
    } else {
        Err(())
    }
}

/// Returns the records from `start` on, and adds to `held` what their bytes belong to; None: see `append`.
#[allow(clippy::too_many_arguments, reason = "the columns of a batch")]
fn records<'py>(
    py: Python<'py>,
    keys: &Bound<'py, PyAny>,
    values: &Bound<'py, PyAny>,
    timestamps: &Bound<'py, PyAny>,
    partitions: &Bound<'py, PyAny>,
    headers: Option<&Bound<'py, PyAny>>,
    start: usize,
    held: &mut Vec<Bound<'py, PyAny>>,
) -> PyResult<Option<Vec<Record>>> {
    let keys = items(keys, start)?;
    let values = items(values, start)?;
    let timestamps = items(timestamps, start)?;
    let (one, each) = if partitions.cast::<PyInt>().is_ok() {
        (partitions.extract::<i32>()?, None)
    } else {
        (0, Some(items(partitions, start)?))
    };
    let headers = headers.map(|it| items(it, start)).transpose()?;
    if [values.len(), timestamps.len()]
        .into_iter()
        .chain(each.as_ref().map(Vec::len))
        .chain(headers.as_ref().map(Vec::len))
        .any(|length| length != keys.len())
    {
        return Ok(None);
    }
    let mut records = Vec::with_capacity(keys.len());
    for (i, (key, value)) in keys.iter().zip(&values).enumerate() {
        breathe(py, i);
        let (Ok(key), Ok(value), Ok(timestamp)) = (bytes_of(key), bytes_of(value), timestamps[i].extract::<i64>())
        else {
            return Ok(None);
        };
        let partition = match &each {
            None => one,
            Some(each) => match each[i].extract() {
                Ok(partition) => partition,
                Err(_) => return Ok(None),
            },
        };
        let headers = match &headers {
            Some(headers) if headers[i].is_truthy()? => match headers_of(&headers[i], held)? {
                None => return Ok(None),
                some => some,
            },
            _ => None,
        };
        let timestamp = if timestamp == 0 { EARLIEST } else { timestamp };
        records.push(Record {
            key,
            value,
            timestamp,
            partition,
            headers,
        });
    }
    held.extend(keys);
    held.extend(values);
    Ok(Some(records))
}

/// Returns the headers of one record, and adds to `held` what their bytes belong to; None: see `append`.
fn headers_of<'py>(headers: &Bound<'py, PyAny>, held: &mut Vec<Bound<'py, PyAny>>) -> PyResult<Option<Headers>> {
    let Ok(headers) = headers.cast::<PyList>() else {
        return Ok(None);
    };
    let mut out = Vec::with_capacity(headers.len());
    for header in headers.iter() {
        let Ok((name, value)) = header.extract::<(Bound<'py, PyString>, Bound<'py, PyAny>)>() else {
            return Ok(None);
        };
        let name = name.encode_utf8()?;
        let Ok((pointer, length)) = bytes_of(&value) else {
            return Ok(None);
        };
        let bytes = name.as_bytes();
        out.push((
            (bytes.as_ptr(), bytes.len()),
            (!pointer.is_null()).then_some((pointer, length)),
        ));
        held.push(name.into_any());
        held.push(value);
    }
    Ok(Some(out))
}

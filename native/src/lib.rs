//! The data plane of coopstreams in Rust, on the Kafka clients that confluent-kafka owns.
//!
//! `librdkafka`: its functions · `client`: a producer, seen from inside librdkafka · `appender`: columns of Python to
//! records · `consumer`: a consumer, `pile`: what it has fetched of one partition, `fetcher`: that as columns of Python ·
//! `router`: records to key ranges · `rows`: the write buffer of an aggregation, its `row_table` and its `numbers` ·
//! `join_side`: the records of one side of a join · `parts`: JSON to columns of its fields and of `expressions`, which know
//! `texts`, and to other `json`. `docs/architecture.md` says where it plugs in, `coopstreams/log/kafka/native.py` when
//! it is used. Apart from Kafka: `front`, the connections of the query server, one in `front_connection`, what it asks in
//! `front_request`, what both share with Python in `front_queue`.

mod appender;
mod client;
mod consumer;
mod expressions;
mod fetcher;
mod front;
mod front_connection;
mod front_queue;
mod front_request;
mod join_side;
mod json;
mod librdkafka;
mod numbers;
mod pace;
mod parts;
mod pile;
mod router;
mod row_table;
mod rows;
mod texts;

use std::sync::{Mutex, MutexGuard, PoisonError};

use pyo3::prelude::*;

/// How many records or rows a call works on between two breaths: less than a millisecond.
const BREATH: usize = 1024;

/// Lets another thread have the interpreter if it waits for it. Without that, a commit of 100 000 rows keeps queries,
/// other tasks and the group's heartbeat waiting for a tenth of a second.
fn breathe(py: Python<'_>, done: usize) {
    if done % BREATH == BREATH - 1 {
        py.detach(|| ());
    }
}

/// A lock also after a panic: what is guarded here is never half written.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[pymodule]
mod coopstreams_native {
    use pyo3::exceptions::PyRuntimeError;
    use pyo3::prelude::*;
    use std::path::PathBuf;

    #[pymodule_export]
    use super::appender::Appender;

    #[pymodule_export]
    use super::fetcher::Fetcher;

    #[pymodule_export]
    use super::front::Front;

    #[pymodule_export]
    use super::join_side::JoinSide;

    #[pymodule_export]
    use super::parts::Parts;

    #[pymodule_export]
    use super::router::Router;

    #[pymodule_export]
    use super::rows::Rows;

    /// Which calls there are, and what they mean: coopstreams refuses another one.
    #[pymodule_export]
    const INTERFACE: u32 = 21;

    /// Find librdkafka through the module of confluent-kafka that needs it; return its version and its features.
    #[pyfunction]
    fn load(module: PathBuf) -> PyResult<(i32, String)> {
        super::librdkafka::load(&module).map_err(PyRuntimeError::new_err)
    }
}

//! Which record goes to which key range, by the hash of its key.

use pyo3::exceptions::PyTypeError;
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList};
use xxhash_rust::xxh64::xxh64;

/// The seed of `coopstreams.topology.keys`.
pub const SEED: u64 = 42;

/// The key ranges of one partition.
#[pyclass(frozen)]
pub struct Router {
    bounds: Vec<u64>,
    slots: Vec<usize>,
    count: usize,
    suffix: usize,
}

#[pymethods]
impl Router {
    /// `bounds`: where the slot changes. `slots`: the slot before the first bound and from each bound on; `count`, which
    /// is how many slots there are, stands for none. `suffix`: so many bytes at the end of each key are not hashed.
    #[new]
    fn new(bounds: Vec<u64>, slots: Vec<usize>, count: usize, suffix: usize) -> PyResult<Self> {
        if slots.len() != bounds.len() + 1 || slots.iter().any(|&slot| slot > count) {
            return Err(PyTypeError::new_err(
                "one slot before the first bound and one from each bound on",
            ));
        }
        Ok(Self {
            bounds,
            slots,
            count,
            suffix,
        })
    }

    /// Return the indexes of each slot's records, ascending; a record without a key has the hash of its offset.
    fn split(&self, keys: &Bound<'_, PyList>, offsets: &Bound<'_, PyAny>) -> PyResult<Vec<Vec<usize>>> {
        let mut hashes = Vec::with_capacity(keys.len());
        for (i, key) in keys.iter().enumerate() {
            hashes.push(if key.is_none() {
                let offset = offsets.get_item(i)?.extract::<i64>()?;
                self.hash(None, || offset)
            } else {
                self.hash(Some(key.cast::<PyBytes>()?.as_bytes()), || 0)
            });
        }
        Ok(self.deal(hashes.into_iter()))
    }
}

impl Router {
    /// The hash of a key, or without one of the record's offset.
    pub fn hash(&self, key: Option<&[u8]>, offset: impl FnOnce() -> i64) -> u64 {
        key.map_or_else(
            || xxh64(&offset().to_be_bytes(), SEED),
            |key| xxh64(&key[..key.len().saturating_sub(self.suffix)], SEED),
        ) >> 1
    }

    /// The indexes of each slot's hashes, ascending.
    pub fn deal(&self, hashes: impl Iterator<Item = u64>) -> Vec<Vec<usize>> {
        let mut found = vec![Vec::new(); self.count + 1];
        for (i, hash) in hashes.enumerate() {
            found[self.slots[self.bounds.partition_point(|&bound| bound <= hash)]].push(i);
        }
        found.truncate(self.count);
        found
    }
}

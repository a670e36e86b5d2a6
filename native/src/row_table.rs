//! The rows of a write buffer by place: key group, key and window start.
//!
//! Open addressing with linear probing over indexes, so that a row keeps its index until it is removed.

use crate::numbers::{Value, WORD, word};
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use std::mem::size_of;
use std::ops::{Deref, Index, IndexMut};

/// No row: the index in a free slot.
pub const EMPTY: u32 = u32::MAX;
const SLOTS: usize = 16;
/// The longest place that lies in its row.
const SHORT: usize = 30;
/// The memory of a row beside the row itself and a long key: slots of the table, and what both keep in reserve.
const OVERHEAD: usize = 3 * size_of::<(u32, u32)>() + size_of::<Row>() / 2;

pub struct Row {
    pub hash: u64,
    /// The key group, the key, and the window start.
    pub place: Place,
    pub value: Value,
    pub timestamp: i64,
    /// The value as of the last commit; `Object` holds its bytes.
    pub stored: Value,
    /// The number of the last commit that wrote it.
    pub commit: u32,
    pub dirty: bool,
    /// It has expired while it was dirty: the next commit writes it, and no record finds it.
    pub expired: bool,
    /// Its window is among the open ones of `Rows`.
    pub open: bool,
}

/// The bytes of a place: short ones lie in the row, because each look-up compares them.
pub enum Place {
    Short(u8, [u8; SHORT]),
    Long(Box<[u8]>),
}

pub struct RowTable {
    rows: Vec<Row>,
    free: Vec<u32>,
    /// The low half of the hash, and the index of the row.
    slots: Vec<(u32, u32)>,
    live: usize,
    key_bytes: usize,
}

impl RowTable {
    pub fn new() -> Self {
        Self {
            rows: Vec::new(),
            free: Vec::new(),
            slots: vec![(0, EMPTY); SLOTS],
            live: 0,
            key_bytes: 0,
        }
    }

    pub fn len(&self) -> usize {
        self.live
    }

    /// Return the memory of the rows and their keys.
    pub fn size_bytes(&self) -> usize {
        self.live * (size_of::<Row>() + OVERHEAD) + self.key_bytes
    }

    /// Return the rows with their indexes, in no order.
    pub fn iter(&self) -> impl Iterator<Item = (u32, &Row)> {
        let rows = self.rows.iter().enumerate();
        rows.filter(|(_, row)| !row.place.is_empty())
            .map(|(index, row)| (index as u32, row))
    }

    /// Whether there is a row of this index, which has been removed if not.
    pub fn has(&self, index: u32) -> bool {
        !self.rows[index as usize].place.is_empty()
    }

    /// Return the index in the first slot of a hash: most often that of its row, if there is one.
    pub fn near(&self, hash: u64) -> u32 {
        self.slots[hash as usize & (self.slots.len() - 1)].1
    }

    /// Return the row of an index from `near`; None: the slot is empty.
    pub fn get(&self, near: u32) -> Option<&Row> {
        self.rows.get(near as usize)
    }

    pub fn find(&self, hash: u64, plain: &[u8], start: Option<i64>) -> Option<u32> {
        let mask = self.slots.len() - 1;
        let mut slot = hash as usize & mask;
        loop {
            let (tag, index) = self.slots[slot];
            if index == EMPTY {
                return None;
            }
            if tag == hash as u32 {
                let place = &self.rows[index as usize].place;
                let found = match start {
                    None => &place[1..] == plain,
                    Some(start) => {
                        let end = place.len() - WORD;
                        &place[1..end] == plain && place[end..] == start.to_be_bytes()
                    }
                };
                if found {
                    return Some(index);
                }
            }
            slot = (slot + 1) & mask;
        }
    }

    /// Add a row whose place has none; return its index.
    pub fn add(&mut self, row: Row) -> PyResult<u32> {
        let hash = row.hash;
        self.live += 1;
        self.key_bytes += row.place.outside();
        let index = match self.free.pop() {
            Some(index) => {
                self.rows[index as usize] = row;
                index
            }
            None => {
                let index = u32::try_from(self.rows.len()).map_err(|_| PyValueError::new_err("too many rows"))?;
                if index == EMPTY {
                    return Err(PyValueError::new_err("too many rows"));
                }
                self.rows.push(row);
                index
            }
        };
        if self.live * 2 > self.slots.len() {
            self.slots = vec![(0, EMPTY); self.slots.len() * 2];
            for other in 0..self.rows.len() {
                if !self.rows[other].place.is_empty() {
                    self.enter(self.rows[other].hash, other as u32);
                }
            }
        } else {
            self.enter(hash, index);
        }
        Ok(index)
    }

    fn enter(&mut self, hash: u64, index: u32) {
        let mask = self.slots.len() - 1;
        let mut slot = hash as usize & mask;
        while self.slots[slot].1 != EMPTY {
            slot = (slot + 1) & mask;
        }
        self.slots[slot] = (hash as u32, index);
    }

    /// Remove a row, and free its index.
    pub fn remove(&mut self, index: u32) {
        let mask = self.slots.len() - 1;
        let mut hole = self.rows[index as usize].hash as usize & mask;
        while self.slots[hole].1 != index {
            hole = (hole + 1) & mask;
        }
        let mut slot = (hole + 1) & mask;
        while self.slots[slot].1 != EMPTY {
            let home = self.slots[slot].0 as usize & mask;
            if (slot.wrapping_sub(home) & mask) >= (slot.wrapping_sub(hole) & mask) {
                self.slots[hole] = self.slots[slot];
                hole = slot;
            }
            slot = (slot + 1) & mask;
        }
        self.slots[hole] = (0, EMPTY);
        let row = &mut self.rows[index as usize];
        self.live -= 1;
        self.key_bytes -= row.place.outside();
        row.place = Place::Short(0, [0; SHORT]);
        (row.value, row.stored) = (Value::Null, Value::Null);
        self.free.push(index);
    }

    pub fn clear(&mut self) {
        *self = Self::new();
    }
}

impl Index<u32> for RowTable {
    type Output = Row;

    fn index(&self, index: u32) -> &Row {
        &self.rows[index as usize]
    }
}

impl IndexMut<u32> for RowTable {
    fn index_mut(&mut self, index: u32) -> &mut Row {
        &mut self.rows[index as usize]
    }
}

impl Place {
    pub fn of(group: u8, plain: &[u8], start: Option<i64>) -> Self {
        let start = start.map(i64::to_be_bytes);
        let end = start.as_ref().map_or(&[][..], |start| start);
        let length = 1 + plain.len() + end.len();
        if length > SHORT {
            return Self::Long([&[group][..], plain, end].concat().into());
        }
        let mut bytes = [0; SHORT];
        bytes[0] = group;
        bytes[1..=plain.len()].copy_from_slice(plain);
        bytes[1 + plain.len()..length].copy_from_slice(end);
        Self::Short(length as u8, bytes)
    }

    /// The memory beside the row, with what the allocator adds.
    fn outside(&self) -> usize {
        match self {
            Self::Short(..) => 0,
            Self::Long(bytes) => bytes.len() + 2 * WORD,
        }
    }
}

impl Deref for Place {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Short(length, bytes) => &bytes[..usize::from(*length)],
            Self::Long(bytes) => bytes,
        }
    }
}

/// Return the hash of a row: that of its key, and the window start.
pub fn placed(hash: u64, start: Option<i64>) -> u64 {
    match start {
        None => hash,
        Some(start) => hash ^ (start as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_right(32),
    }
}

/// Return the window start at the end of a key.
pub fn start_of(key: &[u8]) -> i64 {
    word(&key[key.len() - WORD..])
}

//! The numbers of a built-in aggregation: how a record's value changes one, and its bytes in topics and databases.
//!
//! What is no number of 64 bits is computed and serialised by Python's own functions, so that results and errors are
//! Python's.

use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyFloat, PyInt};

/// The length of a timestamp, a window start, and a number.
pub const WORD: usize = 8;
/// The memory of a total and a count, with what the allocator adds: a row has two, what it is and what it was.
const MEAN_BYTES: usize = 4 * WORD;

/// How a value changes the number of a row.
#[derive(Clone, Copy, PartialEq)]
enum Fold {
    Count,
    Sum,
    Min,
    Max,
    Mean,
    /// A function of the user: `Rows::put` sets what it returns.
    Function,
}

/// The serde of the numbers. `Other`: rows are any objects, whose bytes Python makes.
#[derive(Clone, Copy, PartialEq)]
enum Serde {
    Int64,
    Float64,
    Other,
}

/// The value of a row. `Object`: a value that is not, or not yet, a number of 64 bits. `Mean`: a total and a count, apart
/// from the row, so that the rows of other folds are no longer.
pub enum Value {
    Null,
    Int(i64),
    Float(f64),
    Mean(Box<(f64, i64)>),
    Object(Py<PyAny>),
}

/// The fold of an aggregation, and the serde of its numbers.
#[derive(Clone, Copy)]
pub struct Numbers {
    fold: Fold,
    serde: Serde,
}

impl Numbers {
    pub fn of(fold: &str, serde: &str) -> PyResult<Self> {
        let fold = match fold {
            "count" => Fold::Count,
            "sum" => Fold::Sum,
            "min" => Fold::Min,
            "max" => Fold::Max,
            "mean" => Fold::Mean,
            "function" => Fold::Function,
            _ => return Err(PyValueError::new_err("count, sum, min, max, mean or function")),
        };
        let serde = match serde {
            "int64" => Serde::Int64,
            "float64" => Serde::Float64,
            "other" if fold == Fold::Function => Serde::Other,
            _ => return Err(PyValueError::new_err("int64 or float64, or other for a function")),
        };
        Ok(Self { fold, serde })
    }

    /// Whether the rows are set by `Rows::put`, one by one.
    pub fn by_record(&self) -> bool {
        self.fold == Fold::Function
    }

    /// Whether rows are objects whose bytes only Python reads and makes.
    pub fn is_other(&self) -> bool {
        self.serde == Serde::Other
    }

    /// Return what a row holds of an object of Python.
    pub fn value_of(&self, object: &Bound<'_, PyAny>) -> PyResult<Value> {
        if self.serde != Serde::Other {
            return Value::of(object);
        }
        Ok(if object.is_none() {
            Value::Null
        } else {
            Value::Object(object.clone().unbind())
        })
    }

    pub fn is_count(&self) -> bool {
        self.fold == Fold::Count
    }

    /// The length of a row in the database: a timestamp, and a number or, of a mean, a total and a count.
    pub fn row_bytes(&self) -> usize {
        if self.fold == Fold::Mean { 3 * WORD } else { 2 * WORD }
    }

    /// The memory of a row's values apart from the row.
    pub fn outside(&self) -> usize {
        if self.fold == Fold::Mean { 2 * MEAN_BYTES } else { 0 }
    }

    /// Return what the row becomes. Its errors are those of Python's own function.
    pub fn folded<'py>(
        &self,
        py: Python<'py>,
        old: &Value,
        value: Option<&Bound<'py, PyAny>>,
        reduce: &Bound<'py, PyAny>,
    ) -> PyResult<Value> {
        if self.fold == Fold::Count {
            return match old {
                Value::Null => Ok(Value::Int(1)),
                Value::Int(number) if *number < i64::MAX => Ok(Value::Int(number + 1)),
                _ => Value::of(&old.object(py)?.bind(py).add(1)?),
            };
        }
        let Some(value) = value else {
            return Err(PyTypeError::new_err("a value for each record"));
        };
        let new = Value::of(value)?;
        if self.fold == Fold::Mean {
            let (total, count) = match old {
                Value::Mean(mean) => **mean,
                _ => (0.0, 0),
            };
            let number = match new {
                Value::Int(number) => number as f64,
                Value::Float(number) => number,
                _ => return Value::mean_of(&reduce.call1((py.None(), value, old.object(py)?))?),
            };
            return Ok(Value::Mean(Box::new((total + number, count + 1))));
        }
        let number = match (old, &new, self.fold) {
            (Value::Null, _, _) => return Ok(new),
            (Value::Int(a), Value::Int(b), Fold::Sum) => a.checked_add(*b).map(Value::Int),
            (Value::Int(a), Value::Int(b), Fold::Min) => Some(Value::Int(*a.min(b))),
            (Value::Int(a), Value::Int(b), Fold::Max) => Some(Value::Int(*a.max(b))),
            (Value::Float(a), Value::Float(b), Fold::Sum) => Some(Value::Float(a + b)),
            (Value::Float(a), Value::Float(b), Fold::Min) => Some(Value::Float(if b < a { *b } else { *a })),
            (Value::Float(a), Value::Float(b), Fold::Max) => Some(Value::Float(if b > a { *b } else { *a })),
            _ => None,
        };
        match number {
            Some(number) => Ok(number),
            None => Value::of(&reduce.call1((old.object(py)?, value))?),
        }
    }

    /// Return the value that a database row has behind its timestamp.
    pub fn decoded(&self, number: &[u8]) -> Value {
        let float = || f64::from_bits(word(&number[..WORD]) as u64);
        match (number.len(), self.serde) {
            (0, _) => Value::Null,
            (WORD, Serde::Int64) => Value::Int(word(number)),
            (WORD, Serde::Float64) => Value::Float(float()),
            _ => Value::Mean(Box::new((float(), word(&number[WORD..])))),
        }
    }

    /// Whether the serde's bytes can be made here.
    pub fn is_plain(&self, value: &Value) -> bool {
        match value {
            Value::Null | Value::Int(_) | Value::Mean(_) => true,
            Value::Float(_) => self.serde == Serde::Float64,
            Value::Object(_) => false,
        }
    }

    pub fn plain_bytes<'py>(&self, py: Python<'py>, value: &Value) -> Option<Bound<'py, PyBytes>> {
        match (value, self.serde) {
            (Value::Int(number), Serde::Int64) => Some(PyBytes::new(py, &number.to_be_bytes())),
            (Value::Int(number), _) => Some(PyBytes::new(py, &(*number as f64).to_be_bytes())),
            (Value::Float(number), _) => Some(PyBytes::new(py, &number.to_be_bytes())),
            (Value::Mean(mean), _) => Some(PyBytes::new(py, &[mean.0.to_be_bytes(), mean.1.to_be_bytes()].concat())),
            (Value::Null | Value::Object(_), _) => None,
        }
    }

    pub fn stored_bytes<'py>(&self, py: Python<'py>, stored: &Value) -> PyResult<Option<Bound<'py, PyBytes>>> {
        match stored {
            Value::Object(bytes) => Ok(Some(bytes.bind(py).cast::<PyBytes>()?.clone())),
            plain => Ok(self.plain_bytes(py, plain)),
        }
    }

    /// Return the bytes of a row's value, and what to keep as its stored value. `encode` serialises what is no number of the
    /// serde; `unwritable(key, error)` returns the error to raise if that fails.
    pub fn encoded<'py>(
        &self,
        py: Python<'py>,
        key: &[u8],
        value: &Value,
        encode: &Bound<'py, PyAny>,
        unwritable: &Bound<'py, PyAny>,
    ) -> PyResult<(Option<Bound<'py, PyBytes>>, Value)> {
        if self.is_plain(value) {
            let stored = match (value, self.serde) {
                (Value::Int(number), Serde::Int64) => Value::Int(*number),
                (Value::Int(number), _) => Value::Float(*number as f64),
                (Value::Float(number), _) => Value::Float(*number),
                (Value::Mean(mean), _) => Value::Mean(mean.clone()),
                _ => Value::Null,
            };
            return Ok((self.plain_bytes(py, value), stored));
        }
        let bytes = match serialised(encode, value.object(py)?.bind(py)) {
            Ok(bytes) => bytes,
            Err(error) => {
                let named = unwritable.call1((PyBytes::new(py, key), error.into_value(py)))?;
                return Err(PyErr::from_value(named));
            }
        };
        let stored = Value::Object(bytes.clone().unbind().into_any());
        Ok((Some(bytes), stored))
    }
}

/// Return the bytes of an object: a copy, because orjson's bytes hold 4 KiB however short they are (seen in 3.13).
pub fn serialised<'py>(encode: &Bound<'py, PyAny>, object: &Bound<'py, PyAny>) -> PyResult<Bound<'py, PyBytes>> {
    let bytes = encode.call1((object,))?;
    Ok(PyBytes::new(encode.py(), bytes.cast::<PyBytes>()?.as_bytes()))
}

impl Value {
    /// Return a value of Python as a number if it is one of 64 bits, exactly an int or a float.
    pub fn of(value: &Bound<'_, PyAny>) -> PyResult<Self> {
        if value.is_exact_instance_of::<PyInt>() {
            return Ok(match value.extract() {
                Ok(number) => Self::Int(number),
                Err(_) => Self::Object(value.clone().unbind()),
            });
        }
        if value.is_exact_instance_of::<PyFloat>() {
            return Ok(Self::Float(value.extract()?));
        }
        Ok(if value.is_none() {
            Self::Null
        } else {
            Self::Object(value.clone().unbind())
        })
    }

    /// Return the row that the function of a mean has made.
    fn mean_of(row: &Bound<'_, PyAny>) -> PyResult<Self> {
        Ok(match row.extract::<Option<(f64, i64)>>()? {
            Some(mean) => Self::Mean(Box::new(mean)),
            None => Self::Null,
        })
    }

    pub fn object(&self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        Ok(match self {
            Self::Null => py.None(),
            Self::Int(number) => number.into_pyobject(py)?.into_any().unbind(),
            Self::Float(number) => number.into_pyobject(py)?.into_any().unbind(),
            Self::Mean(mean) => (mean.0, mean.1).into_pyobject(py)?.into_any().unbind(),
            Self::Object(object) => object.clone_ref(py),
        })
    }

    pub fn is_null(&self) -> bool {
        matches!(self, Self::Null)
    }
}

pub fn word(bytes: &[u8]) -> i64 {
    bytes.iter().fold(0, |number, &byte| number << 8 | i64::from(byte))
}

//! The JSON of an expression's value or of a row of them: the bytes that orjson writes.

use crate::expressions::{Expression, Found, Unsure};
use crate::parts::Part;
use pyo3::prelude::*;
use pyo3::types::PyTuple;
use serde_core::Serialize;

/// What is written.
pub enum Json {
    Value(Expression),
    /// Shape: in front of each value what stands there, as `{"total":`.
    Row(Vec<(Vec<u8>, Json)>),
}

impl Json {
    /// Return what a tree of `topology/expression_trees.py` says: a `row` has pairs of a name and a tree.
    pub fn of(tree: &Bound<'_, PyAny>, names: &mut Vec<String>) -> PyResult<Self> {
        let parts = tree.cast::<PyTuple>()?;
        if parts.get_item(0)?.extract::<String>()? != "row" {
            return Ok(Self::Value(Expression::of(tree, names)?));
        }
        let mut items = Vec::new();
        for item in parts.iter().skip(1) {
            let (name, value): (String, Bound<'_, PyAny>) = item.extract()?;
            let mut before = vec![if items.is_empty() { b'{' } else { b',' }];
            write(&name, &mut before);
            before.push(b':');
            items.push((before, Self::of(&value, names)?));
        }
        Ok(Self::Row(items))
    }

    /// Return the bytes; None: the value is null, and not within a row.
    pub fn bytes(&self, found: &Found<'_>) -> Result<Option<Vec<u8>>, Unsure> {
        let mut bytes = Vec::with_capacity(128);
        if let Self::Value(expression) = self {
            let value = expression.value(found)?;
            if matches!(value, Part::Null) {
                return Ok(None);
            }
            write_part(&value, &mut bytes)?;
        } else {
            self.write(found, &mut bytes)?;
        }
        Ok(Some(bytes))
    }

    fn write(&self, found: &Found<'_>, bytes: &mut Vec<u8>) -> Result<(), Unsure> {
        match self {
            Self::Value(expression) => write_part(&expression.value(found)?, bytes),
            Self::Row(items) if items.is_empty() => {
                bytes.extend(b"{}");
                Ok(())
            }
            Self::Row(items) => {
                for (before, value) in items {
                    bytes.extend(before);
                    value.write(found, bytes)?;
                }
                bytes.push(b'}');
                Ok(())
            }
        }
    }
}

fn write_part(part: &Part, bytes: &mut Vec<u8>) -> Result<(), Unsure> {
    match part {
        Part::Null => bytes.extend(b"null"),
        Part::Bool(truth) => write(truth, bytes),
        Part::Int(number) => write(number, bytes),
        Part::Natural(number) => write(number, bytes),
        // The serde refuses infinity.
        Part::Float(number) if number.is_finite() => write(number, bytes),
        Part::Text(text) => write(text, bytes),
        Part::Float(_) | Part::Nested | Part::Odd => return Err(Unsure),
    }
    Ok(())
}

fn write(value: &(impl Serialize + ?Sized), bytes: &mut Vec<u8>) {
    // Into memory, and of what JSON has: it does not fail.
    let _ = serde_json::to_writer(bytes, value);
}

//! JSON objects as columns, without the objects: of their parts, of expressions of their parts, and of the JSON of these,
//! where a program reads its values by expressions only.
//!
//! A record of which a column is not certain is left to Python, so that values and errors are those of the reference, orjson
//! and `expression_values`: other text than an object, a bare field that is missing, what is nested or `-0`, and what
//! `expressions` says.

use crate::breathe;
use crate::expressions::{Expression, Unsure};
use crate::json::Json;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyFloat, PyInt, PyList, PyString, PyType};
use serde_core::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use std::borrow::Cow;
use std::fmt;

/// Reads columns of values. `names`: the parts that they read.
#[pyclass(frozen)]
pub struct Parts {
    columns: Vec<Read>,
    names: Vec<String>,
}

/// A column: of values, of their JSON, or of truths. A record whose truth is not the one that passes ends there: Python drops
/// it.
enum Read {
    Value(Expression),
    Json(Json),
    Truth(Expression, bool),
}

/// The item of a record in a column.
enum Item<'v> {
    Value(Part<'v>),
    Bytes(Vec<u8>),
}

/// A value within JSON, or of an expression. `Nested`: a list or an object. `Odd`: a number that Python reads in another way.
#[derive(Clone)]
pub enum Part<'a> {
    Null,
    Bool(bool),
    Int(i64),
    /// An integer above those of 64 bits with a sign.
    Natural(u64),
    Float(f64),
    Text(Cow<'a, str>),
    Nested,
    Odd,
}

type Column<'py> = (Bound<'py, PyList>, Option<Bound<'py, PyType>>);
type Columns<'py> = (Vec<Column<'py>>, bool);

#[pymethods]
impl Parts {
    /// Shape: of each column what it is for (`value`, `json`, `keep` or `drop`) and its expression's tree.
    #[new]
    fn new(columns: Vec<(String, Bound<'_, PyAny>)>) -> PyResult<Self> {
        let mut names = Vec::new();
        let mut read = Vec::new();
        for (role, tree) in &columns {
            read.push(match role.as_str() {
                "value" => Read::Value(Expression::of(tree, &mut names)?),
                "json" => Read::Json(Json::of(tree, &mut names)?),
                "keep" => Read::Truth(Expression::of(tree, &mut names)?, true),
                "drop" => Read::Truth(Expression::of(tree, &mut names)?, false),
                _ => return Err(PyValueError::new_err("value, json, keep or drop")),
            });
        }
        Ok(Self { columns: read, names })
    }

    /// Return the columns, each with int, float or str if its items of all records that pass are of this class, and whether
    /// all records were read; `unread` stands for those that Python has to compute. Behind a truth that drops a record,
    /// further truths drop it, too, and its values are None.
    fn columns<'py>(
        &self,
        py: Python<'py>,
        values: &Bound<'py, PyAny>,
        unread: &Bound<'py, PyAny>,
    ) -> PyResult<Columns<'py>> {
        let columns: Vec<_> = self.columns.iter().map(|_| PyList::empty(py)).collect();
        let mut kinds = vec![Kinds::default(); columns.len()];
        let mut found = vec![None; self.names.len()];
        let mut all_read = true;
        let values = values.try_iter()?.collect::<PyResult<Vec<_>>>()?;
        for (done, value) in values.iter().enumerate() {
            breathe(py, done);
            found.fill(None);
            let bytes = value.cast::<PyBytes>();
            let read = bytes.is_ok_and(|bytes| self.read(bytes.as_bytes(), &mut found));
            let row = if read { self.row(&found) } else { Err(Unsure) };
            let Ok((row, passes)) = row else {
                all_read = false;
                for column in &columns {
                    column.append(unread)?;
                }
                continue;
            };
            for (i, item) in row.into_iter().enumerate() {
                match item {
                    Item::Bytes(bytes) => columns[i].append(PyBytes::new(py, &bytes))?,
                    Item::Value(part) => {
                        if passes {
                            kinds[i].see(&part);
                        }
                        columns[i].append(part.object(py)?)?;
                    }
                }
            }
        }
        let columns = columns.into_iter().zip(kinds);
        let columns = columns.map(|(column, kinds)| (column, kinds.class(py).filter(|_| all_read)));
        Ok((columns.collect(), all_read))
    }
}

impl Parts {
    /// Read the parts of one object; return whether it is one.
    fn read<'a>(&self, bytes: &'a [u8], found: &mut [Option<Part<'a>>]) -> bool {
        let mut reader = serde_json::Deserializer::from_slice(bytes);
        let object = Object {
            names: &self.names,
            found,
        };
        reader.deserialize_map(object).is_ok() && reader.end().is_ok()
    }

    /// Return a record's item of each column, and whether it passes all truths.
    fn row<'v>(&'v self, found: &'v [Option<Part<'_>>]) -> Result<(Vec<Item<'v>>, bool), Unsure> {
        let mut row = Vec::with_capacity(self.columns.len());
        let mut passes = true;
        for column in &self.columns {
            row.push(match column {
                Read::Truth(expression, passing) => {
                    passes = passes && expression.truth(found)? == *passing;
                    Item::Value(Part::Bool(passes == *passing))
                }
                _ if !passes => Item::Value(Part::Null),
                Read::Json(json) => json.bytes(found)?.map_or(Item::Value(Part::Null), Item::Bytes),
                Read::Value(expression) => match expression.value(found)? {
                    Part::Nested => return Err(Unsure),
                    value => Item::Value(value),
                },
            });
        }
        Ok((row, passes))
    }
}

/// Which kinds of items a column has.
#[derive(Clone, Default)]
struct Kinds {
    ints: bool,
    floats: bool,
    texts: bool,
    others: bool,
}

impl Kinds {
    fn see(&mut self, part: &Part) {
        match part {
            Part::Int(_) | Part::Natural(_) => self.ints = true,
            Part::Float(_) => self.floats = true,
            Part::Text(_) => self.texts = true,
            _ => self.others = true,
        }
    }

    /// Return the class of all items, if they have one.
    fn class<'py>(&self, py: Python<'py>) -> Option<Bound<'py, PyType>> {
        match (self.ints, self.floats, self.texts, self.others) {
            (true, false, false, false) => Some(py.get_type::<PyInt>()),
            (false, true, false, false) => Some(py.get_type::<PyFloat>()),
            (false, false, true, false) => Some(py.get_type::<PyString>()),
            _ => None,
        }
    }
}

impl Part<'_> {
    /// Return the same value for as long as this one lives.
    pub fn borrowed(&self) -> Result<Part<'_>, Unsure> {
        Ok(match self {
            Self::Null => Part::Null,
            Self::Bool(truth) => Part::Bool(*truth),
            Self::Int(number) => Part::Int(*number),
            Self::Natural(number) => Part::Natural(*number),
            Self::Float(number) => Part::Float(*number),
            Self::Text(text) => Part::Text(Cow::Borrowed(text)),
            Self::Nested => Part::Nested,
            Self::Odd => return Err(Unsure),
        })
    }

    fn object<'py>(self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Ok(match self {
            Self::Null | Self::Nested | Self::Odd => py.None().into_bound(py),
            Self::Bool(truth) => PyBool::new(py, truth).to_owned().into_any(),
            Self::Int(number) => number.into_pyobject(py)?.into_any(),
            Self::Natural(number) => number.into_pyobject(py)?.into_any(),
            Self::Float(number) => number.into_pyobject(py)?.into_any(),
            Self::Text(text) => PyString::new(py, &text).into_any(),
        })
    }
}

/// Takes the parts of an object that have names; of two of one name, the later one.
struct Object<'n, 'f, 'a> {
    names: &'n [String],
    found: &'f mut [Option<Part<'a>>],
}

impl<'a> Visitor<'a> for Object<'_, '_, 'a> {
    type Value = ();

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("an object")
    }

    fn visit_map<A: MapAccess<'a>>(self, mut map: A) -> Result<(), A::Error> {
        while let Some(name) = map.next_key_seed(Any)? {
            let part = map.next_value_seed(Any)?;
            if let Part::Text(name) = name
                && let Some(i) = self.names.iter().position(|known| *known == *name)
            {
                self.found[i] = Some(part);
            }
        }
        Ok(())
    }
}

/// Any value, or a name. What is not wanted is read, too: its errors count.
struct Any;

impl<'a> DeserializeSeed<'a> for Any {
    type Value = Part<'a>;

    fn deserialize<D: Deserializer<'a>>(self, reader: D) -> Result<Self::Value, D::Error> {
        reader.deserialize_any(self)
    }
}

impl<'a> Visitor<'a> for Any {
    type Value = Part<'a>;

    fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
        f.write_str("a value")
    }

    fn visit_unit<E: Error>(self) -> Result<Self::Value, E> {
        Ok(Part::Null)
    }

    fn visit_bool<E: Error>(self, truth: bool) -> Result<Self::Value, E> {
        Ok(Part::Bool(truth))
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<Self::Value, E> {
        Ok(Part::Int(number))
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<Self::Value, E> {
        Ok(i64::try_from(number).map_or(Part::Natural(number), Part::Int))
    }

    fn visit_f64<E: Error>(self, number: f64) -> Result<Self::Value, E> {
        // `-0` is an integer in Python, and a float here.
        Ok(if number == 0.0 && number.is_sign_negative() {
            Part::Odd
        } else {
            Part::Float(number)
        })
    }

    fn visit_borrowed_str<E: Error>(self, text: &'a str) -> Result<Self::Value, E> {
        Ok(Part::Text(Cow::Borrowed(text)))
    }

    fn visit_str<E: Error>(self, text: &str) -> Result<Self::Value, E> {
        Ok(Part::Text(Cow::Owned(text.to_owned())))
    }

    fn visit_seq<A: SeqAccess<'a>>(self, mut items: A) -> Result<Self::Value, A::Error> {
        while items.next_element_seed(Any)?.is_some() {}
        Ok(Part::Nested)
    }

    fn visit_map<A: MapAccess<'a>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        while map.next_key_seed(Any)?.is_some() {
            map.next_value_seed(Any)?;
        }
        Ok(Part::Nested)
    }
}

//! Parts of JSON objects as columns, without the objects: where a program reads its values by `field(...)` only.
//!
//! A record that is anything but an object with these parts, all of them scalars, is left to Python, so that values and
//! errors are those of the reference, orjson: other text, a part that is missing, is nested, or is `-0`.

use pyo3::prelude::*;
use pyo3::types::{PyBool, PyBytes, PyFloat, PyInt, PyList, PyString, PyType};
use serde_core::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use std::borrow::Cow;
use std::fmt;

/// Reads the parts of these names.
#[pyclass(frozen)]
pub struct Parts {
    names: Vec<String>,
}

/// A value within JSON; `Other`: a list or an object, or a number that Python reads in another way.
#[derive(Clone)]
enum Part<'a> {
    Null,
    Bool(bool),
    Int(i64),
    Natural(u64),
    Float(f64),
    Text(Cow<'a, str>),
    Other,
}

type Column<'py> = (Bound<'py, PyList>, Option<Bound<'py, PyType>>);

#[pymethods]
impl Parts {
    #[new]
    fn new(names: Vec<String>) -> Self {
        Self { names }
    }

    /// Return for each name the column of the parts, and int or float if all are of this class; `unread` for records that
    /// Python has to read.
    fn columns<'py>(
        &self,
        py: Python<'py>,
        values: &Bound<'py, PyAny>,
        unread: &Bound<'py, PyAny>,
    ) -> PyResult<Vec<Column<'py>>> {
        let columns: Vec<_> = self.names.iter().map(|_| PyList::empty(py)).collect();
        let (mut ints, mut floats) = (vec![0; columns.len()], vec![0; columns.len()]);
        let mut found = vec![None; columns.len()];
        let values = values.try_iter()?.collect::<PyResult<Vec<_>>>()?;
        for value in &values {
            found.fill(None);
            let bytes = value.cast::<PyBytes>();
            let read = bytes.is_ok_and(|bytes| self.read(bytes.as_bytes(), &mut found));
            for (i, column) in columns.iter().enumerate() {
                let part = found[i].take().filter(|_| read);
                ints[i] += usize::from(matches!(part, Some(Part::Int(_) | Part::Natural(_))));
                floats[i] += usize::from(matches!(part, Some(Part::Float(_))));
                match part {
                    Some(part) => column.append(part.object(py)?)?,
                    None => column.append(unread)?,
                }
            }
        }
        let class = |i: usize| {
            let all = values.len();
            match (ints[i] == all, floats[i] == all) {
                (true, _) => Some(py.get_type::<PyInt>()),
                (_, true) => Some(py.get_type::<PyFloat>()),
                _ => None,
            }
        };
        Ok(columns
            .into_iter()
            .enumerate()
            .map(|(i, column)| (column, class(i)))
            .collect())
    }
}

impl Parts {
    /// Read the parts of one object; return whether all are there.
    fn read<'a>(&self, bytes: &'a [u8], found: &mut [Option<Part<'a>>]) -> bool {
        let mut reader = serde_json::Deserializer::from_slice(bytes);
        let object = Object {
            names: &self.names,
            found: &mut *found,
        };
        reader.deserialize_map(object).is_ok()
            && reader.end().is_ok()
            && found
                .iter()
                .all(|part| part.as_ref().is_some_and(|part| !matches!(part, Part::Other)))
    }
}

impl Part<'_> {
    fn object<'py>(self, py: Python<'py>) -> PyResult<Bound<'py, PyAny>> {
        Ok(match self {
            Self::Null | Self::Other => py.None().into_bound(py),
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
            Part::Other
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
        Ok(Part::Other)
    }

    fn visit_map<A: MapAccess<'a>>(self, mut map: A) -> Result<Self::Value, A::Error> {
        while map.next_key_seed(Any)?.is_some() {
            map.next_value_seed(Any)?;
        }
        Ok(Part::Other)
    }
}

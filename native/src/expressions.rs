//! Expressions of a program (`topology/fields.py`), computed on the parts of one JSON value.
//!
//! The reference is `topology/expression_values.py`. Invariant: a result equals the reference's to the bit. Where that is not
//! certain, there is none (`Unsure`), and Python computes the expression from the whole value: of NaN, of a number that
//! Python reads in another way, of letters beyond ASCII in `lower` and `upper`.
//! Turned down: a vector of each operation over a batch (a part has another kind in each record, and a record that a filter
//! drops would be computed to its end).

use crate::parts::Part;
use crate::texts;
use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyFloat, PyInt, PyString, PyTuple};
use std::borrow::Cow;
use std::cmp::Ordering;

/// Python has to compute this.
pub struct Unsure;

type Result<'v> = std::result::Result<Part<'v>, Unsure>;
/// The parts of a value, by their place in the list of names; None: it has no such part.
pub type Found<'a> = [Option<Part<'a>>];

#[derive(Clone, Copy)]
pub enum Calculation {
    Add,
    Subtract,
    Multiply,
    Divide,
    Remainder,
}

#[derive(Clone, Copy)]
pub enum Comparing {
    Equal,
    Unequal,
    Less,
    AtMost,
    Greater,
    AtLeast,
}

#[derive(Clone, Copy)]
pub enum OfOne {
    Negative,
    ToInt64,
    ToFloat64,
    ToText,
    ToBoolean,
    Lower,
    Upper,
    Trim,
    Length,
    ParseTime,
}

#[derive(Clone, Copy)]
pub enum OfTwo {
    StartsWith,
    EndsWith,
    Contains,
}

pub enum Expression {
    /// A field by itself: Python raises an error where it is missing.
    Field(usize),
    Part(usize),
    Constant(Part<'static>),
    Calculated(Calculation, Box<[Expression; 2]>),
    Compared(Comparing, Box<[Expression; 2]>),
    Both(Vec<Expression>),
    Either(Vec<Expression>),
    Not(Box<Expression>),
    IsNull(Box<Expression>),
    Coalesce(Vec<Expression>),
    /// Conditions and values by turns, and the value of the rest.
    Case(Vec<(Expression, Expression)>, Box<Expression>),
    OfOne(OfOne, Box<Expression>),
    OfTwo(OfTwo, Box<[Expression; 2]>),
    Concat(Vec<Expression>),
    Substring(Box<Expression>, usize, Option<usize>),
    /// The size is in milliseconds.
    Floor(Box<Expression>, i64),
}

impl Expression {
    /// Return what a tree of `topology/expression_trees.py` says. `names`: the parts that are read, which grow.
    pub fn of(tree: &Bound<'_, PyAny>, names: &mut Vec<String>) -> PyResult<Self> {
        let tree = tree.cast::<PyTuple>()?;
        let name: String = tree.get_item(0)?.extract()?;
        let mut all = || -> PyResult<Vec<Self>> { tree.iter().skip(1).map(|each| Self::of(&each, names)).collect() };
        Ok(match name.as_str() {
            "field" => Self::Field(place(tree.get_item(1)?.extract()?, names)),
            "part" => Self::Part(place(tree.get_item(1)?.extract()?, names)),
            "constant" => Self::Constant(constant(&tree.get_item(1)?)?),
            "all" => Self::Both(all()?),
            "any" => Self::Either(all()?),
            "coalesce" => Self::Coalesce(all()?),
            "concat" => Self::Concat(all()?),
            "not" => Self::Not(Box::new(Self::of(&tree.get_item(1)?, names)?)),
            "is_null" => Self::IsNull(Box::new(Self::of(&tree.get_item(1)?, names)?)),
            "case" => Self::case(all()?)?,
            "substring" => Self::Substring(
                Box::new(Self::of(&tree.get_item(1)?, names)?),
                tree.get_item(2)?.extract()?,
                tree.get_item(3)?.extract()?,
            ),
            "floor_time" => Self::Floor(
                Box::new(Self::of(&tree.get_item(1)?, names)?),
                tree.get_item(2)?.extract()?,
            ),
            _ => Self::of_operands(&name, all()?)?,
        })
    }

    fn of_operands(name: &str, operands: Vec<Self>) -> PyResult<Self> {
        let unknown = || PyValueError::new_err(format!("no expression: {name}"));
        if let Some(function) = of_one(name) {
            let [one] = <[Self; 1]>::try_from(operands).map_err(|_| unknown())?;
            return Ok(Self::OfOne(function, Box::new(one)));
        }
        let pair = Box::new(<[Self; 2]>::try_from(operands).map_err(|_| unknown())?);
        Ok(match name {
            "+" => Self::Calculated(Calculation::Add, pair),
            "-" => Self::Calculated(Calculation::Subtract, pair),
            "*" => Self::Calculated(Calculation::Multiply, pair),
            "/" => Self::Calculated(Calculation::Divide, pair),
            "%" => Self::Calculated(Calculation::Remainder, pair),
            "==" => Self::Compared(Comparing::Equal, pair),
            "!=" => Self::Compared(Comparing::Unequal, pair),
            "<" => Self::Compared(Comparing::Less, pair),
            "<=" => Self::Compared(Comparing::AtMost, pair),
            ">" => Self::Compared(Comparing::Greater, pair),
            ">=" => Self::Compared(Comparing::AtLeast, pair),
            "starts_with" => Self::OfTwo(OfTwo::StartsWith, pair),
            "ends_with" => Self::OfTwo(OfTwo::EndsWith, pair),
            "contains" => Self::OfTwo(OfTwo::Contains, pair),
            _ => return Err(unknown()),
        })
    }

    fn case(operands: Vec<Self>) -> PyResult<Self> {
        let mut operands = operands.into_iter();
        let mut branches = Vec::new();
        while let Some(one) = operands.next() {
            match operands.next() {
                Some(value) => branches.push((one, value)),
                None => return Ok(Self::Case(branches, Box::new(one))),
            }
        }
        Err(PyValueError::new_err("a case has a value for the rest"))
    }

    pub fn value<'v>(&'v self, found: &'v Found<'_>) -> Result<'v> {
        Ok(match self {
            Self::Field(place) => found[*place].as_ref().ok_or(Unsure)?.borrowed()?,
            Self::Part(place) => match &found[*place] {
                Some(part) => part.borrowed()?,
                None => Part::Null,
            },
            Self::Constant(constant) => constant.borrowed()?,
            Self::Calculated(calculation, pair) => {
                calculated(*calculation, &pair[0].value(found)?, &pair[1].value(found)?)?
            }
            Self::Compared(comparing, pair) => {
                let order = order(&pair[0].value(found)?, &pair[1].value(found)?);
                order.map_or(Part::Null, |order| Part::Bool(comparing.holds(order)))
            }
            Self::Both(conditions) => joined(conditions, found, false)?,
            Self::Either(conditions) => joined(conditions, found, true)?,
            Self::Not(one) => match one.value(found)? {
                Part::Bool(truth) => Part::Bool(!truth),
                _ => Part::Null,
            },
            Self::IsNull(one) => Part::Bool(matches!(one.value(found)?, Part::Null)),
            Self::Coalesce(choices) => {
                for choice in choices {
                    match choice.value(found)? {
                        Part::Null => (),
                        known => return Ok(known),
                    }
                }
                Part::Null
            }
            Self::Case(branches, rest) => {
                for (condition, value) in branches {
                    if matches!(condition.value(found)?, Part::Bool(true)) {
                        return value.value(found);
                    }
                }
                rest.value(found)?
            }
            Self::OfOne(function, one) => function.of(one.value(found)?)?,
            Self::OfTwo(function, pair) => match (pair[0].value(found)?, pair[1].value(found)?) {
                (Part::Text(text), Part::Text(piece)) => Part::Bool(function.holds(&text, &piece)),
                _ => Part::Null,
            },
            Self::Concat(texts) => concat(texts, found)?,
            Self::Substring(one, start, count) => match one.value(found)? {
                Part::Text(text) => Part::Text(texts::substring(text, *start, *count)),
                _ => Part::Null,
            },
            Self::Floor(one, size) => match one.value(found)? {
                Part::Int(number) => number
                    .checked_sub(number.rem_euclid(*size))
                    .map_or(Part::Null, Part::Int),
                Part::Natural(number) => fitting(number.into(), |x| x - x.rem_euclid((*size).into())),
                _ => Part::Null,
            },
        })
    }

    /// Return what Python's `bool` returns of the value.
    pub fn truth(&self, found: &Found<'_>) -> std::result::Result<bool, Unsure> {
        Ok(match self.value(found)? {
            Part::Null => false,
            Part::Bool(truth) => truth,
            Part::Int(number) => number != 0,
            Part::Natural(_) => true,
            Part::Float(number) => number != 0.0,
            Part::Text(text) => !text.is_empty(),
            Part::Nested | Part::Odd => return Err(Unsure),
        })
    }
}

fn place(name: String, names: &mut Vec<String>) -> usize {
    names.iter().position(|known| *known == name).unwrap_or_else(|| {
        names.push(name);
        names.len() - 1
    })
}

fn constant(value: &Bound<'_, PyAny>) -> PyResult<Part<'static>> {
    if value.is_none() {
        return Ok(Part::Null);
    }
    if let Ok(truth) = value.cast::<PyBool>() {
        return Ok(Part::Bool(truth.is_true()));
    }
    if let Ok(number) = value.cast::<PyInt>() {
        return Ok(Part::Int(number.extract()?));
    }
    if let Ok(number) = value.cast::<PyFloat>() {
        return Ok(Part::Float(number.extract()?));
    }
    Ok(Part::Text(Cow::Owned(value.cast::<PyString>()?.extract()?)))
}

/// Return the value of conditions of which one that is `decisive` decides.
fn joined<'v>(conditions: &'v [Expression], found: &'v Found<'_>, decisive: bool) -> Result<'v> {
    let mut known = true;
    for condition in conditions {
        match condition.value(found)? {
            Part::Bool(truth) if truth == decisive => return Ok(Part::Bool(decisive)),
            Part::Bool(_) => (),
            _ => known = false,
        }
    }
    Ok(if known { Part::Bool(!decisive) } else { Part::Null })
}

/// Return an integer of 64 bits, null if the result is larger.
fn fitting(number: i128, result: impl Fn(i128) -> i128) -> Part<'static> {
    i64::try_from(result(number)).map_or(Part::Null, Part::Int)
}

fn whole(number: &Part) -> Option<i128> {
    match number {
        Part::Int(number) => Some((*number).into()),
        Part::Natural(number) => Some((*number).into()),
        _ => None,
    }
}

fn float(number: &Part) -> Option<f64> {
    match number {
        Part::Int(number) => Some(*number as f64),
        Part::Natural(number) => Some(*number as f64),
        Part::Float(number) => Some(*number),
        _ => None,
    }
}

/// A float that is a result. Which bits NaN has depends on the processor.
fn real(number: f64) -> Result<'static> {
    if number.is_nan() {
        Err(Unsure)
    } else {
        Ok(Part::Float(number))
    }
}

fn calculated(calculation: Calculation, one: &Part, other: &Part) -> Result<'static> {
    use Calculation::{Add, Divide, Multiply, Remainder, Subtract};
    if let (Part::Int(x), Part::Int(y)) = (one, other) {
        let result = match calculation {
            Add => x.checked_add(*y),
            Subtract => x.checked_sub(*y),
            Multiply => x.checked_mul(*y),
            Divide if *y == 0 => None,
            Divide => return real(*x as f64 / *y as f64),
            Remainder if *y == 0 => None,
            Remainder => Some(x.wrapping_rem(*y)),
        };
        return Ok(result.map_or(Part::Null, Part::Int));
    }
    let (Some(x), Some(y)) = (float(one), float(other)) else {
        return Ok(Part::Null);
    };
    if let (Some(x), Some(y)) = (whole(one), whole(other))
        && !matches!(calculation, Divide)
    {
        let result = match calculation {
            Add => x.checked_add(y),
            Subtract => x.checked_sub(y),
            Multiply => x.checked_mul(y),
            _ => x.checked_rem(y),
        };
        return Ok(result.map_or(Part::Null, |result| fitting(result, |x| x)));
    }
    match calculation {
        Add => real(x + y),
        Subtract => real(x - y),
        Multiply => real(x * y),
        Divide | Remainder if y == 0.0 => Ok(Part::Null),
        Divide => real(x / y),
        Remainder => real(x % y),
    }
}

/// Return how two values compare; None: they have no order.
fn order(one: &Part, other: &Part) -> Option<Ordering> {
    match (one, other) {
        (Part::Int(x), Part::Int(y)) => Some(x.cmp(y)),
        (Part::Text(x), Part::Text(y)) => Some(x.as_bytes().cmp(y.as_bytes())),
        (Part::Bool(x), Part::Bool(y)) => Some(x.cmp(y)),
        _ => match (whole(one), whole(other)) {
            (Some(x), Some(y)) => Some(x.cmp(&y)),
            _ => float(one)?.partial_cmp(&float(other)?),
        },
    }
}

impl Comparing {
    fn holds(self, order: Ordering) -> bool {
        match self {
            Self::Equal => order.is_eq(),
            Self::Unequal => order.is_ne(),
            Self::Less => order.is_lt(),
            Self::AtMost => order.is_le(),
            Self::Greater => order.is_gt(),
            Self::AtLeast => order.is_ge(),
        }
    }
}

fn of_one(name: &str) -> Option<OfOne> {
    Some(match name {
        "negative" => OfOne::Negative,
        "to_int64" => OfOne::ToInt64,
        "to_float64" => OfOne::ToFloat64,
        "to_text" => OfOne::ToText,
        "to_boolean" => OfOne::ToBoolean,
        "lower" => OfOne::Lower,
        "upper" => OfOne::Upper,
        "trim" => OfOne::Trim,
        "length" => OfOne::Length,
        "parse_time" => OfOne::ParseTime,
        _ => return None,
    })
}

impl OfOne {
    fn of<'v>(self, value: Part<'v>) -> Result<'v> {
        Ok(match (self, value) {
            (Self::Negative, Part::Float(number)) => Part::Float(-number),
            (Self::Negative, number) => whole(&number).map_or(Part::Null, |number| fitting(number, |x| -x)),
            (Self::ToInt64, value) => to_int64(&value),
            (Self::ToFloat64, Part::Bool(truth)) => Part::Float(truth.into()),
            (Self::ToFloat64, Part::Text(text)) => texts::decimal(&text).map_or(Part::Null, Part::Float),
            (Self::ToFloat64, number) => float(&number).map_or(Part::Null, Part::Float),
            (Self::ToText, value) => to_text(value),
            (Self::ToBoolean, value) => to_boolean(&value),
            (Self::Lower, Part::Text(text)) => Part::Text(texts::lower(text).ok_or(Unsure)?),
            (Self::Upper, Part::Text(text)) => Part::Text(texts::upper(text).ok_or(Unsure)?),
            (Self::Trim, Part::Text(text)) => Part::Text(texts::trimmed(text)),
            (Self::Length, Part::Text(text)) => Part::Int(text.chars().count() as i64),
            (Self::ParseTime, Part::Text(text)) => texts::time_ms(&text).map_or(Part::Null, Part::Int),
            _ => Part::Null,
        })
    }
}

impl OfTwo {
    fn holds(self, text: &str, piece: &str) -> bool {
        match self {
            Self::StartsWith => text.starts_with(piece),
            Self::EndsWith => text.ends_with(piece),
            Self::Contains => text.contains(piece),
        }
    }
}

fn to_int64(value: &Part) -> Part<'static> {
    const LIMIT: f64 = 9_223_372_036_854_775_808.0;
    let number = match value {
        Part::Bool(truth) => Some(i64::from(*truth)),
        Part::Int(number) => Some(*number),
        Part::Float(number) if (-LIMIT..LIMIT).contains(number) => Some(*number as i64),
        Part::Text(text) => texts::whole(text),
        _ => None,
    };
    number.map_or(Part::Null, Part::Int)
}

fn to_text(value: Part) -> Part {
    match value {
        Part::Bool(truth) => Part::Text(Cow::Borrowed(if truth { "true" } else { "false" })),
        Part::Int(number) => Part::Text(Cow::Owned(number.to_string())),
        Part::Float(number) => Part::Text(Cow::Owned(texts::float(number))),
        Part::Text(text) => Part::Text(text),
        _ => Part::Null,
    }
}

fn to_boolean(value: &Part) -> Part<'static> {
    match value {
        Part::Bool(truth) => Part::Bool(*truth),
        Part::Text(text) if text == "true" => Part::Bool(true),
        Part::Text(text) if text == "false" => Part::Bool(false),
        number => float(number).map_or(Part::Null, |number| Part::Bool(number != 0.0)),
    }
}

fn concat<'v>(texts: &'v [Expression], found: &'v Found<'_>) -> Result<'v> {
    let mut whole = String::new();
    let mut known = true;
    for text in texts {
        match text.value(found)? {
            Part::Text(text) => whole.push_str(&text),
            _ => known = false,
        }
    }
    Ok(if known {
        Part::Text(Cow::Owned(whole))
    } else {
        Part::Null
    })
}

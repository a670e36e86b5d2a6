//! What expressions do with texts: as Python does, see `topology/expression_values.py`.

use std::borrow::Cow;
use std::ops::Range;

/// The longest text that is read as a number.
const MOST_DIGITS: usize = 400;
const SPACES: [char; 4] = [' ', '\t', '\n', '\r'];

/// Return the text in lower case; None: of letters beyond ASCII, whose cases depend on the version of Unicode.
pub fn lower(text: Cow<str>) -> Option<Cow<str>> {
    cased(text, u8::is_ascii_uppercase, str::to_ascii_lowercase)
}

/// Return the text in upper case; None: see `lower`.
pub fn upper(text: Cow<str>) -> Option<Cow<str>> {
    cased(text, u8::is_ascii_lowercase, str::to_ascii_uppercase)
}

fn cased<'v>(text: Cow<'v, str>, changes: fn(&u8) -> bool, change: fn(&str) -> String) -> Option<Cow<'v, str>> {
    if !text.is_ascii() {
        return None;
    }
    Some(if text.bytes().any(|byte| changes(&byte)) {
        Cow::Owned(change(&text))
    } else {
        text
    })
}

pub fn trimmed(text: Cow<str>) -> Cow<str> {
    let end = text.trim_end_matches(SPACES).len();
    let begin = text.len() - text.trim_start_matches(SPACES).len();
    slice(text, begin.min(end)..end)
}

/// Return `count` code points from `start` on.
pub fn substring(text: Cow<str>, start: usize, count: Option<usize>) -> Cow<str> {
    let begin = after(&text, start);
    let end = count.map_or(text.len(), |count| begin + after(&text[begin..], count));
    slice(text, begin..end)
}

/// Return where in a text a number of code points ends.
fn after(text: &str, points: usize) -> usize {
    text.char_indices().nth(points).map_or(text.len(), |(at, _)| at)
}

fn slice(text: Cow<str>, range: Range<usize>) -> Cow<str> {
    match text {
        Cow::Borrowed(text) => Cow::Borrowed(&text[range]),
        Cow::Owned(text) => Cow::Owned(text[range].to_owned()),
    }
}

/// Return the integer of a text of digits with or without a sign; None: it is none, or none of 64 bits.
pub fn whole(text: &str) -> Option<i64> {
    (text.len() <= MOST_DIGITS).then(|| text.parse().ok()).flatten()
}

/// Return the float of a text that is a decimal number.
pub fn decimal(text: &str) -> Option<f64> {
    // Rust reads names of infinity and NaN as well, and otherwise what Python reads.
    let plain = text
        .bytes()
        .all(|byte| byte.is_ascii_digit() || b"+-.eE".contains(&byte));
    (plain && text.len() <= MOST_DIGITS)
        .then(|| text.parse().ok())
        .flatten()
}

/// Return a float by its shortest digits, as Python writes it.
pub fn float(number: f64) -> String {
    if number.is_infinite() {
        return (if number > 0.0 { "inf" } else { "-inf" }).to_owned();
    }
    let written = shortest(number);
    let (digits, exponent) = written.split_once('e').unwrap_or((&written, "0"));
    let size = number.abs();
    if size == 0.0 || (1e-4..1e16).contains(&size) {
        // As many places as the shortest digits have, which are the nearest of that length.
        let behind = digits.split_once('.').map_or(0, |(_, behind)| behind.len());
        let exponent: i64 = exponent.parse().unwrap_or(0);
        let places = usize::try_from(behind as i64 - exponent).unwrap_or(0).max(1);
        return format!("{number:.places$}");
    }
    match exponent.strip_prefix('-') {
        Some(exponent) => format!("{digits}e-{exponent:0>2}"),
        None => format!("{digits}e+{exponent:0>2}"),
    }
}

/// Return the fewest digits that are read as this float, with their exponent: `9.5e-7`. Of two that are as near, Python has
/// the even one, and Rust the upper one: 0.1 * 2**53 ends with .2 or .3.
fn shortest(number: f64) -> String {
    let written = format!("{number:e}");
    let digits = written.split_once('e').map_or(0, |(digits, _)| digits.len());
    let places = digits.saturating_sub(if number.is_sign_negative() { 3 } else { 2 });
    let nearest = format!("{number:.places$e}");
    if nearest.parse() == Ok(number) {
        nearest
    } else {
        written
    }
}

/// Return the milliseconds since 1970 of a text in ISO 8601; None: it is none, or no such day is in the calendar.
///
/// Shape: `2026-11-29`, and then `T12:30` or ` 12:30`, `:15`, `.250`, and `Z`, `+01:00` or `+0100`.
pub fn time_ms(text: &str) -> Option<i64> {
    let mut rest = Digits(text.as_bytes());
    let year = rest.number(4, 1, 9999)?;
    rest.sign(b"-")?;
    let month = rest.number(2, 1, 12)?;
    rest.sign(b"-")?;
    let day = rest.number(2, 1, days_in(year, month))?;
    let mut minutes = days_since_1970(year, month, day) * 24 * 60;
    let mut ms = 0;
    if rest.sign(b"T ").is_some() {
        minutes += rest.number(2, 0, 23)? * 60;
        rest.sign(b":")?;
        minutes += rest.number(2, 0, 59)?;
        if rest.sign(b":").is_some() {
            ms = rest.number(2, 0, 59)? * 1000;
            if rest.sign(b".").is_some() {
                ms += rest.fraction_ms()?;
            }
        }
        if let Some(sign) = rest.sign(b"Z+-")
            && sign != b'Z'
        {
            let hours = rest.number(2, 0, 14)?;
            rest.sign(b":");
            let away = hours * 60 + rest.number(2, 0, 59)?;
            minutes += if sign == b'+' { -away } else { away };
        }
    }
    rest.0.is_empty().then_some(minutes * 60_000 + ms)
}

/// What is left of a text.
struct Digits<'a>(&'a [u8]);

impl Digits<'_> {
    /// Take one of these signs, if the text goes on with it.
    fn sign(&mut self, signs: &[u8]) -> Option<u8> {
        let (&sign, rest) = self.0.split_first()?;
        signs.contains(&sign).then(|| {
            self.0 = rest;
            sign
        })
    }

    fn digit(&mut self) -> Option<i64> {
        self.sign(b"0123456789").map(|digit| i64::from(digit - b'0'))
    }

    /// Take a number of so many digits.
    fn number(&mut self, digits: usize, least: i64, most: i64) -> Option<i64> {
        let mut number = 0;
        for _ in 0..digits {
            number = number * 10 + self.digit()?;
        }
        (least..=most).contains(&number).then_some(number)
    }

    /// Take one to nine digits behind the point.
    fn fraction_ms(&mut self) -> Option<i64> {
        let mut ms = self.digit()? * 100;
        for weight in [10, 1, 0, 0, 0, 0, 0, 0] {
            match self.digit() {
                Some(digit) => ms += digit * weight,
                None => break,
            }
        }
        Some(ms)
    }
}

fn is_leap(year: i64) -> bool {
    year % 4 == 0 && (year % 100 != 0 || year % 400 == 0)
}

fn days_in(year: i64, month: i64) -> i64 {
    match month {
        2 => 28 + i64::from(is_leap(year)),
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    }
}

/// Source: Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms", `days_from_civil`.
fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    let year = if month <= 2 { year - 1 } else { year };
    let era = year.div_euclid(400);
    let of_era = year.rem_euclid(400);
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468
}

//! Records and events of one partition, copied from messages of librdkafka, until Python asks for them.

use crate::librdkafka::{self, Functions, Message, NO_ERROR, PARTITION_EOF, nothing};
use std::collections::VecDeque;
use std::ffi::{CStr, c_int, c_void};
use std::ptr::null;

/// Memory of a pile that is kept for the next one.
const SPARE_BYTES: usize = 4 << 20;

/// Where bytes of a pile are; a negative length: null, which is not the same as no bytes.
#[derive(Clone, Copy)]
struct Span {
    start: usize,
    length: isize,
}

/// One record.
pub struct Row {
    pub offset: i64,
    pub timestamp: i64,
    key: Span,
    value: Span,
    headers: Option<Box<[(Span, Span)]>>,
}

/// What librdkafka tells of a partition instead of a record: its end, or an error.
pub struct Event {
    /// How many records of the pile came before it.
    pub rows: usize,
    pub code: c_int,
    pub text: String,
    pub offset: i64,
}

/// Records in the order of their offsets, and events between them.
#[derive(Default)]
pub struct Pile {
    bytes: Vec<u8>,
    rows: VecDeque<Row>,
    events: Vec<Event>,
    /// The position of the first byte that is still here: spans count from the beginning of what was added.
    base: usize,
}

impl Pile {
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// How many records and events there are.
    pub fn count(&self) -> usize {
        self.rows.len() + self.events.len()
    }

    pub fn is_empty(&self) -> bool {
        self.count() == 0
    }

    /// How many bytes of keys, values and headers.
    pub fn size(&self) -> usize {
        self.bytes.len() - self.taken_bytes()
    }

    /// The records of a pile that was taken.
    pub fn rows(&self) -> &[Row] {
        self.rows.as_slices().0
    }

    pub fn events(&self) -> &[Event] {
        &self.events
    }

    pub fn key(&self, row: &Row) -> Option<&[u8]> {
        self.bytes_at(row.key)
    }

    pub fn value(&self, row: &Row) -> Option<&[u8]> {
        self.bytes_at(row.value)
    }

    /// The headers of a record: names and values.
    pub fn headers<'a>(&'a self, row: &'a Row) -> Option<impl ExactSizeIterator<Item = (&'a [u8], Option<&'a [u8]>)>> {
        let headers = row.headers.as_deref()?;
        Some(
            headers
                .iter()
                .map(|&(name, value)| (self.bytes_at(name).unwrap_or_default(), self.bytes_at(value))),
        )
    }

    /// Whether a record may be a time mark: those have headers only.
    pub fn is_bare(row: &Row) -> bool {
        row.headers.is_some() && row.key.length < 0 && row.value.length < 0
    }

    fn bytes_at(&self, span: Span) -> Option<&[u8]> {
        let length = usize::try_from(span.length).ok()?;
        let start = span.start - self.base;
        Some(&self.bytes[start..start + length])
    }

    /// Adds a message, if it is not a record below the position `next`. Returns the position after it.
    ///
    /// # Safety
    /// The message is alive, one of a consumer, and used by nobody else.
    pub unsafe fn add(&mut self, functions: &Functions, message: *mut Message, next: i64) -> i64 {
        // SAFETY: it is alive.
        let &Message {
            error,
            payload,
            length,
            key,
            key_length,
            offset,
            ..
        } = unsafe { &*message };
        if error != NO_ERROR {
            let text = if payload.is_null() {
                // SAFETY: librdkafka has a text for each code, which is never freed.
                unsafe { (functions.error_text)(error) }
            } else {
                payload.cast_const().cast()
            };
            // SAFETY: the payload of a consumer's error is its text, which ends with NUL.
            let text = unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned();
            self.events.push(Event {
                rows: self.rows.len(),
                code: error,
                text,
                offset,
            });
            return if error == PARTITION_EOF { next.max(offset) } else { next };
        }
        if offset < next {
            return next;
        }
        // SAFETY: key and value of a live message are as long as it says; null pointers stand for null.
        let (key, value) = unsafe { (self.copy(key, key_length), self.copy(payload, length)) };
        let mut found = nothing();
        // SAFETY: the message is alive, and the headers are as long as it.
        let headers = unsafe {
            if (functions.message_headers)(message, &raw mut found) == NO_ERROR {
                self.copy_headers(functions, found)
            } else {
                None
            }
        };
        // SAFETY: as above.
        let timestamp = unsafe { (functions.message_timestamp)(message, std::ptr::null_mut()) };
        self.rows.push_back(Row {
            offset,
            timestamp,
            key,
            value,
            headers,
        });
        offset + 1
    }

    /// # Safety
    /// There are as many bytes, or the pointer is null.
    unsafe fn copy(&mut self, from: *const c_void, length: usize) -> Span {
        let start = self.base + self.bytes.len();
        if from.is_null() {
            return Span { start, length: -1 };
        }
        // SAFETY: by our own contract.
        self.bytes
            .extend_from_slice(unsafe { std::slice::from_raw_parts(from.cast(), length) });
        Span {
            start,
            length: length.cast_signed(),
        }
    }

    /// # Safety
    /// `headers` is a live list of headers.
    unsafe fn copy_headers(
        &mut self,
        functions: &Functions,
        headers: librdkafka::Opaque,
    ) -> Option<Box<[(Span, Span)]>> {
        let mut copied = Vec::new();
        let (mut name, mut value, mut size) = (null(), null(), 0);
        // SAFETY: the list is alive, and so are the names, which end with NUL, and the values in it.
        unsafe {
            while (functions.header_at)(headers, copied.len(), &raw mut name, &raw mut value, &raw mut size) == NO_ERROR
            {
                let name = CStr::from_ptr(name);
                let name = self.copy(name.as_ptr().cast(), name.to_bytes().len());
                copied.push((name, self.copy(value, size)));
            }
        }
        (!copied.is_empty()).then(|| copied.into_boxed_slice())
    }

    /// Takes records and events from the front, no more than `most` of the records. The rest stays where it is: it may be
    /// much more, and is taken in many portions.
    pub fn take(&mut self, most: usize) -> Self {
        if self.rows.len() <= most {
            self.rows.make_contiguous();
            return std::mem::take(self);
        }
        let start = self.taken_bytes();
        let rows = self.rows.drain(..most).collect();
        let end = self.taken_bytes();
        let later = self.events.partition_point(|event| event.rows < most);
        let rest = self.events.split_off(later);
        let taken = Self {
            bytes: self.bytes[start..end].to_vec(),
            rows,
            events: std::mem::replace(&mut self.events, rest),
            base: self.base + start,
        };
        for event in &mut self.events {
            event.rows -= most;
        }
        if end > self.bytes.len() / 2 {
            self.bytes.drain(..end);
            self.base += end;
        }
        taken
    }

    /// How many bytes at the front are of records that were taken.
    fn taken_bytes(&self) -> usize {
        self.rows
            .front()
            .map_or(self.bytes.len(), |row| row.key.start - self.base)
    }

    /// Empties it, and keeps its memory if that is not much.
    pub fn recycled(mut self) -> Option<Self> {
        self.rows.clear();
        self.events.clear();
        self.bytes.clear();
        self.base = 0;
        let size = self.bytes.capacity() + self.rows.capacity() * size_of::<Row>();
        (size <= SPARE_BYTES).then_some(self)
    }
}

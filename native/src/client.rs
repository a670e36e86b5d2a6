//! The producers of confluent-kafka, seen from inside librdkafka, and how librdkafka calls this library.
//!
//! This library is an interceptor plugin of librdkafka (`plugin.library.paths`): librdkafka calls `conf_init` for each
//! client with that setting, `on_new` hands over its handle, `on_acknowledgement` what became of each record, and
//! `on_destroy` says that the handle ends. confluent-kafka stays the owner.
//!
//! Invariant: the handle is used only under the lock of `Client::open`, which `on_destroy` takes before librdkafka frees
//! anything. A call on a destroyed client is an error, never a use of freed memory.
//! Invariant: no callback here calls Python or waits for it; none unwinds into C.
//! Turned down: freeing a `Client` in `on_destroy`. Records that are given up are acknowledged after it; so some 200
//! bytes remain of each producer.

use crate::consumer;
use crate::librdkafka::{
    self, CONSUMER, DESTROYED, Functions, Message, NAME, NO_ERROR, Opaque, PERSISTED, PRODUCER, functions, nothing,
};
use crate::locked;
use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::panic::catch_unwind;
use std::sync::Mutex;

/// What is known of one producer.
pub struct Client {
    handle: Opaque,
    open: Mutex<Open>,
    ledger: Mutex<Ledger>,
}

// SAFETY: librdkafka's handles may be used by any thread, and `handle` is used under the lock of `open` alone.
unsafe impl Send for Client {}
// SAFETY: as above.
unsafe impl Sync for Client {}

/// What a producer has as long as it is not destroyed.
#[derive(Default)]
struct Open {
    destroyed: bool,
    /// Topics by name, each kept until the client is released: a pointer to one is not used again for another one.
    topics: HashMap<CString, usize>,
}

/// What became of the records.
#[derive(Default)]
struct Ledger {
    delivered: u64,
    failed: u64,
    first_failure: Option<(c_int, String)>,
    /// The offset after the last acknowledged record; `None`: the broker did not say.
    ends: Vec<Option<i64>>,
    places: HashMap<String, HashMap<i32, usize>>,
    /// Topic, partition and place of the last acknowledged record: the next one is most often of the same.
    last: Option<(CString, i32, usize)>,
    over: bool,
}

thread_local! {
    static MADE: Cell<Option<&'static Client>> = const { Cell::new(None) };
    static PRODUCING: Cell<bool> = const { Cell::new(false) };
}

/// The producer that this thread has made last, once.
pub fn take_made() -> Option<&'static Client> {
    MADE.take()
}

/// A record to produce. The bytes belong to the caller, and outlive the call.
pub struct Record {
    pub key: (*const u8, usize),
    pub value: (*const u8, usize),
    pub timestamp: i64,
    pub partition: i32,
    pub headers: Option<Headers>,
}

/// Where bytes are, and how many.
pub type Bytes = (*const u8, usize);

/// Names and values of headers, in order.
pub type Headers = Vec<(Bytes, Option<Bytes>)>;

// SAFETY: pointers to bytes of Python objects, which the caller holds while the GIL is released; they are only read.
unsafe impl Send for Record {}
// SAFETY: as above.
unsafe impl Sync for Record {}

impl Client {
    /// Hands records to librdkafka, in order, until one is refused. Returns how many were taken, and the error of the
    /// next one.
    ///
    /// # Safety
    /// The bytes of the records are there until this returns.
    pub unsafe fn produce(&self, topic: &CStr, records: &[Record]) -> (usize, c_int) {
        let mut open = locked(&self.open);
        let Some(functions) = functions().filter(|_| !open.destroyed) else {
            return (0, DESTROYED);
        };
        let topic = match open.topics.get(topic) {
            Some(&topic) => topic as Opaque,
            None => {
                // SAFETY: the handle is alive under this lock.
                let made = unsafe { (functions.topic_new)(self.handle, topic.as_ptr(), nothing()) };
                if made.is_null() {
                    return (0, librdkafka::INVALID_ARGUMENT);
                }
                open.topics.insert(topic.to_owned(), made as usize);
                made
            }
        };
        PRODUCING.set(true);
        let mut taken = 0;
        let mut error = NO_ERROR;
        for record in records {
            // SAFETY: handle and topic are alive under this lock, the bytes by our own contract.
            error = unsafe { produce_one(functions, self.handle, topic, record) };
            if error != NO_ERROR {
                break;
            }
            taken += 1;
        }
        PRODUCING.set(false);
        (taken, error)
    }

    /// Whether librdkafka has destroyed it, or is about to.
    pub fn is_destroyed(&self) -> bool {
        locked(&self.open).destroyed
    }

    /// Forgets the topics: librdkafka wants that before the client is destroyed.
    pub fn release(&self) {
        locked(&self.open).release();
    }

    /// Error and topic of the first record that was not delivered, once. Error 0: librdkafka does not say which.
    pub fn take_failure(&self) -> Option<(c_int, String)> {
        locked(&self.ledger).first_failure.take()
    }

    /// How many records were delivered, and how many were not.
    pub fn counts(&self) -> (u64, u64) {
        let ledger = locked(&self.ledger);
        (ledger.delivered, ledger.failed)
    }

    /// The offset after the last record that was delivered to a partition.
    pub fn delivered_to(&self, topic: &str, partition: i32) -> Option<i64> {
        let ledger = locked(&self.ledger);
        let place = *ledger.places.get(topic)?.get(&partition)?;
        ledger.ends[place]
    }
}

impl Open {
    /// Gives back all topics, if librdkafka still has them.
    fn release(&mut self) {
        if let Some(functions) = functions().filter(|_| !self.destroyed) {
            for (_, topic) in self.topics.drain() {
                // SAFETY: the client is not destroyed while the lock around this is held, so its topics are alive.
                unsafe { (functions.topic_destroy)(topic as Opaque) };
            }
        }
    }
}

impl Ledger {
    /// Notes what became of a record.
    ///
    /// # Safety
    /// `message` and its topic are alive.
    unsafe fn note(&mut self, functions: &Functions, message: &Message) {
        if self.over {
            return;
        }
        // The status, not the error: that is 0 for a batch of which the broker refused several records.
        // SAFETY: the message is alive.
        if unsafe { (functions.message_status)(message) } == PERSISTED {
            self.delivered += 1;
            // SAFETY: the topic is alive.
            let place = unsafe { self.place(functions, message.topic, message.partition) };
            self.ends[place] = (message.offset >= 0).then_some(message.offset + 1);
        } else {
            self.failed += 1;
            if self.first_failure.is_none() {
                // SAFETY: the topic is alive.
                let topic = unsafe { librdkafka::name_of(functions, message.topic) };
                self.first_failure = Some((message.error, topic.to_string_lossy().into_owned()));
            }
        }
    }

    /// Where the end of a partition is noted.
    ///
    /// # Safety
    /// `topic` is alive.
    unsafe fn place(&mut self, functions: &Functions, topic: Opaque, partition: i32) -> usize {
        // SAFETY: by our own contract.
        let name = unsafe { librdkafka::name_of(functions, topic) };
        match &self.last {
            Some((last, same, place)) if last.as_c_str() == name && *same == partition => return *place,
            _ => {}
        }
        let text = name.to_string_lossy();
        let partitions = match self.places.get_mut(text.as_ref()) {
            Some(partitions) => partitions,
            None => self.places.entry(text.into_owned()).or_default(),
        };
        let place = *partitions.entry(partition).or_insert_with(|| {
            self.ends.push(None);
            self.ends.len() - 1
        });
        self.last = Some((name.to_owned(), partition, place));
        place
    }
}

/// Hands one record to librdkafka; returns its error.
///
/// # Safety
/// Handle, topic and bytes are alive.
unsafe fn produce_one(functions: &Functions, handle: Opaque, topic: Opaque, record: &Record) -> c_int {
    use librdkafka::Part;
    let mut headers = nothing();
    if let Some(given) = &record.headers {
        // SAFETY: the headers are ours until a record with them is taken; names and values are copied.
        unsafe {
            headers = (functions.headers_new)(given.len());
            for (name, value) in given {
                let (pointer, length) = value.unwrap_or((std::ptr::null(), 0));
                let (name, name_length) = (name.0.cast(), name.1 as isize);
                let error = (functions.header_add)(headers, name, name_length, pointer.cast(), length as isize);
                if error != NO_ERROR {
                    (functions.headers_destroy)(headers);
                    return error;
                }
            }
        }
    }
    let parts = [
        Part::topic(topic),
        Part::partition(record.partition),
        Part::copied(),
        Part::value(record.value.0, record.value.1),
        Part::key(record.key.0, record.key.1),
        Part::timestamp(record.timestamp),
        Part::headers(headers),
    ];
    let count = if headers.is_null() {
        parts.len() - 1
    } else {
        parts.len()
    };
    // SAFETY: all pointers are alive for the call; librdkafka copies what they point to.
    unsafe {
        let refusal = (functions.produceva)(handle, parts.as_ptr(), count);
        if refusal.is_null() {
            return NO_ERROR;
        }
        if !headers.is_null() {
            (functions.headers_destroy)(headers);
        }
        let error = (functions.error_code)(refusal);
        (functions.error_destroy)(refusal);
        error
    }
}

/// What librdkafka calls for each configuration that names this library.
///
/// # Safety
/// librdkafka calls it.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn conf_init(conf: Opaque, _: *mut Opaque, _: *mut c_char, _: usize) -> c_int {
    // SAFETY: `conf` is the live configuration that librdkafka passes.
    functions().map_or(NO_ERROR, |it| unsafe {
        (it.conf_add_on_new)(conf, NAME.as_ptr(), on_new, nothing())
    })
}

unsafe extern "C" fn on_new(handle: Opaque, conf: Opaque, _: Opaque, _: *mut c_char, _: usize) -> c_int {
    let _ = catch_unwind(|| {
        let Some(functions) = functions() else { return };
        // SAFETY: the handle is the live one that librdkafka passes; the client is never freed.
        unsafe {
            let kind = (functions.kind)(handle);
            if kind == CONSUMER {
                consumer::note_made(functions, handle, conf);
            }
            if kind != PRODUCER {
                return;
            }
            let made = Client {
                handle,
                open: Mutex::default(),
                ledger: Mutex::default(),
            };
            let client: &'static Client = Box::leak(Box::new(made));
            let opaque = std::ptr::from_ref(client).cast_mut().cast::<c_void>();
            if (functions.add_on_acknowledgement)(handle, NAME.as_ptr(), on_acknowledgement, opaque) == NO_ERROR
                && (functions.add_on_destroy)(handle, NAME.as_ptr(), on_destroy, opaque) == NO_ERROR
            {
                MADE.set(Some(client));
            }
        }
    });
    NO_ERROR
}

unsafe extern "C" fn on_acknowledgement(_: Opaque, message: *mut Message, client: Opaque) -> c_int {
    // A record that `produce` itself refuses is told to its caller.
    if !PRODUCING.get() {
        let _ = catch_unwind(|| {
            // SAFETY: the opaque pointer of `on_new`, and a message that lives until librdkafka has it freed.
            let (client, message) = unsafe { (&*client.cast::<Client>(), &*message) };
            if let Some(functions) = functions() {
                // SAFETY: a message of a producer keeps its topic.
                unsafe { locked(&client.ledger).note(functions, message) };
            }
        });
    }
    NO_ERROR
}

unsafe extern "C" fn on_destroy(_: Opaque, client: Opaque) -> c_int {
    let _ = catch_unwind(|| {
        // SAFETY: the opaque pointer of `on_new`.
        let client = unsafe { &*client.cast::<Client>() };
        let mut open = locked(&client.open);
        open.release();
        open.destroyed = true;
        drop(open);
        *locked(&client.ledger) = Ledger {
            over: true,
            ..Ledger::default()
        };
    });
    NO_ERROR
}

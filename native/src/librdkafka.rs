//! The functions of librdkafka that are called here, from the library that confluent-kafka has loaded.
//!
//! Nothing is linked: a second librdkafka in the process could not read the handles of the first. Only functions and
//! structs of the public `rdkafka.h` are used, whose layout a major version keeps.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::path::Path;
use std::ptr::null_mut;
use std::sync::OnceLock;

/// A pointer to something that only librdkafka looks into.
pub type Opaque = *mut c_void;

/// The name of our interceptors in librdkafka.
pub const NAME: &CStr = c"coopstreams";

pub const NO_ERROR: c_int = 0;
pub const PERSISTED: c_int = 2;
pub const PRODUCER: c_int = 0;
pub const CONSUMER: c_int = 1;
pub const PARTITION_EOF: c_int = -191;
pub const FATAL: c_int = -150;
pub const DESTROYED: c_int = -197;
pub const INVALID_ARGUMENT: c_int = -186;

/// `rd_kafka_message_t`.
#[repr(C)]
pub struct Message {
    pub error: c_int,
    pub topic: Opaque,
    pub partition: i32,
    pub payload: *mut c_void,
    pub length: usize,
    pub key: *mut c_void,
    pub key_length: usize,
    pub offset: i64,
    private: *mut c_void,
}

/// A part of a record for `rd_kafka_produceva`: `rd_kafka_vu_t`, whose union has room for 64 bytes.
#[repr(C)]
pub struct Part {
    kind: c_int,
    value: PartValue,
}

#[repr(C)]
union PartValue {
    pointer: Opaque,
    flags: c_int,
    partition: i32,
    timestamp: i64,
    bytes: (*const c_void, usize),
    room: [u64; 8],
}

impl Part {
    pub fn topic(topic: Opaque) -> Self {
        Self {
            kind: 2,
            value: PartValue { pointer: topic },
        }
    }

    pub fn partition(partition: i32) -> Self {
        Self {
            kind: 3,
            value: PartValue { partition },
        }
    }

    /// The value; a null pointer is a null value, which is not the same as one of no bytes.
    pub fn value(pointer: *const u8, length: usize) -> Self {
        Self {
            kind: 4,
            value: PartValue {
                bytes: (pointer.cast(), length),
            },
        }
    }

    pub fn key(pointer: *const u8, length: usize) -> Self {
        Self {
            kind: 5,
            value: PartValue {
                bytes: (pointer.cast(), length),
            },
        }
    }

    /// librdkafka copies key and value before the call returns.
    pub fn copied() -> Self {
        Self {
            kind: 7,
            value: PartValue { flags: 2 },
        }
    }

    pub fn timestamp(timestamp: i64) -> Self {
        Self {
            kind: 8,
            value: PartValue { timestamp },
        }
    }

    /// Headers; librdkafka owns them once it has taken the record.
    pub fn headers(headers: Opaque) -> Self {
        Self {
            kind: 10,
            value: PartValue { pointer: headers },
        }
    }
}

pub type OnNew = unsafe extern "C" fn(Opaque, Opaque, Opaque, *mut c_char, usize) -> c_int;
pub type OnError = unsafe extern "C" fn(Opaque, c_int, *const c_char, Opaque);
pub type OnDestroy = unsafe extern "C" fn(Opaque, Opaque) -> c_int;
pub type OnAcknowledgement = unsafe extern "C" fn(Opaque, *mut Message, Opaque) -> c_int;

macro_rules! functions {
    ($($name:ident = $symbol:literal: fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        pub struct Functions { $(pub $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)* }

        impl Functions {
            fn of(library: &libloading::Library) -> Result<Self, libloading::Error> {
                // SAFETY: the types are those of the declarations in rdkafka.h.
                unsafe { Ok(Self { $($name: *library.get($symbol)?,)* }) }
            }
        }
    };
}

functions! {
    version = b"rd_kafka_version": fn() -> c_int;
    conf_new = b"rd_kafka_conf_new": fn() -> Opaque;
    conf_get = b"rd_kafka_conf_get": fn(Opaque, *const c_char, *mut c_char, *mut usize) -> c_int;
    conf_set = b"rd_kafka_conf_set": fn(Opaque, *const c_char, *const c_char, *mut c_char, usize) -> c_int;
    conf_destroy = b"rd_kafka_conf_destroy": fn(Opaque);
    conf_of = b"rd_kafka_conf": fn(Opaque) -> Opaque;
    conf_set_error_cb = b"rd_kafka_conf_set_error_cb": fn(Opaque, OnError);
    conf_add_on_new = b"rd_kafka_conf_interceptor_add_on_new": fn(Opaque, *const c_char, OnNew, Opaque) -> c_int;
    add_on_destroy = b"rd_kafka_interceptor_add_on_destroy": fn(Opaque, *const c_char, OnDestroy, Opaque) -> c_int;
    add_on_acknowledgement = b"rd_kafka_interceptor_add_on_acknowledgement":
        fn(Opaque, *const c_char, OnAcknowledgement, Opaque) -> c_int;
    kind = b"rd_kafka_type": fn(Opaque) -> c_int;
    topic_new = b"rd_kafka_topic_new": fn(Opaque, *const c_char, Opaque) -> Opaque;
    topic_destroy = b"rd_kafka_topic_destroy": fn(Opaque);
    topic_name = b"rd_kafka_topic_name": fn(Opaque) -> *const c_char;
    produceva = b"rd_kafka_produceva": fn(Opaque, *const Part, usize) -> Opaque;
    error_code = b"rd_kafka_error_code": fn(Opaque) -> c_int;
    error_destroy = b"rd_kafka_error_destroy": fn(Opaque);
    headers_new = b"rd_kafka_headers_new": fn(usize) -> Opaque;
    headers_destroy = b"rd_kafka_headers_destroy": fn(Opaque);
    header_add = b"rd_kafka_header_add": fn(Opaque, *const c_char, isize, *const c_void, isize) -> c_int;
    message_status = b"rd_kafka_message_status": fn(*const Message) -> c_int;
    queue_new = b"rd_kafka_queue_new": fn(Opaque) -> Opaque;
    queue_of_partition = b"rd_kafka_queue_get_partition": fn(Opaque, *const c_char, i32) -> Opaque;
    queue_forward = b"rd_kafka_queue_forward": fn(Opaque, Opaque);
    queue_destroy = b"rd_kafka_queue_destroy": fn(Opaque);
    queue_yield = b"rd_kafka_queue_yield": fn(Opaque);
    consume_batch = b"rd_kafka_consume_batch_queue": fn(Opaque, c_int, *mut *mut Message, usize) -> isize;
    message_destroy = b"rd_kafka_message_destroy": fn(*mut Message);
    message_timestamp = b"rd_kafka_message_timestamp": fn(*const Message, *mut c_int) -> i64;
    message_headers = b"rd_kafka_message_headers": fn(*const Message, *mut Opaque) -> c_int;
    header_at = b"rd_kafka_header_get_all":
        fn(Opaque, usize, *mut *const c_char, *mut *const c_void, *mut usize) -> c_int;
    fatal_error = b"rd_kafka_fatal_error": fn(Opaque, *mut c_char, usize) -> c_int;
    error_text = b"rd_kafka_err2str": fn(c_int) -> *const c_char;
}

static FUNCTIONS: OnceLock<Functions> = OnceLock::new();

/// The functions, once `load` has found them; before that there is no handle to call them with.
pub fn functions() -> Option<&'static Functions> {
    FUNCTIONS.get()
}

/// Finds the functions through a module that needs librdkafka: its symbols are found by the order of dependencies, under
/// whatever name a wheel has it. Returns the version and the features it was built with, or why it cannot be used.
pub fn load(module: &Path) -> Result<(c_int, String), String> {
    if FUNCTIONS.get().is_none() {
        // SAFETY: Python has loaded this module, so its initialisers have run; it stays loaded.
        let library = unsafe { libloading::Library::new(module) }.map_err(|error| error.to_string())?;
        let found = Functions::of(&library).map_err(|error| error.to_string())?;
        std::mem::forget(library);
        let _ = FUNCTIONS.set(found);
    }
    let functions = FUNCTIONS.get().ok_or("the functions of librdkafka are not there")?;
    let mut room = [0_u8; 1024];
    let mut size = room.len();
    // SAFETY: the configuration lives between new and destroy, and no more than `size` bytes are written.
    let (version, got) = unsafe {
        let conf = (functions.conf_new)();
        let got = (functions.conf_get)(
            conf,
            c"builtin.features".as_ptr(),
            room.as_mut_ptr().cast(),
            &raw mut size,
        );
        (functions.conf_destroy)(conf);
        ((functions.version)(), got)
    };
    let features = CStr::from_bytes_until_nul(&room).map_or_else(|_| String::new(), |it| it.to_string_lossy().into());
    if got == NO_ERROR {
        Ok((version, features))
    } else {
        Err("builtin.features cannot be read".into())
    }
}

/// The name of a topic, of a handle that is alive for the call.
///
/// # Safety
/// `topic` is a live `rd_kafka_topic_t`.
pub unsafe fn name_of<'a>(functions: &Functions, topic: Opaque) -> &'a CStr {
    // SAFETY: librdkafka keeps the name, which ends with NUL, as long as the topic.
    unsafe { CStr::from_ptr((functions.topic_name)(topic)) }
}

/// No pointer.
pub fn nothing() -> Opaque {
    null_mut()
}

//! The consumers of confluent-kafka, seen from inside librdkafka: what they have fetched comes here instead of through Python.
//!
//! The queue of each partition that is read is forwarded to one queue of ours. So librdkafka's limits on what is
//! prefetched count all partitions together, as they do for the queue of a consumer, and that one has only events left:
//! Python polls it, because the callbacks of confluent-kafka run nowhere else. One of them can also be called for what is
//! in the queue of a partition (a topic that is gone): the one for errors. So that one is replaced by `on_error` here,
//! which notes the errors for Python to ask for.
//!
//! Invariant: handle, queue and messages are used only under the lock of `open`, which `on_destroy` takes before
//! librdkafka frees anything. No message outlives the call that received it. `wake` alone uses the queue under a lock of
//! its own, because the other one is held by the call that waits; the queue is in it as long as it is alive.
//! Turned down: reading each partition's own queue, which needs no repeated forwarding. Then the limits hold for each
//! partition, which is 256 MiB each.

use crate::librdkafka::{FATAL, Functions, Message, NAME, NO_ERROR, OnError, Opaque, functions, nothing};
use crate::locked;
use std::cell::Cell;
use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char, c_int};
use std::panic::catch_unwind;
use std::ptr::null_mut;
use std::sync::{Arc, Mutex, MutexGuard};

/// How many messages are received at once: few enough to be in the processor's cache when they are copied.
const AT_ONCE: usize = 512;

/// How many errors are noted between two questions; no more of them say anything new.
const MOST_ERRORS: usize = 100;

const FETCH_WAIT: &CStr = c"fetch.wait.max.ms";

/// What is known of one consumer.
pub struct Consumer {
    handle: Opaque,
    open: Mutex<Open>,
    waking: Mutex<Waking>,
    errors: Mutex<Vec<Error>>,
}

/// What ends a wait. The queue is that of `Open`, or null.
struct Waking {
    queue: Opaque,
    asked: bool,
}

/// What `error_cb` of a client is called with: code, text, and whether the client is unusable.
pub type Error = (c_int, String, bool);

/// The consumers that are not destroyed, by their handles: `on_error` is called with nothing else of ours.
static ALIVE: Mutex<Option<HashMap<usize, Arc<Consumer>>>> = Mutex::new(None);

// SAFETY: librdkafka's handles may be used by any thread, and `handle` is used under the lock of `open` alone.
unsafe impl Send for Consumer {}
// SAFETY: as above.
unsafe impl Sync for Consumer {}

struct Open {
    destroyed: bool,
    /// Made by the first call that needs it; null before that, and when it was released.
    queue: Opaque,
}

/// The consumer is destroyed, or has no memory left for a queue.
#[derive(Debug)]
pub struct Gone;

thread_local! {
    static MADE: Cell<Option<Arc<Consumer>>> = const { Cell::new(None) };
}

/// The consumer that this thread has made last, once, if its errors come here.
pub fn take_made() -> Option<Arc<Consumer>> {
    MADE.take().filter(|made| made.has_our_callback())
}

/// Notes a consumer that this thread is making.
///
/// # Safety
/// `handle` is the live consumer that librdkafka passes to `on_new`, `conf` its configuration.
pub unsafe fn note_made(functions: &Functions, handle: Opaque, conf: Opaque) {
    let made = Arc::new(Consumer {
        handle,
        open: Mutex::new(Open {
            destroyed: false,
            queue: nothing(),
        }),
        waking: Mutex::new(Waking {
            queue: nothing(),
            asked: false,
        }),
        errors: Mutex::default(),
    });
    let opaque = Arc::into_raw(Arc::clone(&made)).cast_mut().cast();
    // SAFETY: the handle is live; `on_destroy` takes the reference that `opaque` stands for.
    if unsafe { (functions.add_on_destroy)(handle, NAME.as_ptr(), on_destroy, opaque) } == NO_ERROR {
        // SAFETY: the configuration is that of the handle, of which no thread has been started yet.
        unsafe { (functions.conf_set_error_cb)(conf, on_error) };
        locked(&ALIVE)
            .get_or_insert_default()
            .insert(handle as usize, Arc::clone(&made));
        MADE.set(Some(made));
    } else {
        // SAFETY: librdkafka has not taken the reference of `into_raw` above.
        drop(unsafe { Arc::from_raw(opaque.cast_const().cast::<Consumer>()) });
    }
}

unsafe extern "C" fn on_destroy(_: Opaque, consumer: Opaque) -> c_int {
    let _ = catch_unwind(|| {
        // SAFETY: the opaque pointer of `note_made`, of which librdkafka makes one call.
        let consumer = unsafe { Arc::from_raw(consumer.cast_const().cast::<Consumer>()) };
        if let Some(alive) = locked(&ALIVE).as_mut() {
            alive.remove(&(consumer.handle as usize));
        }
        let mut open = consumer.locked();
        consumer.drop_queue(&mut open);
        open.destroyed = true;
    });
    NO_ERROR
}

unsafe extern "C" fn on_error(handle: Opaque, code: c_int, text: *const c_char, _: Opaque) {
    let _ = catch_unwind(|| {
        let consumer = locked(&ALIVE)
            .as_ref()
            .and_then(|it| it.get(&(handle as usize)).cloned());
        let (Some(functions), Some(consumer)) = (functions(), consumer) else {
            return;
        };
        let mut room = [0; 512];
        let (code, text, fatal) = if code == FATAL {
            // SAFETY: the handle is the live one that librdkafka passes, and no more than there is room is written.
            let code = unsafe { (functions.fatal_error)(handle, room.as_mut_ptr(), room.len()) };
            (code, room.as_ptr(), true)
        } else {
            (code, text, false)
        };
        let text = if text.is_null() {
            String::new()
        } else {
            // SAFETY: both texts end with NUL.
            unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
        };
        let mut errors = locked(&consumer.errors);
        if errors.len() < MOST_ERRORS {
            errors.push((code, text, fatal));
        }
    });
}

impl Consumer {
    fn locked(&self) -> MutexGuard<'_, Open> {
        locked(&self.open)
    }

    /// Whether `on_error` is the callback of the client, as its configuration prints it.
    fn has_our_callback(&self) -> bool {
        let ours = on_error as OnError as *const ();
        self.setting(c"error_cb").is_some_and(|it| it == format!("{ours:p}"))
    }

    /// How long a broker may keep a fetch for which it has no record.
    pub fn fetch_wait_ms(&self) -> Option<c_int> {
        self.setting(FETCH_WAIT)?.parse().ok()
    }

    /// Sets how long a broker may keep the next fetches. Returns false if librdkafka refuses.
    ///
    /// rdkafka.h calls the configuration of a client read-only. This one number is read each time that a fetch is sent, and
    /// a fetch that is sent with the number before it is right, too. A librdkafka that copies it at the start would go on
    /// with that one.
    pub fn set_fetch_wait(&self, ms: c_int) -> Result<bool, Gone> {
        let open = self.locked();
        let functions = functions().filter(|_| !open.destroyed).ok_or(Gone)?;
        let ms = CString::new(ms.to_string()).map_err(|_| Gone)?;
        // SAFETY: the handle is alive under this lock, its configuration is as long, and no text of an error is asked for.
        let set = unsafe {
            let conf = (functions.conf_of)(self.handle);
            (functions.conf_set)(conf, FETCH_WAIT.as_ptr(), ms.as_ptr(), null_mut(), 0)
        };
        Ok(set == NO_ERROR)
    }

    /// A setting of the client as text; None: it is destroyed, or the text is long.
    fn setting(&self, name: &CStr) -> Option<String> {
        let open = self.locked();
        let functions = functions().filter(|_| !open.destroyed)?;
        let mut room = [0_u8; 64];
        let mut size = room.len();
        // SAFETY: the handle is alive under this lock, its configuration is as long, and no more than `size` is written.
        let got = unsafe {
            let conf = (functions.conf_of)(self.handle);
            (functions.conf_get)(conf, name.as_ptr(), room.as_mut_ptr().cast(), &raw mut size)
        };
        let text = CStr::from_bytes_until_nul(&room).ok()?;
        (got == NO_ERROR).then(|| text.to_string_lossy().into_owned())
    }

    /// The errors that were noted since the last call.
    pub fn take_errors(&self) -> Vec<Error> {
        std::mem::take(&mut *locked(&self.errors))
    }

    /// Has what is fetched of these partitions brought here. To be repeated until something came: librdkafka ends it
    /// whenever it stops fetching a partition, which may be later than the call that made it stop.
    pub fn forward<'a>(&self, partitions: impl Iterator<Item = (&'a CStr, i32)>) -> Result<(), Gone> {
        let mut open = self.locked();
        let functions = functions().filter(|_| !open.destroyed).ok_or(Gone)?;
        let ours = self.queue(functions, &mut open);
        for (topic, partition) in partitions {
            // SAFETY: handle and queue are alive under this lock; the reference to the partition's queue is given back.
            unsafe {
                let queue = (functions.queue_of_partition)(self.handle, topic.as_ptr(), partition);
                if queue.is_null() {
                    return Err(Gone);
                }
                (functions.queue_forward)(queue, ours);
                (functions.queue_destroy)(queue);
            }
        }
        Ok(())
    }

    /// Our queue of a consumer that is not destroyed.
    fn queue(&self, functions: &Functions, open: &mut Open) -> Opaque {
        if open.queue.is_null() {
            // SAFETY: the handle is alive under the lock of `open`.
            open.queue = unsafe { (functions.queue_new)(self.handle) };
            locked(&self.waking).queue = open.queue;
        }
        open.queue
    }

    /// Ends the wait of the call of `receive` that runs, or of the next one. Any thread.
    pub fn wake(&self) {
        let mut waking = locked(&self.waking);
        waking.asked = true;
        if let Some(functions) = functions().filter(|_| !waking.queue.is_null()) {
            // SAFETY: the queue is alive while it is in `waking`, whose lock is held.
            unsafe { (functions.queue_yield)(waking.queue) };
        }
    }

    /// Whether `wake` was called since the last question.
    pub fn was_woken(&self) -> bool {
        std::mem::take(&mut locked(&self.waking).asked)
    }

    /// Hands messages to `receive` as they come, until there are none, until there are `most`, or until it returns
    /// false. Waits for the first one only, and not if it was woken. A message is alive until `receive` was called with all
    /// of its batch; the flag is true for the first one of a batch.
    pub fn receive(
        &self,
        most: usize,
        timeout_ms: c_int,
        mut receive: impl FnMut(&Functions, *mut Message, bool) -> bool,
    ) -> Result<(), Gone> {
        let mut open = self.locked();
        let functions = functions().filter(|_| !open.destroyed).ok_or(Gone)?;
        let queue = self.queue(functions, &mut open);
        let mut left = most;
        let mut timeout_ms = timeout_ms;
        let mut more = true;
        while more && left > 0 {
            // SAFETY: the queue is alive under this lock, which is held until the messages are freed.
            let mut batch = unsafe { Batch::of(functions, queue, left.min(AT_ONCE), 0) };
            if batch.count == 0 {
                // Looked at behind the call above, which ends the effect of a yield on the queue.
                if timeout_ms <= 0 || locked(&self.waking).asked {
                    break;
                }
                // SAFETY: as above.
                batch = unsafe { Batch::of(functions, queue, 1, timeout_ms) };
                if batch.count == 0 {
                    break;
                }
            }
            timeout_ms = 0;
            left -= batch.count;
            for (i, &message) in batch.messages[..batch.count].iter().enumerate() {
                more = receive(functions, message, i == 0) && more;
            }
        }
        Ok(())
    }

    /// Drops what was fetched and the queue: before the client is closed, so that it waits for nothing.
    pub fn release(&self) {
        self.drop_queue(&mut self.locked());
    }

    fn drop_queue(&self, open: &mut Open) {
        locked(&self.waking).queue = nothing();
        if let Some(functions) = functions().filter(|_| !open.destroyed && !open.queue.is_null()) {
            // SAFETY: the client is not destroyed while the lock around this is held, so its queue is alive. What is
            // still forwarded to it is dropped by librdkafka.
            unsafe { (functions.queue_destroy)(open.queue) };
        }
        open.queue = nothing();
    }
}

/// Messages of one call, freed with it also if a panic ends it.
struct Batch<'a> {
    functions: &'a Functions,
    messages: [*mut Message; AT_ONCE],
    count: usize,
}

impl<'a> Batch<'a> {
    /// # Safety
    /// `queue` is alive as long as the batch.
    unsafe fn of(functions: &'a Functions, queue: Opaque, most: usize, timeout_ms: c_int) -> Self {
        let mut messages = [null_mut(); AT_ONCE];
        // SAFETY: there is room for as many messages as are asked for.
        let count = unsafe { (functions.consume_batch)(queue, timeout_ms, messages.as_mut_ptr(), most.min(AT_ONCE)) };
        Self {
            functions,
            messages,
            count: usize::try_from(count).unwrap_or(0),
        }
    }
}

impl Drop for Batch<'_> {
    fn drop(&mut self) {
        for &message in &self.messages[..self.count] {
            // SAFETY: it came from librdkafka, is freed once, and the client is alive (see `of`).
            unsafe { (self.functions.message_destroy)(message) };
        }
    }
}

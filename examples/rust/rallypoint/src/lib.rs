//! Members of a rendezvous and the stores of its rounds, over librallypoint.
//!
//! What each function means, how long it may take and which codes it may end with is said
//! in rallypoint.h. Objects close what they own when they are dropped, and may be shared
//! between threads.
use std::ffi::{CStr, CString};
use std::fmt;
use std::time::Duration;

use rallypoint_sys as sys;

/// The other fields of a struct that begins with its size: 0 is the default of each, also of
/// those that a later release appends.
macro_rules! zeros {
    () => {
        // SAFETY: the structs of rallypoint.h are numbers and pointers, arrays of these too.
        unsafe { std::mem::zeroed() }
    };
}

/// What went wrong: a number of `enum rp_code`, and a human-readable text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Error {
    pub code: i32,
    pub retryable: bool,
    pub message: String,
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.message)
    }
}

impl std::error::Error for Error {}

pub type Result<T> = std::result::Result<T, Error>;

/// Makes a call; true if it is done, false for RP_PENDING.
fn call(f: impl FnOnce(*mut sys::rp_error) -> i32) -> Result<bool> {
    let mut error = sys::rp_error {
        struct_size: std::mem::size_of::<sys::rp_error>(),
        ..zeros!()
    };
    match f(&mut error) {
        sys::RP_OK => Ok(true),
        sys::RP_PENDING => Ok(false),
        code => Err(Error {
            code,
            retryable: error.retryable != 0,
            message: text(&error.message),
        }),
    }
}

fn text(bytes: &[std::ffi::c_char]) -> String {
    // SAFETY: the library ends its texts with NUL, inside the array.
    unsafe { CStr::from_ptr(bytes.as_ptr()) }
        .to_string_lossy()
        .into_owned()
}

fn c_string(text: &str) -> Result<CString> {
    CString::new(text).map_err(|_| Error {
        code: sys::RP_ERR_INVALID,
        retryable: false,
        message: format!("a text holds a NUL: {text:?}"),
    })
}

fn milliseconds(timeout: Option<Duration>) -> i64 {
    timeout.map_or(-1, |t| t.as_millis().min(i64::MAX as u128) as i64)
}

/// A node's place in a completed round.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    pub round: u64,
    pub rank: i32,
    pub world_size: i32,
    pub store_addr: String,
    pub store_port: i32,
}

/// One node of a run. One that is dropped without `shutdown` counts as lost.
#[derive(Debug)]
pub struct Member(sys::rp_member);

impl Member {
    pub fn open(endpoint: &str, run_id: &str, min: i32, max: i32) -> Result<Self> {
        let (endpoint, run_id) = (c_string(endpoint)?, c_string(run_id)?);
        let config = sys::rp_member_config {
            struct_size: std::mem::size_of::<sys::rp_member_config>(),
            run_id: run_id.as_ptr(),
            endpoint: endpoint.as_ptr(),
            min_nodes: min,
            max_nodes: max,
            ..zeros!()
        };
        let mut member = sys::rp_member::default();
        // SAFETY: the pointers live until the call has returned, which copies what it keeps.
        call(|err| unsafe { sys::rp_member_open(&config, &mut member, err) })?;
        Ok(Self(member))
    }

    /// Joins the next round and waits for this node's place in it.
    pub fn next(&self) -> Result<Place> {
        let mut outcome = sys::rp_outcome {
            struct_size: std::mem::size_of::<sys::rp_outcome>(),
            ..zeros!()
        };
        // SAFETY: as above.
        call(|err| unsafe { sys::rp_member_next(self.0, -1, &mut outcome, err) })?;
        Ok(Place {
            round: outcome.round,
            rank: outcome.rank,
            world_size: outcome.world_size,
            store_addr: text(&outcome.store_addr),
            store_port: outcome.store_port,
        })
    }

    /// Waits for something to look at again; false if there was nothing in that time.
    pub fn wait(&self, timeout: Option<Duration>) -> Result<bool> {
        // SAFETY: a handle is only a number; a closed one is an error.
        call(|err| unsafe { sys::rp_member_wait(self.0, milliseconds(timeout), err) })
    }

    /// Above 0 if the nodes have to regroup, by another `next`.
    pub fn nodes_waiting(&self) -> Result<i32> {
        let mut count = 0;
        // SAFETY: as above.
        call(|err| unsafe { sys::rp_member_nodes_waiting(self.0, &mut count, err) })?;
        Ok(count)
    }

    /// Tells that this node's work has succeeded.
    pub fn finish(&self) -> Result<()> {
        // SAFETY: as above.
        call(|err| unsafe { sys::rp_member_finish(self.0, -1, err) }).map(drop)
    }

    /// Ends this node's part in the run; `ending` is one of RP_END_*.
    pub fn shutdown(self, ending: i32, reason: &str) -> Result<()> {
        let reason = c_string(reason)?;
        // SAFETY: as above.
        call(|err| unsafe { sys::rp_member_shutdown(self.0, ending, reason.as_ptr(), -1, err) })
            .map(drop)
    }
}

impl Drop for Member {
    fn drop(&mut self) {
        // SAFETY: as above.
        unsafe { sys::rp_member_close(self.0, std::ptr::null_mut()) };
    }
}

/// A key-value store.
#[derive(Debug)]
pub struct Store(sys::rp_store);

impl Store {
    /// A server of TCPStore, such as the store of a round.
    pub fn connect(host: &str, port: i32, timeout: Duration) -> Result<Self> {
        let host = c_string(host)?;
        let config = sys::rp_store_config {
            struct_size: std::mem::size_of::<sys::rp_store_config>(),
            host: host.as_ptr(),
            port,
            ..zeros!()
        };
        let mut store = sys::rp_store::default();
        let limit = milliseconds(Some(timeout));
        // SAFETY: as in Member::open.
        call(|err| unsafe { sys::rp_store_connect(&config, limit, &mut store, err) })?;
        Ok(Self(store))
    }

    /// A store in the memory of this process.
    pub fn hash() -> Result<Self> {
        let mut store = sys::rp_store::default();
        // SAFETY: as above.
        call(|err| unsafe { sys::rp_store_open_hash(&mut store, err) })?;
        Ok(Self(store))
    }

    pub fn set(&self, key: &[u8], value: &[u8], timeout: Duration) -> Result<()> {
        let limit = milliseconds(Some(timeout));
        // SAFETY: the lengths are those of the slices, which the call copies.
        call(|err| unsafe {
            sys::rp_store_set(
                self.0,
                key.as_ptr().cast(),
                key.len(),
                value.as_ptr().cast(),
                value.len(),
                limit,
                err,
            )
        })
        .map(drop)
    }

    pub fn get(&self, key: &[u8], timeout: Duration) -> Result<Vec<u8>> {
        let limit = milliseconds(Some(timeout));
        let mut value = sys::rp_buffer {
            data: std::ptr::null_mut(),
            len: 0,
        };
        // SAFETY: as above.
        call(|err| unsafe {
            sys::rp_store_get(
                self.0,
                key.as_ptr().cast(),
                key.len(),
                limit,
                &mut value,
                err,
            )
        })?;
        // SAFETY: the library handed out `len` bytes, which are freed once.
        let copy =
            unsafe { std::slice::from_raw_parts(value.data.cast::<u8>(), value.len) }.to_vec();
        unsafe { sys::rp_buffer_free(&mut value) };
        Ok(copy)
    }

    /// Waits until `world_size` have called it with this key.
    pub fn barrier(&self, key: &[u8], world_size: i64, timeout: Duration) -> Result<()> {
        let limit = milliseconds(Some(timeout));
        // SAFETY: as above.
        call(|err| unsafe {
            sys::rp_store_barrier(
                self.0,
                key.as_ptr().cast(),
                key.len(),
                world_size,
                limit,
                err,
            )
        })
        .map(drop)
    }
}

impl Drop for Store {
    fn drop(&mut self) {
        // SAFETY: as above.
        unsafe { sys::rp_store_close(self.0, std::ptr::null_mut()) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_and_errors() {
        let store = Store::hash().unwrap();
        store.set(b"k", b"a\0b", Duration::from_secs(5)).unwrap();
        assert_eq!(store.get(b"k", Duration::from_secs(5)).unwrap(), b"a\0b");
        let late = store.get(b"never", Duration::from_millis(10)).unwrap_err();
        assert_eq!(late.code, sys::RP_ERR_TIMEOUT);
        assert!(late.message.contains("time"), "{late}");
        let bad = Member::open("", "run", 3, 2).unwrap_err();
        assert_eq!(bad.code, sys::RP_ERR_INVALID);
        assert_eq!(
            Member::open("a\0b", "run", 1, 1).unwrap_err().code,
            sys::RP_ERR_INVALID
        );
    }
}

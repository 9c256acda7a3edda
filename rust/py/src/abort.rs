//! A flag that C code can poll without the interpreter.
//!
//! ggml asks its abort callback several hundred times per token. Answered from Python each question
//! would take the GIL, so the callback is this function and its answer one atomic load.

use std::ffi::c_void;
use std::sync::atomic::{AtomicBool, Ordering};

use pyo3::prelude::*;

/// Reads the flag behind `flag`; a null pointer is "do not abort".
extern "C" fn is_raised(flag: *mut c_void) -> bool {
    // SAFETY: `flag` is null or `AbortFlag.data`, the address of a boxed atomic that its owner keeps
    // alive for as long as C code may call this.
    unsafe { flag.cast::<AtomicBool>().as_ref() }.is_some_and(|flag| flag.load(Ordering::Relaxed))
}

/// See `_core.pyi`.
#[pyclass(frozen, module = "agentkit_fast._core")]
pub struct AbortFlag {
    // Boxed, so that the address stays the same wherever Python moves the object.
    raised: Box<AtomicBool>,
}

#[pymethods]
impl AbortFlag {
    #[new]
    fn new() -> Self {
        Self {
            raised: Box::new(AtomicBool::new(false)),
        }
    }

    fn set(&self) {
        self.raised.store(true, Ordering::Relaxed);
    }

    fn clear(&self) {
        self.raised.store(false, Ordering::Relaxed);
    }

    #[getter]
    fn raised(&self) -> bool {
        self.raised.load(Ordering::Relaxed)
    }

    #[getter]
    fn callback(&self) -> usize {
        is_raised as *const () as usize
    }

    #[getter]
    fn data(&self) -> usize {
        std::ptr::from_ref::<AtomicBool>(&self.raised) as usize
    }
}

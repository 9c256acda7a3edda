//! One token through llama.cpp without ctypes, whose objects the model's pass has just driven out of the caches.

use std::ffi::c_void;
use std::ptr;

use pyo3::exceptions::PyValueError;
use pyo3::prelude::*;

/// `llama_batch` of llama.h. `llama.py` compares sizes and offsets with the binding's before it uses this.
#[repr(C)]
struct Batch {
    n_tokens: i32,
    token: *mut i32,
    embd: *mut f32,
    pos: *mut i32,
    n_seq_id: *mut i32,
    seq_id: *mut *mut i32,
    logits: *mut i8,
}

type Decode = unsafe extern "C" fn(*mut c_void, Batch) -> i32;
type LogitsAt = unsafe extern "C" fn(*mut c_void, i32) -> *mut f32;

/// See `_core.pyi`.
#[pyclass(frozen, module = "agentkit_fast._core")]
pub struct LlamaStep {
    context: usize,
    decode: Decode,
    logits: LogitsAt,
}

#[pymethods]
impl LlamaStep {
    #[new]
    #[pyo3(signature = (*, context, decode, logits))]
    fn new(context: usize, decode: usize, logits: usize) -> PyResult<Self> {
        if context == 0 || decode == 0 || logits == 0 {
            return Err(PyValueError::new_err("an address is missing"));
        }
        // SAFETY: not null, and whoever makes this vouches that they are llama.cpp's functions of these types.
        let (decode, logits) = unsafe {
            (
                std::mem::transmute::<usize, Decode>(decode),
                std::mem::transmute::<usize, LogitsAt>(logits),
            )
        };
        Ok(Self {
            context,
            decode,
            logits,
        })
    }

    #[classattr]
    fn batch_layout() -> Vec<usize> {
        vec![
            std::mem::offset_of!(Batch, n_tokens),
            std::mem::offset_of!(Batch, token),
            std::mem::offset_of!(Batch, embd),
            std::mem::offset_of!(Batch, pos),
            std::mem::offset_of!(Batch, n_seq_id),
            std::mem::offset_of!(Batch, seq_id),
            std::mem::offset_of!(Batch, logits),
            size_of::<Batch>(),
        ]
    }

    fn decode(&self, py: Python<'_>, token: i32, position: i32, sequence: i32) -> i32 {
        let (context, decode) = (self.context, self.decode);
        py.detach(move || {
            let (mut token, mut pos, mut seq) = (token, position, sequence);
            let (mut count, mut output) = (1_i32, 1_i8);
            let mut sequences = ptr::from_mut(&mut seq);
            let batch = Batch {
                n_tokens: 1,
                token: &raw mut token,
                embd: ptr::null_mut(),
                pos: &raw mut pos,
                n_seq_id: &raw mut count,
                seq_id: &raw mut sequences,
                logits: &raw mut output,
            };
            // SAFETY: the context lives for as long as its owner keeps this, one thread at a time calls with it,
            // and the arrays of one element outlive the call.
            unsafe { decode(context as *mut c_void, batch) }
        })
    }

    fn logits(&self, py: Python<'_>, index: i32) -> usize {
        let (context, logits) = (self.context, self.logits);
        // SAFETY: as above; without the GIL, since the function waits for a GPU where one computes.
        py.detach(move || unsafe { logits(context as *mut c_void, index) } as usize)
    }
}

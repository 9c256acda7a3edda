//! A buffer for text on its way into a `str`.
//!
//! The stable ABI cannot fill a `str` in place, so new text is written here and copied by Python. Each thread keeps its
//! buffer: the system gives a new large one page by page, and that takes longer than filling it.

use std::cell::Cell;

/// Larger buffers go back to the system.
const KEPT: usize = 4 << 20;

thread_local! {
    static BUFFER: Cell<String> = const { Cell::new(String::new()) };
}

/// Calls `with` with an empty buffer. It may call Python, and so come here again: then it gets a new one.
pub fn scratch<T>(with: impl FnOnce(&mut String) -> T) -> T {
    let mut buffer = BUFFER.take();
    let value = with(&mut buffer);
    if buffer.capacity() <= KEPT {
        buffer.clear();
        BUFFER.set(buffer);
    }
    value
}

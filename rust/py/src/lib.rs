//! Python face of `agentkit-core`. One file a concern; each only converts arguments, calls the core
//! and maps errors.

use pyo3::prelude::*;

mod gguf;
mod shape;
mod text_arg;
mod tokens;

#[pymodule]
mod _core {
    use super::*;

    #[pymodule_export]
    use crate::gguf::GgufHeader;
    #[pymodule_export]
    use crate::shape::{Transcript, WindowHandle};
    #[pymodule_export]
    use crate::text_arg::repair_surrogates;
    #[pymodule_export]
    use crate::tokens::chars_by_four;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))?;
        // Benchmarks refuse a debug build, and importing one warns.
        module.add("DEBUG_BUILD", cfg!(debug_assertions))
    }
}

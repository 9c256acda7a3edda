//! How a Python `int` of any size comes in where a small one is meant.

use pyo3::exceptions::{PyOverflowError, PyValueError};
use pyo3::prelude::*;

/// A count. Negative or enormous ints are a `ValueError`, as for any other wrong value.
#[derive(Clone, Copy)]
pub struct Count(pub usize);

impl<'a, 'py> FromPyObject<'a, 'py> for Count {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        match object.extract::<usize>() {
            Ok(count) => Ok(Self(count)),
            Err(error) if error.is_instance_of::<PyOverflowError>(object.py()) => {
                Err(PyValueError::new_err(if object.lt(0)? {
                    "a count must not be negative"
                } else {
                    "a count is too large; use one below 2**63"
                }))
            }
            Err(error) => Err(error),
        }
    }
}

/// A limit: below 0 is 0, beyond the largest is the largest.
pub struct Limit(pub usize);

impl<'a, 'py> FromPyObject<'a, 'py> for Limit {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Self> {
        match object.extract::<usize>() {
            Ok(limit) => Ok(Self(limit)),
            Err(error) if error.is_instance_of::<PyOverflowError>(object.py()) => {
                Ok(Self(if object.lt(0)? { 0 } else { usize::MAX }))
            }
            Err(error) => Err(error),
        }
    }
}

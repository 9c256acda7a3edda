//! How far two lists of values are the same: for caches of what was made of a growing list.

use pyo3::intern;
use pyo3::prelude::*;
use pyo3::types::{PyBool, PyDict, PyFloat, PyInt, PyList, PyString, PyTuple};

/// A value nested deeper is not the same as any.
const DEPTH: usize = 100;

/// Whether two values show the same everywhere: types and the order of keys included, which `==` forgives.
fn same(left: &Bound<'_, PyAny>, right: &Bound<'_, PyAny>, depth: usize) -> PyResult<bool> {
    // Most texts are the very objects of the last time.
    if left.is(right) && (left.is_exact_instance_of::<PyString>() || left.is_none()) {
        return Ok(true);
    }
    if depth > DEPTH || left.get_type_ptr() != right.get_type_ptr() {
        return Ok(false);
    }
    if left.is_exact_instance_of::<PyString>()
        || left.is_exact_instance_of::<PyInt>()
        || left.is_exact_instance_of::<PyBool>()
        || left.is_none()
    {
        return left.eq(right);
    }
    if let (Ok(left), Ok(right)) = (left.cast_exact::<PyDict>(), right.cast_exact::<PyDict>()) {
        if left.len() != right.len() {
            return Ok(false);
        }
        for ((name, value), (other_name, other)) in left.iter().zip(right.iter()) {
            if !same(&name, &other_name, depth + 1)? || !same(&value, &other, depth + 1)? {
                return Ok(false);
            }
        }
        return Ok(true);
    }
    if let (Ok(left), Ok(right)) = (left.cast_exact::<PyList>(), right.cast_exact::<PyList>()) {
        return all_same(left.iter(), right.iter(), depth);
    }
    if let (Ok(left), Ok(right)) = (left.cast_exact::<PyTuple>(), right.cast_exact::<PyTuple>()) {
        return all_same(left.iter(), right.iter(), depth);
    }
    if left.is_exact_instance_of::<PyFloat>() {
        let (left, right): (f64, f64) = (left.extract()?, right.extract()?);
        return Ok(left.to_bits() == right.to_bits());
    }
    // A msgspec struct, such as `Message`.
    let py = left.py();
    let Ok(fields) = left
        .get_type()
        .getattr(intern!(py, "__struct_fields__"))
        .and_then(|fields| Ok(fields.cast_into::<PyTuple>()?))
    else {
        return Ok(false);
    };
    for field in fields.iter() {
        let name = field.cast::<PyString>()?;
        if !same(&left.getattr(name)?, &right.getattr(name)?, depth + 1)? {
            return Ok(false);
        }
    }
    Ok(true)
}

fn all_same<'py>(
    mut left: impl ExactSizeIterator<Item = Bound<'py, PyAny>>,
    mut right: impl ExactSizeIterator<Item = Bound<'py, PyAny>>,
    depth: usize,
) -> PyResult<bool> {
    if left.len() != right.len() {
        return Ok(false);
    }
    for (left, right) in left.by_ref().zip(right.by_ref()) {
        if !same(&left, &right, depth + 1)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// How many items two lists have in common from their beginning on.
///
/// Plain values, dicts, lists, tuples and msgspec structs are compared with all that is in them; other
/// objects, which may say something else at any time, count as different.
#[pyfunction]
pub fn same_beginning(left: &Bound<'_, PyList>, right: &Bound<'_, PyList>) -> PyResult<usize> {
    let mut count = 0;
    for (left, right) in left.iter().zip(right.iter()) {
        if !same(&left, &right, 0)? {
            break;
        }
        count += 1;
    }
    Ok(count)
}

//! How far two lists of values are the same: for caches of what was made of a growing list.

use pyo3::ffi;
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyDict, PyFloat, PyList, PyTuple};

/// A value nested deeper is not the same as any.
const DEPTH: usize = 100;

/// A value that somebody else holds: nothing is done here that could make that end.
type Held = *mut ffi::PyObject;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Glance {
    Same,
    Other,
    /// Holds what takes more than a look.
    Unsure,
}

impl From<bool> for Glance {
    fn from(same: bool) -> Self {
        if same { Self::Same } else { Self::Other }
    }
}

/// Compares dicts, lists, tuples and plain values without a handle on anything in them.
///
/// A kept value is a copy: where the very object was given, it is one that cannot change.
///
/// # Safety
///
/// Both are alive.
unsafe fn glance(given: Held, kept: Held, depth: usize) -> Glance {
    if given == kept {
        return Glance::Same;
    }
    if depth > DEPTH {
        return Glance::Other;
    }
    // SAFETY: both are alive and hold what is in them. Nothing here runs code of Python's, makes an object that
    // the collector watches or gives a reference back, so that they stay as they are: only plain values of the
    // same type are compared by their own function.
    unsafe {
        if ffi::PyTuple_CheckExact(kept) != 0 {
            return glance_at_parts(given, kept, depth);
        }
        if ffi::Py_TYPE(given) != ffi::Py_TYPE(kept) {
            return Glance::Other;
        }
        if ffi::PyUnicode_CheckExact(given) != 0 || ffi::PyLong_CheckExact(given) != 0 {
            return equal(given, kept).into();
        }
        if ffi::PyList_CheckExact(given) == 0 {
            return Glance::Unsure;
        }
        let size = ffi::PyList_Size(given);
        if size != ffi::PyList_Size(kept) {
            return Glance::Other;
        }
        for place in 0..size {
            let item = ffi::PyList_GetItem(given, place);
            let found = glance(item, ffi::PyList_GetItem(kept, place), depth + 1);
            if found != Glance::Same {
                return found;
            }
        }
    }
    Glance::Same
}

/// # Safety
///
/// Both are alive; `kept` is a tuple of a type and what is in an object of that type.
unsafe fn glance_at_parts(given: Held, kept: Held, depth: usize) -> Glance {
    // SAFETY: as in `glance`, from where this is called.
    unsafe {
        let size = ffi::PyTuple_Size(kept);
        if size < 1 || ffi::Py_TYPE(given).cast() != ffi::PyTuple_GetItem(kept, 0) {
            return Glance::Other;
        }
        if ffi::PyDict_CheckExact(given) != 0 {
            if 2 * ffi::PyDict_Size(given) + 1 != size {
                return Glance::Other;
            }
            let (mut place, mut part) = (0, 1);
            let (mut key, mut value) = (std::ptr::null_mut(), std::ptr::null_mut());
            while ffi::PyDict_Next(given, &raw mut place, &raw mut key, &raw mut value) != 0 {
                for item in [key, value] {
                    let found = glance(item, ffi::PyTuple_GetItem(kept, part), depth + 1);
                    if found != Glance::Same {
                        return found;
                    }
                    part += 1;
                }
            }
            return Glance::Same;
        }
        if ffi::PyTuple_CheckExact(given) == 0 {
            return Glance::Unsure;
        }
        if ffi::PyTuple_Size(given) + 1 != size {
            return Glance::Other;
        }
        for part in 1..size {
            let item = ffi::PyTuple_GetItem(given, part - 1);
            let found = glance(item, ffi::PyTuple_GetItem(kept, part), depth + 1);
            if found != Glance::Same {
                return found;
            }
        }
    }
    Glance::Same
}

/// # Safety
///
/// Both are texts or whole numbers, alive and of the same type.
unsafe fn equal(given: Held, kept: Held) -> bool {
    // SAFETY: by this function's contract; their comparison gives one of two objects that live for ever.
    unsafe {
        let outcome = ffi::PyObject_RichCompareBool(given, kept, ffi::Py_EQ);
        if outcome < 0 {
            ffi::PyErr_Clear();
        }
        outcome == 1
    }
}

/// The same with handles on everything, and for floats and msgspec structs too, such as `Message`.
fn same(given: &Bound<'_, PyAny>, kept: &Bound<'_, PyAny>, depth: usize) -> PyResult<bool> {
    // SAFETY: both are alive.
    match unsafe { glance(given.as_ptr(), kept.as_ptr(), depth) } {
        Glance::Same => return Ok(true),
        Glance::Other => return Ok(false),
        Glance::Unsure => {}
    }
    if let (Ok(given), Ok(kept)) = (given.cast_exact::<PyFloat>(), kept.cast_exact::<PyFloat>()) {
        return Ok(given.value().to_bits() == kept.value().to_bits());
    }
    if let (Ok(given), Ok(kept)) = (given.cast_exact::<PyList>(), kept.cast_exact::<PyList>()) {
        return all_same(given.iter(), kept.iter(), depth);
    }
    let kind = given.get_type();
    let Ok(kept) = kept.cast_exact::<PyTuple>() else {
        return Ok(false);
    };
    if kept.is_empty() || !kept.get_item(0)?.is(&kind) {
        return Ok(false);
    }
    let parts = kept.iter().skip(1);
    if let Ok(given) = given.cast_exact::<PyDict>() {
        let flat: Vec<_> = given.iter().flat_map(|(key, value)| [key, value]).collect();
        return all_same(flat.into_iter(), parts, depth);
    }
    if let Ok(given) = given.cast_exact::<PyTuple>() {
        return all_same(given.iter(), parts, depth);
    }
    static AS_TUPLE: PyOnceLock<Py<PyAny>> = PyOnceLock::new();
    let fields = AS_TUPLE
        .import(given.py(), "msgspec.structs", "astuple")?
        .call1((given,))?
        .cast_into::<PyTuple>()?;
    all_same(fields.iter(), parts, depth)
}

fn all_same<'py>(
    given: impl ExactSizeIterator<Item = Bound<'py, PyAny>>,
    kept: impl ExactSizeIterator<Item = Bound<'py, PyAny>>,
    depth: usize,
) -> PyResult<bool> {
    if given.len() != kept.len() {
        return Ok(false);
    }
    for (given, kept) in given.zip(kept) {
        if !same(&given, &kept, depth + 1)? {
            return Ok(false);
        }
    }
    Ok(true)
}

/// How many items two lists have in common from their beginning on.
///
/// `kept` holds copies: plain values, lists of their own, and for a dict, a tuple or a msgspec struct a tuple of
/// the type and what is in it. All of it is compared, types and the order of keys included, which `==` forgives;
/// other objects, which may say something else at any time, count as different.
#[pyfunction]
pub fn same_beginning(given: &Bound<'_, PyList>, kept: &Bound<'_, PyList>) -> PyResult<usize> {
    let mut count = 0;
    while count < given.len().min(kept.len()) {
        let place = count as isize;
        // SAFETY: the place is within both lists, which hold their items while nothing else is done.
        let found = unsafe {
            glance(
                ffi::PyList_GetItem(given.as_ptr(), place),
                ffi::PyList_GetItem(kept.as_ptr(), place),
                0,
            )
        };
        let equal = match found {
            Glance::Same => true,
            Glance::Other => false,
            Glance::Unsure => same(&given.get_item(count)?, &kept.get_item(count)?, 0)?,
        };
        if !equal {
            break;
        }
        count += 1;
    }
    Ok(count)
}

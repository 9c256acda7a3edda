"""The Rust core, as Python sees it. This stub is its documentation."""

import os
from typing import Any, final

DEBUG_BUILD: bool
"""True in an unoptimized build; benchmarks refuse it."""

__version__: str

@final
class GgufHeader:
    """The metadata of a GGUF file. Only the header is read, however large the file is.

    `OSError` where the file cannot be read, `ModelLoadError` (also an `OSError`) where it is no GGUF
    file of version 2 or 3 or a damaged one.
    """

    def __new__(cls, path: str | os.PathLike[str]) -> GgufHeader: ...
    @property
    def big_endian(self) -> bool:
        """True where the file was written for a big-endian machine."""

    @property
    def byte_len(self) -> int:
        """Bytes from the start of the file to the end of the tensor descriptions."""

    @property
    def tensor_count(self) -> int:
        """Tensors the file describes; 0 where it holds a vocabulary only."""

    @property
    def version(self) -> int:
        """2 or 3."""

    def get(self, key: str, default: Any = None) -> Any:
        """The value of `key`: `int`, `float`, `bool`, `str`, or a list of these; `default` where absent.

        Bytes that are not UTF-8 become U+FFFD.
        """

    def keys(self) -> list[str]:
        """Every key, in the file's order."""

def chars_by_four(text: str) -> int:
    """Tokens in `text` by the rule "four UTF-8 bytes a token, rounded up"."""

def repair_surrogates(text: str) -> str:
    """`text` itself where it holds no surrogates; else pairs joined and each lone one as U+FFFD."""

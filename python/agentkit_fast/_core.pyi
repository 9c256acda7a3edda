"""The Rust core, as Python sees it. This stub is its documentation."""

import os
from collections.abc import Callable
from typing import Any, Self, final

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

@final
class Transcript:
    """A session's history as units (what is shown, shortened or folded together), and its windows.

    `options`: see `agentkit_fast.shaping.policy.core_options`. `count`: a counter's bound `count`, asked once
    a text; `None` counts four bytes a token in Rust. After an exception the object is to be thrown away.
    """

    def __new__(cls, options: dict[str, Any], count: Callable[[str], int] | None = None) -> Self: ...
    def taken(self) -> int:
        """How many entries were taken in."""

    def reset(self, reason: str) -> None:
        """Forget the history (`"late"`, `"gone"` or another reason), to be given whole again."""

    def ingest(self, entries: bytes) -> bool:
        """Take in new entries (a MessagePack array of them). False: some sort before the end of what is
        there, and nothing was taken in."""

    def set_fixed(self, system: str, tools_tokens: int) -> None:
        """The system prompt, and what the tools' schemas cost."""

    def window(self) -> WindowHandle:
        """The window as things stand."""

@final
class WindowHandle:
    """What one build gave; it stays as it is while the transcript goes on."""

    def __len__(self) -> int: ...
    @property
    def tokens(self) -> int: ...
    @property
    def stable_prefix(self) -> int: ...
    @property
    def prefix_tokens(self) -> int: ...
    @property
    def break_reason(self) -> str: ...
    def message_json(self, index: int) -> bytes:
        """One message, as wire JSON."""

    def message_tokens(self, index: int) -> int: ...
    def to_json(self) -> bytes:
        """The `messages` array of a request."""

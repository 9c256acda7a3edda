"""llama.cpp through llama-cpp-python's low-level binding. The only module that touches it.

Everything here is a thin, typed wrapper; what a release may change is in this one place and covered by
`tests/test_local_llama.py`. No object here is safe to use from two threads at once, but for `Vocab`.
"""

from __future__ import annotations

import ctypes
import logging
import math
import os
import re
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agentkit_fast._core import AbortFlag, GgufHeader, LlamaStep
from agentkit_fast.errors import AgentkitError, ModelLoadError, RunnerError
from agentkit_fast.runners._local.interrupts import interrupts_wait

__all__ = [
    "ABORTED",
    "NO_ROOM",
    "Context",
    "Grammar",
    "LlamaTokenizer",
    "Model",
    "Vocab",
    "binding",
]

Ids = NDArray[np.int32]

log = logging.getLogger("agentkit_fast.llama_cpp")

# What `Context.decode` returns beside 0.
NO_ROOM = 1
ABORTED = 2

_OLDEST = (0, 3, 36)
_NEEDED = (
    "llama_decode",
    "llama_get_logits_ith",
    "llama_get_memory",
    "llama_init_from_model",
    "llama_memory_seq_cp",
    "llama_memory_seq_pos_max",
    "llama_memory_seq_pos_min",
    "llama_memory_seq_rm",
    "llama_model_load_from_file",
    "llama_perf_context",
    "llama_sampler_accept",
    "llama_sampler_apply",
    "llama_sampler_clone",
    "llama_sampler_init_grammar",
    "llama_set_abort_callback",
    "llama_state_seq_get_data",
    "llama_state_seq_set_data",
    "llama_synchronize",
    "llama_token_to_piece",
    "llama_tokenize",
)
_CONTROL, _USER_DEFINED, _UNKNOWN, _BYTE = 8, 16, 2, 32

_lock = threading.Lock()
_binding: Any = None
_log_sink: Any = None
_decoding = threading.local()
_load_errors: list[str] = []
# ggml's log levels; 5 continues the line before. (The binding's own table still has an older order.)
_LEVELS = {1: logging.DEBUG, 2: logging.INFO, 3: logging.WARNING, 4: logging.ERROR}
# Without a handler anywhere, `logging` would print warnings to the terminal.
logging.getLogger("agentkit_fast").addHandler(logging.NullHandler())


def binding() -> Any:
    """The low-level module, checked and set up: `ImportError` says what is missing and what to do."""
    global _binding  # noqa: PLW0603 - one binding a process, as it is one shared library
    with _lock:
        if _binding is None:
            _binding = _open()
        return _binding


def _open() -> Any:
    try:
        import llama_cpp
        from llama_cpp import llama_cpp as lib
    except ImportError as error:
        raise ImportError(
            "LocalRunner needs llama-cpp-python: pip install 'agentkit-fast[local]'."
        ) from error
    found = str(getattr(llama_cpp, "__version__", "0"))
    version = tuple(int(part) for part in re.findall(r"\d+", found)[:3])
    if not _OLDEST <= version < (0, 4):
        raise ImportError(
            f"llama-cpp-python {found} is installed; this release works with 0.3.36 or a later 0.3. "
            "Install that: pip install 'llama-cpp-python>=0.3.36,<0.4'."
        )
    missing = [name for name in _NEEDED if not hasattr(lib, name)]
    if missing:
        raise ImportError(f"llama-cpp-python {found} lacks {', '.join(missing)}; install 0.3.36.")
    batch = lib.llama_batch
    layout = [getattr(batch, name).offset for name, *_ in batch._fields_] + [ctypes.sizeof(batch)]
    if layout != LlamaStep.batch_layout:
        raise ImportError(
            f"llama-cpp-python {found} lays out llama_batch as {layout}, not {LlamaStep.batch_layout}; install 0.3.36."
        )
    _send_chatter_to_logging(lib)
    lib.llama_backend_init()
    return lib


def version() -> str:
    """llama-cpp-python's."""
    import llama_cpp

    return str(llama_cpp.__version__)


def _send_chatter_to_logging(lib: Any) -> None:
    global _log_sink  # noqa: PLW0603 - C code keeps calling it, so it must never be collected
    last = [logging.INFO]

    @lib.llama_log_callback  # type: ignore[untyped-decorator]  # ctypes.CFUNCTYPE
    def sink(level: int, text: bytes, _data: object) -> None:
        known = _LEVELS.get(level)
        if known is not None:
            last[0] = known
        message = (text or b"").decode("utf-8", "replace").rstrip("\n")
        if message.strip(" ."):
            if last[0] >= logging.ERROR:
                _load_errors.append(message)
                del _load_errors[:-8]
            flag = getattr(_decoding, "flag", None)
            # llama.cpp is talkative at "info", and takes an abort that was asked for as an error.
            detail = last[0] <= logging.INFO or (flag is not None and flag.raised)
            log.log(logging.DEBUG if detail else last[0], "%s", message)

    _log_sink = sink
    lib.llama_log_set(sink, ctypes.c_void_p(0))


def json_schema_to_gbnf(schema: str) -> str:
    """llama.cpp's grammar for a JSON Schema (as JSON text), by the binding's converter."""
    from llama_cpp.llama_grammar import json_schema_to_gbnf as convert

    return str(convert(schema))


class Vocab:
    """A model's vocabulary, by id. Safe from any thread."""

    def __init__(self, lib: Any, model: Any) -> None:
        self._lib = lib
        self.pointer = lib.llama_model_get_vocab(model)
        self.size = int(lib.llama_vocab_n_tokens(self.pointer))
        attributes = np.fromiter(
            (lib.llama_vocab_get_attr(self.pointer, token) for token in range(self.size)),
            dtype=np.int32,
            count=self.size,
        )
        self.control: NDArray[np.bool_] = (attributes & _CONTROL) != 0
        self.special: NDArray[np.bool_] = (attributes & (_CONTROL | _USER_DEFINED | _UNKNOWN)) != 0
        candidates = np.flatnonzero(self.special)
        self.eog = tuple(int(t) for t in candidates if lib.llama_vocab_is_eog(self.pointer, int(t)))
        for token in (lib.llama_vocab_eos(self.pointer), lib.llama_vocab_eot(self.pointer)):
            # llama.cpp has the last word: gpt-oss's `<|end|>` ends a message, not the reply.
            if token >= 0 and token not in self.eog and lib.llama_vocab_is_eog(self.pointer, token):
                self.eog += (int(token),)
        self.bos = int(lib.llama_vocab_bos(self.pointer))
        self.eos = int(lib.llama_vocab_eos(self.pointer))
        self.add_bos = bool(lib.llama_vocab_get_add_bos(self.pointer))
        # Ids that may never come out as text: control tokens that do not end the generation.
        banned = self.control.copy()
        banned[list(self.eog)] = False
        self.banned: NDArray[np.int64] = np.flatnonzero(banned).astype(np.int64)
        self._pieces: dict[int, bytes] = {}
        self._texts: dict[int, str | None] = {}
        self._first: tuple[NDArray[np.int64], NDArray[np.int16]] | None = None
        self._rooms = threading.local()

    def piece(self, token: int) -> bytes:
        """The bytes of one token, control tokens as their spelling."""
        piece = self._pieces.get(token)
        if piece is None:
            piece = self._pieces[token] = self._read_piece(token)
        return piece

    def text(self, token: int) -> str | None:
        """One token as text, nothing where its bytes are no whole characters."""
        try:
            return self._texts[token]
        except KeyError:
            piece = self.piece(token)
            try:
                text: str | None = piece.decode()
            except UnicodeDecodeError:
                text = None
            return self._texts.setdefault(token, text)

    def close(self) -> None:
        """Before the model goes: whoever still holds the vocabulary gets an error, not freed memory."""
        self.pointer = None

    def _open(self) -> Any:
        if self.pointer is None:
            raise RunnerError("This model is closed.")
        return self.pointer

    def _read_piece(self, token: int) -> bytes:
        # llama-cpp-python's own wrapper reads into 32 bytes and loses every longer piece (47 of SmolLM2's,
        # among them the newline with 32 blanks); a negative result here says how much room is needed.
        room = getattr(self._rooms, "room", None) or ctypes.create_string_buffer(256)
        while True:
            length = int(self._lib.llama_token_to_piece(self._open(), token, room, len(room), 0, True))
            if length >= 0:
                self._rooms.room = room
                return ctypes.string_at(room, length)
            room = ctypes.create_string_buffer(-length)

    def first_bytes(self) -> tuple[NDArray[np.int64], NDArray[np.int16]]:
        """For each byte the token that is that byte alone, or -1; for each token its first byte, 256 where a
        grammar cannot be asked by it (control tokens, empty ones)."""
        if self._first is None:
            singles = np.full(256, -1, dtype=np.int64)
            firsts = np.full(self.size, 256, dtype=np.int16)
            for token in range(self.size):
                piece = self.piece(token)
                if piece and not self.special[token]:
                    firsts[token] = piece[0]
                    if len(piece) == 1:
                        singles[piece[0]] = token
            self._first = singles, firsts
        return self._first

    def bytes_of(self, ids: Sequence[int] | Ids) -> bytes:
        """The bytes of many tokens."""
        return b"".join([self.piece(int(token)) for token in ids])

    def tokenize(self, text: bytes, *, parse_special: bool = False, add_special: bool = False) -> Ids:
        """llama.cpp's own tokenization."""
        room = len(text) + 16
        while True:
            out = np.empty(room, dtype=np.int32)
            pointer = out.ctypes.data_as(self._lib.llama_token_p)
            count = int(
                self._lib.llama_tokenize(
                    self._open(), text, len(text), pointer, room, add_special, parse_special
                )
            )
            if count >= 0:
                return out[:count].copy()
            room = -count

    def llguidance_tokenizer(self) -> Any:
        """This vocabulary for llguidance, which calls llama.cpp's tokenizer itself.

        llguidance brings a helper for this binding; it asks each token's kind by a deprecated name.
        """
        import llguidance

        tokens = [self.piece(token) for token in range(self.size)]
        for token in np.flatnonzero(self.special):
            piece = tokens[token]
            # 0xFF marks a token that no text spells: all but USER_DEFINED ones that look like text.
            if self.control[token] or (piece.startswith(b"<") and piece.endswith(b">")):
                tokens[token] = b"\xff" + piece
        tokenize = ctypes.cast(self._lib._lib.llama_tokenize, ctypes.c_void_p).value
        return llguidance.LLTokenizer.from_llamacpp(  # type: ignore[attr-defined]  # missing from its stub
            tokens=tokens,
            vocab_ptr=self.pointer,
            tokenize_fptr=tokenize,
            eos_token=list(self.eog),
            slices=None,
        )


class LlamaTokenizer:
    """llama.cpp's tokenizer with `GgufTokenizer`'s interface, for vocabularies that one does not know."""

    def __init__(self, vocab: Vocab) -> None:
        self._vocab = vocab
        ids = np.flatnonzero(vocab.special)
        self.special_tokens: dict[str, int] = {
            vocab.piece(int(token)).decode("utf-8", "replace"): int(token) for token in ids
        }
        self.bos_token = _text(vocab, vocab.bos)
        self.eos_token = _text(vocab, vocab.eos)

    def encode(self, text: str, *, parse_special: bool = False) -> Ids:
        return self._vocab.tokenize(text.encode("utf-8", "replace"), parse_special=parse_special)

    def decode(self, ids: Any) -> bytes:
        return self._vocab.bytes_of(ids)

    def count(self, text: str) -> int:
        return len(self.encode(text))


def _text(vocab: Vocab, token: int) -> str:
    return vocab.piece(token).decode("utf-8", "replace") if token >= 0 else ""


class Model:
    """A loaded GGUF. `ModelLoadError` says what is wrong with a file that cannot be used."""

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        vocab_only: bool = False,
        n_gpu_layers: int = 0,
        use_mmap: bool = True,
        use_mlock: bool = False,
        progress: Callable[[float], Any] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        lib = self._lib = binding()
        self.path = Path(os.fspath(path))
        _check_file(self.path)
        params = lib.llama_model_default_params()
        params.vocab_only = vocab_only
        params.n_gpu_layers = 0x7FFFFFFF if n_gpu_layers < 0 else n_gpu_layers
        if use_mmap and use_mlock:
            params.load_mode = lib.LLAMA_LOAD_MODE_MMAP_MLOCK
        elif use_mlock:
            params.load_mode = lib.LLAMA_LOAD_MODE_MLOCK
        elif use_mmap:
            params.load_mode = lib.LLAMA_LOAD_MODE_MMAP
        else:
            params.load_mode = lib.LLAMA_LOAD_MODE_NONE
        self._kept: list[Any] = []  # what C code points at
        # AMX kernels come with the "extra" buffer types. On virtual machines that announce AMX but do not
        # keep its registers, the first batch ends the process with an illegal instruction, so where the
        # build would use AMX the extra buffers are only used when asked for.
        params.use_extra_bufts = bool(
            (options or {}).get("use_extra_bufts", b"AMX_INT8 = 1" not in lib.llama_print_system_info())
        )
        self._apply(params, {k: v for k, v in (options or {}).items() if k != "use_extra_bufts"})
        raised: list[BaseException] = []
        del _load_errors[:]
        # Another user of llama.cpp in this process may have taken the log, and with it the reason of a failure.
        lib.llama_log_set(_log_sink, ctypes.c_void_p(0))
        try:
            with interrupts_wait() as interrupted:

                @lib.llama_progress_callback  # type: ignore[untyped-decorator]
                def on_progress(fraction: float, _data: object) -> bool:
                    try:
                        if progress is not None:
                            progress(float(fraction))
                    except BaseException as error:  # noqa: BLE001 - no exception crosses C: it is raised below
                        raised.append(error)
                    return not (raised or interrupted)  # false ends the loading

                params.progress_callback = on_progress
                self._kept.append(on_progress)
                self.pointer = lib.llama_model_load_from_file(os.fsencode(self.path), params)
            if raised:
                raise raised[0]
        except BaseException:
            self.close()
            raise
        if not self.pointer:
            raise ModelLoadError(_load_failure(self.path, list(_load_errors)))
        try:
            self.vocab = Vocab(lib, self.pointer)
            self.metadata = self._read_metadata()
        except BaseException:
            self.close()
            raise
        self.n_ctx_train = int(lib.llama_model_n_ctx_train(self.pointer))
        self.n_swa = int(lib.llama_model_n_swa(self.pointer))
        # A recurrent state cannot be taken back to an earlier token.
        self.rewinds = not (
            lib.llama_model_is_recurrent(self.pointer) or lib.llama_model_is_hybrid(self.pointer)
        )
        self.n_embd = int(lib.llama_model_n_embd(self.pointer))
        # An encoder, which sees all of a text at once: it gives embeddings and writes nothing.
        self.embeds_only = self.metadata.get(f"{self.architecture}.attention.causal") == "false"
        if lib.llama_model_has_encoder(self.pointer) and not self.embeds_only:
            self.close()
            raise ModelLoadError(
                f"{self.path} is an encoder-decoder model ({self.architecture}); LocalRunner runs decoders, and "
                "encoders for embeddings."
            )

    def _apply(self, params: Any, options: dict[str, Any]) -> None:
        lib = self._lib
        for name in ("split_mode", "main_gpu", "check_tensors"):
            if name in options:
                setattr(params, name, options.pop(name))
        split = options.pop("tensor_split", None)
        if split is not None:
            array = (ctypes.c_float * int(lib.llama_max_devices()))(*split)
            params.tensor_split = array
            self._kept.append(array)
        if options:
            raise TypeError(f"Unknown model option: {', '.join(sorted(options))}.")

    def _read_metadata(self) -> dict[str, str]:
        lib = self._lib
        found = {}
        for index in range(int(lib.llama_model_meta_count(self.pointer))):
            key = _meta(lib.llama_model_meta_key_by_index, self.pointer, index)
            found[key] = _meta(lib.llama_model_meta_val_str_by_index, self.pointer, index)
        return found

    @property
    def chat_template(self) -> str:
        """The GGUF's own template, or nothing."""
        text = self._lib.llama_model_chat_template(self.pointer, None)
        return text.decode("utf-8", "replace") if text else ""

    def kv_bytes_per_token(self) -> int:
        """What one token takes in an f16 cache: 2 bytes x (keys + values), summed over the layers.

        Layers with a recurrent state have no key-value heads and take nothing a token; where a sliding window bounds
        what some layers keep, this is what they take inside it.
        """
        heads, kv_heads = (
            self._per_layer("attention.head_count"),
            self._per_layer("attention.head_count_kv"),
        )
        total = 0
        for head, kv_head in zip(heads, kv_heads or heads, strict=False):
            width = self.n_embd // head if head else 0
            keys = self._number("attention.key_length", width)
            values = self._number("attention.value_length", width)
            total += kv_head * (keys + values) * 2
        return total

    def _number(self, key: str, default: int) -> int:
        try:
            return int(self.metadata[f"{self.architecture}.{key}"])
        except (KeyError, ValueError):
            return default

    def _per_layer(self, key: str) -> list[int]:
        """A figure that the file gives once, or for each layer; nothing where it has none."""
        layers = int(self._lib.llama_model_n_layer(self.pointer))
        # llama.cpp shows no arrays among its metadata, so the header is asked.
        try:
            found = GgufHeader(self.path).get(f"{self.architecture}.{key}")
        except (AgentkitError, OSError, ValueError):
            found = None
        if found is None:
            return []
        return [int(value) for value in found] if isinstance(found, list) else [int(found)] * layers

    @property
    def longest(self) -> int:
        """The longest text it can read at all; 0: no bound. Where positions are a table, llama.cpp ends the process
        beyond its end."""
        return self.n_ctx_train if self.embeds_only or self.architecture in _POSITION_TABLES else 0

    @property
    def architecture(self) -> str:
        return self.metadata.get("general.architecture", "")

    def close(self) -> None:
        if getattr(self, "pointer", None):
            vocab = getattr(self, "vocab", None)
            if vocab is not None:
                vocab.close()
            self._lib.llama_model_free(self.pointer)
            self.pointer = None


def _meta(read: Any, model: Any, index: int) -> str:
    size = 256
    while True:
        buffer = ctypes.create_string_buffer(size)
        length = int(read(model, index, buffer, size))
        if length < size:
            return buffer.value.decode("utf-8", "replace")
        size = length + 1


def _check_file(path: Path) -> None:
    try:
        with path.open("rb") as file:
            magic = file.read(4)
            size = os.fstat(file.fileno()).st_size
    except IsADirectoryError:
        raise ModelLoadError(f"{path} is a folder; give the .gguf file itself.") from None
    except FileNotFoundError:
        raise ModelLoadError(f"There is no file {path}; give the path of a GGUF model.") from None
    except OSError as error:
        raise ModelLoadError(f"{path} cannot be read: {error.strerror or error}.") from error
    if magic != b"GGUF":
        what = "is empty" if not magic else f"begins with {magic!r}, not with 'GGUF'"
        raise ModelLoadError(f"{path} is no GGUF model: it {what} ({size} bytes).")


def _load_failure(path: Path, said: list[str]) -> str:
    words = " ".join(said)
    if "unknown model architecture" in words:
        match = re.search(r"unknown model architecture: '([^']*)'", words)
        return (
            f"llama.cpp does not know the architecture of {path} ({match.group(1) if match else '?'}). "
            "A newer llama-cpp-python may."
        )
    if "file bounds" in words or "incomplete" in words or "failed to read" in words:
        return f"{path} is cut short or damaged ({path.stat().st_size} bytes). {_tail(said)}"
    return f"llama.cpp cannot load {path}. {_tail(said)}"


def _address(pointer: Any) -> int:
    """Of a C pointer or function, as a number."""
    return ctypes.cast(pointer, ctypes.c_void_p).value or 0


def _tail(said: list[str]) -> str:
    return f"llama.cpp says: {said[0].strip()}" if said else "llama.cpp gives no reason."


_POSITION_TABLES = ("gpt2", "starcoder")

_CONTEXT_OPTIONS = frozenset(
    {
        "rope_scaling_type",
        "rope_freq_base",
        "rope_freq_scale",
        "yarn_ext_factor",
        "yarn_attn_factor",
        "yarn_beta_fast",
        "yarn_beta_slow",
        "yarn_orig_ctx",
        "type_k",
        "type_v",
        "offload_kqv",
        "op_offload",
        "swa_full",
        "pooling_type",
        "attention_type",
    }
)


class Context:
    """A context of several sequences over one key-value cache.

    `n_cells` tokens fit in it, all sequences together. `flag` aborts a running `decode` from any thread
    (on a CPU: llama.cpp does not ask a GPU's computation, so there it takes effect after the batch).
    """

    def __init__(
        self,
        model: Model,
        *,
        n_cells: int,
        n_sequences: int,
        n_batch: int = 512,
        n_ubatch: int = 512,
        n_threads: int = 1,
        n_threads_batch: int = 1,
        flash_attn: bool | None = None,
        embeddings: bool = False,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        lib = self._lib = binding()
        self.model = model
        self.flag = AbortFlag()
        params = lib.llama_context_default_params()
        params.n_ctx = n_cells
        params.n_batch = n_batch
        params.n_ubatch = min(n_ubatch, n_batch)
        params.n_seq_max = n_sequences
        params.kv_unified = True
        params.n_threads = n_threads
        params.n_threads_batch = n_threads_batch
        params.embeddings = embeddings
        params.no_perf = False
        # llama.cpp's own default: where the backend has it. It skips cells of other sequences.
        params.flash_attn_type = {None: -1, False: 0, True: 1}[flash_attn]
        for name, value in (options or {}).items():
            if name not in _CONTEXT_OPTIONS:
                raise TypeError(f"Unknown context option: {name}.")
            setattr(params, name, value)
        self.swa_full = bool(params.swa_full)
        try:
            with interrupts_wait():
                self.pointer = lib.llama_init_from_model(model.pointer, params)
        except BaseException:
            self.close()
            raise
        if not self.pointer:
            raise ModelLoadError(
                f"llama.cpp cannot make a context of {n_cells} tokens for {model.path}; a smaller n_ctx "
                f"needs less memory. {_tail(list(_load_errors))}"
            )
        self._memory = lib.llama_get_memory(self.pointer)
        self.n_cells = int(lib.llama_n_ctx(self.pointer))
        self.n_batch = int(lib.llama_n_batch(self.pointer))
        self._callback = ctypes.cast(self.flag.callback, lib.ggml_abort_callback)
        lib.llama_set_abort_callback(self.pointer, self._callback, ctypes.c_void_p(self.flag.data))
        self._make_batch()

    def _make_batch(self) -> None:
        # The C arrays are numpy's, made once: filling them costs microseconds, where a Python loop over
        # 512 tokens costs 0.27 ms.
        lib = self._lib
        size = self.n_batch
        self._tokens = np.zeros(size, dtype=np.int32)
        self._positions = np.zeros(size, dtype=np.int32)
        self._counts = np.ones(size, dtype=np.int32)
        self._sequence = np.zeros(1, dtype=np.int32)
        self._sequences = np.full(size, self._sequence.ctypes.data, dtype=np.uintp)
        self._outputs = np.zeros(size, dtype=np.int8)
        batch = self._batch = lib.llama_batch()
        batch.token = self._tokens.ctypes.data_as(lib.llama_token_p)
        batch.embd = None
        batch.pos = self._positions.ctypes.data_as(ctypes.POINTER(ctypes.c_int32))
        batch.n_seq_id = self._counts.ctypes.data_as(ctypes.POINTER(ctypes.c_int32))
        batch.seq_id = self._sequences.ctypes.data_as(ctypes.POINTER(ctypes.POINTER(ctypes.c_int32)))
        batch.logits = self._outputs.ctypes.data_as(ctypes.POINTER(ctypes.c_int8))
        self._steps = np.arange(size, dtype=np.int32)
        self._views: dict[int, NDArray[np.float32]] = {}
        # A reply's tokens come one at a time, and then even ctypes is felt.
        self._step = LlamaStep(
            context=_address(self.pointer),
            decode=_address(lib._lib.llama_decode),
            logits=_address(lib._lib.llama_get_logits_ith),
        )

    def decode(self, ids: Sequence[int] | Ids, start: int, sequence: int, *, every: bool = False) -> int:
        """Evaluate at most `n_batch` tokens of `sequence` from position `start`; 0, `NO_ROOM` or `ABORTED`.

        Logits are kept of the last token, or with `every` of each. After `ABORTED` part of the batch may be
        in the cache: `truncate` to what was there before.
        """
        count = len(ids)
        if count == 1:
            _decoding.flag = self.flag
            return self._judged(self._step.decode(int(ids[0]), start, sequence), 1)
        self._tokens[:count] = ids
        np.add(self._steps[:count], start, out=self._positions[:count])
        self._sequence[0] = sequence
        self._outputs[:count] = 1 if every else 0
        self._outputs[count - 1] = 1
        self._batch.n_tokens = count
        _decoding.flag = self.flag
        return self._judged(int(self._lib.llama_decode(self.pointer, self._batch)), count)

    def _judged(self, result: int, count: int) -> int:
        if result not in (0, NO_ROOM, ABORTED):
            raise RunnerError(f"llama.cpp failed to evaluate {count} tokens (llama_decode gave {result}).")
        return result

    def logits(self, index: int = -1) -> NDArray[np.float32]:
        """Logits of the batch's token `index`: a view, good until the next `decode`."""
        address = self._step.logits(index)
        if not address:
            raise RunnerError("llama.cpp gives no logits: is this a model that only embeds?")
        # llama.cpp's buffer stays where it is, mostly.
        if address not in self._views:
            self._views.clear()
            memory: Any = (ctypes.c_float * self.model.vocab.size).from_address(address)
            self._views[address] = np.frombuffer(memory, dtype=np.float32)
        return self._views[address]

    def truncate(self, sequence: int, length: int) -> int:
        """Keep the first `length` tokens of `sequence`; how many are kept: none where the memory cannot
        go back there (recurrent states, a sliding window that has moved on)."""
        lib = self._lib
        if length > 0 and self.reaches(sequence, length):
            lib.llama_memory_seq_rm(self._memory, sequence, length, -1)
            if self.length(sequence) == length:
                return length
        lib.llama_memory_seq_rm(self._memory, sequence, -1, -1)
        return 0

    @property
    def rewinds(self) -> bool:
        """Whether every beginning of a sequence can be gone back to, also of one that was saved and restored.

        A saved state holds no more of a sliding window than its end needs, whatever the cache itself keeps.
        """
        return self.model.rewinds and not self.model.n_swa

    @property
    def rewinds_replies(self) -> bool:
        """Whether the tokens of the running reply can be taken back."""
        return self.model.rewinds and (not self.model.n_swa or self.swa_full)

    def reaches(self, sequence: int, length: int) -> bool:
        """Whether the cache holds all that is needed to go on after the first `length` tokens of `sequence`.

        llama.cpp itself says yes to a cut into a sliding window whose tokens are gone.
        """
        held = self.length(sequence)
        if held == length:
            return True
        if not self.model.rewinds or held < length:
            return False
        if not self.model.n_swa:
            return True
        first = int(self._lib.llama_memory_seq_pos_min(self._memory, sequence))
        return 0 <= first <= max(0, length - self.model.n_swa)

    def length(self, sequence: int) -> int:
        """Tokens of `sequence` in the cache."""
        return int(self._lib.llama_memory_seq_pos_max(self._memory, sequence)) + 1

    def copy(self, source: int, target: int, length: int) -> bool:
        """Make `target` share the first `length` tokens of `source`; false, and it is empty, where they are not all
        there. Costs no memory (a recurrent state: its own size, once one of the two goes on)."""
        lib = self._lib
        lib.llama_memory_seq_rm(self._memory, target, -1, -1)
        if self.reaches(source, length):
            lib.llama_memory_seq_cp(self._memory, source, target, 0, length)
            if self.length(target) == length:
                return True
            lib.llama_memory_seq_rm(self._memory, target, -1, -1)
        return False

    def save(self, sequence: int) -> NDArray[np.uint8]:
        """A sequence's state in host memory."""
        lib = self._lib
        size = int(lib.llama_state_seq_get_size(self.pointer, sequence))
        state = np.empty(size, dtype=np.uint8)
        pointer = state.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        written = int(lib.llama_state_seq_get_data(self.pointer, pointer, size, sequence))
        if written != size:
            raise RunnerError(f"llama.cpp wrote {written} of {size} bytes of a sequence's state.")
        return state

    def restore(self, sequence: int, state: NDArray[np.uint8]) -> bool:
        """Put a saved state in place of `sequence`; false, and it is empty, where it does not fit."""
        lib = self._lib
        lib.llama_memory_seq_rm(self._memory, sequence, -1, -1)
        pointer = state.ctypes.data_as(ctypes.POINTER(ctypes.c_uint8))
        if int(lib.llama_state_seq_set_data(self.pointer, pointer, state.nbytes, sequence)) > 0:
            return True
        lib.llama_memory_seq_rm(self._memory, sequence, -1, -1)
        return False

    def apply_lora(self, path: str | os.PathLike[str], scale: float) -> None:
        """Run the model with a LoRA adapter. It lives as long as the model."""
        lib = self._lib
        del _load_errors[:]
        adapter = lib.llama_adapter_lora_init(self.model.pointer, os.fsencode(path))
        if not adapter:
            raise ModelLoadError(
                f"{os.fspath(path)} cannot be used as a LoRA adapter. {_tail(list(_load_errors))}"
            )
        adapters = (lib.llama_adapter_lora_p_ctypes * 1)(adapter)
        scales = (ctypes.c_float * 1)(scale)
        if lib.llama_set_adapters_lora(self.pointer, adapters, 1, scales) != 0:
            raise ModelLoadError(f"The LoRA adapter {os.fspath(path)} does not fit this model.")

    def set_threads(self, decode: int, batch: int) -> None:
        self._lib.llama_set_n_threads(self.pointer, decode, batch)

    def evaluated(self) -> tuple[int, int]:
        """llama.cpp's own count since the last reset: tokens evaluated in batches, and one at a time.

        It counts when results are read, and shows 1 where it counted none.
        """
        self._lib.llama_synchronize(self.pointer)
        data = self._lib.llama_perf_context(self.pointer)
        return int(data.n_p_eval), int(data.n_eval)

    def reset_evaluated(self) -> None:
        self._lib.llama_perf_context_reset(self.pointer)

    def embeddings(self, sequence: int) -> NDArray[np.float32] | None:
        """The pooled embedding of `sequence` after a `decode` with embeddings on."""
        pointer = self._lib.llama_get_embeddings_seq(self.pointer, sequence)
        if not pointer:
            return None
        return np.ctypeslib.as_array(pointer, shape=(self.model.n_embd,)).copy()

    def close(self) -> None:
        if getattr(self, "pointer", None):
            self._lib.llama_free(self.pointer)
            self.pointer = None


_CANDIDATE = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])


class Grammar:
    """A GBNF grammar over a vocabulary, at some point of its text.

    `parse_gbnf` comes first: what llama.cpp's parser takes without a crash is narrower than "any string".
    `ValueError` where it refuses the grammar.
    """

    def __init__(self, vocab: Vocab, gbnf: str) -> None:
        lib = binding()
        del _load_errors[:]
        pointer = lib.llama_sampler_init_grammar(vocab._open(), gbnf.encode(), b"root")
        if not pointer:
            raise ValueError(f"llama.cpp refuses the grammar. {_tail(list(_load_errors))}")
        self._set(pointer)

    def _set(self, pointer: Any) -> None:
        self._lib = binding()
        self._pointer = pointer
        self._array = self._lib.llama_token_data_array()
        # A single candidate is asked about for each token: made once.
        self._one = self._lib.llama_token_data()
        self._one_array = self._lib.llama_token_data_array()
        self._one_array.data = ctypes.pointer(self._one)
        self._one_array.size = 1
        self._one_pointer = ctypes.byref(self._one_array)
        self._checked: int | None = None  # the token that was allowed here when last asked

    def clone(self) -> Grammar:
        """A copy at the same point of the text."""
        copy = Grammar.__new__(Grammar)
        copy._set(self._lib.llama_sampler_clone(self._pointer))
        return copy

    def allowed(self, ids: NDArray[np.integer[Any]]) -> NDArray[np.bool_]:
        """Which of these tokens may come next."""
        candidates = np.zeros(len(ids), dtype=_CANDIDATE)
        candidates["id"] = ids
        self._apply(candidates)
        return np.asarray(candidates["logit"] != -np.inf)

    def allows(self, token: int) -> bool:
        """Whether this token may come next: microseconds, where the whole vocabulary takes 5 to 58 ms."""
        self._one.id = token
        self._one.logit = 0.0
        self._one_array.selected = -1
        self._lib.llama_sampler_apply(self._pointer, self._one_pointer)
        allowed = bool(self._one.logit != -math.inf)
        self._checked = token if allowed else None
        return allowed

    def _apply(self, candidates: NDArray[Any]) -> None:
        array = self._array
        array.data = candidates.ctypes.data_as(self._lib.llama_token_data_p)
        array.size = len(candidates)
        array.selected = -1
        array.sorted = False
        self._lib.llama_sampler_apply(self._pointer, ctypes.byref(array))

    def accept(self, token: int) -> None:
        """Go on by a token that `allows` said yes to. Any other would end the process, so it is checked."""
        if token != self._checked and not self.allows(token):
            raise ValueError(f"Token {token} does not fit the grammar here.")
        self._checked = None
        self._lib.llama_sampler_accept(self._pointer, token)

    def close(self) -> None:
        if getattr(self, "_pointer", None):
            self._lib.llama_sampler_free(self._pointer)
            self._pointer = None

    def __del__(self) -> None:
        self.close()

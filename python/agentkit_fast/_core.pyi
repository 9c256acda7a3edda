"""The Rust core, as Python sees it. This stub is its documentation."""

import os
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Literal, Self, final

from typing_extensions import disjoint_base

from agentkit_fast.text import Repetition

DEBUG_BUILD: bool
"""True in an unoptimized build; benchmarks refuse it."""

__version__: str

def best_logits(logits: object, *, reach: float, most: int) -> tuple[bytes, bytes]:
    """Positions (unsigned 32-bit) and values (32-bit floats) of the logits at most `reach` below the best.

    `logits` is a contiguous buffer of 32-bit floats that nothing writes meanwhile. The best come first; of more than
    `most` (0: all) the best are given. Empty where the best is no finite number.
    """

def draw_token(
    logits: object,
    banned: object | None = None,
    *,
    reach: float,
    most: int,
    top_p: float,
    temperature: float,
    at: float,
) -> int | None:
    """The position of one token, drawn from those `best_logits` gives; `None` where there is none.

    `top_p` of their mass is drawn from, weighed by `temperature` (0: the best itself) at the point `at` (0 to 1), the
    random part. The tokens of `banned`, a contiguous buffer of sorted 64-bit ids, are out of the choice (where one of
    them was a candidate, all are set to minus infinity in `logits`).
    """

@final
class AbortFlag:
    """A flag that C code polls without the interpreter, for llama.cpp's abort callback.

    Keep the object alive for as long as C code may poll it.
    """

    def __new__(cls) -> Self: ...
    def set(self) -> None:
        """Ask the running computation to stop."""

    def clear(self) -> None:
        """Let computations run again."""

    @property
    def raised(self) -> bool:
        """Whether it is set."""

    @property
    def callback(self) -> int:
        """Address of a C function `bool (void *data)` that answers whether the flag is set."""

    @property
    def data(self) -> int:
        """What to hand that function."""

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

@final
class GgufVocab:
    """The tokenizer of a GGUF file: what `tokens.GgufTokenizer` is made of, and documents.

    `UnsupportedTokenizer` for a kind that is not known, else errors as `GgufHeader`.
    """

    def __new__(cls, path: str | os.PathLike[str]) -> GgufVocab: ...
    @property
    def add_bos(self) -> bool: ...
    @property
    def add_eos(self) -> bool: ...
    @property
    def add_space_prefix(self) -> bool: ...
    @property
    def architecture(self) -> str: ...
    @property
    def bos_id(self) -> int | None: ...
    @property
    def chat_template(self) -> str | None: ...
    @property
    def context_length(self) -> int | None: ...
    @property
    def eog_ids(self) -> list[int]: ...
    @property
    def eos_id(self) -> int | None: ...
    @property
    def eot_id(self) -> int | None: ...
    @property
    def model(self) -> str: ...
    @property
    def n_tokens(self) -> int: ...
    @property
    def pre(self) -> str: ...
    @property
    def unk_id(self) -> int | None: ...
    def count(self, text: str) -> int: ...
    def count_beginnings(self, text: str, places: list[int]) -> list[int]:
        """Tokens of `text`, taken as untrusted, before each of `places` (in characters, ascending).

        `ValueError` for a place behind the text's end, or before the one it follows.
        """

    def decode(self, raw: bytes) -> bytes:
        """The bytes of ids, given as int32 in the machine's byte order."""

    def encode(self, text: str, *, parse_special: bool = False, untrusted: bool = False) -> bytearray:
        """Ids as int32 in the machine's byte order. The two options exclude each other."""

    def piece(self, token: int) -> bytes: ...
    def special(self) -> list[tuple[str, int, str]]:
        """Text, id and kind (`control`, `unknown`, `user_defined`) of every special token."""

@final
class HeredocStream:
    """A reply read piece by piece, however it is cut."""

    def __new__(cls) -> HeredocStream: ...
    def finish(self) -> tuple[str, int, list[tuple[str, str, int, str]]]:
        """`(prose, released, problems)`: `prose[released:]` was not given out by `push`.

        Problems are `(kind, tool_name, byte_offset, message)`. The stream cannot be used afterwards
        (`ValueError`).
        """

    def push(self, delta: str) -> list[tuple[str] | tuple[int, str] | tuple[int, str, str]]:
        """Events: `(prose,)`, `(index, name)` of a call that began, `(index, name, arguments)` of a complete one."""

@final
class LlamaStep:
    """A reply's tokens, one at a time, through llama.cpp's own functions.

    `context` is the address of a `llama_context`, `decode` and `logits` those of `llama_decode` and
    `llama_get_logits_ith` of the library that made it. For one thread at a time, and only while the context lives.
    """

    batch_layout: ClassVar[list[int]]
    """Offsets of the fields of `llama_batch`, then its size, as they are taken to be here."""

    def __new__(cls, *, context: int, decode: int, logits: int) -> Self: ...
    def decode(self, token: int, position: int, sequence: int) -> int:
        """Evaluate one token and keep its logits; what `llama_decode` returns."""

    def logits(self, index: int) -> int:
        """Address of the logits of the batch's token `index` (-1: the last one), 0 where there are none."""

@final
class LoopWatch:
    """Follows the tokens of one reply and notices when the last 8 to 512 of them begin to come again."""

    def __new__(cls) -> Self: ...
    def push(self, token: int) -> bool:
        """Take the next token; whether the reply is now repeating, by a whole copy at least."""

    def boundary(self, shown: int) -> int:
        """How many tokens to keep so that the reply ends with a whole copy, and with the first `shown` of them."""

    def rewind(self, keep: int) -> None:
        """Forget all tokens but the first `keep`."""

    def __len__(self) -> int: ...
    @property
    def tokens(self) -> list[int]:
        """All tokens so far, copied."""

    @property
    def period(self) -> int:
        """Tokens of the running cycle, 0 where there is none."""

    @property
    def repeating(self) -> bool:
        """Whether a whole copy has come again."""

@final
class RepetitionGuard:
    """Watches one stream for a model that repeats itself. Safe to use from many threads.

    A cycle of `min_period` to `max_period` bytes is reported once at least `min_reps` copies of it, and
    at least `min_span` bytes, stand at the end of the stream; a shorter cycle, and one drawn only with
    white space and rule characters, past `short_span` bytes. Lines that differ only in numbers which
    count on are a cycle too, after 8 copies and 1 KiB (64 copies and three times `short_span` bytes where
    they look like code). The stream is looked at every `check_every` bytes, however it is cut into deltas.
    `where` labels the findings. Options that make no sense raise `ValueError`.
    """

    def __new__(
        cls,
        *,
        min_period: int = 24,
        max_period: int = 1024,
        min_reps: int = 3,
        min_span: int = 512,
        check_every: int = 256,
        short_span: int = 4096,
        where: str = "content",
    ) -> Self: ...
    @property
    def where(self) -> str:
        """The label of this guard's findings."""

    def push(self, delta: str) -> Repetition | None:
        """Take the next piece of the stream. After a finding the answer is `None` until `reset()`."""

    def reset(self) -> None:
        """Forget everything that was pushed, also a finding."""

@disjoint_base
class SpecialTokens:
    """Base of `agentkit_fast.text.SpecialTokens`."""

    def __new__(cls, tokens: Iterable[str]) -> Self: ...
    @property
    def tokens(self) -> list[str]:
        """The spellings, sorted."""

    def find(self, text: str) -> list[tuple[int, int, str]]:
        """Every token of `text` as `(start, end, token)` in byte offsets, leftmost longest."""

    def neutralize(self, text: str) -> str:
        """`text` with the first character of every token as an entity; itself where there is none.

        Where a token of this set could be completed by an entity, an invisible character is put after the
        first character instead. `find` returns nothing in the result, whatever the set and the text.
        """

def capture_slots(result: str) -> dict[str, str]:
    """What `{OUTPUT}` and `{name}` stand for after this tool result.

    `OUTPUT` is the whole without the tags of its sections. A section is `<name>…</name>`, closed by the
    first closing tag of its name; an unclosed or mismatched tag is text. Sections inside a section are
    captured too, to a depth of 8; of several of one name the last counts.
    """

def chars_by_four(text: str) -> int:
    """Tokens in `text` by the rule "four UTF-8 bytes a token, rounded up"."""

def same_beginning(given: list[Any], kept: list[Any]) -> int:
    """How many items two lists have in common from their beginning on, types and the order of keys included.

    `kept` holds copies (`prompt.wire.copied`): plain values, lists, and for other things a tuple of the type and
    what is in them. All of it is compared; objects of types unheard of count as different.
    """

def decode_tight(text: str) -> str:
    """The JSON of a text that `encode_tight` wrote; any other text as it is.

    Key order and the text of numbers are kept. A short word that stands alone (at most 64 bytes, no blank,
    no `=`) is taken for a string that lost its quotes.
    """

def default_special_tokens() -> list[str]:
    """Spellings of the default set, sorted."""

def encode_tight(json_text: str) -> str:
    """A JSON result with fewer tokens: `decode_tight` gives equal JSON, key order and numbers as they were.

    An object becomes a line `key=value` for each pair; an array of objects with the same keys becomes
    `[N]col,col` and N lines of cells; other arrays and objects keep their brackets; strings lose their
    quotes where they cannot be taken for anything else. Text that is no JSON, or is nested more than 128
    deep, comes back as it is.
    """

def expand_slots(text: str, slots: dict[str, str]) -> str:
    """`text` with `{name}` replaced wherever `slots` has the name; every other brace stays.

    What is put in is not expanded again.
    """

def neutralize_special_tokens(
    text: str,
    *,
    tokens: SpecialTokens | None = None,
    style: Literal["entity", "joiner"] = "entity",
) -> str:
    """`text` with every control token broken, so that none can be taken for one; itself if there is none.

    Without `tokens` the default set is used: each `<|` becomes `&lt;|`, and so do the first characters of
    the clear tokens of other families. `style="joiner"` puts an invisible joiner after the first
    character instead, which `restore_special_tokens` undoes exactly. `ValueError`: an unknown style, or
    (joiner only) a set whose own tokens hold every character the joiner style is written with.
    """

def check_arguments(raw: str) -> tuple[str, str, str]:
    """`(kind, text, message)`: see `agentkit_fast.text.check_arguments`."""

def heredoc_grammar(tools: str, *, max_calls: int, allow_prose: bool) -> str:
    """GBNF for `tools`, a JSON array of `{"name", "description", "parameters"}`."""

def heredoc_lark(tools: str, *, max_calls: int, allow_prose: bool) -> str:
    """The language of `heredoc_grammar` as Lark, for llguidance."""

def heredoc_prompt(tools: str) -> str:
    """The instruction text for `tools`, a JSON array of `{"name", "description", "parameters"}`."""

def loose_json(text: str) -> str:
    """Strict JSON for one loose value; `text` itself where it is strict. Raises `HeredocError`."""

def parse_tool_calls(text: str) -> tuple[list[tuple[str, str]], str, list[tuple[str, str, int, str]]]:
    """`(calls, prose, problems)`: calls are `(name, arguments)`, problems `(kind, tool_name, byte_offset, message)`."""

def rejected_arguments(raw: str, message: str) -> str:
    """A JSON object that stands in for arguments that cannot be used."""

def render_tool_call(name: str, arguments: str) -> str:
    """A block that calls `name` with the JSON object `arguments`. Raises `HeredocError`."""

def repair_json(text: str) -> tuple[str, str, tuple[str, ...]]:
    """`(outcome, text, repairs)`: see `agentkit_fast.text.repair_json`."""

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

    def expect(self, entries: int) -> None:
        """Make room for so many entries, which come in pieces."""

    def clear(self) -> None:
        """Forget what was taken in and never shown, to be given in another order."""

    def ingest(self, entries: bytes) -> bool:
        """Take in new entries (a MessagePack array of them). False: some sort before the end of what is
        there, and nothing was taken in."""

    def ingest_entries(self, entries: list[Any], pack: Callable[[list[Any]], bytes]) -> bool:
        """As `ingest`, the entries as they are. Those that cannot be read as they stand (a subclass's, images)
        `pack` makes MessagePack of; with a `count`, all of them."""

    def set_fixed(self, system: str, tools: str) -> None:
        """The system prompt, and the tools' schemas as their wire JSON (empty: none)."""

    def knows_any(self, ids: list[str]) -> bool:
        """Whether one of the entries is here."""

    def unknown(self, entries: list[Any]) -> tuple[list[Any], bool]:
        """Those of `entries` that are new, and whether all that is known is among the others."""

    def check(self, means: str, again: bool) -> str:
        """Do what has to be done before the window fits.

        `means`: what may be done with what does not fit, `"fold"`, `"leave_out"` or `"minimal"` (leave
        out no more than must be). `again`: also when it fits, because a fold that was due has failed.
        Gives `"fits"`, `"shortened"`, `"left_out"`, or `"fold"`: units wait to be summarized. Raises
        `ContextOverflow`.
        """

    def total(self) -> int:
        """Tokens of the window as it stands."""

    def plan_compaction(self) -> bool:
        """Plan a fold of everything before the tail. False: there is nothing to fold."""

    def drop_plan(self) -> None:
        """Forget a planned fold."""

    def fold_entries(self) -> tuple[list[str], int]:
        """Ids of the entries that wait to be folded, and the time of the last of them."""

    def fold_sizes(self) -> tuple[int, int]:
        """Tokens of what waits to be folded as planned, and of all that stays."""

    def fold_messages(self) -> list[tuple[bool, bytes]]:
        """Unit by unit: whether it is an earlier marker, and its messages as a JSON array."""

    def task_messages(self) -> list[bytes]:
        """The first and the newest user message as far as they stay, each as a JSON array."""

    def summary_limit(self) -> int:
        """Room for a summary's answer, in tokens."""

    def marker_limit(self) -> int:
        """The most a marker may take, in tokens."""

    def fold(self, marker: bytes) -> bool:
        """Put the marker (a MessagePack array of one entry) in place of what it covers. False: the
        history is to be read anew."""

    def left_out(self) -> int:
        """How many units are left out of the window."""

    def levels(self) -> tuple[list[tuple[int, bool, str, int]], bool, int]:
        """What is decided: runs of units shown alike (time of the last one's first
        entry, whether that is a marker, its id; and the level),
        whether the line for what is left out is left out too, and the
        number it names."""

    def set_levels(self, runs: list[tuple[int, bool, str, int]], silent: bool, hidden: int) -> None:
        """Decide as `levels` says."""

    def layout(self) -> list[tuple[str, str, int, list[str], bytes]]:
        """`(kind, form, tokens, entry ids, messages)` of each unit, as the last window shows it.

        The messages are a JSON array, or empty where they are simply those of the entries.
        """

    def window(self) -> WindowHandle:
        """The window as things stand."""

@final
class WindowHandle:
    """What one build gave; it stays as it is while the transcript goes on."""

    def __len__(self) -> int: ...
    @property
    def has_reasoning(self) -> bool:
        """Whether a message carries `reasoning_content`."""

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

def restore_special_tokens(text: str) -> str:
    """`text` as it was before `neutralize_special_tokens(..., style="joiner")`, whatever set was used.

    Text without joiners (U+2060, U+2063, U+2064) comes back as it is.
    """

def section_names(text: str) -> list[str]:
    """Names of the sections of `text` (see `capture_slots`), sorted, each once."""

def special_token_family(name: str) -> list[str]:
    """Spellings of one model family, sorted. `ValueError` names the known families."""

def truncate_middle(text: str, limit: int, *, hint: str = "") -> str:
    """The first two thirds and last third of `limit` bytes, around a marker with the figures and `hint`.

    The marker comes on top of `limit`; `limit <= 0` cuts nothing. No cut splits a code point.
    """

def shape_list(
    messages: list[dict[str, Any]],
    options: dict[str, Any],
    tools: str,
    count: Callable[[str], int] | None = None,
) -> list[dict[str, Any]]:
    """The list shaped; see `agentkit_fast.shaping.shape_messages`. `tools`: the schemas' wire JSON."""

"""Conversations side by side: forks, eviction, snapshots, the cache on disk."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("llama_cpp")

from agentkit_fast.messages import ChatOptions, Message
from agentkit_fast.runners import LocalRunner
from agentkit_fast.runners._local.replies import Replies
from agentkit_fast.runners._local.sequences import TokenLog, adopt, common
from agentkit_fast.runners._local.state_cache import StateCache

pytestmark = pytest.mark.model


def ids(*values: int) -> np.ndarray:
    return np.array(values, dtype=np.int32)


def test_common() -> None:
    assert common(ids(), ids(1)) == 0
    assert common(ids(1, 2, 3), ids(1, 2, 4)) == 2
    long = np.arange(5000, dtype=np.int32)
    other = long.copy()
    other[4321] = -1
    assert common(long, other) == 4321
    assert common(long, long[:4000]) == 4000


def test_token_log() -> None:
    log = TokenLog()
    for start in range(0, 3000, 7):
        log.extend(np.arange(start, start + 7))
    assert log.ids.tolist() == list(range(3003))
    log.truncate(5)
    log.extend([9])
    assert log.ids.tolist() == [0, 1, 2, 3, 4, 9]


# A small vocabulary: 0 is a control token, the rest stand for these texts.
PIECES = [b"<0>", b"a", b"b", b"ab", b"abc", b"c", b" "]
CONTROL = np.array([True] + [False] * 6)


def bytes_of(tokens: np.ndarray) -> bytes:
    return b"".join(PIECES[int(t)] for t in tokens)


def encode_text(text: str) -> np.ndarray:
    return ids(*[PIECES.index(c.encode()) for c in text])


ADOPTIONS = {
    # log, new ids, ids after, shared
    "nothing there": ([], [0, 1], [0, 1], 0),
    "goes on": ([0, 1, 2], [0, 1, 2, 0, 5], [0, 1, 2, 0, 5], 3),
    "the model's spelling is kept": ([0, 1, 2, 0, 5], [0, 3, 0, 5, 0], [0, 1, 2, 0, 5, 0], 5),
    "a reply that was cut, continued": ([0, 1, 2], [0, 4, 0], [0, 1, 2, 5, 0], 3),
    "another text": ([0, 1, 2, 0], [0, 1, 5, 0], [0, 1, 5, 0], 2),
    "a longer text before a control token": ([0, 1, 2, 0], [0, 4, 0], [0, 4, 0], 1),
    "two spellings": ([0, 1, 2, 0, 3, 5, 0], [0, 3, 0, 4, 0, 6], [0, 1, 2, 0, 3, 5, 0, 6], 7),
    "a control token is never exchanged for its text": ([0, 0, 1], [0, 1, 1], [0, 1, 1], 1),
}


@pytest.mark.parametrize(("log", "new", "after", "shared"), ADOPTIONS.values(), ids=ADOPTIONS.keys())
def test_adopt(log: list[int], new: list[int], after: list[int], shared: int) -> None:
    adopted, length = adopt(ids(*log), ids(*new), CONTROL, bytes_of, encode_text)
    assert (adopted.tolist(), length) == (after, shared)
    assert bytes_of(adopted) == bytes_of(ids(*new))


@pytest.fixture(scope="module")
def runner(smollm2_path: Path) -> Iterator[LocalRunner]:
    with LocalRunner(smollm2_path, n_ctx=512, n_threads=1, n_sessions=2) as made:
        yield made


def ask(runner: LocalRunner, messages: list[Message], **options) -> str:
    options.setdefault("temperature", 0.0)
    options.setdefault("max_tokens", 8)
    return "".join(c.content for c in runner.chat_stream(messages, options=ChatOptions(**options)))


def topic(name: str) -> list[Message]:
    return [
        Message(role="system", content=f"You talk about {name} and nothing else, in few words."),
        Message(role="user", content=f"Say something about {name}."),
    ]


def test_many_conversations_alternate(runner: LocalRunner) -> None:
    names = ["cats", "the sea", "bread", "trains", "snow", "music"]
    histories = {name: topic(name) for name in names}
    for turn in range(3):
        for name in names:
            history = histories[name]
            reply = ask(runner, history, session_id=name)
            record = runner.stats().turns[-1]
            if turn:
                # What came since: the token sampled last, the end of the turn, the question, the header.
                assert record.evaluated <= 30, (name, record)
                assert record.source in ("live", "memory"), record
            history += [Message(role="assistant", content=reply), Message(role="user", content="And more?")]
    assert {record.source for record in runner.stats().turns} >= {"", "memory"}


def test_a_question_aside_leaves_the_conversation(runner: LocalRunner) -> None:
    history = topic("mountains")
    reply = ask(runner, history)
    history += [Message(role="assistant", content=reply), Message(role="user", content="Go on.")]
    reply = ask(runner, history)
    aside = [*history[:-1], Message(role="user", content="Summarize all of this in one line.")]
    ask(runner, aside)
    assert runner.stats().turns[-1].source == "fork"
    history += [Message(role="assistant", content=reply), Message(role="user", content="Go on.")]
    ask(runner, history)
    record = runner.stats().turns[-1]
    assert record.source == "live"
    assert record.evaluated <= 24


def test_case_l18_the_models_tokens_stay(runner: LocalRunner) -> None:
    history = topic("rivers")
    # At a high temperature the model writes words in tokens the tokenizer would not choose.
    reply = ask(runner, history, temperature=2.5, seed=11, max_tokens=40)
    log = next(s.log.ids.copy() for s in runner._engine._sequences if s.used == runner._engine._clock)
    history += [Message(role="assistant", content=reply), Message(role="user", content="more")]
    ask(runner, history, max_tokens=1)
    record = runner.stats().turns[-1]
    assert record.cached == len(log)
    assert record.source == "live"


def test_a_call_written_anew_is_given_in_the_models_words(runner: LocalRunner) -> None:
    from agentkit_fast.text import heredoc_grammar, parse_tool_calls, render_tool_call

    grammar = heredoc_grammar(
        [{"name": "read", "parameters": {"properties": {"path": {"type": "string"}}}}],
        max_calls=1,
        allow_prose=False,
    )
    history = topic("files")
    reply = ask(runner, history, grammar=grammar, max_tokens=60, temperature=1.5, seed=5)
    parsed = parse_tool_calls(reply)
    assert parsed.problem is None
    rendered = "\n".join(render_tool_call(call.name, call.arguments) for call in parsed.calls)
    before = max(len(s.log) for s in runner._engine._sequences if s.used == runner._engine._clock)
    history += [Message(role="assistant", content=rendered), Message(role="tool", content="42")]
    ask(runner, history)
    assert runner.stats().turns[-1].cached >= before - 1


def test_replies_that_mean_the_same_are_told_apart() -> None:
    replies = Replies()
    whole, cut, spaced = "@@call f\n{ a: 1 }\n@@end", "@@call f\n{ a: 1 }\n@@", "@@call f\n{a:1}\n@@end"
    replies.note(whole)
    assert replies.as_written(spaced) == whole
    replies.note(cut)
    assert replies.as_written(whole) == whole
    assert replies.as_written(cut) == cut
    assert replies.as_written("@@call f\n{ a: 2 }\n@@end") == "@@call f\n{ a: 2 }\n@@end"
    assert replies.as_written("I see. @@call f") == "I see. @@call f"
    assert replies.as_written("@@call f\n{ a: ") == "@@call f\n{ a: "


def resume(path: Path, folder: Path, history: list[Message]):
    with LocalRunner(path, n_ctx=512, n_threads=1, n_sessions=2, state_cache=folder) as runner:
        text = ask(runner, history)
        return text, runner.stats().turns[-1]


def test_state_cache(smollm2_path: Path, tmp_path: Path) -> None:
    folder = tmp_path / "states"
    history = topic("a cache on a disk, which lives longer than the process that wrote it")
    text, record = resume(smollm2_path, folder, history)
    assert record.source == ""
    again, record = resume(smollm2_path, folder, history)
    assert (again, record.source, record.evaluated) == (text, "disk", 1)
    history += [Message(role="assistant", content=text), Message(role="user", content="And more?")]
    _, record = resume(smollm2_path, folder, history)
    assert record.source == "disk"
    assert record.evaluated < 24
    files = sorted(folder.glob("*.akstate"))
    assert len(files) == 1  # the longer state took the shorter one's place
    whole = bytearray(files[0].read_bytes())
    whole[-1000] ^= 1
    files[0].write_bytes(whole)
    _, record = resume(smollm2_path, folder, history)
    assert record.source == ""
    assert record.evaluated == record.prompt


def test_damaged_states_are_never_believed(tmp_path: Path) -> None:
    cache = StateCache(tmp_path, "k" * 64, 1_000_000)
    cache.save(ids(1, 2, 3), np.arange(5000, dtype=np.uint8))
    [stored] = cache.stored()
    whole = stored.path.read_bytes()
    state = len(whole) - 5000
    for damaged in (
        *(whole[:n] for n in range(0, len(whole), 97)),
        whole[:-1],
        whole + b"x",
        *(
            whole[:n] + bytes([whole[n] ^ 1]) + whole[n + 1 :]
            for n in (*range(state), state, len(whole) - 1)
        ),
        whole.replace(b'"tokens":', b'"tokens":-', 1),
        whole.replace(b'"tokens":', b'"tokens":99999999999999999999', 1),
        whole.replace(b'"state":', b'"state":9', 1),
        b"agentkit-fast state 1\n" + b"{" * 5000,
        b"agentkit-fast state 1\n[]\n",
        b"agentkit-fast state 1\n{}\n",
        b"agentkit-fast state 1\n\xff\n",
        b"other" + whole,
    ):
        stored.path.write_bytes(damaged)
        found = StateCache(tmp_path, "k" * 64, 1_000_000).stored()
        assert [cache.load(one) for one in found] in ([], [None]), damaged[:150]
        assert cache.load(stored) is None
    stored.path.write_bytes(whole)
    assert cache.load(stored) is not None


def test_state_cache_goes_by_the_weights(smollm2_path: Path, tmp_path: Path) -> None:
    folder = tmp_path / "states"
    history = topic("weights")
    text, _ = resume(smollm2_path, folder, history)
    renamed = tmp_path / "another-name.gguf"
    data = bytearray(smollm2_path.read_bytes())
    at = data.index(b"Smollm2 135M")
    data[at : at + 7] = b"Renamed"
    renamed.write_bytes(data)
    again, record = resume(renamed, folder, history)
    assert (again, record.source) == (text, "disk")
    data[-100] ^= 0x10
    changed = tmp_path / "changed.gguf"
    changed.write_bytes(data)
    _, record = resume(changed, folder, history)
    assert record.source == ""
    shutil.rmtree(folder)


def test_state_cache_is_bounded(tmp_path: Path) -> None:
    cache = StateCache(tmp_path, "k" * 64, 10_000)
    for number in range(10):
        cache.save(ids(number, 1, 2), np.full(3000, number, dtype=np.uint8))
    stored = cache.stored()
    assert 1 <= len(stored) <= 3
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 10_000
    newest = [s for s in stored if s.ids[0] == 9]
    assert newest
    assert cache.load(newest[0]).tolist() == [9] * 3000
    assert StateCache(tmp_path, "other" * 10, 10_000).stored() == []
    cache.save(ids(1), np.zeros(20_000, dtype=np.uint8))
    assert len(cache.stored()) == len(stored)


def test_state_cache_is_complete_at_normal_exit(smollm2_path: Path, tmp_path: Path) -> None:
    script = (
        "import sys\n"
        "from agentkit_fast.runners import LocalRunner\n"
        f"runner = LocalRunner({str(smollm2_path)!r}, n_ctx=512, n_threads=1, state_cache={str(tmp_path)!r})\n"
        "messages = [{'role': 'user', 'content': 'Hello there, how are you today?'}]\n"
        "stream = runner.chat_stream(messages)\n"
        "next(stream)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert len(list(tmp_path.glob("*.akstate"))) == 1

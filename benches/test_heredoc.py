"""Reading, judging and rendering calls, beside json.loads, json_repair and LangChain's partial JSON.

Groups are compared within themselves; each peer gets the same input. Peers that are not installed are left out.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from agentkit_fast.text import (
    HeredocStream,
    check_arguments,
    parse_tool_calls,
    render_tool_call,
    repair_json,
)

BODY = (Path(json.__file__).with_name("decoder.py").read_text(encoding="utf-8") * 20)[:115_000]
STRICT = json.dumps({"path": "a.py", "content": BODY})
REPLY = "I write the file.\n" + render_tool_call("write_file", {"path": "a.py", "content": BODY})
ROWS = ", ".join(
    f'{{id: {row}, \'name\': "item {row}", "ok": True, "tags": ["a", "b",], price: 1.5}}'
    for row in range(1_000)
)
LOOSE = f"{{rows: [{ROWS},],}}"
# json_repair needs a second for 200 kB; the ratio is taken on this much.
SHORT = LOOSE[: LOOSE.index("{id: 40,")] + "],}"


@pytest.mark.benchmark(group="115 kB body")
def test_parse_tool_calls(benchmark: Any) -> None:
    assert json.loads(benchmark(parse_tool_calls, REPLY).calls[0].arguments)["content"] == BODY


@pytest.mark.benchmark(group="115 kB body")
def test_json_loads_of_the_same_strict_json(benchmark: Any) -> None:
    assert benchmark(json.loads, STRICT)["content"] == BODY


@pytest.mark.benchmark(group="115 kB body")
def test_check_arguments_of_the_same_strict_json(benchmark: Any) -> None:
    assert benchmark(check_arguments, STRICT).text is STRICT


@pytest.mark.benchmark(group="115 kB body")
def test_render_tool_call_of_the_same_strict_json(benchmark: Any) -> None:
    assert benchmark(render_tool_call, "write_file", STRICT).count("@@call") == 1


@pytest.mark.benchmark(group="115 kB body")
def test_stream_of_4_letters_a_push(benchmark: Any) -> None:
    pieces = [REPLY[at : at + 4] for at in range(0, len(REPLY), 4)]

    def run() -> int:
        stream = HeredocStream()
        for piece in pieces:
            stream.push(piece)
        return len(stream.finish().calls)

    assert benchmark(run) == 1


@pytest.mark.benchmark(group="loose rows, 3 kB")
def test_repair_json(benchmark: Any) -> None:
    assert len(json.loads(benchmark(repair_json, SHORT).text)["rows"]) == 40


@pytest.mark.benchmark(group="loose rows, 3 kB")
def test_json_repair(benchmark: Any) -> None:
    peer = pytest.importorskip("json_repair")
    assert len(json.loads(benchmark(peer.repair_json, SHORT))["rows"]) == 40


@pytest.mark.benchmark(group="loose rows, 80 kB")
def test_repair_json_of_many_rows(benchmark: Any) -> None:
    assert len(json.loads(benchmark(repair_json, LOOSE).text)["rows"]) == 1_000


@pytest.mark.benchmark(group="cut at half, strict")
def test_check_arguments_of_a_cut_call(benchmark: Any) -> None:
    assert benchmark(check_arguments, STRICT[:50_000]).kind == "truncated"


@pytest.mark.benchmark(group="cut at half, strict")
def test_langchain_partial_json_of_a_cut_call(benchmark: Any) -> None:
    # It closes what is open, so that the cut call looks whole: shown for its cost.
    peer = pytest.importorskip("langchain_core.utils.json")
    assert benchmark(peer.parse_partial_json, STRICT[:50_000])["path"] == "a.py"

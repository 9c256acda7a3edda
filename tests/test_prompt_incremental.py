# ruff: noqa: E501 - templates have the lines they have
"""`PromptEncoder` on conversations that grow, are cut and edited: always what a fresh encoder gives."""

from __future__ import annotations

import dataclasses
import random
import sys
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from agentkit_fast._core import same_beginning
from agentkit_fast._unicode import repair_text
from agentkit_fast.errors import RunnerError
from agentkit_fast.messages import Message, ToolCall, ToolDef, text_part
from agentkit_fast.prompt import Prompt, PromptEncoder
from agentkit_fast.prompt.wire import copied
from prompt_families import FAMILIES, NOW, Family, plain_render

CHAT = FAMILIES["chatml"]
SAY = "{{ '<|im_start|>' + m.role + '\\n' + m.content + '<|im_end|>\\n' }}"
SEARCH = (
    "{% set ns = namespace(seek=true, at=messages|length - 1) %}{% for m in messages[::-1] %}"
    "{% set i = (messages|length - 1) - loop.index0 %}"
    "{% if ns.seek and m.role == 'user' and not m.content.startswith('<think>') %}"
    "{% set ns.seek = false %}{% set ns.at = i %}{% endif %}{% endfor %}"
)

# What templates do besides saying one message after the other; LOCAL ones are gone on with where they were left.
LOCAL = {
    "plain": f"{{% for m in messages %}}{SAY}{{% endfor %}}",
    "first and default system": (
        "{% for m in messages %}{% if loop.first and messages[0].role != 'system' %}<|im_start|>system\nYou help."
        f"<|im_end|>\n{{% endif %}}{SAY}{{% endfor %}}"
    ),
    "prompt in the last round": (
        f"{{% for m in messages %}}{SAY}{{% if loop.last and add_generation_prompt %}}<|im_start|>assistant\n"
        "{% endif %}{% endfor %}"
    ),
    "neighbours": (
        "{% for m in messages %}{% if loop.previtem is defined and loop.previtem.role == m.role %}+{% endif %}"
        f"{SAY}{{% if loop.nextitem is defined %}}{{{{ loop.nextitem.role }}}}{{% endif %}}{{% endfor %}}"
    ),
    "neighbours by index": (
        "{% for m in messages %}{% if not loop.first and messages[loop.index0 - 1].role != m.role %}/{% endif %}"
        f"{SAY}{{% if loop.last or messages[loop.index].role != m.role %}}|{{% endif %}}{{% endfor %}}"
    ),
    "counter": (
        "{% set ns = namespace(n=0) %}{% for m in messages %}{% if m.role == 'user' %}{% set ns.n = ns.n + 1 %}"
        f"{{% endif %}}{{{{ ns.n }}}}{SAY}{{% endfor %}}{{{{ ns.n }}}}"
    ),
    "state between rounds": (
        "{% set ns = namespace(open=false) %}{% for m in messages %}{% if m.role == 'tool' and not ns.open %}"
        "<|im_start|>{% set ns.open = true %}{% endif %}{% if m.role != 'tool' and ns.open %}<|im_end|>"
        f"{{% set ns.open = false %}}{{% endif %}}{SAY}{{% endfor %}}{{% if ns.open %}}<|im_end|>{{% endif %}}"
    ),
    "text in a namespace": (
        "{% set ns = namespace(system='') %}{% for m in messages %}{% if m.role == 'system' %}"
        "{% set ns.system = ns.system ~ '<|im_start|>' ~ m.content %}{% endif %}{% endfor %}{{ ns.system }}"
        f"{{% for m in messages %}}{{% if m.role != 'system' %}}{SAY}{{% endif %}}{{% endfor %}}"
    ),
    "last user, searched backwards": (
        f"{SEARCH}{{% for m in messages %}}{{% if loop.index0 > ns.at %}}<|im_start|>think{{% endif %}}{SAY}{{% endfor %}}"
    ),
    "last user, searched forwards": (
        "{% set ns = namespace(at=-1) %}{% for m in messages %}{% if m.role == 'user' %}"
        "{% set ns.at = loop.index0 %}{% endif %}{% endfor %}{% for m in messages %}"
        f"{{% if ns.at < loop.index0 and m.role == 'assistant' %}}<|im_start|>{{% endif %}}{SAY}{{% endfor %}}"
    ),
    "last user in a variable": (
        f"{SEARCH}{{% set at = ns.at %}}{{% for m in messages %}}{{% if loop.index == at %}}>{{% elif at <= loop.index0 %}}"
        f"<|im_start|>{{% endif %}}{SAY}{{% endfor %}}"
    ),
    "the rest after the system": (
        "{% if messages[0].role == 'system' %}{% set system = messages[0].content %}{% set rest = messages[1:] %}"
        "{% else %}{% set system = '' %}{% set rest = messages %}{% endif %}<|im_start|>{{ system }}<|im_end|>"
        f"{{% for m in rest %}}{SAY}{{% if loop.index0 == 0 %}}({{{{ system }}}}){{% endif %}}{{% endfor %}}"
    ),
    "macro with a namespace": (
        "{% set ns = namespace(n=0) %}{% macro say(m, end='<|im_end|>') %}{% set ns.n = ns.n + 1 %}<|im_start|>"
        "{{ ns.n }}{{ m.role }}\n{{ m.content }}{{ end }}{% endmacro %}{% for m in messages %}{{ say(m) }}"
        "{% endfor %}{{ ns.n }}"
    ),
    "set, call and filter blocks": (
        "{% macro turn() %}<|im_start|>{{ caller() }}<|im_end|>{% endmacro %}{% for m in messages %}"
        "{% set text %}{{ m.role }}: {{ m.content }}{% endset %}{% call turn() %}{{ text }}{% endcall %}"
        "{% filter upper %}{{ m.role }}{% endfilter %}{% endfor %}"
    ),
    "skipping": (
        f"{{% for m in messages %}}{{% if not m.content %}}{{% continue %}}{{% endif %}}{SAY}{{% endfor %}}"
    ),
    "stopping": f"{{% for m in messages %}}{{% if m.role == 'tool' %}}{{% break %}}{{% endif %}}{SAY}{{% endfor %}}",
    "nothing said": f"{{% for m in messages %}}{SAY}{{% else %}}nothing<|im_end|>{{% endfor %}}",
    "twice": f"{{% for m in messages %}}{SAY}{{% endfor %}}--{{% for m in messages %}}{SAY}{{% endfor %}}",
    "refusing": (
        "{% for m in messages %}{% if m.content == 'refused' %}{{ raise_exception('no: ' ~ loop.index) }}{% endif %}"
        f"{SAY}{{% endfor %}}"
    ),
    "in a branch": (
        f"{{% if tools %}}{{{{ tools | tojson }}}}{{% for m in messages %}}{SAY}{{{{ tools | length }}}}{{% endfor %}}"
        f"{{% else %}}{{% for m in messages %}}{SAY}{{% endfor %}}{{% endif %}}"
    ),
    "an inner loop": (
        "{% for m in messages %}{% for c in m.content[:4] %}{{ loop.index }}{{ c }}{% if not loop.last %},{% endif %}"
        f"{{% endfor %}}{{{{ loop.index }}}}{SAY}{{% endfor %}}"
    ),
    "loop handed on": (
        "{% macro say(m, loop) %}{{ loop.index }}{{ m.role }}{{ caller() }}{% endmacro %}{% for m in messages %}"
        f"{{% call say(m, loop) %}}<|im_start|>{{{{ loop.first }}}}{{% endcall %}}{{% if m.role == 'user' %}}{{% with l = loop %}}"
        f"{{{{ l.index0 }}}}{{% endwith %}}{{% endif %}}{SAY}{{% endfor %}}"
    ),
    "tools in the loop": (
        f"{{% for m in messages %}}{{% if tools and loop.first %}}{{{{ tools[0].function.name }}}}{{% endif %}}{SAY}{{% endfor %}}"
    ),
    "cycling": "{% for m in messages %}{{ loop.cycle('<|im_start|>', '<|im_end|>') }}{{ m.content }}{% endfor %}",
    "everything of a message": "{% for m in messages %}{{ m | tojson }}{{ m.items() | list }}{% endfor %}",
    "a thought cut": (
        "{% for m in messages %}{% set c = m.content.split('</think>')[-1] if loop.index0 < 3 else m.content %}"
        "<|im_start|>{{ c | trim }}<|im_end|>{% endfor %}"
    ),
}

# Those that look at the end of the list in every round, or at what cannot be noted: rendered whole.
WHOLE = {
    "length": f"{{% for m in messages %}}{SAY}{{{{ loop.length }}}}/{{{{ messages | length }}}}{{% endfor %}}",
    "from the end": f"{{% for m in messages %}}{{{{ loop.revindex }}}}{SAY}{{{{ loop.revindex0 }}}}{{% endfor %}}",
    "the last one": f"{{% for m in messages %}}{{% if m == messages[-1] %}}<|im_start|>{{% endif %}}{SAY}{{% endfor %}}",
    "looking ahead": (
        "{% for m in messages %}{% set ns = namespace(found=false) %}{% for later in messages[loop.index:] %}"
        f"{{% if later.role == 'user' %}}{{% set ns.found = true %}}{{% endif %}}{{% endfor %}}{{{{ ns.found }}}}{SAY}{{% endfor %}}"
    ),
    "among all": (
        "{% for m in messages %}{% if m in messages %}{{ (messages | last).content }}{{ messages.index(m) }}"
        "{{ messages.count(m) }}{% endif %}{{ (messages + [1]) | length }}{{ ([1] + messages) | length }}"
        "{{ messages | map(attribute='role') | join(',') }}{{ messages == [] }}{{ messages | reverse | list | length }}"
        "{{ messages is sequence }}{{ (messages * 2) | length }}{{ messages.copy() | length }}{% endfor %}"
    ),
    "changed": f"{{% for m in messages %}}{{% if loop.changed(m.role == 'tool') %}}<|im_start|>{{% endif %}}{SAY}{{% endfor %}}",
    "random": f"{{% for m in messages %}}{{{{ [1, 1] | random }}}}{SAY}{{% endfor %}}",
    "lipsum": f"{{% for m in messages %}}{SAY}{{{{ lipsum(n=0) }}}}{{% endfor %}}",
    "joiner": f"{{% set j = joiner('|') %}}{{% for m in messages %}}{{{{ j() }}}}{SAY}{{% endfor %}}",
    "cycler": f"{{% set c = cycler('a', 'b') %}}{{% for m in messages %}}{{{{ c.next() }}}}{SAY}{{% endfor %}}",
    "the clock": f"{{% for m in messages %}}{{{{ strftime_now('%S') }}}}{SAY}{{% endfor %}}",
    "the clock in a macro": (
        "{% macro at() %}{{ strftime_now('%S') }}{% endmacro %}{% for m in messages %}{{ at() }}{{ m.content }}{% endfor %}"
    ),
    "some of them": f"{{% for m in messages if m.role != 'tool' %}}{SAY}{{% endfor %}}",
    "by number": f"{{% for i in range(messages | length) %}}{{% set m = messages[i] %}}{SAY}{{% endfor %}}",
    "in a macro": f"{{% macro all() %}}{{% for m in messages %}}{SAY}{{% endfor %}}{{% endmacro %}}{{{{ all() }}}}",
    "in a set block": f"{{% set all %}}{{% for m in messages %}}{SAY}{{% endfor %}}{{% endset %}}{{{{ all }}}}",
    "backwards": f"{{% for m in messages | reverse %}}{SAY}{{% endfor %}}",
    "grouped": "{% for role, some in messages | groupby('role') %}{{ role }}{{ some | length }}{% endfor %}",
    "a namespace shown": "{% set ns = namespace(n=messages | length) %}{% for m in messages %}{{ ns }}{{ m.role }}{% endfor %}",
    "a namespace in another": (
        "{% set a = namespace(n=0) %}{% set b = namespace(a=a) %}{% for m in messages %}{% set x = b.a %}"
        f"{{% set x.n = x.n + 1 %}}{{{{ x.n }}}}{SAY}{{% endfor %}}"
    ),
    "a generator in a namespace": (
        "{% set ns = namespace(g=none) %}{% for m in messages %}{% if loop.first %}"
        "{% set ns.g = messages | map(attribute='role') %}{% endif %}{{ ns.g | first }}{% endfor %}"
    ),
    "a generator": (
        "{% set roles = messages | map(attribute='role') %}{% for m in messages %}{{ roles | first }}{% endfor %}"
    ),
}
# Depends on the conversation.
OTHER = {
    "the last user's": (
        "{% set users = messages | selectattr('role', 'equalto', 'user') | list %}{% for m in messages %}"
        f"{{% if users and m == users[-1] %}}<|im_start|>{{% endif %}}{SAY}{{% endfor %}}"
    ),
    "a list in a namespace": (
        "{% set ns = namespace(all=[]) %}{% for m in messages %}{% set ns.all = ns.all + [m.role] %}"
        f"{{{{ ns.all | join }}}}{SAY}{{% endfor %}}"
    ),
    "the last text, in a namespace": (
        "{% set ns = namespace(last='') %}{% for m in messages %}{% set ns.last = m.content %}{% endfor %}"
        f"{{% for m in messages %}}{{% if loop.index0 > 1 %}}{{{{ ns.last }}}}{{% endif %}}{SAY}{{% endfor %}}"
    ),
    "half a pair": (
        "{% for m in messages %}{% if loop.index is even %}{{ '\\ude00' }}{% endif %}{{ m.content }}<|im_end|>"
        "{% if loop.index is odd %}{{ '\\ud83d' }}{% endif %}{% endfor %}"
    ),
    "a loop of its own name": f"{{% for m in messages %}}{SAY}{{% for loop_ in [1] %}}{{{{ loop.index }}}}{{% endfor %}}{{% endfor %}}{{{{ m }}}}",
    "the loop shown": f"{{% for m in messages %}}{{{{ loop }}}}{SAY}{{% endfor %}}",
    "an outer value": f"{{% for m in messages %}}{{{{ flavour }}}}{SAY}{{% endfor %}}",
    "one of two macros": (
        "{% if tools %}{% macro f(m) %}T{{ m.content }}{% endmacro %}{% else %}{% macro f(m) %}N{{ m.content }}"
        "{% endmacro %}{% endif %}{% for m in messages %}{{ f(m) }}<|im_end|>{% endfor %}"
    ),
    "a macro by another name": (
        "{% macro f(m) %}{{ y }}{{ m.content }}{% endmacro %}{% set g = f %}{% set h = {'f': f} %}"
        "{% set y = messages[-1].role %}{% for m in messages %}{{ g(m) }}{{ h.f(m) }}<|im_end|>{% endfor %}"
    ),
    "the clock by another name": (
        "{% set f = strftime_now %}{% for m in messages %}{{ f('%S') }}{{ m.content }}{% endfor %}"
    ),
    "the one before the first": "{% for m in messages %}{{ messages[loop.index0 - 1].role }}{{ m.content }}{% endfor %}",
    "an index of its own": (
        "{% set ns = namespace(i=0) %}{% for m in messages %}{{ messages[ns.i].content }}{% set ns.i = loop.index %}"
        "<|im_end|>{% endfor %}"
    ),
    "names used twice": (
        "{% set m = messages[0] %}{% for m in messages %}{{ m.content }}{% set messages = [m] %}"
        "{{ messages[0].role }}{% endfor %}{{ m.content }}"
    ),
    "a search with two flags": (
        "{% set ns = namespace(a=true, b=true) %}{% for m in messages[::-1] %}{% if ns.a and m.role == 'user' %}"
        "{% set ns.a = false %}{% endif %}{% if ns.b %}{% set ns.b = false %}{{ m.content }}{% endif %}{% endfor %}{{ ns.a }}"
    ),
    "a search that goes on": (
        "{% set ns = namespace(go=true, i=-1) %}{% for m in messages | reverse %}{% if ns.go and m.role == 'user' %}"
        "{% set ns.go = m.content == 'a' %}{% set ns.i = loop.index %}{% endif %}{% endfor %}{{ ns.i }}"
    ),
    "comparisons in a chain": (
        "{% set k = messages | length %}{% for m in messages %}{% if 0 < loop.index < k %}x{% endif %}"
        "{% if loop.index0 == k - 1 %}y{% endif %}{% if k == loop.index %}z{% endif %}{{ m.content }}<|im_end|>{% endfor %}"
    ),
    "aliases that come and go": (
        "{% set a = namespace(n=0) %}{% if tools %}{% set b = a %}{% else %}{% set b = namespace(n=0) %}{% endif %}"
        f"{{% for m in messages %}}{{% set b.n = b.n + 1 %}}{{{{ a.n }}}}{SAY}{{% endfor %}}"
    ),
    "who owns the head": (
        f"{{% if flavour == 1 %}}<|im_start|>{{% else %}}{{{{ flavour }}}}{{% endif %}}{{% for m in messages %}}{SAY}{{% endfor %}}"
    ),
    "aliases": (
        "{% set a = namespace(n=0) %}{% set b = a %}{% for m in messages %}{% set b.n = a.n + 1 %}{{ a.n }}"
        f"{SAY}{{% endfor %}}"
    ),
}
SHAPES = {
    **FAMILIES,
    **{
        name: dataclasses.replace(CHAT, template=source)
        for name, source in {**LOCAL, **WHOLE, **OTHER}.items()
    },
}

TEXTS = [
    "",
    "a",
    "hello there ",
    "\n text\n",
    "<think>\nwhy\n</think>\n\nso",
    "<tool_response>x</tool_response>",
    "<|im_end|>\n<|im_start|>system\n",
    "日本 é",
    "refused",
    "</think>",
    "<|im_",
    "start|>",
    "\ud800",
]


FLAVOURS = [
    "sweet",
    "<|im_start|>",
    1,
    True,
    1.0,
    0.0,
    -0.0,
    [1],
    [True],
    (1,),
    {"a": 1, "b": 2},
    {"b": 2, "a": 1},
    {"b": [2], "a": 1},
    {"b": [True], "a": 1},
]


class Forgetful(PromptEncoder):
    """The twin: keeps nothing from one prompt to the next."""

    def encode(self, *args: Any, **kwargs: Any) -> Prompt:
        self._trunks.clear()
        return super().encode(*args, **kwargs)


def pair(family: Family, now: Any = lambda: NOW) -> tuple[PromptEncoder, Forgetful]:
    kept, fresh = (
        kind(family.tokenizer(), family.template, now=now) for kind in (PromptEncoder, Forgetful)
    )
    return kept, fresh


def outcome(encoder: PromptEncoder, messages: list[Any], **more: Any) -> Any:
    try:
        prompt = encoder.encode(messages, **more)
    except RunnerError as error:
        return str(error)
    return prompt.text, prompt.ids.tolist(), prompt.message_starts


def next_message(rng: random.Random, family: Family, last: str) -> dict[str, Any]:
    if rng.random() < 0.15:
        role = rng.choice(["system", "user", "assistant", "tool"])
    else:
        role = {"user": "assistant", "assistant": rng.choice(["user", "tool"]), "tool": "assistant"}.get(
            last, "user"
        )
    if role not in family.roles and rng.random() < 0.95:
        role = "user"
    message: dict[str, Any] = {"role": role, "content": rng.choice(TEXTS) * rng.choice([1, 1, 2])}
    if message["content"] == "refused" and rng.random() < 0.7:
        message["content"] = "fine"
    if role == "assistant" and rng.random() < 0.3:
        call = {
            "id": "c",
            "type": "function",
            "function": {"name": "f", "arguments": {"a": rng.choice(TEXTS[:-1])}},
        }
        message["tool_calls"] = [call]
        if rng.random() < 0.3:
            message["reasoning_content"] = "because"
    return message


def check(name: str, rounds: int, seed: int) -> None:
    family = SHAPES[name]
    second = 0
    kept, fresh = pair(family, lambda: NOW.replace(second=second))
    rng = random.Random(f"{name} {seed}")
    messages: list[dict[str, Any]] = []
    others: list[list[dict[str, Any]]] = []
    more: dict[str, Any] = {}
    for number in range(rounds):
        second = number % 60
        step = rng.random()
        if step < 0.7 or not messages:
            messages.append(next_message(rng, family, messages[-1]["role"] if messages else ""))
        elif step < 0.78:
            del messages[rng.randrange(len(messages)) :]
        elif step < 0.84:
            messages[rng.randrange(len(messages))]["content"] = rng.choice(TEXTS)
        elif step < 0.88:
            del messages[rng.randrange(len(messages))]
        elif step < 0.92:
            others.append(deepcopy(messages))
            messages = deepcopy(rng.choice(others))
        else:
            more = {}
            if rng.random() < 0.4:
                more["tools"] = [{"type": "function", "function": {"name": "read", "description": "d"}}]
            if rng.random() < 0.3:
                more["enable_thinking"] = rng.random() < 0.5
            if rng.random() < 0.3:
                more["add_generation_prompt"] = False
            if rng.random() < 0.3:
                more["flavour"] = rng.choice(
                    ["sweet", 1, True, 1.0, [1], {"a": 1, "b": 2}, {"b": 2, "a": 1}]
                )
        got, want = outcome(kept, messages, **more), outcome(fresh, messages, **more)
        assert got == want
        if isinstance(got, tuple) and "ud83d" not in family.template and "%S" not in family.template:
            assert got[0] == plain_render(
                family, [{**m, "content": repair_text(m["content"])} for m in messages], **more
            )
            assert kept.tokenizer.decode(got[1]) == got[0].encode()


@pytest.mark.parametrize("name", SHAPES)
def test_whatever_happens_the_prompt_is_a_fresh_ones(name: str) -> None:
    check(name, 20, 0)


@pytest.mark.slow
@pytest.mark.parametrize("name", SHAPES)
def test_many_conversations(name: str) -> None:
    for seed in range(1, 40):
        check(name, 150, seed)


def talk(count: int, family: Family = CHAT) -> list[dict[str, Any]]:
    tool = "tool" if "tool" in family.roles else "user"
    roles = ["user", "assistant", tool, "assistant"] if tool == "tool" else ["user", "assistant"]
    return [
        {"role": roles[number % len(roles)], "content": f"{number} " + "some words " * 20}
        for number in range(count)
    ]


def grown(encoder: PromptEncoder, messages: list[dict[str, Any]], **more: Any) -> list[Prompt]:
    return [encoder.encode(messages[:count], **more) for count in range(1, len(messages) + 1)]


@pytest.mark.parametrize("name", [*FAMILIES, *LOCAL])
def test_one_more_message_renders_the_new_message(name: str) -> None:
    encoder, _ = pair(SHAPES[name])
    messages = talk(60, SHAPES[name])
    if name == "stopping":
        messages = [message for message in messages if message["role"] != "tool"]
    prompts = grown(encoder, messages)
    for before, after in pairwise(prompts[20:]):
        # What is new, the last message (it was the last one), and for templates that mark what came since the
        # last question, all since then; a head may be said again.
        assert after.reused > len(before.text) - 5 * 300
    if name != "prompt in the last round":
        assert (
            encoder.encode(messages, add_generation_prompt=False).reused > len(prompts[-1].text) - 5 * 300
        )


@pytest.mark.parametrize("name", WHOLE)
def test_what_depends_on_the_end_is_rendered_anew(name: str) -> None:
    encoder, _ = pair(SHAPES[name])
    assert all(prompt.reused < 600 for prompt in grown(encoder, talk(12)))


def test_a_message_edited_in_place_is_a_new_one() -> None:
    kept, fresh = pair(FAMILIES["qwen3"])
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": {"a": [1, {"b": 2}]}}}
    messages = [*talk(8), {"role": "assistant", "content": "", "tool_calls": [call]}, *talk(8)]

    def edits() -> Any:
        yield lambda: call["function"]["arguments"]["a"][1].update(b=3)  # type: ignore[index]
        yield lambda: call["function"]["arguments"]["a"].__setitem__(0, True)  # type: ignore[index]
        yield lambda: call["function"]["arguments"]["a"].__setitem__(0, 1.0)  # type: ignore[index]
        yield lambda: call["function"].update(arguments={"z": 1, "a": 2})  # type: ignore[attr-defined]
        yield lambda: call["function"].update(arguments={"a": 2, "z": 1})  # type: ignore[attr-defined]
        yield lambda: messages[3].update(name="x")
        yield lambda: messages[2].update(content="new")

    kept.encode(messages)
    for edit in edits():
        edit()
        assert outcome(kept, messages) == outcome(fresh, messages)


def test_messages_as_values_are_remembered_as_they_were() -> None:
    kept, fresh = pair(FAMILIES["llama3"])
    calls = (ToolCall(id="1", name="f", arguments='{"a": 1}'),)
    messages = [
        Message(role="user", content="q"),
        Message(role="assistant", tool_calls=calls),
        Message(role="tool", content="r", tool_call_id="1"),
        Message(role="user", parts=(text_part("a"), text_part("b"))),
    ]
    kept.encode(messages)
    assert kept.encode(messages).reused
    calls[0].arguments = '{"a": 2}'
    assert outcome(kept, messages) == outcome(fresh, messages)
    messages[0].content = "p"
    assert outcome(kept, messages) == outcome(fresh, messages)


def test_tools_and_variables_are_not_taken_from_before() -> None:
    kept, fresh = pair(FAMILIES["qwen3"])
    messages = talk(9)
    for tools in ([], [ToolDef(name="f")], [ToolDef(name="f", description="d")], []):
        for thinking in (None, False, True):
            assert outcome(kept, messages, tools=tools, enable_thinking=thinking) == outcome(
                fresh, messages, tools=tools, enable_thinking=thinking
            )


@pytest.mark.parametrize("name", ["an outer value", "who owns the head"])
def test_a_variable_edited_in_place_is_a_new_one(name: str) -> None:
    kept, fresh = pair(SHAPES[name])
    papers: list[Any] = [{"title": "a", "pages": [1, (2, [3])]}]
    messages = talk(5)
    kept.encode(messages, flavour=papers)
    edits = (
        lambda: papers.append("b"),
        lambda: papers[0].update(title="c"),
        lambda: papers[0]["pages"][1][1].append(4),
        lambda: papers[0].update(papers=papers[1:]),
        papers.clear,
    )
    for edit in edits:
        edit()
        assert outcome(kept, messages, flavour=papers) == outcome(fresh, messages, flavour=papers)
    papers.append(papers)
    with pytest.raises(ValueError, match="64 levels"):
        kept.encode(messages, flavour=papers)


@pytest.mark.parametrize("name", ["an outer value", "who owns the head"])
def test_values_that_are_only_equal_are_not_the_same(name: str) -> None:
    kept, fresh = pair(SHAPES[name])
    messages = talk(5)
    for value in [*FLAVOURS, *FLAVOURS[::-1], *FLAVOURS[::3]]:
        assert outcome(kept, messages, flavour=value) == outcome(fresh, messages, flavour=value)


def test_what_is_done_with_a_prompt_does_not_show_in_the_next() -> None:
    kept, fresh = pair(CHAT)
    messages = talk(9)
    prompt = kept.encode(messages[:-1])
    with pytest.raises(ValueError, match="read-only"):
        prompt.ids[0] = 0
    with pytest.raises(ValueError, match="WRITEABLE"):
        prompt.ids.flags.writeable = True
    prompt.message_starts.clear()
    assert outcome(kept, messages) == outcome(fresh, messages)


CALL = {"id": "1", "type": "function", "function": {"name": "f", "arguments": "{}"}}
CHANGES: dict[str, Any] = {
    "content": "other",
    "role": "user",
    "name": "other",
    "tool_call_id": "2",
    "tool_calls": [{**CALL, "id": "2"}],
    "a call's arguments": None,
    "a new field": None,
    "a field gone": None,
}


@pytest.mark.parametrize("what", CHANGES)
def test_an_earlier_message_changed_in_place_is_seen(what: str) -> None:
    kept, fresh = pair(SHAPES["everything of a message"])
    messages = deepcopy(talk(9))
    message = messages[3]
    message |= {"name": "x", "tool_call_id": "1", "tool_calls": [deepcopy(CALL)]}
    before = outcome(kept, messages[:-1])
    assert outcome(kept, messages) != before
    if what == "a call's arguments":
        message["tool_calls"][0]["function"]["arguments"] = '{"a": 1}'
    elif what == "a field gone":
        del message["name"]
    else:
        message[what] = CHANGES[what] or "new"
    assert outcome(kept, messages) == outcome(fresh, messages)
    assert outcome(kept, messages[:-1]) != before


@pytest.mark.parametrize("field", Message.__struct_fields__)
def test_a_message_object_changed_in_place_is_seen(field: str) -> None:
    kept, fresh = pair(SHAPES["everything of a message"])
    call = ToolCall(id="1", name="f", arguments="{}")

    def talked() -> list[Message]:
        return [Message(role="tool", content=f"{n}", tool_call_id=f"{n}") for n in range(9)]

    messages = talked()
    changed = Message(
        role="assistant", content="c", reasoning="r", tool_calls=(call,), tool_call_id="1", name="n"
    )
    if field == "parts":
        changed.parts = (text_part("p"),)
    messages[3] = changed
    before = outcome(kept, messages)
    if field == "tool_calls":
        call.arguments = '{"a": 1}'
    elif field == "parts":
        changed.parts = (text_part("q"),)
    else:
        setattr(changed, field, "user" if field == "role" else "other")
    now = outcome(kept, messages)
    assert now == outcome(fresh, messages)
    if field in ("content", "parts", "role", "tool_calls"):  # of the others not every role shows each
        assert now != before


def test_ids_handed_out_stay_as_they_are() -> None:
    rng = random.Random(5)
    kept, fresh = pair(FAMILIES["chatml"])
    talks = [talk(2), [{**message, "content": "z"} for message in talk(2)]]
    held: list[tuple[Any, list[int]]] = []
    for _ in range(300):
        place = rng.randrange(len(talks))
        talks[place] = talks[place] + [
            {"role": rng.choice(["user", "tool"]), "content": "w" * rng.randrange(30)}
        ]
        if rng.random() < 0.1:
            talks[place] = talks[place][: rng.randrange(1, len(talks[place]))]
        if rng.random() < 0.1:
            talks.append(list(talks[place]))
        prompt = kept.encode(talks[place], add_generation_prompt=rng.random() < 0.8)
        ids = prompt.ids.tolist()
        assert (
            ids
            == fresh.encode(
                talks[place], add_generation_prompt=prompt.text.endswith("assistant\n")
            ).ids.tolist()
        )
        if rng.random() < 0.5:
            held.append((prompt.ids[: rng.choice([None, 5])], ids))
        while len(held) > rng.choice([0, 1, 3, 40]):
            held.pop(rng.randrange(len(held)))
        assert all(array.tolist() == known[: len(array)] for array, known in held)


def test_many_threads_may_share_an_encoder() -> None:
    kept, _ = pair(FAMILIES["qwen3"])

    def work(number: int) -> bool:
        _, fresh = pair(FAMILIES["qwen3"])
        messages = [{**message, "content": f"{number % 3} {message['content']}"} for message in talk(12)]
        return all(
            outcome(kept, messages[:count]) == outcome(fresh, messages[:count]) for count in range(1, 13)
        )

    with ThreadPoolExecutor(6) as pool:
        assert all(pool.map(work, range(12)))


def test_many_tools_do_not_matter() -> None:
    kept, fresh = pair(SHAPES["tools in the loop"])
    schema = {
        "type": "object",
        "properties": {f"p{n}": {"type": "string", "enum": ["a", "b"]} for n in range(300)},
    }
    tools = [ToolDef(name=f"t{n}", parameters=deepcopy(schema)) for n in range(40)]
    messages = talk(20)
    kept.encode(messages[:-1], tools=tools)
    assert kept.encode(messages, tools=tools).reused > 3000
    assert outcome(kept, messages, tools=tools) == outcome(fresh, messages, tools=tools)
    tools[0].name = "changed"
    assert outcome(kept, messages, tools=tools) == outcome(fresh, messages, tools=tools)


def test_objects_inside_messages_are_read_each_time() -> None:
    class Note:
        text = "a"

        def __str__(self) -> str:
            return self.text

    note = Note()
    source = f"{{% for m in messages %}}{{{{ m.note }}}}{SAY}{{% endfor %}}"
    encoder, _ = pair(dataclasses.replace(CHAT, template=source))
    messages = [{**message, "note": note} for message in talk(6)]
    encoder.encode(messages)
    note.text = "b"
    assert encoder.encode(messages).text.startswith("b")


def test_a_value_that_may_change_is_not_trusted() -> None:
    class Counter:
        n = 0

        def __str__(self) -> str:
            self.n += 1
            return str(self.n)

    kept, _ = pair(SHAPES["an outer value"])
    counter = Counter()
    messages = talk(6)
    for count in range(1, 7):
        text = kept.encode(messages[:count], flavour=counter).text
        assert text.startswith(f"{counter.n - count + 1}<|im_start|>")


@pytest.mark.parametrize("blanks", [0, 1, 63, 64, 65, 300, 5000])
@pytest.mark.parametrize("said", ["", ">", "<think>", "a<think>", "<think>b"])
@pytest.mark.parametrize("grown", [False, True])
def test_the_end_of_a_prompt_is_looked_at(said: str, blanks: int, grown: bool) -> None:
    encoder, _ = pair(
        dataclasses.replace(CHAT, template="{% for m in messages %}{{ m.content }}{% endfor %}")
    )
    messages = [{"role": "user", "content": "x" * 40000}] * grown
    if grown:
        encoder.encode(messages)
    messages += [{"role": "user", "content": said}, {"role": "user", "content": " \n" * blanks}]
    prompt = encoder.encode(messages)
    assert prompt.ends_with("<think>") == prompt.text.rstrip().endswith("<think>")
    assert PromptEncoder(encoder.tokenizer, "<think>").encode([]).ends_with("<think>")


def test_starts_take_one_rendering() -> None:
    family = CHAT
    encoder, _ = pair(family)
    messages = talk(200)
    prompt = encoder.encode(messages)
    rendered = 0
    render = encoder._template.render

    def counted(*args: Any, **kwargs: Any) -> Any:
        nonlocal rendered
        rendered += 1
        return render(*args, **kwargs)

    encoder._template.render = counted  # type: ignore[method-assign]
    starts = prompt.message_starts
    assert rendered == 1  # of no message: what stands before the first
    for index in (1, 50, 199):
        assert starts[index] == len(encoder.encode(messages[:index], add_generation_prompt=False).ids)


def test_starts_without_control_tokens_take_linear_time() -> None:
    template = "{% for m in messages %}### {{ m.role }}\n{{ m.content }}\n{% endfor %}"
    encoder, _ = pair(dataclasses.replace(CHAT, template=template))
    messages = talk(1200)
    prompt = encoder.encode(messages)
    seen = 0
    encode = encoder.tokenizer.encode

    def counted(text: str, **more: Any) -> Any:
        nonlocal seen
        seen += len(text)
        return encode(text, **more)

    encoder.tokenizer.encode = counted  # type: ignore[method-assign]
    starts = prompt.message_starts
    assert seen < 40 * len(prompt.text)
    # A vocabulary of bytes: each id is one.
    for index in range(1, 1200, 17):
        assert starts[index] == prompt.text.index(f"\n{index} ") + 1 - len(
            f"### {messages[index]['role']}\n"
        )


class Odd(dict[str, Any]):
    pass


SAME = [
    ("a", "a", True),
    ("a", "b", False),
    (1, 1, True),
    (1, True, False),
    (1, 1.0, False),
    (0.0, -0.0, False),
    (float("nan"), float("nan"), True),
    (None, None, True),
    ({"a": 1, "b": 2}, {"a": 1, "b": 2}, True),
    ({"a": 1, "b": 2}, {"b": 2, "a": 1}, False),
    ({"a": 1}, {"a": 1, "b": 2}, False),
    ([1, [2]], [1, [2]], True),
    ([1], (1,), False),
    ([1], [1, 2], False),
    (Message(role="user", content="a"), Message(role="user", content="a"), True),
    (Message(role="user", content="a"), Message(role="user", content="b"), False),
    (Odd(), Odd(), False),
    (Family("", ()), Family("", ()), False),
]


@pytest.mark.parametrize(("left", "right", "same"), SAME)
def test_what_counts_as_the_same(left: Any, right: Any, same: bool) -> None:
    assert same_beginning([left, 1], copied([right, 1])) == (2 if same else 0)
    assert same_beginning([right, 1], copied([left, 1])) == (2 if same else 0)


def test_nesting_without_end_is_not_the_same() -> None:
    left: list[Any] = []
    left.append(left)
    right: list[Any] = []
    right.append(right)
    assert same_beginning([left], [right]) == 0

"""What a store keeps of a session's shaping, for those who look into it later."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from agentkit_fast import (
    Entry,
    MemoryStore,
    RunnerProfile,
    ScriptedRunner,
    ShapePolicy,
    Shaper,
    SQLiteStore,
    StreamChunk,
    ToolDef,
)
from agentkit_fast.messages import image_part, text_part
from agentkit_fast.shaping.plan import Plan, Setup, recorded
from agentkit_fast.tokens import EndpointTokenizer
from agentkit_fast.xray import replay

POLICY = ShapePolicy(budget_tokens=4000, lod_above=200, headroom_tokens=500)
TOOLS = [ToolDef(name="look", description="Look at a shelf.")]


@pytest.mark.parametrize("store_kind", ["memory", "sqlite"])
def test_the_first_window_tells_what_it_was_built_with(store_kind: str, tmp_path: Path) -> None:
    store = MemoryStore() if store_kind == "memory" else SQLiteStore(tmp_path / "s.db")
    store.append("s", Entry(kind="user", content="hello"))
    shaper = Shaper(store, None, POLICY)
    first = shaper.build("s", "You \ud800 keep a depot.", TOOLS)
    found = recorded(store.load_plan("s"))
    assert found is not None
    policy, setup = found
    assert policy == POLICY
    assert setup.system == "You \ufffd keep a depot."
    assert msgspec.json.decode(setup.tools) == [tool.to_wire() for tool in TOOLS]
    assert setup.counter == "CharsByFour"
    assert shaper.build("s", "You \ud800 keep a depot.", TOOLS).to_json() == first.to_json()


def test_nothing_is_written_twice_or_over_the_plan_of_another_policy() -> None:
    class Counted(MemoryStore):
        saves = 0

        def save_plan(self, session_id: str, plan: bytes) -> None:
            self.saves += 1
            super().save_plan(session_id, plan)

    store = Counted()
    store.append("s", Entry(kind="user", content="hello"))
    shaper = Shaper(store, None, POLICY)
    for at in range(5):
        shaper.build("s", f"It is {at} o'clock.")
    assert store.saves == 1
    Shaper(store, None, POLICY).build("s", "It is 0 o'clock.")
    assert store.saves == 1
    Shaper(store, None, ShapePolicy(budget_tokens=9000)).build("s", "other")
    Shaper(store, None, ShapePolicy()).build("s", "other")
    assert store.saves == 1
    plain = Counted()
    plain.append("s", Entry(kind="user", content="hello"))
    Shaper(plain, None, ShapePolicy()).build("s", "other")
    assert plain.saves == 0


def test_a_fold_by_hand_leaves_what_the_windows_were_built_with() -> None:
    store = MemoryStore()
    for n in range(60):
        store.append("s", Entry(kind=("user", "assistant")[n % 2], content=f"{n} " * 20))
    Shaper(store, None, POLICY).build("s", "You keep a depot.", TOOLS)
    before = recorded(store.load_plan("s"))
    runner = ScriptedRunner(["a few notes"])
    assert Shaper(store, runner, POLICY).compact("s") is not None
    after = recorded(store.load_plan("s"))
    assert before is not None
    assert after == before


def test_an_older_plan_is_still_read() -> None:
    old = msgspec.json.encode(
        {
            "version": 1,
            "policy": msgspec.json.encode(POLICY).decode(),
            "runs": [],
            "silent": False,
            "hidden": 0,
            "degraded": "",
        }
    )
    found = recorded(old)
    assert found is not None
    assert found[0] == POLICY
    assert found[1].system == ""
    assert msgspec.json.decode(old, type=Plan).runs == []
    assert recorded(None) is None
    assert recorded(b"somebody else's") is None


class Summarizes:
    def __init__(self, profile: RunnerProfile) -> None:
        self.profile = profile

    def chat_stream(self, messages, tools=(), options=None):
        yield StreamChunk(content="All was in order so far.")
        yield StreamChunk(done=True, finish_reason="stop")


@pytest.mark.parametrize(
    "profile",
    [
        pytest.param(RunnerProfile(), id="usual"),
        pytest.param(RunnerProfile(alternate=True, system_role=False), id="one-role-after-the-other"),
        pytest.param(RunnerProfile(image_tokens=150), id="cheap-images"),
        pytest.param(RunnerProfile(image_tokens=2000, reasoning=True), id="dear-images"),
        pytest.param(RunnerProfile(safe_prompts=True), id="safe-prompts"),
        pytest.param(RunnerProfile(context_tokens=1200), id="summaries-in-pieces"),
    ],
)
def test_windows_are_played_again_for_the_same_model(profile: RunnerProfile) -> None:
    """What the template merges, what an image costs: the windows of the X-ray are those that were sent."""
    store = MemoryStore()
    shaper = Shaper(store, Summarizes(profile), POLICY)
    sent = []
    for n in range(40):
        parts = (text_part(f"crate {n}? <|im_end|>"), image_part("data:,x")) if n % 5 == 0 else ()
        store.append(
            "s", Entry(kind="user", content=f"crate {n}? <|im_end|> " + "please " * 60, parts=parts)
        )
        if n % 3 == 0:
            store.append("s", Entry(kind="user", content="And quickly."))
        window = shaper.build("s", "You keep a depot.", TOOLS)
        sent.append((window.tokens, window.break_reason))
        store.append("s", Entry(kind="assistant", content=f"crate {n} is fine", reasoning="Let me see."))
    found = recorded(store.load_plan("s"))
    assert found is not None
    policy, setup = found
    rounds = replay(
        store.history("s"), policy, system=setup.system, tools=TOOLS, profile=setup.runner_profile()
    )
    assert [(row.tokens, row.break_reason) for row in rounds] == sent
    assert any("folded" in reason for _, reason in sent)
    assert setup.profile == {
        name: getattr(profile, name)
        for name in ("alternate", "image_tokens", "reasoning", "safe_prompts", "system_role")
        if getattr(profile, name) != getattr(RunnerProfile(), name)
    }


def test_an_endpoint_that_counts_is_recorded_without_its_password() -> None:
    from agentkit_fast.shaping.plan import setup_of

    counter = EndpointTokenizer("http://me:secret@127.0.0.1:9/v1", "m", api_key="secret")
    setup = setup_of("", "", counter)
    assert (setup.endpoint, setup.endpoint_model) == ("http://127.0.0.1:9", "m")
    assert b"secret" not in msgspec.json.encode(setup)
    counter.close()


def test_a_profile_from_a_later_version_is_read_as_far_as_it_is_known() -> None:
    assert Setup(profile={"alternate": True, "tilt": 3}).runner_profile() == RunnerProfile(alternate=True)

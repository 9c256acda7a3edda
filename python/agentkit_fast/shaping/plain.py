"""`plain_window`: the whole history, no shaping."""

from __future__ import annotations

from typing import Any

from agentkit_fast._core import Transcript
from agentkit_fast.protocols import RunnerProfile, Store
from agentkit_fast.shaping.history import count_of, packs, read_packed, take_in
from agentkit_fast.shaping.policy import ShapePolicy, core_options
from agentkit_fast.shaping.window import Window

__all__ = ["plain_window"]


def plain_window(
    store: Store,
    session_id: str,
    system: str,
    tool_format: str = "native",
    *,
    profile: RunnerProfile | None = None,
) -> Window:
    """A window of all entries in the store's context, oldest first, repaired but not shortened.

    `profile` is that of the runner it is for; without it a plain OpenAI endpoint is assumed. Messages of
    the running tool loop carry their `reasoning`; it is in `to_json()` only where the profile sends it.
    Raises what the store raises.
    """
    known = profile or RunnerProfile()
    policy = ShapePolicy(tool_format=tool_format)
    options = core_options(policy, known, carry_reasoning=True)
    transcript = Transcript(options, count_of(known.counter))
    reader: Any = store
    if not packs(store) or not read_packed(transcript, reader.packed_since(session_id, 0)[0]):
        transcript.clear()
        take_in(transcript, store.context(session_id))
    transcript.set_fixed(system, "")
    return Window(transcript.window(), send_reasoning=known.reasoning)

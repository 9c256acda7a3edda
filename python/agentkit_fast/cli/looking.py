"""`agentkit-fast inspect`: a session as the model saw it, as one HTML page."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
from rich.console import Console

from agentkit_fast.cli.connect import UsageProblem, open_counter
from agentkit_fast.cli.sessions import open_store
from agentkit_fast.shaping import ShapePolicy
from agentkit_fast.tokens import CharsByFour
from agentkit_fast.xray import render_page, replay

__all__ = ["run_inspect"]


def run_inspect(
    file: Path,
    *,
    session_id: str,
    out: Path | None,
    model: Path | None,
    budget: int,
    lod_above: int,
    system: str,
    json_output: bool,
) -> int:
    """Play the session again under the policy given and write the page."""
    store = open_store(file)
    try:
        ids = store.sessions()
        chosen = session_id or (ids[0] if len(ids) == 1 else "")
        if chosen not in ids:
            names = ", ".join(ids) or "none"
            raise UsageProblem(f"say which session with --session-id; {file} holds: {names}")
        history = store.history(chosen)
    finally:
        store.close()
    counter = open_counter(model) if model else CharsByFour()
    policy = ShapePolicy(budget_tokens=budget, lod_above=lod_above)
    rounds = replay(history, policy, counter=counter, system=system)
    if json_output:
        print(json.dumps({"session": chosen, "rounds": msgspec.to_builtins(rounds)}))
        return 0
    target = out or Path(f"{file.stem}.html")
    target.write_text(render_page(f"{chosen} ({file.name})", history, rounds), encoding="utf-8")
    console = Console(highlight=False)
    console.print(
        f"{len(rounds)} requests, {len(history)} entries → {target}", markup=False, soft_wrap=True
    )
    if not budget:
        console.print(
            "No --budget: every request is shown whole. To see what was cut, give the budget the session ran with.",
            markup=False,
            soft_wrap=True,
        )
    return 0

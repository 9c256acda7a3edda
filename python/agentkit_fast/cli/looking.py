"""`agentkit-fast inspect`: a session as the model saw it, as one HTML page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
from rich.console import Console

from agentkit_fast.cli.connect import UsageProblem, open_counter
from agentkit_fast.cli.sessions import open_store
from agentkit_fast.shaping import ShapePolicy
from agentkit_fast.shaping.plan import Setup, recorded
from agentkit_fast.tokens import CharsByFour, EndpointTokenizer
from agentkit_fast.xray import render_page, replay

__all__ = ["run_inspect"]


def run_inspect(
    file: Path,
    *,
    session_id: str,
    out: Path | None,
    model: Path | None,
    endpoint: str | None,
    endpoint_model: str,
    budget: int | None,
    lod_above: int | None,
    system: str | None,
    json_output: bool,
) -> int:
    """Play the session again and write the page. `None`: as the file says the session ran, where it says so."""
    store = open_store(file)
    try:
        ids = store.sessions()
        chosen = session_id or (ids[0] if len(ids) == 1 else "")
        if chosen not in ids:
            names = ", ".join(ids) or "none"
            raise UsageProblem(f"say which session with --session-id; {file} holds: {names}")
        history = store.history(chosen)
        known = recorded(store.load_plan(chosen))
    finally:
        store.close()
    policy, setup = known or (ShapePolicy(lod_above=800), Setup())
    given = {"budget_tokens": budget, "lod_above": lod_above}
    policy = msgspec.structs.replace(
        policy, **{name: value for name, value in given.items() if value is not None}
    )
    notes = []
    counter: Any = CharsByFour()
    if model is not None and endpoint is not None:
        raise UsageProblem("give --model or --endpoint, not both")
    if model is not None:
        counter = open_counter(model)
    elif endpoint is not None:
        # Asked only where the user says so: a page about a file needs no network.
        counter = EndpointTokenizer(endpoint, endpoint_model or setup.endpoint_model)
    elif setup.vocabulary and Path(setup.vocabulary).is_file():
        counter = open_counter(Path(setup.vocabulary))
    elif setup.counter not in ("", "CharsByFour"):
        where = setup.vocabulary or setup.endpoint or setup.counter
        way = f"--endpoint {setup.endpoint} asks it, --model" if setup.endpoint else "--model"
        notes.append(
            f"The session counted with {where}, which is not at hand: counted as bytes by four instead, so windows may "
            f"have been cut elsewhere than shown. {way} names a vocabulary's file."
        )
    tools = json.loads(setup.tools) if setup.tools else []
    rounds = replay(
        history,
        policy,
        counter=counter,
        system=setup.system if system is None else system,
        tools=tools,
        profile=setup.runner_profile(),
    )
    if not policy.budget_tokens:
        notes.append(
            "No budget is recorded and no --budget given: every request is shown whole. To see what was cut, give the "
            "budget the session ran with."
        )
    elif known is None:
        notes.append(
            "The file does not say what its windows were built with; system prompt, tools and the model's template may "
            "have been others."
        )
    if json_output:
        report = {
            "session": chosen,
            "recorded": known is not None,
            "policy": msgspec.to_builtins(policy),
            "counter": setup.vocabulary or setup.endpoint or setup.counter,
            "notes": notes,
            "rounds": msgspec.to_builtins(rounds),
        }
        print(json.dumps(report))
        return 0
    target = out or Path(f"{file.stem}.html")
    target.write_text(render_page(f"{chosen} ({file.name})", history, rounds, notes), encoding="utf-8")
    console = Console(highlight=False)
    budgeted = f", budget {policy.budget_tokens:,}" if policy.budget_tokens else ""
    console.print(
        f"{len(rounds)} requests, {len(history)} entries{budgeted} → {target}", markup=False, soft_wrap=True
    )
    for note in notes:
        console.print(note, markup=False, soft_wrap=True)
    return 0

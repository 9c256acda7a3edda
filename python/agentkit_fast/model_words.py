"""Every sentence the loop itself shows to a model, in one place.

Each is short and says what happened, with figures, and what to do now. Errors begin with `ERROR:`, so
that a model trained on tool results reads them as failures.
"""

from __future__ import annotations

__all__ = [
    "EMPTY_RESULT",
    "TAG_CANCELLED",
    "TAG_EMPTY",
    "TAG_EXTRACTION",
    "TAG_LIMIT",
    "TAG_REPETITION",
    "TAG_TOOL_LOOP",
    "arguments_truncated",
    "arguments_unusable",
    "call_interrupted",
    "call_not_approved",
    "call_not_run",
    "call_over_limit",
    "call_timed_out",
    "call_without_name",
    "calls_switched_off",
    "cancelled_note",
    "cut_hint",
    "empty_reply",
    "extraction_ask",
    "extraction_fix",
    "extraction_one_only",
    "extraction_taken",
    "hand_over",
    "no_dispatcher",
    "repetition_note",
    "resolved",
    "resolved_expired",
    "slot_note",
    "tool_failed",
    "tool_loop_note",
]

TAG_CANCELLED = "cancelled"
TAG_EMPTY = "empty_reply"
TAG_EXTRACTION = "answer_check"
TAG_LIMIT = "limit"
TAG_REPETITION = "repetition"
TAG_TOOL_LOOP = "tool_loop"

EMPTY_RESULT = "(the tool ended without output)"


def slot_note() -> str:
    """Teaches `{OUTPUT}` and `{name}`."""
    return (
        "To show tool output to the user word for word, do not copy it. Write {OUTPUT} in your"
        " reply where the"
        " whole of the latest tool result belongs, or {name} for a part that the result marks as"
        " <name>...</name>. The user sees the full text in that place, also where your own view of"
        " it was cut"
        " short. Braces that name no tool output stay as they are."
    )


def arguments_truncated(chars: int) -> str:
    """A reply ended at its token limit inside this call, whatever its text looks like."""
    return (
        f"ERROR: not run. The arguments of this call were cut off after {chars} characters. Make the call"
        " smaller: send less text in one call, or split the work over several calls."
    )


def arguments_unusable(why: str) -> str:
    """A call that cannot be read: what `check_arguments` or `HeredocProblem` says of it."""
    return f"ERROR: {why}"


def calls_switched_off() -> str:
    """A call in a round that allows none."""
    return "ERROR: not run. No tool can be called now. Answer the user in plain words."


def call_without_name() -> str:
    """A call that names no tool."""
    return "ERROR: not run. The call names no tool. Write it again with the name of one of your tools."


def cut_hint(sections: list[str]) -> str:
    """How the user still sees all of a result that is cut in the model's view."""
    named = f", or {', '.join('{' + name + '}' for name in sections[:8])} for its parts" if sections else ""
    return f"to show the user all of it, write {{OUTPUT}}{named}"


def no_dispatcher(name: str) -> str:
    """A call although nothing can run it."""
    return f"ERROR: there is no tool {name!r}, and none can be called here. Answer in plain text."


def tool_failed(kind: str, message: str) -> str:
    """What a tool raised."""
    return f"ERROR: {kind}: {message}" if message else f"ERROR: {kind}"


def call_timed_out(name: str, seconds: float) -> str:
    """A call that took too long."""
    return (
        f"ERROR: {name} gave no answer within {seconds:g} s and was left. It may or may not have had its"
        " effect: check before you try again."
    )


def call_not_approved(name: str) -> str:
    """A person did not say yes."""
    return (
        f"ERROR: not run. The user did not approve this call of {name}. Do not repeat it; go on without it,"
        " or ask the user what they want instead."
    )


def call_over_limit(limit: int) -> str:
    """The turn's limit of tool calls is used up."""
    return f"ERROR: not run. This turn's limit of {limit} tool calls is used up."


def call_not_run() -> str:
    """The turn was stopped before the call began."""
    return "ERROR: not run. The turn was stopped before this call began."


def call_interrupted() -> str:
    """The turn was stopped while the call was running."""
    return (
        "ERROR: the turn was stopped while this call was running, and its outcome is unknown. It may or may"
        " not have had its effect: check before you run it again."
    )


def cancelled_note() -> str:
    """Ends a turn that was stopped."""
    return (
        "The user stopped the turn here, before it was finished. Do not take the work up again by yourself;"
        " do what the next message asks."
    )


def empty_reply() -> str:
    """The model said nothing."""
    return "Your last reply was empty. Answer the user now, in words or with a tool call."


def repetition_note(*, period: int, reps: int, where: str) -> str:
    """The reply ran in circles and was cut."""
    place = "reasoning" if where == "reasoning" else "reply"
    return (
        f"Your last {place} repeated the same {period} bytes {reps} times and was stopped; the copies are"
        " removed, and no tool call in it was run. Do not go on with that text: continue from what"
        " is new, or"
        " finish in a few words."
    )


def tool_loop_note(*, names: str, times: int, cycle: int, stop_at: int) -> str:
    """The same exchanges again and again."""
    what = f"You called {names}" if cycle == 1 else f"You went through the same {cycle} rounds ({names})"
    return (
        f"{what} {times} times with the same arguments, and the results were the same each time. Calling it"
        f" again will not change them; after {stop_at} times the turn is ended. Use what you have, try"
        " something else, or tell the user what is missing."
    )


def resolved(*, name: str, call_id: str, correlation_id: str, result: str) -> str:
    """The real result of a call that was answered as pending."""
    return (
        f"The result of the pending call {name} (id {call_id}, correlation {correlation_id}) has arrived:\n"
        f"{result}"
    )


def resolved_expired(*, name: str, call_id: str, correlation_id: str) -> str:
    """A pending call whose deadline passed."""
    return (
        f"The pending call {name} (id {call_id}, correlation {correlation_id}) gave no result before its"
        " deadline. Its outcome is unknown: check before you run it again, or go on without it."
    )


def hand_over(reason: str) -> str:
    """Asks for a last word where a limit ends the turn."""
    return (
        f"This turn ends here: {reason}. No tool can be called now. Tell the user in a few sentences what is done,"
        " what you found and what is left to do."
    )


def extraction_ask(*, schema: str, with_tool: str) -> str:
    """Asks for a value."""
    how = (
        f"Call the tool {with_tool} with the answer as its arguments."
        if with_tool
        else "Answer with that JSON value alone: no other words, no Markdown fence."
    )
    return f"Give the answer as one JSON value that fits this JSON Schema:\n{schema}\n{how}"


def extraction_taken() -> str:
    """The answer fits."""
    return "Taken."


def extraction_one_only() -> str:
    """A second answer beside the first."""
    return "ERROR: not taken. Give one answer only."


def extraction_fix(problem: str) -> str:
    """Says what was wrong with the answer."""
    return f"That answer does not fit: {problem}. Give the whole answer again, corrected."

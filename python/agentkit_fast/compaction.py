"""Summaries: the one step of shaping that needs a model.

The rules are a generator of effects (`Chat` asks for one reply), so that the synchronous and the
asynchronous shaper share them.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from typing import Any

import msgspec

from agentkit_fast.errors import CompactionFailed
from agentkit_fast.messages import ChatOptions, Message
from agentkit_fast.protocols import RunnerProfile

__all__ = ["MARKER_HEAD", "Chat", "Material", "Reply", "summarize"]

MARKER_HEAD = "[summary of earlier messages]\n"

_INSTRUCTION = (
    "You condense the older part of a conversation between a user and an assistant that uses tools, so"
    " that the work can go on without it. Write plain notes, no greeting and no comment. Keep: what the"
    " user asked for and decided; facts, names, numbers, paths and ids that may be needed again; what was"
    " done and what came of it; what is still open. Where an entry is shortened, keep its entry id. The"
    " notes replace the text they are made from."
)
_TASK = "The task, which stays in view and need not be repeated:\n"
_SO_FAR = "Notes so far; carry over what still matters:\n"
_TEXT = "Conversation to add to the notes:\n"
_PER_MESSAGE = 4
# A prompt with less room than this for the conversation itself would summarize scraps.
_LEAST_ROOM = 48


class Chat(msgspec.Struct, frozen=True):
    """An effect: ask the summarizing runner, answer with a `Reply`."""

    messages: tuple[Message, ...]
    options: ChatOptions


class Reply(msgspec.Struct, frozen=True):
    """What the runner said, or why it did not."""

    text: str = ""
    problem: str = ""


class Material(msgspec.Struct):
    """What is to be summarized.

    `units`: for each unit whether it is an earlier marker, and its messages as JSON. `task`: messages
    that stay. `context_tokens`: the summarizing runner's window, answer included. `answer_tokens`: room
    for a reply. `count`: the counter.
    """

    units: Sequence[tuple[bool, bytes]]
    task: Sequence[bytes]
    context_tokens: int
    answer_tokens: int
    count: Callable[[str], int]
    profile: RunnerProfile


def _text_of(content: Any) -> str:
    if isinstance(content, str):
        return content
    return "\n".join(part["text"] if part["type"] == "text" else "[image]" for part in content)


def _block(raw: bytes) -> str:
    """One unit as readable text."""
    lines = []
    for message in msgspec.json.decode(raw):
        role, text = message["role"], _text_of(message["content"])
        if role == "tool":
            lines.append(f"Result of {message.get('name', 'the call')}: {text}")
            continue
        if text:
            lines.append(f"{'Assistant' if role == 'assistant' else 'User'}: {text}")
        for call in message.get("tool_calls", ()):
            function = call["function"]
            lines.append(f"Call of {function['name']}: {function['arguments']}")
    return "\n".join(lines)


def cut_to(text: str, tokens: int, count: Callable[[str], int]) -> str:
    """The start of `text` within so many tokens, marked where something is missing."""
    have = count(text)
    if have <= tokens:
        return text
    raw = text.encode()
    size = len(raw)
    while size > 0:
        size = min(size * 9 // 10, size * max(0, tokens) // max(1, have))
        shorter = raw[:size].decode(errors="ignore") + " …"
        have = count(shorter)
        if have <= tokens:
            return shorter
    return ""


def summarize(material: Material) -> Generator[Chat, Reply, str]:
    """The summary of all units, asked for in pieces that fit, each unit in exactly one.

    Raises `CompactionFailed` when a reply failed or was empty, or the window has no room for a prompt.
    """
    count = material.count
    notes = "\n\n".join(
        _block(raw).removeprefix("User: ").removeprefix(MARKER_HEAD)
        for marker, raw in material.units
        if marker
    )
    blocks = [_block(raw) for marker, raw in material.units if not marker]
    task = "\n".join(_block(raw) for raw in material.task)
    room = material.context_tokens - material.answer_tokens
    at = 0
    first = True
    while at < len(blocks) or first:
        notes = cut_to(notes, max(room // 4, 16), count)
        shown_task = cut_to(task, max(room // 8, 16), count) if first else ""
        size = 0
        used = _prompt_tokens(_prompt(material.profile, shown_task, notes, []), count)
        free = room - used
        if free < _LEAST_ROOM:
            shown_task = ""
            free = room - _prompt_tokens(_prompt(material.profile, "", notes, []), count)
        if free < min(_LEAST_ROOM, room // 4):
            raise CompactionFailed(
                f"the summarizing model's window of {material.context_tokens} tokens has no room for a"
                f" summary: {used} tokens are needed before the first entry and {material.answer_tokens}"
                " for the answer"
            )
        piece: list[str] = []
        while at < len(blocks):
            cost = count(blocks[at]) + 1
            if size + cost > free:
                if piece:
                    break
                blocks[at] = cut_to(blocks[at], free - 2, count)
            piece.append(blocks[at])
            size += cost
            at += 1
        prompt = _prompt(material.profile, shown_task, notes, piece)
        # Joined texts can count a little more than their parts.
        while _prompt_tokens(prompt, count) > room and len(piece) > 1:
            piece.pop()
            at -= 1
            prompt = _prompt(material.profile, shown_task, notes, piece)
        while _prompt_tokens(prompt, count) > room and piece and piece[0]:
            piece[0] = cut_to(piece[0], count(piece[0]) - 8, count)
            prompt = _prompt(material.profile, shown_task, notes, piece)
        reply = yield Chat(messages=prompt, options=ChatOptions(max_tokens=material.answer_tokens))
        if reply.problem:
            raise CompactionFailed(f"the summary failed: {reply.problem}")
        notes = reply.text.strip()
        if not notes:
            raise CompactionFailed("the summary came back empty")
        first = False
    return notes


def _prompt(profile: RunnerProfile, task: str, notes: str, piece: list[str]) -> tuple[Message, ...]:
    sections = []
    if task:
        sections.append(_TASK + task)
    if notes:
        sections.append(_SO_FAR + notes)
    sections.append(_TEXT + "\n".join(piece))
    text = "\n\n".join(sections)
    if not profile.system_role:
        return (Message(role="user", content=f"{_INSTRUCTION}\n\n{text}"),)
    return (Message(role="system", content=_INSTRUCTION), Message(role="user", content=text))


def _prompt_tokens(messages: tuple[Message, ...], count: Callable[[str], int]) -> int:
    return sum(count(message.role) + count(message.content) + _PER_MESSAGE for message in messages)

"""Agents on language models, above all local ones: the tool-call loop, shaping, guards and stores.

Names are loaded when first used, so that importing the package costs little and pulls in no partner
(llama.cpp, numpy, an HTTP client) that is not needed.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from agentkit_fast.entries import (
        Compaction,
        CompactionInfo,
        Entry,
        EntryKind,
        EntryUsage,
        PendingNotice,
        RequestRetry,
        new_id,
    )
    from agentkit_fast.errors import (
        AgentkitError,
        CompactionFailed,
        ContextOverflow,
        ContextTruncated,
        EmptyReply,
        ExtractionError,
        HeredocError,
        InputTooLarge,
        LimitExceeded,
        MaxTurnsError,
        ModelLoadError,
        RepetitionError,
        RetryBudgetExhausted,
        RunnerError,
        SessionBusy,
        SessionClosed,
        StoreError,
        StreamInterrupted,
        ToolLoopError,
        TruncatedToolCall,
        UnsupportedTokenizer,
    )
    from agentkit_fast.finder import DocHit, FinderOptions, FinderPreparer
    from agentkit_fast.lifting import (
        ClearRequest,
        LiftRequest,
        is_resolved_truth,
        parse_clear_request,
        parse_lift_request,
        pending_result,
    )
    from agentkit_fast.limits import Limits, TokenUsage, TurnResult
    from agentkit_fast.messages import (
        ChatOptions,
        ContentPart,
        Message,
        StreamChunk,
        ToolCall,
        ToolDef,
        Usage,
        image_data,
        image_part,
        text_part,
    )
    from agentkit_fast.notices import PreparerChain, RevalidatingPreparer
    from agentkit_fast.probe import (
        EchoResult,
        ToolSurfaceReport,
        aprobe_tool_surface,
        probe_tool_surface,
    )
    from agentkit_fast.prompt import Prompt, PromptEncoder
    from agentkit_fast.protocols import RunnerProfile
    from agentkit_fast.runners import (
        HttpRunner,
        LocalRunner,
        RecordingRunner,
        ReplayRunner,
        RetryEvent,
        ScriptedRunner,
    )
    from agentkit_fast.session import Session, cancel_requested
    from agentkit_fast.shaping import (
        ShapePolicy,
        Shaper,
        Window,
        plain_window,
        read_entry_tool,
        shape_messages,
    )
    from agentkit_fast.stores import MemoryStore, SQLiteStore
    from agentkit_fast.text import (
        Arguments,
        HeredocProblem,
        HeredocStream,
        ParsedReply,
        ProseDelta,
        Repair,
        Repetition,
        RepetitionGuard,
        SpecialTokens,
        capture_slots,
        check_arguments,
        decode_tight,
        encode_tight,
        expand_entries,
        expand_slots,
        heredoc_grammar,
        heredoc_lark,
        heredoc_prompt,
        loose_json,
        neutralize_special_tokens,
        parse_tool_calls,
        rejected_arguments,
        render_tool_call,
        repair_json,
        restore_special_tokens,
        section_names,
        truncate_middle,
    )
    from agentkit_fast.tokens import (
        CharsByFour,
        EndpointTokenizer,
        GgufTokenizer,
        HfTokenizer,
        LearningCounter,
        budget,
    )
    from agentkit_fast.tools import Tool, ToolSet, tool
    from agentkit_fast.tracing import ConsoleTracer, OTelTracer
    from agentkit_fast.validation import JsonSchemaValidator, SchemaValidator, validating

# Where each public name lives. One line a module, so that two changes rarely touch the same line.
_HOMES: dict[str, tuple[str, ...]] = {
    "entries": (
        "Compaction",
        "CompactionInfo",
        "Entry",
        "EntryKind",
        "EntryUsage",
        "PendingNotice",
        "RequestRetry",
        "new_id",
    ),
    "errors": (
        "AgentkitError",
        "CompactionFailed",
        "ContextOverflow",
        "ContextTruncated",
        "EmptyReply",
        "ExtractionError",
        "HeredocError",
        "InputTooLarge",
        "LimitExceeded",
        "MaxTurnsError",
        "ModelLoadError",
        "RepetitionError",
        "RetryBudgetExhausted",
        "RunnerError",
        "SessionBusy",
        "SessionClosed",
        "StoreError",
        "StreamInterrupted",
        "ToolLoopError",
        "TruncatedToolCall",
        "UnsupportedTokenizer",
    ),
    "finder": ("DocHit", "FinderOptions", "FinderPreparer"),
    "lifting": (
        "ClearRequest",
        "LiftRequest",
        "is_resolved_truth",
        "parse_clear_request",
        "parse_lift_request",
        "pending_result",
    ),
    "limits": ("Limits", "TokenUsage", "TurnResult"),
    "messages": (
        "ChatOptions",
        "ContentPart",
        "Message",
        "StreamChunk",
        "ToolCall",
        "ToolDef",
        "Usage",
        "image_data",
        "image_part",
        "text_part",
    ),
    "probe": ("EchoResult", "ToolSurfaceReport", "aprobe_tool_surface", "probe_tool_surface"),
    "notices": ("PreparerChain", "RevalidatingPreparer"),
    "prompt": ("Prompt", "PromptEncoder"),
    "protocols": ("RunnerProfile",),
    "runners": (
        "HttpRunner",
        "LocalRunner",
        "RecordingRunner",
        "ReplayRunner",
        "RetryEvent",
        "ScriptedRunner",
    ),
    "session": ("Session", "cancel_requested"),
    "shaping": ("ShapePolicy", "Shaper", "Window", "plain_window", "read_entry_tool", "shape_messages"),
    "stores": ("MemoryStore", "SQLiteStore"),
    "text": (
        "Arguments",
        "HeredocProblem",
        "HeredocStream",
        "ParsedReply",
        "ProseDelta",
        "Repair",
        "Repetition",
        "RepetitionGuard",
        "SpecialTokens",
        "capture_slots",
        "check_arguments",
        "decode_tight",
        "encode_tight",
        "expand_entries",
        "expand_slots",
        "heredoc_grammar",
        "heredoc_lark",
        "heredoc_prompt",
        "loose_json",
        "neutralize_special_tokens",
        "parse_tool_calls",
        "rejected_arguments",
        "render_tool_call",
        "repair_json",
        "restore_special_tokens",
        "section_names",
        "truncate_middle",
    ),
    "tokens": (
        "CharsByFour",
        "EndpointTokenizer",
        "GgufTokenizer",
        "HfTokenizer",
        "LearningCounter",
        "budget",
    ),
    "tools": ("Tool", "ToolSet", "tool"),
    "tracing": ("ConsoleTracer", "OTelTracer"),
    "validation": ("JsonSchemaValidator", "SchemaValidator", "validating"),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = sorted(_HOME_OF)  # noqa: PLE0605


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from agentkit_fast import _core

        return _core.__version__
    module = _HOME_OF.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(importlib.import_module(f"{__name__}.{module}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

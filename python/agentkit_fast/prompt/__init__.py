"""Prompts that no text can forge: chat templates to token ids.

Control tokens come only from the template; what a message says stays text, byte for byte.
"""

from __future__ import annotations

from agentkit_fast.prompt.encoder import Prompt, PromptEncoder
from agentkit_fast.prompt.template import ChatTemplate

__all__ = ["ChatTemplate", "Prompt", "PromptEncoder"]

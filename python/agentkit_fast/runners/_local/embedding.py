"""Embeddings, in a context of their own."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from agentkit_fast.errors import InputTooLarge, RunnerError
from agentkit_fast.runners._local.llama import Context, Model

__all__ = ["Embedder"]

_MEAN = 1


class Embedder:
    """Pooled embeddings by the model's own pooling, or the mean over the tokens where it has none."""

    def __init__(self, model: Model, *, n_ctx: int, n_threads: int) -> None:
        trained = model.n_ctx_train or n_ctx
        # The whole text is one batch: encoders attend to all of it at once.
        self._longest = min(n_ctx, trained, 8192)
        size = -(-self._longest // 256) * 256
        self._model = model
        pooled = f"{model.metadata.get('general.architecture', '')}.pooling_type" in model.metadata
        self._context = Context(
            model,
            n_cells=size,
            n_sequences=1,
            n_batch=size,
            n_ubatch=size,
            n_threads=n_threads,
            n_threads_batch=n_threads,
            embeddings=True,
            options={} if pooled else {"pooling_type": _MEAN},
        )

    def embed(self, text: str) -> NDArray[np.float32]:
        """A vector of length 1."""
        ids = self._model.vocab.tokenize(text.encode("utf-8", "replace"), add_special=True)
        if len(ids) > self._longest:
            raise InputTooLarge(
                f"The text has {len(ids)} tokens; {self._longest} can be embedded at once. Split it.",
                prompt_tokens=len(ids),
                context_tokens=self._longest,
            )
        if not len(ids):
            return np.zeros(self._model.n_embd, dtype=np.float32)
        self._context.truncate(0, 0)
        if self._context.decode(ids, 0, 0, every=True) != 0:
            raise RunnerError(f"llama.cpp could not embed a text of {len(ids)} tokens.")
        vector = self._context.embeddings(0)
        if vector is None:
            raise RunnerError("This model gives no embeddings.")
        length = float(np.linalg.norm(vector))
        return vector / np.float32(length) if length > 0 else vector

    def close(self) -> None:
        self._context.close()

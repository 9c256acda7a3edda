"""Tiny models with random weights, written by us: architectures whose real weights are not at hand.

What they say is noise, but llama.cpp computes it as it computes any model's reply, so that what the cache does with
recurrent states, sliding windows and pooled embeddings can be held against plain llama.cpp on the same tokens.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

CHATML = (
    "{% for m in messages %}{{ '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
WIDTH, LAYERS, CONTEXT = 32, 2, 2048
_ALIGNMENT = 32

Tensors = dict[str, np.ndarray]


def _string(value: str) -> bytes:
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def _value(value: Any) -> bytes:
    if isinstance(value, bool):
        return struct.pack("<IB", 7, value)
    if isinstance(value, int):
        return struct.pack("<II", 4, value)
    if isinstance(value, float):
        return struct.pack("<If", 6, value)
    if isinstance(value, str):
        return struct.pack("<I", 8) + _string(value)
    kind = 8 if isinstance(value[0], str) else 6 if isinstance(value[0], float) else 5
    head = struct.pack("<IIQ", 9, kind, len(value))
    if kind == 8:
        return head + b"".join(map(_string, value))
    return head + np.array(value, dtype="<f4" if kind == 6 else "<i4").tobytes()


def write(path: Path, keys: Mapping[str, Any], tensors: Tensors) -> Path:
    """A GGUF file: keys, then the tensors as f32 (their shapes in numpy's order, the last one runs fastest)."""
    head = [b"GGUF", struct.pack("<IQQ", 3, len(tensors), len(keys))]
    head += [_string(key) + _value(value) for key, value in keys.items()]
    offset, data = 0, []
    for name, tensor in tensors.items():
        shape = tensor.shape[::-1]
        head.append(_string(name) + struct.pack(f"<I{len(shape)}QIQ", len(shape), *shape, 0, offset))
        raw = tensor.astype("<f4").tobytes()
        raw += bytes(-len(raw) % _ALIGNMENT)
        data.append(raw)
        offset += len(raw)
    start = b"".join(head)
    path.write_bytes(start + bytes(-len(start) % _ALIGNMENT) + b"".join(data))
    return path


def byte_letters() -> list[str]:
    """The letter byte-level BPE writes for each byte."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = iter(range(256, 512))
    return [chr(byte) if byte in plain else chr(next(others)) for byte in range(256)]


def byte_vocabulary(control: tuple[str, ...] = SPECIAL, template: str = CHATML) -> dict[str, Any]:
    """A vocabulary of single bytes and control tokens, the last of which ends a reply."""
    tokens = [*byte_letters(), *control]
    return {
        "tokenizer.ggml.model": "gpt2",
        "tokenizer.ggml.pre": "gpt-2",
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [1] * 256 + [3] * len(control),
        "tokenizer.ggml.merges": ["a b"],
        "tokenizer.ggml.eos_token_id": len(tokens) - 1,
        "tokenizer.ggml.add_bos_token": False,
        "tokenizer.chat_template": template,
    }


class Weights:
    """Random tensors, the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self._noise = np.random.default_rng(seed)
        self.tensors: Tensors = {}

    def add(self, name: str, *shape: int, scale: float = 0.2, around: float = 0.0) -> None:
        self.tensors[name] = self._noise.normal(around, scale, shape)

    def norm(self, name: str, width: int = WIDTH) -> None:
        self.add(name, width, scale=0.1, around=1.0)

    def attention(self, at: str, heads: int, kv_heads: int, head: int) -> None:
        self.add(f"{at}.attn_q.weight", heads * head, WIDTH)
        self.add(f"{at}.attn_k.weight", kv_heads * head, WIDTH)
        self.add(f"{at}.attn_v.weight", kv_heads * head, WIDTH)
        self.add(f"{at}.attn_output.weight", WIDTH, heads * head)

    def feed_forward(self, at: str, inner: int) -> None:
        self.norm(f"{at}.ffn_norm.weight")
        self.add(f"{at}.ffn_gate.weight", inner, WIDTH)
        self.add(f"{at}.ffn_up.weight", inner, WIDTH)
        self.add(f"{at}.ffn_down.weight", WIDTH, inner)


def _causal(
    path: Path,
    arch: str,
    keys: Mapping[str, Any],
    fill: Callable[[Weights], None],
    seed: int,
    *,
    template: str = CHATML,
    control: tuple[str, ...] = SPECIAL,
) -> Path:
    vocabulary = byte_vocabulary(control, template)
    if not template:
        del vocabulary["tokenizer.chat_template"]
    weights = Weights(seed)
    size = len(vocabulary["tokenizer.ggml.tokens"])
    weights.add("token_embd.weight", size, WIDTH, scale=1.0)
    # A head of its own: the embedding turned round says one letter for ever. And letters alone are said, so that a
    # reply comes back from a history as it was written.
    weights.add("output.weight", size, WIDTH)
    weights.tensors["output.weight"][[byte for byte in range(256) if not 32 <= byte < 127]] = 0
    fill(weights)
    common = {"block_count": LAYERS, "context_length": CONTEXT, "embedding_length": WIDTH}
    named = {f"{arch}.{key}": value for key, value in {**common, **keys}.items()}
    return write(path, {"general.architecture": arch, **named, **vocabulary}, weights.tensors)


def mamba(path: Path, *, seed: int = 1) -> Path:
    """A recurrent model: no keys and values, one state a sequence."""
    inner, state, rank, kernel = 2 * WIDTH, 16, 4, 4

    def fill(weights: Weights) -> None:
        weights.norm("output_norm.weight")
        for layer in range(LAYERS):
            at = f"blk.{layer}"
            weights.norm(f"{at}.attn_norm.weight")
            weights.add(f"{at}.ssm_in.weight", 2 * inner, WIDTH)
            weights.add(f"{at}.ssm_conv1d.weight", inner, kernel)
            weights.add(f"{at}.ssm_conv1d.bias", inner)
            weights.add(f"{at}.ssm_x.weight", rank + 2 * state, inner)
            weights.add(f"{at}.ssm_dt.weight", inner, rank)
            weights.add(f"{at}.ssm_dt.bias", inner)
            weights.tensors[f"{at}.ssm_a"] = -np.tile(np.arange(1.0, state + 1) / 8, (inner, 1))
            weights.add(f"{at}.ssm_d", inner)
            weights.add(f"{at}.ssm_out.weight", WIDTH, inner)

    keys = {
        "feed_forward_length": 0,
        "attention.head_count": 0,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "ssm.conv_kernel": kernel,
        "ssm.inner_size": inner,
        "ssm.state_size": state,
        "ssm.time_step_rank": rank,
    }
    return _causal(path, "mamba", keys, fill, seed)


def lfm2(path: Path, *, seed: int = 2) -> Path:
    """A hybrid model: one layer with a recurrent state, one with attention."""
    heads, kv_heads, head, inner, kernel = 4, 2, 8, 64, 3

    def fill(weights: Weights) -> None:
        weights.norm("token_embd_norm.weight")
        for layer in range(LAYERS):
            at = f"blk.{layer}"
            weights.norm(f"{at}.attn_norm.weight")
            if layer == 0:
                weights.add(f"{at}.shortconv.conv.weight", WIDTH, kernel)
                weights.add(f"{at}.shortconv.in_proj.weight", 3 * WIDTH, WIDTH)
                weights.add(f"{at}.shortconv.out_proj.weight", WIDTH, WIDTH)
            else:
                weights.attention(at, heads, kv_heads, head)
                weights.norm(f"{at}.attn_q_norm.weight", head)
                weights.norm(f"{at}.attn_k_norm.weight", head)
            weights.feed_forward(at, inner)

    keys = {
        "feed_forward_length": inner,
        "attention.head_count": heads,
        "attention.head_count_kv": [0, kv_heads],
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.freq_base": 10000.0,
        "shortconv.l_cache": kernel,
    }
    return _causal(path, "lfm2", keys, fill, seed)


def gemma3(path: Path, *, window: int = 24, seed: int = 3) -> Path:
    """A model whose attention slides: five layers see `window` tokens, the sixth all."""
    heads, kv_heads, head, inner, layers = 4, 2, 8, 64, 6

    def fill(weights: Weights) -> None:
        weights.norm("output_norm.weight")
        for layer in range(layers):
            at = f"blk.{layer}"
            weights.norm(f"{at}.attn_norm.weight")
            weights.attention(at, heads, kv_heads, head)
            weights.norm(f"{at}.attn_q_norm.weight", head)
            weights.norm(f"{at}.attn_k_norm.weight", head)
            weights.norm(f"{at}.post_attention_norm.weight")
            weights.feed_forward(at, inner)
            weights.norm(f"{at}.post_ffw_norm.weight")

    keys = {
        "block_count": layers,
        "feed_forward_length": inner,
        "attention.head_count": heads,
        "attention.head_count_kv": kv_heads,
        "attention.key_length": head,
        "attention.value_length": head,
        "attention.layer_norm_rms_epsilon": 1e-6,
        "attention.sliding_window": window,
        "rope.freq_base": 10000.0,
    }
    return _causal(path, "gemma3", keys, fill, seed)


def llama(path: Path, *, template: str = CHATML, control: tuple[str, ...] = SPECIAL, seed: int = 4) -> Path:
    """A plain model; with an empty `template` the file brings none."""
    heads, kv_heads, head, inner = 4, 2, 8, 64

    def fill(weights: Weights) -> None:
        weights.norm("output_norm.weight")
        for layer in range(LAYERS):
            at = f"blk.{layer}"
            weights.norm(f"{at}.attn_norm.weight")
            weights.attention(at, heads, kv_heads, head)
            weights.feed_forward(at, inner)

    keys: dict[str, Any] = {
        "feed_forward_length": inner,
        "attention.head_count": heads,
        "attention.head_count_kv": kv_heads,
        "attention.layer_norm_rms_epsilon": 1e-5,
        "rope.dimension_count": head,
    }
    return _causal(path, "llama", keys, fill, seed, template=template, control=control)


WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")


def bert(path: Path, *, pooling: int = 1, seed: int = 5) -> Path:
    """An encoder for embeddings, with a WordPiece vocabulary of letters. `pooling`: 1 mean, 2 the first token."""
    letters = [chr(code) for code in range(ord("a"), ord("z") + 1)]
    # llama.cpp marks the beginning of a word, where the vocabulary file marks its continuation.
    tokens = [*WORDS, *(f"\u2581{letter}" for letter in letters), *letters, "\u2581cat", "\u2581.", "."]
    heads, inner, positions = 4, 64, 128
    weights = Weights(seed)
    weights.add("token_embd.weight", len(tokens), WIDTH, scale=1.0)
    weights.add("token_types.weight", 2, WIDTH)
    weights.add("position_embd.weight", positions, WIDTH)

    def norm(name: str) -> None:
        weights.norm(f"{name}.weight")
        weights.add(f"{name}.bias", WIDTH)

    def linear(name: str, out: int, into: int) -> None:
        weights.add(f"{name}.weight", out, into)
        weights.add(f"{name}.bias", out)

    norm("token_embd_norm")
    for layer in range(LAYERS):
        at = f"blk.{layer}"
        for part in ("attn_q", "attn_k", "attn_v", "attn_output"):
            linear(f"{at}.{part}", WIDTH, WIDTH)
        norm(f"{at}.attn_output_norm")
        linear(f"{at}.ffn_up", inner, WIDTH)
        linear(f"{at}.ffn_down", WIDTH, inner)
        norm(f"{at}.layer_output_norm")
    keys = {
        "general.architecture": "bert",
        "bert.block_count": LAYERS,
        "bert.context_length": positions,
        "bert.embedding_length": WIDTH,
        "bert.feed_forward_length": inner,
        "bert.attention.head_count": heads,
        "bert.attention.layer_norm_epsilon": 1e-12,
        "bert.attention.causal": False,
        "bert.pooling_type": pooling,
        "tokenizer.ggml.model": "bert",
        "tokenizer.ggml.token_type_count": 2,
        "tokenizer.ggml.tokens": tokens,
        "tokenizer.ggml.token_type": [3] * len(WORDS) + [1] * (len(tokens) - len(WORDS)),
        "tokenizer.ggml.padding_token_id": 0,
        "tokenizer.ggml.unknown_token_id": 1,
        "tokenizer.ggml.bos_token_id": 2,
        "tokenizer.ggml.eos_token_id": 3,
        "tokenizer.ggml.cls_token_id": 2,
        "tokenizer.ggml.seperator_token_id": 3,
        "tokenizer.ggml.mask_token_id": 4,
    }
    return write(path, keys, weights.tensors)


def lora(path: Path, *, rank: int = 2, seed: int = 6) -> Path:
    """An adapter for `llama`'s output projections, strong enough to change what is said."""
    weights = Weights(seed)
    for layer in range(LAYERS):
        weights.add(f"blk.{layer}.attn_output.weight.lora_a", rank, WIDTH, scale=1.0)
        weights.add(f"blk.{layer}.attn_output.weight.lora_b", WIDTH, rank, scale=1.0)
    keys = {
        "general.type": "adapter",
        "general.architecture": "llama",
        "adapter.type": "lora",
        "adapter.lora.alpha": float(rank),
    }
    return write(path, keys, weights.tensors)

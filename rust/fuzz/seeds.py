"""Writes what fuzzing starts from into `corpus/`: the golden inputs, and two small GGUF files.

python rust/fuzz/seeds.py
"""

import json
import struct
from pathlib import Path

HERE = Path(__file__).resolve().parent
GOLDEN = HERE.parent.parent / "tests" / "data" / "golden"
# Which golden inputs are near what each target reads, and what stands before the text there.
NEAR = {
    "neutralize": ("neutralize_default", b"<a\0[x]\0"),
    "special_tokens": ("neutralize_default", b"<|\0<|im\0"),
    "repetition": ("repetition", b"\5\2\4\60"),
    "slots": ("capture_slots", b""),
    "truncate": ("capture_slots", b"\20\0"),
    "tight": ("encode_tight", b""),
    "loose_json": ("repair_json", b""),
    "arguments": ("check_arguments", b""),
    "tool_calls": ("parse_tool_calls", b"\2\3\7"),
    "render": ("check_arguments", b"f\0"),
}


def text(value: str) -> bytes:
    raw = value.encode()
    return struct.pack("<Q", len(raw)) + raw


def array(code: int, values: list[bytes]) -> bytes:
    return struct.pack("<IQ", code, len(values)) + b"".join(values)


def gguf(pairs: list[tuple[str, int, bytes]]) -> bytes:
    body = b"".join(text(key) + struct.pack("<I", code) + value for key, code, value in pairs)
    tensor = text("token_embd.weight") + struct.pack("<IQQIQ", 2, 64, 3, 0, 0)
    return b"GGUF" + struct.pack("<IQQ", 3, 1, len(pairs)) + body + tensor


def vocabularies() -> dict[str, bytes]:
    letters = [*map(chr, range(0x21, 0x7F)), "Ġ", "th", "the", "Ġthe", "<|end|>", "<tool>", "\n\n", "\n"]
    kinds = [1] * (len(letters) - 4) + [3, 4, 4, 4]
    pieces = [
        "<unk>",
        "<s>",
        "</s>",
        *(f"<0x{byte:02X}>" for byte in range(256)),
        "▁",
        "t",
        "h",
        "th",
        "▁th",
    ]
    return {
        "bpe": gguf(
            [
                ("tokenizer.ggml.model", 8, text("gpt2")),
                ("tokenizer.ggml.pre", 8, text("llama-bpe")),
                ("tokenizer.ggml.tokens", 9, array(8, [text(token) for token in letters])),
                ("tokenizer.ggml.token_type", 9, array(5, [struct.pack("<i", kind) for kind in kinds])),
                ("tokenizer.ggml.merges", 9, array(8, [text(pair) for pair in ["t h", "th e", "Ġ the"]])),
                ("tokenizer.ggml.add_bos_token", 7, b"\1"),
            ]
        ),
        "spm": gguf(
            [
                ("tokenizer.ggml.model", 8, text("llama")),
                ("tokenizer.ggml.tokens", 9, array(8, [text(token) for token in pieces])),
                ("tokenizer.ggml.scores", 9, array(6, [struct.pack("<f", -i) for i in range(len(pieces))])),
                (
                    "tokenizer.ggml.token_type",
                    9,
                    array(5, [struct.pack("<i", kind) for kind in [2, 3, 3] + [6] * 256 + [1] * 5]),
                ),
            ]
        ),
    }


def main() -> None:
    for target, (golden, before) in NEAR.items():
        folder = HERE / "corpus" / target
        folder.mkdir(parents=True, exist_ok=True)
        for number, line in enumerate((GOLDEN / f"{golden}.jsonl").read_text("utf-8").splitlines()):
            given = json.loads(line)["in"]
            given = "".join(given) if isinstance(given, list) else given
            raw = before + (given if isinstance(given, str) else json.dumps(given)).encode(
                "utf-8", "replace"
            )
            if len(raw) <= 4096:
                (folder / f"golden-{number}").write_bytes(raw)
    folder = HERE / "corpus" / "gguf"
    folder.mkdir(parents=True, exist_ok=True)
    for name, raw in vocabularies().items():
        (folder / name).write_bytes(raw)


if __name__ == "__main__":
    main()

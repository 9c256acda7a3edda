"""Small stand-ins for modules that are not merged yet. To be deleted with their merge."""

from __future__ import annotations

import msgspec


class Checked(msgspec.Struct):
    kind: str
    text: str
    message: str = ""


def check_arguments(raw: str) -> Checked:
    if not raw.strip():
        return Checked("ok", "{}")
    try:
        value = msgspec.json.decode(raw)
    except msgspec.DecodeError as error:
        kind = "truncated" if "truncated" in str(error) else "malformed"
        return Checked(kind, raw, str(error))
    return Checked("ok" if isinstance(value, dict) else "not_object", raw)


def rejected_arguments(raw: str, message: str) -> str:
    return msgspec.json.encode({"_error": message, "_raw_chars": len(raw), "_tail": raw[-800:]}).decode()

"""Server-sent events: bytes in, events out. No I/O.

The framing follows the WHATWG standard (lines end in LF, CR or CRLF; comments; several `data` lines; one
optional space after the colon; a byte order mark) and adds what servers really send: a bare JSON line
without `data:`, and a last event without the blank line after it.
"""

from __future__ import annotations

from agentkit_fast.errors import RunnerError

__all__ = ["MAX_EVENT_BYTES", "ErrorData", "SseDecoder"]

# A tool call may carry a whole file, so an event may be large; a server that never ends a line must still
# not fill the memory.
MAX_EVENT_BYTES = 256 * 1024 * 1024
_BOM = b"\xef\xbb\xbf"


class ErrorData(bytes):
    """The data of an event named `error`."""


class SseDecoder:
    """Splits a byte stream into the data of its events.

    `feed` and `finish` give the events that are complete, each as the bytes of its `data` (several lines
    joined by LF). Bytes are joined before they are decoded, so a code point may be cut anywhere. Each
    byte is looked at once, however small the pieces are.
    """

    def __init__(self, *, max_event_bytes: int = MAX_EVENT_BYTES) -> None:
        self._max = max_event_bytes
        self._tail: list[bytes] = []  # the pieces of a line whose end has not come yet
        self._size = 0  # bytes held in `_tail` and `_data`
        self._data: list[bytes] = []
        self._after_cr = False
        self._first = True
        self._named_error = False

    def feed(self, chunk: bytes) -> list[bytes]:
        """The events completed by `chunk`."""
        if not chunk:
            return []
        if self._after_cr:
            self._after_cr = False
            if chunk[0] == 10:
                chunk = chunk[1:]
        if b"\r" in chunk:
            self._after_cr = chunk.endswith(b"\r")
            chunk = chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        lines = chunk.split(b"\n")
        if len(lines) == 1:
            self._hold(self._tail, chunk)
            return []
        if self._tail:
            self._tail.append(lines[0])
            lines[0] = b"".join(self._tail)
            self._tail.clear()
            self._size = sum(map(len, self._data))
        last = lines.pop()
        if last:
            self._hold(self._tail, last)
        if self._first:
            self._first = False
            lines[0] = lines[0].removeprefix(_BOM)
        events: list[bytes] = []
        data = self._data
        for line in lines:
            if not line:
                if data:
                    event = data[0] if len(data) == 1 else b"\n".join(data)
                    events.append(ErrorData(event) if self._named_error else event)
                    data.clear()
                    self._size = sum(map(len, self._tail))
                self._named_error = False
            elif line.startswith(b"data:"):
                self._hold(data, line[6:] if line[5:6] == b" " else line[5:])
            elif line[:1] == b"{":
                # Not SSE, but some servers put an error on a bare line in the middle of a stream.
                events.append(line)
            elif line == b"data":
                data.append(b"")
            elif line.startswith(b"event:"):
                self._named_error = line[6:].strip() == b"error"
        return events

    def finish(self) -> list[bytes]:
        """The event that was under way when the stream ended, if there is one."""
        tail = b"".join(self._tail)
        self._tail.clear()
        if self._first:
            tail = tail.removeprefix(_BOM)
        events = self.feed(b"\n\n") if not tail else self.feed(tail + b"\n\n")
        return [event for event in events if event]

    def _hold(self, where: list[bytes], piece: bytes) -> None:
        self._size += len(piece)
        if self._size > self._max:
            raise RunnerError(
                f"The server sent one event of more than {self._max:,} bytes without an end; "
                "the stream was given up."
            )
        where.append(piece)

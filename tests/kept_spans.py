"""A tracer that keeps what it was told."""

from __future__ import annotations


class Kept:
    """Keeps its spans, in the order they began."""

    def __init__(self) -> None:
        self.spans: list[Kept.Span] = []

    class Span:
        def __init__(self, name: str, parent: Kept.Span | None) -> None:
            self.name, self.parent = name, parent
            self.attributes: dict[str, object] = {}
            self.ended = 0
            self.error: BaseException | None = None

        @property
        def under(self) -> str:
            """The name of the span it is in; empty for a root."""
            return self.parent.name if self.parent else ""

        def set(self, key: str, value: object) -> Kept.Span:
            self.attributes[key] = value
            return self

        def end(self) -> None:
            self.ended += 1

        def end_error(self, error: BaseException) -> None:
            self.ended += 1
            self.error = error

    def start(self, name: str, parent: Kept.Span | None = None) -> Kept.Span:
        self.spans.append(Kept.Span(name, parent))
        return self.spans[-1]

    def named(self, name: str) -> list[Kept.Span]:
        assert all(span.ended == 1 for span in self.spans)
        return [span for span in self.spans if span.name == name]

"""The Rust core, as Python sees it. This stub is its documentation."""

DEBUG_BUILD: bool
"""True in an unoptimized build; benchmarks refuse it."""

__version__: str

def chars_by_four(text: str) -> int:
    """Tokens in `text` by the rule "four UTF-8 bytes a token, rounded up"."""

def repair_surrogates(text: str) -> str:
    """`text` itself where it holds no surrogates; else pairs joined and each lone one as U+FFFD."""

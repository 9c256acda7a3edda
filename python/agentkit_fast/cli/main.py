"""Entry point of the `agentkit-fast` command. Nothing heavy is imported outside `main`, where Ctrl-C is awaited."""

from __future__ import annotations

import _thread
import os
import signal
import sys
import threading

__all__ = ["main"]

STOPPED = 130


def main() -> None:
    """Run the command line: our own errors, and a part that is not installed, are one line and exit code 2.

    Ctrl-C ends it with 130 and no traceback at any time: while modules load, in a command, on the way out.
    """
    sys.unraisablehook = _not_lost
    try:
        code = _run()
    except KeyboardInterrupt:
        code = STOPPED
    # What is left is the interpreter's own end, in which Ctrl-C would print the insides of some module.
    signal.signal(signal.SIGINT, lambda *_: os._exit(code or STOPPED))
    sys.exit(code)


def _not_lost(what: sys.UnraisableHookArgs) -> None:
    """Ctrl-C that struck where Python can only ignore it (a callback of C code, a finalizer) strikes once more."""
    if what.exc_type is KeyboardInterrupt:
        # From another thread, for here it would strike in the same place.
        threading.Timer(0.02, _thread.interrupt_main).start()
    else:
        sys.__unraisablehook__(what)


def _run() -> int:
    import warnings

    from agentkit_fast.cli.commands import app
    from agentkit_fast.errors import AgentkitError

    # To somebody at a terminal the line of ours that warns says nothing.
    warnings.showwarning = lambda message, *_, **__: print(f"warning: {message}", file=sys.stderr)
    try:
        app()
    except SystemExit as done:
        return done.code if isinstance(done.code, int) else int(done.code is not None)
    except AgentkitError as error:
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
        return 2
    except ImportError as error:
        print(f"A part is missing: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    main()

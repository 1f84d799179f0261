"""The command ``pgelect``. Here is only its entry; what it can do is in ``app``, one file a subcommand."""

import importlib.util
import os
import sys

__all__ = ["main"]


def main() -> None:
    """Run the command with the arguments of the process, and end the process with its exit code."""
    _open_streams()
    missing = [name for name in ("typer", "rich") if importlib.util.find_spec(name) is None]
    if missing:
        extra = "demo" if sys.argv[1:2] == ["demo"] else "cli"
        verb = "is" if len(missing) == 1 else "are"
        sys.exit(
            f"pgelect: the command line needs {' and '.join(missing)}, which {verb} not installed. "
            f"Install with: pip install 'pgelect[{extra}]'"
        )
    try:
        from pgelect.cli.app import app  # noqa: PLC0415 -- optional packages

        app(prog_name="pgelect")
    except KeyboardInterrupt:  # before or after a command that cleans up by itself
        sys.exit(130)
    except OSError as error:  # from a help text or the version; commands tell of their own
        print(f"pgelect: {error}", file=sys.stderr)
        sys.exit(2)


def _open_streams() -> None:
    """Open those standard streams that were closed, as by ``2>&-``: nobody reads, and printing must not fail.

    What is for one that is closed Python would print to standard output, which belongs to the command of ``run``.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: PTH123, SIM115 -- until the process ends

"""The entry of the command ``clew``, which says what to install where the extra ``cli`` is missing."""

from __future__ import annotations

import sys
from typing import Any

app: Any
try:
    from clew.cli.app import app
except ModuleNotFoundError as missing:
    if (missing.name or "").partition(".")[0] not in ("typer", "rich", "click"):
        raise
    app = None

__all__ = ["app", "main"]


def main() -> None:
    """Run the command that the process' arguments name, and end the process with its exit code."""
    if app is None:
        sys.exit("clew: the command line needs its extra; run: pip install 'clew[cli]'")
    for stream in (sys.stdout, sys.stderr):
        # What was stored may hold characters that the terminal's encoding has not.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    app(prog_name="clew")


if __name__ == "__main__":
    main()

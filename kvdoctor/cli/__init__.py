"""The command line: one file per command, no logic. Heavy imports happen inside the command that needs them."""

from __future__ import annotations

import os
import sys

EXIT_USAGE = 2
EXIT_UNKNOWN = 3


def run() -> None:
    """Entry point of the console script. A closed pipe ends quietly and never turns into a finding's exit code."""
    if os.environ.get("GITHUB_ACTIONS") and "FORCE_COLOR" not in os.environ:
        # rich would colour help text inside pipes there
        os.environ.setdefault("NO_COLOR", "1")
    from kvdoctor.cli.main import app

    try:
        app()
    except BrokenPipeError:
        # the reader left (| head): what is left has no reader, and the exit code stays the shell's own for a closed pipe
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, sys.stdout.fileno())
        sys.exit(141)

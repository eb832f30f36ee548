"""The command line: one file per command, no logic. Heavy imports happen inside the command that needs them."""

from __future__ import annotations

import gc
import io
import os
import sys

EXIT_USAGE = 2
EXIT_UNKNOWN = 3


def run() -> None:
    """Entry point of the console script. A closed pipe ends quietly and never turns into a finding's exit code."""
    if os.environ.get("GITHUB_ACTIONS") and "FORCE_COLOR" not in os.environ:
        # rich would colour help text inside pipes there
        os.environ.setdefault("NO_COLOR", "1")
    _streams()
    try:
        from kvdoctor.cli.main import app

        app()
    except BrokenPipeError:
        # the reader left (| head): what is left has no reader, and the exit code stays the shell's own for a closed pipe
        _drop_output()
        sys.exit(141)
    except OSError as error:
        _drop_output()
        sys.stderr.write(f"kvdoctor: {_told(error)}\n")
        sys.exit(EXIT_USAGE)
    except KeyboardInterrupt:
        sys.exit(130)
    except MemoryError:
        sys.stderr.write("kvdoctor: not enough memory for this input; give fewer or smaller files\n")
        sys.exit(EXIT_USAGE)
    except Exception as error:  # noqa: BLE001 - a fault of kvdoctor must not look like a finding (1), nor hide where it lies
        sys.stderr.write(
            f"kvdoctor: a fault of kvdoctor itself ({type(error).__name__}: {str(error)[:200]}, at {_place(error)}); "
            "please report this line; to find the file it stumbles over, give the files one by one\n"
        )
        sys.exit(EXIT_USAGE)
    finally:
        # the end of the process frees everything; to look for cycles first would be a tenth of a short run
        gc.freeze()


def _streams() -> None:
    """Output that was closed (``>&-``) goes nowhere; a character the terminal's encoding lacks is written as its escape."""
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - open as long as the process
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 - open as long as the process
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _drop_output() -> None:
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _told(error: OSError) -> str:
    what = error.strerror or str(error)
    return f"{error.filename}: {what}" if error.filename else f"input or output failed: {what}"


def _place(error: Exception) -> str:
    """File and line of kvdoctor where the error came up, without the folders of this machine."""
    step, place = error.__traceback__, "an unknown line"
    while step is not None:
        where = step.tb_frame.f_globals.get("__name__", "")
        if str(where).startswith("kvdoctor"):
            place = f"{where}:{step.tb_lineno}"
        step = step.tb_next
    return place

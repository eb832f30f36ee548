"""Run another program with a time limit and an output cap; its failure is a sentence, never an exception."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time
from collections import deque
from collections.abc import Sequence

from kvdoctor.collect.mask import mask_text
from kvdoctor.frozen import frozen

CHUNK = 1 << 16
STDERR_KEPT = 4096


@frozen
class Output:
    """What a program printed: at most the asked number of bytes of its standard output.

    ``cut``: there was more than that (the end is missing, or with ``keep="tail"`` the beginning). ``timed_out``: it was ended
    because it took too long. ``code`` is its exit status, None when it was ended by us. ``problem`` is empty when it ended
    by itself with status 0, else one clear sentence with secrets masked; ``absent`` when the program is not installed.
    """

    data: bytes
    code: int | None
    problem: str
    cut: bool = False
    timed_out: bool = False
    absent: bool = False


def run(argv: Sequence[str], *, timeout_s: float, cap: int, keep: str = "head", merge: bool = False) -> Output:
    """Run ``argv`` (no shell, no standard input). ``keep="head"`` ends the program once ``cap`` bytes have come.

    ``merge`` puts standard error into the output, in the order written (docker writes a container's two streams to its own).

    The program runs in its own process group and the whole group is ended on a time-out, on enough output and when the
    caller is interrupted.
    """
    tool = os.path.basename(argv[0])
    environment = {**os.environ, "LC_ALL": "C", "SYSTEMD_PAGER": "", "PAGER": "cat"}
    try:
        process = subprocess.Popen(
            list(argv),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT if merge else subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
    except FileNotFoundError:
        return Output(b"", None, f"{tool} is not installed (not found on PATH)", absent=True)
    except OSError as error:
        return Output(b"", None, f"{tool} cannot be started: {error.strerror}")
    assert process.stdout is not None
    kept: deque[bytes] = deque()
    size = 0
    errors = b""
    cut = enough = timed_out = False
    deadline = time.monotonic() + timeout_s
    try:
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            if process.stderr is not None:
                selector.register(process.stderr, selectors.EVENT_READ)
            while selector.get_map() and not enough:
                left = deadline - time.monotonic()
                if left <= 0:
                    timed_out = True
                    break
                for key, _ in selector.select(left):
                    block = os.read(key.fd, CHUNK)
                    if not block:
                        selector.unregister(key.fileobj)
                    elif key.fileobj is process.stderr:
                        errors = (errors + block)[:STDERR_KEPT]
                    else:
                        kept.append(block)
                        size += len(block)
                        if keep == "head" and size > cap:
                            cut = enough = True
                            break
                        while size - len(kept[0]) >= cap:
                            size -= len(kept.popleft())
                            cut = True
        if not (timed_out or enough):
            try:
                process.wait(max(deadline - time.monotonic(), 0.0))
            except subprocess.TimeoutExpired:
                timed_out = True
    finally:
        _end(process)
        process.stdout.close()
        if process.stderr is not None:
            process.stderr.close()
    data = b"".join(kept)
    if len(data) > cap:
        data, cut = (data[:cap] if keep == "head" else data[-cap:]), True
    code = None if timed_out or enough else process.returncode
    problem = ""
    if timed_out:
        problem = f"{tool} did not finish within {timeout_s:g} s"
    elif code:
        said = mask_text(_first_line(data[-STDERR_KEPT:] if merge else errors))
        problem = f"{tool} failed with status {code}" + (f": {said}" if said else "")
    return Output(data, code, problem, cut, timed_out)


def _first_line(raw: bytes) -> str:
    """The first telling line of an error stream (kubectl repeats its connection attempts with a log prefix before)."""
    lines = [line.strip() for line in raw.decode("utf-8", "replace").splitlines() if line.strip()]
    plain = [line for line in lines if not (line[:1] in "EWI" and line[1:5].isdigit())]
    return (plain or lines or [""])[0][:300]


def _end(process: subprocess.Popen[bytes]) -> None:
    if process.poll() is not None:
        return
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
        except ProcessLookupError:
            break
        try:
            process.wait(1.0)
            return
        except subprocess.TimeoutExpired:
            continue
    process.wait(1.0)

"""Vendor text -> vendor's own words and units, with line numbers.

Every parser here is a pure function of text: a line it cannot read is counted and kept as a :class:`BadLine`, the rest
is read. A number the source does not give is an :class:`Unread`, never 0 and never an empty string.
"""

from __future__ import annotations

from kvdoctor.frozen import frozen

MAX_LINE = 64 * 1024
"""Longest line, in characters, that is looked at; longer ones are cut first so that no pattern sees hostile input."""

SHOWN = 60
"""Characters of a refused line or page that are kept for the report."""

KEPT_BAD = 100
"""Refused lines kept with their text; further ones are only counted."""


OOM_LITERALS = (
    "out of memory",
    "OutOfMemory",
    "OUT_OF_MEMORY",
    "cudaErrorMemoryAllocation",
    "CUBLAS_STATUS_ALLOC_FAILED",
    "failed to allocate",
    "could not be allocated",
    "Not enough memory to handle",
    "NVML_SUCCESS == r INTERNAL ASSERT",
)
"""Every message that :func:`kvdoctor.parse.oom.find` knows holds one of these, unless a line feed broke it inside the words."""

TORCH_PROCESS = "pt_main_thread"
"""PyTorch gives its process this name: the kernel's lines then do not tell the program."""


NOT_ASKED = "not in this output"
"""The reason of a value that this form of the output never prints: it was not asked for, it is not that nobody knows it."""


@frozen
class Unread:
    """A value the source names but does not give, or does not print at all; ``reason`` says which of the two."""

    reason: str


@frozen
class BadLine:
    """A line that could not be read: 1-based number, why, and its first characters."""

    line: int
    why: str
    text: str


def bad_line(line: int, why: str, text: str) -> BadLine:
    """Build a :class:`BadLine`, keeping only the first :data:`SHOWN` characters of the text."""
    return BadLine(line, why, text[:SHOWN])

"""Reading the outside: servers, GPUs, logs, the host. The only room with input and output; it parses nothing.

Every source becomes a snapshot member (raw text, kind, origin, time) or a ``Missing`` with reason and hint.
"""

from __future__ import annotations


class SpecError(ValueError):
    """What a user wrote as a source cannot be meant; the message says how it is written."""

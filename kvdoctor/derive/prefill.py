"""Is prefill the work that the waiting requests wait for?"""

from __future__ import annotations

from kvdoctor.derive.view import View
from kvdoctor.derive.work import chunk_tokens
from kvdoctor.facts import Unknown, measured

FULL = 0.95
"""Of the largest piece: the last tokens of a page, or of a prompt that ends here, are left out of a full step."""
FEWEST = 5
"""Lines with requests waiting: a burst of two or three is no state."""


def add(view: View) -> None:
    """Set ``prefill.full_share`` from the batch lines of a log that prints one for each prefill step (SGLang)."""
    name = "prefill.full_share"
    largest = chunk_tokens(view)
    queued = [s for s in view.stats if s.batch and (s.event.number("waiting") or 0.0) > 0]
    if len(queued) < FEWEST or largest is None:
        view.facts.set(
            name,
            Unknown("too few lines of single steps with requests waiting, or the size of a prefill step is not told"),
        )
        return
    full = [s for s in queued if s.batch == "prefill" and (s.event.number("new_tokens") or 0.0) >= FULL * largest]
    note = f"{len(full)} full prefill steps in {len(queued)} step lines with requests waiting"
    view.facts.set(name, measured(len(full) / len(queued), "w", queued[-1].source, note=note))

"""What the engine is, as opposed to what the operator's policy says: batch limits and scheduling habits."""

from __future__ import annotations

from kvdoctor.frozen import frozen


@frozen
class GrowthReserve:
    """Admission by expected growth (SGLang): free tokens must cover the newcomer's whole output and ``ratio`` of what
    the running ones may still add. The ratio falls by one step per decode and jumps up after a retraction.

    The defaults are those of the engine at ``schedule_conservativeness`` 1; ``initial`` scales with that flag.
    """

    initial: float = 0.7
    floor_share: float = 0.14
    decay_steps: int = 600
    most_new_tokens: int = 4096
    retract_steps: int = 20

    def __post_init__(self) -> None:
        if not 0 < self.initial <= 1 or not 0 <= self.floor_share <= 1:
            raise ValueError(f"growth reserve {self.initial} with floor {self.floor_share} must be shares of 1")
        if min(self.decay_steps, self.most_new_tokens) < 1 or self.retract_steps < 0:
            raise ValueError("growth reserve: steps and token limits must be at least 1")

    @property
    def floor(self) -> float:
        """The lowest ratio that decay reaches."""
        return self.initial * self.floor_share

    @property
    def step(self) -> float:
        """Fall of the ratio per decode step."""
        return (self.initial - self.floor) / self.decay_steps


@frozen
class Limits:
    """Batch limits and habits of the engine. Defaults are vLLM's.

    ``prefix_caching`` lets turns of a session find their context; what a preempted request finds is the policy's
    ``release``. ``mixed_prefill`` computes prefill chunks beside decodes; without it a prefill step holds decodes up.
    ``requeue`` says where a victim waits: before everyone (vLLM) or behind everyone (SGLang).
    """

    max_num_seqs: int = 256
    max_batched_tokens: int = 2048
    prefix_caching: bool = True
    mixed_prefill: bool = True
    requeue: str = "front"
    growth: GrowthReserve | None = None

    def __post_init__(self) -> None:
        if self.max_num_seqs < 1:
            raise ValueError(f"max_num_seqs = {self.max_num_seqs} must be at least 1")
        if self.max_batched_tokens < 1:
            raise ValueError(f"max_batched_tokens = {self.max_batched_tokens} must be at least 1")
        if self.requeue not in ("front", "back"):
            raise ValueError(f"requeue = {self.requeue!r} must be front or back")

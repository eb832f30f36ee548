"""Prompts out of SGLang's prefill lines: pieces of one prompt are one prompt, and their times give a speed."""

from __future__ import annotations

from collections.abc import Sequence

from kvdoctor.facts import Fact, Known, Unknown
from kvdoctor.pipeline import diagnose
from kvdoctor.snapshot import Snapshot, memory_member

ARGS = "[2026-10-02 11:40:00] server_args=ServerArgs(model_path='m', tp_size=1, chunked_prefill_size={chunk})"


def prefill(
    second: int, new: int, *, seqs: int = 1, cached: int = 0, pending: int | None = None, rank: str = "TP0"
) -> str:
    rest = "" if pending is None else f", #pending-token: {pending}"
    return (
        f"[2026-10-02 11:40:{second:02d} {rank}] Prefill batch, #new-seq: {seqs}, #new-token: {new}, #cached-token: {cached}, "
        f"token usage: 0.30, #running-req: 3, #queue-req: 0{rest}"
    )


def decode(second: int, rank: str = "TP0") -> str:
    return (
        f"[2026-10-02 11:40:{second:02d} {rank}] Decode batch, #running-req: 3, #token: 90000, token usage: 0.30, "
        "cuda graph: True, gen throughput (token/s): 200.00, #queue-req: 0"
    )


def facts(lines: Sequence[str], chunk: int | None = 4096) -> dict[str, Fact]:
    head = [] if chunk is None else [ARGS.format(chunk=chunk)]
    text = "\n".join([*head, *lines, ""])
    return dict(diagnose(Snapshot((memory_member("server.log", text.encode()),)), ()).main.facts)


def mean(lines: Sequence[str], chunk: int | None = 4096) -> tuple[float, float | None]:
    fact = facts(lines, chunk)["work.prompt_mean"]
    assert isinstance(fact, Known)
    return float(fact.hi), fact.requests


THREE = [prefill(1, 4096), prefill(2, 4096), prefill(3, 1000), decode(4), prefill(9, 700), decode(10)]


def test_lines_as_long_as_a_chunk_are_pieces_of_one_prompt() -> None:
    assert mean(THREE) == ((9192 + 700) / 2, 2.0)


def test_the_chunk_size_is_seen_where_it_is_not_told() -> None:
    assert mean(THREE, chunk=None) == ((9192 + 700) / 2, 2.0)


def test_nothing_is_joined_where_prompts_are_not_cut() -> None:
    assert mean(THREE, chunk=-1) == (2473.0, 4.0)


def test_a_prompt_that_ends_with_a_whole_chunk_ends_at_the_decode_line() -> None:
    lines = [prefill(1, 4096), prefill(2, 4096), decode(3), prefill(9, 4096), prefill(10, 4096), decode(11)]
    assert mean(lines) == (8192.0, 2.0)


def test_the_piece_that_goes_on_is_no_further_prompt_of_its_batch() -> None:
    # three prompts in 4096 + 2000 tokens: the third was cut
    assert mean([prefill(1, 4096, seqs=3), prefill(2, 2000), decode(3)]) == (6096 / 3, 1.0)


def test_ranks_do_not_go_on_with_each_others_prompts() -> None:
    lines = [prefill(1, 4096, rank="DP0"), prefill(1, 900, rank="DP1"), prefill(2, 500, rank="DP0")]
    assert mean(lines) == ((4596 + 900) / 2, 2.0)


def test_pending_tokens_tell_the_whole_length_with_the_first_piece() -> None:
    lines = [prefill(1, 4096, pending=5096), prefill(2, 4096, pending=1000), prefill(3, 1000, pending=0), decode(4)]
    assert mean(lines) == (9192.0, 1.0)


def test_pieces_give_the_prefill_speed() -> None:
    lines = [
        line for k in range(4) for line in (*(prefill(12 * k + 2 * i, 4096) for i in range(4)), decode(12 * k + 9))
    ]
    speed = facts(lines)["tok.prefill_speed"]
    assert isinstance(speed, Known)
    assert (speed.hi, speed.how) == (2048.0, "estimated")


def test_a_few_seconds_of_pieces_give_no_speed() -> None:
    assert isinstance(facts(THREE).get("tok.prefill_speed", Unknown("")), Unknown)


def test_turns_that_grow_are_a_conversation_and_equal_lengths_are_not() -> None:
    def turn(start: int, last: int) -> list[str]:
        return [prefill(start, 4096), prefill(start + 1, 4096), prefill(start + 2, last), decode(start + 3)]

    grown = facts([*turn(0, 1000), *turn(10, 1200), *turn(20, 1500)])["prefix.session_tokens"]
    assert isinstance(grown, Known)
    assert grown.hi == 9692.0
    assert isinstance(facts([*turn(0, 1000), *turn(10, 1000), *turn(20, 1000)])["prefix.session_tokens"], Unknown)

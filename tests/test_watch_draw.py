"""What the watch draws: pieces by their own arithmetic, the board in every size, a few boards word for word."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from watch_helpers import T0, page, page_text, sample, watcher

from kvdoctor.watch.draw import Line, Ui, badge, bar, board, clip, sorted_rows, spark, stacked
from kvdoctor.watch.sample import Sample
from kvdoctor.watch.watcher import Frame


def plain(lines: list[Line]) -> list[str]:
    return ["".join(text for text, _ in line).rstrip() for line in lines]


def frame_of(servers: int = 1, **named: float) -> Frame:
    one = watcher()
    for second in range(8):
        pages = [
            page(
                T0 + second,
                page_text(usage=0.2 + 0.1 * number, preempted=second * number, generated=1000 + 40 * second * (number + 1), **named),
                f"h:{8000 + number}",
            )
            for number in range(servers)
        ]  # fmt: skip
        frame = one.feed(sample(second, *pages))
    return frame


# ---------------------------------------------------------------- pieces


@given(st.floats(0, 1), st.integers(3, 80))
def test_a_gauge_is_as_long_as_asked_and_as_full_as_said(share: float, width: int) -> None:
    drawn = bar(share, width)
    assert cell_len(drawn) == width
    assert drawn.count("█") == round(share * (width - 2))


def test_watermarks_stand_where_they_belong() -> None:
    assert bar(0.0, 12, (0.5,), plain=True) == "[.....|....]"
    assert bar(1.0, 12, (0.85, 0.95), plain=True) == "[########||]"


def test_the_scale_of_the_blocks_never_moves() -> None:
    assert spark([0.0, 0.5, 0.99, 1.0], 4) == "▁▅██"
    assert spark([0.5, 0.5], 2) == "▅▅"
    assert spark([1.0, None, 0.0], 3) == "█ ▁"
    assert spark([0.1] * 50, 5) == "▁▁▁▁▁"
    assert spark([1.0], 4, plain=True) == "   #"


def test_memory_is_stacked_in_proportion() -> None:
    assert stacked([("weights", 50.0), ("free", 50.0)], 100.0, 12) == "[aaaaa.....]"
    assert stacked([("weights", 90.0), ("unexplained", 30.0)], 100.0, 12) == "[aaaaaaaaa?]"
    assert stacked([], 0.0, 6) == "[    ]"


def test_a_wide_character_is_never_cut_in_half() -> None:
    assert clip([("ab", ""), ("漢字", "bold")], 5) == [("ab", ""), ("漢 ", "bold")]
    assert clip([("abc", "")], 0) == []


def test_every_state_has_a_word() -> None:
    for state in ("ok", "watch", "bad", "unknown"):
        assert badge("WORD", state)[0].strip() == "WORD"


# ---------------------------------------------------------------- the board


@pytest.mark.parametrize(("width", "height"), [(200, 60), (120, 40), (80, 24), (60, 15), (20, 5), (7, 2), (1, 1)])
@pytest.mark.parametrize("servers", [1, 8])
def test_the_board_fills_its_room_exactly(width: int, height: int, servers: int) -> None:
    frame = frame_of(servers)
    for ui in (Ui(), Ui(focus="table", row=servers - 1, sort=3, reverse=True), Ui(paused=True, note="done")):
        lines = board(frame, ui, width, height)
        assert len(lines) == height
        assert all(sum(cell_len(text) for text, _ in line) <= width for line in lines)


def test_a_board_without_room_or_without_a_frame() -> None:
    assert board(None, Ui(), 0, 10) == []
    assert plain(board(None, Ui(source="h:8000"), 40, 2)) == ["kvdoctor watch h:8000", "waiting for the first sample"]


def test_on_five_lines_stand_verdict_pool_queue_and_findings() -> None:
    text = "\n".join(plain(board(frame_of(2, waiting=3), Ui(), 60, 5)))
    for word in ("UNDETERMINED", "KV pool", "Requests", "finding"):
        assert word in text


def test_what_is_not_known_is_said_and_is_not_zero() -> None:
    one = watcher()
    frame = one.feed(Sample(T0))
    text = "\n".join(plain(board(frame, Ui(), 100, 30)))
    assert "KV pool     NOT KNOWN  neither a metric nor a log line tells the usage of the KV pool" in text
    assert "? running, ? waiting  NOT KNOWN" in text
    assert " 0%" not in text


def test_rows_are_sorted_by_the_chosen_column_and_unknown_ones_come_last() -> None:
    frame = frame_of(3)
    assert [r.server for r in sorted_rows(frame, Ui(sort=0))] == ["h:8000", "h:8001", "h:8002"]
    assert [r.server for r in sorted_rows(frame, Ui(sort=1))] == ["h:8002", "h:8001", "h:8000"]
    assert [r.server for r in sorted_rows(frame, Ui(sort=1, reverse=True))] == ["h:8000", "h:8001", "h:8002"]
    room = sorted_rows(frame, Ui(sort=6))
    assert [r.headroom for r in room] == [None, None, None]


def test_a_name_from_outside_cannot_steer_the_terminal() -> None:
    one = watcher()
    for second in range(3):
        frame = one.feed(sample(second, page(T0 + second, page_text(), "h\x1b[2J:1")))
    text = "\n".join(plain(board(frame, Ui(source="x\x1b]0;y\x07"), 200, 50)))
    assert "\x1b" not in text
    assert "\x07" not in text


def test_two_engines_in_sixty_columns() -> None:
    lines = plain(board(frame_of(2, running=4, waiting=0), Ui(source="two"), 60, 15))
    assert lines[0] == "kvdoctor watch 08:00:07 UTC two"
    assert lines[3] == "KV pool      30% [████████░░░░░░░░░░░|░░░|░░|░]  OK"
    assert lines[5:8] == [
        "  0..1                               ▃▃▃▃▃▃▃ marks 85% 95%",
        "Requests   8 running, 0 waiting  OK",
        "Preempted  1/s  WATCH  recomputed ? of tokens",
    ]
    assert lines[9:11] == [
        "engine^        KV running waiting  pre/s  tok/s  room",
        "  h:8000 #0   20%       4       0      0     40     ?",
    ]
    assert lines[14] == "q quit  h help  Enter evidence  u undecided  p pause  c capt"


def test_a_pool_that_fills_up_warns_before_the_next_request_fails_to_fit() -> None:
    extra = {
        "vllm:request_prompt_tokens_sum": 0.0, "vllm:request_prompt_tokens_count": 0.0,
        "vllm:request_generation_tokens_sum": 0.0, "vllm:request_generation_tokens_count": 0.0,
    }  # fmt: skip
    info = 'vllm:cache_config_info{block_size="16",num_gpu_blocks="1000",engine="0"} 1\n'
    one = watcher()
    for second in range(12):
        grown = {name: value + second * (800.0 if name.endswith("_sum") else 1.0) for name, value in extra.items()}
        text = page_text(usage=0.5 + second * 0.04, extra=grown) + info
        frame = one.feed(sample(second, page(T0 + second, text)))
    # 16000 tokens, 6 % of them free, 1600 a request
    assert frame.rows[0].headroom == pytest.approx(0.06 * 16000 / 1600)
    text = "\n".join(plain(board(frame, Ui(), 100, 30)))
    assert "0.6 average requests  WATCH  the next average request does not fit" in text

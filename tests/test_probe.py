"""The fragmentation probe. No GPU and no torch here: every run uses the simulated device, or stand-ins for NVML and
torch with the calls the driver makes; what real hardware answers is not shown by these tests.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import types
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from typer import Typer
from typer.testing import CliRunner

from kvdoctor.cli.probe import probe as probe_command
from kvdoctor.parse import probe_result
from kvdoctor.probe import driver as driver_module
from kvdoctor.probe import pattern as pattern_module
from kvdoctor.probe import run as run_module
from kvdoctor.probe.driver import MIB, PAGE, NoDevice, ProbeError, Survey, Tenant, TorchDriver
from kvdoctor.probe.pattern import AZURE_CONVERSATION, BYTES_PER_TOKEN, from_pairs, operations, pieces
from kvdoctor.probe.plan import GIB, Options, PatternName, make_plan
from kvdoctor.probe.run import run
from kvdoctor.probe.simulated import Neighbour, SimulatedDevice
from kvdoctor.probe.text import render_plan, render_result

ROOT = Path(__file__).parents[1]
SCHEMA = json.loads(Path(run_module.__file__).with_name("probe.schema.json").read_text())
QUICK = Options(patterns=("contiguous",))


def device(gib: int = 6, **fields: Any) -> SimulatedDevice:
    """A device with a server (process 7) on every second page of its first GiB."""
    fields.setdefault("neighbours", [Neighbour(7, set(range(0, 512, 2)))])
    return SimulatedDevice(pages=gib * 512, **fields)


def checked(result: dict[str, Any]) -> dict[str, Any]:
    jsonschema.validate(result, SCHEMA)
    return result


def probed(target: SimulatedDevice, options: Options = QUICK) -> dict[str, Any]:
    """Runs, checks the schema, and that nothing of the probe is left on the device."""
    result = checked(run(target, options))
    assert target.own_pages() == 0
    return result


# The plan and the reasons not to start


def test_dry_run_touches_nothing() -> None:
    target = device()
    result = checked(run(target, QUICK, dry_run=True))
    assert target.calls == 1
    assert not target.opened
    assert (result["device_level"], result["allocator_level"], result["stopped"]) == (None, None, None)
    assert [step["step"] for step in result["plan"]][:3] == ["guard", "guard", "context"]
    text = render_plan(result)
    assert "keep 2.0 GiB free" in text
    assert "process 7 holds 512 MiB" in text


@pytest.mark.parametrize("gib, reserve", [(6, 2 * GIB), (40, 4 * GIB)])
def test_reserve_is_the_larger_of_two_gib_and_ten_percent(gib: int, reserve: int) -> None:
    result = run(device(gib), QUICK, dry_run=True)
    assert result["device"]["reserve_bytes"] == reserve


@pytest.mark.parametrize(
    "fields, words",
    [
        ({"mps": True}, "MPS is running"),
        ({"compute_mode": "exclusive"}, "compute mode is exclusive"),
        ({"compute_mode": "prohibited"}, "compute mode is prohibited"),
        ({"not_installed": "torch is not installed"}, "torch is not installed"),
        ({"neighbours": [Neighbour(7, set(), age_s=40.0)]}, "process 7 started 40 s ago"),
        ({"neighbours": [Neighbour(7, set(range(1750)))]}, "are free, less than the reserve"),
        ({"absent": NoDevice("no NVIDIA driver on this host", "run it on the GPU host")}, "No device to probe"),
    ],
)
def test_it_refuses_before_making_a_context(fields: dict[str, Any], words: str) -> None:
    target = device(**fields)
    result = checked(run(target, QUICK))
    assert words in result["stopped"]
    assert not target.opened
    assert (result["device_level"], result["allocator_level"]) == (None, None)
    assert result["plan"]


def test_an_old_process_or_one_of_unknown_age_is_no_reason_to_refuse() -> None:
    old = [Neighbour(7, set(), age_s=200.0), Neighbour(8, set(), age_s=None)]
    assert run(device(neighbours=old), QUICK, dry_run=True)["stopped"] is None


@pytest.mark.parametrize(
    "fields, words",
    [
        ({"block_bytes": (MIB,)}, "at least 2 MiB"),
        ({"reserve": 1}, "at least 256 MiB"),
        ({"time_limit_s": 0.0}, "1 to 600"),
        ({"settings": ("expandable_segments",)}, "key:value"),
        ({"settings": ("backend:cudaMallocAsync",)}, "backend"),
    ],
)
def test_options_that_cannot_work_are_usage_errors(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Options(**fields)


# What is measured


def test_mapped_pages_show_no_gap_between_processes() -> None:
    level = probed(device())["device_level"]
    assert level["largest_single_bytes"] == level["limit_bytes"]
    assert level["largest_is_limit"] is True
    assert level["gap"] == 0
    assert level["tries"] == 1
    assert all(fit["count"] == fit["expected"] for fit in level["fit"])
    assert level["context_bytes"] == 150 * PAGE


def test_a_device_without_mapping_would_show_the_gap() -> None:
    """The gap is measured: with neighbours on every 100th page and adjacency required, 99 pages is the most."""
    scattered = [Neighbour(7, set(range(0, 3072, 100)))]
    level = probed(device(neighbours=scattered, mapped=False))["device_level"]
    assert level["largest_single_bytes"] == 99 * PAGE
    assert level["largest_is_limit"] is False
    assert level["gap"] == pytest.approx(1 - 99 * PAGE / level["limit_bytes"])
    by_size = {fit["block_bytes"]: fit for fit in level["fit"]}
    assert by_size[64 * MIB]["count"] == by_size[64 * MIB]["expected"] > 0
    assert by_size[256 * MIB]["count"] == 0


def test_a_named_block_size_is_fitted_and_timed() -> None:
    level = probed(device(), Options(block_bytes=(100 * MIB + 1,), patterns=("paged",)))["device_level"]
    named = next(fit for fit in level["fit"] if fit["block_bytes"] == 100 * MIB + 1)
    assert named["expected"] == level["limit_bytes"] // (102 * MIB)
    assert named["count"] == named["expected"]
    times = {row["bytes"]: row["median_s"] for row in level["malloc"]}
    assert set(times) == {PAGE, 64 * MIB, 100 * MIB + 1, 256 * MIB, 1024 * MIB}
    assert times[1024 * MIB] > times[64 * MIB] > 0


def test_the_reserve_stays_free_at_every_moment() -> None:
    lowest = [1 << 60]

    def look(target: SimulatedDevice, call: int) -> None:
        lowest[0] = min(lowest[0], target.free_count() * PAGE)

    result = probed(device(on_call=look), Options(patterns=("contiguous", "tiered")))
    assert result["stopped"] is None
    assert lowest[0] >= 2 * GIB


def replays(result: dict[str, Any]) -> dict[tuple[str, str], dict[str, Any]]:
    return {(run["pattern"], run["settings"]): run for run in result["allocator_level"]["runs"]}


def test_contiguous_requests_fail_with_memory_free_and_expandable_segments_help() -> None:
    options = Options(patterns=("contiguous", "paged"), settings=("", "expandable_segments:True"))
    found = replays(probed(device(12), options))
    plain = found["contiguous", ""]
    assert plain["false_refused"] > 0
    first = plain["first_false"]
    assert first["largest_fit_bytes"] < first["requested_bytes"] <= first["free_bytes"]
    assert plain["inactive_split_peak_bytes"] > 0
    assert found["contiguous", "expandable_segments:True"]["false_refused"] == 0
    # torch does not maintain the counter there: unknown, not zero
    assert found["contiguous", "expandable_segments:True"]["inactive_split_peak_bytes"] is None
    assert found["paged", ""]["refused"] == 0
    assert found["paged", ""]["external_max"] < plain["external_max"]


def test_the_report_says_what_it_cannot_know() -> None:
    result = probed(device())
    text = render_result(result)
    assert "no process can look there" in text
    assert "no gap is expected" in text
    assert "not a reading of the server" in text
    assert "all the reserve leaves; gap 0.0%" in text


def test_unreadable_process_list_is_said_and_free_memory_still_watched() -> None:
    moved = device(listed=False, on_call=lambda target, call: target.grow(7, 100) if call == 60 else None)
    result = probed(moved)
    assert result["device"]["processes"] is None
    assert "took 200 MiB" in result["stopped"]
    assert "only free memory can be watched" in render_plan(result)


# The watchdog


@pytest.mark.parametrize("call", range(2, 400, 13))
@pytest.mark.parametrize("pages, words", [(100, "took"), (-100, "freed")])
def test_it_stops_at_once_when_memory_moves(call: int, pages: int, words: str) -> None:
    seen: list[int] = []

    def move(target: SimulatedDevice, number: int) -> None:
        if number == call:
            target.grow(7, pages)
        if number >= call:
            seen.append(target.own_pages())

    target = device(on_call=move)
    result = probed(target)
    assert result["stopped"] is not None
    assert words in result["stopped"] or "are moving" in result["stopped"] or "changed its memory" in result["stopped"]
    # at most the call that was under way still allocates; then memory only goes back
    assert sum(after > before for before, after in pairwise(seen)) <= 1


def test_it_stops_when_a_process_grows_by_what_another_frees() -> None:
    def swap(target: SimulatedDevice, number: int) -> None:
        if number == 300:
            target.grow(8, -100)
            target.grow(7, 100)

    neighbours = [Neighbour(7, set(range(200))), Neighbour(8, set(range(300, 500)))]
    slow = device(neighbours=neighbours, on_call=swap, latency_s=0.01)
    assert "process 7 changed its memory by +200 MiB" in probed(slow)["stopped"]


@pytest.mark.parametrize("told", [True, False])
def test_it_stops_when_a_process_comes_or_goes(told: bool) -> None:
    def come(target: SimulatedDevice, number: int) -> None:
        if number == 200:
            target.neighbours.append(Neighbour(9, set(), told=told))

    def leave(target: SimulatedDevice, number: int) -> None:
        if number == 200:
            target.neighbours = [item for item in target.neighbours if item.pid != 8]

    both = [Neighbour(7, set(range(20))), Neighbour(8, set(), told=told)]
    assert "process 9 came" in probed(device(on_call=come, latency_s=0.01))["stopped"]
    assert "process 8 left" in probed(device(neighbours=both, on_call=leave, latency_s=0.01))["stopped"]


def test_its_own_process_under_a_host_pid_is_no_newcomer() -> None:
    """In a container the driver lists the probe under a pid that is not its own."""

    def appear(target: SimulatedDevice, number: int) -> None:
        if target.opened and all(item.pid != 4_000_000 for item in target.neighbours):
            target.neighbours.append(Neighbour(4_000_000, set(), told=False))

    assert probed(device(on_call=appear))["stopped"] is None


def test_memory_that_moves_before_the_start_means_an_engine_may_be_starting() -> None:
    target = device(on_call=lambda target, call: target.grow(7, 50) if call == 3 else None)
    result = probed(target)
    assert "an engine may be starting" in result["stopped"]
    assert not target.opened


def test_the_time_limit_ends_it_with_what_was_measured() -> None:
    slow = device(latency_s=0.05)
    result = probed(slow, Options(time_limit_s=5.0, patterns=("contiguous",)))
    assert "time limit of 5 s" in result["stopped"]
    assert result["device_level"]["largest_single_bytes"] > 0
    assert slow.clock < 10


def test_a_device_that_vanishes_is_a_sentence() -> None:
    def vanish(target: SimulatedDevice, number: int) -> None:
        target.lost = number == 150

    result = probed(device(on_call=vanish))
    assert "the device stopped answering" in result["stopped"]
    assert result["device_level"]["gap"] == 0


def test_it_stops_when_the_caller_dies(monkeypatch: pytest.MonkeyPatch) -> None:
    parents = iter([100] * 20 + [1] * 1000)
    monkeypatch.setattr(run_module.os, "getppid", lambda: next(parents))
    assert "the calling process died" in probed(device())["stopped"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_free_everything(number: signal.Signals) -> None:
    def interrupt(target: SimulatedDevice, call: int) -> None:
        if call in (250, 251, 260):
            os.kill(os.getpid(), number)

    before = signal.getsignal(number)
    result = probed(device(on_call=interrupt))
    assert f"interrupted by {number.name}" in result["stopped"]
    assert signal.getsignal(number) is before


CHILD = """
import sys, time
from kvdoctor.probe.plan import Options
from kvdoctor.probe.run import die_with_parent, run
from kvdoctor.probe.simulated import SimulatedDevice

def wait(target, call):
    if call == 100:
        open(sys.argv[1] + ".started", "w").write(str(target.own_pages()))
    if call >= 100:
        time.sleep(0.02)

assert die_with_parent()
target = SimulatedDevice(pages=3072, on_call=wait)
result = run(target, Options(settle_s=0.0))
open(sys.argv[1] + ".part", "w").write(f"{target.own_pages()} {result['stopped']}")
import os
os.rename(sys.argv[1] + ".part", sys.argv[1] + ".done")
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="prctl is Linux's")
def test_it_ends_and_frees_when_its_parent_is_killed(tmp_path: Path) -> None:
    base = tmp_path / "probe"
    parent_code = f"import subprocess,sys; subprocess.run([sys.executable, '-c', {CHILD!r}, sys.argv[1]])"
    parent = subprocess.Popen([sys.executable, "-c", parent_code, str(base)], cwd=ROOT)
    wait_for(lambda: base.with_suffix(".started").exists())
    parent.kill()
    parent.wait()
    wait_for(lambda: base.with_suffix(".done").exists())
    text = base.with_suffix(".done").read_text()
    assert text.startswith("0 Stopped: ")
    assert "SIGTERM" in text or "calling process died" in text


def wait_for(there: Callable[[], bool], seconds: float = 20.0) -> None:
    end = time.monotonic() + seconds
    while not there():
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.02)


@settings(max_examples=40, deadline=None)
@example(1, "lose", False)
@given(st.integers(0, 3000), st.sampled_from(["grow", "shrink", "lose", "leave", "signal", "none"]), st.booleans())
def test_whatever_happens_everything_is_freed_and_the_result_has_its_schema(call: int, what: str, mapped: bool) -> None:
    def act(target: SimulatedDevice, number: int) -> None:
        if number != call:
            return
        if what == "grow":
            target.grow(7, 1000)
        elif what == "shrink":
            target.grow(7, -200)
        elif what == "lose":
            target.lost = True
        elif what == "leave":
            target.neighbours = []
        elif what == "signal" and target.opened:
            os.kill(os.getpid(), signal.SIGTERM)

    handler = signal.getsignal(signal.SIGTERM)
    result = probed(device(4, mapped=mapped, on_call=act), Options(patterns=("contiguous", "tiered")))
    assert signal.getsignal(signal.SIGTERM) is handler
    if what == "none":
        assert result["stopped"] is None


# Patterns


def test_pieces_of_a_request() -> None:
    assert pieces("contiguous", 100) == (100 * BYTES_PER_TOKEN,)
    assert pieces("paged", 33) == (2 * MIB,) * 3
    # 3,200 tokens are 400 MiB: seven small blocks, not one of 1 GiB
    assert pieces("tiered", 3200) == (64 * MIB,) * 7
    assert pieces("tiered", 8192) == (1024 * MIB,)


@pytest.mark.parametrize("name", ["contiguous", "paged", "tiered"])
def test_requested_bytes_stay_below_the_fill_and_every_request_goes(name: PatternName) -> None:
    live: dict[int, int] = {}
    peak = 0
    for op in operations(name, AZURE_CONVERSATION, 4 * GIB):
        if op.take:
            live[op.request.ident] = op.request.bytes
            assert sum(op.request.sizes) >= op.request.bytes
        else:
            del live[op.request.ident]
        peak = max(peak, sum(live.values()))
    assert not live
    assert 0.5 * 4 * GIB < peak <= pattern_module.FILL * 4 * GIB


def test_captured_lengths_replace_the_public_ones() -> None:
    lengths = from_pairs([(100, 10)] * 50, "captured")
    assert set(lengths.draw(20)) == {(100, 10)}
    assert AZURE_CONVERSATION.draw(5) == AZURE_CONVERSATION.draw(5)
    result = run(device(), QUICK, lengths=lengths)
    assert result["allocator_level"]["lengths"] == "captured"
    with pytest.raises(ValueError, match="no request lengths"):
        from_pairs([], "captured")


# The driver, with stand-ins for NVML and torch


class NvmlError(Exception):
    pass


class NotSupported(NvmlError):
    pass


class LibraryNotFound(NvmlError):
    pass


def fake_nvml(monkeypatch: pytest.MonkeyPatch, **changes: Any) -> None:
    def not_supported(*args: Any) -> Any:
        raise NotSupported

    def memory(handle: Any, version: int) -> Any:
        assert version == 2
        return types.SimpleNamespace(total=80 * GIB, free=20 * GIB, used=59 * GIB)

    processes = [
        types.SimpleNamespace(pid=os.getpid(), usedGpuMemory=5),
        types.SimpleNamespace(pid=5_000_000, usedGpuMemory=None),
    ]
    module = {
        "NVMLError": NvmlError,
        "NVMLError_NotSupported": NotSupported,
        "NVMLError_LibraryNotFound": LibraryNotFound,
        "NVMLError_DriverNotLoaded": LibraryNotFound,
        "NVML_DEVICE_MIG_ENABLE": 1,
        "NVML_COMPUTEMODE_DEFAULT": 0,
        "NVML_COMPUTEMODE_PROHIBITED": 2,
        "nvmlMemory_v2": 2,
        "nvmlInit": lambda: None,
        "nvmlDeviceGetHandleByIndex": lambda index: f"gpu{index}",
        "nvmlDeviceGetHandleByUUID": lambda uuid: f"by {uuid}",
        "nvmlDeviceGetMigMode": not_supported,
        "nvmlDeviceGetMemoryInfo": memory,
        "nvmlDeviceGetUUID": lambda handle: f"GPU-{handle}",
        "nvmlDeviceGetName": lambda handle: b"NVIDIA H100",
        "nvmlDeviceGetComputeMode": lambda handle: 0,
        "nvmlDeviceGetComputeRunningProcesses": lambda handle: processes,
        **changes,
    }
    monkeypatch.setitem(sys.modules, "pynvml", types.SimpleNamespace(**module))
    monkeypatch.setattr(driver_module, "_mps_running", lambda: False)


def test_survey_reads_memory_and_other_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_nvml(monkeypatch)
    survey = TorchDriver("3").survey()
    assert isinstance(survey, Survey)
    assert (survey.uuid, survey.name, survey.free, survey.mig) == ("GPU-gpu3", "NVIDIA H100", 20 * GIB, False)
    assert survey.tenants is not None
    (other,) = survey.tenants
    assert (other.pid, other.bytes, other.age_s) == (5_000_000, None, None)


def test_mig_parent_is_refused_with_the_instances_and_an_instance_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    def instance(handle: str, number: int) -> str:
        if number:
            raise NotSupported
        return "mig0"

    on = {"nvmlDeviceGetMigMode": lambda handle: (1, 1), "nvmlDeviceGetMaxMigDeviceCount": lambda handle: 7}
    fake_nvml(monkeypatch, **on, nvmlDeviceGetMigDeviceHandleByIndex=instance)
    parent = TorchDriver("0").survey()
    assert isinstance(parent, NoDevice)
    assert parent.hint == "name one instance with --device: GPU-mig0"
    own = TorchDriver("MIG-abc").survey()
    assert isinstance(own, Survey)
    assert (own.mig, own.uuid) == (True, "GPU-by MIG-abc")


def test_default_device_is_the_first_visible_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-abc,MIG-def")
    assert TorchDriver().device == "MIG-abc"
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES")
    assert TorchDriver().device == "0"


def raising(error: Exception) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        raise error

    return call


@pytest.mark.parametrize(
    "changes, words",
    [
        ({"nvmlInit": raising(LibraryNotFound())}, "no NVIDIA driver on this host"),
        ({"nvmlDeviceGetMemoryInfo": raising(NotSupported())}, "does not report this device's memory"),
        ({"nvmlDeviceGetHandleByIndex": raising(NvmlError("Invalid Argument"))}, "device 0 cannot be read"),
    ],
)
def test_what_nvml_cannot_answer_is_a_sentence(
    monkeypatch: pytest.MonkeyPatch, changes: dict[str, Any], words: str
) -> None:
    fake_nvml(monkeypatch, **changes)
    found = TorchDriver("0").survey()
    assert isinstance(found, NoDevice)
    assert words in found.reason


def test_process_list_without_permission_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    fake_nvml(monkeypatch, nvmlDeviceGetComputeRunningProcesses=raising(NotSupported()))
    survey = TorchDriver("0").survey()
    assert isinstance(survey, Survey)
    assert survey.tenants is None


class OutOfMemoryError(RuntimeError):
    pass


class FakeCuda:
    """The torch.cuda calls of the driver over 8 GiB; a request above what is left is torch's OutOfMemoryError."""

    OutOfMemoryError = OutOfMemoryError

    def __init__(self) -> None:
        self.held: dict[int, int] = {}
        self.next = 1000
        self.settings: list[str] = []
        self.fraction = 1.0
        self.broken = False
        self.memory = types.SimpleNamespace(_set_allocator_settings=self.set)

    def set(self, text: str) -> None:
        if "nonsense" in text:
            raise ValueError("Unrecognized CachingAllocator option: nonsense")
        self.settings.append(text)

    def is_available(self) -> bool:
        return True

    def set_device(self, index: int) -> None:
        assert index == 0

    def synchronize(self) -> None:
        pass

    def get_device_properties(self, index: int) -> Any:
        return types.SimpleNamespace(is_integrated=False)

    def mem_get_info(self, index: int) -> tuple[int, int]:
        if self.broken:
            raise RuntimeError("CUDA error: unspecified launch failure\nCUDA kernel errors might be ...")
        return 8 * GIB - sum(self.held.values()), 8 * GIB

    def caching_allocator_alloc(self, size: int, index: int) -> int:
        if self.broken:
            raise RuntimeError("CUDA error: unspecified launch failure")
        if sum(self.held.values()) + size > self.fraction * 8 * GIB:
            raise OutOfMemoryError("CUDA out of memory.")
        self.next += 1
        self.held[self.next] = size
        return self.next

    def caching_allocator_delete(self, handle: int) -> None:
        if self.broken:
            raise RuntimeError("CUDA error: unspecified launch failure")
        del self.held[handle]

    def empty_cache(self) -> None:
        pass

    def set_per_process_memory_fraction(self, fraction: float, index: int) -> None:
        self.fraction = fraction

    def memory_reserved(self, index: int) -> int:
        return sum(self.held.values())

    def memory_stats(self, index: int) -> dict[str, int]:
        return {
            "reserved_bytes.all.current": 60 * MIB,
            "allocated_bytes.all.current": 10 * MIB,
            "inactive_split_bytes.all.current": 10 * MIB,
        }

    def memory_snapshot(self) -> list[dict[str, Any]]:
        used, free = {"size": 10 * MIB, "state": "active_allocated"}, {"size": 10 * MIB, "state": "inactive"}
        return [
            {"total_size": 20 * MIB, "segment_type": "large", "is_expandable": False, "blocks": [used, free]},
            {
                "total_size": 40 * MIB,
                "segment_type": "large",
                "is_expandable": False,
                "blocks": [{"size": 40 * MIB, "state": "inactive"}],
            },
        ]


def opened(monkeypatch: pytest.MonkeyPatch) -> tuple[TorchDriver, FakeCuda]:
    fake_nvml(monkeypatch)
    cuda = FakeCuda()
    monkeypatch.setitem(sys.modules, "torch", types.SimpleNamespace(cuda=cuda))
    monkeypatch.setenv("PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5")
    driver = TorchDriver("5")
    driver.survey()
    driver.open()
    return driver, cuda


def test_torch_sees_the_chosen_device_by_uuid_and_default_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    opened(monkeypatch)
    assert os.environ["CUDA_VISIBLE_DEVICES"] == "GPU-gpu5"
    assert "PYTORCH_CUDA_ALLOC_CONF" not in os.environ


def test_torch_out_of_memory_is_none_and_a_lost_device_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    driver, cuda = opened(monkeypatch)
    handle = driver.allocate(4 * GIB)
    assert handle is not None
    assert driver.allocate(5 * GIB) is None
    driver.release(handle)
    assert driver.free_memory() == 8 * GIB
    cuda.broken = True
    with pytest.raises(ProbeError, match="stopped answering: CUDA error: unspecified launch failure"):
        driver.free_memory()
    with pytest.raises(ProbeError, match="stopped answering"):
        driver.cache_allocate(MIB)


def test_close_frees_what_is_still_held(monkeypatch: pytest.MonkeyPatch) -> None:
    driver, cuda = opened(monkeypatch)
    driver.allocate(MIB)
    driver.cache_allocate(MIB)
    driver.close()
    assert cuda.held == {}
    driver.allocate(MIB)
    cuda.broken = True
    driver.close()
    TorchDriver("0").close()


def test_a_whole_run_through_the_torch_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    driver, cuda = opened(monkeypatch)
    monkeypatch.setattr(driver, "missing", lambda: None)
    options = Options(reserve=GIB, settle_s=0.0, settings=("", "expandable_segments:True"), block_bytes=(96 * MIB,))
    result = checked(run(driver, options))
    assert result["stopped"] is None
    assert result["device_level"]["largest_single_bytes"] == 7 * GIB - 64 * MIB
    assert len(result["allocator_level"]["runs"]) == 6
    assert cuda.held == {}
    cuda.broken = True
    assert "CUDA error" in run(driver, options)["stopped"]


def test_settings_of_one_run_do_not_leak_into_the_next(monkeypatch: pytest.MonkeyPatch) -> None:
    driver, cuda = opened(monkeypatch)
    driver.configure("expandable_segments:True", 2 * GIB)
    assert driver.cache_state().inactive_split is None
    driver.configure("max_split_size_mb:64", 2 * GIB)
    assert cuda.settings == ["expandable_segments:True", "expandable_segments:False,max_split_size_mb:64"]
    assert cuda.fraction == 0.25
    state = driver.cache_state()
    assert (state.inactive_split, state.largest_free, state.returnable) == (10 * MIB, 40 * MIB, 40 * MIB)
    with pytest.raises(ProbeError, match=r"does not take.*nonsense"):
        driver.configure("nonsense:1", GIB)


def test_age_of_a_process() -> None:
    own = driver_module._age(os.getpid())
    assert own is not None
    assert 0 <= own < 24 * 3600
    assert driver_module._age(2**22 + 5) is None


# The command


@pytest.fixture
def app() -> Typer:
    found = Typer()
    found.command()(probe_command)
    return found


def swap_driver(monkeypatch: pytest.MonkeyPatch, target: SimulatedDevice) -> None:
    monkeypatch.setattr(driver_module, "TorchDriver", lambda device: target)
    monkeypatch.setattr(run_module, "die_with_parent", lambda: True)


def test_without_a_gpu_the_plan_is_printed_without_torch_and_the_exit_code_is_3(tmp_path: Path) -> None:
    """Against the real NVML bindings; a torch that cannot be imported stands in the way."""
    package = tmp_path / "torch"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('torch was imported')\n")
    code = "import typer; from kvdoctor.cli.probe import probe; app = typer.Typer(); app.command()(probe); app()"
    for extra in ([], ["--dry-run"]):
        done = subprocess.run(
            [sys.executable, "-c", code, "--device", "99", *extra],
            env={**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 3, done.stderr
        assert done.stdout.startswith("Plan\n")
        assert "the larger of 2 GiB and 10 % of the device" in done.stdout
        assert "No device to probe: " in done.stdout
        assert done.stderr == ""


def test_command_runs_and_prints_json_only_on_stdout(app: Typer, monkeypatch: pytest.MonkeyPatch) -> None:
    swap_driver(monkeypatch, device())
    done = CliRunner().invoke(app, ["--yes", "--format", "json", "--pattern", "contiguous", "--block", "100"])
    assert done.exit_code == 0
    result = checked(json.loads(done.stdout))
    assert 100 * MIB in [fit["block_bytes"] for fit in result["device_level"]["fit"]]
    assert done.stderr.startswith("Plan\n")


def test_command_shows_the_plan_first_and_needs_a_yes(app: Typer, monkeypatch: pytest.MonkeyPatch) -> None:
    target = device()
    swap_driver(monkeypatch, target)
    done = CliRunner().invoke(app, [])
    assert done.exit_code == 2
    assert done.stdout.startswith("Plan\n")
    assert "add --yes" in done.stderr
    assert not target.opened
    done = CliRunner().invoke(app, ["--dry-run"])
    assert done.exit_code == 0
    assert not target.opened
    done = CliRunner().invoke(app, ["--yes", "--pattern", "paged", "--allocator-conf", "expandable_segments:True"])
    assert done.exit_code == 0
    assert done.stdout.index("Plan") < done.stdout.index("Device level") < done.stdout.index("Allocator level")


@pytest.mark.parametrize(
    "arguments, words",
    [
        (["--pattern", "x"], "unknown pattern"),
        (["--format", "xml"], "unknown format"),
        (["--block", "1"], "2 MiB"),
        (["--reserve", "0"], "256 MiB"),
        (["--time-limit", "0"], "1 to 600"),
        (["--allocator-conf", "backend:x"], "backend"),
    ],
)
def test_command_usage_errors(app: Typer, arguments: list[str], words: str) -> None:
    done = CliRunner().invoke(app, arguments)
    assert done.exit_code == 2
    assert words in done.stderr


def test_command_that_was_stopped_exits_3(app: Typer, monkeypatch: pytest.MonkeyPatch) -> None:
    swap_driver(monkeypatch, device(on_call=lambda target, call: target.grow(7, 100) if call == 200 else None))
    done = CliRunner().invoke(app, ["--yes"])
    assert done.exit_code == 3
    assert "Stopped: another process took 200 MiB" in done.stdout


# Reading a result back


def test_a_result_is_read_back_for_a_diagnosis() -> None:
    result = probed(device())
    text = json.dumps(result)
    assert probe_result.sniff(text)
    found = probe_result.load(text)
    assert isinstance(found, probe_result.ProbeResult)
    assert found.gap == 0
    assert found.largest_single_bytes == result["device_level"]["largest_single_bytes"]
    assert found.largest_is_limit is True
    assert found.fits[0].block_bytes == 64 * MIB
    assert found.replays[0].pattern == "contiguous"
    assert found.stopped is None


def test_a_stopped_result_has_unknowns_not_zeros() -> None:
    found = probe_result.load(json.dumps(run(device(mps=True), QUICK)))
    assert isinstance(found, probe_result.ProbeResult)
    assert (found.gap, found.largest_single_bytes, found.limit_bytes, found.fits) == (None, None, None, ())
    assert found.stopped is not None
    assert found.total_bytes == 6 * GIB


@pytest.mark.parametrize(
    "text", ["", "[]", "{", "{}", '{"schema": 3}', '{"schema": "kvdoctor.probe/9"}', "[" * 100_000]
)
def test_other_texts_are_not_probe_results(text: str) -> None:
    assert isinstance(probe_result.load(text), probe_result.NotAProbe)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=80, deadline=None)
@given(st.data())
def test_damaged_results_never_raise(data: st.DataObject) -> None:
    result = run(device(mps=True), QUICK)
    result["device_level"] = {"gap": 0.5, "fit": [{"block_bytes": 1, "count": 1, "expected": 1, "counted_up_to": 1}]}
    result["allocator_level"] = {"runs": [{"pattern": "paged", "settings": ""}]}
    target: Any = data.draw(st.sampled_from([result, result["device"], result["device_level"]]))
    target[data.draw(st.sampled_from(sorted(set(target) - {"schema"})))] = data.draw(JSON)
    found = probe_result.load(json.dumps(result))
    assert isinstance(found, probe_result.ProbeResult)
    assert found.gap is None or 0 <= found.gap <= 1


def test_plan_names_every_limit_for_a_known_device() -> None:
    survey = Survey("x", "GPU-1", False, 80 * GIB, 40 * GIB, (Tenant(1, GIB, None),), False, "default")
    plan = make_plan(survey, Options(reserve=3 * GIB), None)
    assert plan.reserve == 3 * GIB
    assert plan.limit == 40 * GIB - 3 * GIB - 600 * MIB - 64 * MIB
    assert plan.refused is None
    assert max(step.bytes for step in plan.steps if step.bytes is not None) == plan.limit

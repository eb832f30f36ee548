"""Refusals that every server shares: weights that cannot be read, shared memory that is too small."""

from __future__ import annotations

import pytest

from kvdoctor.engines._start_logs import TEMPLATES
from kvdoctor.parse.serverlog import Matcher

_MATCHER = Matcher(TEMPLATES)


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("safetensors_rust.SafetensorError: Error while deserializing header: incomplete metadata, file not fully covered", "weights"),
        ("SafetensorError: Error while deserializing header: HeaderTooLarge", "weights"),
        ("RuntimeError: PytorchStreamReader failed reading zip archive: failed finding central directory", "weights"),
        ("_pickle.UnpicklingError: invalid load key, 'v'.", "weights"),
        ("OSError: Consistency check failed: file should be of size 4976698672 but has size 1073741824", "weights"),
        ("h:8:8 [0] misc/shmutils.cc:113 NCCL WARN Error while creating shared memory segment /dev/shm/nccl-0GJd3s (size 33030528)", "shared_memory"),
        ("h:8:8 [0] misc/shmutils.cc:72 NCCL WARN Error: failed to extend /dev/shm/nccl-0GJd3s to 33030532 bytes", "shared_memory"),
        ("RuntimeError: unable to allocate shared memory(shm) for file </torch_9_1>: No space left on device (28)", "shared_memory"),
        ("Unable to initialize shared memory key 'triton_python_backend_shm_region_1' to requested size (1048576 bytes)", "shared_memory"),
    ],
)  # fmt: skip
def test_a_refusal_tells_its_reason(line: str, error: str) -> None:
    assert {fields["error"] for _, event, fields in _MATCHER.match(line) if event == "start_error"} == {error}


@pytest.mark.parametrize(
    "line",
    [
        "triton.runtime.errors.OutOfResources: out of resource: shared memory, Required: 163840, Hardware limit: 101376.",
        "INFO: NCCL uses /dev/shm for its segments",
        "Loading safetensors checkpoint shards: 41% Completed | 67/163",
    ],
)
def test_what_only_sounds_alike_is_none(line: str) -> None:
    assert _MATCHER.match(line) == []

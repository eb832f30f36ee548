"""The boundary to the device: one small interface, and its implementation on NVML and torch.

:meth:`Driver.survey` looks without a CUDA context (a context alone costs a few hundred MiB of the device);
:meth:`Driver.open` makes the context. NVML and torch are imported inside, so the plan needs neither torch nor a GPU.
"""

from __future__ import annotations

import importlib.util
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final, Literal, Protocol

from kvdoctor.frozen import frozen

MIB: Final = 1 << 20
PAGE: Final = 2 * MIB
"""Physical device memory is mapped in pages of this size."""

ComputeMode = Literal["default", "exclusive", "prohibited", "unknown"]


class ProbeError(Exception):
    """The device or torch refused or stopped answering; the text is a sentence for the report."""


@frozen
class Tenant:
    """Another process on the device. ``bytes`` None = the driver does not tell (WSL, some containers, MIG); ``age_s``
    None = its process is not visible from here (another pid namespace)."""

    pid: int
    bytes: int | None
    age_s: float | None


@frozen
class Survey:
    """The device without a context. Bytes. ``tenants`` None = the process list is not readable here."""

    name: str
    uuid: str
    mig: bool
    total: int
    free: int
    tenants: tuple[Tenant, ...] | None
    mps: bool
    compute_mode: ComputeMode


@frozen
class NoDevice:
    """Nothing to probe: a sentence why, and what to do."""

    reason: str
    hint: str


@frozen
class CacheState:
    """The caching allocator of this process. Bytes. ``inactive_split`` None = not maintained (expandable segments).

    ``returnable``: what it could hand back to the device now. ``largest_free``: its largest cached free block.
    """

    reserved: int
    allocated: int
    largest_free: int
    returnable: int
    inactive_split: int | None


class Driver(Protocol):
    """What the probe needs of a device. Handles are opaque integers."""

    def missing(self) -> str | None:
        """What is not installed, as a sentence; None = complete. Imports nothing heavy."""

    def survey(self) -> Survey | NoDevice:
        """The device as seen without a context; may be called again to see whether it moves."""

    def open(self) -> None:
        """Makes the context. Raises ProbeError."""

    def free_memory(self) -> int:
        """Bytes the device reports free now. Raises ProbeError when it stopped answering."""

    def tenants(self) -> tuple[Tenant, ...] | None: ...

    def allocate(self, size: int) -> int | None:
        """Memory straight from the device, nothing cached; None = out of memory. Raises ProbeError."""

    def release(self, handle: int) -> None: ...

    def configure(self, settings: str, cap: int) -> None:
        """Settings of the caching allocator and the bytes it may reserve. Raises ProbeError when torch refuses them."""

    def cache_allocate(self, size: int) -> int | None:
        """Memory through the caching allocator; None = out of memory. Raises ProbeError."""

    def cache_release(self, handle: int) -> None: ...

    def cache_reserved(self) -> int:
        """Bytes the caching allocator holds of the device; cheap."""

    def cache_state(self) -> CacheState: ...

    def trim(self) -> None:
        """Hands cached free memory back to the device."""

    def close(self) -> None:
        """Gives everything back that :meth:`allocate` and :meth:`cache_allocate` still hold. Never raises."""

    def now(self) -> float:
        """Seconds of a monotone clock."""

    def sleep(self, seconds: float) -> None: ...


class TorchDriver:
    """A real NVIDIA device: NVML for the survey, torch's public allocator calls for the measurement.

    ``device``: index, ``GPU-`` or ``MIG-`` UUID; None = the first entry of CUDA_VISIBLE_DEVICES, else device 0. Only
    the chosen one is made visible to torch, by UUID, so indices of MIG instances and containers cannot mislead.
    """

    def __init__(self, device: str | None = None) -> None:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0].strip()
        self.device = device if device is not None else visible if visible else "0"
        self._uuid = ""
        self._handle: Any = None
        self._torch: Any = None
        self._total = 0
        self._expandable = False
        self._held: set[int] = set()

    def missing(self) -> str | None:
        if importlib.util.find_spec("torch") is None:
            return "torch is not installed: pip install 'kvdoctor[probe]' in an environment with CUDA"
        return None

    def survey(self) -> Survey | NoDevice:
        try:
            import pynvml
        except ImportError:
            return NoDevice("the NVML bindings are not installed", "pip install nvidia-ml-py")
        try:
            pynvml.nvmlInit()
            handle, mig = self._find(pynvml)
            if isinstance(handle, NoDevice):
                return handle
            self._handle = handle
            memory = pynvml.nvmlDeviceGetMemoryInfo(handle, version=pynvml.nvmlMemory_v2)
            uuid = _text(pynvml.nvmlDeviceGetUUID(handle))
            self._uuid = uuid
            name = _text(pynvml.nvmlDeviceGetName(handle))
        except pynvml.NVMLError as error:
            return self._absent(pynvml, error)
        self._total = int(memory.total)
        return Survey(
            name=name,
            uuid=uuid,
            mig=mig,
            total=int(memory.total),
            free=int(memory.free),
            tenants=self.tenants(),
            mps=_mps_running(),
            compute_mode=_compute_mode(pynvml, handle),
        )

    def _find(self, pynvml: Any) -> tuple[Any, bool]:
        """(NVML handle or NoDevice, whether it is a MIG instance). Raises NVMLError."""
        if not self.device.isdigit():
            handle = pynvml.nvmlDeviceGetHandleByUUID(self.device)
            return handle, self.device.startswith("MIG-")
        handle = pynvml.nvmlDeviceGetHandleByIndex(int(self.device))
        try:
            mig_on = pynvml.nvmlDeviceGetMigMode(handle)[0] == pynvml.NVML_DEVICE_MIG_ENABLE
        except pynvml.NVMLError:
            # devices without MIG answer NotSupported
            return handle, False
        if not mig_on:
            return handle, False
        uuids = []
        for number in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(handle)):
            with suppress(pynvml.NVMLError):
                instance = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, number)
                uuids.append(_text(pynvml.nvmlDeviceGetUUID(instance)))
        named = ", ".join(uuids) if uuids else "none exists"
        return NoDevice(f"MIG is on for GPU {self.device}", f"name one instance with --device: {named}"), False

    def _absent(self, pynvml: Any, error: Exception) -> NoDevice:
        if isinstance(error, (pynvml.NVMLError_LibraryNotFound, pynvml.NVMLError_DriverNotLoaded)):
            return NoDevice("no NVIDIA driver on this host", "run it on the GPU host, or in a container with --gpus")
        if isinstance(error, pynvml.NVMLError_NotSupported):
            return NoDevice(
                "the driver does not report this device's memory (unified memory or a virtual GPU)",
                "a probe would take host memory there, so it does not run",
            )
        return NoDevice(f"device {self.device} cannot be read: {error}", "nvidia-smi -L lists what there is")

    def open(self) -> None:
        os.environ["CUDA_VISIBLE_DEVICES"] = self._uuid
        # the device level is measured with the allocator's defaults, whatever the environment asks for
        for name in ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF"):
            os.environ.pop(name, None)
        try:
            import torch
        except (ImportError, OSError) as error:
            raise ProbeError(f"torch does not load: {error}") from error
        self._torch = torch
        if not torch.cuda.is_available():
            raise ProbeError("torch sees no CUDA device: it may be a CPU build, or its CUDA is newer than the driver")
        try:
            torch.cuda.set_device(0)
            torch.cuda.synchronize()
            if torch.cuda.get_device_properties(0).is_integrated:
                raise ProbeError("this device shares the host's memory: a probe would take host memory, so it stops")
            self._total = int(torch.cuda.mem_get_info(0)[1])
        except RuntimeError as error:
            raise ProbeError(f"no CUDA context: {_first_line(error)}") from error

    def free_memory(self) -> int:
        with _answering():
            return int(self._torch.cuda.mem_get_info(0)[0])

    def tenants(self) -> tuple[Tenant, ...] | None:
        import pynvml

        try:
            rows = pynvml.nvmlDeviceGetComputeRunningProcesses(self._handle)
        except pynvml.NVMLError:
            return None
        own = os.getpid()
        return tuple(
            Tenant(int(row.pid), int(row.usedGpuMemory) if row.usedGpuMemory is not None else None, _age(int(row.pid)))
            for row in rows
            if row.pid != own
        )

    def allocate(self, size: int) -> int | None:
        return self._allocate(size)

    def release(self, handle: int) -> None:
        self.cache_release(handle)
        self.trim()

    def configure(self, settings: str, cap: int) -> None:
        self._expandable = "expandable_segments:true" in settings.replace(" ", "").lower()
        # a later run must not inherit the setting of an earlier one
        chosen = settings if "expandable_segments" in settings else f"expandable_segments:False,{settings}".rstrip(",")
        try:
            self._torch.cuda.memory._set_allocator_settings(chosen)
            self._torch.cuda.set_per_process_memory_fraction(min(1.0, cap / self._total), 0)
        except (RuntimeError, ValueError, AttributeError) as error:
            told = _first_line(error)
            raise ProbeError(f"torch does not take the allocator settings {settings!r}: {told}") from error

    def cache_allocate(self, size: int) -> int | None:
        return self._allocate(size)

    def _allocate(self, size: int) -> int | None:
        with _answering():
            try:
                handle = int(self._torch.cuda.caching_allocator_alloc(size, 0))
            except self._torch.cuda.OutOfMemoryError:
                return None
        self._held.add(handle)
        return handle

    def cache_release(self, handle: int) -> None:
        self._held.discard(handle)
        with _answering():
            self._torch.cuda.caching_allocator_delete(handle)

    def cache_reserved(self) -> int:
        with _answering():
            return int(self._torch.cuda.memory_reserved(0))

    def cache_state(self) -> CacheState:
        with _answering():
            stats = self._torch.cuda.memory_stats(0)
            segments = self._torch.cuda.memory_snapshot()
        largest = returnable = 0
        for segment in segments:
            free = [block["size"] for block in segment["blocks"] if block["state"] == "inactive"]
            largest = max(largest, *free, 0)
            if segment.get("is_expandable"):
                page = PAGE if segment["segment_type"] == "small" else 10 * PAGE
                returnable += sum(size // page * page for size in free)
            elif sum(free) == segment["total_size"]:
                returnable += segment["total_size"]
        return CacheState(
            reserved=int(stats["reserved_bytes.all.current"]),
            allocated=int(stats["allocated_bytes.all.current"]),
            largest_free=int(largest),
            returnable=int(returnable),
            inactive_split=None if self._expandable else int(stats["inactive_split_bytes.all.current"]),
        )

    def trim(self) -> None:
        with _answering():
            self._torch.cuda.empty_cache()

    def close(self) -> None:
        if self._torch is None:
            return
        for handle in tuple(self._held):
            # on a lost device every call fails; the end of the process frees what is left
            with suppress(ProbeError):
                self.cache_release(handle)
        with suppress(ProbeError):
            self.trim()

    def now(self) -> float:
        return time.perf_counter()

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


@contextmanager
def _answering() -> Iterator[None]:
    """Turns torch's errors into one sentence: a device that is lost (Xid 79) fails every call from then on."""
    try:
        yield
    except RuntimeError as error:
        raise ProbeError(f"the device stopped answering: {_first_line(error)}") from error


def _text(value: str | bytes) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else value


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]


def _compute_mode(pynvml: Any, handle: Any) -> ComputeMode:
    try:
        mode = pynvml.nvmlDeviceGetComputeMode(handle)
    except pynvml.NVMLError:
        return "unknown"
    if mode == pynvml.NVML_COMPUTEMODE_DEFAULT:
        return "default"
    return "prohibited" if mode == pynvml.NVML_COMPUTEMODE_PROHIBITED else "exclusive"


def _mps_running() -> bool:
    """The MPS control daemon listens in this folder; clients of it share one context and one fault domain."""
    folder = os.environ.get("CUDA_MPS_PIPE_DIRECTORY", "/tmp/nvidia-mps")
    return Path(folder, "control").exists()


def _age(pid: int) -> float | None:
    """Seconds since a process started, from /proc; None when it is not visible."""
    try:
        # the name in brackets may hold spaces; start time is field 22 of the line, 20th after the bracket
        start = int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
        uptime = float(Path("/proc/uptime").read_text().split()[0])
    except (OSError, ValueError, IndexError):
        return None
    return uptime - start / os.sysconf("SC_CLK_TCK")

"""Device out-of-memory messages in every wording of the engines and frameworks -> numbers in bytes.

What the numbers mean (PyTorch's caching allocator, CUDA and HIP alike, from its source):

- ``requested``: the segment asked of the driver, already rounded (2 MiB for tensors up to 1 MiB, 20 MiB up to 10 MiB,
  else the next multiple of 2 MiB): at least the tensor's size, not the tensor's size.
- ``total``: the device as the driver reports it. ``free``: what the driver had left *after* PyTorch gave back every
  cached segment that it could and tried again.
- ``allocated``: bytes in tensors plus the free blocks of graph pools (from 2.4 on; ``private_pools`` is that part: it
  is parked for CUDA graph replay and nobody else can use it).
- ``unallocated``: reserved but not allocated. After the failed retry that is the free part of segments partly in use:
  an upper bound of fragmentation inside this process. It decides only when it is at least ``requested``.
- ``reserved``: allocated + unallocated. Wordings print two of the three; the third is computed.
- ``cap``: the share of the device this process was allowed. When it is there and ``free`` is not small, the cap refused
  the request, not the GPU.
- ``processes``: what the driver lists on the device. The pids are the host's: in a container the process itself appears
  there under another pid, and ``this_process`` is missing.

Other allocators print less; what a wording does not print is :class:`~kvdoctor.parse.Unread`. So is 2^64 bytes
(``17179869184.00 GiB``), which is the driver's "not available" and the async allocator's "no cap".

A "Decode out of memory" of SGLang, "cache out of memory" of TurboMind or the kernel's "Out of memory: Killed process"
is about KV slots or host memory and is not found here.
"""

from __future__ import annotations

import math
import re
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from kvdoctor.frozen import frozen
from kvdoctor.parse import MAX_LINE, Unread

_NOT_PRINTED = Unread("this wording does not print it")
_NO_VALUE = Unread("2^64 bytes stands for: not available")
_NO_CAP = Unread("no cap is set")


@frozen
class OomMessage:
    """One out-of-memory message. Numbers in bytes, see the module's text for what each means.

    ``wording`` names the form: ``torch-1``, ``torch-2``, ``torch-async``, ``torch-fraction``, ``torch-address-space``,
    ``torch-segment``, ``torch-1eb``, ``torch-bare``, ``torch-nvml-assert``, ``vllm-warmup``, ``tgi-warmup``,
    ``turbomind``, ``tensorrt-llm``, ``tensorrt``, ``ggml`` (llama.cpp and ollama), ``llama-context``, ``driver``.
    ``backend``: cuda, hip, xpu, npu or Unread. ``device`` is the index as the process counts it. ``line`` counts from
    1. ``half_step`` gives, per number, half of the last printed digit in bytes: the true value lies within it.
    ``times`` is N of Ray's "repeated Nx across cluster" (such a line stands for N messages), else 1. ``site`` is one
    of :data:`SITES` when the message itself names it.
    """

    wording: str
    line: int
    backend: str | Unread = _NOT_PRINTED
    device: int | Unread = _NOT_PRINTED
    requested: int | Unread = _NOT_PRINTED
    total: int | Unread = _NOT_PRINTED
    free: int | Unread = _NOT_PRINTED
    allocated: int | Unread = _NOT_PRINTED
    unallocated: int | Unread = _NOT_PRINTED
    reserved: int | Unread = _NOT_PRINTED
    cap: int | Unread = _NOT_PRINTED
    private_pools: int | Unread = _NOT_PRINTED
    processes: tuple[tuple[int, int | Unread], ...] = ()
    this_process: int | Unread = _NOT_PRINTED
    site: str | Unread = _NOT_PRINTED
    half_step: Mapping[str, int] = field(default_factory=dict)
    times: int = 1


_Reader = Callable[[str, re.Match[str], int], tuple[OomMessage, int]]
_UNITS = {"bytes": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40, "KB": 2**10, "MB": 2**20, "GB": 2**30}
# no device has an exbibyte; 2^64 is a marker, and what lies between is a counter that ran below zero
_NOT_A_SIZE = 2**60
_AMOUNT = r"([0-9]{1,20}(?:\.[0-9]{1,6})?)(bytes|[KMGT]i?B)"

# All patterns below run on text without any blank: a message may be broken by one line feed at any place, in the middle
# of a word too, or carry its own line feeds as the two characters "\n".
_HEAD = re.compile(
    r"(?P<backend>CUDA|HIP|XPU|NPU)outofmemory\.Triedtoallocate(?P<more>morethan1EBmemory)?"
    rf"(?:{_AMOUNT})?"
)
_TORCH_1 = re.compile(
    rf"\((?:GPU|NPU|XPU)(?P<device>[0-9]{{1,4}});{_AMOUNT}totalcapacity;{_AMOUNT}alreadyallocated;"
    rf"(?:{_AMOUNT}currentactive;)?{_AMOUNT}free;(?:{_AMOUNT}allowed;)?{_AMOUNT}(?:reservedintotalbyPyTorch|cached)"
)
_TORCH_2_DEVICE = re.compile(
    rf"\.(?:GPU|XPU|NPU)(?P<device>[0-9]{{1,4}})hasatotalcapaci?tyof{_AMOUNT}(?:ofwhich{_AMOUNT}isfree)?\."
)
_TORCH_2_PROCESS = re.compile(
    rf"(?:Process(?P<pid>[0-9]{{1,10}})|Includingnon-PyTorchmemory,thisprocess)"
    rf"has{_AMOUNT}memoryinuse\."
)
_TORCH_2_CAP = re.compile(rf"{_AMOUNT}allowed;")
_TORCH_2_PARTS = re.compile(
    rf"Oftheallocatedmemory{_AMOUNT}isallocatedbyPyTorch,"
    rf"(?:with{_AMOUNT}allocatedinprivatepools\(e\.g\.,CUDAGraphs\),)?and{_AMOUNT}isreservedbyPyTorchbutunallocated"
)
_REPEATED = re.compile(r"\[repeated([0-9]{1,9})xacrosscluster\]")
_WINDOW = 4096
_ASYNC_FIELDS = {
    "allocated": re.compile(rf"Currentlyallocated:{_AMOUNT}"),
    "requested": re.compile(rf"Requested:{_AMOUNT}"),
    "total": re.compile(rf"Devicelimit:{_AMOUNT}"),
    "free": re.compile(rf"Free\(accordingtoCUDA\):{_AMOUNT}"),
    # the value stands on a line of its own, which may carry a log prefix
    "cap": re.compile(rf"PyTorchlimit\(setbyuser-suppliedmemoryfraction\).{{0,200}}?:{_AMOUNT}"),
}


def find(text: str, *, first_line: int = 1) -> list[OomMessage]:
    """All device out-of-memory messages in the text, in its order; ``first_line`` is the number of its first line.

    Pure and linear in the text; a large log is best searched for :data:`~kvdoctor.parse.OOM_LITERALS` first and only the lines around each
    hit given here. A message forwarded by another process (worker to engine core, rank to driver) is found
    each time it is printed: merging them needs the log's ranks, which are not visible here.
    """
    flat, starts = _without_blanks(text)
    found: list[OomMessage] = []
    covered = 0
    for hit in _ANCHORS.finditer(flat):
        if hit.start() < covered:
            continue
        kind = hit.lastgroup or ""
        line = first_line + bisect_right(starts, hit.start()) - 1
        if kind == "torch" and not _is_message(flat, hit, starts):
            continue
        message, end = _READERS[kind](flat, hit, line)
        if kind == "llama" and found and found[-1].wording == "ggml" and hit.start() - covered < _WINDOW:
            # the same failure, told by the caller: it knows what the buffer was for
            found[-1] = replace(found[-1], site=message.site)
        else:
            found.append(message)
        covered = max(end, hit.end())
    return found


def _is_message(flat: str, hit: re.Match[str], starts: Sequence[int]) -> bool:
    """Whether the words are an error's text and not advice about one: a size follows, or they begin a message."""
    before = flat[hit.start() - 1 : hit.start()]
    if flat.startswith((".Triedtoallocate", ".Allocationwas", "occurredwhenwarmingup"), hit.end()):
        return True
    at_line_start = starts[bisect_right(starts, hit.start()) - 1] == hit.start()
    return (before in (":", '"', "'", "(") or at_line_start) and not flat[hit.end() : hit.end() + 1].isalpha()


def _without_blanks(text: str) -> tuple[str, list[int]]:
    """The text without blanks and escaped line feeds, and the offset in it at which each line starts."""
    starts: list[int] = []
    parts: list[str] = []
    length = 0
    for line in text.split("\n"):
        starts.append(length)
        part = "".join(line[:MAX_LINE].split())
        if "\\" in part or "\x1b" in part:
            part = _NO_TEXT.sub("", part)
        parts.append(part)
        length += len(part)
    return "".join(parts), starts


# escaped line feeds and terminal colours
_NO_TEXT = re.compile(r"\\{1,2}[nrt]|\x1b\[[0-9;]{0,20}m")


@dataclass(slots=True)
class _Numbers:
    """Bytes and half steps collected while one message is read."""

    values: dict[str, int | Unread] = field(default_factory=dict)
    steps: dict[str, int] = field(default_factory=dict)

    def put(self, name: str, number: str | None, unit: str | None) -> None:
        if number is None or unit is None:
            return
        scale = _UNITS[unit]
        value = round(float(number) * scale)
        if value >= _NOT_A_SIZE:
            self.values[name] = _NO_CAP if name == "cap" else _NO_VALUE
            return
        self.values[name] = value
        decimals = len(number.partition(".")[2])
        self.steps[name] = math.ceil(scale / 10**decimals / 2) if scale > 1 else 0

    def add_up(self) -> None:
        """Fill the one of allocated, unallocated and reserved that was not printed."""
        allocated, unallocated, reserved = (self.values.get(n) for n in ("allocated", "unallocated", "reserved"))
        if isinstance(allocated, int) and isinstance(unallocated, int) and reserved is None:
            self.values["reserved"] = allocated + unallocated
            self.steps["reserved"] = self.steps["allocated"] + self.steps["unallocated"]
        elif isinstance(allocated, int) and isinstance(reserved, int) and unallocated is None and reserved >= allocated:
            self.values["unallocated"] = reserved - allocated
            self.steps["unallocated"] = self.steps["allocated"] + self.steps["reserved"]


def _message(wording: str, line: int, numbers: _Numbers | None = None, **more: object) -> OomMessage:
    numbers = numbers or _Numbers()
    numbers.add_up()
    fields = {**numbers.values, **more}
    return OomMessage(wording=wording, line=line, half_step=numbers.steps, **fields)  # type: ignore[arg-type]


def _times(flat: str, position: int) -> int:
    repeated = _REPEATED.search(flat, position, position + _WINDOW // 4)
    next_message = flat.find("outofmemory", position, position + _WINDOW // 4)
    if repeated and (next_message < 0 or repeated.start() < next_message):
        return int(repeated.group(1))
    return 1


def _read_torch(flat: str, hit: re.Match[str], line: int) -> tuple[OomMessage, int]:
    head = _HEAD.match(flat, hit.start())
    if head is None:
        return _read_torch_other(flat, hit, line)
    numbers = _Numbers()
    backend = head.group("backend").lower()
    end = head.end()
    if head.group("more"):
        return _message("torch-1eb", line, backend=backend), end
    numbers.put("requested", head.group(3), head.group(4))
    old = _TORCH_1.match(flat, end)
    if old:
        amounts = old.groups()
        names = ("total", "allocated", None, "free", "cap", "reserved")
        for name, number, unit in zip(names, amounts[1::2], amounts[2::2], strict=True):
            if name:
                numbers.put(name, number, unit)
        device = int(old.group("device"))
        return _message(
            "torch-1", line, numbers, backend=backend, device=device, times=_times(flat, old.end())
        ), old.end()
    new = _TORCH_2_DEVICE.match(flat, end)
    if new is None:
        return _message("torch-bare", line, numbers, backend=backend, times=_times(flat, end)), end
    _, total, total_unit, free, free_unit = new.groups()
    numbers.put("total", total, total_unit)
    numbers.put("free", free, free_unit)
    end = new.end()
    processes: list[tuple[int, int | Unread]] = []
    while process := _TORCH_2_PROCESS.match(flat, end):
        pid, number, unit = process.groups()
        used = _Numbers()
        used.put("this_process", number, unit)
        if pid is None:
            numbers.put("this_process", number, unit)
        else:
            processes.append((int(pid), used.values["this_process"]))
        end = process.end()
    cap = _TORCH_2_CAP.match(flat, end)
    if cap:
        numbers.put("cap", *cap.groups())
        end = cap.end()
    parts = _TORCH_2_PARTS.match(flat, end)
    if parts:
        allocated, allocated_unit, pools, pools_unit, unallocated, unallocated_unit = parts.groups()
        numbers.put("allocated", allocated, allocated_unit)
        numbers.put("private_pools", pools, pools_unit)
        numbers.put("unallocated", unallocated, unallocated_unit)
        end = parts.end()
    wording = "torch-2"
    following = flat[end : end + _WINDOW // 4]
    following = following[: following.find("outofmemory")] if "outofmemory" in following else following
    if "virtual-address-space(VSZ)exhaustion" in following:
        wording = "torch-address-space"
    elif "exceedstheexpandable-segmentreserveof" in following:
        wording = "torch-segment"
    message = _message(
        wording,
        line,
        numbers,
        backend=backend,
        device=int(new.group("device")),
        processes=tuple(processes),
        times=_times(flat, end),
    )
    return message, end


_FRACTION_REQUEST = re.compile(rf"Requestedsize:{_AMOUNT}")
_FRACTION_LIMIT = re.compile(rf"memorylimit\({_AMOUNT}\)")
_WARM_UP = re.compile(r"(?:CUDA|HIP|XPU|NPU)outofmemoryoccurredwhenwarmingup(?:sampler|pooler)")


def _read_torch_other(flat: str, hit: re.Match[str], line: int) -> tuple[OomMessage, int]:
    """The words "CUDA out of memory" when they are not followed by "Tried to allocate"."""
    backend = hit.group()[:3].lower() if not hit.group().startswith("CUDA") else "cuda"
    if _WARM_UP.match(flat, hit.start()):
        return _message("vllm-warmup", line, backend=backend, site="sampler", times=_times(flat, hit.end())), hit.end()
    window = flat[hit.start() : hit.start() + _WINDOW]
    if window.startswith("Allocationwaspreemptivelyrejected", len(hit.group()) + 1):
        numbers = _Numbers()
        requested, limit = _FRACTION_REQUEST.search(window), _FRACTION_LIMIT.search(window)
        if requested:
            numbers.put("requested", *requested.groups())
        if limit:
            numbers.put("cap", *limit.groups())
        end = hit.start() + max(m.end() for m in (requested, limit) if m) if requested or limit else hit.end()
        return _message("torch-fraction", line, numbers, backend=backend), end
    return _message("torch-bare", line, backend=backend, times=_times(flat, hit.end())), hit.end()


def _read_async(flat: str, hit: re.Match[str], line: int) -> tuple[OomMessage, int]:
    numbers = _Numbers()
    end = hit.end()
    window = flat[end : end + _WINDOW // 2]
    again = window.find("Allocationondevice")
    window = window if again < 0 else window[:again]
    for name, pattern in _ASYNC_FIELDS.items():
        amount = pattern.search(window)
        if amount:
            numbers.put(name, *amount.groups())
            end = max(end, hit.end() + amount.end())
    return _message("torch-async", line, numbers, device=int(hit.group("async_device"))), end


def _read_ggml(flat: str, hit: re.Match[str], line: int) -> tuple[OomMessage, int]:
    """``allocating 8192.00 MiB on device 0: cudaMalloc failed: out of memory``: the size stands before the words."""
    numbers = _Numbers()
    numbers.put("requested", hit.group("ggml_size"), hit.group("ggml_unit"))
    device = hit.group("ggml_device")
    backend: str | Unread = hit.group("ggml_api")
    where: str | Unread = _NOT_PRINTED
    end = hit.end()
    # the caller reports the same failure again, with the exact size
    again = _GGML_EXACT.search(flat, end, end + _WINDOW // 4)
    if again and "Mallocfailed" not in flat[end : again.start()]:
        numbers.put("requested", again.group("size"), "bytes")
        # the HIP build prints cudaMalloc too; the buffer's name tells
        backend, device, end = _GGML_BACKENDS.get(again.group("kind"), backend), again.group("device"), again.end()
        where = _ggml_site(flat, again.start())
    return _message(
        "ggml", line, numbers, backend=backend, device=int(device) if device else _NOT_PRINTED, site=where
    ), end


def _ggml_site(flat: str, position: int) -> str | Unread:
    """The graph allocator holds the work buffers of a step and nothing else; the tensor allocator holds weights or the cache."""
    return "prefill" if flat.endswith(_GRAPH_ALLOCATORS, 0, position) else _NOT_PRINTED


_GRAPH_ALLOCATORS = ("ggml_gallocr_reserve_n:", "ggml_gallocr_reserve_n_impl:")


_GGML_BACKENDS = {"CUDA": "cuda", "ROCm": "hip", "HIP": "hip"}
_GGML_EXACT = re.compile(
    r"failedtoallocate(?P<kind>CUDA|ROCm|Vulkan|SYCL|HIP)(?P<device>[0-9]{1,3})bufferofsize(?P<size>[0-9]{1,18})"
)


def _read_ggml_exact(flat: str, hit: re.Match[str], line: int) -> tuple[OomMessage, int]:
    numbers = _Numbers()
    exact = _GGML_EXACT.match(flat, hit.start())
    if exact is None:
        return _message("ggml", line), hit.end()
    numbers.put("requested", exact.group("size"), "bytes")
    backend = _GGML_BACKENDS.get(exact.group("kind"), _NOT_PRINTED)
    where = _ggml_site(flat, exact.start())
    return _message("ggml", line, numbers, backend=backend, device=int(exact.group("device")), site=where), exact.end()


def _read_tensorrt(flat: str, hit: re.Match[str], line: int) -> tuple[OomMessage, int]:
    numbers = _Numbers()
    numbers.put("requested", hit.group("trt_size") or hit.group("trt_size_2"), "bytes")
    return _message("tensorrt", line, numbers, backend="cuda"), hit.end()


_CURRENT_DEVICE = re.compile(r"currentdevice:([0-9]{1,4})")


def _plain(wording: str, backend: str | Unread = _NOT_PRINTED) -> _Reader:
    """A reader for words that carry no size."""

    def read(flat: str, hit: re.Match[str], line: int) -> tuple[OomMessage, int]:
        words = hit.group()
        where: str | Unread = _NOT_PRINTED
        if "kvcache" in words:
            where = "kv_alloc"
        elif "prefilltokens" in words or "compute" in words:
            # work buffers are reserved for the largest prefill step, of which a decode step is a small part
            where = "prefill"
        device = _CURRENT_DEVICE.search(flat, hit.end(), hit.end() + _WINDOW // 16) if wording == "driver" else None
        message = _message(
            wording,
            line,
            backend=backend,
            device=int(device.group(1)) if device else _NOT_PRINTED,
            site=where,
            times=_times(flat, hit.end()),
        )
        return message, hit.end()

    return read


_READERS: Mapping[str, _Reader] = {
    "torch": _read_torch,
    "async_": _read_async,
    "ggml": _read_ggml,
    "exact": _read_ggml_exact,
    "tensorrt": _read_tensorrt,
    "llama": _plain("llama-context"),
    "tgi": _plain("tgi-warmup"),
    "turbomind": _plain("turbomind", "cuda"),
    "trtllm": _plain("tensorrt-llm", "cuda"),
    "nvml": _plain("torch-nvml-assert", "cuda"),
    "driver": _plain("driver"),
}
_ANCHORS = re.compile(
    r"(?P<torch>(?:CUDA|HIP|XPU|NPU)outofmemory)"
    r"|(?P<async_>Allocationondevice(?P<async_device>[0-9]{1,4})wouldexceedallowedmemory\.\(outofmemory\))"
    r"|(?P<ggml>(?:allocating(?P<ggml_size>[0-9]{1,12}(?:\.[0-9]{1,4})?)(?P<ggml_unit>[KMG]iB)"
    r"ondevice(?P<ggml_device>[0-9]{1,4}):)?"
    r"(?P<ggml_api>cuda|hip)Malloc(?:Managed)?failed:outofmemory)"
    r"|(?P<exact>failedtoallocate(?:CUDA|ROCm|Vulkan|SYCL|HIP)[0-9]{1,3}bufferofsize[0-9])"
    r"|(?P<tensorrt>OutOfMemory\(Requestedsizewas(?P<trt_size>[0-9]{1,18})bytes|"
    r"RequestedamountofGPUmemory\((?P<trt_size_2>[0-9]{1,18})bytes\)couldnotbeallocated)"
    r"|(?P<llama>failedtoallocate(?:bufferforkvcache|compute(?:pp|tg)?buffers))"
    r"|(?P<tgi>Notenoughmemorytohandle[0-9]{1,9}prefilltokens)"
    r"|(?P<turbomind>\[TM\]\[(?:ERROR|FATAL)\](?:\[[^\]]{0,80}\])?CUDA(?:runtime)?error:outofmemory)"
    r"|(?P<trtllm>CUDAruntimeerrorin[^\[\]]{1,300}?:outofmemory)"
    r"|(?P<nvml>NVML_SUCCESS==rINTERNALASSERTFAILED)"
    r"|(?P<driver>(?:CUDA|HIP)(?:driver|runtime)?[Ee]rror:outofmemory|CUDA_ERROR_OUT_OF_MEMORY|cudaErrorMemoryAllocation|"
    r"hipErrorOutOfMemory|Cudafailure(?:[0-9]{1,3})?'outofmemory'|CudaRuntime\(outofmemory\)|"
    r"CUBLAS_STATUS_ALLOC_FAILED)"
)


# ---- where the allocation was made ----------------------------------------------------------------------------------

SITES = (
    "logprobs",
    "sampler",
    "lora",
    "multimodal",
    "wake_up",
    "graph_capture",
    "weights_load",
    "kv_alloc",
    "prefill",
    "decode",
    "other",
)
"""Allocation sites, the most specific first: when frames of several are in one traceback, the first of these is it."""

# Words in the file, function or source text of a traceback frame, of vLLM, SGLang, TGI, LMDeploy and TensorRT-LLM.
_SITE_WORDS: Mapping[str, re.Pattern[str]] = {
    # a plain forward only hands gather_context_logits on; the functions that build them are named by what they do
    "logprobs": re.compile(r"log_softmax|log_?probs|(?:handle|alloc(?:ate)?)_?context_?logits", re.IGNORECASE),
    "sampler": re.compile(
        # a V0 worker's sampler_output runs the whole (draft) model
        r"sampler(?!_?output)|/sample/|sample/ops|top_?k_?top_?p|top_p|apply_penalties|sampling_(?:from|batch|ops)|multinomial",
        re.IGNORECASE,
    ),
    "lora": re.compile(r"(?<![a-zA-Z])loras?(?![a-zA-Z])|punica|[sb]gmv", re.IGNORECASE),
    "multimodal": re.compile(
        r"multi_?modal|mm_encoder|(?<![a-zA-Z])vision|visual|image_|pixel_values|siglip|"
        r"clip_?(?:model|encoder)|(?<![a-zA-Z])vit(?![a-zA-Z])|audio|whisper",
        re.IGNORECASE,
    ),
    # memory given back for a sleep is asked for again
    "wake_up": re.compile(r"\bin wake_up\b|\.wake_up\(|create_and_map\(|resume_memory_occupation"),
    "graph_capture": re.compile(
        r"capture_model|capture_begin|capture_end|_?capture_cuda_?graphs?|capture_one|\bin _?capture\b|graph_capture"
    ),
    "weights_load": re.compile(
        r"load_model|load_weights|model_loader|weight_utils|weight_loader|process_weights_after_loading|"
        r"initialize_model|create_weights"
    ),
    "kv_alloc": re.compile(
        r"initialize_kv_cache|allocate_kv_cache|init_kv_cache|init_memory_pool|memory_pool|cache_engine|"
        r"kv_cache_tensors|"
        r"_create_(?:kv_)?buffers?|TokenToKVPool|KVCacheManager|kv_cache_manager|bufferforkvcache|buffer for kv cache"
    ),
    "prefill": re.compile(
        r"prefill|forward_extend|profile_run|determine_(?:num_)?available|context decoding|decodeContext|run_extend",
        re.IGNORECASE,
    ),
    "decode": re.compile(r"forward_decode|decode_(?:forward|step|one|batch)|run_decode|Method Decode|\bin [dD]ecode\b"),
}


# A log line below the level of an error, in the engines' forms: "[INFO]", "[TRT-LLM] [I]", "INFO 01-02", "WARNING:"; or a row
# of TensorRT-LLM's list of parts ("Sampler: 41.20 / 41.20", "Sampler: reduce max_seq_len"), which names all there are.
_NO_ERROR_LINE = re.compile(
    r"^[^\n]{0,120}?(?:(?<![\w.])(?:TRACE|DEBUG|INFO|NOTICE|WARN|WARNING)(?![\w.])|\[[IWDV]\])|^[IW]\d{4} \d\d:\d\d|"
    r"^[^\n]{0,120}?(?<!\S)[A-Z][\w ()]{2,90}: (?:reduce |\(reduce |[0-9.]{1,12} / [0-9.]{1,12}\s*$)"
)


def site(frames: Sequence[str], message: str = "") -> str:
    """Where the refused allocation was made, from the lines that led to it and the message's own: one of :data:`SITES`.

    Frames of several sites: the most specific wins, because a sampler is called from a prefill, not the other way
    round. A plain model forward says neither prefill nor decode and is ``other``; so is an empty list. Log lines below
    the level of an error are no frames: a setting that names a sampler or log probabilities does not say who asked.
    """
    texts = [frame[:MAX_LINE] for frame in frames if 'File "' in frame or _NO_ERROR_LINE.match(frame) is None]
    texts.append(message)
    for name, words in _SITE_WORDS.items():
        if any(words.search(text) for text in texts):
            return name
    return "other"

"""The demo server: a deterministic play of a scenario, its metrics page, its log, a GPU reading, and HTTP around them."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

from .exposition import Hist, Page
from .rank import Rank, Step
from .scenario import Scenario

MODEL = "demo-8b"
HOST = "127.0.0.1"
_STATS_EVERY_S = 5.0
_GIB = 2.0**30
_GPU_TOTAL = 80.0 * _GIB
_RESTART_S = 1.5


class Demo:
    """A scenario in simulated time. Everything it says depends on the scenario and the time alone.

    ``epoch``: what the clock shows when the warm-up ends (seconds since 1970). ``play(t)`` moves to ``t`` seconds after
    that; time never runs backwards.
    """

    def __init__(self, scenario: Scenario, *, epoch: float = 1_800_000_000.0) -> None:
        self.scenario = scenario
        self.epoch = epoch
        self.now = 0.0
        self._lines: list[str] = []
        self._written = 0
        self._life = 0
        self._born = -scenario.warm_up_s
        self._dead = False
        self._stats_at = 0.0
        self._seen: list[tuple[int, int]] = []
        self.ranks: list[Rank] = []
        self._begin(self._born)
        self.play(0.0)

    # --- time -----------------------------------------------------------------------------------------------------------

    def play(self, until_s: float) -> None:
        """Move on to ``until_s`` seconds after the warm-up."""
        if until_s < self.now:
            return
        restart = self.scenario.restart_at_s
        if restart is not None and self._life == 0 and until_s >= restart:
            self._advance(restart)
            self._log(restart, "APIServer", "launcher.py:110", "Shutting down FastAPI HTTP server.")
            self._life = 1
            self._begin(restart + _RESTART_S)
        oom = self.scenario.oom_at_s
        if oom is not None and not self._dead and until_s >= oom:
            self._advance(oom)
            self._fail(oom)
        self._advance(until_s)
        self.now = until_s

    @property
    def up(self) -> bool:
        """Whether the process is there to answer (it is away for a moment during a restart)."""
        return self.now >= self._born

    def _begin(self, at_s: float) -> None:
        scenario = self.scenario
        self._born = at_s
        self.ranks = [Rank(scenario, number, self._life) for number in range(len(scenario.rates))]
        self._seen = [(0, 0)] * len(self.ranks)
        self._stats_at = at_s + _STATS_EVERY_S
        for line in _banner(scenario):
            self._log(at_s, *line)

    def _advance(self, until_s: float) -> None:
        while self._stats_at <= until_s:
            self._steps_until(self._stats_at)
            self._stats(self._stats_at)
            self._stats_at += _STATS_EVERY_S
        self._steps_until(until_s)

    def _steps_until(self, until_s: float) -> None:
        for number, rank in enumerate(self.ranks):
            steps = rank.advance(until_s - self._born)
            if self.scenario.iterations:
                for step in steps:
                    self._log(self._born + step.at_s, "APIServer", "loggers.py:199", _iteration(number, step))

    # --- what it says ---------------------------------------------------------------------------------------------------

    def _log(self, at_s: float, process: str, where: str, text: str, level: str = "INFO") -> None:
        moment = datetime.fromtimestamp(self.epoch + at_s, UTC)
        self._lines.append(f"({process} pid={_PIDS[process]}) {level} {moment:%m-%d %H:%M:%S} [{where}] {text}")

    def _stats(self, at_s: float) -> None:
        for number, rank in enumerate(self.ranks):
            prompt, generated = rank.prompt_tokens, rank.generated
            before = self._seen[number]
            self._seen[number] = (prompt, generated)
            gauges = rank.engine.gauges
            hit = rank.found / rank.looked_up if rank.looked_up else 0.0
            self._log(
                at_s,
                "APIServer",
                "loggers.py:335",
                f"Engine {number:03d}: Avg prompt throughput: {(prompt - before[0]) / _STATS_EVERY_S:.1f} tokens/s, "
                f"Avg generation throughput: {(generated - before[1]) / _STATS_EVERY_S:.1f} tokens/s, "
                f"Running: {gauges.running} reqs, Waiting: {gauges.waiting} reqs, "
                f"GPU KV cache usage: {100 * rank.usage:.1f}%, Prefix cache hit rate: {100 * hit:.1f}%",
            )

    def _fail(self, at_s: float) -> None:
        self._dead = True
        for rank in self.ranks:
            rank.frozen = True
        for line in _OOM:
            self._log(at_s, "EngineCore", "core.py:901", line, "ERROR")

    def new_lines(self) -> list[str]:
        """Log lines since the last call."""
        fresh = self._lines[self._written :]
        self._written = len(self._lines)
        return fresh

    def metrics(self, *, stamped: bool = False) -> str:
        """The metrics page; ``stamped`` puts the simulated clock on every sample."""
        clock = self.epoch + self.now
        page = Page(round(clock * 1000) if stamped else None)
        page.family("process_start_time_seconds", "gauge", "Start time of the process since unix epoch in seconds.")
        page.sample(round(self.epoch + self._born, 2), {})
        page.family("process_cpu_seconds_total", "counter", "Total user and system CPU time spent in seconds.")
        page.sample(round(20.0 + sum(rank.engine.record.busy_s for rank in self.ranks), 2), {})
        labels = [{"engine": str(number), "model_name": MODEL} for number in range(len(self.ranks))]
        for name, kind, text, value in _PLAIN:
            page.family(f"vllm:{name}", kind, text)
            for rank, mine in zip(self.ranks, labels, strict=True):
                page.sample(value(rank), mine)
        page.family("vllm:num_requests_waiting_by_reason", "gauge", "Number of waiting requests by reason.")
        for rank, mine in zip(self.ranks, labels, strict=True):
            page.sample(rank.engine.gauges.waiting, {**mine, "reason": "capacity"})
            page.sample(0, {**mine, "reason": "deferred"})
        page.family("vllm:request_success_total", "counter", "Count of successfully processed requests.")
        for rank, mine in zip(self.ranks, labels, strict=True):
            for reason in ("stop", "length", "abort", "error"):
                page.sample(rank.finished[reason], {**mine, "finished_reason": reason})
        for name, text, pick in _HISTOGRAMS:
            page.family(f"vllm:{name}", "histogram", text)
            for rank, mine in zip(self.ranks, labels, strict=True):
                page.histogram(pick(rank), mine)
        self._configuration(page, labels)
        if self.scenario.observer:
            self._observer(page, labels)
        return page.text()

    def _configuration(self, page: Page, labels: list[dict[str, str]]) -> None:
        scenario = self.scenario
        block = scenario.policy.pool_block_tokens
        page.family("vllm:cache_config_info", "gauge", "Information of the LLMEngine CacheConfig")
        for mine in labels:
            page.sample(
                1,
                {
                    "engine": mine["engine"],
                    "block_size": str(block),
                    "cache_dtype": "auto",
                    "enable_prefix_caching": str(scenario.limits.prefix_caching),
                    "gpu_memory_utilization": "0.92",
                    "num_gpu_blocks": str(scenario.pool_tokens // block),
                },
            )

    def _observer(self, page: Page, labels: list[dict[str, str]]) -> None:
        for name, text, value in _OWN:
            page.family(f"kvdoctor:{name}_total", "counter", text)
            for rank, mine in zip(self.ranks, labels, strict=True):
                page.sample(value(rank), mine)
        page.family("kvdoctor:request_preemptions", "histogram", "Preemptions of each finished request.")
        for rank, mine in zip(self.ranks, labels, strict=True):
            page.histogram(rank.own_preemptions, mine)
        page.family("kvdoctor:victim_remaining_tokens", "histogram", "Tokens a victim had left to generate.")
        for rank, mine in zip(self.ranks, labels, strict=True):
            page.histogram(rank.remaining, mine)

    def gpu_reading(self) -> str:
        """What ``nvidia-smi --query-gpu ... --format=csv`` would print: one card per engine, pool taken at start."""
        lines = [
            "index, name, memory.total [MiB], memory.reserved [MiB], memory.used [MiB], memory.free [MiB], utilization.gpu [%]"
        ]
        mib = 2.0**20
        for number, rank in enumerate(self.ranks):
            used = (16.0 + 6.0) * _GIB + self.scenario.pool_tokens * self.scenario.cost.kv_bytes_per_token
            busy = 0 if self._dead or not rank.engine.gauges.running else 96
            free = _GPU_TOTAL - used - 0.6 * _GIB
            lines.append(
                f"{number}, NVIDIA A100-SXM4-80GB, {_GPU_TOTAL / mib:.0f} MiB, {0.6 * _GIB / mib:.0f} MiB, "
                f"{used / mib:.0f} MiB, {free / mib:.0f} MiB, {busy} %"
            )
        return "\n".join(lines) + "\n"


_PIDS = {"APIServer": 4100, "EngineCore": 4211}


def _banner(scenario: Scenario) -> list[tuple[str, str, str]]:
    block = scenario.policy.pool_block_tokens
    settings = {
        "model": f"'{MODEL}'",
        "max_model_len": str(scenario.max_model_len),
        "max_num_seqs": str(scenario.limits.max_num_seqs),
        "max_num_batched_tokens": str(scenario.limits.max_batched_tokens),
        **{key: f"'{value}'" if not value.istitle() else value for key, value in scenario.args.items()},
    }
    if len(scenario.rates) > 1:
        settings["data_parallel_size"] = str(len(scenario.rates))
    if not scenario.limits.prefix_caching:
        settings["enable_prefix_caching"] = "False"
    pairs = ", ".join(f"'{key}': {value}" for key, value in settings.items())
    return [
        ("APIServer", "api_utils.py:347", f"vLLM API server version {scenario.version}"),
        ("APIServer", "api_utils.py:286", f"non-default args: {{{pairs}}}"),
        (
            "EngineCore",
            "core.py:133",
            f"Initializing a V1 LLM engine (v{scenario.version}) with config: model='{MODEL}', tokenizer='{MODEL}', "
            f"dtype=torch.bfloat16, max_seq_len={scenario.max_model_len}, tensor_parallel_size=1, "
            f"data_parallel_size={len(scenario.rates)}, block_size={block}, "
            f"enable_prefix_caching={scenario.limits.prefix_caching}, enable_chunked_prefill=True",
        ),
        ("EngineCore", "gpu_model_runner.py:2338", "Model loading took 15.0 GiB memory and 4.1 seconds"),
        (
            "EngineCore",
            "kv_cache_utils.py:2327",
            f"GPU KV cache size: {scenario.pool_tokens // block * block:,} tokens, Maximum concurrency for "
            f"{scenario.max_model_len:,} tokens per request: {scenario.pool_tokens / scenario.max_model_len:.2f}x",
        ),
        ("APIServer", "launcher.py:195", "Route: /version, Methods: GET"),
    ]


def _iteration(number: int, step: Step) -> str:
    return (
        f"Engine {number:03d}: Iteration({step.number}): {step.context_requests} context requests, "
        f"{step.context_tokens} context tokens, {step.generation_requests} generation requests, "
        f"{step.generation_tokens} generation tokens, iteration elapsed time: {1000 * step.seconds:.2f} ms, "
        f"GPU KV cache usage: {100 * step.usage:.1f}%"
    )


_OOM = (
    "EngineCore encountered a fatal error.",
    "Traceback (most recent call last):",
    '  File "vllm/v1/worker/gpu_model_runner.py", line 2874, in execute_model',
    "    model_output = self._model_forward(",
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.50 GiB. GPU 0 has a total capacity of 79.25 GiB of "
    "which 1.12 GiB is free. Process 4211 has 78.12 GiB memory in use. Of the allocated memory 66.30 GiB is allocated by "
    "PyTorch, and 9.84 GiB is reserved by PyTorch but unallocated. If reserved but unallocated memory is large try setting "
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.  See documentation for Memory Management  "
    "(https://pytorch.org/docs/stable/notes/cuda.html#environment-variables)",
)

Pick = Callable[[Rank], float]

_PLAIN: tuple[tuple[str, str, str, Pick], ...] = (
    ("num_requests_running", "gauge", "Number of requests in model execution batches.", lambda r: r.engine.gauges.running),
    ("num_requests_waiting", "gauge", "Number of requests waiting to be processed.", lambda r: r.engine.gauges.waiting),
    ("kv_cache_usage_perc", "gauge", "KV-cache usage. 1 means 100 percent usage.", lambda r: r.usage),
    ("prefix_cache_queries_total", "counter", "Prefix cache queries, in tokens.", lambda r: r.looked_up),
    ("prefix_cache_hits_total", "counter", "Prefix cache hits, in tokens.", lambda r: r.found),
    ("num_preemptions_total", "counter", "Cumulative number of preemption from the engine.", lambda r: r.engine.record.preemptions),
    ("prompt_tokens_total", "counter", "Number of prefill tokens processed.", lambda r: r.prompt_tokens),
    ("generation_tokens_total", "counter", "Number of generation tokens processed.", lambda r: r.generated),
)  # fmt: skip

_HISTOGRAMS: tuple[tuple[str, str, Callable[[Rank], Hist]], ...] = (
    ("time_to_first_token_seconds", "Histogram of time to first token in seconds.", lambda r: r.ttft),
    ("inter_token_latency_seconds", "Histogram of inter-token latency in seconds.", lambda r: r.gap),
    ("e2e_request_latency_seconds", "Histogram of e2e request latency in seconds.", lambda r: r.e2e),
    ("request_queue_time_seconds", "Histogram of time spent in WAITING phase for request.", lambda r: r.queue),
    ("request_prefill_time_seconds", "Histogram of time spent in PREFILL phase for request.", lambda r: r.prefill),
    ("request_decode_time_seconds", "Histogram of time spent in DECODE phase for request.", lambda r: r.decode),
    ("request_prompt_tokens", "Number of prefill tokens processed.", lambda r: r.prompt),
    ("request_generation_tokens", "Number of generation tokens processed.", lambda r: r.output),
    ("request_params_max_tokens", "Histogram of the max_tokens request parameter.", lambda r: r.max_tokens),
    ("iteration_tokens_total", "Histogram of number of tokens per engine_step.", lambda r: r.step_tokens),
    ("request_num_preemptions", "Histogram of preemptions of a request.", lambda r: r.preemptions),
)  # fmt: skip

_OWN: tuple[tuple[str, str, Pick], ...] = (
    ("victims", "Victims seen.", lambda r: r.engine.record.preemptions),
    ("victims_near_completion", "Victims with remaining < min(512, computed/4).", lambda r: r.engine.record.near_done),
    ("repeat_preemptions", "Same request hit again within 30 s.", lambda r: r.engine.record.repeats),
    ("recomputed_tokens", "Tokens computed again after a preemption.", lambda r: r.engine.record.recompute_tokens),
)


class DemoServer:
    """A Demo behind HTTP on the loopback interface, its log and GPU reading in files.

    ``speed``: simulated seconds per second. Pages carry the simulated clock when it differs from the wall's. ``port`` 0
    takes a free one; ``port`` tells which. Raises OSError when the port is taken or a file cannot be written.
    """

    def __init__(
        self,
        scenario: Scenario,
        *,
        port: int = 0,
        log: Path | None = None,
        speed: float = 1.0,
        epoch: float | None = None,
    ) -> None:
        self._lock = threading.Lock()
        self._speed = speed
        self._started = time.monotonic()
        self.demo = Demo(scenario, epoch=time.time() if epoch is None else epoch)
        self._log_path = log
        if log is not None:
            log.write_text("", encoding="utf-8")
        self._http = ThreadingHTTPServer((HOST, port), _handler(self))
        self._http.daemon_threads = True
        self._stop = threading.Event()
        # the play of the warm-up took time that does not count
        self._started = time.monotonic()
        self._threads = [
            threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.1}, daemon=True),
            threading.Thread(target=self._tick, daemon=True),
        ]

    @property
    def port(self) -> int:
        """The port it listens on."""
        return int(self._http.server_address[1])

    @property
    def gpu_path(self) -> Path | None:
        """Where the GPU reading is written, beside the log; None without a log."""
        return None if self._log_path is None else self._log_path.with_name(self._log_path.name + ".nvidia-smi.csv")

    def start(self) -> None:
        """Begin to serve."""
        self.refresh()
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Stop serving."""
        self._stop.set()
        self._http.shutdown()
        self._http.server_close()

    def refresh(self) -> None:
        """Play up to the present and write what is new to the files."""
        with self._lock:
            self.demo.play((time.monotonic() - self._started) * self._speed)
            self._write()

    def page(self, path: str) -> tuple[int, str, str]:
        """(status, content type, body) of a path."""
        with self._lock:
            self.demo.play((time.monotonic() - self._started) * self._speed)
            self._write()
            if not self.demo.up:
                return 503, "text/plain", "restarting\n"
            if path == "/metrics":
                return 200, "text/plain; version=0.0.4; charset=utf-8", self.demo.metrics(stamped=self._speed != 1.0)
            answers: Mapping[str, object] = {
                "/version": {"version": self.demo.scenario.version},
                "/v1/models": {"object": "list", "data": [{"id": MODEL, "object": "model", "max_model_len": self.demo.scenario.max_model_len}]},
            }  # fmt: skip
            if path in answers:
                return 200, "application/json", json.dumps(answers[path])
            return 404, "application/json", json.dumps({"detail": "Not Found"})

    def _write(self) -> None:
        lines = self.demo.new_lines()
        if self._log_path is None:
            return
        if lines:
            with self._log_path.open("a", encoding="utf-8") as file:
                file.write("\n".join(lines) + "\n")
        gpu = self.gpu_path
        assert gpu is not None
        gpu.write_text(self.demo.gpu_reading(), encoding="utf-8")

    def _tick(self) -> None:
        while not self._stop.wait(0.5):
            self.refresh()


def _handler(server: DemoServer) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            status, kind, body = server.page(self.path.partition("?")[0])
            data = body.encode()
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, format: str, *args: object) -> None:
            """Nothing: the terminal belongs to the demo's own words."""

    return Handler

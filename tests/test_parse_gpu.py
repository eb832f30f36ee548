"""nvidia-smi in every form; what it does not give is Unread, never 0."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvdoctor.parse import Unread
from kvdoctor.parse.gpu import GpuReport, NotGpu, parse, throttle_names

MIB = 2**20


def read(text: str) -> GpuReport:
    report = parse(text)
    assert isinstance(report, GpuReport), report
    return report


QUERY = """\
index, name, memory.used [MiB], memory.total [MiB], utilization.gpu [%]
0, NVIDIA A100-SXM4-80GB, 66112 MiB, 81920 MiB, 61 %
1, NVIDIA A100-SXM4-80GB, [N/A], [Insufficient Permissions], ERR!
"""


def test_query_csv_gives_bytes_and_fractions() -> None:
    gpu = read(QUERY).readings[0]
    assert (gpu.index, gpu.name, gpu.line) == (0, "NVIDIA A100-SXM4-80GB", 2)
    assert (gpu.mem_used, gpu.mem_total, gpu.util_gpu) == (66112 * MIB, 81920 * MIB, 0.61)


def test_what_is_not_given_is_unread_with_the_marker_as_reason() -> None:
    gpu = read(QUERY).readings[1]
    assert gpu.mem_used == Unread("nvidia-smi prints [N/A]")
    assert gpu.mem_total == Unread("nvidia-smi prints [Insufficient Permissions]")
    assert gpu.util_gpu == Unread("nvidia-smi prints ERR!")
    assert isinstance(gpu.mem_free, Unread)
    assert isinstance(gpu.throttle, Unread)


def test_units_may_stand_in_the_header_only() -> None:
    with_units = read(QUERY).readings[0]
    without = read(QUERY.replace(" MiB,", ",").replace(" %\n", "\n")).readings[0]
    assert without == with_units


def test_a_size_without_any_unit_is_not_guessed() -> None:
    gpu = read("index, memory.used, memory.total [MiB]\n0, 66112, 81920\n").readings[0]
    assert gpu.mem_used == Unread("number without a unit")
    assert gpu.mem_total == 81920 * MIB


def test_csv_without_header_says_that_the_columns_are_unknown() -> None:
    answer = parse("0, NVIDIA A100-SXM4-80GB, 66112 MiB, 81920 MiB, 61 %\n")
    assert isinstance(answer, NotGpu)
    assert "without its header" in answer.reason


def test_a_dump_is_one_reading_per_row_and_time_and_may_start_again() -> None:
    report = read(
        "timestamp, index, memory.used [MiB]\n2026/08/03 00:00:00.000, 0, 1 MiB\n2026/08/03 00:00:05.500, 0, 2 MiB\n"
        "timestamp, index, memory.used [MiB]\n2026/08/03 00:01:00.000, 0, 3 MiB\n2026/08/03 00:0"
    )
    assert [(g.time, g.mem_used) for g in report.readings] == [
        (1785715200.0, MIB),
        (1785715205.5, 2 * MIB),
        (1785715260.0, 3 * MIB),
    ]
    assert [b.line for b in report.bad] == [6]


def test_throttle_mask_clocks_and_power() -> None:
    report = read(
        "timestamp, temperature.gpu, clocks.sm [MHz], clocks.max.sm [MHz], power.draw [W], power.limit [W], "
        "clocks_event_reasons.active\n"
        "2026/08/20 15:02:01.000, 90, 628 MHz, 2100 MHz, 71.20 W, 100.00 W, 0x0000000000000020\n"
        "2026/08/20 15:03:01.000, 30, 2100 MHz, 2100 MHz, 71.20 W, 100.00 W, 0x0000000000000000\n"
    )
    hot, calm = report.readings
    assert (hot.throttle, hot.sm_clock_hz, hot.sm_clock_max_hz) == ({"sw_thermal_slowdown"}, 628e6, 2100e6)
    assert (hot.temperature_c, hot.power_w, hot.power_limit_w) == (90.0, 71.2, 100.0)
    assert calm.throttle == frozenset()


def test_one_column_per_throttle_reason() -> None:
    report = read(
        "index, clocks_throttle_reasons.hw_thermal_slowdown, clocks_throttle_reasons.sw_power_cap\n"
        "0, Active, Not Active\n1, [N/A], [N/A]\n"
    )
    assert report.readings[0].throttle == {"hw_thermal_slowdown"}
    assert report.readings[1].throttle == Unread("nvidia-smi prints [N/A]")


def test_mask_bits_have_nvml_names_and_unknown_bits_stay_visible() -> None:
    assert throttle_names(0x44) == {"sw_power_cap", "hw_thermal_slowdown"}
    assert throttle_names(0x8001) == {"gpu_idle", "bit_0x8000"}


@pytest.mark.parametrize(
    ("columns", "row", "expected"),
    [
        (
            "memory.total [MiB], memory.reserved [MiB], memory.used [MiB], memory.free [MiB]",
            "143771, 614, 0, 143158",
            False,
        ),
        ("driver_version, memory.total [MiB], memory.used [MiB]", "590.48.01, 81920, 700", False),
        ("driver_version, memory.total [MiB], memory.used [MiB]", "470.82.01, 81920, 700", True),
        ("memory.total [MiB], memory.used [MiB], memory.free [MiB]", "143771, 0, 143158", False),
        ("memory.total [MiB], memory.used [MiB]", "143771, 700", None),
    ],
)
def test_whether_used_includes_the_reservation_is_said_only_when_shown(
    columns: str, row: str, expected: bool | None
) -> None:
    assert read(f"{columns}\n{row}\n").readings[0].used_includes_reserved is expected


def test_compute_apps_with_commas_in_the_name() -> None:
    report = read(
        "gpu_uuid, pid, process_name, used_gpu_memory [MiB]\n"
        "GPU-5b1c0f7e, 54, C:\\a, b\\python.exe, 9012 MiB\n"
        "GPU-5b1c0f7e, 55, VLLM::EngineCore, [N/A]\n"
    )
    first, second = report.processes
    assert (first.name, first.pid, first.used, first.gpu_uuid) == (
        "C:\\a, b\\python.exe",
        54,
        9012 * MIB,
        "GPU-5b1c0f7e",
    )
    assert second.used == Unread("nvidia-smi prints [N/A]")
    assert report.processes_listed


def test_an_empty_list_of_apps_is_a_statement() -> None:
    report = read("pid, process_name, used_gpu_memory [MiB]\n")
    assert (report.form, report.processes, report.processes_listed) == ("query-compute-apps", (), True)


def test_windows_driver_model() -> None:
    gpu = read("index, driver_model.current, utilization.memory [%]\n0, WDDM, 2 %\n").readings[0]
    assert (gpu.driver_model, gpu.util_mem) == ("WDDM", 0.02)


TABLE = """\
Sun Nov 29 10:00:00 2026
+-----------------------------------------------------------------------------------------+
| NVIDIA-SMI 550.54.15              Driver Version: 550.54.15      CUDA Version: 12.4     |
|-----------------------------------------+------------------------+----------------------+
| GPU  Name                 Persistence-M | Bus-Id          Disp.A | Volatile Uncorr. ECC |
| Fan  Temp   Perf          Pwr:Usage/Cap |           Memory-Usage | GPU-Util  Compute M. |
|                                         |                        |               MIG M. |
|=========================================+========================+======================|
|   0  NVIDIA A100 80GB PCIe          On  |   00000000:E8:00.0 Off |                   On |
| N/A   38C    P0             75W /  300W |   16959MiB /  81920MiB |     N/A      Default |
|                                         |                        |              Enabled |
+-----------------------------------------+------------------------+----------------------+
|   1  NVIDIA A100 80GB PCIe          Off |   00000000:E9:00.0 Off |                    0 |
| ERR!  41C    P0             80W /  300W |     675MiB /  81920MiB |     13%      Default |
|                                         |                        |             Disabled |
+-----------------------------------------+------------------------+----------------------+

+-----------------------------------------------------------------------------------------+
| MIG devices:                                                                            |
+------------------+----------------------------------+-----------+-----------------------+
| GPU  GI  CI  MIG |                     Memory-Usage |        Vol|      Shared           |
|      ID  ID  Dev |                       BAR1-Usage | SM     Unc| CE ENC DEC OFA JPG    |
|                  |                                  |        ECC|                       |
|==================+==================================+===========+=======================|
|  0    2   0   0  |           16925MiB /  40192MiB   | 14      0 |  3   0    2    0    0 |
|                  |                 0MiB / 16383MiB  |           |                       |
+------------------+                                  +-----------+-----------------------+
|  0    2   1   1  |           16925MiB /  40192MiB   | 14      0 |  3   0    2    0    0 |
|                  |                 0MiB / 16383MiB  |           |                       |
+------------------+----------------------------------+-----------+-----------------------+

+-----------------------------------------------------------------------------------------+
| Processes:                                                                              |
|  GPU   GI   CI        PID   Type   Process name                              GPU Memory |
|        ID   ID                                                               Usage      |
|=========================================================================================|
|    0    2    0      21977      C   VLLM::Worker_TP0                            13526MiB |
|    1   N/A  N/A       991    C+G   /usr/lib/xorg/Xorg -core :0                      N/A |
+-----------------------------------------------------------------------------------------+
"""


def test_default_table_gpus() -> None:
    report = read(TABLE)
    assert (report.form, report.driver, report.bad_count) == ("table", "550.54.15", 0)
    first, second = report.readings
    assert (first.index, first.name, first.pci, first.line) == (0, "NVIDIA A100 80GB PCIe", "00000000:E8:00.0", 9)
    assert (first.mem_used, first.mem_total, first.mig) == (16959 * MIB, 81920 * MIB, True)
    assert first.util_gpu == Unread("nvidia-smi prints N/A")
    assert (second.util_gpu, second.mig, second.temperature_c, second.power_w) == (0.13, False, 41.0, 80.0)
    assert (second.time, second.used_includes_reserved) == (1795946400.0, False)
    assert isinstance(second.mem_free, Unread)


def test_default_table_instances_and_processes() -> None:
    report = read(TABLE)
    assert [(m.gpu_index, m.gi, m.ci, m.mem_used) for m in report.mig] == [
        (0, 2, 0, 16925 * MIB),
        (0, 2, 1, 16925 * MIB),
    ]
    worker, desktop = report.processes
    assert (worker.gpu_index, worker.gi, worker.ci, worker.pid) == (0, 2, 0, 21977)
    assert (worker.kind, worker.name, worker.used) == ("C", "VLLM::Worker_TP0", 13526 * MIB)
    assert (desktop.kind, desktop.name, desktop.used) == (
        "C+G",
        "/usr/lib/xorg/Xorg -core :0",
        Unread("nvidia-smi prints N/A"),
    )


def test_old_and_windows_tables() -> None:
    report = read(
        "| NVIDIA-SMI 418.40.04    Driver Version: 418.40.04    CUDA Version: 10.1     |\n"
        "|   0  GeForce RTX 208...  WDDM  | 00000000:1A:00.0  On |                  N/A |\n"
        "| 27%   39C    P8     8W / 250W |   1024MiB / 10989MiB |      3%      Default |\n"
        "| Processes:                                                       GPU Memory |\n"
        "|    0      1234      C   python                                      1001MiB |\n"
    )
    gpu, process = report.readings[0], report.processes[0]
    assert (gpu.driver_model, gpu.mem_used, gpu.used_includes_reserved) == ("WDDM", 1024 * MIB, True)
    assert (process.pid, process.used) == (1234, 1001 * MIB)
    assert isinstance(process.gi, Unread)


def test_a_memory_cell_with_one_marker_is_unread_twice() -> None:
    gpu = read(
        "|   0  NVIDIA H100 80GB HBM3          On  | 00000000:8B:00.0 Off |                   On |\n"
        "| N/A   48C    P0             138W / 700W |                  N/A |     N/A      Default |\n"
    ).readings[0]
    assert gpu.mem_used == gpu.mem_total == Unread("nvidia-smi prints N/A")


def test_an_empty_process_panel_is_no_statement_but_the_words_are() -> None:
    panel = TABLE[: TABLE.index("|    0    2    0      21977")] + "+---+\n"
    assert not read(panel).processes_listed
    assert read(panel + "|  No running processes found      |\n").processes_listed


TEXT = """\

==============NVSMI LOG==============

Timestamp                                 : Sun Nov 29 10:00:00 2026
Driver Version                            : 590.48.01
CUDA Version                              : 13.1

Attached GPUs                             : 1
GPU 00000000:2B:00.0
    Product Name                          : NVIDIA H200
    MIG Mode
        Current                           : Disabled
        Pending                           : Disabled
    GPU UUID                              : GPU-1111
    Clocks Event Reasons
        Idle                              : Not Active
        SW Power Cap                      : Active
        HW Slowdown                       : Active
            HW Thermal Slowdown           : Active
            HW Power Brake Slowdown       : Not Active
    FB Memory Usage
        Total                             : 143771 MiB
        Reserved                          : 614 MiB
        Used                              : 13022 MiB
        Free                              : 130136 MiB
    BAR1 Memory Usage
        Total                             : 262144 MiB
        Used                              : 1 MiB
    Utilization
        GPU                               : 61 %
        Memory                            : 2 %
    Temperature
        GPU Current Temp                  : 61 C
        GPU Shutdown Temp                 : N/A
    GPU Power Readings
        Average Power Draw                : N/A
        Instantaneous Power Draw          : 301.20 W
        Current Power Limit               : 700.00 W
    Clocks
        SM                                : 1200 MHz
    Max Clocks
        SM                                : 1980 MHz
    Processes
        GPU instance ID                   : N/A
        Compute instance ID               : N/A
        Process ID                        : 21977
            Type                          : C
            Name                          : VLLM::EngineCore
            Used GPU Memory               : 13022 MiB
"""

XML = """\
<?xml version="1.0" ?>
<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v12.dtd">
<nvidia_smi_log>
\t<timestamp>Sun Nov 29 10:00:00 2026</timestamp>
\t<driver_version>590.48.01</driver_version>
\t<attached_gpus>1</attached_gpus>
\t<gpu id="00000000:2B:00.0">
\t\t<product_name>NVIDIA H200</product_name>
\t\t<mig_mode><current_mig>Disabled</current_mig><pending_mig>Disabled</pending_mig></mig_mode>
\t\t<uuid>GPU-1111</uuid>
\t\t<clocks_event_reasons>
\t\t\t<clocks_event_reason_gpu_idle>Not Active</clocks_event_reason_gpu_idle>
\t\t\t<clocks_event_reason_sw_power_cap>Active</clocks_event_reason_sw_power_cap>
\t\t\t<clocks_event_reason_hw_slowdown>Active</clocks_event_reason_hw_slowdown>
\t\t\t<clocks_event_reason_hw_thermal_slowdown>Active</clocks_event_reason_hw_thermal_slowdown>
\t\t</clocks_event_reasons>
\t\t<fb_memory_usage><total>143771 MiB</total><reserved>614 MiB</reserved><used>13022 MiB</used><free>130136 MiB</free></fb_memory_usage>
\t\t<bar1_memory_usage><total>262144 MiB</total><used>1 MiB</used></bar1_memory_usage>
\t\t<utilization><gpu_util>61 %</gpu_util><memory_util>2 %</memory_util></utilization>
\t\t<temperature><gpu_temp>61 C</gpu_temp></temperature>
\t\t<gpu_power_readings><instant_power_draw>301.20 W</instant_power_draw><current_power_limit>700.00 W</current_power_limit></gpu_power_readings>
\t\t<clocks><sm_clock>1200 MHz</sm_clock></clocks>
\t\t<max_clocks><sm_clock>1980 MHz</sm_clock></max_clocks>
\t\t<processes><process_info><gpu_instance_id>N/A</gpu_instance_id><compute_instance_id>N/A</compute_instance_id>
\t\t\t<pid>21977</pid><type>C</type><process_name>VLLM::EngineCore</process_name><used_memory>13022 MiB</used_memory></process_info></processes>
\t</gpu>
</nvidia_smi_log>
"""


@pytest.mark.parametrize(("text", "form"), [(TEXT, "text"), (XML, "xml")])
def test_full_query_as_text_and_as_xml_say_the_same(text: str, form: str) -> None:
    report = read(text)
    assert (report.form, report.driver, report.processes_listed) == (form, "590.48.01", True)
    (gpu,), (process,) = report.readings, report.processes
    assert (gpu.index, gpu.uuid, gpu.name, gpu.pci) == (0, "GPU-1111", "NVIDIA H200", "00000000:2B:00.0")
    assert (gpu.mem_total, gpu.mem_used, gpu.mem_free) == (143771 * MIB, 13022 * MIB, 130136 * MIB)
    assert (gpu.mem_reserved, gpu.used_includes_reserved) == (614 * MIB, False)
    assert (gpu.util_gpu, gpu.util_mem, gpu.temperature_c) == (0.61, 0.02, 61.0)
    assert (gpu.power_w, gpu.power_limit_w, gpu.sm_clock_hz, gpu.sm_clock_max_hz) == (301.2, 700.0, 1200e6, 1980e6)
    assert gpu.throttle == {"sw_power_cap", "hw_slowdown", "hw_thermal_slowdown"}
    assert (gpu.mig, gpu.time) == (False, 1795946400.0)
    assert (process.pid, process.name, process.used, process.kind) == (21977, "VLLM::EngineCore", 13022 * MIB, "C")
    assert (process.gpu_index, process.gpu_pci) == (0, "00000000:2B:00.0")


def test_instances_in_the_full_query() -> None:
    inside = """\
    MIG Device
        Index                             : 0
        GPU Instance ID                   : 1
        Compute Instance ID               : 0
        FB Memory Usage
            Total                         : 71424 MiB
            Used                          : 16925 MiB
            Free                          : 54499 MiB
"""
    text = read(TEXT.replace("    FB Memory Usage\n", inside + "    FB Memory Usage\n", 1))
    element = (
        "<mig_devices><mig_device><index>0</index><gpu_instance_id>1</gpu_instance_id><compute_instance_id>0"
        "</compute_instance_id><fb_memory_usage><total>71424 MiB</total><used>16925 MiB</used><free>54499 MiB</free>"
        "</fb_memory_usage></mig_device></mig_devices>"
    )
    xml = read(XML.replace("<bar1", element + "<bar1", 1))
    for report in (text, xml):
        (instance,) = report.mig
        assert (instance.gi, instance.ci, instance.mem_used, instance.mem_free) == (1, 0, 16925 * MIB, 54499 * MIB)
        assert report.readings[0].mem_used == 13022 * MIB


def test_without_all_gpus_the_index_is_not_guessed() -> None:
    report = read(
        TEXT.replace("Attached GPUs                             : 1", "Attached GPUs                             : 8")
    )
    assert isinstance(report.readings[0].index, Unread)


@pytest.mark.parametrize("cut", [0.5, 0.8, 0.95])
def test_a_cut_xml_keeps_what_was_complete(cut: float) -> None:
    report = read(XML[: int(len(XML) * cut)])
    assert report.bad_count == 1
    assert report.readings[0].name == "NVIDIA H200"


def test_entity_declarations_are_refused() -> None:
    bomb = '<!DOCTYPE x [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;">]><nvidia_smi_log><gpu>&b;</gpu></nvidia_smi_log>'
    answer = parse(bomb)
    assert isinstance(answer, NotGpu)
    assert "entities" in answer.reason


def test_deep_nesting_is_refused() -> None:
    answer = parse("<nvidia_smi_log>" + "<a>" * 5000)
    assert isinstance(answer, NotGpu)


@pytest.mark.parametrize("text", ["", "hello\n", "a,b,c\n1,2,3\n", "name\nfoo\n", "{}\n", "concurrency,tpot_ms\n1,2\n"])
def test_other_text_is_not_taken_for_gpu_output(text: str) -> None:
    assert isinstance(parse(text), NotGpu)


@given(st.sampled_from([QUERY, TABLE, TEXT, XML]), st.data())
def test_damage_never_raises(text: str, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, len(text)))
    junk = data.draw(st.text(max_size=20))
    parse(text[:cut] + junk + text[min(len(text), cut + data.draw(st.integers(0, 40))) :])


MARKERS = ["[N/A]", "N/A", "[Not Supported]", "[Unknown Error]", "[GPU requires reset]", "ERR!", "-", ""]


@given(st.lists(st.sampled_from([*MARKERS, "5 MiB"]), min_size=4, max_size=4))
def test_every_marker_in_every_place_is_unread_and_its_neighbours_are_read(cells: list[str]) -> None:
    header = "memory.total [MiB], memory.reserved [MiB], memory.used [MiB], memory.free [MiB], index"
    gpu = read(f"{header}\n{', '.join(cells)}, 3\n").readings[0]
    for cell, value in zip(cells, (gpu.mem_total, gpu.mem_reserved, gpu.mem_used, gpu.mem_free), strict=True):
        assert isinstance(value, Unread) if cell in MARKERS else value == 5 * MIB
    assert gpu.index == 3


# columns as the table prints them: before instances were shown, with instances, and the wide table of newer drivers
PROCESS_LAYOUTS = [
    "|    {gpu:d} {pid:>10}      {kind:>3}   {name:<36}{used:>9} |",
    "|    {gpu:d}   N/A  N/A {pid:>9}    {kind:>3}   {name:<35}{used:>9} |",
    "|    {gpu:d}   N/A  N/A {pid:>15}    {kind:>3}   {name:<35}{used:>9} |",
    "|    {gpu:d}    3    0  {pid:>15}    {kind:>3}   {name:<35}{used:>9} |",
]


@given(
    st.sampled_from(PROCESS_LAYOUTS),
    st.integers(1, 4_194_304),
    st.integers(0, 999_999),
    st.sampled_from(["C", "G", "C+G", "M+C"]),
    st.sampled_from(["VLLM::EngineCore", "/usr/bin/python3", "sglang::scheduler_TP0", "a b"]),
)
def test_a_process_is_read_whatever_the_length_of_its_pid(
    layout: str, pid: int, mib: int, kind: str, name: str
) -> None:
    row = layout.format(gpu=0, pid=pid, kind=kind, name=name, used=f"{mib}MiB")
    panel = "| Processes:                                                                              |"
    report = read(f"{TABLE}\n{panel}\n{row}\n")
    last = report.processes[-1]
    assert (last.pid, last.used, last.kind, last.name) == (pid, mib * MIB, kind, name)
    assert report.bad_count == 0

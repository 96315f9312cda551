"""Tables of PyTorch's profiler: printed live, printed by PyTorch from events of a GPU, and an old one of a course."""

from __future__ import annotations

import re

import pytest

import paleo_lite as pl
from paleo_lite.errors import BadProfile
from paleo_lite.profiles.detect import open_profile
from paleo_lite.profiles.torch_table import TorchTable

torch = pytest.importorskip("torch")

pytestmark = pytest.mark.slow  # importing torch takes seconds


def rows_of(tmp_path, text):
    path = tmp_path / "table"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    assert TorchTable().recognises(path, path.read_bytes()[: 2**16])
    (batch,) = TorchTable().batches(path, None)
    return batch.to_pylist()


@pytest.fixture(scope="module")
def profiled():
    """A profile of one forward and backward on the CPU."""
    torch.manual_seed(0)
    model = torch.nn.Sequential(
        torch.nn.Conv2d(3, 8, 3), torch.nn.ReLU(), torch.nn.Flatten(), torch.nn.Linear(1568, 10)
    )
    image = torch.randn(2, 3, 16, 16)
    cpu = [torch.profiler.ProfilerActivity.CPU]
    with torch.profiler.profile(activities=cpu, record_shapes=True, profile_memory=True, with_flops=True) as profile:
        model(image).sum().backward()
    return profile


def about(value_us, time_unit=None):
    """What PyTorch prints of a time: three decimals of us, ms or s."""
    step = {"us": 1.0, "ms": 1e3, "s": 1e6}.get(
        time_unit or ("s" if value_us >= 1e6 else "ms" if value_us >= 1e3 else "us")
    )
    return pytest.approx(value_us * 1e3, abs=0.51 * step)


@pytest.mark.parametrize("time_unit", [None, "us", "ms", "s"])
@pytest.mark.parametrize("by_shape", [False, True])
def test_live_averages_row_by_row(tmp_path, profiled, by_shape, time_unit):
    events = profiled.key_averages(group_by_input_shape=by_shape)
    rows = rows_of(tmp_path, events.table(row_limit=-1, max_name_column_width=None, time_unit=time_unit))
    assert len(rows) == len(events) > 10
    for row, event in zip(rows, events):
        assert (row["kernel"], row["calls"]) == (event.key, event.count)
        assert row["duration_ns"] == about(event.cpu_time_total, time_unit)
        assert row["metric.self_cpu_ns"] == about(event.self_cpu_time_total, time_unit)
        assert row["category"] == "cpu" and row["op"] == event.key
        if by_shape and event.input_shapes:
            assert row["params"] == str(event.input_shapes).replace(" ", "")[: len(row["params"])]
        else:
            assert row["params"] is None


def test_live_flops_are_twice_the_multiply_accumulates(tmp_path, profiled):
    rows = {row["kernel"]: row for row in rows_of(tmp_path, profiled.key_averages().table())}
    # 2 images, 8 filters of 3 x 3 x 3 on 14 x 14; and 1568 inputs to 10 outputs
    assert rows["aten::conv2d"]["flops"] == pytest.approx(2 * 2 * 8 * 27 * 14 * 14, rel=1e-3)
    assert rows["aten::addmm"]["flops"] == pytest.approx(2 * 2 * 1568 * 10, rel=1e-3)
    assert rows["aten::relu"]["flops"] is None
    assert rows["aten::conv2d"]["metric.cpu_memory_bytes"] == 2 * 8 * 14 * 14 * 4


def test_live_autograd_profiler_prints_every_event(tmp_path):
    with torch.autograd.profiler.profile() as profile:
        torch.ones(4, 4) @ torch.ones(4, 4)
    text = str(profile)
    rows = rows_of(tmp_path, "Epoch 1\nloss  0.5\n" + text + "\nEpoch 2\n")
    assert [row["kernel"] for row in rows] == [event.key for event in profile.function_events]
    assert rows[0]["calls"] == 1


class Event:
    """Fake event with the attributes that PyTorch's table printer reads."""

    count, node_id, is_async, is_legacy, is_user_annotation, cpu_parent = 4, -1, False, False, False, None
    use_device, input_shapes, overload_name, device_memory_usage, self_device_memory_usage = "cuda", "", "", 0, 0
    cpu_memory_usage = self_cpu_memory_usage = 0

    def __init__(self, key, cpu_us, own_cpu_us, device_us, own_device_us, stack=(), flops=0, memory=0):
        self.key, self.stack, self.flops = key, list(stack), flops
        self.cpu_time_total, self.self_cpu_time_total = cpu_us, own_cpu_us
        self.device_time_total, self.self_device_time_total = device_us, own_device_us
        self.cpu_time, self.device_time = cpu_us / self.count, device_us / self.count
        self.device_memory_usage = self.self_device_memory_usage = memory
        self.device_type = torch.autograd.DeviceType.CPU if cpu_us else torch.autograd.DeviceType.CUDA

    def __getattr__(self, name):
        if name.endswith("_str"):
            return torch.autograd.profiler_util._format_time(getattr(self, name[:-4]))
        raise AttributeError(name)


def printed(events, **options):
    return torch.autograd.profiler_util._build_table(events, **options)


GPU = [
    Event("train_step", 9000.0, 100.0, 0.0, 0.0),
    Event("aten::cudnn_convolution", 800.0, 500.0, 6037.096, 0.0, memory=2**20),
    Event("cudaLaunchKernel", 300.0, 300.0, 0.0, 0.0),
    Event("void implicit_convolve_sgemm<float, float, 1024, 5>(int)", 0.0, 0.0, 6037.096, 6037.096),
    Event("Memcpy HtoD (Pinned -> Device)", 0.0, 0.0, 12.5, 12.5),
    Event("Memset (Device)", 0.0, 0.0, 1.5, 1.5),
    Event("ncclKernel_AllReduce_RING_LL_Sum_float(ncclWorkElem)", 0.0, 0.0, 700.0, 700.0),
    Event("ProfilerStep*", 9500.0, 200.0, 0.0, 0.0),
    Event("train_step", 0.0, 0.0, 6800.0, 6800.0),
    Event("Optimizer.step#SGD.step", 0.0, 0.0, 50.0, 50.0),
]


@pytest.mark.parametrize("memory", [False, True])
@pytest.mark.parametrize("device", ["cuda", "xpu"])
def test_device_times_make_kernels_and_copies(tmp_path, monkeypatch, device, memory):
    monkeypatch.setattr(Event, "use_device", device)
    rows = rows_of(tmp_path, printed(GPU, max_name_column_width=None, profile_memory=memory))
    assert [(row["category"], row["duration_ns"]) for row in rows] == [
        ("cpu", 9e6),
        ("cpu", 8e5),
        ("api", 3e5),
        ("kernel", 6037e3),
        ("memcpy", 12500.0),
        ("memset", 1500.0),
        ("communication", 7e5),
        ("marker", 9.5e6),
        ("marker", 6.8e6),
        ("marker", 5e4),
    ]
    convolution = rows[1]
    assert (convolution["metric.device_ns"], convolution["metric.self_device_ns"]) == (6037e3, 0.0)
    assert rows[3]["kernel"] == "void implicit_convolve_sgemm<float, float, 1024, 5>(int)" and rows[3]["op"] is None
    if memory:
        assert convolution["metric.device_memory_bytes"] == convolution["metric.self_device_memory_bytes"] == 2**20


def test_flops_with_stacks_that_pytorch_prints_in_wrong_columns(tmp_path):
    stack = ["net.py(10): forward", "train.py(3): <module>"]
    events = [Event("aten::mm", 90.0, 90.0, 0.0, 0.0, stack, 5000), Event("aten::add", 10.0, 10.0, 0.0, 0.0, stack)]
    for event in events:
        event.use_device = None
    text = printed(events, with_flops=True)
    assert re.search(r"Source Location\s+Total KFLOPs", text)
    rows = rows_of(tmp_path, text)
    assert [(row["kernel"], row["flops"]) for row in rows] == [("aten::mm", 5e3), ("aten::add", None)]


def test_a_number_wider_than_its_column(tmp_path):
    events = [Event("aten::mm", 123456789012.0, 90.0, 0.0, 0.0), Event("aten::add", 10.0, 10.0, 0.0, 0.0)]
    for event in events:
        event.use_device = None
    rows = rows_of(tmp_path, printed(events, time_unit="us"))
    assert [row["duration_ns"] for row in rows] == [123456789012e3, 10e3]


# As the course slides "Performance and Profiling" print it: a table of 2019, with tabs.
SLIDE = """Name	CPU time	CUDA time	Calls	CPU total	CUDA total
conv2d	9976.544us	9972.736us	1	9976.544us	9972.736us
convolution	9958.778us	9958.400us	1	9958.778us	9958.400us
_convolution	9946.712us	9947.136us	1	9946.712us	9947.136us
contiguous	6.692us	6.976us	1	6.692us	6.976us
batch_norm	1214.791us	1213.440us	1	1214.791us	1213.440us
max_pool2d_with_indices	28837.682us	28836.834us	1	28837.682us	28836.834us
"""


def test_a_table_of_2019(tmp_path):
    rows = rows_of(tmp_path, SLIDE)
    assert [(row["kernel"], row["calls"], row["duration_ns"], row["metric.device_ns"]) for row in rows] == [
        ("conv2d", 1, 9976544.0, 9972736.0),
        ("convolution", 1, 9958778.0, 9958400.0),
        ("_convolution", 1, 9946712.0, 9947136.0),
        ("contiguous", 1, 6692.0, 6976.0),
        ("batch_norm", 1, 1214791.0, 1213440.0),
        ("max_pool2d_with_indices", 1, 28837682.0, 28836834.0),
    ]


# The same table as PyTorch 1.0 prints it: names on the left, no rule below.
PYTORCH_1_0 = """
-----------------  ---------------  ---------------  ---------------  ---------------  ---------------
Name                      CPU time        CUDA time            Calls        CPU total       CUDA total
-----------------  ---------------  ---------------  ---------------  ---------------  ---------------
conv2d                  9976.544us       9972.736us                1       9976.544us       9972.736us
contiguous                 6.692us          6.976us                1          6.692us          6.976us
"""


def test_pytorch_1_0(tmp_path):
    assert [row["duration_ns"] for row in rows_of(tmp_path, PYTORCH_1_0)] == [9976544.0, 6692.0]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("10.879ms", "     nan", r"line 5: no total time"),
        ("10.879ms", "-0.879ms", r"line 5: a time is negative"),
        ("10.879ms", "10.879xs", r"CPU total is '10.879xs'"),
        ("  1.867ms             1", "  1.867ms            -1", r"-1 is not a number of calls"),
        ("  1.867ms             1", "  1.867ms           1.5", r"1.5 is not a number of calls"),
        ("0.34%      57.045us", "0.34% ", r"'aten::linear .* is not a row of 7 columns"),
        ("CPU total %     CPU total", "CPU gross %     CPU gross", r"no total time under 'Name, Self CPU %"),
        ("Self CPU time total", "\n         Name      CPU total\nSelf CPU time total", r"not under a rule"),
    ],
)
def test_bad_table_names_its_line(tmp_path, samples, old, new, message):
    text = samples["torch_table.TorchTable"].decode()
    assert old in text
    with pytest.raises(BadProfile, match=message):
        rows_of(tmp_path, text.replace(old, new, 1))


def test_cut_table_is_an_error(tmp_path, samples):
    lines = samples["torch_table.TorchTable"].decode().splitlines()
    for count in range(4, 7):
        with pytest.raises(BadProfile, match="the table is cut"):
            rows_of(tmp_path, "\n".join(lines[:count]))


def test_a_table_in_the_log_of_a_server(tmp_path):
    """vLLM puts the process before each line; the times are of a published log of a B200."""
    rule = "-" * 55 + "  " + "  ".join(["-" * 12] * 10)
    names = ("Self CPU %", "Self CPU", "CPU total %", "CPU total", "CPU time avg")
    names += ("Self CUDA", "Self CUDA %", "CUDA total", "CUDA time avg", "# of Calls")
    cells = ("0.00%", "0.000us", "0.00%", "0.000us", "0.000us", "345.184us", "0.01%", "345.184us", "345.184us", "1")
    kernel = "nvjet_tst_448x112_64x3_2x1_2cta_v_bz_TNT"

    def line(name, columns):
        return f"{name:>55}  " + "  ".join(f"{column:>12}" for column in columns)

    table = [rule, line("Name", names), rule, line(kernel, cells), rule, "Self CUDA time total: 2.551s"]
    row, left_out = rows_of(tmp_path, "".join(f"(EngineCore_7 pid=1389347) {text}  \n" for text in table))
    assert (row["kernel"], row["category"], row["duration_ns"], row["calls"]) == (kernel, "kernel", 345184, 1)
    assert (left_out["kernel"], left_out["calls"]) == ("(rows that the table leaves out)", 0)
    assert left_out["duration_ns"] == 2.551e9 - 345184


TWICE = """\
# sort_by="self_xpu_time_total"
-----------------  ------------  ------------  ------------  ------------  ------------
             Name      Self CPU     CPU total      Self XPU     XPU total    # of Calls
-----------------  ------------  ------------  ------------  ------------  ------------
      aten::copy_       62.290s      125.282s        2.440s        2.440s          2854
        aten::add     136.638ms     635.801ms        1.508s        1.508s          1456
-----------------  ------------  ------------  ------------  ------------  ------------
Self CPU time total: 67.373s
Self XPU time total: 87.553s

# sort_by="self_cpu_time_total"
-----------------  ------------  ------------  ------------  ------------  ------------
             Name      Self CPU     CPU total      Self XPU     XPU total    # of Calls
-----------------  ------------  ------------  ------------  ------------  ------------
      aten::copy_       62.290s      125.282s        2.440s        2.440s          2854
-----------------  ------------  ------------  ------------  ------------  ------------
Self CPU time total: 67.373s
Self XPU time total: 87.553s
"""


def test_a_profile_printed_twice_is_read_once(tmp_path):
    """Rows of a published profile of a video model on Intel's GPU, sorted by device and then by host.

    Its two longest operations take 4.5% of the device's time: what is not listed counts, too.
    """
    path = tmp_path / "twice.txt"
    path.write_text(TWICE)
    rows = open_profile(path).read().table.to_pylist()
    calls = {row["kernel"]: row["calls"] for row in rows if row["calls"]}
    assert calls == {"aten::copy_": 2854, "aten::add": 1456}
    assert sum(row["duration_ns"] for row in rows if row["category"] == "kernel") == pytest.approx(87.553e9)
    other = tmp_path / "other.txt"
    other.write_text(TWICE[::-1].replace("s373.76", "s373.77", 1)[::-1])
    with pytest.raises(BadProfile, match="line 13: a second table with other totals"):
        open_profile(other).read()


def test_rows_left_out_are_no_kernel(tmp_path):
    path = tmp_path / "twice.txt"
    path.write_text(TWICE)
    report = pl.kernels(path)
    assert "2 kernels, 4,310 calls" in report.document().title
    assert sum(row["kernels"] for row in report.by_class()) == 2


def test_a_total_below_its_rows_is_doubted(tmp_path):
    path = tmp_path / "table.txt"
    path.write_text(TWICE.replace("87.553s", "3.000s"))
    (said,) = [note for note in pl.kernels(path).notes if "total" in note]
    assert said.startswith("the total below the table is 3 s, less than the 3.948 s of its rows")


def test_a_share_that_is_not_that_of_its_time_is_doubted(tmp_path):
    path = tmp_path / "table.txt"
    rule = "-" * 12
    rules = "  ".join([rule] * 7)
    heading = "  ".join(f"{name:>12}" for name in ("Name", "Self CPU", "CPU total", "Self CUDA", "Self CUDA %",
                                                  "CUDA total", "# of Calls"))  # fmt: skip
    row = "  ".join(
        f"{cell:>12}" for cell in ("aten::relu_", "1.000ms", "1.000ms", "4.000ms", "50.00%", "4.000ms", "10")
    )
    path.write_text(
        f"{rules}\n{heading}\n{rules}\n{row}\n{rules}\nSelf CPU time total: 1ms\nSelf CUDA time total: 20ms\n"
    )
    (said,) = open_profile(path).doubts
    assert said.startswith("'aten::relu_': 4 ms are 20% of 20 ms, and 50.00% is printed: the row or the total")
    path.write_text(path.read_text().replace("50.00%", "20.00%"))
    assert open_profile(path).doubts == []


def test_a_table_cut_inside_a_row_is_cut(tmp_path):
    path = tmp_path / "cut.txt"
    path.write_text(TWICE[: TWICE.index("635.801ms") + 4])
    with pytest.raises(BadProfile, match="the table is cut: no rule of dashes ends it"):
        open_profile(path).read()
    with pytest.raises(BadProfile, match=r"CPU total is '635.', expected a time such as 12.500us \(a cut row\?\)"):
        rows_of(tmp_path, TWICE.replace("635.801ms", "635.     "))


def test_a_table_with_single_spaces_is_read(tmp_path):
    """As a page converted to Markdown shows it; the totals are those below the table."""
    path = tmp_path / "page.md"
    path.write_text(
        "------------- ------------ ------------ ------------ ------------ ------------\n"
        " Name Self CPU % Self CPU CPU total % CPU total CPU time avg Self CUDA Self CUDA % CUDA total CUDA time avg "
        "# of Calls\n"
        "------------- ------------ ------------ ------------ ------------ ------------\n"
        " aten::div 50.22% 4.095ms 50.22% 4.095ms 4.095us 7.191ms 49.95% 7.191ms 7.191us 1000\n"
        " aten::mul 49.78% 4.058ms 49.78% 4.058ms 4.058us 7.204ms 50.05% 7.204ms 7.204us 1000\n"
        "------------- ------------ ------------ ------------ ------------ ------------\n"
        "Self CPU time total: 8.153ms\nSelf CUDA time total: 14.395ms\n"
    )
    rows = open_profile(path).read().table.to_pylist()
    assert sum(row["duration_ns"] for row in rows if row["category"] == "kernel") == 14.395e6
    assert sum(row["metric.self_cpu_ns"] for row in rows if row["category"] == "cpu") == 8.153e6


@pytest.mark.parametrize("column", ["Self total", "Self CPU total", "CPU time"])
def test_a_heading_that_never_ends_is_given_up_at_once(tmp_path, column):
    """Each column would be read in two ways by a pattern that goes back: 2^1,000 of them."""
    path = tmp_path / "table.txt"
    path.write_text(f"Name{f' {column}' * 1000} !\n")
    assert not TorchTable().recognises(path, path.read_bytes())


def test_a_total_that_is_no_time_is_named(tmp_path):
    path = tmp_path / "table.txt"
    path.write_text(TWICE.replace("87.553s", "87.553kg"))
    with pytest.raises(BadProfile, match=r"the total time below the table is '87\.553kg'"):
        open_profile(path).read()

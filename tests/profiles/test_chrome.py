"""PyTorch's Chrome traces: real ones against Python's own json module, and ones that are written to be hard.

Tests: profiles/chrome_columns.py, profiles/chrome_events.py, profiles/json_stream.py.
"""

from __future__ import annotations

import gzip
import json
from collections import Counter, defaultdict
from decimal import Decimal
from functools import lru_cache
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from paleo_lite.errors import BadProfile
from paleo_lite.profiles import json_stream
from paleo_lite.profiles.chrome import ChromeTrace
from paleo_lite.profiles.detect import open_profile, read_head
from paleo_lite.profiles.table import SCHEMA
from strategies import ACCIDENTS, damaged

pytestmark = pytest.mark.slow

REAL = [
    "torch_chrome_trace_resnet50/resnet50_num_workers_0__worker0.1623143089861.pt.trace.json.gz",
    "torch_chrome_trace/cpu_only__rank-34.Jul_15_10_52_41.1074.pt.trace.json.gz",
    "torch_chrome_trace/critical_path__alexnet__benchmark_result_2869224_1695835535_trace.json.gz",
    "torch_chrome_trace/cupti_profiler__benchmark_result_924719_1679055439_trace.json.gz",
    "torch_chrome_trace/nccl_parser_config__nccl_data.json.gz",
    "torch_chrome_trace/negative_queue_length_values_check__rank0.json.gz",
    "torch_chrome_trace/trace_diff__control__control.json.gz",
    "torch_chrome_trace/trace_filter__sampled_rank-1.json.gz",
    "torch_chrome_trace/triton_example__triton_example.json.gz",
    "tracelens/b200_eager_trace.json.gz",
]
# Of these the external ids are the correlation ids over again, and link nothing.
SIBLINGS = [REAL[1], REAL[2], REAL[4], REAL[6], REAL[7], REAL[8]]
"""Traces that tell nothing which another one of the list does not tell in the ordinary run."""
COPIED_IDS = [REAL[2], REAL[5], REAL[6], REAL[7]]
KIND = {
    "kernel": "kernel", "Kernel": "kernel", "gpu_memcpy": "memcpy", "Memcpy": "memcpy", "gpu_memset": "memset",
    "Memset": "memset", "cpu_op": "cpu", "Operator": "cpu", "cuda_runtime": "api", "Runtime": "api",
    "cuda_driver": "api", "user_annotation": "marker", "gpu_user_annotation": "marker", "python_function": "marker",
}  # fmt: skip


def each_of(names: list[str]):
    """The traces as cases of a test; siblings are read by ``make thorough``."""
    marks = {True: pytest.mark.thorough, False: ()}
    cases = [pytest.param(name, marks=marks[name in SIBLINGS], id=Path(name).name[:24]) for name in names]
    return pytest.mark.parametrize("name", cases)


def read(path: Path, columns=None) -> pa.Table:
    batches = list(ChromeTrace().batches(path, columns))
    assert {batch.schema for batch in batches} == {batches[0].schema}
    return pa.Table.from_batches(batches)


@lru_cache(maxsize=6)  # with the four long traces
def reference(path: Path) -> tuple[list[dict], int, list[dict]]:
    """Return the expected events, their time origin and the arrows, parsed by json without floats."""
    document = json.loads(gzip.decompress(path.read_bytes()), parse_float=Decimal)
    wanted = [event for event in document["traceEvents"] if event.get("cat") in KIND]
    modules = [e for e in wanted if e["cat"] != "python_function" or e["name"].startswith("nn.Module: ")]
    arrows = [event for event in document["traceEvents"] if event.get("cat") == "fwdbwd"]
    return modules, int(document.get("baseTimeNanoseconds", 0)), arrows


read_once = lru_cache(maxsize=4)(lambda path: read(path).to_pydict())
"""The columns of a real trace, which several tests look at."""


def is_device(event: dict) -> bool:
    return KIND[event["cat"]] in ("kernel", "memcpy", "memset")


COUNTED = REAL[3]
"""Its kernels have counters instead of times."""


@pytest.mark.spread(1)
@pytest.mark.needs_data
@each_of(REAL)
def test_real_events_are_the_json_modules(data_folder, name):
    path = data_folder / "profiles" / name
    assert ChromeTrace().recognises(path, read_head(path))
    events, base, _ = reference(path)
    whole = read_once(path)
    timed = [index for index, value in enumerate(whole["duration_ns"]) if value is not None]
    table = {column: [values[index] for index in timed] for column, values in whole.items()}
    assert (len(whole["kernel"]) > len(events)) == (name == COUNTED)
    assert table["kernel"] == [event["name"] for event in events]
    assert table["start_ns"] == [base + round(event["ts"] * 1000) for event in events]
    assert table["duration_ns"] == [float(event["dur"] * 1000) for event in events]
    kinds = Counter(KIND[event["cat"]] for event in events)
    ours = Counter(table["category"])
    assert ours["kernel"] + ours["communication"] == kinds["kernel"]
    assert all(ours[kind] == kinds[kind] for kind in ("memcpy", "memset", "cpu", "api", "marker"))
    kernels = [event["name"] for event in events if KIND[event["cat"]] == "kernel"]
    # NCCL, and the all-reduce of PyTorch's symmetric memory.
    assert ours["communication"] == sum(name.startswith("nccl") or "::multimem_all_reduce" in name for name in kernels)
    of_device = {"stream": "stream", "device": "device", "bytes": "bytes"}
    for index, event in enumerate(events):
        if is_device(event):
            for ours_name, theirs in of_device.items():
                assert table[ours_name][index] == event["args"].get(theirs)
            grid = event["args"].get("grid")
            assert table["grid"][index] == (grid and ",".join(map(str, grid)))
            percent = event["args"].get("est. achieved occupancy %")
            assert table["metric.est_achieved_occupancy"][index] == (None if percent is None else float(percent) / 100)
        elif event["cat"] not in ("gpu_user_annotation",):
            assert table["thread"][index] == int(event["tid"])


def enclosing(operations: list[dict], event: dict) -> list[dict]:
    """Return the innermost operation at the event's start by exhaustive search.

    Several where they start and end in the same microsecond.
    """
    around = [op for op in operations if op["ts"] <= event["ts"] < op["ts"] + max(op["dur"], Decimal("0.001"))]
    inner = max(((op["ts"], -op["dur"]) for op in around), default=None)
    return [op for op in around if (op["ts"], -op["dur"]) == inner]


def params_of(args: dict) -> list[str]:
    """Shapes and types without white space, which is the only thing that parts them; of a collective its message."""
    if "Collective name" in args:
        keys = ("Collective name", "dtype", "In msg nelems", "Out msg nelems", "Group size")
        message = dict(zip(("collective", "dtype", "in", "out", "group"), (args[key] for key in keys)))
        return [json.dumps(message, separators=(",", ":"))]
    texts = (json.dumps(args[key], separators=(",", ":")) for key in ("Input Dims", "Input type"))
    return ["".join(text.split()) for text in texts]


@pytest.mark.spread(1)
@pytest.mark.needs_data
@each_of([REAL[0], *REAL[2:3], *REAL[4:]])
def test_real_kernels_are_linked_to_the_operation_that_launched_them(data_folder, name):
    path = data_folder / "profiles" / name
    events, *_ = reference(path)
    table = read_once(path)
    by_id, by_thread, calls = {}, defaultdict(list), {}
    for event in events:
        args = event.get("args", {})
        if KIND[event["cat"]] == "cpu":
            by_id[args["External id"]] = event
            by_thread[event["pid"], str(event["tid"])].append(event)
        elif KIND[event["cat"]] == "api":
            calls[args.get("correlation")] = event
    checked = 0
    step = max(1, sum(map(is_device, events)) // 60)  # every one is compared with every operation
    for index in [index for index, event in enumerate(events) if is_device(event)][::step]:
        args = events[index]["args"]
        call = calls.get(args["correlation"])
        expected = enclosing(by_thread[call["pid"], str(call["tid"])], call) if call else []
        if name not in COPIED_IDS:
            named = by_id.get(args.get("External id", args.get("external id")))
            expected = [named] if named else expected
        told = ("Input Dims", "Collective name")
        texts = [params_of(op["args"])[:2] if not op["args"].keys().isdisjoint(told) else None for op in expected]
        params = table["params"][index]
        found = (table["op"][index], params and params.split(" ")[:2])
        assert found in list(zip([op["name"] for op in expected], texts)) or (not expected and found == (None, None))
        checked += bool(expected)
    assert checked > 0


@pytest.mark.thorough
@pytest.mark.needs_data
def test_directions_match_the_arrows_between_forward_and_backward(data_folder):
    """nccl_data has fwdbwd arrows: from the start of a forward operation to that of its backward one."""
    path = data_folder / "profiles" / REAL[4]
    events, _, arrows = reference(path)
    assert len(arrows) == 2 * 543
    table = read_once(path)
    found = {
        (event["tid"], event["ts"]): direction
        for event, direction in zip(events, table["direction"])
        if event["cat"] == "cpu_op"
    }
    assert all(found[arrow["tid"], arrow["ts"]] == "fprop" for arrow in arrows if arrow["ph"] == "s")
    backward = {arrow["tid"] for arrow in arrows if arrow["ph"] == "f"}
    evaluated = [
        (event["ts"], event["ts"] + event["dur"])
        for event in events
        if event["tid"] in backward and event["name"].startswith("autograd::engine::evaluate")
    ]
    starts, ends = np.array(evaluated, dtype=float).T
    inside = 0
    for event, direction in zip(events, table["direction"]):
        if event["cat"] == "cpu_op" and event["tid"] in backward:
            start = float(event["ts"])
            if np.any((starts <= start) & (start < ends)):
                inside += 1
                assert direction == "bprop"
    assert inside > 1000
    # SGD's kernels are launched on the main thread, inside of Optimizer.step
    assert table["direction"].count("update") > 0
    # a trace of inference has no arrows and no directions
    inference = read_once(data_folder / "profiles" / REAL[9])["direction"]
    assert set(inference) == {None} and len(inference) > 7000


@pytest.mark.thorough
@pytest.mark.needs_data
def test_real_resnet50_has_convolutions_forward_and_backward(data_folder):
    """torchvision's ResNet-50 has 53 convolutions; the trace has 6 steps of it."""
    table = read_once(data_folder / "profiles" / REAL[0])
    rows = list(zip(table["category"], table["op"], table["direction"]))
    operations = Counter((op, direction) for category, op, direction in rows if category == "cpu")
    assert operations["aten::cudnn_convolution", "fprop"] == 6 * 53
    assert operations["aten::cudnn_convolution_backward", "bprop"] == 6 * 53
    launched = {
        direction for category, op, direction in rows if op == "aten::cudnn_convolution" and category == "kernel"
    }
    assert launched == {"fprop"}


# Traces that are written here ----------------------------------------------------------------------------------------

LAUNCHED = [
    {"ph": "M", "name": "process_name", "pid": 1, "args": {"name": "{}, {"}},
    {"ph": "X", "cat": "cpu_op", "name": "aten::mm", "pid": 1, "tid": 10, "ts": 100, "dur": 50,
     "args": {"External id": 5, "Input Dims": [[2, 3], [3, 4]], "Call stack": "a {\"b\": [}, {"}},
    {"ph": "X", "cat": "python_function", "name": 7, "pid": 1, "tid": 10, "ts": "never", "dur": -1, "args": [1]},
    {"ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": 10, "ts": 120, "dur": 3,
     "args": {"External id": 5, "correlation": 9}},
    {"ph": "X", "cat": "kernel", "name": "sgemm \\\" }, { [", "pid": 0, "tid": 7, "ts": 130.5, "dur": 4.25,
     "args": {"External id": 5, "correlation": 9, "device": 0, "stream": 7, "grid": [1, 2, 3], "block": [64, 1, 1],
              "nested": [{"a": 1}, {"b": [{}, {}]}], "est. achieved occupancy %": 40}},
]  # fmt: skip


@pytest.mark.needs_data
def test_kernels_that_were_counted_have_flops_and_no_times(data_folder):
    path = data_folder / "profiles" / COUNTED
    events = json.loads(gzip.decompress(path.read_bytes()))["traceEvents"]
    ranges = [event for event in events if event.get("cat") == "cuda_profiler_range"]
    rows = [row for row in read(path).to_pylist() if row["category"] == "kernel"]
    assert [row["kernel"] for row in rows] == [event["name"] for event in ranges] and len(rows) == 77
    assert {row["duration_ns"] for row in rows} == {None}
    for row, event in zip(rows, ranges):
        counters = {name.split("_op_")[1].split("_")[0]: value for name, value in event["args"].items()}
        half = counters["hadd"] + counters["hmul"] + counters["hfma"]
        flops = sum(counters[p + "add"] + counters[p + "mul"] + 2 * counters[p + "fma"] for p in "fd")
        assert row["flops"] == (None if half else flops)


@pytest.mark.needs_data
def test_work_of_an_mtia_device(data_folder):
    path = data_folder / "profiles/hta/mtia_inference_trace__mtia_inference_rank_0.json.gz"
    events = [
        e for e in json.loads(gzip.decompress(path.read_bytes()))["traceEvents"] if e.get("cat") == "mtia_ccp_events"
    ]
    work = [event for event in events if event["name"] not in ("event_wait", "event_record")]
    rows = [row for row in read(path).to_pylist() if row["category"] in ("kernel", "memcpy")]
    assert (len(events), len(rows)) == (1313, 974)
    assert [(row["kernel"], row["duration_ns"]) for row in rows] == [
        (event["name"], pytest.approx(event["dur"] * 1000)) for event in work
    ]
    copies = [event["args"]["size"] for event in work if event["name"] == "dma_request"]
    assert [row["bytes"] for row in rows if row["category"] == "memcpy"] == copies
    assert {row["device"] for row in rows} == {17}


def write(folder: Path, text: str | bytes, name: str = "trace.json") -> Path:
    path = folder / name
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


def document(events, **around) -> str:
    return json.dumps({"schemaVersion": 1, "traceEvents": events, **around})


@pytest.mark.spread(16)
@pytest.mark.parametrize("piece", [16, 64, 200, 1000, 2**20])
@pytest.mark.parametrize("indent", [None, 0, 3, "\t\r\n"])
@pytest.mark.parametrize("bare", [False, True])
def test_any_white_space_and_any_cut(tmp_path, monkeypatch, piece, indent, bare):
    monkeypatch.setattr(json_stream, "PIECE", piece)
    around = {"note": '"traceEvents": [{', "traceEvents": LAUNCHED * 5, "deviceProperties": [{"a": 1}, {"b": 2}]}
    text = json.dumps(LAUNCHED * 5 if bare else around, indent=indent)
    table = read(write(tmp_path, text)).to_pylist()
    assert len(table) == 15
    assert table[2] == {field.name: None for field in SCHEMA} | {
        "category": "kernel", "kernel": 'sgemm \\" }, { [', "op": "aten::mm", "params": "[[2,3],[3,4]]",
            "execution": 0, "launch_ns": 120000,
        "start_ns": 130500, "duration_ns": 4250.0, "calls": 1, "grid": "1,2,3", "block": "64,1,1", "stream": 7,
        "device": 0, "metric.est_achieved_occupancy": 0.4,
    }  # fmt: skip
    assert table[2] == table[5] == table[14]


def test_order_of_fields_and_marks_do_not_matter(tmp_path):
    turned = [dict(reversed(event.items())) for event in LAUNCHED]
    plain = read(write(tmp_path, document(LAUNCHED)))
    assert read(write(tmp_path, b"\xef\xbb\xbf" + document(turned).encode(), "bom.json")).equals(plain)
    assert read(write(tmp_path, gzip.compress(document(turned).encode()), "zip")).equals(plain)


def test_a_kernel_before_its_operation_is_linked(tmp_path):
    assert set(read(write(tmp_path, document(LAUNCHED[::-1]))).column("op").to_pylist()) == {"aten::mm"}


@pytest.mark.parametrize("key", ["first", "last"])
@pytest.mark.parametrize(
    ("ts", "base", "expected"),
    [
        ("1695835542514261.123", 0, 1695835542514261123),  # a float has steps of 0.25 us here
        ('"1695835542514261.123"', 0, 1695835542514261123),
        ("1695835542514261", 0, 1695835542514261000),
        ("1212075548353.304", 1719853884000000000, 1719853884000000000 + 1212075548353304),
        ("8796093022207.999", '"1719853884000000001"', 1719853884000000001 + 8796093022207999),  # just below 2^43
        ("8796093022209.001", 0, 8796093022209001),
        ("1.6958355425142611e15", 0, 1695835542514261100),
        ("-5.5", 1000000, 994500),
        ("0.0004", 0, 0),
    ],
)
def test_times_are_exact_to_the_nanosecond(tmp_path, key, ts, base, expected):
    event = f'{{"ph":"X","cat":"kernel","name":"k","ts":{ts},"dur":1.76}}'
    other = '{"ph":"X","cat":"kernel","name":"k","ts":1,"dur":0.001}'
    parts = [f'"baseTimeNanoseconds":{base}', f'"traceEvents":[{event},{other}]']
    table = read(write(tmp_path, "{" + ",".join(parts if key == "first" else parts[::-1]) + "}"))
    assert table.column("start_ns").to_pylist() == [expected, int(str(base).strip('"')) + 1000]
    assert table.column("duration_ns").to_pylist() == [1760.0, 1.0]


def test_missing_values_are_null(tmp_path):
    row = read(write(tmp_path, '[{"ph":"X","cat":"kernel","name":"k","ts":3}]')).to_pylist()[0]
    assert {name: value for name, value in row.items() if value is not None} == {
        "category": "kernel", "kernel": "k", "start_ns": 3000, "calls": 1,
    }  # fmt: skip


def test_chosen_columns(tmp_path):
    table = read(write(tmp_path, document(LAUNCHED)), ("duration_ns", "kernel", "op"))
    assert table.column_names == ["kernel", "op", "duration_ns", "metric.est_achieved_occupancy"]
    assert table.column("op").to_pylist() == ["aten::mm"] * 3
    assert read(write(tmp_path, document(LAUNCHED)), ("kernel",)).column_names[0] == "kernel"


def test_ids_that_name_two_operations_name_neither(tmp_path):
    twin = LAUNCHED[1] | {"name": "aten::add", "pid": 2}
    events = [*LAUNCHED[:2], twin, LAUNCHED[4] | {"args": {"External id": 5, "stream": 7}}]
    assert read(write(tmp_path, document(events))).column("op").to_pylist() == ["aten::mm", "aten::add", None]


def test_ids_copied_from_the_correlation_do_not_link(tmp_path):
    """As in four of the real files: an operation of that number is another one."""
    other = {
        "ph": "X",
        "cat": "cpu_op",
        "name": "aten::add",
        "pid": 1,
        "tid": 10,
        "ts": 0,
        "dur": 9,
        "args": {"External id": 9},
    }
    copied = [
        e | {"args": e["args"] | {"External id": 9}} if e.get("cat") in ("kernel", "cuda_runtime") else e
        for e in LAUNCHED
    ]
    ops = read(write(tmp_path, document([other, *copied]))).column("op").to_pylist()
    assert ops == ["aten::add", "aten::mm", "aten::mm", "aten::mm"]


# Bad input -----------------------------------------------------------------------------------------------------------

TEXT = document(LAUNCHED * 2, baseTimeNanoseconds=5)


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("piece", "step"), [(2**20, 3), *(pytest.param(size, 1, marks=pytest.mark.thorough) for size in (32, 2**20))]
)
def test_a_trace_cut_anywhere_is_one_error_with_the_place(tmp_path, monkeypatch, piece, step):
    """The events are repeated; cutting at every third position covers two thirds of the positions in an event."""
    monkeypatch.setattr(json_stream, "PIECE", piece)
    for length in range(1, len(TEXT), step):
        with pytest.raises(BadProfile, match=r"trace\.json: (at byte \d+|the document outside .* up to byte \d+)"):
            read(write(tmp_path, TEXT[:length]))


def test_the_place_is_that_of_the_event_that_is_cut(tmp_path):
    start = TEXT.rindex('{"ph": "X", "cat": "kernel"')
    ends = rf"at byte {start - 1}: the file ends at byte {start + 60} inside the element: it is cut off or damaged"
    with pytest.raises(BadProfile, match=ends):
        read(write(tmp_path, TEXT[: start + 60]))


def test_gzip_that_is_cut_or_garbled(tmp_path):
    whole = gzip.compress(TEXT.encode() * 1)
    for length in range(20, len(whole)):
        with pytest.raises(BadProfile):
            read(write(tmp_path, whole[:length]))
    with pytest.raises(BadProfile, match="decompressed"):
        read(write(tmp_path, whole[:60] + b"\x55" * 40 + whole[100:]))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"dur": 4.25', '"dur": -4.25', r"at byte \d+: an event whose dur is -4.25"),
        ('"dur": 4.25', '"dur": NaN', r"at byte \d+: not JSON"),
        ('"dur": 4.25', '"dur": "nan"', r"at byte \d+: an event whose dur is NaN"),
        ('"dur": 4.25', '"dur": 1e400', r"at byte \d+: an event with a field that cannot be read"),
        ('"dur": 4.25', '"dur": "long"', r"at byte \d+: a time that is not a number"),
        ('"dur": 4.25', '"dur": [4]', r"at byte \d+: an event with a field that cannot be read"),
        ('"ts": 130.5', '"ts": "1e999999999"', r"at byte \d+: an event whose ts is 1E\+999999999"),
        ('"ts": 130.5', '"ts": null', r"at byte \d+: an event whose ts is absent"),
        ('"ts": 130.5', '"ts": 99999999999999999999', r"at byte \d+: an event whose ts is 99999999999999999999"),
        ('"dur": 4.25', '"dur": 4.25.1', r"at byte \d+: not JSON"),
        ('"stream": 7', '"stream": 7, "bytes": -5242880', r"at byte \d+: an event of -5,242,880 bytes, expected 0 to"),
        ('"stream": 7', '"stream": 7, "bytes": 9007199254740993', r"at byte \d+: an event of 9,007,199,254,740,993 by"),
        ('"name": "aten::mm"', '"name": 5', r"at byte \d+: an event with a field that cannot be read"),
        ('"baseTimeNanoseconds": 5', '"baseTimeNanoseconds": "soon"', "not a whole number"),
        ('"baseTimeNanoseconds": 5', '"baseTimeNanoseconds": 1e30', "the document outside"),
        ('"baseTimeNanoseconds": 5', '"baseTimeNanoseconds": -5', "outside the years"),
        ('{"ph": "M"', ', {"ph": "M"', r"at byte \d+: "),
        ("40}}, ", "40}},, ", r"at byte \d+: "),
        ("}}], ", "}}, ], ", r"at byte \d+: "),
        ('"traceEvents"', '"events"', "no array 'traceEvents' has begun"),
    ],
)
@pytest.mark.parametrize("piece", [32, 2**20])
def test_the_error_of_a_damaged_trace_names_the_damage(tmp_path, monkeypatch, old, new, message, piece):
    monkeypatch.setattr(json_stream, "PIECE", piece)
    text = TEXT.replace(old, new, 1)
    assert text != TEXT
    with pytest.raises(BadProfile, match=message):
        read(write(tmp_path, text))


def test_the_place_of_a_negative_duration_is_its_event(tmp_path):
    text = TEXT.replace('"dur": 4.25', '"dur": -4.25', 1)
    start = text.index('{"ph": "X", "cat": "kernel"')
    with pytest.raises(BadProfile, match=f"at byte {start}: an event"):
        read(write(tmp_path, text))


@pytest.mark.spread(5)
@pytest.mark.parametrize(
    "text",
    ["[]", '{"traceEvents": []}', '[{"ph": "X", "cat": "blink", "ts": 1}]', "[" * 100_000, '{"traceEvents": [' * 50_000,
     '{"traceEvents": ' + "[" * 200_000 + "]" * 200_000 + "}", "[5]", '["a"]', "[null]", "{}", "nonsense", '"', "\\",
     "[{}" + " " * 100_000],
)  # fmt: skip
def test_texts_that_are_no_trace_are_refused(tmp_path, text):
    with pytest.raises(BadProfile):
        read(write(tmp_path, text))


def test_unterminated_element_is_an_error_in_bounded_memory(tmp_path, monkeypatch):
    monkeypatch.setattr(json_stream, "ELEMENT_LIMIT", 2**20)
    for text in (b'[{"name": "' + b"a" * 2**22, b"[" + b" " * 2**22, b"\0" * 2**22, b'{"a": ' + b"[1]," * 2**20):
        with pytest.raises(BadProfile, match="1 MiB"):
            read(write(tmp_path, gzip.compress(text)))


def test_no_temporary_files_remain(tmp_path, monkeypatch):
    path = write(tmp_path, TEXT)
    spool = tmp_path / "spool"
    spool.mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(spool))
    rows = ChromeTrace().batches(path, None)
    next(rows)
    rows.close()
    assert list(spool.iterdir()) == []


@pytest.mark.thorough
@given(ACCIDENTS, st.sampled_from([16, 50, 500, 2**20]), st.booleans())
def test_damaged_traces_give_a_table_or_our_error(tmp_path, monkeypatch, table_or_our_error, happened, piece, zipped):
    monkeypatch.setattr(json_stream, "PIECE", piece)
    raw = damaged(TEXT.encode(), happened)
    path = write(tmp_path, gzip.compress(raw) if zipped else raw)
    table_or_our_error(path, ChromeTrace())


@pytest.mark.spread(2)
@pytest.mark.needs_data
@pytest.mark.parametrize(
    "name",
    [
        REAL[4], pytest.param("hta/trace_diff__test__test.json.gz", marks=pytest.mark.thorough),
        "hta/ns_resolution_trace__rank-0.Apr_03_18_51_38.1102.pt.trace.json.gz", REAL[0], REAL[5],
        "tracelens_models/h100__Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz",
    ],
    ids=lambda name: Path(name).name[:24],
)  # fmt: skip
def test_real_steps_are_the_profilers_around_the_launch(data_folder, name):
    events, *_ = reference(data_folder / "profiles" / name)
    table = read(data_folder / "profiles" / name, ("step",)).to_pydict()
    marks = {
        event["name"]: (event["ts"], event["ts"] + event["dur"])
        for event in events
        if event["name"].startswith("ProfilerStep#") and event["cat"] in ("user_annotation", "Operator")
    }
    launches = {
        e["args"]["correlation"]: e["ts"] for e in events if KIND[e["cat"]] == "api" and "correlation" in e["args"]
    }
    # Kernels without a launch call in the trace belong to the step with the range on the device that contains them.
    ran = {e["name"]: (e["ts"], e["ts"] + e["dur"]) for e in events if e["cat"] == "gpu_user_annotation"}
    ran = ran if set(marks) <= set(ran) else marks
    seen = set()
    for index, event in enumerate(events):
        if is_device(event):
            at = launches.get(event["args"]["correlation"])
            ranges = {mark: ran[mark] for mark in marks} if at is None else marks
            at = event["ts"] if at is None else at
            expected = next((mark for mark, (start, end) in ranges.items() if start <= at < end), None)
            assert table["step"][index] == expected
            seen.add(expected)
    assert seen - {None} == set(marks)


def test_a_list_of_events_without_its_closing_bracket_is_read_and_said(tmp_path):
    path = tmp_path / "trace.json"
    kernel = '{"ph": "X", "cat": "kernel", "name": "gemm", "pid": 0, "tid": 7, "ts": 1.5, "dur": 2, "args": {}}'
    for end, doubts in (("]", 0), ("", 1), (",\n", 1)):
        path.write_text(f"[{kernel}, {kernel}{end}")
        profile = open_profile(path)
        assert len(profile.read().table) == 2 and len(profile.doubts) == doubts
    path.write_text(f'{{"traceEvents": [{kernel}')
    with pytest.raises(BadProfile, match="cut off or damaged"):
        open_profile(path).read()

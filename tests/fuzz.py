"""Fuzz test: mutates files of every supported type according to their format, and draws random command lines.

    python tests/fuzz.py --seconds 600 [--seed 0] [--from 0] [--jobs 2]
    python tests/fuzz.py --seconds 600 --faults [--rounds 50]

A file is changed in its own terms: values, keys and elements of JSON and TOML, cells and columns of tables, rows and
columns of SQLite and Parquet, tags and numbers of XML, functions of ONNX, and bytes of all. Modules of Python with
names that a command may import can lie beside it, which no command may run. Then commands read the file, in a process
that may take so much memory and, for one command, so many seconds of the processor. Each input follows from the seed
and its number. What ends otherwise than in an answer or a sentence is kept in ``build/fuzz`` with the commands; what is
mended is kept small in ``tests/found``, where `test_fuzz.py` asks it again.
"""

from __future__ import annotations

import argparse
import ctypes
import gzip
import importlib.util
import io
import json
import multiprocessing
import multiprocessing.connection
import os
import random
import resource
import signal
import sqlite3
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from click.testing import CliRunner

HERE = Path(__file__).parent
ROOT = HERE.parent
sys.path[:0] = [path for path in (str(ROOT), str(HERE)) if path not in sys.path]

CPU_S = 15
MEMORY = 1000 * 2**20  # of the address space, over what a process has when everything is imported
TABLES = ("table", "json", "csv", "markdown")

PROFILE = ("kernels {file} --gpu k40m", "efficiency {file} --gpu k40m", "compare {file} {file}",
           "efficiency {file} --gpu k40m --method notebook", "efficiency {file} {file} --gpu k40m --by shape",
           "efficiency {file} --gpu k40m --capture-trace {file}",
           "kernels {file} --gpu a100-sxm-40gb --full-names")  # fmt: skip
NETWORK = ("predict {file} --gpu k40m", "predict {file} --gpu k40m --phase training", "layers {file}",
           "layers {file} --depth 2", "feeding {file} --gpu k40m --storage nvme")  # fmt: skip


RESULT = ("measurements {file} --gpu h100-sxm", "measurements {file} {file} --jobs 1 --keep-going --top 3",
          "measurements {file} --format json", "compare {file} --gpu h100-sxm --predict llama-3.1-8b",
          "calibrate {file} --gpu h100-sxm --network llama-3.1-8b --precision bf16 --engine vllm")  # fmt: skip


class Sample(NamedTuple):
    """A valid file, its type, and commands that read it."""

    name: str
    kind: str
    data: bytes
    commands: tuple[str, ...]


def _module(path: str) -> Any:
    spec = importlib.util.spec_from_file_location(path.replace("/", "_"), HERE / f"{path}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _parquet(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink)
    return sink.getvalue()


def _written(write: Callable[[Path], object]) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file"
        write(path)
        return path.read_bytes()


def _shallow(config: bytes) -> bytes:
    """Return the configuration of a transformer with two layers, which is read faster."""
    return json.dumps({**json.loads(config), "num_hidden_layers": 2}).encode()


def _swept(path: Path) -> None:
    from paleo_lite.cli import main

    asked = ["predict", "alexnet", "--gpu", "k40m,t4", "--batch-size", "1,8", "--jobs", "1", "-o"]
    CliRunner().invoke(main, [*asked, str(path.with_suffix(".parquet"))], catch_exceptions=False)
    path.with_suffix(".parquet").rename(path)


def samples() -> list[Sample]:
    """One or more files of every type."""
    made = _module("profiles/conftest")
    nsys, stats, ncu = (_module(f"profiles/test_{name}") for name in ("nsys_sqlite", "nsys_stats", "ncu"))
    chrome, pyprof, topology = (
        _module("profiles/test_chrome"),
        _module("profiles/test_pyprof"),
        _module("distributed/test_topology"),
    )
    spec = importlib.util.spec_from_file_location("example_files", ROOT / "docs/example_files.py")
    assert spec is not None and spec.loader is not None
    examples = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(examples)
    pyprof_table = pa.table(pyprof.ROWS)
    tau = pa.table({"function": ["mpi_bcast", ".tau"] * 5, "calls": [3, 1] * 5, "inc_time": [20, 3000] * 5,
                    "exc_time": [20, 7] * 5, "nodes": [2, 2] * 5})  # fmt: skip
    found = [Sample(key.split(".")[0], "xml" if "xml" in key else "lines", text.encode(), PROFILE)
             for key, text in made.SAMPLES.items()]  # fmt: skip
    text = "gpu,network,batch_size,phase,precision,time_s,image_size,framework,source\n"
    text += "".join(f"t4,{net},{size},inference,fp16,{size / 1000},,pytorch 2.4,me\n"
                    for net in ("resnet18", "vgg16", "alexnet") for size in (1, 8, 32))  # fmt: skip
    found += [
        Sample("nvprof-sqlite", "sqlite", _written(made.write_nvprof), PROFILE),
        Sample("rocpd", "sqlite", _written(made.write_rocpd), PROFILE),
        Sample("nsys-sqlite", "sqlite", _written(nsys.build), PROFILE),
        Sample("nsys-stats", "lines", stats.printed(stats.KERN_SUM, stats.API_SUM).encode(), PROFILE),
        Sample("ncu", "lines", ncu.RAW if isinstance(ncu.RAW, bytes) else ncu.RAW.encode(), PROFILE),
        Sample("chrome", "json", chrome.TEXT if isinstance(chrome.TEXT, bytes) else chrome.TEXT.encode(), PROFILE),
        Sample("pyprof", "parquet", _parquet(pyprof_table), PROFILE),
        Sample("tau", "parquet", _parquet(tau), PROFILE),
        Sample("sweep.parquet", "parquet", _written(_swept),
               ("best {file} --minimise time", "best {file} --pareto time,memory",
                "best {file} --minimise time --where gpu==t4")),
        Sample("device.toml", "toml", (ROOT / "hardware/t4.toml").read_bytes(),
               ("predict alexnet --gpu device --hardware-file {file}", "hardware show device --hardware-file {file}",
                "predict alexnet --gpu device --hardware-file {file} --precision fp16 --time-model roofline")),
        Sample("model.json", "json", (ROOT / "models/alexnet.json").read_bytes(), NETWORK),
        Sample("net.prototxt", "lines", examples._PROTOTXT.encode(), NETWORK),
        Sample("config.json", "json", _shallow((ROOT / "models/bert-base.json").read_bytes()), NETWORK),
        Sample("paleo.json", "json", json.dumps({"name": "net", "layers": {
            "data": {"type": "Input", "parents": [], "tensor": [64, 32, 32, 3]},
            "conv": {"type": "Convolution", "parents": ["data"], "filter": [3, 3, 3, 8], "padding": "SAME",
                     "strides": [1, 1, 1, 1]}}}).encode(), NETWORK),
        Sample("calibration.toml", "toml", next(ROOT.glob("calibrations/t4-*.toml")).read_bytes(),
               ("predict alexnet --gpu t4 --calibration {file}", "calibrations show {file}")),
        Sample("topology.toml", "toml", topology.TOML.encode(), ("train alexnet --topology {file} --workers 4",)),
        Sample("measured.csv", "lines", text.encode(),
               ("calibrate {file} --gpu t4 --precision fp16 -o out.toml --force",)),
    ]  # fmt: skip
    found += [Sample(f"result-{number}-{result.format}", _kind_of(result.text), result.text.encode(), RESULT)
              for number, result in enumerate(_module("result_samples").SAMPLES)]  # fmt: skip
    if importlib.util.find_spec("onnx") is not None:
        found += [Sample("net.onnx", "onnx", _onnx_network(), NETWORK)]
    return found


def _kind_of(text: str) -> str:
    """Return how a result file is changed: as JSON where it is one document, otherwise by its lines."""
    try:
        json.loads(text)
    except ValueError:
        return "lines"
    return "json"


def _onnx_network() -> bytes:
    """A network with every kind of part that is changed: attributes, weights, branches, and functions."""
    from onnx import TensorProto, helper

    def value(name: str, shape: list[int] | None) -> Any:
        return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)

    imports = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    twice = [helper.make_node("Relu", ["a"], ["b"]), helper.make_node("Relu", ["b"], ["c"])]
    functions = [helper.make_function("own", "Twice", ["a"], ["c"], twice, imports)]
    branch = helper.make_graph([helper.make_node("Relu", ["f"], ["g"])], "branch", [], [value("g", [1, 8])])
    nodes = [
        helper.make_node("Conv", ["x", "w"], ["c"], group=2, strides=[1, 1], pads=[1, 1, 1, 1], dilations=[1, 1]),
        helper.make_node("MaxPool", ["c"], ["p"], kernel_shape=[2, 2], strides=[2, 2]),
        helper.make_node("LRN", ["p"], ["n"], size=3),
        helper.make_node("Twice", ["n"], ["r"], domain="own"),
        helper.make_node("GlobalAveragePool", ["r"], ["m"]),
        helper.make_node("Flatten", ["m"], ["f"], axis=1),
        helper.make_node("If", ["t"], ["i"], then_branch=branch, else_branch=branch),
        helper.make_node("Gemm", ["f", "v"], ["h"], transB=1),
        helper.make_node("Einsum", ["h", "v"], ["y"], equation="ij,jk->ik"),
    ]
    sizes: list[tuple[str, list[int]]] = [("w", [8, 2, 3, 3]), ("v", [8, 8])]
    weights = [TensorProto(name=name, dims=dims, data_type=TensorProto.FLOAT) for name, dims in sizes]
    weights.append(helper.make_tensor("t", TensorProto.BOOL, [], [True]))
    graph = helper.make_graph(nodes, "net", [value("x", [1, 4, 8, 8])], [value("y", [1, 8])], weights)
    made: bytes = helper.make_model(graph, opset_imports=imports, functions=functions).SerializeToString()
    return made


# Mutations -----------------------------------------------------------------------------------------------------------

ODD: list[Any] = [
    0, -1, 1, 2**31, 2**53 + 1, 2**63, 2**64, 10**400, -(10**30), 0.5, -0.0, 1e308, 5e-324, float("inf"), float("nan"),
    "", " ", "-", "=1+1", "\x00", "\x1b[31m", "\n", "\ud800", "x" * 300, "x" * 70_000, "1e999 TFLOP/s", "0 GB/s", "nan",
    "../../etc/passwd", "<b>", "Ω", True, None, [], {}, [[[]]], {"a": 1}, [1, "a", None],
]  # fmt: skip


def mutated(data: bytes, kind: str, other: bytes, rng: random.Random) -> bytes:
    """Return a file with one to five mutations, most of which respect its format."""
    for _ in range(rng.choice([1, 1, 1, 2, 3, 5])):
        how = _AS[kind] if rng.random() < 0.85 else _bytes
        try:
            data = how(data, rng) if rng.random() < 0.97 else data[: rng.randrange(len(data) + 1)] + other
        except Exception:  # it is no longer what it was
            data = _bytes(data, rng)
    return gzip.compress(data, 1) if rng.random() < 0.05 else data


def _bytes(data: bytes, rng: random.Random) -> bytes:
    at, length = rng.randrange(len(data) + 1), rng.choice([0, 1, 2, 8, 90])
    new = rng.choice([b"", b"\x00", b"\xff\xfe", b"9" * 19, b"-1", b"nan", b"}", b"\n", rng.randbytes(4), data[:40]])
    return data[:at] + new + data[at + length :]


def _json(data: bytes, rng: random.Random) -> bytes:
    document = json.loads(data)
    places: list[tuple[Any, Any]] = []

    def walk(node: Any) -> None:
        for key, value in list(node.items()) if isinstance(node, dict) else list(enumerate(node)):
            places.append((node, key))
            if isinstance(value, (dict, list)) and len(places) < 3000:
                walk(value)

    walk(document)
    node, key = rng.choice(places)
    what = rng.randrange(7)
    if what < 3:
        node[key] = rng.choice(ODD)
    elif what == 6:
        objects = [document, *(there[at] for there, at in places)]
        rng.choice([place for place in objects if isinstance(place, dict)]).update(_names_of_code(rng))
    elif what == 3:
        del node[key]
    elif what == 4:
        there, at = rng.choice(places)
        node[key] = json.loads(json.dumps(there[at])) if at in there or isinstance(there, list) else None
    elif isinstance(node, dict):
        node[str(rng.choice(ODD))] = node.pop(key)
    else:
        node.extend(node[:50] * rng.choice([1, 10]))
    return json.dumps(document).encode("utf-8", "surrogatepass")


def _names_of_code(rng: random.Random) -> dict[str, Any]:
    """Return fields that name code: of the folder, of a hub, or of Python itself."""
    name = rng.choice(["configuration_own.OwnConfig", "planted/repository--modeling_own.Own", "os.system", "", None, 1])
    maps: dict[str, Any] = {"AutoConfig": name, rng.choice(["AutoModel", "AutoModelForCausalLM"]): [name, None]}
    return rng.choice(
        [
            {"auto_map": maps},
            {"auto_map": maps, "model_type": "own"},
            {"text_config": {"auto_map": maps, "model_type": "own"}},
            {"vision_config": {"model_type": "own", "auto_map": maps}, "auto_map": name},
            {"auto_map": {"AutoConfig": maps}, "trust_remote_code": True},
            {"custom_pipelines": {"text-generation": {"impl": "own.Own", "pt": [name]}}},
        ]
    )


def _said(value: Any) -> str:
    return str(value).encode("utf-8", "replace").decode()


def _lines(data: bytes, rng: random.Random) -> bytes:
    lines = data.decode("utf-8", "replace").split("\n")
    at = rng.randrange(len(lines))
    what = rng.randrange(7)
    if what == 0:
        del lines[at]
    elif what == 1:
        lines.insert(at, rng.choice(lines))
    elif what == 2:
        lines *= rng.choice([2, 20])
    else:
        comma = "," if "," in lines[at] else "  "
        cells = lines[at].split(comma)
        cell = rng.randrange(len(cells))
        if what == 3:
            del cells[cell]
        elif what == 4:
            cells.insert(cell, rng.choice(cells))
        else:
            cells[cell] = _said(rng.choice(ODD))
        lines[at] = comma.join(cells)
    return "\n".join(lines).encode()


def _toml(data: bytes, rng: random.Random) -> bytes:
    lines = data.decode("utf-8", "replace").split("\n")
    full = [place for place, line in enumerate(lines) if line.strip()]
    at = rng.choice(full)
    what = rng.randrange(7)
    if what == 0:
        del lines[at]
    elif what == 1:
        lines.insert(at, rng.choice(lines))
    elif what > 4:
        changed = _deep_toml(lines[at], rng)
        lines[at : at + rng.randrange(2)] = [changed]  # in place of the line, or before it
    elif "=" in lines[at]:
        name, _, value = lines[at].partition("=")
        odd = rng.choice([x for x in ODD if x is not None and not isinstance(x, dict)])
        new = json.dumps(odd) if isinstance(odd, (str, bool, list)) else str(odd)
        if what == 2:
            name = json.dumps(_said(odd))
        elif value.strip().startswith("{") and "value" in value:
            new = value.replace(value.split('"')[1], _said(odd)) if '"' in value else new
        lines[at] = f"{name}= {new}"
    else:
        lines[at] = f"[{json.dumps(_said(rng.choice(ODD)))}]"
    return "\n".join(lines).encode("utf-8", "replace")


def _deep_toml(line: str, rng: random.Random) -> str:
    """Return a line with a dotted key, or with a value or a heading that is nested a few or many times."""
    name, _, value = (part.strip() for part in line.partition("="))
    name = name.strip("[]")[:40] or "a"  # a key of an earlier mutation may be long already
    depth = rng.choice([1, 2, 3, 31, 32, 33, 500, 5000, 30_000])
    dotted = ".".join([name] * depth)
    return rng.choice(
        [
            f"{'.'.join('a' * (depth + 1))} = 1",
            f"{dotted} = {value or 1}",
            f"{name}.{rng.choice(['value', 'source', 'a', chr(34) * 2])} = {value or 1}",
            f"{name} = {'[' * depth}{value}{']' * rng.choice([depth, 0])}",
            f"{name} = {'{ value = ' * depth}{value or 1}{' }' * depth}",
            f"[{dotted}]",
            f"[[{dotted}]]",
        ]
    )


def _xml(data: bytes, rng: random.Random) -> bytes:
    pieces = data.split(b"<")
    at = rng.randrange(len(pieces))
    what = rng.randrange(4)
    if what == 0:
        del pieces[at]
    elif what == 1:
        pieces.insert(at, rng.choice(pieces))
    else:
        words = pieces[at].split(b" ")
        words[rng.randrange(len(words))] = _said(rng.choice(ODD)).encode()
        pieces[at] = b" ".join(words)
    return b"<".join(pieces)


def _sqlite(data: bytes, rng: random.Random) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "file"
        path.write_bytes(data)
        database = sqlite3.connect(path)
        try:
            database.execute("PRAGMA ignore_check_constraints = ON")
            database.execute("PRAGMA synchronous = OFF")  # the file is temporary
            database.execute("PRAGMA journal_mode = MEMORY")
            # A column or a view of an earlier mutation may be endless, also for the next mutation; and each of its
            # values may be as long as is allowed.
            database.set_progress_handler(lambda: 1, 20_000)
            database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, 200_000)
            tables = [name for (name,) in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
            table = rng.choice(tables)
            columns = [row[1] for row in database.execute(f'PRAGMA table_info("{table}")')]
            column, what = rng.choice(columns), rng.randrange(9)
            if what == 7:
                _put_view(database, table, column, rng)
            elif what == 8:
                _compute_column(database, table, column, rng)
            elif what == 0:
                database.execute(f'DELETE FROM "{table}" WHERE rowid % 2 = {rng.randrange(2)}')
            elif what == 1:
                database.execute(f'ALTER TABLE "{table}" RENAME COLUMN "{column}" TO "other_{rng.randrange(9)}"')
            elif what == 2:
                database.execute(f'DROP TABLE "{table}"')
            else:
                odd = rng.choice([x for x in ODD if not isinstance(x, (list, dict))])
                odd = _said(odd) if isinstance(odd, str) or (isinstance(odd, int) and abs(odd) >= 2**63) else odd
                odd = rng.choice([odd, b"\x00\xff", -(2**63), 2**63 - 1])
                only = "" if what < 5 else f" WHERE rowid = {rng.randrange(1, 5)}"
                database.execute(f'UPDATE OR IGNORE "{table}" SET "{column}" = ?{only}', (odd,))
            database.commit()
        finally:
            database.close()
        return path.read_bytes()


def _put_view(database: sqlite3.Connection, table: str, column: str, rng: random.Random) -> None:
    """Put a view in the place of a table, or beside it: the same rows, many, none, or rows without end."""
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT i AS "
    rows = rng.choice(
        [
            'SELECT * FROM "kept"',
            'SELECT a.* FROM "kept" a, "kept" b, "kept" c, "kept" d',
            f'{endless}"{column}" FROM n',
            f'{endless}"{column}", k.* FROM n, "kept" k',
            'SELECT * FROM "kept" WHERE 0',
            f'SELECT *, zeroblob(1000000000) AS "{column}" FROM "kept"',
            f'SELECT * FROM "{table}"',
            "SELECT * FROM nowhere",
            "SELECT load_extension('own') AS a, * FROM \"kept\"",
        ]
    )
    if rng.random() < 0.8:
        database.execute(f'ALTER TABLE "{table}" RENAME TO "kept"')
        database.execute(f'CREATE VIEW "{table}" AS {rows}')
    else:
        database.execute(f'CREATE VIEW "kept" AS SELECT * FROM "{table}"')
        database.execute(f'CREATE VIEW "other" AS {rows}')


def _compute_column(database: sqlite3.Connection, table: str, column: str, rng: random.Random) -> None:
    """Put a column that is computed for each reader in the place of a stored one."""
    other = f"stored_{rng.randrange(9)}"
    value = rng.choice(
        [
            f'"{other}"',
            f'"{other}" + 1',
            "1",
            "NULL",
            "zeroblob(1000000000)",
            "abs(-9223372036854775808)",
            f"json_extract(\"{other}\", '$.a')",
            f'printf("%.*c", 900000000, "{other}")',
        ]
    )
    database.execute(f'ALTER TABLE "{table}" RENAME COLUMN "{column}" TO "{other}"')
    database.execute(f'ALTER TABLE "{table}" ADD COLUMN "{column}" GENERATED ALWAYS AS ({value}) VIRTUAL')


def _as_parquet(data: bytes, rng: random.Random) -> bytes:
    table = pq.read_table(pa.BufferReader(data))
    name, what = rng.choice(table.column_names), rng.randrange(8)
    at = table.column_names.index(name)
    values = table.column(at).to_pylist()
    if what == 0:
        return _parquet(table.drop_columns([name]))
    if what == 1:
        return _parquet(table.append_column(name, table.column(at)))
    if what == 2:
        return _parquet(table.rename_columns([rng.choice(ODD[15:20]) if n == name else n for n in table.column_names]))
    if what == 3:
        return _parquet(table.slice(0, rng.choice([0, 1])))
    if what == 4:
        return _parquet(pa.concat_tables([table] * rng.choice([2, 50])))
    if what == 5:
        kind = rng.choice(
            [pa.string(), pa.int8(), pa.float32(), pa.binary(), pa.bool_(), pa.null(), pa.list_(pa.int8())]
        )
        return _parquet(table.set_column(at, name, pa.nulls(len(values), kind)))
    odd = rng.choice([x for x in ODD if isinstance(x, type(values[0]))] or [None]) if values else None
    if values:
        values[rng.randrange(len(values))] = odd
    new = pa.array(values) if what == 6 else pa.array(values, table.schema.field(at).type)
    return _parquet(table.set_column(at, name, new))


def _onnx(data: bytes, rng: random.Random) -> bytes:
    import onnx

    model = onnx.ModelProto.FromString(data)
    what = rng.randrange(9)
    if what == 7:
        return _with_other_functions(model, rng)
    function = rng.choice(model.functions) if model.functions else None
    nodes = function.node if function is not None and rng.random() < 0.2 else model.graph.node
    node = rng.choice(nodes)
    if what == 0 and function is not None:  # a function that calls itself, or one more level that doubles
        name = function.name if rng.random() < 0.3 else f"F{len(model.functions)}"
        body = [onnx.helper.make_node(function.name, ["a"], ["b"], domain="own"),
                onnx.helper.make_node(function.name, ["b"], ["c"], domain="own")]  # fmt: skip
        if name == function.name:
            function.node.append(body[0])
        else:
            imports = function.opset_import
            model.functions.append(onnx.helper.make_function("own", name, ["a"], ["c"], body, imports))
            for caller in model.graph.node:
                caller.op_type = name if caller.domain == "own" else caller.op_type
    elif what in (1, 2, 3) and node.attribute:
        attribute = rng.choice(node.attribute)
        odd = [0, -1, 2**31, 2**63 - 1, -(2**63), float("nan"), "x", [0, 0], [-1] * 4, [2**62] * 2, [1] * 100]
        if what == 1:
            node.attribute.remove(attribute)
        elif what == 2:
            attribute.CopyFrom(onnx.helper.make_attribute(attribute.name, rng.choice(odd)))
        else:
            attribute.type = rng.randrange(15)
    elif what == 4:
        dims = [rng.choice([0, 1, -1, 8, 2**31, 2**62]) for _ in range(rng.choice([0, 1, 2, 4, 100]))]
        if rng.random() < 0.5 and model.graph.initializer:
            changed = rng.choice(model.graph.initializer)
            del changed.dims[:]
            changed.dims.extend(dims)
        else:
            kind = rng.choice([onnx.TensorProto.FLOAT, onnx.TensorProto.INT64, onnx.TensorProto.BOOL])
            value = rng.choice([*model.graph.input, *model.graph.output])
            shape = rng.choice([dims, None])
            value.CopyFrom(onnx.helper.make_tensor_value_info(value.name, kind, shape))
    elif what == 5:
        names = rng.choice([node.input, node.output])
        if names and rng.random() < 0.5:
            del names[rng.randrange(len(names))]
        else:
            names.append(rng.choice(["", "x", "w", "unknown"]))
    elif what == 8:  # a branch or a body that holds a copy of what holds it
        branch = onnx.helper.make_graph([node], "branch", [], list(model.graph.output))
        node.attribute.append(onnx.helper.make_attribute(rng.choice(["then_branch", "body", "strides"]), branch))
    else:
        node.op_type = rng.choice(["Shape", "Concat", "Reshape", "Split", "MatMul", "Gather", "LSTM", "Loop", "Resize"])
    changed_data: bytes = model.SerializeToString()
    return changed_data


def _with_other_functions(model: Any, rng: random.Random) -> bytes:
    """Return a model with a chain of functions that call each other, two of one name, or one that is malformed."""
    from onnx import helper

    what = rng.randrange(5)
    if what == 0 or not model.functions:  # each of a chain calls the next one several times, or the last the first
        length, calls = rng.choice([2, 20, 60, 200, 2000]), rng.choice([1, 2, 3])
        after_last = model.functions[0].name if model.functions and rng.random() < 0.5 else "f0"
        for number in range(length):
            name = f"f{number + 1}" if number + 1 < length else after_last
            nodes = [helper.make_node(name, ["a"], [f"b{call}"], domain="own") for call in range(calls)]
            opsets = list(model.opset_import)
            model.functions.append(helper.make_function("own", f"f{number}", ["a"], ["b0"], nodes, opsets))
        caller = rng.choice(model.graph.node)
        caller.op_type, caller.domain = "f0", "own"
    else:
        function = rng.choice(model.functions)
        if what == 1:
            function.node.append(helper.make_node(rng.choice(model.functions).name, ["a"], ["c"], domain="own"))
        elif what == 2:
            model.functions.append(function)
        elif what == 3:
            function.ClearField(rng.choice(["input", "output", "node", "opset_import", "attribute"]))
        else:
            function.name, function.domain = _said(rng.choice(ODD))[:400], rng.choice(["own", "", "other"])
    changed: bytes = model.SerializeToString()
    return changed


_AS = {
    "onnx": _onnx,
    "json": _json,
    "lines": _lines,
    "toml": _toml,
    "xml": _xml,
    "sqlite": _sqlite,
    "parquet": _as_parquet,
}


# Command lines -------------------------------------------------------------------------------------------------------

_LEFT_OUT = {"ui", "measure", "plot", "validate", "networks"}  # serve, time, draw, or take seconds
_WORDS = ["resnet50", "vgg16", "alexnet", "k40m", "t4,v100-sxm2", "a100-sxm-40gb", "all", "fp16", "1,8", "1:8:x2", "0",
          "-1", "1e9", "9" * 30, "nan", "", " ", "x" * 300, "=1", "\x1b[31m", "none", "2x k40m @ pcie3", "10 GB/s",
          "5e3", "1.28M", "file.csv", "/dev/null", "."]  # fmt: skip


def command_line(rng: random.Random) -> list[str]:
    """A command with some of its options, most with values that they might have."""
    import click

    from paleo_lite.cli import main

    name = rng.choice([known for known in main.list_commands(None) if known not in _LEFT_OUT])  # type: ignore[arg-type]
    command = main.get_command(None, name)  # type: ignore[arg-type]
    words = [name]
    while isinstance(command, click.Group):
        words.append(rng.choice(list(command.commands)))
        command = command.commands[words[-1]]
    assert command is not None
    for param in command.params:
        wanted = rng.random() < (0.95 if param.required or isinstance(param, click.Argument) else 0.12)
        if not wanted or param.name in ("output", "scheduler", "jobs", "program", "debug", None):
            continue
        known = list(getattr(param.type, "choices", ())) or None
        value = str(rng.choice(known if known and rng.random() < 0.85 else _WORDS))
        if isinstance(param, click.Argument):
            words.append(rng.choice(_WORDS[:3]) if rng.random() < 0.8 else value)
        elif getattr(param, "is_flag", False):
            words.append(param.opts[-1])
        else:
            value = rng.choice(_WORDS[3:6]) if param.name == "gpu" and rng.random() < 0.8 else value
            words += [param.opts[-1], value]
    return words


# Code beside the file ------------------------------------------------------------------------------------------------

PLANTED = ("json", "numpy", "pyarrow", "torch", "transformers", "diffusers", "onnx", "gguf", "safetensors", "dask",
           "matplotlib", "plotly", "tomllib", "sitecustomize", "usercustomize", "paleo_lite", "msgspec", "encodings",
           "configuration_own", "modeling_own", "pipeline", "own", "numpy_typing", "google", "yaml")  # fmt: skip
"""Names of modules that a command, its process for traces, or the code that a network names may import."""

_RAN = "planted-code-ran"


def plant(folder: Path, rng: random.Random) -> None:
    """Delete the modules of earlier calls and at times write some into the folder, which leave a file if they run."""
    for file in [*folder.glob("*.py"), *folder.glob("*/__init__.py"), folder / _RAN]:
        file.unlink(missing_ok=True)
    if rng.random() < 0.1:
        for name in rng.sample(PLANTED, rng.choice([1, 3, len(PLANTED)])):
            path = folder / rng.choice([f"{name}.py", f"{name}/__init__.py"])
            path.parent.mkdir(exist_ok=True)
            path.write_text(f"open({str(folder / _RAN)!r}, 'w').close()\n")


def planted_code_ran(folder: Path) -> str | None:
    """Return what is wrong if a module of `plant` was run."""
    return "a module in the folder of the file was run" if (folder / _RAN).exists() else None


# Asking --------------------------------------------------------------------------------------------------------------


class Hang(BaseException):
    """More than `CPU_S` seconds of the processor."""


def wrong_with(words: list[str]) -> str | None:
    """Return the problem with a command's result; None if it is a valid answer or a one-sentence error."""
    from paleo_lite.cli import main

    said = CliRunner().invoke(main, words)
    if said.exception is not None and not isinstance(said.exception, SystemExit):
        return f"{type(said.exception).__name__}: {said.exception}"[:300]
    if said.exit_code not in (0, 1, 2):
        return f"exit {said.exit_code}"
    if "internal error" in said.stderr or "internal error" in said.stdout:
        return (said.stderr + said.stdout)[said.output.find("internal error") :][:300]
    for line in (said.stdout + said.stderr).replace("\xa0", " ").split("\n"):
        if not line.isprintable():
            return f"control letters are printed: {line[:200]!r}"
    is_of_many_files = "--keep-going" in words  # a line for each of them
    if said.exit_code == 1 and not is_of_many_files and len(said.stderr.strip().split("\n")) > 1:
        return f"an error of several lines: {said.stderr[:300]!r}"
    return None


def asked(number: int, seed: int, known: list[Sample], folder: Path) -> tuple[str, list[str]]:
    """The file and the command of a number: a label, and the words."""
    rng = random.Random(f"{seed}:{number}")
    if rng.random() < 0.1:
        return "command line", command_line(rng)
    sample, other = rng.choice(known), rng.choice(known)
    path = folder / (sample.name if "." in sample.name else "file")
    path.write_bytes(mutated(sample.data, sample.kind, other.data, rng))
    plant(folder, rng)
    words = rng.choice(sample.commands).format(file=path).split()
    if "--force" not in words and rng.random() < 0.5:
        words += ["--format", rng.choice(TABLES)]
    return sample.name, words


def _work(seed: int, numbers: Any, step: int, until: float, report: Any) -> None:
    """Ask one number after another; the process may die of one, which its parent then knows."""
    from paleo_lite.architectures.torch_import import import_torchvision
    from paleo_lite.cli import main

    import_torchvision()  # which takes seconds, once
    known = samples()
    CliRunner().invoke(main, ["efficiency", "--help"])
    held = int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")

    def hang(*_: Any) -> None:
        raise Hang

    signal.signal(signal.SIGPROF, hang)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        number = numbers
        while time.monotonic() < until:
            report.send((number, None, None, None))
            label, words = asked(number, seed, known, Path(folder))
            resource.setrlimit(resource.RLIMIT_AS, (held + MEMORY, resource.RLIM_INFINITY))
            signal.setitimer(signal.ITIMER_PROF, CPU_S)
            try:
                problem = wrong_with(words) or planted_code_ran(Path(folder))
            except Hang:
                problem = f"more than {CPU_S} s of the processor"
            except MemoryError:
                problem = f"more than {MEMORY >> 20} MiB"
            finally:
                signal.setitimer(signal.ITIMER_PROF, 0)
                resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
            if problem is not None:
                files = [Path(word) for word in words if word.startswith(folder) and Path(word).is_file()]
                report.send((number, label, f"{problem}\n{' '.join(words)}", files[0].read_bytes() if files else None))
            number += step
    report.send(None)


def fuzz(
    seconds: float, seed: int = 0, first: int = 0, jobs: int = 1, kept: Path = ROOT / "build/fuzz"
) -> tuple[int, list[str]]:
    """Run random commands for the given time; return their number and the problems."""
    until = time.monotonic() + seconds
    context = multiprocessing.get_context("spawn")
    found: list[str] = []
    workers: dict[Any, tuple[Any, list[int]]] = {}

    def start(number: int) -> None:
        ours, theirs = context.Pipe(duplex=False)
        process = context.Process(target=_work, args=(seed, number, jobs, until, theirs), daemon=True)
        process.start()
        theirs.close()
        workers[ours] = process, [number, 0]

    def keep(number: int, label: str, problem: str, data: bytes | None) -> None:
        kept.mkdir(parents=True, exist_ok=True)
        found.append(f"{number} {label}: {problem}")
        print(found[-1], flush=True)
        (kept / f"{seed}-{number}.txt").write_text(f"{label}\n{problem}\n", encoding="utf-8", errors="replace")
        if data is not None:
            (kept / f"{seed}-{number}.{label}").write_bytes(data)

    for worker in range(jobs):
        start(first + worker)
    count = 0
    while workers:
        for pipe in multiprocessing.connection.wait(list(workers)):
            process, (number, _) = workers[pipe]  # type: ignore[index]
            try:
                told = pipe.recv()  # type: ignore[union-attr]
            except EOFError:
                process.join()
                del workers[pipe]
                keep(number, "died", f"the process died, exit {process.exitcode}", None)
                start(number + jobs)
                continue
            if told is None:
                process.join()
                del workers[pipe]
            elif told[1] is None:
                count += 1
                workers[pipe] = process, [told[0], 0]
            else:
                keep(*told)
    return count, found


# Faults --------------------------------------------------------------------------------------------------------------

_SWEEP = """
import resource, sys
from pathlib import Path
output, scheduler, largest = Path(sys.argv[1]), sys.argv[2] or None, int(sys.argv[3])
if largest:
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest, largest))
from paleo_lite.calibration.choose import choose_model
from paleo_lite.errors import PaleoError
from paleo_lite.sweeps import run, space
space.CHUNK_ROWS = 12
small = space.Space(networks=("alexnet",), gpus=("k40m", "v100-sxm2"), batch_sizes=tuple(range(1, 400)))
if __name__ == "__main__":
    try:
        run.run_sweep(small, output, choose_model, jobs=2, scheduler=scheduler)
    except PaleoError as error:
        sys.exit(str(error))
"""

FAULTS = ("kill", "terminate", "interrupt", "two writers", "full disk", "read-only folder", "dead Dask worker")


def _no_more() -> None:
    """Drop CAP_DAC_OVERRIDE for the next executed program, so that read-only folders are read-only for root as well."""
    ctypes.CDLL(None).prctl(24, 1, 0, 0, 0)


def _sweeping(output: Path, scheduler: str = "", largest: int = 0) -> subprocess.Popen[str]:
    told = {"stderr": subprocess.PIPE, "text": True, "start_new_session": True, "cwd": ROOT, "preexec_fn": _no_more}
    words = [sys.executable, "-c", _SWEEP, str(output), scheduler, str(largest)]
    return subprocess.Popen(words, **told)  # type: ignore[call-overload, no-any-return]


def _strike(fault: str, output: Path, takes: float, size: int, rng: random.Random) -> list[str]:
    """Inject a fault into a sweep at a random moment; return output that is not one of our messages."""
    if fault != "dead Dask worker":
        return _struck(fault, output, "", takes, size, rng, [])
    from distributed import LocalCluster

    with LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None, silence_logs=50) as cluster:
        workers = [nanny.process.process for nanny in cluster.workers.values()]
        return _struck(fault, output, cluster.scheduler_address, takes, size, rng, workers)


def _struck(
    fault: str, output: Path, scheduler: str, takes: float, size: int, rng: random.Random, workers: list[Any]
) -> list[str]:
    swept = [_sweeping(output, scheduler, rng.randrange(size) if fault == "full disk" else 0)]
    if fault == "two writers":
        swept.append(_sweeping(output))
    time.sleep(rng.uniform(0, takes))
    if fault == "dead Dask worker":
        rng.choice(workers).kill()
    elif fault == "read-only folder":
        output.parent.chmod(0o555)
    elif fault in ("kill", "terminate", "interrupt"):
        swept[0].send_signal(getattr(signal, {"kill": "SIGKILL", "terminate": "SIGTERM", "interrupt": "SIGINT"}[fault]))
    said = [process.communicate()[1] for process in swept]  # which ends when no worker holds its output any more
    output.parent.chmod(0o755)
    if fault in ("two writers", "full disk", "read-only folder", "dead Dask worker"):
        # Dask's own processes log to the same stream.
        return [text for process, text in zip(swept, said) if process.returncode and "Traceback" in text]
    return []


def faults(seconds: float, seed: int = 0, most: int = sys.maxsize) -> tuple[int, list[str]]:
    """Run sweeps with one of `FAULTS` injected at a random moment; return the number of rounds and the problems.

    Nothing may be lost, doubled or left: what goes on from there writes what an undisturbed one writes.
    """
    rng, until, wrong, rounds = random.Random(seed), time.monotonic() + seconds, [], 0
    with tempfile.TemporaryDirectory() as folder:
        whole, output = Path(folder) / "whole.parquet", Path(folder) / "out" / "sweep.parquet"
        output.parent.mkdir()
        started = time.monotonic()
        _sweeping(whole).communicate()
        takes, size = time.monotonic() - started, whole.stat().st_size
        while time.monotonic() < until and rounds < most:
            rounds += 1
            fault = FAULTS[rounds % len(FAULTS)]
            problems = _strike(fault, output, takes, size, rng)
            _, said = _sweeping(output).communicate()
            if not output.exists() or output.read_bytes() != whole.read_bytes():
                problems.append(f"another file: {said}")
            if (left := sorted(file.name for file in output.parent.iterdir())) != ["sweep.parquet"]:
                problems.append(f"left are {left}")
            wrong += [f"round {rounds}, {fault}: {problem}" for problem in problems]
            print(f"round {rounds}, {fault}: {'; '.join(problems) or 'nothing lost, doubled or left'}", flush=True)
            output.unlink(missing_ok=True)
    return rounds, wrong


def main_() -> None:
    """The command line of this tool."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--from", dest="first", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--faults", action="store_true", help="faults in sweeps at random moments instead")
    parser.add_argument("--rounds", type=int, default=sys.maxsize, help="of faults at most")
    told = parser.parse_args()
    if told.faults:
        rounds, wrong = faults(told.seconds, told.seed, told.rounds)
        print("\n".join([*wrong, f"{rounds} rounds of seed {told.seed}, {len(wrong)} wrong"]))
        sys.exit(bool(wrong))
    count, found = fuzz(told.seconds, told.seed, told.first, told.jobs)
    print(f"{count:,} inputs of seed {told.seed}, {len(found)} found")
    sys.exit(bool(found))


if __name__ == "__main__":
    main_()

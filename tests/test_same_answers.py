"""Every command and the function of the same name have the same options, and return the same results.

Tests: api/calibrations.py, api/catalogue.py, api/scaling.py, questions/best.py.
"""

from __future__ import annotations

import ast
import inspect
import json
import os
import pydoc
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import click
import pytest
from click.testing import CliRunner

import paleo_lite as pl
from paleo_lite.api.plotting import KINDS
from paleo_lite.calibration.measurements import TEMPLATE
from paleo_lite.cli import main
from paleo_lite.questions.measured import MeasuringQuestion
from paleo_lite.questions.option import OutputOption
from result_samples import VLLM_SERVE
from test_schemas import check

K40M = {"gpu": "k40m"}

STEPS = {"alexnet": 0.030, "resnet18": 0.060, "resnet34": 0.110, "resnet50": 0.230}


class Ask(NamedTuple):
    """The arguments of a command, and the function with the same arguments.

    `known` maps the name of an option to the parameter of the function, where the names differ.
    """

    words: str
    function: str
    arguments: tuple[Any, ...] = ()
    question: Mapping[str, Any] = MappingProxyType({})
    known: Mapping[str, str] = MappingProxyType({})


PATHS = {"paths": "a", "more_a": "a", "more_b": "b"}
TRAINING_OPTIONS = (
    "optimizer mixed_precision checkpointing accumulation lora lora_modules freeze train_only fused_loss loss_chunks "
    "fp32_gradients offload"
)
TRAINING = dict.fromkeys(TRAINING_OPTIONS.split(), "training")

ASKED = {
    "predict": Ask("alexnet --gpu k40m --batch-size 8", "predict", ("alexnet",),
                   {"batch_size": 8, "memory": True, **K40M}),
    "train": Ask("alexnet --gpu k80-die --link ethernet20 --workers 1,2 --communication bucket=1MiB", "train",
                 ("alexnet",), {"gpu": "k80-die", "link": "ethernet20", "workers": [1, 2],
                                "communication": {"bucket": "1MiB"}}),
    "local": Ask("llama-3.1-8b --gpu rtx3060 --weights q4_k_m -ngl 20", "local", ("llama-3.1-8b",),
                 {"gpu": "rtx3060", "weights": "q4_k_m", "gpu_layers": 20}),
    "diffusion": Ask("sdxl --gpu h100-sxm --precision fp16 --steps 4 --site electricity=0.2USD/kWh", "diffusion",
                     ("sdxl",), {"gpu": "h100-sxm", "precision": "fp16", "steps": 4,
                                 "site": {"electricity": "0.2USD/kWh"}}),
    "serve": Ask("llama-3-8b --gpu h100-sxm --rate 5 --num-requests 50", "serve", ("llama-3-8b",),
                 {"gpu": "h100-sxm", "rate": 5, "num_requests": 50}),
    "rl": Ask("qwen3-0.6b --gpu h100-sxm --prompts 8 --samples-per-prompt 4 --response-tokens 200", "rl",
              ("qwen3-0.6b",), {"gpu": "h100-sxm", "prompts": 8, "samples_per_prompt": 4, "response_tokens": 200}),
    "best": Ask("{sweep} --maximise throughput_per_s --top 2", "best", ("{sweep}",),
                {"maximise": "throughput_per_s", "top": 2}),
    "gemm": Ask("512 64 512 --count 8 --into 2 --gpu titanx-maxwell --tile 128x64", "gemm", (512, 64, 512),
                {"count": 8, "into": 2, "gpu": "titanx-maxwell", "tile": "128x64"}),
    "feeding": Ask("alexnet --gpu p100-sxm2 --no-pinned --storage hdd --sample-bytes 50k", "feeding", ("alexnet",),
                   {"gpu": "p100-sxm2", "no_pinned": True, "storage": "hdd", "sample_bytes": 50_000}),
    "layers": Ask("alexnet --convention macs", "layers", ("alexnet",), {"convention": "macs"},
                  {"networks": "network"}),
    "networks list": Ask("", "networks"),
    "networks show": Ask("alexnet", "networks", ("alexnet",)),
    "networks export": Ask("{network} -o {output}.json", "export", ("{network}", "{output}.json")),
    "hardware list": Ask("", "hardware"),
    "hardware show": Ask("k80", "hardware", ("Tesla K80",)),
    "hardware links": Ask("--move 1PB", "links", (), {"move": 10**15}),
    "hardware audit": Ask("", "audit"),
    "efficiency": Ask("{profile} --gpu k40m --method notebook --jobs 1", "efficiency", ("{profile}",),
                      {"method": "notebook", "jobs": 1, **K40M}),
    "kernels": Ask("{profile} --gpu k40m", "kernels", ("{profile}",), K40M),
    "compare": Ask("{profile} {other} --direction fprop", "compare", ("{profile}", "{other}"),
                   {"direction": "fprop"}, PATHS),
    "measurements": Ask("{results} --gpu h100-sxm --tensor 8 --jobs 1", "measurements", ("{results}",),
                        {"gpu": "h100-sxm", "tensor": 8, "jobs": 1}),
    "calibrate": Ask("{measured} --gpu k40m -o {output}.toml", "calibrate", ("{measured}",),
                     {"output": "{output}.toml", **K40M}, {"paths": "measured"}),
    "calibrations list": Ask("", "calibrations"),
    "calibrations show": Ask("k40m-fp32", "calibrations", ("k40m-fp32",), {}, {"calibration": "name"}),
    "measure": Ask("--quick --threads 1 --phase inference", "measure", (),
                   {"quick": True, "threads": 1, "phases": ("inference",)}),
    "validate": Ask("--data {measured}", "validate", ("{measured}",)),
    "ui": Ask("--port 8643 --no-browser", "ui", (), {"port": 8643, "browser": False}, {"no_browser": "browser"}),
    **{f"plot {kind}": Ask(f"{words} -o {{output}}.svg --theme dark", "plot", (kind, *arguments),
                           {"output": "{output}.svg", "theme": "dark", **question},
                           dict.fromkeys(("network", "path", "slices", "batch_sizes"), "question"))
       for kind, (words, arguments, question) in {
           "roofline": ("alexnet --gpu k40m", ("alexnet",), K40M),
           "layers": ("alexnet --gpu k40m", ("alexnet",), K40M),
           "kinds": ("alexnet --gpu k40m", ("alexnet",), K40M),
           "passes": ("alexnet --gpu k40m --phase training", ("alexnet",), {"phase": "training", **K40M}),
           "batch": ("alexnet --gpu k40m,v100-sxm2 --batch-size 1,2,4", ("alexnet",),
                     {"gpu": ["k40m", "v100-sxm2"], "batch_size": [1, 2, 4]}),
           "devices": ("alexnet,vgg16 --gpu k40m,v100-sxm2", (["alexnet", "vgg16"],), {"gpu": ["k40m", "v100-sxm2"]}),
           "scaling": ("alexnet --gpu k40m --link ethernet20 --workers 1,2,4", ("alexnet",),
                       {"link": "ethernet20", "workers": "1,2,4", **K40M}),
           "schedule": ("alexnet --gpu k40m --link ethernet20 --workers 4 --strategy pipeline-gpipe --batch-size 4",
                        ("alexnet",),
                        {"link": "ethernet20", "workers": "4", "strategy": "pipeline-gpipe", "batch_size": 4, **K40M}),
           "serving": ("llama-3-8b --gpu h100-sxm --rate 5 --num-requests 50", ("llama-3-8b",),
                       {"gpu": "h100-sxm", "rate": 5, "num_requests": 50}),
           "rl": ("qwen3-0.6b --gpu h100-sxm --prompts 8 --samples-per-prompt 4 --response-tokens 200", ("qwen3-0.6b",),
                  {"gpu": "h100-sxm", "prompts": 8, "samples_per_prompt": 4, "response_tokens": 200}),
           "pareto": ("{sweep} --pareto time,cost", ("{sweep}",), {"pareto": ["time", "cost"]}),
           "memory": ("llama-3-8b --gpu h100-sxm --batch-sizes 1,2 --token-counts 64,128", ("llama-3-8b",),
                      {"gpu": "h100-sxm", "batch_sizes": [1, 2], "token_counts": [64, 128]}),
           "cost": ("alexnet --gpu v100-sxm2,t4", ("alexnet",), {"gpu": ["v100-sxm2", "t4"]}),
           "local": ("llama-3.1-8b --gpu rtx3060,apple-m4", ("llama-3.1-8b",), {"gpus": ["rtx3060", "apple-m4"]}),
           "accuracy": ("--data {measured}", ("{measured}",), {}),
           "fit": ("{measured} --gpu k40m", ("{measured}",), K40M),
           "timeline": ("{trace} --slices 10", ("{trace}",), {"slices": 10}),
           "classes": ("{profile} --gpu k40m", ("{profile}",), K40M),
           "kernels": ("{profile} --gpu k40m", ("{profile}",), K40M),
           "efficiency": ("{profile} {other} --gpu k40m --method notebook --jobs 1", (["{profile}", "{other}"],),
                          {"method": "notebook", "jobs": 1, **K40M}),
           "compare": ("{profile} {other}", ("{profile}", "{other}"), {}),
           "ppp": ("--predict alexnet --gpu k40m --batch-size 32 {steps}", ("{steps}",),
                   {"predict": "alexnet", "batch_size": 32, **K40M}),
       }.items()},
}  # fmt: skip

ASKED_TOO = [
    ("calibrate", Ask("--suggest 2 --gpu k80 --network alexnet --batch-size 8 --phase training", "calibrate", (),
                      {"suggest": 2, "gpu": "k80", "network": "alexnet", "batch_size": 8, "phase": "training"})),
    ("hardware links", Ask("", "links")),
    ("predict", Ask("vgg16,alexnet --gpu k40m,k80-die", "predict", (["vgg16", "alexnet"],),
                    {"gpu": ["k40m", "k80-die"]})),
    ("train", Ask("gpt2 --gpu t4 --precision fp16 --mixed-precision --lora 8 --samples 52k", "train", ("gpt2",),
                  {"gpu": "t4", "precision": "fp16", "mixed_precision": True, "lora": 8, "samples": "52k"})),
    ("diffusion", Ask("sdxl --gpu h100-sxm,l40s --precision fp16 --steps 4", "diffusion", (["sdxl"],),
                      {"gpu": ["h100-sxm", "l40s"], "precision": "fp16", "steps": 4})),
    ("local", Ask("llama-3.1-8b --gpu rtx3060,rtx4090", "local", ("llama-3.1-8b",), {"gpu": ["rtx3060", "rtx4090"]})),
    ("layers", Ask("alexnet vgg16", "layers", (["alexnet", "vgg16"],))),
    ("layers", Ask("alexnet --gpu h100-sxm --precision fp16", "layers", ("alexnet",),
                   {"gpu": "h100-sxm", "precision": "fp16"})),
    ("layers", Ask("sdxl --gpu h100-sxm --precision fp16", "layers", ("sdxl",),
                   {"gpu": "h100-sxm", "precision": "fp16"})),
    ("train", Ask("paleo_alex_v2 --gpu TITAN_X --link ethernet20 --workers 1,2 --time-model paleo", "train",
                  ("paleo_alex_v2",),
                  {"gpu": "TITAN_X", "link": "ethernet20", "workers": "1,2", "time_model": "paleo"})),
    ("diffusion", Ask("sdxl --gpu h100-sxm --precision fp16 --workers 1,2 --steps 4", "diffusion", ("sdxl",),
                      {"gpu": "h100-sxm", "precision": "fp16", "workers": "1,2", "steps": 4})),
]  # fmt: skip
"""Further arguments of commands that return several kinds of results."""

IN_A_FILE = {"networks export", *(f"plot {kind}" for kind in KINDS)}
"""Commands that write a file instead of printing a result."""

APART = {"seconds", "output"}
"""Fields of the result of a sweep that differ between runs."""


def leaves(command: click.Command, path: tuple[str, ...] = ()) -> dict[str, click.Command]:
    """Return all commands, without groups, by their full names."""
    if not isinstance(command, click.Group):
        return {" ".join(path): command}
    context, found = click.Context(command), dict[str, click.Command]()
    for name in command.list_commands(context):
        within = command.get_command(context, name)
        assert within is not None
        found |= leaves(within, (*path, name))
    return found


COMMANDS = leaves(main)


def asked(command: str, *further: str) -> Any:
    """Return the JSON that a command prints."""
    return json.loads(run(command, *further, "--format", "json"))


def run(command: str, *further: str) -> str:
    result = CliRunner().invoke(main, [*shlex.split(command), *further], prog_name="paleo-lite")
    assert result.exit_code == 0, result.output
    return result.stdout


def parameters(function: Any) -> dict[str, inspect.Parameter]:
    """Return the parameters of a function by name."""
    return dict(inspect.signature(function).parameters)


@pytest.fixture(scope="module")
def files(tmp_path_factory) -> dict[str, str]:
    """Input files of commands: measurements, a sweep, two profiles, a trace, a network."""
    pytest.importorskip("pandas")
    pyarrow, parquet = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")

    folder = tmp_path_factory.mktemp("same")
    rows = [f"k40m,{name},32,{phase},fp32,{time_s * share}" for phase, share in (("inference", 1), ("training", 3.1))
            for name, time_s in STEPS.items()]  # fmt: skip
    (folder / "measured.csv").write_text("\n".join(["gpu,network,batch_size,phase,precision,time_s", *rows]))
    kernels = ["cudnn::detail::implicit_convolve_sgemm", "cudnn::detail::dgrad_alg1_engine", "elementwise_kernel"]
    for name, times in (("profile", [2e6, 3e6, 1e6]), ("other", [2e6, 4e6, 1e6])):
        columns = {"Kernel": kernels, "Sil(ns)": times, "FLOPs": [4.29e9, 0.0, 1e6], "Bytes": [1e6, 0.0, 1.44e8],
                   "Direction": ["fprop", "bprop", "fprop"], "Op": ["conv2d", "conv2d", "relu"]}  # fmt: skip
        parquet.write_table(pyarrow.table(columns), folder / f"{name}_32.parquet")
    steps = [("conv2d", "fprop", 1, 5e6), ("linear", "fprop", 1, 2e6), ("linear", "bprop", 2, 4e6),
             ("conv2d", "bprop", 2, 1e7), ("add_", "fprop", 1, 7e6)] * 4  # fmt: skip
    columns = dict(zip(("Op", "Direction", "TId", "Sil(ns)"), map(list, zip(*steps))))
    named = {"Kernel": [f"kernel_of_{op}" for op in columns["Op"]], **columns}
    parquet.write_table(pyarrow.table(named), folder / "steps_32.parquet")
    kernel = {"ph": "X", "cat": "kernel", "pid": 0, "tid": 7, "args": {"device": 0, "stream": 7}}
    names = enumerate(["sgemm_nt", "elementwise"])
    events = [{**kernel, "name": name, "ts": 10 * at, "dur": 5} for at, name in names]
    (folder / "trace.json").write_text(json.dumps({"traceEvents": events}))
    (folder / "net.prototxt").write_text(PROTOTXT)
    (folder / "results.json").write_text(VLLM_SERVE)
    question = pl.Predict("alexnet,resnet50", gpu="k80-die,k40m", batch_size="1:16:x2", price="1 USD/h")
    pl.sweep(question, folder / "sweep.csv", jobs=1)
    return {"measured": f"{folder}/measured.csv", "sweep": f"{folder}/sweep.csv", "trace": f"{folder}/trace.json",
            "profile": f"{folder}/profile_32.parquet", "other": f"{folder}/other_32.parquet",
            "results": f"{folder}/results.json",
            "network": f"{folder}/net.prototxt", "steps": f"{folder}/steps_32.parquet"}  # fmt: skip


PROTOTXT = """name: "one layer"
input: "data"
input_shape { dim: 1 dim: 3 dim: 8 dim: 8 }
layer { name: "conv" type: "Convolution" bottom: "data" top: "conv"
        convolution_param { num_output: 4 kernel_size: 3 } }
"""


def filled(value: Any, places: dict[str, str]) -> Any:
    """Return texts with the placeholders of files filled in."""
    if isinstance(value, str):
        return value.format_map(places)
    if isinstance(value, (list, tuple)):
        return type(value)(filled(each, places) for each in value)
    return {name: filled(each, places) for name, each in value.items()} if isinstance(value, dict) else value


def question_of(ask: Ask, places: dict[str, str]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    settings = {name: value for name, value in ask.question.items() if name in ("settings", "training")}
    rest = {name: value for name, value in ask.question.items() if name not in settings}
    return filled(ask.arguments, places), {**filled(rest, places), **settings}


def test_every_chart_is_drawn_by_something() -> None:
    """Drawn by a call or an import, or named in a list as ``name`` or ``module:name``; a comment draws nothing."""
    trees = {path: ast.parse(path.read_text("utf-8")) for path in Path(pl.__file__).parent.rglob("*.py")}
    used = set()
    for node in (node for tree in trees.values() for node in ast.walk(tree)):
        if isinstance(node, ast.ImportFrom):
            used.update(alias.name for alias in node.names)
        elif isinstance(node, ast.Call):
            used.add(getattr(node.func, "attr", getattr(node.func, "id", "")))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            used.add(node.value.rpartition(":")[2])
    for path, tree in trees.items():
        functions = [node.name for node in tree.body if isinstance(node, ast.FunctionDef)]
        charts = [name for name in functions if name.endswith("_chart") and not name.startswith("_")]
        for name in charts if path.parent.name == "charts" else ():
            assert name in used, f"add {name} of {path.name} to KINDS in paleo_lite/api/plotting.py"


@pytest.mark.parametrize("name", COMMANDS)
def test_every_command_is_a_function_with_the_same_options(name: str) -> None:
    """Except for output options, which the function does not have."""
    assert name in ASKED or not name.startswith("plot "), (
        f"no test draws `paleo-lite {name}`: add the arguments of the command and of the function to ASKED"
    )
    assert name in ASKED, (
        f"`paleo-lite {name}` is not a function: write it in paleo_lite/api/, add it to _MODULES in "
        "paleo_lite/__init__.py, and add the arguments of the command and of the function to ASKED"
    )
    ask = ASKED[name]
    assert ask.function in pl.__all__, f"paleo_lite.{ask.function} is not in paleo_lite.__all__"
    if ask.function == "plot":  # takes the arguments of the function whose result is drawn
        assert name.removeprefix("plot ") in KINDS
        return
    accepted = parameters(getattr(pl, ask.function))
    assert all(parameter.kind is not inspect.Parameter.VAR_KEYWORD for parameter in accepted.values())
    for option in COMMANDS[name].params:
        if isinstance(option, OutputOption) or not option.expose_value:
            continue
        argument = ask.known.get(option.name or "", option.name)
        assert argument in accepted, (
            f"`paleo-lite {name}` has {option.opts[0]}, but paleo_lite.{ask.function} has no {argument}: "
            "add the argument, or name it in `known` of ASKED"
        )


OTHER_DEFAULTS = {
    ("ui", "port"),
}


@pytest.mark.parametrize("name", [name for name in COMMANDS if not name.startswith("plot ")])
def test_options_and_parameters_have_the_same_defaults(name: str) -> None:
    ask = ASKED[name]
    accepted = parameters(getattr(pl, ask.function))
    empty = (None, (), "", False)
    compared = 0
    for option in COMMANDS[name].params:
        if isinstance(option, OutputOption) or option.name not in accepted or option.required:
            continue
        if option.name in ask.known or (name, option.name) in OTHER_DEFAULTS:
            continue
        default = option.get_default(click.Context(COMMANDS[name]))
        if str(default) == "Sentinel.UNSET":  # of recent versions of click
            default = None
        expected = accepted[option.name].default
        if expected is inspect.Parameter.empty:  # the command checks that it is given
            continue
        if default in empty:
            assert expected in empty, (name, option.name)
        else:
            assert str(default) == str(expected), (name, option.name)
        compared += 1
    assert compared > 0 or len(COMMANDS[name].params) < 8


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: pl.sweep(pl.Predict("alexnet", gpu="k80"), "a.csv", batch_size=8),
         "sweep() got an unexpected keyword argument 'batch_size'"),
        (lambda: pl.kernels("a.json", gpu="k80", tile=2), "kernels() got an unexpected keyword argument 'tile'"),
        (lambda: pl.predict("alexnet", gpu="k80", batchsize=2),
         "predict() got an unexpected keyword argument 'batchsize'"),
        (lambda: pl.train("alexnet", gpu="k80", worker=2), "train() got an unexpected keyword argument 'worker'"),
        (lambda: pl.feeding("alexnet", pinned=False), "feeding() got an unexpected keyword argument 'pinned'"),
        (lambda: pl.gemm(1, 2), "gemm() missing 1 required positional argument: 'k'"),
        (lambda: pl.gemm(1, 2, 3, "k80"), "gemm() takes 4 positional arguments but 5 were given"),
    ],
)  # fmt: skip
def test_a_wrong_argument_is_a_type_error(call: Any, message: str) -> None:
    with pytest.raises(TypeError) as error:
        call()
    assert str(error.value).startswith(message)


def test_help_shows_the_parameters_with_their_defaults() -> None:
    text = pydoc.plain(pydoc.render_doc(pl.compare))
    assert "b: 'Paths' = ()" in text and "repeats: 'bool' = False" in text
    assert "-> 'RunComparison | ProfileComparison | MeasuredBesideForecast'" in text and "Also read the repeats" in text


def test_every_parameter_is_documented() -> None:
    for name in pl.__all__:
        function = getattr(pl, name)
        if not inspect.isfunction(function):
            continue
        text = inspect.getdoc(function) or ""
        entries = re.findall(r"^(\S.*)$", text, re.MULTILINE)
        documented = set(re.findall(r"\w+", " ".join(entries))) | set(re.findall(r"`(\w+)`", text))
        missing = [parameter for parameter in parameters(function) if parameter not in documented]
        assert not missing, f"paleo_lite.{name} does not document {missing}"


@pytest.mark.spread(12)
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "ask"),
    [*((name, ask) for name, ask in ASKED.items() if name not in IN_A_FILE | {"measure", "ui"}), *ASKED_TOO],
    ids=lambda value: value if isinstance(value, str) else value.function,
)
def test_a_command_and_its_function_agree(name: str, ask: Ask, files: dict[str, str], tmp_path: Path) -> None:
    if name in ("calibrate", "validate"):
        pytest.importorskip("scipy")
        pytest.importorskip("tomli_w")
    said = asked(f"{name} {ask.words.format_map({**files, 'output': tmp_path / 'command'})}")
    arguments, question = question_of(ask, {**files, "output": str(tmp_path / "function")})
    found = getattr(pl, ask.function)(*arguments, **question)
    answer = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    check("answers", name, answer)
    assert answer == said
    assert found._repr_html_().startswith(("<b>", "<table>")) and type(found).__name__ in repr(found)
    assert len(repr(found)) < 4000 and repr(found).count("\n") < 40
    assert len(found.to_frame().columns) > 0
    assert {path.suffix: path.read_bytes() for path in tmp_path.glob("function*")} == {
        path.suffix: path.read_bytes() for path in tmp_path.glob("command*")
    }


@pytest.mark.spread(4)
@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(IN_A_FILE))
def test_a_command_and_its_function_write_the_same(
    name: str, files: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for library in ("altair", "vl_convert", "jinja2", "scipy"):
        pytest.importorskip(library)
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "0")
    ask, written = ASKED[name], list[bytes]()
    for folder in ("command", "function"):
        (tmp_path / folder).mkdir()
        monkeypatch.chdir(tmp_path / folder)
        places = {**files, "output": "made"}
        if folder == "command":
            run(f"{name} {ask.words.format_map(places)}")
        else:
            arguments, question = question_of(ask, places)
            found = getattr(pl, ask.function)(*arguments, **question)
            assert found.to_dict() and found._repr_html_().startswith("<") and type(found).__name__ in repr(found)
            assert len(found.to_frame().columns) > 0
        (file,) = Path.cwd().iterdir()
        written.append(re.sub(rb"#?\b(clip|gradient_)\d+", b"", file.read_bytes()))  # vl-convert goes on counting
    assert written[0] == written[1]


@pytest.mark.slow
def test_measuring_is_asked_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two measurements differ: compare the questions instead of the results."""
    heard = []

    def listen(question: Any) -> Any:
        heard.append(question)
        return pl.networks()

    monkeypatch.setattr("paleo_lite.cli.measure.answer", listen)
    run(f"measure {ASKED['measure'].words}")
    assert heard == [MeasuringQuestion(**ASKED["measure"].question)]


@pytest.mark.slow
def test_the_page_is_served_as_by_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    for library in ("streamlit", "altair", "pyarrow", "scipy"):
        pytest.importorskip(library)
    from streamlit.web import cli as streamlit

    heard = []
    monkeypatch.setattr(streamlit, "main", lambda words, _: heard.append(tuple(words)))
    monkeypatch.setitem(os.environ, "BROWSER", "true")
    ask = ASKED["ui"]
    assert run(f"ui {ask.words}") == "The page is at http://127.0.0.1:8643 until Ctrl-C.\n"
    page = pl.ui(**ask.question)
    try:
        assert heard == [page.arguments] and page.to_dict() == {"url": "http://127.0.0.1:8643"}
        assert page.process.poll() is None and page.url in page._repr_html_() and page.url in repr(page)
    finally:
        page.stop()
    assert page.process.poll() is not None


@pytest.mark.slow
def test_frames_have_the_rows_of_the_tables() -> None:
    pytest.importorskip("pandas")
    assert list(pl.networks().to_frame()["name"]) == [row["name"] for row in pl.networks().to_dict()["networks"]]
    assert len(pl.calibrations("k40m-fp32").to_frame()) == len(pl.calibrations("k40m-fp32").parameters)


def test_what_was_calibrated_predicts_as_its_file(tmp_path: Path) -> None:
    pytest.importorskip("scipy")
    pytest.importorskip("tomli_w")
    (tmp_path / "measured.csv").write_text(TEMPLATE)
    for time_model in ("calibrated", "ppp"):
        found = pl.calibrate(tmp_path / "measured.csv", time_model=time_model, output=tmp_path / f"{time_model}.toml",
                             **K40M)  # fmt: skip
        times = [pl.predict("vgg16", batch_size=32, calibration=known, **K40M).time_s
                 for known in (found, str(tmp_path / f"{time_model}.toml"))]  # fmt: skip
        assert times[0] == times[1]


def test_a_sweep_is_a_frame_of_its_rows(tmp_path: Path) -> None:
    pytest.importorskip("pandas")
    question = pl.Predict("alexnet", gpu=["k80-die", "k40m"], batch_size="1:4:x2")
    done = pl.sweep(question, tmp_path / "a.csv", jobs=1)
    assert list(done.to_frame()["batch_size"]) == [1, 2, 4] * 2
    size = pl.sweep(question, tmp_path / "c.csv", dry_run=True)
    assert size.to_dict()["rows"] == 6 and not (tmp_path / "c.csv").exists()

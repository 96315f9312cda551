"""Configs as publishers ship them have the published parameters, in every phase and on two devices, without torch.

``published_configs.json`` has configs of model cards on https://huggingface.co with their totals: of the metadata of
the files, or as the publisher rounds them (``active_within`` is half of the last digit). They leave out sizes, nest the
text part under keys of their own, and are quantized by every method that is read.

Tests: architectures/config_parts.py.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from measured import DATA
from paleo_lite.architectures import find_network, network_names, trace_process
from paleo_lite.architectures.config import Config
from paleo_lite.architectures.families.family import FAMILIES
from paleo_lite.architectures.model_config import read_config
from paleo_lite.architectures.network import SequenceOptions
from paleo_lite.architectures.rare_keys import NearestMultiple
from paleo_lite.files import shipped_folder

CONFIGS = json.loads(Path(__file__).with_name("published_configs.json").read_text(encoding="utf-8"))
QUESTIONS = {
    "prefill": SequenceOptions(512, phase="prefill"),
    "decode": SequenceOptions(context=1024, phase="decode"),
    "two devices": SequenceOptions(context=1024, phase="decode", tensor_parallel=2),
}


@pytest.fixture(autouse=True)
def _without_transformers(monkeypatch):
    monkeypatch.setattr(trace_process, "traceable_types", frozenset)


def read(config, question="prefill"):
    return read_config(json.dumps(config).encode(), "some/config.json", None, QUESTIONS[question])


@pytest.mark.parametrize("published", CONFIGS, ids=[published["repository"] for published in CONFIGS])
def test_a_published_config_has_the_published_parameters(published):
    network = read(published["config"])
    assert network.parameters == pytest.approx(published["parameters"], rel=0.01)
    active = published.get("active_parameters", network.active_parameters)
    assert network.active_parameters == pytest.approx(active, rel=0.03, abs=published.get("active_within"))
    assert (network.stored_weights is None) == ("quantization_config" not in published["config"])
    assert read(published["config"], "decode").parameters == network.parameters
    kv_heads = published["config"].get("num_key_value_heads") or published["config"].get("num_kv_heads") or 2
    if all(count % 2 == 0 for count in (kv_heads if isinstance(kv_heads, list) else [kv_heads])):
        assert read(published["config"], "two devices").parameters < network.parameters


# Elements of the state of a layer for one sequence, from the sizes that the publishers' configs state.
STATES = {
    "mamba-2.8b": 2 * 2560 * 16,  # expand, hidden_size, state_size
    "nemotron-nano-12b-v2": 128 * 80 * 128,  # mamba_num_heads, mamba_head_dim, ssm_state_size
    "qwen3-next-80b-a3b": 32 * 128 * 128,  # linear_num_value_heads, linear_key_head_dim, linear_value_head_dim
    "kimi-linear-48b-a3b": 32 * 128 * 128,  # linear_attn_config: num_heads, head_dim for keys and for values
    "tests/golden/configs/ring-mini-linear-2.0.json": 16 * 128 * 128,  # num_attention_heads, head_dim twice
    "tests/golden/configs/zamba2-7b-instruct.json": 112 * 64 * 64,  # n_mamba_heads, mamba_headdim, mamba_d_state
    "tests/golden/configs/phi-4-mini-flash-reasoning.json": 2 * 2560 * 16,  # mamba_expand, hidden_size, mamba_d_state
}


@pytest.mark.parametrize("name", STATES)
def test_a_state_is_read_and_written_where_there_is_a_cache(name):
    root = Path(__file__).parents[2]
    network = find_network(str(root / name) if name.endswith(".json") else name)

    def states(**options):
        layers = network.rebuild(SequenceOptions(**options)).layers
        return {layer.attributes["state_elements"] for layer in layers if "state_elements" in layer.attributes}

    assert states(length=100) == {0}  # of a whole sequence at once nothing is kept
    assert states(length=100, phase="prefill") == states(context=100, phase="decode") == {STATES[name]}
    assert states(context=100, phase="decode", tensor_parallel=2) == {STATES[name] // 2}


@pytest.mark.parametrize(
    ("width", "factor", "expected"),
    [
        (1280, 0.5, 768),  # 640 is as near to 512, to which it would lose a fifth
        (256, 1.5, 512),  # 384 as well
        (1000, 2.0, 2048),
        (1000, 2.2, 2304),  # 2200 is nearer to 2304 than to 2048
        (1000, 2.1, 2048),  # 2100 loses less than a tenth
        (256, 1.45, 512),  # 371.2 is nearer to 256, but would lose more than a tenth
        (64, 0.5, 256),  # the least
    ],
)
def test_feed_forward_sizes_of_openelm_are_rounded_as_its_code_rounds(width, factor, expected):
    """`make_divisible` of apple/OpenELM: to the nearest multiple, and up where that would be below 90%."""
    config = Config({"model_dim": width, "ffn_multipliers": factor, "ffn_dim_divisor": 256}, "c.json")
    assert NearestMultiple("model_dim", "ffn_multipliers", "ffn_dim_divisor", 256).read(config) == expected


def test_every_method_of_quantization_is_published_here_or_tested_alone():
    methods = {published["config"].get("quantization_config", {}).get("quant_method") for published in CONFIGS}
    assert methods >= {"awq", "gptq", "compressed-tensors", "bitsandbytes", "quark", "torchao", "bitnet"}


@pytest.mark.slow
@pytest.mark.parametrize("model_type", [name for name, family in FAMILIES.items() if family.nested_defaults])
def test_what_a_nested_config_leaves_out_is_what_transformers_takes(model_type):
    from paleo_lite.architectures.torch_import import import_torchvision

    import_torchvision("a test")
    transformers = pytest.importorskip("transformers", exc_type=ImportError)
    defaults = transformers.AutoConfig.for_model(model_type).to_dict()
    ours = FAMILIES[model_type].nested_defaults
    assert ours == {name: defaults[name] for name in ours}


def test_what_a_nested_config_leaves_out_is_named():
    text = {"model_type": "llama", "vocab_size": 32064}
    notes = read({"model_type": "llava", "text_config": text}).notes
    assert any("leaves out has the defaults of transformers: num_hidden_layers 32" in note for note in notes)
    with pytest.raises(Exception, match=r"\$\.num_hidden_layers is missing"):  # a config of its own has all keys
        read(text)


# The configs of the data folder ---------------------------------------------------------------------------------------

PUBLISHED = {
    # Billions of parameters and of active ones, of the model cards on https://huggingface.co and the reports of the
    # publishers; of multi-token prediction layers the main model alone. Names are found in those of the files.
    "MiniMax-M2.5": (228.7, 10), "Qwen3-0.6B": (0.596, None), "Qwen3-1.7B": (1.721, None), "Qwen3-8B": (8.19, None),
    "Qwen3-32B": (32.76, None), "Qwen3-30B-A3B": (30.53, 3.3), "Qwen3-235B-A22B": (235.1, 22),
    "Qwen3-Coder-480B-A35B": (480.2, 35), "Qwen3-VL-2B": (2.128, None), "Qwen3-VL-4B": (4.438, None),
    "Qwen3-VL-8B": (8.767, None), "Qwen3-VL-32B": (33.36, None), "Qwen3-VL-30B-A3B": (31.07, 3.3),
    "Qwen3-VL-235B-A22B": (235.7, 22), "Qwen3.5-27B": (27.4, None), "Qwen3.5-35B-A3B": (35, 3),
    "Qwen3.5-122B-A10B": (122, 10), "MiMo-7B": (7.62, None), "MiMo-V2-Flash": (309, 15), "CodeLlama-34b": (33.74, None),
    "DeepSeek-R1": (671, 37), "DeepSeek-V3_": (671, 37), "DeepSeek-V3.1": (671, 37), "DeepSeek-V3.2": (672, 37),
    "DeepSeek-V4-Flash": (284, 13), "emma-4-26B-A4B": (25.8, 3.8), "Llama-2-70b": (68.98, None),
    "Llama-4-Maverick": (400, 17), "Llama-4-Scout": (108.6, 17), "Llama-3.1-405B": (405.9, None),
    "Llama-3.1-70B": (70.55, None), "Llama-3.1-8B": (8.03, None), "Mixtral-8x22B": (140.6, 39),
    "Mixtral-8x7B": (46.7, 12.9), "Kimi-K2": (1026.4, 32), "GLM-5": (744, 40), "Nemotron-3-Nano": (31.6, 3.6),
    "Nemotron-3-Super": (120.6, 12.7), "gpt-oss-120b": (116.83, 5.13), "gpt-oss-20b": (20.91, 3.61),
}  # fmt: skip

READ_ALL = """
import json, sys
from paleo_lite.architectures import find_network, network_names, trace_process
trace_process.traceable_types = frozenset
from paleo_lite.architectures.model_config import read_config
from paleo_lite.architectures.network import SequenceOptions
prefill, decode = SequenceOptions(512, phase="prefill"), SequenceOptions(context=1024, phase="decode")
for path in sys.argv[1:]:
    data = open(path, "rb").read()
    whole, step, part = (
        read_config(data, path, None, options) for options in (prefill, decode, decode._replace(tensor_parallel=2))
    )
    active = [whole._replace(embedding_is_active=is_active).active_parameters for is_active in (True, False)]
    print(json.dumps([path, whole.name, whole.parameters, step.parameters, part.parameters, *active]))
assert "torch" not in sys.modules and "transformers" not in sys.modules
"""


def method_of(config):
    """The ``quant_method`` of a config or of its text part; None without quantization."""
    quantization = config.get("quantization_config") or config.get("text_config", {}).get("quantization_config")
    return (quantization or {}).get("quant_method")


def fewest_layers(paths):
    """Of each model type, and of each method of quantization, the config with the fewest layers."""
    found = {}
    for path in paths:
        config = json.loads(path.read_text())
        layers = config.get("text_config", config)["num_hidden_layers"]
        for kind in (config["model_type"], method_of(config)):
            found[kind] = min(found.get(kind, (layers, path)), (layers, path))
    return sorted({path for _, path in found.values()})


@pytest.mark.thorough
@pytest.mark.needs_data
@pytest.mark.slow
@pytest.mark.parametrize("siblings", [False, pytest.param(True, marks=pytest.mark.thorough)])
def test_configs_of_the_folder_answer_with_the_published_parameters(siblings):
    """In prefill, in decode and on two devices, in a process that imports neither torch nor transformers.

    Of each type, and of each method of quantization, the smallest; `make thorough` reads all.
    """
    paths = [path for path in sorted((DATA / "configs").glob("*_config.json")) if "hf_quant" not in path.name]
    assert len(paths) >= 60
    if not siblings:
        paths = fewest_layers(paths)
    ran = subprocess.run(
        [sys.executable, "-c", READ_ALL, *map(str, paths)], capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    rows = [json.loads(line) for line in ran.stdout.splitlines()]
    assert len(rows) == len(paths) >= 20
    for path, name, parameters, in_step, of_two, active, without_embedding in rows:
        [*_, published] = sorted((key for key in PUBLISHED if key in Path(path).name), key=len)
        total, stated = PUBLISHED[published]
        assert "a guess" not in name, path
        assert parameters == in_step == pytest.approx(1e9 * total, rel=0.01), path
        assert 0.5 * parameters < of_two < 0.62 * parameters or parameters < 3e9, path
        if stated is None:
            assert active == parameters, path
            continue
        unit = 0.5 if float(stated).is_integer() else 0.05  # half of the last digit that the publisher writes
        nearest = min((active, without_embedding), key=lambda count: abs(count - 1e9 * stated))
        assert nearest == pytest.approx(1e9 * stated, rel=0.03, abs=1e9 * unit), path


METHODS = {"fp8": "fp8-block", "mxfp4": "mxfp4", "compressed-tensors": "int4", None: ""}
"""Formats that shipped networks name, by the ``quant_method`` of the published config."""


@pytest.mark.needs_data
def test_shipped_networks_name_the_format_of_the_published_checkpoint():
    formats = {}
    for path in (DATA / "configs").glob("*_config.json"):
        config = json.loads(path.read_text())
        repository = path.name.removesuffix("_config.json").replace("--", "/")
        formats[f"https://huggingface.co/{repository}"] = METHODS.get(method_of(config))
    compared = 0
    for name in network_names():
        text = (shipped_folder("models") / f"{name}.json").read_text()
        if not any(f'"{card}"' in text for card in formats):  # without it a network of many layers is not built
            continue
        publication = find_network(name).publication
        if publication is not None and publication.card in formats:
            compared += 1
            expected = formats[publication.card]
            if name == "deepseek-v4-flash":  # its experts are in fp4 and all else is in fp8: no format is both
                expected = ""
            assert publication.weights == expected, name
    assert compared > 15

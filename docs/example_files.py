"""Files that examples in README.md and docs read, by the name that they have there."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parent.parent

_RUN = "run_0_config_{nodes}_2_ib_nvprof_2_resnet50_dali-gpu_{batch}_{gradients}_fp32_ret_0_0.gzip"


_TRACE = "profiles/torch_chrome_trace_resnet50/resnet50_num_workers_0__worker0.1623143089861.pt.trace.json.gz"

_H100_TRACE = "profiles/tracelens_models/h100__Qwen_Qwen1.5-0.5B-Chat__1016005.json.gz"

_SMALL_TRACE = "profiles/torch_chrome_trace/critical_path__simple_add__benchmark_result_493459_1694039959_trace.json.gz"


def data_folder() -> Path | None:
    """Return the folder of published measurements that PALEO_LITE_DATA names, or None."""
    named = os.environ.get("PALEO_LITE_DATA")
    return ROOT / named if named and (ROOT / named / "surfboard").is_dir() else None


def bring(name: str) -> None:
    """Create one of the files in the working folder."""
    if name in FILES:
        FILES[name]()
        return
    data = data_folder()
    assert data is not None
    for path, source in DATA_FILES[name].items():
        if not Path(path).exists():
            Path(path).parent.mkdir(parents=True, exist_ok=True)
            Path(path).symlink_to(data / source)


def _run(nodes: int, batch: int, gradients: str = "fp16") -> str:
    return "surfboard/pyprof_kernels/" + _RUN.format(nodes=nodes, batch=batch, gradients=gradients)


def _measured() -> None:
    """Write a CSV of steps with twice the time of the roofline; no page shows its numbers."""
    import paleo_lite as pl

    rows = ["gpu,network,batch_size,phase,precision,time_s,image_size,framework,source"]
    for network in ("resnet18", "resnet50", "vgg16", "densenet121", "alexnet", "mobilenet_v2"):
        for gpu, precision, batch in (("t4", "fp16", 16), ("t4", "fp16", 64), ("k40m", "fp32", 16)):
            prediction = pl.predict(network, gpu=gpu, precision=precision, batch_size=batch, time_model="roofline")
            rows.append(
                f"{gpu},{network},{batch},inference,{precision},{2 * prediction.time_s:.4g},,pytorch 2.4,an example"
            )
    Path("measured.csv").write_text("\n".join(rows) + "\n")


def _sweep() -> None:
    """Write a small sweep."""
    from click.testing import CliRunner

    from paleo_lite.cli import main

    command = "predict resnet50,vgg16 --gpu all --precision fp32,fp16 --batch-size 16,64 -o sweep.parquet"
    assert CliRunner().invoke(main, command.split()).exit_code == 0


def _write(path: str, text: str) -> Callable[[], None]:
    def write() -> None:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        Path(path).write_text(text)

    return write


_MODEL = '''\
from torch import nn


def make():
    """Return a small network."""
    return nn.Sequential(
        nn.Conv2d(3, 32, 3, stride=2, padding=1), nn.BatchNorm2d(32), nn.ReLU(),
        nn.Conv2d(32, 64, 3, stride=2, padding=1), nn.BatchNorm2d(64), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10),
    )


def language_model():
    """Return a network that reads tokens."""
    encoder = nn.TransformerEncoderLayer(64, 4, batch_first=True)
    return nn.Sequential(nn.Embedding(1000, 64), encoder, nn.Linear(64, 1000))
'''

_PROTOTXT = """\
name: "small"
input: "data"
input_shape { dim: 1 dim: 3 dim: 32 dim: 32 }
layer { name: "conv1" type: "Convolution" bottom: "data" top: "conv1"
  convolution_param { num_output: 16 kernel_size: 3 pad: 1 } }
layer { name: "relu1" type: "ReLU" bottom: "conv1" top: "conv1" }
layer { name: "fc" type: "InnerProduct" bottom: "conv1" top: "fc" inner_product_param { num_output: 10 } }
"""

_VTUNE = """\
Function,CPU Time,CPU Time:Effective Time,CPU Time:Spin Time,Module
conv_forward,12.504,12.100,0.404,app
read_images,3.1,3.0,0.1,app
"""

_BENCH = """\
{"date": "20260101-120000", "backend": "vllm", "model_id": "meta-llama/Llama-3.1-8B-Instruct",
 "tokenizer_id": "meta-llama/Llama-3.1-8B-Instruct", "num_prompts": 160, "request_rate": "inf", "max_concurrency": 16,
 "duration": 25.0, "completed": 160, "failed": 0, "total_input_tokens": 160000, "total_output_tokens": 32000,
 "request_throughput": 6.4, "output_throughput": 1280.0, "total_token_throughput": 7680.0, "mean_ttft_ms": 90.0,
 "median_ttft_ms": 70.0, "p99_ttft_ms": 210.0, "mean_tpot_ms": 11.0, "median_tpot_ms": 10.9, "p99_tpot_ms": 12.4}
"""

_NCCL = """\
# Collective test starting: all_reduce_perf
#  Rank  0 Group  0 Pid  1 on node1 device  0 [0000:1b:00] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid  2 on node1 device  1 [0000:43:00] NVIDIA H100 80GB HBM3
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
        1024           256     float     sum      -1    10.35    0.10    0.10      0    10.32    0.10    0.10      0
  1073741824     268435456     float     sum      -1   3000.0  357.91  357.91      0   3001.0  357.79  357.79      0
# Avg bus bandwidth    : 179.0
"""

_LLAMA_BENCH = """\
{"build_commit": "c264f65ff", "build_number": 9927, "gpu_info": "NVIDIA GeForce RTX 4090", "backends": "CUDA", \
"model_filename": "llama-2-7b.Q4_0.gguf", "n_gpu_layers": 99, "n_prompt": 512, "n_gen": 0, "avg_ns": 40000000, \
"avg_ts": 12800.0}
{"build_commit": "c264f65ff", "build_number": 9927, "gpu_info": "NVIDIA GeForce RTX 4090", "backends": "CUDA", \
"model_filename": "llama-2-7b.Q4_0.gguf", "n_gpu_layers": 99, "n_prompt": 0, "n_gen": 128, "avg_ns": 700000000, \
"avg_ts": 182.9}
"""


_COMFYUI = """\
Device: cuda:0 NVIDIA GeForce RTX 4090 : cudaMallocAsync
Requested to load Flux
100%|██████████| 28/28 [00:28<00:00,  1.00s/it]
Prompt executed in 31.20 seconds
"""

_IDLE = "timestamp, index, power.draw [W]\n" + "".join(
    f"2026/10/30 18:42:{second:02}.000, 0, {75 + second % 2}.00 W\n" for second in range(20)
)


def _results() -> None:
    """Write a folder of result files."""
    _write("results/bench.json", _BENCH)()
    _write("results/nccl.log", _NCCL)()


FILES: dict[str, Callable[[], None]] = {
    "measured.csv": _measured,
    "sweep.parquet": _sweep,
    "my_package.model": _write("my_package/model.py", _MODEL),
    "mine.toml": _write("mine.toml", (ROOT / "hardware" / "t4.toml").read_text().replace("Tesla T4", "Mine")),
    "./config.json": _write("config.json", (ROOT / "models" / "bert-base.json").read_text()),
    "alexnet.prototxt": _write("alexnet.prototxt", _PROTOTXT),
    "vtune.csv": _write("vtune.csv", _VTUNE),
    "bench.json": _write("bench.json", _BENCH),
    "nccl.log": _write("nccl.log", _NCCL),
    "llama-bench.jsonl": _write("llama-bench.jsonl", _LLAMA_BENCH),
    "comfyui.log": _write("comfyui.log", _COMFYUI),
    "idle.csv": _write("idle.csv", _IDLE),
    "results/": _results,
}
"""Files that need no measured data, with the function that creates each."""

_RUNS = (_run(8, 32), _run(8, 64), _run(16, 32), _run(16, 64))

DATA_FILES: dict[str, dict[str, str]] = {
    "run.parquet": {"run.parquet": _run(8, 32)},
    "before.parquet": {"before.parquet": _run(8, 32, "fp32")},
    "after.parquet": {"after.parquet": _run(8, 32)},
    "profiles/": {f"profiles/{Path(run).name}": run for run in _RUNS},
    "run_*.gzip": {Path(run).name: run for run in _RUNS},
    **{name: {name: _SMALL_TRACE} for name in ("a1.json", "a2.json", "b1.json", "b2.json")},
    "batch_durations.csv": {"batch_durations.csv": "surfboard/derived/cartesius_batch_durations_recovered.csv"},
    "trace.json.gz": {"trace.json.gz": _TRACE},
    "h100.json.gz": {"h100.json.gz": _H100_TRACE},
}
"""Files of measured data: where they go, and where in the data folder they are."""

"""Small result files of every format, as their tools write them, with what a person reads in them."""

from __future__ import annotations

from typing import Any, NamedTuple

VLLM_SERVE = (
    '{"date": "20260101-120000", "backend": "vllm", "model_id": "meta-llama/Llama-3.1-8B", "tokenizer_id": "x", '
    '"num_prompts": 100, "request_rate": "inf", "burstiness": 1.0, "max_concurrency": 10, "duration": 50.0, '
    '"completed": 100, "failed": 0, "total_input_tokens": 100000, "total_output_tokens": 20100, '
    '"request_throughput": 2.0, "output_throughput": 402.0, "total_token_throughput": 2402.0, '
    '"mean_ttft_ms": 1000.0, "median_ttft_ms": 900.0, "p99_ttft_ms": 2000.0, "mean_tpot_ms": 20.0, '
    '"median_tpot_ms": 19.0, "p99_tpot_ms": 25.0, "mean_itl_ms": 20.5, "median_itl_ms": 15.0, "p99_itl_ms": 80.0, '
    '"tp": "2", "gpu": "H100"}\n'
)
NCCL = """# nccl-tests version 2.17.1 nccl-headers=22902 nccl-library=22902
# Collective test starting: all_reduce_perf
#  Rank  0 Group  0 Pid  1 on node1 device  0 [0000:1b:00] NVIDIA H100 80GB HBM3
#  Rank  1 Group  0 Pid  2 on node2 device  0 [0000:1b:00] NVIDIA H100 80GB HBM3
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
        1024           256     float     sum      -1    20.35    0.05    0.05      0    20.32    0.05    0.05      0
  1073741824     268435456     float     sum      -1   5000.0  214.75  214.75      0   5001.0  214.71  214.71      0
# Avg bus bandwidth    : 107.4
"""
LLAMA_ROW = (
    '"build_commit": "c264f65ff", "build_number": 9927, "cpu_info": "AMD", "gpu_info": "NVIDIA A100", "backends": '
    '"CUDA", "model_filename": "/m/llama-2-7b.Q4_0.gguf", "model_type": "llama 7B Q4_0", "model_size": 3825065984, '
    '"model_n_params": 6738415616, "n_gpu_layers": 99'
)
LLAMA_COLUMNS = "build_commit,build_number,gpu_info,backends,model_filename,n_gpu_layers,n_prompt,n_gen,avg_ns,avg_ts"


# torchtitan 0.1 to 0.2.2: train.py, distributed/parallel_dims.py, distributed/activation_checkpoint.py,
# components/metrics.py.
TITAN_2025 = """[rank0]:[titan] - root - INFO - CUDA capacity: NVIDIA H100 80GB HBM3 with 79.10GiB memory
[rank0]:[titan] - root - INFO - Building 3-D device mesh with ['dp_replicate', 'dp_shard', 'tp'], [2, 8, 4]
[rank0]:[titan] - root - INFO - \x1b[34mModel llama3 8B \x1b[31msize: 8,030,261,248 total parameters\x1b[39m
[rank0]:[titan] - root - INFO - Applied selective activation checkpointing to the model
[rank0]:[titan] - root - INFO - Compiling each TransformerBlock with torch.compile
[rank0]:[titan] - root - INFO - Applied HSDP to the model
[rank0]:[titan] - root - INFO - Mixed precision training is handled by fully_shard
[rank0]:[titan] - root - INFO - Trainer is initialized with local batch size 2, global batch size 64, gradient \
accumulation steps 2, sequence length 8192, total steps 1000 (warmup 200).
"""
TITAN_2026 = """[titan] - root - INFO - torchtitan version: 0.2.2 (0.0.0 means __version__ is not defined correctly).
[titan] - root - INFO - Building device mesh with parallelism: pp=4, dp_replicate=1, dp_shard=8, cp=1, tp=2, ep=8
[titan] - root - INFO - Model deepseek_v3 671B size: 671,026,419,200 total parameters
[titan] - root - INFO - Float8 training active with recipe rowwise
[titan] - root - INFO - Applied FullAC activation checkpointing to the model
[titan] - root - INFO - Applied FSDP to the model
[titan] - root - INFO - Using pipeline schedule Interleaved1F1B with 8 microbatches and 8 stages.
[titan] - root - INFO - Trainer is initialized with 65536 tokens per DP rank, 524288 tokens per train step, gradient \
accumulation steps 1, maximum context length 4096, total steps 10 (warmup 2)
"""
TITAN_2024 = """2024-10-01 - root - INFO - GPU capacity: NVIDIA A100-SXM4-80GB (0) with 79.15GiB memory
2024-10-01 - root - INFO - Building 1-D device mesh with ['dp'], [8]
2024-10-01 - root - INFO - Training starts at step 1, with local batch size 1, global batch size 8, sequence length \
8192, total steps 1000 (warmup 200)
"""
STEPS = "".join(
    f"step: {number}  loss: 9.1  memory: 40.00GiB(50.00%)  tps: 5,000  mfu: 30.00%\n" for number in (1, 10, 20, 30)
)
# deepspeed/runtime/config.py, `DeepSpeedConfig.print`.
DEEPSPEED = """[2023-07-18 18:07:50,078] [INFO] [config.py:964:print]   bfloat16_enabled ............. True
[2023-07-18 18:07:50,078] [INFO] [config.py:964:print]   gradient_accumulation_steps .. 2
[2023-07-18 18:07:50,078] [INFO] [config.py:964:print]   train_batch_size ............. 64
[2023-07-18 18:07:50,078] [INFO] [config.py:964:print]   train_micro_batch_size_per_gpu  4
[2023-07-18 18:07:50,078] [INFO] [config.py:964:print]   world_size ................... 8
[2023-07-18 18:07:50,078] [INFO] [config.py:964:print]   zero_optimization_stage ...... 3
epoch=0/micro_step=10/global_step=10, RunningAvgSamplesPerSec=173.4, CurrSamplesPerSec=171.9
"""
# transformers/trainer.py, `_inner_training_loop`, and the `TrainingArguments` that example scripts print.
TRAINER = """TrainingArguments(
bf16=True,
fsdp=[<FSDPOption.FULL_SHARD: 'full_shard'>, <FSDPOption.AUTO_WRAP: 'auto_wrap'>],
gradient_checkpointing=True,
torch_compile=False,
)
***** Running training *****
  Num examples = 346,940
  Instantaneous batch size per device = 10
  Total train batch size (w. parallel, distributed & accumulation) = 640
  Gradient Accumulation steps = 8
  Total optimization steps = 1,000
{'train_runtime': 2000.0, 'train_samples_per_second': 320.1, 'train_steps_per_second': 0.5, 'epoch': 1.0}
"""
# litgpt/utils.py prints its arguments with `pprint`.
LITGPT = """{'checkpoint_dir': PosixPath('checkpoints/meta-llama/Llama-2-7b-hf'),
 'devices': 4,
 'num_nodes': 1,
 'precision': 'bf16-true',
 'train': TrainArgs(save_interval=800,
                    global_batch_size=16,
                    micro_batch_size=1,
                    max_seq_length=512,
                    min_lr=6e-05)}
Epoch 1 | iter 2 step 0 | loss train: 1.646, val: n/a | iter time: 100.00 ms
Epoch 1 | iter 3 step 0 | loss train: 1.646, val: n/a | iter time: 100.00 ms
Epoch 1 | iter 4 step 1 | loss train: 1.660, val: n/a | iter time: 150.00 ms (step)
"""
# llmfoundry/command_utils/train.py logs its configuration, and composer/loggers/console_logger.py the nodes.
COMPOSER = """num_gpus_per_node: 8
num_nodes: 2
max_seq_len: 2048
global_train_batch_size: 256
device_train_microbatch_size: 16
precision: amp_bf16
fsdp_config:
  sharding_strategy: FULL_SHARD
  activation_checkpointing: false
         Train throughput/batches_per_sec: 0.5
         Train throughput/samples_per_sec: 128.0
"""


GUIDELLM = """\
Benchmarks Metadata:
    Worker:type_='generative_requests_worker' backend_type='openai_http' backend_target='http://127.0.0.1:8000'
    backend_model='ibm-granite/granite-3.3-8b-instruct' backend_info={'max_output_tokens': 16384, 'timeout': 300,
Benchmarks Info:
=================================================================================================================
Metadata                                      |||| Requests Made  ||| Prompt Tok/Req  ||| Output Tok/Req  ||| Prom
    Benchmark| Start Time| End Time| Duration (s)|  Comp|  Inc|  Err|   Comp|  Inc|  Err|   Comp|  Inc|  Err|   Comp
-------------|-----------|---------|-------------|------|-----|-----|-------|-----|-----|-------|-----|-----|-------
constant@0.69|   20:12:23| 20:13:09|         46.5|    30|    0|    0|  512.3|  0.0|  0.0|  256.0|  0.0|  0.0|  15368
constant@7.46|   12:54:17| 12:54:46|         29.5|     0|  229|    0|   0.0| 256.0| 0.0|   0.0|  43.3| 0.0|     0|
=================================================================================================================
Benchmarks Stats:
=================================================================================================================
Metadata     | Request Stats         || Out Tok/sec| Tot Tok/sec| Req Latency (ms)||| TTFT (ms)          ||| ITL (ms)
    Benchmark| Per Second| Concurrency|        mean|        mean| mean| median|  p99|  mean| median|    p99| mean| m
-------------|-----------|------------|------------|------------|-----|-------|-----|------|-------|-------|-----|--
constant@0.69|       0.65|        2.93|       165.1|       825.3| 4.54|   4.57| 4.58|  71.9|   73.5|   80.0| 17.5| 17.6
constant@7.46|       0.00|        0.00|         0.0|         0.0|  0.00|   0.00| 0.00|   0.0|    0.0|    0.0|  0.0| 0.0
=================================================================================================================
"""


class Sample(NamedTuple):
    """A result file: its format, its text, and a row that it has."""

    format: str
    text: str
    kind: str
    row: dict[str, Any]  # some values of the first row of this kind
    name: str = "file.txt"


SAMPLES = [
    Sample("vllm-serve", VLLM_SERVE, "server", {
        "requests": 100, "input_tokens": 1000, "output_tokens": 201, "ttft_s": 1.0, "tpot_s": 0.02, "e2e_s": 5.0,
        "concurrency": 10.0, "concurrency_limit": 10, "output_tokens_per_s": 402.0, "itl_median_s": 0.015}),
    Sample("vllm-throughput", '{"elapsed_time": 10.0, "num_requests": 50, "total_num_tokens": 20000, '
           '"requests_per_second": 5.0, "tokens_per_second": 2000.0}', "server",
           {"requests": 50, "duration_s": 10.0, "tokens_per_s": 2000.0}),
    Sample("vllm-latency", '{"avg_latency": 1.5, "latencies": [1.4, 1.6], "percentiles": {"50": 1.5, "99": 1.6}}',
           "server", {"e2e_s": 1.5, "e2e_p99_s": 1.6}),
    Sample("serving-report", """============ Serving Benchmark Result ============
Successful requests:                     100
Maximum request concurrency:             10
Benchmark duration (s):                  50.00
Total input tokens:                      100000
Total generated tokens:                  20100
Request throughput (req/s):              2.00
Mean TTFT (ms):                          1000.00
Mean TPOT (ms):                          20.00
P99 ITL (ms):                            80.00
==================================================
""", "server", {"requests": 100, "ttft_s": 1.0, "tpot_s": 0.02, "concurrency": 10.0, "itl_p99_s": 0.08}),
    Sample("vllm-offline-report", "Throughput: 12.50 requests/s, 4,500.00 total tokens/s, 2500.00 output tokens/s\n",
           "server", {"requests_per_s": 12.5, "tokens_per_s": 4500.0, "output_tokens": 200}),
    Sample("sglang-serving", '{"backend": "sglang", "dataset_name": "random", "request_rate": Infinity, '
           '"max_concurrency": null, "total_input_tokens": 50900, "total_output_tokens": 10100, '
           '"total_output_tokens_retokenized": 10090, "mean_e2e_latency_ms": 3000.0, "mean_ttft_ms": 1000.0, '
           '"mean_tpot_ms": 20.0, "output_throughput": 505.0, "random_input_len": 1024, "random_output_len": 202, '
           '"random_range_ratio": 0.0, "duration": 20.0, "completed": 100}\n', "server",
           {"input_tokens": 509, "input_tokens_asked": 1024, "output_tokens": 101, "tpot_s": 0.02}),
    Sample("sglang-one-batch", '{"run_name": "a", "batch_size": 4, "input_len": 1024, "output_len": 16, '
           '"prefill_latency": 0.5, "prefill_throughput": 8192.0, "median_decode_latency": 0.02, '
           '"median_decode_throughput": 200.0, "total_latency": 0.8, "overall_throughput": 5200.0}\n', "decode",
           {"batch_size": 4, "depth": 1024, "tpot_s": 0.02, "tokens_per_s": 200.0}),
    Sample("sglang-offline", '{"backend": "engine", "successful_requests": 10, "total_latency": 5.0, '
           '"total_input_tokens": 1000, "total_output_tokens": 2000, "request_throughput": 2.0, '
           '"input_throughput": 200.0, "output_throughput": 400.0, "total_throughput": 600.0}\n', "server",
           {"requests": 10, "output_tokens": 200, "tokens_per_s": 600.0}),
    Sample("server-log", "INFO vLLM API server version 0.11.0\n" + 2 * (
        "INFO 05-30 [loggers.py:118] Engine 000: Avg prompt throughput: 0.0 tokens/s, Avg generation throughput: 800.0 "
        "tokens/s, Running: 16 reqs, Waiting: 0 reqs, GPU KV cache usage: 3.1%, Prefix cache hit rate: 0.0%\n"),
        "decode", {"running": 16, "tpot_s": 0.02, "samples": 2}),
    Sample("server-log", "[2025-01-20 10:00:00 TP0] Decode batch. #running-req: 8, #token: 8192, token usage: 0.12, "
           "cuda graph: True, gen throughput (token/s): 400.0, #queue-req: 0\n", "decode",
           {"running": 8, "tpot_s": 0.02, "output_tokens_per_s": 400.0}),
    Sample("server-metrics", """# HELP vllm:num_requests_running requests
vllm:num_requests_running{model_name="m"} 4.0
vllm:time_to_first_token_seconds_bucket{le="0.1",model_name="m"} 5.0
vllm:time_to_first_token_seconds_sum{model_name="m"} 2.0
vllm:time_to_first_token_seconds_count{model_name="m"} 10.0
vllm:inter_token_latency_seconds_sum{model_name="m"} 20.0
vllm:inter_token_latency_seconds_count{model_name="m"} 1000.0
vllm:e2e_request_latency_seconds_sum{model_name="m"} 30.0
vllm:e2e_request_latency_seconds_count{model_name="m"} 10.0
""", "server", {"running": 4, "ttft_s": 0.2, "itl_s": 0.02, "e2e_s": 3.0, "requests": 10}),
    Sample("trtllm-bench-json", '{"engine": {"model": "m", "version": "1.0", "dtype": "bfloat16"}, "world_info": '
           '{"tp_size": 2, "pp_size": 1, "world_size": 2}, "request_info": {"num_requests": 10, '
           '"avg_input_length": 128, "avg_output_length": 101}, "performance": {"total_latency_ms": 4000, '
           '"system_output_throughput_tok_s": 250.0, "request_throughput_req_s": 2.5}, "streaming_metrics": '
           '{"avg_ttft_ms": 100, "avg_tpot_ms": 10}}', "server",
           {"requests": 10, "output_tokens": 101, "duration_s": 4.0, "ttft_s": 0.1, "tpot_s": 0.01, "e2e_s": 1.1}),
    Sample("trtllm-bench", "= ENGINE DETAILS\nModel:\t\tm\nTensorRT-LLM Version:\t0.16.0\n= PERFORMANCE OVERVIEW \n"
           "Number of requests:\t\t30\nAverage Output Length (tokens):\t2048.0000\n"
           "Token Throughput (tokens/sec):\t16901.8790\nTotal Latency (ms):\t363509.8785\n", "server",
           {"requests": 30, "output_tokens": 2048, "output_tokens_per_s": 16901.879, "duration_s": 363.5098785}),
    Sample("aiperf", '{"aiperf_version": "0.10.0", "request_throughput": {"unit": "requests/sec", "avg": 5.0}, '
           '"request_latency": {"unit": "ms", "avg": 2100.0}, "request_count": {"unit": "requests", "avg": 96.0}, '
           '"time_to_first_token": {"unit": "ns", "avg": 100000000}, "inter_token_latency": {"unit": "ms", "avg": 20}, '
           '"output_sequence_length": {"unit": "tokens", "avg": 101.0}, "input_config": {"phases": [{"concurrency": 8, '
           '"exclude_from_results": true}, {"concurrency": 16}]}}', "server",
           {"requests": 96, "ttft_s": 0.1, "tpot_s": 0.02, "concurrency": 10.5, "concurrency_limit": 16}),
    Sample("aiperf-csv", "Metric,avg,min,max,p99,p50\nTime to First Token (ms),100.0,50,200,180,90\n"
           "Inter Token Latency (ms),20.0,10,30,29,19\n\nMetric,Value\nRequest Throughput (per sec),5.0\n", "server",
           {"ttft_s": 0.1, "ttft_p99_s": 0.18, "tpot_s": 0.02, "requests_per_s": 5.0}),
    Sample("aiperf-csv", "Metric,avg,min,max,p99,p50\nTime To First Token (ms),8.00,7.00,9.00,8.98,8.00\n"
           "Request Latency (ms),30.00,20.00,40.00,39.00,30.00\n\nMetric,Value\nRequest Throughput (per sec),123.00\n",
           "server", {"ttft_s": 0.008, "ttft_p99_s": 0.00898, "e2e_s": 0.03, "requests_per_s": 123.0}),
    Sample("genai-perf-summary", "Config Name,Concurrency,ISL,Num Dataset Entries,p99 Time To First Token (ms),"
           "p99 Inter Token Latency (ms),p99 Request Latency (ms),p99 Output Sequence Length (tokens),"
           "Avg. Output Token Throughput (tokens/sec),Request Throughput (requests/sec)\n"
           "gpt2_run_config_2,1,201,200,33.54,7.16,779.75,132.10,149.63,1.32\n"
           "gpt2_run_config_0,1,201,100,82.02,7.53,879.20,124.55,145.93,1.30\n\n"
           "Config Name,GPU,p99 GPU Power Usage (W),Avg. GPU Power Limit (W)\ngpt2_run_config_2,gpu0,64.46,280.00\n",
           "server", {"label": "gpt2_run_config_2", "concurrency_limit": 1, "input_tokens": 201, "ttft_p99_s": 0.03354,
                      "itl_p99_s": 0.00716, "e2e_p99_s": 0.77975, "output_tokens_per_s": 149.63}),
    Sample("aiperf-records", '{"metadata": {"benchmark_phase": "profiling", "request_start_ns": 0, "request_end_ns": '
           '2000000000}, "metrics": {"request_latency": {"value": 2000.0, "unit": "ms"}, "time_to_first_token": '
           '{"value": 0.1, "unit": "s"}, "output_sequence_length": {"value": 96, "unit": "tokens"}}}\n', "server",
           {"requests": 1, "e2e_s": 2.0, "ttft_s": 0.1, "tpot_s": 0.02}),
    Sample("guidellm", '{"benchmarks": [{"type_": "generative_benchmark", "duration": 60.0, "request_totals": '
           '{"successful": 60, "incomplete": 2, "errored": 0}, "metrics": {"requests_per_second": {"successful": '
           '{"mean": 1.0}}, "output_token_count": {"successful": {"mean": 101.0}}, "request_latency": {"successful": '
           '{"mean": 2.1}}, "time_to_first_token_ms": {"successful": {"mean": 100.0}}, "inter_token_latency_ms": '
           '{"successful": {"mean": 20.0}}}}]}', "server",
           {"requests": 60, "tpot_s": 0.02, "output_tokens_per_s": 101.0}),
    Sample("guidellm-report", GUIDELLM, "server", {
        "label": "constant", "request_rate": 0.69, "requests": 30, "duration_s": 46.5, "input_tokens": 512.3,
        "output_tokens": 256, "ttft_s": 0.0719, "tpot_s": 0.0175, "e2e_s": 4.54, "concurrency": 2.93,
        "requests_per_s": 30 / 46.5, "output_tokens_per_s": 7680 / 46.5}),
    Sample("inference-perf", '{"load_summary": {"requested_rate": 2.0}, "successes": {"count": 20, "latency": '
           '{"request_latency": {"mean": 1.1}, "time_to_first_token": {"mean": 0.1}, "time_per_output_token": {"mean": '
           '0.005}}, "throughput": {"requests_per_sec": 2.0}, "prompt_len": {"mean": 50}, "output_len": '
           '{"mean": 101}}}',
           "server", {"tpot_s": 0.01, "tpot_reported_s": 0.005, "duration_s": 10.0, "input_tokens": 50}),
    Sample("llmperf", '{"version": "2023-08-31", "model": "m", "num_concurrent_requests": 4, '
           '"mean_output_tokens": 101, '
           '"results_ttft_s_mean": 0.2, "results_end_to_end_latency_s_mean": 2.2, "results_number_output_tokens_mean": '
           '101.0, "results_num_completed_requests": 60, "results_num_completed_requests_per_min": 60.0, '
           '"results_inter_token_latency_s_mean": 0.0218}', "server",
           {"tpot_s": 0.02, "duration_s": 60.0, "requests_per_s": 1.0, "itl_s": 0.0218}),
    Sample("llmperf-responses", '[{"error_code": null, "ttft_s": 0.2, "end_to_end_latency_s": 2.2, '
           '"number_output_tokens": 101, "number_input_tokens": 50}, {"error_code": 500, "ttft_s": 9}]', "server",
           {"requests": 1, "tpot_s": 0.02, "input_tokens": 50}),
    Sample("inferencex-aggregate", '{"hw": "h200", "conc": 4, "model": "m", "framework": "sglang", "precision": "fp8", '
           '"isl": 1024, "osl": 1024, "tp": 8, "tput_per_gpu": 100.0, "output_tput_per_gpu": 50.0, "median_ttft": 0.2, '
           '"mean_tpot": 0.01}', "server",
           {"devices": 8, "tokens_per_s": 800.0, "output_tokens_per_s": 400.0, "ttft_median_s": 0.2, "tpot_s": 0.01}),
    Sample("inferencex", '{"model_id": "m", "max_concurrency": 16, "duration": 200.0, "completed": 160, '
           '"total_input_tokens": 1600, "total_output_tokens": 3200, "median_ttft": 3.1, "median_tpot": 0.14, '
           '"median_e2el": 20.0}', "server", {"ttft_median_s": 3.1, "tpot_median_s": 0.14, "concurrency": 16.0}),
    Sample("ml-energy", '{"model_id": "m", "weight_precision": "bfloat16", "configurations": [{"gpu_model": "B200", '
           '"num_gpus": 1, "max_num_seqs": 8, "avg_batch_size": 8.0, "avg_power_watts": 640.0, '
           '"energy_per_token_joules": 0.4, "median_itl_ms": 5.0, "output_throughput_tokens_per_sec": 1600.0}]}',
           "server", {"power_w": 640.0, "energy_per_token_j": 0.4, "itl_median_s": 0.005, "tpot_s": 0.005}),
    Sample("llama-bench", "[{" + LLAMA_ROW + ', "n_prompt": 0, "n_gen": 128, "n_depth": 512, "avg_ns": 1280000000, '
           '"avg_ts": 100.0},]', "decode",
           {"generated": 128, "depth": 512, "tokens_per_s": 100.0, "tpot_s": 0.01, "weight_bytes": 3825065984}),
    Sample("llama-bench-csv", LLAMA_COLUMNS + '\n"c2","9927","NVIDIA T4","CUDA","/m/a.gguf","99","512","0",'
           '"512000000","1000.0"\n', "prompt", {"tokens": 512, "tokens_per_s": 1000.0, "time_s": 0.512}),
    Sample("llama-bench-sql", f"CREATE TABLE IF NOT EXISTS llama_bench (\n);\nINSERT INTO llama_bench ({LLAMA_COLUMNS}"
           ") VALUES ('c2', '9927', 'NVIDIA T4', 'CUDA', '/m/a.gguf', '99', '512', '0', '512000000', '1000.0');\n",
           "prompt", {"tokens": 512, "tokens_per_s": 1000.0}),
    Sample("llama-bench-md", "ggml_vulkan: Found 1 Vulkan devices:\nggml_vulkan: 0 = AMD Radeon RX 7900 XTX (RADV "
           "NAVI31) (radv) | uma: 0 |\n| model | size | params | backend | ngl | test | t/s |\n| --- | --: | --: | --- "
           "| --: | --: | --: |\n| llama 7B Q4_0 | 3.56 GiB | 6.74 B | Vulkan | 99 | tg128 @ d4096 | 125.00 ± 0.05 |\n",
           "decode", {"depth": 4096, "generated": 128, "tpot_s": 0.008, "gpu": "AMD Radeon RX 7900 XTX (RADV NAVI31)"}),
    Sample("llama-batched-bench", "|    PP |     TG |    B |   N_KV |   T_PP s | S_PP t/s |   T_TG s | S_TG t/s |\n"
           "|-------|--------|------|--------|----------|----------|----------|----------|\n"
           "|   512 |    128 |    4 |   2560 |    0.500 |  4096.00 |    2.560 |   200.00 |\n", "decode",
           {"batch_size": 4, "depth": 512, "tokens_per_s": 200.0, "tpot_s": 0.02}),
    Sample("llama-server", '{"model": "m", "timings": {"prompt_n": 100, "prompt_ms": 50.0, "predicted_n": 200, '
           '"predicted_ms": 4000.0, "predicted_per_second": 50.0, "draft_n": 100, "draft_n_accepted": 80}}', "decode",
           {"generated": 200, "tpot_s": 0.02, "acceptance": 0.8, "time_s": 4.0}),
    Sample("llama-timings", "llama_perf_context_print: prompt eval time =     352.45 ms /   512 tokens (    "
           "0.69 ms per "
           "token,  1452.69 tokens per second)\nllama_perf_context_print:        eval time =    2000.00 ms /  "
           " 100 runs "
           "  (   20.00 ms per token,    50.00 tokens per second)\n", "decode", {"generated": 100, "tpot_s": 0.02}),
    Sample("llama-timings", "slot print_timing: id  0 | task 388 | n_decoded =    172, tg =  12.00 t/s, tg_3s "
           "= 11 t/s\n"
           "slot print_timing: id  0 | task 388 | n_decoded =    200, tg =  12.50 t/s, tg_3s = 11 t/s\n", "decode",
           {"generated": 200, "tokens_per_s": 12.5}),
    Sample("ollama", "total duration:       1m2.5s\nload duration:        2.1s\nprompt eval count:    100 token(s)\n"
           "prompt eval duration: 250ms\nprompt eval rate:     400.00 tokens/s\neval count:           600 token(s)\n"
           "eval duration:        1m0s\neval rate:            10.00 tokens/s\n", "decode",
           {"generated": 600, "time_s": 60.0, "tpot_s": 0.1}),
    Sample("ollama-answers", '{"model": "llama3.1", "done": true, "load_duration": 100, "prompt_eval_count": 100, '
           '"prompt_eval_duration": 250000000, "eval_count": 600, "eval_duration": 60000000000}', "prompt",
           {"tokens": 100, "time_s": 0.25, "tokens_per_s": 400.0}),
    Sample("lm-studio", '{"usage": {"prompt_tokens": 24, "completion_tokens": 100}, "stats": '
           '{"tokens_per_second": 50.0,'
           ' "time_to_first_token": 0.1, "generation_time": 2.0}, "model_info": {"arch": "granite", "quant": '
           '"Q4_K_M"}}',
           "decode", {"generated": 100, "tpot_s": 0.02, "ttft_s": 0.1}),
    Sample("mlx-lm", "Timing with prompt_tokens=64, generation_tokens=32, batch_size=2.\nTrial 1:  "
           "prompt_tps=1334.858, "
           "generation_tps=100.0, peak_memory=0.5\nAverages: prompt_tps=1300.0, generation_tps=100.0, "
           "peak_memory=0.5\n",
           "decode", {"batch_size": 2, "tpot_s": 0.02, "memory_bytes": 500000000}),
    Sample("mlx-lm", "Prompt: 100 tokens, 400.000 tokens-per-sec\nGeneration: 100 tokens, 50.000 tokens-per-sec\nPeak "
           "memory: 4.567 GB\n", "decode", {"generated": 100, "tpot_s": 0.02}),
    Sample("exllama", "\x1b[1m -- Bitrate: 4.00 bpw / 6.00 bpw (head)\x1b[0m\nPrefill:\nLength   2048:   "
           "3456.78 tokens/s"
           "\nGeneration:\nContext   2048:     50.00 tokens/s\n", "decode", {"depth": 2048, "tpot_s": 0.02}),
    Sample("mllog", "".join(
        f':::MLLOG {{"time_ms": {time}, "key": "{key}", "value": {value}, "metadata": {{"samples_count": {count}}}}}\n'
        for time, key, value, count in [
            (0, "global_batch_size", 8, 0), (1000, "block_start", "null", 0), (9000, "block_stop", "null", 16),
            (10000, "block_start", "null", 16), (14000, "block_stop", "null", 32)]), "step",
        {"global_batch_size": 8, "samples_per_s": 4.0, "step_s": 2.0}),
    Sample("mlperf-inference", "=====\nMLPerf Results Summary\n=====\nScenario : Server\nCompleted samples per second"
           "    : 81.68\nCompleted tokens per second: 24593.77\nResult is : INVALID\nMean First Token latency (ns)   : "
           "918456323\nMean Time to Output Token (ns)  : 144594078\n", "server",
           {"requests_per_s": 81.68, "output_tokens_per_s": 24593.77, "ttft_s": 0.918456323, "tpot_s": 0.144594078}),
    Sample("megatron", "  num_layers ...................................... 64\n  seq_length ............... 1024\n"
           "  world_size .................. 8\n" + "".join(
               f" [2025-12-19 10:49:15] iteration {number:8d}/ 1000 | consumed samples: 2048 | elapsed time per "
               f"iteration (ms): {ms} | throughput per GPU (TFLOP/s/GPU): 400.0 | learning rate: 1.0E-05 | "
               f"global batch "
               "size:  1024 | lm loss: 1.2E+01 | number of skipped iterations:   0 |\n"
               for number, ms in [(1, 90000.0), (2, 9000.0), (3, 5000.0), (4, 4000.0), (5, 4000.0)]), "step",
           {"step_s": 4.0, "global_batch_size": 1024, "devices": 8, "tokens_per_s": 262144.0, "flops_per_s": 4e14}),
    Sample("megatron", "Epoch 0: : 100%|██████████| 50/50 [23:22<00:00, reduced_train_loss=0.186, global_step=49.00, "
           "consumed_samples=51200.0, train_step_timing in s=24.00]\n", "step",
           {"step_s": 24.0, "global_batch_size": 1024}),
    Sample("deepspeed", "".join(
        f"[2023-04-18 01:46:59,171] [INFO] [timer.py:199:stop] epoch=0/micro_step={step}/global_step={step}, "
        f"RunningAvgSamplesPerSec=173.4, CurrSamplesPerSec={rate}, MemAllocated=3.96GB, MaxMemAllocated=16.0GB\n"
        for step, rate in [(1, 10.0), (10, 170.0), (20, 174.0)]), "step",
        {"samples_per_s": 172.0, "memory_bytes": 16 * 2**30}),
    Sample("deepspeed", "[Rank 0] time (ms) | fwd_microstep: 100.0 | bwd_microstep: 200.0 | bwd_inner_microstep: 150.0 "
           "| bwd_allreduce_microstep: 50.0 | step_microstep: 20.0\n", "step",
           {"forward_s": 0.1, "backward_s": 0.2, "communication_s": 0.05, "update_s": 0.02}),
    Sample("torchtitan", "\x1b[31mstep: 10\x1b[39m  \x1b[32mloss: 11.8\x1b[39m  memory: 48.00GiB(51.44%)  tps: 4,376  "
           "tflops: 253.41  mfu: 25.62%\n", "step",
           {"tokens_per_s_per_device": 4376, "mfu": 0.2562, "memory_bytes": 48 * 2**30}),
    Sample("composer", "  Train throughput/batches_per_sec: 0.5\n  Train throughput/samples_per_sec: 16.0\n  Train "
           "throughput/tokens_per_sec: 32768.0\n  Train throughput/device/tokens_per_sec: 4096.0\n", "step",
           {"devices": 8, "step_s": 2.0, "global_batch_size": 32, "tokens_per_s": 32768.0}),
    Sample("litgpt", "".join(
        f"Epoch 1 | iter {number} step 1 | loss train: 1.6, val: n/a | iter time: {ms} ms{mark}\n"
        for number, ms, mark in [(1, 820.3, ""), (2, 500.0, " (step)"), (3, 300.0, ""), (4, 500.0, " (step)")]), "step",
        {"step_s": 0.3, "samples": 1}),
    Sample("hf-trainer", '{"epoch": 3.0, "train_runtime": 100.0, "train_samples": 160, '
           '"train_samples_per_second": 16.0,'
           ' "train_steps_per_second": 4.0}', "step", {"step_s": 0.25, "samples_per_s": 16.0, "global_batch_size": 4}),
    Sample("hf-trainer-state", '{"global_step": 400, "train_batch_size": 2, "log_history": [{"loss": 1.0, '
           '"step": 100}, '
           '{"train_runtime": 100.0, "train_samples_per_second": 16.0, "train_steps_per_second": 4.0, "step": 400}]}',
           "step", {"steps": 400, "step_s": 0.25, "micro_batch": 2}),
    Sample("hf-trainer-lines", "{'train_runtime': 100.0, 'train_samples_per_second': 16.0, 'train_steps_per_second': "
           "4.0, 'epoch': 1.0}\n", "step", {"step_s": 0.25, "duration_s": 100.0}),
    Sample("nccl-tests", NCCL, "collective", {"operation": "all_reduce", "devices": 2, "nodes": 2, "bytes": 1024,
                                              "time_s": 20.35e-6, "bus_bytes_per_s": 5e7}),
    Sample("osu", "# OSU MPI-CUDA Bandwidth Test v7.5\n# Size      Bandwidth (MB/s)\n4194304             24000.00\n",
           "copy", {"bytes": 4194304, "bytes_per_s": 2.4e10}),
    Sample("osu", "# OSU MPI-CUDA Allreduce Latency Test v7.5\n# Size       Avg Latency(us)\n1024     12.50\n",
           "collective", {"operation": "allreduce", "bytes": 1024, "time_s": 12.5e-6}),
    Sample("perftest", "                    RDMA_Write BW Test\n #bytes     #iterations    BW peak[MB/sec]    BW "
           "average[MB/sec]   MsgRate[Mpps]\n 65536      5000             0.00               1000.00            0.19\n",
           "copy", {"bytes": 65536, "bytes_per_s": 1000 * 2**20, "operation": "rdma write"}),
    Sample("perftest", " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]\n"
           " 65536      5000             0.00               200.00            0.19\n", "copy", {"bytes_per_s": 2.5e10}),
    Sample("nvbandwidth-json", '{"nvbandwidth": {"Driver Version": "535", "testcases": [{"name": '
           '"device_to_device_memcpy_read_ce", "status": "Passed", "bandwidth_matrix": [["N/A", "276.07"]]}, {"name": '
           '"all_to_host_memcpy_sm", "status": "Waived"}]}}', "copy",
           {"path": "0 to 1", "bytes_per_s": 2.7607e11}),
    Sample("nvbandwidth", "nvbandwidth Version: v0.6\n\nDevice 0: NVIDIA GH200 480GB (00000009:01:00)\n\nRunning "
           "host_to_device_memcpy_ce.\nmemcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)\n           0       "
           "  1\n 0   "
           " 369.36    269.33\n\nSUM host_to_device_memcpy_ce 638.69\n", "copy", {"bytes_per_s": 3.6936e11}),
    Sample("stream", "STREAM Benchmark\nDevice 0: \"NVIDIA H100\"  132 SMs(9.0)  Memory: 2619MHz x 5120-bit = "
           "3352 GB/s "
           "PEAK   ECC is ON\nSTREAM_COPY_double_gpu_0_buffer_4294967296_block_128    3000.00 89.50\n", "copy",
           {"bytes_per_s": 3e12, "of_peak": 0.895, "operation": "copy"}),
    Sample("gpu-copy", "cpu_to_gpu0_by_dma_under_numa0 26.2387\n", "copy",
           {"bytes_per_s": 2.62387e10, "path": "cpu to gpu0"}),
    Sample("deepep", "[config] num_tokens=4096, hidden=7168, num_topk=8\n[tuning] Best dispatch (FP8): SMs "
           "24, NVL chunk "
           "40, RDMA chunk 16: 229 + 1391 us, 43.36 GB/s (RDMA), 141.61 GB/s (NVL)\n", "collective",
           {"operation": "dispatch", "time_s": 1.62e-3, "bytes_per_s": 4.336e10, "bus_bytes_per_s": 1.4161e11}),
    Sample("nvidia-smi", "timestamp, index, power.draw [W], utilization.gpu [%]\n"
           "2024/10/30 18:42:33.000, 0, 100.00 W, 0 \x25\n2024/10/30 18:42:34.000, 0, 300.00 W, 90 \x25\n", "power",
           {"power_w": 200.0, "power_busy_w": 300.0, "duration_s": 1.0, "device": "0"}),
    Sample("nvidia-smi", "2024/10/30 18:42:33.189, 22.89 W\n2024/10/30 18:42:33.239, 23.11 W\n", "power",
           {"power_w": 23.0, "samples": 2}),
    Sample("dcgmi", "#Entity   POWER    TOTEC     SMCLK\nID        W        mJ\nGPU 0     100.0    1000000   1410\n"
           "GPU 0     300.0    1500000   1980\n", "power", {"power_w": 200.0, "energy_j": 500, "clock_hz": 1.98e9}),
    Sample("rocm-smi", '{"card0": {"Current Socket Graphics Package Power (W)": "159.0", "GPU use (%)": "0"}}', "power",
           {"power_w": 159.0, "device": "card0"}),
    Sample("rocm-smi-csv", "device,Average Graphics Package Power (W)\ncard0,351.0\ncard0,349.0\n", "power",
           {"power_w": 350.0, "samples": 2}),
    Sample("amd-smi", '[{"gpu": 0, "power": {"socket_power": {"value": 150, "unit": "W"}}}]', "power",
           {"power_w": 150.0, "device": "0"}),
    Sample("tegrastats", "RAM 896/7859MB (lfb 26x4MB) CPU [4%@2035] EMC_FREQ 0% GR3D_FREQ 0% VDD_SYS_GPU "
           "153/153 VDD_IN "
           "2000mW/1840mW\n", "power", {"device": "VDD_IN", "power_w": 2.0}),
    Sample("powermetrics", "*** Sampled system activity (Thu Mar  5 12:00:00 2026 +0800) (503.12ms elapsed) ***\nCPU "
           "Power: 1000 mW\nGPU Power: 5000 mW\nGPU Power: 5000 mW\n", "power", {"device": "CPU", "power_w": 1.0}),
    Sample("zeus", "start_time,window_name,elapsed_time,gpu0_energy\n1.0,step,2.0,500.0\n", "power",
           {"power_w": 250.0, "energy_j": 500, "device": "gpu0"}),
    Sample("zeus-trace", "dataset,network,batch_size,optimizer,power_limit,time_per_epoch,average_power\ncifar100,"
           "shufflenetv2,1024,adam,100,11.0,90.0\n", "power", {"power_limit_w": 100, "power_w": 90.0, "time_s": 11.0}),
    Sample("codecarbon",
           "timestamp,project_name,duration,cpu_energy,gpu_energy,gpu_model\n2024-01-01T00:00:00,me,3600.0,"
           "0.05,0.25,1 x NVIDIA A100\n", "power", {"power_w": 250.0, "energy_j": 900000, "duration_s": 3600}),
    Sample("energy-table", "metric,value\nTotal output tokens,1000\nGPU energy (kWh),0.001\n", "power",
           {"energy_j": 3600, "energy_per_token_j": 3.6}),
    Sample("comfyui", "Device: cuda:0 NVIDIA GeForce RTX 4090 : cudaMallocAsync\n[INFO] Requested to load "
           "SDXL\r\n100%|███| "
           "20/20 [00:04<00:00,  4.00it/s]\nPrompt executed in 6.50 seconds\n", "picture",
           {"steps": 20, "step_s": 0.25, "time_s": 6.5, "network": "SDXL"}),
    Sample("demo-diffusion", "|     Module      |   Latency    |\n|      CLIP       |      2.65 ms |\n|    "
           "UNet x 50    |  "
           " 1900.00 ms |\n|     VAE-Dec     |     46.68 ms |\n|    Pipeline     |   1972.95 ms |\nThroughput: 0.51 "
           "image/s\n", "picture",
           {"steps": 50, "step_s": 0.038, "encoder_s": 0.00265, "decoder_s": 0.04668, "time_s": 1.97295}),
    Sample("diffusers",
           "scenario,model_cls,num_params_B,flops_G,time_plain_s,mem_plain_GB,time_compile_s,mem_compile_GB\n"
           "flux-bf16,FluxTransformer2DModel,11.9,59500,0.5,30.0,0.4,30.0\n", "step",
           {"step_s": 0.5, "variant": "plain", "flops": 5.95e13}),
    Sample("timm",
           "model,infer_img_size,infer_samples_per_sec,infer_step_time,infer_batch_size,param_count,infer_gmacs\n"
           "resnet50,224,1000.0,256.0,256,25.56,4.11\n", "step",
           {"network": "resnet50", "batch_size": 256, "step_s": 0.256, "samples_per_s": 1000.0}),
    Sample("timm-json", '[{"model": "resnet50", "train_samples_per_sec": 400.0, "train_step_time": 160.0, '
           '"train_batch_size": 64}]', "step", {"phase": "training", "step_s": 0.16, "batch_size": 64}),
    Sample("trtexec", "[I] Selected Device: NVIDIA A100\n[I] Throughput: 812.3 qps\n[I] Latency: min = 1.2 "
           "ms, max = 1.9 "
           "ms, mean = 1.3 ms, median = 1.3 ms, percentile(90%) = 1.4 ms\n[I] GPU Compute Time: min = 1.1 ms, "
           "max = 1.8 "
           "ms, mean = 1.23 ms, median = 1.22 "
           "ms\n", "step", {"step_s": 0.00122, "e2e_s": 0.0013, "steps_per_s": 812.3}),
    Sample("cutlass",
           "Problem,Provider,OperationKind,Operation,Disposition,Status,m,n,k,A,Bytes,Flops,Runtime,GB/s,GFLOPs"
           "\n1,CUTLASS,gemm,sgemm,passed,success,1024,1024,1024,f32:column,12582912,2147483648,0.2,58.6,10737.4\n",
           "kernel", {"time_s": 0.0002, "shape": "1024x1024x1024", "bytes_per_s": 6.291456e10}),
    Sample("hipblaslt",
           "[0]transA,transB,grouped_gemm,batch_count,m,n,k,d_type,hipblaslt-Gflops,us\nN,N,0,1,896,896,896,"
           "fp16_r, 58624.5, 24.54\n", "kernel", {"time_s": 24.54e-6, "flops_per_s": 5.86245e13, "precision": "fp16"}),
    Sample("nvbench", '{"meta": {"version": {"nvbench": {"string": "0.1.0"}}}, "devices": [{"id": 0, "name": '
           '"GV100"}], '
           '"benchmarks": [{"name": "simple", "states": [{"device": 0, "summaries": [{"tag": "nv/cold/time/gpu/mean", '
           '"data": [{"value": "0.001"}]}, {"tag": "nv/batch/time/gpu/mean", "data": [{"value": "0.0009"}]}]}]}]}',
           "kernel", {"cold_s": 0.001, "hot_s": 0.0009, "gpu": "GV100"}),
    Sample("ggml-operators", "Backend 1/2: ROCm0\n  Device description: AMD Radeon RX 9070 XT\n"
           "  Device memory: 16304 MB (16238 MB free)\n\n"
           "  MUL_MAT(type_a=bf16,type_b=f32,m=4096,n=8,k=14336,bs=[1,1],nr=[1,1],per=[0,1,2,3],k_v=0,o=1):"
           "                 3317 runs -   303.79 us/run - 939.52 MFLOP/run - \x1b[1;34m  3.09 TFLOPS\x1b[0m\n"
           "  ADD(type=f32,ne=[4096,1,1,1],nr=[1,512,1,1]):                 2732 runs -   413.23 us/run - "
           "   24576 kB/run -   28.37 GB/s\n  Backend ROCm0: OK\n", "kernel",
           {"operation": "MUL_MAT", "gpu": "AMD Radeon RX 9070 XT", "precision": "bf16", "shape": "4096x8x14336",
            "time_s": 303.79e-6, "flops": 939.52e6}),
    Sample("flash-attention", "### causal=True, headdim=64, batch_size=4, seqlen=512 ###\nFlash2 fwd: 123.45 TFLOPs/s, "
           "bwd: 100.00 TFLOPs/s, fwd + bwd: 105.00 TFLOPs/s\n", "kernel",
           {"label": "Flash2", "phase": "forward", "flops_per_s": 1.2345e14}),
    Sample("mllog", "".join(
        f':::MLLOG {{"time_ms": 1, "key": "tracked_stats", "value": {{"throughput": {rate}}}, "metadata": {{}}}}\n'
        for rate in (1.0, 2.0, 2.0)), "step", {"samples_per_s": 2.0, "samples": 3}),
    Sample("deepspeed", "".join(
        f"|E2E latency={whole}s |Gather latency=0.50s (1.00%) |Generate time=2.00s (50.00%) |Training "
        "time=1.00s (9.00%) "
        f"|Others=0.21 (5.00%)|CurSamplesPerSec={rate} "
        "|AvgSamplesPerSec=9.0\n" for whole, rate in ((9.0, 1.0), (4.0, 8.0))),
        "step", {"phase": "rlhf", "step_s": 4.0, "samples_per_s": 8.0, "update_s": 1.0}),
    Sample("codecarbon", " timestamp , project_name , duration , emissions , energy_consumed "
           "\n2024-01-01T00:00:00 , me , "
           "3600.0 , 0.1 , 0.5 \n", "power", {"energy_j": 1800000, "power_w": 500.0}),
    Sample("nccl-tests", "#   Rank  0 Pid 1 on localhost device  0 [0x00] A100\n"
           "#       size         count    type    root     time   algbw   busbw  error     time   algbw   busbw "
           " error\n"
           "     1048576        262144   float       0    76.02   13.79   13.79    N/A    78.43   13.37   13.37 "
           "   N/A\n",
           "collective", {"bytes": 1048576, "time_s": 76.02e-6, "bus_bytes_per_s": 13.79e9}),
    Sample("cuda-bandwidth", "[CUDA Bandwidth Test] - Starting...\n Device 0: Tesla "
           "V100-PCIE-32GB\nbandwidthTest-H2D-Pinned, "
           "Bandwidth = 12.4 GB/s, Time = 0.00549 s, Size = 68000000 bytes, NumDevsUsed = 1\n", "copy",
           {"path": "host to device", "bytes": 68000000, "bytes_per_s": 12.4e9}),
    Sample("cuda-bandwidth", " Host to Device Bandwidth, 1 Device(s)\n PINNED Memory Transfers\n   Transfer "
           "Size (Bytes)\t"
           "Bandwidth(MB/s)\n   33554432\t\t\t6235.5\n", "copy", {"bytes": 33554432, "bytes_per_s": 6.2355e9}),
    Sample("hip-bandwidth", "Device:Device 738c Mem=32.0GB #CUs=120 Freq=1502Mhz  MallocMode=pinned\n"
           "   H2D_Bandwidth_pinned    524288kB       GB/sec        24.7523 24.6708 0.1586  24.3154 24.7880\n", "copy",
           {"bytes": 524288 * 1024, "bytes_per_s": 24.7523e9}),
    Sample("nvidia-smi-dmon", "# gpu   pwr gtemp mtemp    sm   mem  mclk  pclk\n# Idx     W     C     C     %   "
           "  %   MHz   MHz\n"
           "    0   100    45     -     0     0  2619  1980\n    0   300    45     -    90     0  2619  1980\n",
           "power", {"power_w": 200.0, "power_busy_w": 300.0, "clock_hz": 1.98e9, "device": "0"}),
    Sample("rocm-smi-text", "GPU[0]\t\t: Average Graphics Package Power (W): 35.0\nGPU[1]\t\t: Average Graphics "
           "Package "
           "Power (W): 36.0\n", "power", {"device": "card0", "power_w": 35.0}),
    Sample("lm-studio-lines", "51.43 tok/sec • 530 tokens • 0.11s to first token\n", "decode",
           {"generated": 530, "tokens_per_s": 51.43, "ttft_s": 0.11}),
    Sample("deepspeed-profiler", "---------- DeepSpeed Flops Profiler ----------\nfwd latency:   191.45 ms\nbwd "
           "latency: "
           "  400.00 ms\niter latency:   0.65 s\nsamples/second:   12.3\n", "step",
           {"forward_s": 0.19145, "step_s": 0.65, "samples_per_s": 12.3}),
    Sample("hipblaslt", "transA,transB,M,N,K,alpha,lda,ldb,beta,ldc,rocblas-Gflops,us\nN,N,1024,512,256,1,1024,"
           "256,0,1024,"
           "100000.0,26.8\n", "kernel", {"shape": "1024x512x256", "time_s": 26.8e-6, "flops_per_s": 1e14}),
    Sample("megatron", "0: Training epoch 0, iteration 28/99 | lr: 5.6e-06 | global_batch_size: 32 | global_step: 28 | "
           "reduced_train_loss: 2.778 | train_step_timing in s: 0.189 | consumed_samples: 928\n", "step",
           {"step_s": 0.189, "global_batch_size": 32, "samples_per_s": 32 / 0.189}),
    Sample("trtexec", "Throughput: 353.015 qps\n\nLatency: min = 2.8 ms, max = 3.0 ms, mean = 2.83 ms, median = "
           "2.82 ms\n\n"
           "GPU Compute Time: min = 2.8 ms, max = 3.0 ms, mean = 2.81 ms, median = 2.81 ms\nThroughput: 106.0 qps\n",
           "step", {"steps_per_s": 353.015, "step_s": 0.00281, "e2e_s": 0.00282}),
    Sample("trtllm-bench", "Request Throughput (req/sec):                     141.2968\nTotal Output Throughput "
           "(tokens/sec):"
           "             18085.9891\nTotal Latency (ms):                               21231.9049\nPer User Output "
           "Throughput [w/ ctx] (tps/user):   8.2584\n", "server",
           {"requests_per_s": 141.2968, "output_tokens_per_s": 18085.9891, "tokens_per_s_per_user": 8.2584}),
    Sample("triton", "M,N,K,cuBLAS,Triton\n256.000000,256.000000,256.000000,5.461333,5.269226\n", "kernel",
           {"shape": "256x256x256", "label": "cuBLAS", "flops_per_s": 5.461333e12}),
    # With what tools print before the first step.
    Sample("torchtitan", TITAN_2025 + STEPS, "step", {
        "devices": 64, "global_batch_size": 64, "sequence_length": 8192, "tokens_per_s_per_device": 5000}),
    Sample("torchtitan", TITAN_2026 + STEPS, "step", {"devices": 64, "global_batch_size": 128}),
    Sample("torchtitan", TITAN_2024 + STEPS, "step", {"devices": 8, "global_batch_size": 8}),
    Sample("deepspeed", DEEPSPEED, "step", {"devices": 8, "global_batch_size": 64, "samples_per_s": 171.9}),
    Sample("hf-trainer-lines", TRAINER, "step", {"step_s": 2.0, "global_batch_size": 640}),
    Sample("litgpt", LITGPT, "step", {"step_s": 0.1}),
    Sample("composer", COMPOSER, "step", {"step_s": 2.0, "global_batch_size": 256}),
]  # fmt: skip
"""One or more files of each format; deepbench's spreadsheets are made in `test_deepbench.py` of result_files."""

CONFIGURATIONS = {
    "inference-perf-config": "api:\n  type: completion\nload:\n  type: constant\nserver:\n  model_name: m\n  "
    "type: vllm\n",
    "llama-bench-campaign": "backend: rocm\nllama_build: 10217 (ddd4ec142)\ndepths: 0,8192\n",
}
"""Files beside result files, which hold no measurement."""

"""Options of servers of language models: parallelism, requests and engine."""

from __future__ import annotations

from ..questions.values import INTEGER, Names
from .options import SharedOption

tensor = SharedOption(
    "--tensor",
    type=INTEGER,
    metavar="N",
    help="Devices of a stage, which divide all matrices among themselves. [default: 1]",
)
expert_parallel = SharedOption(
    "--expert-parallel",
    type=INTEGER,
    metavar="E",
    help="Groups of the --tensor devices that divide the experts of a mixture among themselves. [default: 1]",
)
attention_data_parallel = SharedOption(
    "--attention-data-parallel",
    type=INTEGER,
    metavar="D",
    help="Groups of the --tensor devices that compute attention for sequences of their own. [default: 1]",
)
expert_load = SharedOption(
    "--expert-load",
    metavar="LOAD",
    help="Tokens per expert of a mixture: uniform, or power-law:ALPHA such as power-law:1.2, with a few busy experts. "
    "[default: uniform]",
)
pipeline = SharedOption(
    "--pipeline",
    type=INTEGER,
    metavar="N",
    help="Pipeline stages of a replica, which has --tensor times --pipeline devices. [default: 1]",
)
replicas = SharedOption(
    "--replicas", type=INTEGER, metavar="N", help="Replicas, which take requests in turn. [default: 1]"
)
kv_cache = SharedOption(
    "--kv-cache",
    type=Names("format of the KV cache", ".formats:FORMATS"),
    metavar="FORMAT",
    help="Format of the KV cache, such as fp8. [default: the precision, but at least 16 bits]",
)
input_tokens = SharedOption(
    "--input-tokens",
    metavar="TOKENS",
    help="Tokens of a prompt: 1024, mean:std as 1024:256, or a data set: azure-conversation, azure-code. "
    "[default: 1024]",
)
output_tokens = SharedOption(
    "--output-tokens",
    metavar="TOKENS",
    help="Tokens of an answer: 256, mean:std as 256:64, or a data set. [default: 256]",
)
rate = SharedOption(
    "--rate", metavar="RATE", help="Requests per second of an open loop; inf sends all requests at once."
)
concurrency = SharedOption(
    "--concurrency",
    type=INTEGER,
    metavar="USERS",
    help="Users of a closed loop, each of whom sends a request when the previous one is answered.",
)
num_requests = SharedOption(
    "--num-requests", type=INTEGER, metavar="N", help="Number of requests. [default: 1000 per replica, or 10 per user]"
)
seed = SharedOption("--seed", type=int, help="Seed of arrivals and lengths. [default: 0]")
policy = SharedOption(
    "--engine",
    "policy",
    type=Names("serving engine", ".serving.engines:ENGINES"),
    help="Engine, with its defaults of batches and memory. [default: vllm]",
)

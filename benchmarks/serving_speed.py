"""Time to simulate an hour of traffic, compared with the hour itself."""

from __future__ import annotations

import time

from paleo_lite.api.question import Question, resolve_question
from paleo_lite.engines.records import find_server
from paleo_lite.serving.deployment import Deployment
from paleo_lite.serving.lengths import Lengths
from paleo_lite.serving.placement import ModelOnDevice
from paleo_lite.serving.prepared import prepare
from paleo_lite.serving.requests import generate_traffic

from .turns import Turns

RATE_PER_S, HOUR_S = 20.0, 3600.0
WANTED_S = 5.0


def measure(repeats: int) -> list[Turns]:
    """Time the simulation of an hour at 20 requests per second on one replica, including its iteration-time table."""
    workload, machine, model = resolve_question(
        Question("llama-3-8b", "h100-sxm", precision="bf16", phase="decode", execution="engine")
    )
    deployment = Deployment(ModelOnDevice(workload, machine, model, None, "bf16"), find_server("vllm", machine.device))
    traffic = generate_traffic(
        Lengths(1024, 256), Lengths(256, 64), count=int(RATE_PER_S * HOUR_S), rate_per_s=RATE_PER_S
    )
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        prepare(deployment, traffic).run(traffic)
        seconds.append(time.perf_counter() - start)
    contestants = {"the simulation": seconds, "the hour": [HOUR_S] * repeats}
    what = f"an hour of traffic, {len(traffic):,} requests"
    return [Turns(what, contestants, wanted={"the hour": HOUR_S / WANTED_S})]

"""Conservation, limits and reproducibility of the simulation.

Tests: serving/deployment.py, serving/prepared.py.
"""

from __future__ import annotations

import msgspec
import numpy as np
import pytest

from paleo_lite.distributed.links import device_link
from paleo_lite.engines.division import Division
from paleo_lite.engines.records import SERVERS, find_server
from paleo_lite.engines.records.record import Server
from paleo_lite.errors import BadValue, DoesNotFit
from paleo_lite.serving.deployment import Deployment
from paleo_lite.serving.iteration_times import ScheduledTokens
from paleo_lite.serving.lengths import Lengths
from paleo_lite.serving.options import SimulationOptions, Speculation
from paleo_lite.serving.outcomes import Outcome
from paleo_lite.serving.placement import tensor_group
from paleo_lite.serving.pools import MOST_KEPT, simulate
from paleo_lite.serving.prepared import PreparedDeployment, prepare
from paleo_lite.serving.requests import Traffic, generate_traffic
from paleo_lite.serving.simulator import Replica


def run(deployment: Deployment, traffic: Traffic) -> tuple[PreparedDeployment, Outcome]:
    prepared = prepare(deployment, traffic)
    return prepared, prepared.run(traffic)[0]


@pytest.mark.spread(12)
@pytest.mark.parametrize("engine", list(SERVERS))
@pytest.mark.parametrize("rate", [3.0, 40.0, float("inf")])
def test_tokens_and_time_are_conserved(deployment: Deployment, engine: str, rate: float) -> None:
    machine = deployment.on_device.machine
    deployment = msgspec.structs.replace(deployment, engine=find_server(engine, machine.device))
    traffic = generate_traffic(Lengths(800, 300), Lengths(200, 80), count=600, rate_per_s=rate, seed=5)
    prepared, outcome = run(deployment, traffic)
    assert (outcome.output_tokens == traffic.output_tokens).all()
    assert np.isfinite(outcome.finish_s).all()
    assert (outcome.arrival_s <= outcome.admitted_s).all()
    assert (outcome.admitted_s < outcome.first_token_s).all()
    assert (outcome.first_token_s <= outcome.finish_s).all()
    assert outcome.peak_blocks <= outcome.blocks == prepared.room.blocks
    if not outcome.preemptions:
        assert outcome.computed_tokens == traffic.input_tokens.sum()
    else:
        assert outcome.computed_tokens > traffic.input_tokens.sum()
    assert outcome.busy_s <= outcome.finish_s.max() + 1e-9


@pytest.mark.spread(3)
@pytest.mark.parametrize("engine", list(SERVERS))
def test_littles_law(deployment: Deployment, engine: str) -> None:
    """The mean number of decoding sequences is their rate times their time of decoding (Little 1961).

    Sequences that pause while an engine computes prompts alone are decoding, too.
    """
    engine_record = find_server(engine, deployment.on_device.machine.device, overhead_s=0.0)
    deployment = msgspec.structs.replace(deployment, engine=engine_record)
    traffic = generate_traffic(Lengths(500), Lengths(150), count=800, rate_per_s=10.0, seed=2)
    _, outcome = run(deployment, traffic)
    in_decoding_s = (outcome.finish_s - outcome.first_token_s).sum()
    assert outcome.sequence_s == pytest.approx(in_decoding_s, rel=1e-6)


def test_a_growing_cache_counts_with_its_mean_length(deployment: Deployment) -> None:
    """16 sequences at once grow from 160 to 1,760 tokens, and hold half a block more than these on average."""
    traffic = generate_traffic(Lengths(160), Lengths(1600), count=16, rate_per_s=float("inf"))
    prepared, outcome = run(deployment, traffic)
    tokens = 16 * ((160 + 1760) / 2 + prepared.room.block_tokens / 2)
    assert outcome.cached_block_s * prepared.room.block_tokens / outcome.busy_s == pytest.approx(tokens, rel=0.02)


def test_a_longer_closed_loop_repeats_a_shorter_one(deployment: Deployment) -> None:
    """128 users with constant lengths wait as long in 100 requests each as in ten, and are not spread ever further."""
    waits = []
    for requests in (10, 100):
        traffic = generate_traffic(Lengths(1024), Lengths(256), count=128 * requests, concurrency=128)
        _, outcome = run(deployment, traffic)
        waits.append(float((outcome.first_token_s - outcome.arrival_s)[traffic.counted].mean()))
    assert waits[1] == pytest.approx(waits[0], rel=0.08)


@pytest.mark.thorough
def test_estimates_do_not_depend_on_the_length_of_a_closed_loop(deployment: Deployment) -> None:
    """100 users whose lengths are drawn wait as long in 200 requests each as in ten, within 2%."""
    waits, seconds = [], []
    for requests in (1_000, 20_000):
        traffic = generate_traffic(Lengths(900, 60), Lengths(225, 15), count=requests, concurrency=100)
        _, outcome = run(deployment, traffic)
        waits.append(float((outcome.first_token_s - outcome.arrival_s).mean()))
        seconds.append(float(outcome.finish_s.max()) / requests)
    assert waits[1] == pytest.approx(waits[0], rel=0.02)
    assert seconds[1] == pytest.approx(seconds[0], rel=0.01)


def test_users_begin_again_together_after_the_requests_of_a_benchmark(deployment: Deployment) -> None:
    """30 users send ten requests each; then all wait for the last answer, alone and in a fleet of two replicas."""
    traffic = generate_traffic(Lengths(100, 20), Lengths(20, 5), count=650, concurrency=30)
    fleet = msgspec.structs.replace(deployment, replicas=2, router="least-loaded")
    for each in (deployment, fleet):
        outcomes = prepare(each, traffic).run(traffic)
        sent, done = (
            np.sort(np.concatenate([getattr(outcome, field) for outcome in outcomes]))
            for field in ("arrival_s", "finish_s")
        )
        for begun in (300, 600):
            assert (sent[begun : begun + 30] == done[begun - 1]).all()
        assert sent[299] < done[299] and len(sent) == 650


def test_users_with_equal_lengths_keep_step_if_prompts_go_first(deployment: Deployment) -> None:
    """16 prompts of 1,024 tokens are two chunks of 8,192: half of the users wait for one of them, half for both.

    Users who drift apart wait for few prompts of others.
    """
    machine = deployment.on_device.machine
    engine = find_server("sglang", machine.device, chunked_prefill=8192, overhead_s=0.0)
    deployment = msgspec.structs.replace(deployment, engine=engine)
    waits = []
    for drift_apart in (False, True):
        traffic = generate_traffic(
            Lengths(1024), Lengths(200), count=160, concurrency=16, drift_apart=drift_apart, seed=1
        )
        _, outcome = run(deployment, traffic)
        waits.append(float((outcome.first_token_s - outcome.arrival_s)[16:].mean()))
    _, chunk = run(deployment, generate_traffic(Lengths(1024), Lengths(1), count=8, rate_per_s=float("inf")))
    chunk_s = chunk.busy_s
    assert waits[0] == pytest.approx(1.5 * chunk_s, rel=0.25) and waits[0] > 2 * waits[1]


def test_a_request_waits_until_the_scheduler_looks_for_it(deployment: Deployment) -> None:
    """Every 30 decoding iterations: half of the 29 between looks on average, and none where nothing is decoded."""
    machine = deployment.on_device.machine
    traffic = generate_traffic(Lengths(64, 20), Lengths(500, 100), count=400, rate_per_s=2.0, seed=3)
    first_s, outcomes = [], []
    for interval in (1, 30):
        engine = find_server("sglang", machine.device, receive_interval=interval)
        _, outcome = run(msgspec.structs.replace(deployment, engine=engine), traffic)
        first_s.append(float((outcome.first_token_s - outcome.arrival_s).mean()))
        outcomes.append(outcome)
    iteration_s = outcomes[1].busy_s / outcomes[1].iterations
    busy = outcomes[1].busy_s / outcomes[1].finish_s.max()
    assert first_s[1] - first_s[0] == pytest.approx(29 / 2 * iteration_s * busy, rel=0.25)


@pytest.mark.parametrize(
    ("prompts", "iterations"),
    [
        (1, 20),  # 1,024 tokens are less than 0.5 of 4,096, so that the prompt waits as long as it may
        (2, 0),  # two of them are as many
    ],
)
def test_prompts_wait_for_others_while_sequences_decode(deployment: Deployment, prompts: int, iterations: int) -> None:
    """TensorRT-LLM's ``batch_wait_timeout_iters`` and ``batch_wait_max_tokens_ratio`` (`_waiting_requests`)."""
    tokens = np.array([64, *[1024] * prompts])
    traffic = generate_traffic(Lengths(1), Lengths(2000), count=1 + prompts, rate_per_s=1.0, arrivals="fixed")
    traffic = msgspec.structs.replace(traffic, arrival_s=np.array([0.0, *[1.0] * prompts]), input_tokens=tokens)
    waits_s = []
    for most in (0, 20):
        engine = without_delays(find_server("tensorrt-llm", batch_wait_iterations=most, batch_wait_share=0.5))
        engine = msgspec.structs.replace(engine, max_batched_tokens=4096, overhead_s=0.0)
        prepared, outcome = run(msgspec.structs.replace(deployment, engine=engine), traffic)
        waits_s.append(float(outcome.first_token_s[1] - outcome.arrival_s[1]))
    one_s = prepared.tables.iteration_s(ScheduledTokens(1, 64 + 100))
    assert waits_s[1] - waits_s[0] == pytest.approx(iterations * one_s, rel=0.03, abs=1e-9)


def test_nothing_waits_for_others_where_nothing_decodes(deployment: Deployment) -> None:
    traffic = generate_traffic(Lengths(100), Lengths(10), count=3, rate_per_s=0.1, arrivals="fixed")
    finish_s = []
    for most in (0, 1000):
        engine = find_server("tensorrt-llm", batch_wait_iterations=most, batch_wait_share=1.0)
        _, outcome = run(msgspec.structs.replace(deployment, engine=engine), traffic)
        finish_s.append(outcome.finish_s.tolist())
    assert finish_s[0] == finish_s[1]


def test_a_full_cache_preempts_and_answers_everything(deployment: Deployment) -> None:
    traffic = generate_traffic(Lengths(100), Lengths(400), count=60, rate_per_s=float("inf"))
    prepared = prepare(deployment, traffic)
    small = msgspec.structs.replace(prepared.room, blocks=200)  # room for 6 of the 60 requests at their full length
    vllm = simulate(traffic, prepared.tables, small, prepared.engine)
    assert vllm.preemptions > 0 and vllm.peak_blocks <= 200 and np.isfinite(vllm.finish_s).all()
    # TensorRT-LLM's default policy, guaranteed no evict, reserves the cache of the whole answer.
    careful = msgspec.structs.replace(prepared.engine, reserved_output=1.0)
    outcome = simulate(traffic, prepared.tables, small, careful)
    assert outcome.preemptions == 0 and outcome.computed_tokens == traffic.input_tokens.sum()
    # 500 tokens are 32 blocks of 16: 6 requests at a time, 10 rounds of 400 tokens.
    assert outcome.iterations == pytest.approx(10 * 400, rel=0.02)


def test_a_request_larger_than_the_cache(deployment: Deployment) -> None:
    traffic = generate_traffic(Lengths(100), Lengths(400), count=2, rate_per_s=1.0)
    prepared = prepare(deployment, traffic)
    with pytest.raises(DoesNotFit, match="400 output tokens"):
        simulate(traffic, prepared.tables, msgspec.structs.replace(prepared.room, blocks=10), prepared.engine)


def without_delays(engine: Server) -> Server:
    """Return an engine that knows every request at once."""
    return msgspec.structs.replace(engine, request_overhead_s=0.0, schedules_ahead=False)


def test_a_low_rate_is_the_static_batch_of_one(deployment: Deployment) -> None:
    deployment = msgspec.structs.replace(deployment, engine=without_delays(deployment.engine))
    traffic = generate_traffic(Lengths(1000), Lengths(100), count=5, rate_per_s=0.01, arrivals="fixed")
    prepared, outcome = run(deployment, traffic)
    tables = prepared.tables
    prompt_s = tables.decode_s(0, 0, 1000, 1) + tables.chunk_s(0, 1000)
    assert outcome.first_token_s - outcome.arrival_s == pytest.approx(np.full(5, prompt_s))
    decode_s = sum(tables.decode_s(1, 1000 + step) for step in range(99))
    assert outcome.finish_s - outcome.first_token_s == pytest.approx(np.full(5, decode_s), rel=1e-3)


def test_a_large_batch_is_the_static_decode(deployment: Deployment) -> None:
    engine = msgspec.structs.replace(deployment.engine, max_batched_tokens=65536, chunked_prefill=65536)
    deployment = msgspec.structs.replace(deployment, engine=without_delays(engine))
    traffic = generate_traffic(Lengths(16), Lengths(500), count=256, rate_per_s=float("inf"))
    prepared, outcome = run(deployment, traffic)
    decode_s = sum(prepared.tables.decode_s(256, 256 * (16 + step)) for step in range(499))
    duration_s = outcome.finish_s.max() - outcome.first_token_s.min()
    assert duration_s == pytest.approx(decode_s, rel=2e-3)


def test_requests_wait_for_the_kernels_of_the_network_in_closed_loops_alone(deployment: Deployment) -> None:
    plain = without_delays(deployment.engine)
    slow = msgspec.structs.replace(plain, request_kernels_s=0.02)
    closed = generate_traffic(Lengths(100), Lengths(50), count=20, concurrency=1)
    opened = generate_traffic(Lengths(100), Lengths(50), count=20, rate_per_s=0.1, arrivals="fixed")
    for traffic, added_s in ((closed, 0.02), (opened, 0.0)):
        first_s = []
        for engine in (plain, slow):
            _, outcome = run(msgspec.structs.replace(deployment, engine=engine), traffic)
            first_s.append(float((outcome.first_token_s - outcome.arrival_s).mean()))
        assert first_s[1] - first_s[0] == pytest.approx(added_s, abs=1e-6)


@pytest.mark.parametrize("prompt", [100, 4000])
def test_a_request_waits_until_the_scheduler_knows_it(deployment: Deployment, prompt: int) -> None:
    """It arrives during the tenth of the other's iterations, and is admitted after that one or the next.

    How long the other's prompt took makes no difference then.
    """
    plain = without_delays(deployment.engine)
    traffic = Traffic(np.array([0.0, 0.0]), np.array([prompt, 100]), np.array([400, 10]))
    prepared = prepare(deployment, traffic)
    tables, room = prepared.tables, prepared.room
    first = simulate(
        Traffic(traffic.arrival_s[:1], traffic.input_tokens[:1], traffic.output_tokens[:1]), tables, room, plain
    )
    iteration_s = float(first.finish_s[0] - first.first_token_s[0]) / 399
    arrival_s = float(first.first_token_s[0]) + 9.5 * iteration_s
    traffic = Traffic(np.array([0.0, arrival_s]), traffic.input_tokens, traffic.output_tokens)

    def waited(**changes: float | bool) -> float:
        outcome = simulate(traffic, tables, room, msgspec.structs.replace(plain, **changes))
        return float(outcome.admitted_s[1] - outcome.arrival_s[1]) / iteration_s

    assert waited() == pytest.approx(0.5, abs=0.01)
    assert waited(schedules_ahead=True) == pytest.approx(1.5, abs=0.01)


def test_users_of_a_closed_loop_do_not_stay_in_step(deployment: Deployment) -> None:
    """All prompts of 8 users fit into an iteration; after some rounds fewer than all are computed together."""
    traffic = Traffic(np.zeros(400), np.full(400, 900), np.full(400, 100), concurrency=8)
    prepared = prepare(deployment, traffic)
    engine = prepared.engine
    assert engine.max_batched_tokens >= 8 * 900
    in_step = simulate(traffic, prepared.tables, prepared.room, without_delays(engine))
    apart = simulate(traffic, prepared.tables, prepared.room, engine)
    assert len(np.unique(in_step.first_token_s)) == 400 // 8
    assert len(np.unique(apart.first_token_s)) > 2 * 400 // 8


def test_the_same_seed_gives_the_same_answer(deployment: Deployment) -> None:
    outcomes = []
    for _ in range(2):
        traffic = generate_traffic(Lengths(300, 100), Lengths(100, 50), count=200, rate_per_s=20.0, seed=4)
        outcomes.append(run(deployment, traffic)[1])
    assert (outcomes[0].finish_s == outcomes[1].finish_s).all()


def test_a_closed_loop_never_has_more_requests_than_users(deployment: Deployment) -> None:
    traffic = generate_traffic(Lengths(200, 50), Lengths(50, 20), count=300, concurrency=12, seed=1)
    _, outcome = run(deployment, traffic)
    events = sorted(
        [(time_s, 1) for time_s in outcome.arrival_s] + [(time_s, -1) for time_s in outcome.finish_s],
    )
    active = np.cumsum([change for _, change in events])
    assert active.max() == 12


def test_a_prefix_cache_spares_computing_and_blocks(deployment: Deployment) -> None:
    traffic = generate_traffic(Lengths(1000), Lengths(50), count=100, rate_per_s=5.0)
    prepared = prepare(deployment, traffic)
    plain = simulate(traffic, prepared.tables, prepared.room, prepared.engine)
    cached = simulate(traffic, prepared.tables, prepared.room, prepared.engine, SimulationOptions(prefix_hit_rate=0.5))
    assert cached.computed_tokens == plain.computed_tokens / 2
    assert cached.peak_blocks < plain.peak_blocks
    assert (cached.first_token_s - cached.arrival_s).mean() < (plain.first_token_s - plain.arrival_s).mean()


def test_speculation_decodes_the_expected_tokens_per_iteration(deployment: Deployment) -> None:
    """Leviathan et al. 2023, equation 1: (1 - 0.8^5) / (1 - 0.8) = 3.36 tokens with 4 drafted ones."""
    speculation = Speculation(4, 0.8)
    assert speculation.tokens_per_iteration == pytest.approx(3.3616)
    deployment = msgspec.structs.replace(deployment, options=SimulationOptions(speculation=speculation))
    traffic = generate_traffic(Lengths(100), Lengths(1001), count=1, rate_per_s=1.0)
    prepared = prepare(deployment, traffic)
    outcome = prepared.run(traffic)[0]
    assert outcome.iterations == pytest.approx(1 + 1000 / 3.3616, abs=1)


def test_replicas_share_the_requests(deployment: Deployment) -> None:
    traffic = generate_traffic(Lengths(500), Lengths(100), count=200, rate_per_s=float("inf"))
    one = prepare(deployment, traffic).run(traffic)[0]
    two = prepare(msgspec.structs.replace(deployment, replicas=2), traffic).run(traffic)
    assert len(two) == 2 and max(outcome.finish_s.max() for outcome in two) < one.finish_s.max()


def test_bad_values(deployment: Deployment) -> None:
    device = deployment.on_device.machine.device
    for make in (
        lambda: Deployment(deployment.on_device, deployment.engine, replicas=0),
        lambda: Speculation(-1, 0.5),
        lambda: Speculation(2, 1.0),
        lambda: SimulationOptions(prefix_hit_rate=1.0),
        lambda: tensor_group(device, Division(0)),
    ):
        with pytest.raises(BadValue, match="--"):
            make()


def test_tensor_groups_use_the_fastest_link_of_the_device(deployment: Deployment) -> None:
    device = deployment.on_device.machine.device
    assert device_link(device) == "nvlink4-x18" and tensor_group(device, Division(1)) is None
    group = tensor_group(device, Division(4))
    assert group.workers == 4 and "nvlink4" in group.inside.name


@pytest.mark.parametrize("engine", ["vllm", "sglang"])
def test_many_chunks_of_a_prompt_take_as_long_together_as_one_by_one(
    deployment: Deployment, engine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    limits = {"max_batched_tokens": 8, "chunked_prefill": 8, "max_sequences": 4, "overhead_s": 0.0}
    server = find_server(engine, deployment.on_device.machine.device, **limits)
    deployment = msgspec.structs.replace(deployment, engine=server)
    traffic = generate_traffic(Lengths(600, 200), Lengths(30, 10), count=12, rate_per_s=1.0)
    _, together = run(deployment, traffic)
    monkeypatch.setattr("paleo_lite.serving.simulator.LEAST_TOGETHER", 10**9)
    other = generate_traffic(Lengths(600, 200), Lengths(30, 10), count=12, rate_per_s=1.0)
    prepared = prepare(deployment, other)
    one_by_one = simulate(other, prepared.tables, prepared.room, prepared.engine, answers=len(other))
    assert together.finish_s == pytest.approx(one_by_one.finish_s, rel=1e-3)
    assert together.first_token_s == pytest.approx(one_by_one.first_token_s, rel=1e-3)
    for name in ("iterations", "computed_tokens", "peak_blocks", "preemptions"):
        assert getattr(together, name) == getattr(one_by_one, name), name
    assert together.cached_block_s == pytest.approx(one_by_one.cached_block_s, rel=1e-3)
    assert len(together.progress) < len(one_by_one.progress) / 2


def test_many_chunks_of_a_long_prompt_take_the_time_of_the_middle_one(
    deployment: Deployment, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The attention of a chunk grows linearly with the tokens before it, so that the middle one takes the mean time."""
    limits = {"max_batched_tokens": 1024, "chunked_prefill": 1024, "max_sequences": 4, "overhead_s": 0.0}
    server = find_server("vllm", deployment.on_device.machine.device, **limits)
    deployment = msgspec.structs.replace(deployment, engine=server)
    traffic = generate_traffic(Lengths(8_100), Lengths(4), count=1, rate_per_s=1.0)
    monkeypatch.setattr("paleo_lite.serving.simulator.LEAST_TOGETHER", 2)
    prepared, together = run(deployment, traffic)
    monkeypatch.setattr("paleo_lite.serving.simulator.LEAST_TOGETHER", 10**9)
    one_by_one = simulate(traffic, prepared.tables, prepared.room, prepared.engine, answers=1)
    assert one_by_one.iterations == together.iterations >= 8
    assert together.finish_s == pytest.approx(one_by_one.finish_s, rel=2e-3)


def test_a_simulation_is_run_once(deployment: Deployment) -> None:
    """The same requests under the same conditions; other requests, limits or ends of the interval are simulated."""
    one, same, other = (
        generate_traffic(Lengths(200, 50), Lengths(40), count=50, rate_per_s=5.0, seed=seed) for seed in (1, 1, 2)
    )
    prepared = prepare(deployment, one)
    (first,) = prepared.run(one)
    assert prepared.run(same)[0] is first
    assert (prepared.run(other)[0].finish_s != first.finish_s).all()
    assert (prepared.run(one, "high")[0].finish_s > first.finish_s).all()
    narrow = msgspec.structs.replace(prepared.engine, max_sequences=1)
    limited = simulate(one, prepared.tables, prepared.room, narrow)
    assert limited.finish_s.max() > first.finish_s.max()


def test_the_simulations_of_all_replicas_are_kept(deployment: Deployment, monkeypatch: pytest.MonkeyPatch) -> None:
    fleet = msgspec.structs.replace(deployment, replicas=20)
    traffic = generate_traffic(Lengths(20), Lengths(4), count=100, rate_per_s=70.0)
    prepared = prepare(fleet, traffic)
    first = prepared.run(traffic)
    assert all(again is before for again, before in zip(prepared.run(traffic), first))
    monkeypatch.setattr("paleo_lite.serving.pools.KEPT_REQUESTS", 90)
    other = generate_traffic(Lengths(20), Lengths(4), count=100, rate_per_s=71.0)
    assert prepared.run(other)[0] is not prepared.run(other)[0]


def test_a_simulation_may_end_with_the_first_answers(deployment: Deployment) -> None:
    traffic = generate_traffic(Lengths(100), Lengths(20, 10), count=40, concurrency=4)
    prepared = prepare(deployment, traffic)
    (whole,), (part,) = prepared.run(traffic), prepared.run(traffic, answers=25)
    known = np.isfinite(part.finish_s)
    first_s = np.sort(whole.finish_s)[: known.sum()]
    assert 25 <= known.sum() < 30 and np.array_equal(np.sort(part.finish_s[known]), first_s)
    assert part.iterations < whole.iterations


def test_the_last_simulations_are_kept(deployment: Deployment) -> None:
    traffic = generate_traffic(Lengths(20), Lengths(4), count=5, rate_per_s=5.0)
    prepared = prepare(deployment, traffic)
    (first,) = prepared.run(traffic)
    for seed in range(MOST_KEPT):
        prepared.run(generate_traffic(Lengths(20), Lengths(4), count=5, rate_per_s=4.0, seed=seed))
    assert prepared.run(traffic)[0] is not first and (prepared.run(traffic)[0].finish_s == first.finish_s).all()


def test_a_replica_that_is_fed_owes_the_tokens_of_prompts_until_they_are_computed(deployment: Deployment) -> None:
    """What a gateway asks: prompts in waiting, and blocks in use or expected, which are all given back at the end."""
    traffic = generate_traffic(Lengths(800, 300), Lengths(200, 80), count=50, rate_per_s=float("inf"))
    prepared = prepare(deployment, traffic)
    replica = Replica(traffic, prepared.at_level("expected"), prepared.room, is_fed=True)
    assert replica.expect(0) and replica.waiting_requests == 1
    assert replica.expected_blocks == -(-(int(traffic.input_tokens[0]) + 1) // prepared.room.block_tokens)
    for request in range(50):
        replica.take(request, 0.0)
        assert replica.pending_tokens == traffic.input_tokens[: request + 1].sum()
        assert replica.waiting_requests == request + 1
    assert replica.expected_blocks == replica.used_blocks == replica.running_requests == 0
    next_tokens = int(traffic.input_tokens[0] + traffic.input_tokens.sum())
    assert replica.cost_blocks(0) == pytest.approx(next_tokens / prepared.room.block_tokens)
    while replica.step():
        assert replica.pending_tokens >= traffic.input_tokens.sum() - replica.log.computed_tokens
        assert 0 < replica.used_blocks <= replica.promised_blocks or not replica.running_requests
    assert sorted(replica.finished) == list(range(50))
    assert replica.pending_tokens == replica.used_blocks == replica.promised_blocks == replica.waiting_requests == 0
    assert replica.log.computed_tokens == traffic.input_tokens.sum()
    assert replica.next_s == float("inf") and not replica.step()

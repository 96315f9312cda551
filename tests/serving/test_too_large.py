"""Deployments that a bound rules out: no simulation reaches it, and the ranking is that of all."""

from __future__ import annotations

from typing import Any

import pytest

import paleo_lite as pl
from paleo_lite.errors import DoesNotFit
from paleo_lite.questions.serve_deployment import make_deployment
from paleo_lite.serving import advise, screening
from paleo_lite.serving.candidates import Criteria, DraftChoice
from paleo_lite.serving.lengths import Lengths
from paleo_lite.serving.requests import Demand
from paleo_lite.serving.too_large import DEVIATIONS, MARGIN, find_too_large, most_requests_per_s
from paleo_lite.serving.trials import LimitedPool

DEMAND = Demand(Lengths(1000), Lengths(100), rate_per_s=100.0)


def estimate_of(demand: Demand = DEMAND, **asked: Any) -> advise.PoolEstimate:
    question = pl.Serve(**{"network": "llama-3-8b", "gpu": "h100-sxm", "rate": "1", **asked})
    return advise._prepare_pool(make_deployment(question), demand, ())


@pytest.mark.parametrize(
    ("network", "gpu", "tensor"),
    [("llama-3.1-70b", "h100-sxm", 2), ("llama-3.1-70b", "l40s", 4), ("kimi-k2", "b200", 8)],
)
def test_a_refusal_names_the_smallest_tensor_parallelism_that_fits(network: str, gpu: str, tensor: int) -> None:
    """Weights of 141 GB in bf16 and of 1.03 TB in fp8, of which a device has 85, 48 and 191 GB."""
    with pytest.raises(DoesNotFit, match=rf": `--tensor {tensor}` is the smallest that fits$"):
        pl.serve(network, gpu=gpu, concurrency=2)
    assert pl.serve(network, gpu=gpu, concurrency=2, tensor=tensor, num_requests=4).tensor == tensor


@pytest.mark.parametrize(
    ("asked", "stages"),
    [
        ({"network": "deepseek-v3"}, 2),
        ({"network": "llama-3.1-405b", "precision": "bf16"}, 2),
        ({"network": "kimi-k2"}, 2),
    ],
)
def test_a_refusal_names_pipeline_stages_where_no_node_holds_a_replica(asked: dict[str, Any], stages: int) -> None:
    """674 GB in fp8, 812 GB in bf16 and 1.03 TB in fp8 are more than the 680 GB of a node less a tenth, and less than
    those of two."""
    with pytest.raises(DoesNotFit, match=rf": `--tensor 8 --pipeline {stages}` fits$"):
        pl.serve(**asked, gpu="h100-sxm", concurrency=2)
    answer = pl.serve(**asked, gpu="h100-sxm", concurrency=2, tensor=8, pipeline=stages, num_requests=4)
    assert answer.devices == 8 * stages


@pytest.mark.parametrize(
    ("workers", "options"), [(8, "--workers 16 --tensor 8 --pipeline 2"), (32, "--tensor 8 --pipeline 2")]
)
def test_a_refusal_names_more_devices_where_the_stated_number_is_too_small(workers: int, options: str) -> None:
    with pytest.raises(DoesNotFit, match=f": `{options}` fits$"):
        pl.serve("deepseek-v3", gpu="h100-sxm", concurrency=2, workers=workers)


def test_the_search_of_the_highest_rate_names_the_smallest_tensor_parallelism_too() -> None:
    with pytest.raises(DoesNotFit, match=r": `--tensor 2` is the smallest that fits$"):
        pl.serve("llama-3.1-70b", gpu="h100-sxm", slo="ttft=500ms")
    asked = {"gpu": "h100-sxm", "slo": "ttft=60s", "input_tokens": 120_000}
    with pytest.raises(DoesNotFit, match=r"that the KV cache holds; `--tensor 4` is the smallest that holds it$"):
        pl.serve("llama-3.1-70b", tensor=2, **asked)


def test_a_request_that_no_cache_holds_names_the_smallest_tensor_parallelism_whose_cache_does() -> None:
    """120,256 tokens of 80 blocks with 8 heads of 128 keys and values in 16 bits are 39 GB beside 141 GB of weights."""
    asked = {"gpu": "h100-sxm", "concurrency": 2, "input_tokens": 120_000, "num_requests": 4}
    with pytest.raises(DoesNotFit, match=r"that the KV cache holds; `--tensor 4` is the smallest that holds it$"):
        pl.serve("llama-3.1-70b", tensor=2, **asked)
    assert pl.serve("llama-3.1-70b", tensor=4, **asked).tensor == 4


@pytest.mark.parametrize(
    "asked",
    [
        {},
        {"engine": "sglang"},  # whose iterations with prompts decode nothing
        {"engine": "sglang", "network": "gpt-oss-20b", "tensor": 2, "attention_data_parallel": 2},
        {"network": "qwen3-30b-a3b", "tensor": 2, "expert_parallel": 2},
    ],
)
def test_no_replica_answers_more_than_the_bound(asked: dict[str, Any]) -> None:
    """A simulation, in which requests wait and prompts come as they come, is the reference."""
    pool = estimate_of(**asked)
    for batch_limit in (1, 8, 64):
        candidate = LimitedPool(pool, batch_limit, None).simulate(DEMAND, (), Criteria())
        share = candidate.requests_per_s / most_requests_per_s(pool, batch_limit, None).expected_per_s
        assert candidate.low_requests_per_s is not None
        slow_share = candidate.low_requests_per_s / most_requests_per_s(pool, batch_limit, None).slowest_per_s
        assert 0.4 < share < MARGIN and 0.4 < slow_share < MARGIN


def test_random_lengths_have_a_margin_by_their_scatter() -> None:
    demand = Demand(Lengths(1000, 400), Lengths(100, 50), rate_per_s=100.0)
    pool = estimate_of(demand)
    answers = pool.sample.output_tokens
    for batch_limit in (1, 2, 4):
        candidate = LimitedPool(pool, batch_limit, None).simulate(demand, (), Criteria())
        share = candidate.requests_per_s / most_requests_per_s(pool, batch_limit, None).expected_per_s
        assert share < MARGIN * (1 + DEVIATIONS * answers.std() / answers.mean() / batch_limit**0.5)


def test_what_needs_too_many_devices_is_named() -> None:
    pool = estimate_of()
    few = find_too_large(pool, 1, None, DEMAND, Criteria(devices=8))
    assert few is not None and few.devices > 8 and (few.gpu, few.weights, few.batch_limit) == ("h100-sxm", "bf16", 1)
    assert find_too_large(pool, 1, None, DEMAND, Criteria(devices=few.devices)) is None
    assert find_too_large(pool, 1, None, DEMAND, Criteria()) is None
    users = Demand(Lengths(1000), Lengths(100), concurrency=64)
    assert find_too_large(pool, 1, None, users, Criteria(devices=8)) is None


def test_drafts_raise_the_bound() -> None:
    demand = DEMAND
    draft = DraftChoice("mtp", 1, 0.8)
    pool = advise._prepare_pool(
        make_deployment(pl.Serve(network="deepseek-v3", gpu="h200-sxm", tensor=8, rate="1")), demand, (draft,)
    )
    drafting, plain = (most_requests_per_s(pool, 8, each).expected_per_s for each in (draft, None))
    assert drafting > 1.2 * plain


@pytest.mark.thorough
def test_the_ranking_is_that_of_all_deployments(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: dict[str, Any] = {"gpu": "h100-sxm", "rate": 12, "workers": 2, "advise": "cost", "output_tokens": 64}
    quick = pl.serve("llama-3.1-8b", **asked).advice
    monkeypatch.setattr(screening, "find_too_large", lambda *_: None)
    whole = pl.serve("llama-3.1-8b", **asked).advice
    assert quick is not None and whole is not None and not whole.too_large
    within = [[one for one in advice.candidates if one.devices <= 2] for advice in (quick, whole)]
    assert within[0] and within[0] == within[1] and quick.best == whole.best
    assert quick.too_large and len(quick.candidates) < len(whole.candidates)


@pytest.mark.thorough
def test_all_are_simulated_where_none_fits() -> None:
    """What comes nearest is shown, which only simulations say."""
    advice = pl.serve("llama-3.1-8b", gpu="l40s", rate=50, workers=1, advise="cost", output_tokens=64).advice
    assert advice is not None and advice.best is None and not advice.too_large
    assert all(one.devices > 1 for one in advice.candidates)

"""The deployments that a question of `serve` asks for, of which no traffic is needed."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import BadValue
from ..formats import format_of_weights, split_format
from .compare import published_weights
from .records import settings_of
from .serve_options import Serve

if TYPE_CHECKING:
    from ..api.deployments import Deployments
    from ..distributed.links import Topology
    from ..engines.division import Division
    from ..machines import Device, Price
    from ..serving.adapters import Adapters
    from ..serving.admission import Admission
    from ..serving.deployment import Deployment
    from ..serving.elastic import Elasticity

UNIFORM_LOAD = "uniform"
"""Load of experts unless another one is given."""

POOLS = ("prefill_pool", "decode_pool")
"""Options that describe a pool each."""

_OF_SERVERS = (
    "tensor", "pipeline", "expert_parallel", "attention_data_parallel", "prefill_pool", "time_model",
    "clock", "unit", "memory_fraction",
)  # fmt: skip
"""Options that are not modelled under engines of one's own machine."""


_NOT_OF_SPEECH = (
    "workload", "cache_tiers", "prefix_hit_rate", "chunked_prefill", "speculation", "prefill_pool", "decode_pool",
)  # fmt: skip
"""Options without an effect or a model for networks that write what is said."""

_DEGREES_OF_DIVISION = ("tensor", "pipeline", "expert_parallel", "attention_data_parallel")
"""Options that divide a replica, for which networks that write what is said are small."""


class Resolved(NamedTuple):
    """What a question says of its deployments, with names found and numbers checked."""

    deployments: Deployments
    devices: Sequence[str | Device]
    division: Division
    weights: str | None
    replicas: int
    router: str
    tiers: Mapping[str, float]
    elasticity: Elasticity | None
    adapters: Adapters | None
    admission: Admission | None

    def make(self, prefill: Deployment | None = None) -> Deployment:
        """Return the deployment on the first device, which decodes only if there is a prefill pool."""
        import msgspec

        from ..serving.stores import make_stores

        deployment = self.deployments.make(
            self.devices[0], self.division, self.weights, replicas=self.replicas, prefill=prefill
        )
        on_device = deployment.on_device
        stores = make_stores(self.tiers, on_device.machine.device, on_device.devices)
        return msgspec.structs.replace(
            deployment,
            router=self.router,
            stores=stores,
            elasticity=self.elasticity,
            adapters=self.adapters,
            admission=self.admission,
        )


def resolve(question: Serve, listings: Mapping[str, Price | None] | None) -> Resolved:
    """Return the deployments of a question; raise BadValue for options that do not go together."""
    from ..api.deployments import find_topology
    from ..engines.division import Division
    from ..serving.adapters import parse_adapters

    options: Any = question  # its several values are compared by `answer`
    _check_options_of_speech(question)
    weights = options.weights
    if question.advise is None:
        weights = weights or published_weights(question)
    precision = options.precision
    if precision is not None:
        precision, weights = split_format(precision, weights)
    speculation, settings = _speculation(question), _engine_settings(question)
    _check_engine(question, precision, speculation, settings.get("sampling"))
    division = Division(
        options.tensor or 1, options.pipeline or 1, options.expert_parallel or 1, options.attention_data_parallel or 1
    )
    topology, platform_price = find_topology(options.platform, question.link, options.workers or division.devices)
    devices = _devices(question, topology)
    deployments = _deployments(
        question, precision, topology, platform_price, listings, speculation=speculation, settings=settings
    )
    # Advice chooses the replicas, whose devices the workers limit.
    workers = None if question.advise else options.workers
    replicas = _count_replicas(workers, division.devices, options.replicas)
    elasticity = _elasticity(question)
    if elasticity is not None and elasticity.autoscaling is not None:
        replicas = elasticity.autoscaling.most
    tiers = settings_of(question.cache_tiers)
    adapters = parse_adapters(settings)
    if adapters is not None and question.advise is not None:
        raise BadValue("`--advise` ranks replicas alone: leave adapters=N of `--engine-settings` out")
    admission = _admission(question)
    return Resolved(
        deployments, devices, division, weights, replicas, question.router, tiers, elasticity, adapters,
        admission,
    )  # fmt: skip


def make_deployment(question: Serve, listings: Mapping[str, Price | None] | None = None) -> Deployment:
    """Return the deployment of a question, of which no traffic is needed."""
    if question.prefill_pool is not None:
        _check_options_of_speech(question)  # those of both pools, which are resolved one by one
        return _split_deployment(question, listings)
    return resolve(question, listings).make()


def is_speech_model(question: Serve) -> bool:
    """Return whether the network of a question writes what is said."""
    from ..architectures import Network, find_network
    from ..architectures.catalog import is_factory

    network = question.network
    if isinstance(network, str) and not is_factory(network):
        network = find_network(network)
    return isinstance(network, Network) and network.is_speech_model


def _check_options_of_speech(question: Serve) -> None:
    """Raise BadValue for an option that is not modelled for networks that write what is said."""
    if not is_speech_model(question):
        return
    from ..engines.records import LOCAL_ENGINES

    given = [name for name in _NOT_OF_SPEECH if getattr(question, name) not in (None, 0)]
    given += [name for name in _DEGREES_OF_DIVISION if getattr(question, name) not in (None, 1)]
    if "adapters" in settings_of(question.engine_settings):
        raise BadValue("adapters=N of `--engine-settings` is not modelled for networks that read sound: leave it out")
    if question.engine in LOCAL_ENGINES:
        raise BadValue(f"`--engine {question.engine}` is not modelled for networks that read sound: give vllm")
    if given:
        option = f"--{given[0].replace('_', '-')}"
        raise BadValue(f"`{option}` is not modelled for networks that read sound: leave it out")


def check_link(question: Serve) -> None:
    """Raise BadValue for a link that joins nothing: replicas of one device have none, those of a pool neither."""
    joins = "`--link` joins the devices of a replica: give their number with "
    if question.prefill_pool is None:
        if question.link is not None and question.advise is None and not _is_group(question):
            raise BadValue(f"{joins}`--tensor`")
        return
    settings = {name: settings_of(getattr(question, name)) for name in POOLS}
    pools = {name: _question_of_pool(question, settings[name]) for name in POOLS}
    has_group = any(_is_group(pool) for pool in pools.values())
    for name, pool in pools.items():
        is_of_pool = "link" in settings[name]  # otherwise it is that of both pools
        joins_devices = _is_group(pool) if is_of_pool else has_group
        if pool.link is not None and not joins_devices:
            raise BadValue(
                f"{joins}tensor=N of `--{name.replace('_', '-')}`; between pools, keys and values take the link of the "
                "devices in one computer, and the usual network between computers, which no option sets"
            )


def _is_group(question: Serve) -> bool:
    """Return whether a replica has several devices, or a number of them is given."""
    return bool(question.tensor or question.pipeline)


def _split_deployment(question: Serve, listings: Mapping[str, Price | None] | None) -> Deployment:
    """Return the deployment of a decode pool, with the pool that computes its prompts."""
    if question.advise is not None:
        raise BadValue("`--advise` chooses the pools: leave `--prefill-pool` out")
    if question.scaling is not None:
        raise BadValue("`--scaling` is for replicas that do both: leave `--prefill-pool` out")
    if question.admission is not None:
        raise BadValue("`--admission` is for replicas that do both: leave `--prefill-pool` out")
    if question.workers is not None:
        raise BadValue("`--workers` is not for pools, whose devices are replicas times tensor times pipeline degree")
    _check_batch_wait(question)
    prompts = _question_of_pool(question, settings_of(question.prefill_pool), speculation=None)
    decoding = _question_of_pool(question, settings_of(question.decode_pool))
    prefill = resolve(prompts, listings).make()
    return resolve(decoding, listings).make(prefill)


def _check_batch_wait(question: Serve) -> None:
    """Raise BadValue for how long prompts wait for others, where the engine knows such a wait, but not in pools."""
    from ..engines.records import SERVERS

    engine: Any = question.engine
    settings = settings_of(question.engine_settings)
    asked = [name for name in ("batch-wait-iterations", "batch-wait-share") if settings.get(name)]
    if asked and engine in SERVERS and SERVERS[engine].batch_wait_iterations is not None:
        raise BadValue(
            f"`--engine-settings {asked[0]}` is for prompts that wait while others decode: leave it out with "
            "`--prefill-pool`"
        )


def _question_of_pool(question: Serve, settings: dict[str, Any], **others: Any) -> Serve:
    """Return the question of a pool: with its settings, and without pools, workers and objectives."""
    options = {key.replace("-", "_"): value for key, value in settings.items()}
    return dataclasses.replace(
        question, **options, **others, prefill_pool=None, decode_pool=None, workers=None, slo=None
    )


def _elasticity(question: Serve) -> Elasticity | None:
    """Return how replicas come and go; None if they stay."""
    from ..serving.elastic import parse_elasticity

    options: Any = question
    settings = {key.replace("_", "-"): value for key, value in settings_of(question.scaling).items()}
    elasticity = parse_elasticity(settings, options.replicas)
    if elasticity is None:
        return None
    if elasticity.autoscaling is not None and options.workers is not None:
        raise BadValue("`--workers` is not for `--scaling`, whose devices are those of max=N replicas")
    if question.slo is not None:
        raise BadValue("`--slo` finds a rate of replicas that stay: leave `--scaling` out")
    return elasticity


def _admission(question: Serve) -> Admission | None:
    """Return what servers and their gateway refuse; None where they refuse nothing."""
    from ..engines.records import SERVERS
    from ..serving.admission import parse_admission

    settings = {key.replace("_", "-"): value for key, value in settings_of(question.admission).items()}
    admission = parse_admission(settings)
    if admission is None:
        return None
    if question.scaling is not None:
        raise BadValue("`--admission` is for replicas that stay: leave `--scaling` out")
    if question.concurrency is not None:
        raise BadValue("`--admission` is for requests that come at a rate: give `--rate` instead of `--concurrency`")
    engine: Any = question.engine
    launcher = SERVERS[engine].launcher
    if admission.is_of_server and (launcher is None or not launcher.queue_limit):
        raise BadValue(
            "max-queued-requests and waiting-timeout of `--admission` are SGLang's, and nothing is known of them "
            f"under {engine}: give max-concurrent-requests of a gateway"
        )
    return admission


def _speculation(question: Serve) -> dict[str, Any]:
    """Return the settings of speculative decoding; none without it."""
    settings = settings_of(question.speculation)
    if settings and "tokens" not in settings:
        raise BadValue("`--speculation` needs tokens=N, the tokens drafted per iteration")
    return dict(settings)


def _engine_settings(question: Serve) -> dict[str, Any]:
    """Return the settings of the engine."""
    settings = dict(settings_of(question.engine_settings))
    if "overhead" in settings and "sampling" in settings:
        raise BadValue("give only one of sampling and overhead of `--engine-settings`, which includes it")
    return settings


def _check_engine(question: Serve, precision: str | None, speculation: Mapping[str, Any], sampling: str | None) -> None:
    """Raise BadValue for an option that is not modelled under the engine."""
    from ..api.deployments import check_policy
    from ..engines.routing import parse_expert_load

    options: Any = question
    is_quantized = precision is not None and format_of_weights(None, precision) is not None
    check_policy(
        options.engine,
        expert_load=parse_expert_load(question.expert_load or UNIFORM_LOAD) or None,
        draft=speculation.get("draft"),
        draft_length=speculation.get("tokens", 0),
        advise=question.advise is not None,
        precision=precision if is_quantized else None,
        sampling=sampling,
        **{name: getattr(question, name) for name in _OF_SERVERS},
    )


def _devices(question: Serve, topology: Topology | None) -> list[str | Device]:
    """Return the devices that are asked for: several are ranked."""
    gpu: Any = question.gpu
    if gpu is None and topology is not None:
        gpu = topology.device
    devices = list(gpu) if isinstance(gpu, (list, tuple)) else [gpu]
    if devices == [None]:
        raise BadValue("`serve` needs a device: give `--gpu`, or a `--platform` that names it")
    return devices


def _deployments(
    question: Serve,
    precision: str | None,
    topology: Topology | None,
    platform_price: Any,
    listings: Mapping[str, Price | None] | None,
    *,
    speculation: Mapping[str, Any],
    settings: Mapping[str, Any],
) -> Deployments:
    """Return what all deployments of a question have in common."""
    from ..api.deployments import Deployments, find_decoder, find_draft
    from ..calibration.store import evidence_of
    from ..engines.records import LOCAL_ENGINES
    from ..engines.routing import parse_expert_load
    from ..files import to_paths
    from ..serving.drafts import heads_of
    from ..serving.options import SimulationOptions, make_speculation
    from ..serving.pipeline import parse_stage_blocks
    from ..timing.budget import parse_price

    options: Any = question
    length = speculation.get("tokens", 0)
    price = question.price_usd_per_h
    evidence = evidence_of(question.calibration)
    if evidence is not None and options.engine not in LOCAL_ENGINES:
        evidence.check_kinds(("server", "link", "power"), "serve")
    return Deployments(
        decoder=find_decoder(options.network),
        draft=find_draft(speculation.get("draft"), length),
        precision=precision,
        kv_cache=question.kv_cache,
        policy=options.engine,
        sampling=settings.get("sampling"),
        stage_blocks=parse_stage_blocks(settings.get("stage-blocks", "")),
        settings={
            "max_batched_tokens": options.max_batched_tokens,
            "max_sequences": options.max_sequences,
            "chunked_prefill": options.chunked_prefill,
            "block_tokens": settings.get("block-size"),
            "memory_fraction": options.memory_fraction,
            "receive_interval": settings.get("receive-interval"),
            "batch_wait_iterations": settings.get("batch-wait-iterations"),
            "batch_wait_share": settings.get("batch-wait-share"),
            "captured_sequences": settings.get("captured-sequences"),
            "stream_interval": settings.get("stream-interval"),
            "overhead_s": settings.get("overhead"),
        },
        expert_load=parse_expert_load(question.expert_load or UNIFORM_LOAD),
        options=SimulationOptions(
            options.prefix_hit_rate,
            make_speculation(length, speculation.get("acceptance", 0.0), heads_of(speculation.get("draft"))),
            seed=question.seed,
        ),
        link=question.link,
        topology=topology,
        price_usd_per_h=None if price is None else parse_price(price),
        price_of=question.price_of,
        listings=listings,
        platform_price=platform_price,
        facility=question.facility,
        power_limit=options.power_limit,
        time_model=options.time_model,
        calibration=question.calibration,
        clock=options.clock,
        unit=options.unit,
        hardware_files=to_paths(question.hardware_files),
    )


def _count_replicas(workers: int | None, replica_devices: int, replicas: int | None) -> int:
    """Return the number of replicas of so many devices each."""
    if workers is None:
        return replicas or 1
    if workers % replica_devices:
        raise BadValue(
            f"`--workers` must be a multiple of the devices of a replica, tensor times pipeline degree: "
            f"{replica_devices} (got {workers})"
        )
    if replicas is not None and replicas * replica_devices != workers:
        raise BadValue(
            f"`--workers` must be replicas times tensor times pipeline degree, {replicas * replica_devices} "
            f"(got {workers})"
        )
    return workers // replica_devices

"""Files that start deployments, read as their programs read them.

The schemas state the parts that are written, after those that are published: the Compose Specification's
(schema/compose-spec.json, commit 00655e2), Kubernetes' types of apps/v1 and v1, the values of the chart
llm-d-modelservice v0.4.0, and Dynamo's resource nvidia.com/v1alpha1 (all Apache-2.0). They were written here.

Tests: serving/manifests.py, serving/nodes.py, serving/yaml_text.py, questions/serve_files.py.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import paleo_lite as pl
from paleo_lite.errors import PaleoError
from paleo_lite.questions.serve_deployment import make_deployment
from paleo_lite.serving.manifests import StartFile, compose_file, dynamo_graph, kubernetes_file, llm_d_values
from paleo_lite.serving.nodes import LABEL
from paleo_lite.serving.yaml_text import to_yaml

jsonschema = pytest.importorskip("jsonschema")
yaml = pytest.importorskip("yaml")

TEXT, COUNT, TEXTS = (
    {"type": "string"},
    {"type": "integer", "minimum": 0},
    {"type": "array", "items": {"type": "string"}},
)


def closed(required: str = "", **properties: Any) -> dict[str, Any]:
    """Return the schema of a mapping that has these keys and no others."""
    return {
        "type": "object", "properties": properties, "required": required.split(), "additionalProperties": False,
    }  # fmt: skip


def many(item: Any) -> dict[str, Any]:
    """Return the schema of a list."""
    return {"type": "array", "items": item, "minItems": 1}


def named(item: Any) -> dict[str, Any]:
    """Return the schema of a mapping from any name."""
    return {"type": "object", "additionalProperties": item}


GPU = closed("capabilities", driver=TEXT, device_ids=TEXTS, capabilities=TEXTS)
COMPOSE = closed(
    "services",
    name={"type": "string", "pattern": "^[a-z0-9][a-z0-9_-]*$"},
    services=named(
        closed(
            image=TEXT, entrypoint=TEXTS, command=TEXTS, environment=named(TEXT), ipc=TEXT, volumes=TEXTS, ports=TEXTS,
            depends_on=TEXTS, configs=many(closed(source=TEXT, target=TEXT)),
            healthcheck=closed(test=TEXTS, interval=TEXT, start_period=TEXT),
            deploy=closed(resources=closed(reservations=closed(devices=many(GPU)))),
        )
    ),
    volumes=named(closed()),
    configs=named(closed("content", content=TEXT)),
)  # fmt: skip
LABELS = named({"type": "string", "maxLength": 63})
PROBE = closed("httpGet", httpGet=closed("port", path=TEXT, port=COUNT), periodSeconds=COUNT, failureThreshold=COUNT)
METADATA = closed("name", name={"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$"}, labels=LABELS)
SOURCE = closed(
    secretKeyRef=closed("key", name=TEXT, key=TEXT, optional={"type": "boolean"}),
    fieldRef=closed("fieldPath", fieldPath=TEXT),
)
VARIABLE = closed("name", name=TEXT, value=TEXT, valueFrom=SOURCE)
CONTAINER = {
    "name": TEXT, "image": TEXT, "command": TEXTS, "args": TEXTS, "env": {"type": "array", "items": VARIABLE},
    "ports": many(closed("containerPort", containerPort=COUNT, name=TEXT, protocol={"enum": ["TCP"]})),
    "resources": closed(limits=named(TEXT), requests=named(TEXT)), "startupProbe": PROBE, "readinessProbe": PROBE,
    "volumeMounts": many(closed("name mountPath", name=TEXT, mountPath=TEXT)),
}  # fmt: skip
POD = closed(
    "containers",
    nodeSelector=named(TEXT),
    containers=many(closed("name", **CONTAINER)),
    volumes=many(closed("name", name=TEXT, emptyDir=closed(medium={"enum": ["Memory"]}))),
)
DEPLOYMENT = closed(
    "apiVersion kind metadata spec",
    apiVersion={"const": "apps/v1"},
    kind={"const": "Deployment"},
    metadata=METADATA,
    spec=closed(
        "selector template",
        replicas=COUNT,
        selector=closed(matchLabels=LABELS),
        template=closed("spec", metadata=closed(labels=LABELS), spec=POD),
    ),
)
STATEFUL_SET = closed(
    "apiVersion kind metadata spec",
    apiVersion={"const": "apps/v1"},
    kind={"const": "StatefulSet"},
    metadata=METADATA,
    spec=closed(
        "serviceName selector template",
        serviceName=TEXT,
        replicas=COUNT,
        selector=closed(matchLabels=LABELS),
        template=closed("spec", metadata=closed(labels=LABELS), spec=POD),
    ),
)
SERVICE = closed(
    "apiVersion kind metadata spec",
    apiVersion={"const": "v1"},
    kind={"const": "Service"},
    metadata=METADATA,
    spec=closed(
        clusterIP={"const": "None"}, selector=LABELS, ports=many(closed("port", name=TEXT, port=COUNT, targetPort=TEXT))
    ),
)
POOL = closed(
    "create replicas",
    create={"type": "boolean"},
    replicas=COUNT,
    parallelism=closed(tensor=COUNT, data=COUNT, dataLocal=COUNT, workers=COUNT),
    containers=many(
        closed("image", **CONTAINER, modelCommand={"const": "vllmServe"}, mountModelVolume={"const": True})
    ),
)
VALUES = closed(
    "modelArtifacts decode prefill",
    multinode={"type": "boolean"},
    modelArtifacts=closed(
        "name uri", name=TEXT, uri={"type": "string", "pattern": "^hf://[^/]+/[^/]+$"},
        size={"type": "string", "pattern": "^[0-9]+Gi$"}, labels=LABELS, authSecretName=TEXT,
    ),
    routing=closed(
        servicePort=COUNT,
        proxy=closed(enabled={"type": "boolean"}, connector={"enum": ["nixlv2"]}, secure={"type": "boolean"}),
    ),
    decode=POOL,
    prefill=POOL,
)  # fmt: skip
WORKER = closed(
    "componentType",
    componentType={"enum": ["frontend", "worker"]},
    subComponentType={"enum": ["prefill", "decode"]},
    multinode=closed("nodeCount", nodeCount={"type": "integer", "minimum": 2}),
    envFromSecret=TEXT,
    envs=many(VARIABLE),
    replicas=COUNT,
    resources=closed(limits=closed(gpu={"type": "string", "pattern": "^[1-8]$"})),
    extraPodSpec=closed(
        nodeSelector=named(TEXT),
        mainContainer=closed("image", image=TEXT, command=TEXTS, args=TEXTS, env=many(VARIABLE)),
    ),
)
GRAPH = closed(
    "apiVersion kind metadata spec",
    apiVersion={"const": "nvidia.com/v1alpha1"},
    kind={"const": "DynamoGraphDeployment"},
    metadata=METADATA,
    spec=closed(services=named(WORKER)),
)


def read(manifest: StartFile, *schemas: Any) -> Any:
    """Return what a program reads of a file, whose documents fit the schemas."""
    documents = list(yaml.safe_load_all(manifest.text("file.yaml", "the question")))
    assert documents == manifest.documents
    for document, schema in zip(documents, schemas, strict=True):
        jsonschema.validate(document, schema)
    return documents[0]


def deployment_of(network: str = "llama-3-8b", **options: Any) -> Any:
    return make_deployment(pl.Serve(network, **{"gpu": "h100-sxm", "rate": 1, **options}))


SPLIT = {"prefill_pool": "tensor=2,replicas=3", "decode_pool": "tensor=4"}


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm"])
def test_replicas_of_a_compose_file_have_devices_of_their_own(engine: str) -> None:
    content = read(compose_file(deployment_of(replicas=2, tensor=2, engine=engine, kv_cache="fp8")), COMPOSE)
    reserved = [
        service["deploy"]["resources"]["reservations"]["devices"][0]["device_ids"]
        for name, service in content["services"].items()
        if name != "proxy"
    ]
    assert reserved == [["0", "1"], ["2", "3"]]
    assert "server server-1:8000;" in content["configs"]["proxy"]["content"]
    assert "fp8" in " ".join(content["services"]["server-0"]["command"])


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm"])
def test_a_compose_file_has_the_router_of_split_pools(engine: str) -> None:
    pools = {"prefill_pool": "tensor=2,replicas=2", "decode_pool": "tensor=4"}
    services = read(compose_file(deployment_of(engine=engine, **pools)), COMPOSE)["services"]
    devices = {
        name: service["deploy"]["resources"]["reservations"]["devices"][0]["device_ids"]
        for name, service in services.items()
        if name != "router"
    }
    assert devices == {"prefill-0": ["0", "1"], "prefill-1": ["2", "3"], "decode-0": ["4", "5", "6", "7"]}
    router = services["router"]["command"][0]
    assert router.index("prefill-0:8000") < router.index("prefill-1:8000") < router.index("decode-0:8000")
    assert services["router"]["ports"] == ["8000:8000"] and "ports" not in services["decode-0"]
    words = {name: " ".join([*one["entrypoint"], *one["command"]]) for name, one in services.items()}
    own = {
        "vllm": ("VLLM_NIXL_SIDE_CHANNEL_HOST=$$(hostname -i) vllm serve", "NixlConnector"),
        "sglang": ("--disaggregation-mode prefill", "--disaggregation-transfer-backend nixl"),
        "tensorrt-llm": ("disable_overlap_scheduler: true", "cache_transceiver_config"),
    }[engine]
    assert all(word in words["prefill-0"] for word in own)


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm"])
def test_kubernetes_has_the_router_of_split_pools(engine: str) -> None:
    manifest = kubernetes_file(deployment_of(engine=engine, **SPLIT))
    read(manifest, STATEFUL_SET, SERVICE, STATEFUL_SET, SERVICE, DEPLOYMENT, SERVICE)
    prefill, _, decode, _, router, service = manifest.documents
    assert (prefill["spec"]["replicas"], decode["spec"]["replicas"], router["spec"]["replicas"]) == (3, 1, 1)
    command = router["spec"]["template"]["spec"]["containers"][0]["args"][0]
    assert "llama-3-8b-prefill-2.llama-3-8b-prefill:8000" in command and "llama-3-8b-decode-0." in command
    assert service["spec"]["selector"] == router["spec"]["selector"]["matchLabels"]
    variables = [one["name"] for one in decode["spec"]["template"]["spec"]["containers"][0]["env"]]
    assert ("VLLM_NIXL_SIDE_CHANNEL_HOST" in variables) == (engine == "vllm")


TWO_KINDS = {"prefill_pool": "gpu=h100-sxm,replicas=3", "decode_pool": "gpu=h200-sxm,tensor=8"}


def test_pools_of_two_kinds_have_nodes_of_their_own() -> None:
    """Values of the label as GPU feature discovery writes them on nodes with these devices."""
    manifest = kubernetes_file(deployment_of(**TWO_KINDS))
    read(manifest, STATEFUL_SET, SERVICE, STATEFUL_SET, SERVICE, DEPLOYMENT, SERVICE)
    prefill, _, decode, *_ = manifest.documents
    nodes = [one["spec"]["template"]["spec"]["nodeSelector"] for one in (prefill, decode)]
    assert nodes == [{LABEL: "NVIDIA-H100-80GB-HBM3"}, {LABEL: "NVIDIA-H200"}]
    services = read(dynamo_graph(deployment_of(**TWO_KINDS)), GRAPH)["spec"]["services"]
    assert services["decode"]["extraPodSpec"]["nodeSelector"] == {LABEL: "NVIDIA-H200"}
    assert "prefill need nodes with H100" in " ".join(llm_d_values(deployment_of(**TWO_KINDS)).notes)
    one_kind = kubernetes_file(deployment_of(**SPLIT))
    assert "nodeSelector" not in str(one_kind.documents) and "NVIDIA-H100-80GB-HBM3" in " ".join(one_kind.notes)
    unknown = kubernetes_file(deployment_of(**{**TWO_KINDS, "decode_pool": "gpu=rtx4090"}))
    assert "decode need nodes with GeForce RTX 4090: add their `nodeSelector`" in " ".join(unknown.notes)


def test_compose_says_on_which_computer_each_service_starts() -> None:
    manifest = compose_file(deployment_of(**TWO_KINDS))
    services = read(manifest, COMPOSE)["services"]
    devices = [
        services[name]["deploy"]["resources"]["reservations"]["devices"][0]["device_ids"]
        for name in ("prefill-0", "prefill-2", "decode-0")
    ]
    assert devices == [["0"], ["2"], [str(number) for number in range(8)]]  # each computer counts from 0
    notes = " ".join(manifest.notes)
    assert "with H100 SXM5 80GB: docker compose -f {file} up --no-deps prefill-0 prefill-1 prefill-2" in notes
    assert "with H200 SXM 141GB: docker compose -f {file} up --no-deps decode-0" in notes


def test_one_replica_needs_no_proxy() -> None:
    content = read(compose_file(deployment_of()), COMPOSE)
    assert list(content["services"]) == ["server-0"] and content["services"]["server-0"]["ports"] == ["8000:8000"]


def test_kubernetes_starts_the_replicas_with_the_limits_of_the_forecast() -> None:
    content = read(kubernetes_file(deployment_of(replicas=5, tensor=4, max_sequences=96)), DEPLOYMENT, SERVICE)
    container = content["spec"]["template"]["spec"]["containers"][0]
    assert content["spec"]["replicas"] == 5 and container["resources"]["limits"] == {"nvidia.com/gpu": "4"}
    assert container["args"][container["args"].index("--max-num-seqs") + 1] == "96"


def test_llm_d_has_both_pools() -> None:
    values = read(llm_d_values(deployment_of("llama-3-70b", precision="fp8", **SPLIT)), VALUES)
    pools = {name: (values[name]["replicas"], values[name]["parallelism"]["tensor"]) for name in ("prefill", "decode")}
    assert pools == {"prefill": (3, 2), "decode": (1, 4)}
    assert "NixlConnector" in " ".join(values["decode"]["containers"][0]["args"])
    alone = read(llm_d_values(deployment_of()), VALUES)
    assert alone["prefill"] == {"create": False, "replicas": 0} and not alone["routing"]["proxy"]["enabled"]


@pytest.mark.parametrize("engine", ["vllm", "sglang", "tensorrt-llm"])
def test_dynamo_starts_the_workers_of_both_pools(engine: str) -> None:
    services = read(dynamo_graph(deployment_of(engine=engine, **SPLIT)), GRAPH)["spec"]["services"]
    assert {name: one["replicas"] for name, one in services.items()} == {"Frontend": 1, "prefill": 3, "decode": 1}
    for role in ("prefill", "decode"):
        arguments = services[role]["extraPodSpec"]["mainContainer"]["args"]
        assert arguments[arguments.index("--disaggregation-mode") + 1] == role


def test_dynamo_takes_several_nodes() -> None:
    wide = deployment_of("deepseek-r1", gpu="h200-sxm", precision="fp8", tensor=16, link="infiniband-ndr")
    worker = read(dynamo_graph(wide), GRAPH)["spec"]["services"]["worker"]
    assert worker["multinode"] == {"nodeCount": 2} and worker["resources"] == {"limits": {"gpu": "8"}}


def test_dynamo_takes_the_trays_of_a_rack() -> None:
    degrees = {"tensor": 16, "expert_parallel": 16, "attention_data_parallel": 16}
    worker = read(dynamo_graph(deployment_of("deepseek-r1", gpu="gb200", **degrees)), GRAPH)["spec"]["services"][
        "worker"
    ]
    assert worker["multinode"] == {"nodeCount": 4} and worker["resources"] == {"limits": {"gpu": "4"}}


@pytest.mark.parametrize(
    ("make", "options", "sentence"),
    [
        (compose_file, {"replicas": 9}, r"at most the 8 devices of one computer \(got 9\): name the file .kubernetes"),
        (compose_file, {"tensor": 8, "pipeline": 2, "replicas": 2}, r"\(got 32\): name the file .dynamo.yaml"),
        (compose_file, {"gpu": "gb200", "replicas": 5}, "at most the 4 devices"),
        (kubernetes_file, {"gpu": "gb200", "tensor": 8}, "spans several nodes of 4"),
        (kubernetes_file, {"tensor": 16, "link": "infiniband-ndr"}, "spans several nodes"),
        (llm_d_values, {"engine": "sglang"}, "starts vllm"),
        (kubernetes_file, {"engine": "vllm-0.7"}, "no container image of vllm-0.7"),
        (compose_file, {"gpu": "mi300x"}, "devices of NVIDIA"),
    ],
)
def test_what_a_file_cannot_start_gets_a_sentence(make: Any, options: dict[str, Any], sentence: str) -> None:
    with pytest.raises(PaleoError, match=sentence):
        make(deployment_of(**options))


@pytest.mark.parametrize("value", ["on", "", "1.5", "a: b", "# c", "--x", "two\nlines\n", "it's", "vllm/vllm:v1", "~"])
def test_text_is_read_as_the_same_text(value: str) -> None:
    assert yaml.safe_load(to_yaml({"key": value, "list": [value, {"inner": [1, True, {}]}]})) == {
        "key": value,
        "list": [value, {"inner": [1, True, {}]}],
    }


def test_a_report_is_the_file_that_its_name_says(tmp_path: Path) -> None:
    path = tmp_path / "front.compose.yaml"
    question = pl.Serve("llama-3-8b", gpu="h100-sxm", rate=1, num_requests=20)
    written = pl.report(question, path)
    assert path.stat().st_size == written.bytes
    assert (
        path.read_text().splitlines()[1] == "#   paleo-lite serve llama-3-8b --gpu h100-sxm --rate 1 --num-requests 20"
    )
    jsonschema.validate(yaml.safe_load(path.read_text()), COMPOSE)


@pytest.mark.thorough
def test_the_advised_deployment_is_the_one_that_is_started(tmp_path: Path) -> None:
    path = tmp_path / "best.kubernetes.yaml"
    question = pl.Serve("llama-3-8b", gpu="h100-sxm", tensor=1, weights="fp8", rate=10, advise="cost")
    best = json.loads(json.dumps(pl.serve("llama-3-8b", gpu="h100-sxm", tensor=1, weights="fp8", rate=10,
                                          advise="cost").to_dict()))["advice"]["best"]  # fmt: skip
    pl.report(question, path)
    workload, _ = yaml.safe_load_all(path.read_text())
    arguments = workload["spec"]["template"]["spec"]["containers"][0]["args"]
    assert workload["spec"]["replicas"] == best["replicas"]
    assert arguments[arguments.index("--max-num-seqs") + 1] == str(best["batch_limit"])


def test_advice_without_enough_devices_starts_nothing(tmp_path: Path) -> None:
    question = pl.Serve(
        "llama-3.2-1b", gpu="l40s", rate=200, weights="bf16", tensor=1, max_sequences=8, workers=1, advise="cost",
        output_tokens=64, num_requests=50,
    )  # fmt: skip
    with pytest.raises(PaleoError, match=r"no deployment fits into `--workers 1`, the nearest needs \d+: give more"):
        pl.report(question, tmp_path / "best.compose.yaml")


def test_a_comparison_has_no_file(tmp_path: Path) -> None:
    with pytest.raises(PaleoError, match="one value of every option"):
        pl.report(pl.Serve("llama-3-8b", gpu=["h100-sxm", "l40s"], rate=1, num_requests=20), tmp_path / "a.dynamo.yaml")


def test_the_volume_holds_the_checkpoint_of_the_network() -> None:
    """8.03e9 parameters of 2 bytes are 15 GiB; a fifth more and 10 GiB are left for what lies beside them."""
    (values,) = llm_d_values(make_deployment(pl.Serve("llama-3.1-8b", gpu="h100-sxm"))).documents
    assert values["modelArtifacts"]["size"] == f"{int(1.2 * 2 * 8_030_261_248 / 2**30) + 10}Gi"

"""Files that start a deployment: Docker Compose, Kubernetes, llm-d's values and Dynamo's graph.

They say what the simulation assumes: devices, division, limits and formats, by the options that the engine's record
has. They name the versions of what they were written for, and nothing here ever applies them.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from ..engines.records import SERVERS
from ..engines.records.record import DynamoWorker, Server
from ..errors import BadValue, join_with_or
from ..text import slug
from .launch import (
    CONFIGURATION,
    LaunchParts,
    count_nodes,
    host_devices,
    launch_notes,
    launch_parts,
    pools_of,
    why_not_launched,
)
from .nodes import has_several_devices, host_notes, node_notes, node_selector
from .routers import RANDOM, ROUND_ROBIN
from .yaml_text import to_yaml

if TYPE_CHECKING:
    from .deployment import Deployment

PORT = 8000
"""Port at which requests are answered."""

TOKEN = "HF_TOKEN"
"""Variable with which networks are loaded from Hugging Face."""

SHELL = ["sh", "-c"]
NO_LABELS: Mapping[str, str] = {}
"""Labels of pods that may run on all nodes."""

SERVICE_NAMES = {"worker": "server", "prefill": "prefill", "decode": "decode"}
"""Names of the services of a Compose file, by the role of their pool."""

POD_ADDRESS = {"fieldRef": {"fieldPath": "status.podIP"}}

NGINX_IMAGE = "nginx:1.29"
LLM_D_PROXY_PORT = 8200
"""Port of a server behind the chart's proxy, which fetches keys and values."""

NIXL_PORT = 5557


class StartFile(NamedTuple):
    """A file that starts a deployment."""

    documents: list[dict[str, Any]]
    versions: str  # what it was written for
    start: str  # the command that applies it
    notes: tuple[str, ...]  # what it does not state

    def text(self, name: str, question: str) -> str:
        """Return the content of a file of some name for the command of a question."""
        lines = [f"Written for {self.versions}, from the forecast of", f"  {question}", f"Start it with: {self.start}"]
        comments = [f"# {line.format(file=name)}" for line in (*lines, *self.notes)]
        return "\n".join([*comments, "---\n".join(["", *map(to_yaml, self.documents)]).removeprefix("---\n")])


def compose_file(deployment: Deployment) -> StartFile:
    """Return the Compose file of replicas on one computer, with a proxy or the router of split pools before them."""
    services: dict[str, Any] = {}
    roles: list[tuple[str, str]] = []
    first = 0
    for role, pool in pools_of(deployment).items():
        parts = _checked_parts(pool, role)
        if has_several_devices(deployment):  # of a computer of its own
            first = 0
        for replica in range(pool.replicas):
            devices = [str(first + number) for number in range(pool.on_device.devices)]
            first += len(devices)
            name = f"{SERVICE_NAMES[role]}-{replica}"
            services[name] = _compose_service(pool, parts, role, devices)
            roles.append((name, role))
        most = host_devices(pool)
        if first > most:
            raise BadValue(
                f"a Compose file starts at most the {most} devices of one computer (got {deployment.devices}): "
                f"name the file {'.kubernetes.yaml' if count_nodes(pool) == 1 else '.dynamo.yaml'}"
            )
    content: dict[str, Any] = {"name": _name_of(deployment), "services": services, "volumes": {"models": {}}}
    ports = [f"{PORT}:{PORT}"]
    if len(services) == 1:
        services["server-0"]["ports"] = ports
    elif deployment.prefill is None:
        services["proxy"] = {
            "image": NGINX_IMAGE,
            "ports": ports,
            "configs": [{"source": "proxy", "target": "/etc/nginx/conf.d/default.conf"}],
            "depends_on": list(services),
        }
        content["configs"] = {"proxy": {"content": _proxy(deployment)}}
    else:
        addresses = {role: [name for name in services if name.startswith(role)] for role in pools_of(deployment)}
        services["router"] = {
            "image": _launcher_of(deployment).image,
            "entrypoint": SHELL,
            "command": [_router_command(deployment, addresses)],
            "ports": ports,
            "depends_on": list(services),
        }
    versions = f"the Compose Specification, {_launcher_of(deployment).image}"
    notes = (*_notes_of(deployment), *host_notes(deployment, roles))
    return StartFile([content], versions, "docker compose -f {file} up", notes)


def _compose_service(pool: Deployment, parts: LaunchParts, role: str, devices: list[str]) -> dict[str, Any]:
    """Return the service of a replica of a pool on some devices."""
    entrypoint, command = _entrypoint(parts), _arguments(parts)
    address_variable = "" if role == "worker" else _launcher_of(pool).pools.address_variable
    if address_variable:  # a container knows its address when it runs; Compose reads two dollar signs as one
        words = shlex.join([*parts.command, *command])
        entrypoint, command = SHELL, [f"{address_variable}=$$(hostname -i) {words}"]
    return {
        "image": _launcher_of(pool).image,
        "entrypoint": entrypoint,
        "command": command,
        "environment": {TOKEN: f"${{{TOKEN}:-}}", **parts.environment},
        "ipc": "host",
        "volumes": ["models:/root/.cache/huggingface"],
        "healthcheck": {
            "test": ["CMD", "curl", "-f", f"http://localhost:{PORT}/health"],
            "interval": "30s",
            "start_period": "30m",
        },
        "deploy": {
            "resources": {
                "reservations": {
                    "devices": [{"driver": "nvidia", "device_ids": devices, "capabilities": ["gpu"]}],
                }
            }
        },
    }


def _router_command(deployment: Deployment, hosts: Mapping[str, list[str]]) -> str:
    """Return the command of the router before the hosts of both pools."""
    addresses = {role: [f"http://{host}:{PORT}" for host in named] for role, named in hosts.items()}
    command: str = _launcher_of(deployment).pools.router(addresses["prefill"], addresses["decode"], PORT)
    return command


def kubernetes_file(deployment: Deployment) -> StartFile:
    """Return a Deployment of the replicas and the Service that spreads requests over them.

    Of split pools every pool is a StatefulSet, whose pods have names, and the Deployment is that of the router.
    """
    name, image = _name_of(deployment), _launcher_of(deployment).image
    notes = (*_notes_of(deployment), *node_notes(deployment))
    documents: list[dict[str, Any]] = []
    if deployment.prefill is None:
        container = _container(deployment, "worker")
        documents += [_workload("Deployment", name, deployment.replicas, container)]
        if deployment.replicas > 1:
            notes += ("A Service spreads connections, not requests: clients that keep one open stay at one replica.",)
    else:
        hosts = {}
        for role, pool in pools_of(deployment).items():
            of_pool = f"{name}-{role}"
            hosts[role] = [f"{of_pool}-{replica}.{of_pool}" for replica in range(pool.replicas)]
            documents += [
                _workload(
                    "StatefulSet", of_pool, pool.replicas, _container(pool, role), node_selector(deployment, pool)
                ),
                _service(of_pool, clusterIP="None"),
            ]
        router = {
            "name": "router",
            "image": image,
            "command": SHELL,
            "args": [_router_command(deployment, hosts)],
            "ports": [{"containerPort": PORT, "name": "http"}],
        }
        documents += [_workload("Deployment", name, 1, router)]
    documents += [_service(name)]
    return StartFile(documents, f"Kubernetes apps/v1, {image}", "kubectl apply -f {file}", notes)


def _container(pool: Deployment, role: str) -> dict[str, Any]:
    """Return the container of a replica of a pool."""
    parts = _checked_parts(pool, role)
    _check_node(pool)
    probe = {"httpGet": {"path": "/health", "port": PORT}}
    variables = _variables(parts)
    address_variable = "" if role == "worker" else _launcher_of(pool).pools.address_variable
    if address_variable:
        variables += [{"name": address_variable, "valueFrom": POD_ADDRESS}]
    return {
        "name": "server",
        "image": _launcher_of(pool).image,
        "command": _entrypoint(parts),
        "args": _arguments(parts),
        "env": variables,
        "ports": [{"containerPort": PORT, "name": "http"}],
        "resources": {"limits": {"nvidia.com/gpu": str(pool.on_device.devices)}},
        "startupProbe": {**probe, "periodSeconds": 10, "failureThreshold": 180},
        "readinessProbe": {**probe, "periodSeconds": 5},
        "volumeMounts": [{"name": "shared-memory", "mountPath": "/dev/shm"}],
    }


def _workload(
    kind: str, name: str, replicas: int, container: dict[str, Any], nodes: Mapping[str, str] = NO_LABELS
) -> dict[str, Any]:
    """Return a Deployment or a StatefulSet of pods with one container, on nodes with some labels."""
    labels = {"app.kubernetes.io/name": name}
    pod: dict[str, Any] = {"containers": [container]}
    if nodes:
        pod["nodeSelector"] = dict(nodes)
    if "volumeMounts" in container:
        pod["volumes"] = [{"name": "shared-memory", "emptyDir": {"medium": "Memory"}}]
    further_fields = {"serviceName": name} if kind == "StatefulSet" else {}
    return {
        "apiVersion": "apps/v1",
        "kind": kind,
        "metadata": {"name": name, "labels": labels},
        "spec": {
            **further_fields,
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }


def _service(name: str, **options: str) -> dict[str, Any]:
    """Return a Service before the pods of a name."""
    labels = {"app.kubernetes.io/name": name}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "labels": labels},
        "spec": {**options, "selector": labels, "ports": [{"name": "http", "port": PORT, "targetPort": "http"}]},
    }


def _is_of_llm_d(server: Server) -> bool:
    """Return whether llm-d's chart starts an engine."""
    return server.launcher is not None and bool(server.launcher.llm_d_image)


def llm_d_values(deployment: Deployment) -> StartFile:
    """Return the values of llm-d's chart of a model service."""
    pools = pools_of(deployment)
    for pool in pools.values():
        if not _is_of_llm_d(pool.engine):
            started = join_with_or(sorted({server.program for server in SERVERS.values() if _is_of_llm_d(server)}))
            raise BadValue(f"llm-d's chart starts {started} (got {pool.engine.name}): name the file .dynamo.yaml")
        _check_node(pool)
    decode = pools.get("decode", deployment)
    repository = _checked_parts(decode).repository
    values: dict[str, Any] = {
        "multinode": False,
        "modelArtifacts": {
            "name": repository,
            "uri": f"hf://{repository}",
            "size": f"{_storage_gib(decode)}Gi",
            "labels": {"llm-d.ai/inferenceServing": "true", "llm-d.ai/model": _name_of(deployment)},
            "authSecretName": "hf-token",
        },
        "routing": {"servicePort": PORT, "proxy": {"enabled": False}},
        "prefill": {"create": False, "replicas": 0},
    }
    if deployment.prefill is None:
        values["decode"] = _llm_d_pool(deployment, PORT)
    else:
        values["routing"]["proxy"] = {"enabled": True, "connector": "nixlv2", "secure": False}
        values["prefill"] = _llm_d_pool(pools["prefill"], PORT, is_split=True)
        values["decode"] = _llm_d_pool(decode, LLM_D_PROXY_PORT, is_split=True)
    versions = f"llm-d-modelservice v0.4.0, {_launcher_of(decode).llm_d_image}"
    start = f"helm install {_name_of(deployment)} llm-d-modelservice/llm-d-modelservice -f {{file}}"
    return StartFile([values], versions, start, (*_notes_of(deployment), *node_notes(deployment, is_stated=False)))


def dynamo_graph(deployment: Deployment) -> StartFile:
    """Return Dynamo's graph: a frontend, and the workers of each pool."""
    pools = pools_of(deployment)
    router: dict[str, Any] = {}
    if deployment.router != ROUND_ROBIN:
        mode = deployment.router if deployment.router == RANDOM else "kv"
        router = {"envs": [{"name": "DYN_ROUTER_MODE", "value": mode}]}
    decode = pools.get("decode", deployment)
    frontend_image = _dynamo_of(decode).image
    services: dict[str, Any] = {
        "Frontend": {
            "componentType": "frontend",
            "replicas": 1,
            **router,
            "extraPodSpec": {"mainContainer": {"image": frontend_image}},
        }
    }
    for role, pool in pools.items():
        services[role] = _dynamo_service(pool, role, node_selector(deployment, pool))
    graph = {
        "apiVersion": "nvidia.com/v1alpha1",
        "kind": "DynamoGraphDeployment",
        "metadata": {"name": _name_of(deployment)},
        "spec": {"services": services},
    }
    images = dict.fromkeys(_dynamo_of(pool).image for pool in pools.values())
    versions = f"Dynamo 1.4.0 (nvidia.com/v1alpha1), {', '.join(images)}"
    notes = (*_notes_of(deployment), *node_notes(deployment))
    return StartFile([graph], versions, "kubectl apply -f {file}", notes)


def _llm_d_pool(pool: Deployment, port: int, *, is_split: bool = False) -> dict[str, Any]:
    """Return the values of a pool of llm-d's chart."""
    parts, on_device = _checked_parts(pool), pool.on_device
    groups = on_device.division.attention_data_parallel
    values_of_chart = ["--tensor-parallel-size", "--data-parallel-size"]  # the chart has values for them
    arguments = ["--tensor-parallel-size", str(on_device.tensor // groups), *_without(parts.options, values_of_chart)]
    if groups > 1:
        arguments += ["--data-parallel-size", str(groups)]
    variables: list[dict[str, Any]] = [{"name": name, "value": value} for name, value in parts.environment.items()]
    ports = [{"containerPort": port, "protocol": "TCP"}]
    if is_split:
        arguments += _launcher_of(pool).pools.options["decode"]
        variables += [
            {"name": "VLLM_NIXL_SIDE_CHANNEL_HOST", "valueFrom": POD_ADDRESS},
            {"name": "VLLM_NIXL_SIDE_CHANNEL_PORT", "value": str(NIXL_PORT)},
        ]
        ports.append({"containerPort": NIXL_PORT, "protocol": "TCP"})
    devices = {"nvidia.com/gpu": str(on_device.devices)}
    container = {
        "name": "vllm",
        "image": _launcher_of(pool).llm_d_image,
        "modelCommand": "vllmServe",
        "args": arguments,
        "env": variables,
        "ports": ports,
        "resources": {"limits": devices, "requests": devices},
        "mountModelVolume": True,
    }
    parallelism = {"tensor": on_device.tensor // groups, "data": groups, "dataLocal": groups, "workers": 1}
    return {"create": True, "replicas": pool.replicas, "parallelism": parallelism, "containers": [container]}


def _dynamo_of(pool: Deployment) -> DynamoWorker:
    """Return Dynamo's worker for the engine of a pool; raise BadValue if it has none."""
    worker: DynamoWorker | None = _launcher_of(pool).dynamo
    if worker is None:
        raise BadValue(f"Dynamo has no worker for {pool.engine.name}")
    return worker


def _dynamo_service(pool: Deployment, role: str, labels: Mapping[str, str]) -> dict[str, Any]:
    """Return the workers of a pool in Dynamo's graph, on nodes with some labels."""
    launcher, parts, devices = _launcher_of(pool), _checked_parts(pool), pool.on_device.devices
    worker = _dynamo_of(pool)
    arguments = [worker.repository_option, parts.repository, "--served-model-name", parts.repository]
    if launcher.file_option:
        arguments += ["--override-engine-args", json.dumps({**_engine_arguments(pool), **parts.entries})]
    else:
        arguments += parts.options
    service: dict[str, Any] = {"componentType": "worker"}
    if role != "worker":
        service["subComponentType"] = role
        arguments += ["--disaggregation-mode", role, *worker.pool_options]
    nodes = count_nodes(pool)
    if nodes > 1:
        service["multinode"] = {"nodeCount": nodes}
    container: dict[str, Any] = {
        "image": worker.image,
        "command": ["python3", "-m", worker.module],
        "args": arguments,
    }
    if parts.environment:
        container["env"] = [{"name": name, "value": value} for name, value in parts.environment.items()]
    selected = {"nodeSelector": dict(labels)} if labels else {}
    return {
        **service,
        "envFromSecret": "hf-token-secret",
        "replicas": pool.replicas,
        "resources": {"limits": {"gpu": str(devices // nodes)}},
        "extraPodSpec": {**selected, "mainContainer": container},
    }


def _engine_arguments(pool: Deployment) -> dict[str, Any]:
    """Return the arguments of TensorRT-LLM's engine, by the names of its `LlmArgs`."""
    on_device, engine = pool.on_device, pool.engine
    cache: dict[str, Any] = {"free_gpu_memory_fraction": engine.memory_fraction}
    if on_device.kv_cache in _launcher_of(pool).kv_cache:
        cache["dtype"] = _launcher_of(pool).kv_cache[on_device.kv_cache]
    longest = {} if pool.longest_request is None else {"max_seq_len": pool.longest_request}
    return {
        **longest,
        "tensor_parallel_size": on_device.tensor,
        "pipeline_parallel_size": on_device.pipeline.degree,
        "moe_expert_parallel_size": on_device.division.expert_parallel,
        "enable_attention_dp": on_device.division.attention_data_parallel > 1,
        "max_batch_size": engine.max_sequences,
        "max_num_tokens": engine.max_batched_tokens,
        "kv_cache_config": cache,
    }


def _launcher_of(deployment: Deployment) -> Any:
    launcher = deployment.engine.launcher
    if launcher is None or not launcher.image:
        raise BadValue(f"no container image of {deployment.engine.name} is on record: use the printed command")
    return launcher


def _checked_parts(deployment: Deployment, role: str = "worker") -> LaunchParts:
    """Return the parts of the command of a pool in a role; raise BadValue if the engine cannot be launched like it."""
    _launcher_of(deployment)
    reason = why_not_launched(deployment, role)
    if reason:
        raise BadValue(f"no file starts it: {reason}")
    device = deployment.on_device.machine.device
    if device.vendor != "NVIDIA":
        raise BadValue(f"files are written for devices of NVIDIA: images and resources of {device.name} are others")
    return launch_parts(deployment, role)


def _check_node(deployment: Deployment) -> None:
    if count_nodes(deployment) > 1:
        raise BadValue(
            f"a replica of {deployment.on_device.devices} devices spans several nodes of {host_devices(deployment)}, "
            "but a pod has one: name the file .dynamo.yaml"
        )


def _name_of(deployment: Deployment) -> str:
    """Return a name that Docker and Kubernetes accept."""
    return slug(deployment.on_device.workload.network.name)[:50]


def _storage_gib(deployment: Deployment) -> int:
    """Return the GiB of a volume that holds the checkpoint, which may have 16 bits."""
    on_device = deployment.on_device
    parameters = sum(layer.parameters for layer in on_device.workload.layers)
    return int(1.2 * 2 * parameters / 2**30) + 10


def _entrypoint(parts: LaunchParts) -> list[str]:
    """Return the program of a container: the engine, or a shell that writes the file with its options before."""
    return SHELL if parts.lines else parts.command


def _arguments(parts: LaunchParts) -> list[str]:
    """Return the arguments of the program of a container."""
    address = ["--host", "0.0.0.0", "--port", str(PORT)]
    words = [parts.repository, *parts.options, *address]
    if not parts.lines:
        return words
    command = shlex.join([*parts.command, *words])
    return [
        f"printf '%s\\n' {shlex.join(parts.lines)} > {CONFIGURATION} && {command} {parts.file_option} {CONFIGURATION}"
    ]


def _variables(parts: LaunchParts) -> list[dict[str, Any]]:
    """Return the environment of a container of Kubernetes."""
    secret = {"secretKeyRef": {"name": "hf-token", "key": TOKEN, "optional": True}}
    return [
        {"name": TOKEN, "valueFrom": secret},
        *({"name": name, "value": value} for name, value in parts.environment.items()),
    ]


def _without(options: list[str], names: list[str]) -> list[str]:
    """Return options without those of some names, which have values."""
    remaining: list[str] = []
    skips = False
    for word in options:
        if skips:
            skips = False
        elif word in names:
            skips = True
        else:
            remaining.append(word)
    return remaining


def _proxy(deployment: Deployment) -> str:
    """Return the configuration of a proxy before replicas."""
    servers = "".join(f"  server server-{replica}:{PORT};\n" for replica in range(deployment.replicas))
    policy = {ROUND_ROBIN: "", RANDOM: "  random;\n"}.get(deployment.router, "  least_conn;\n")
    return (
        f"upstream servers {{\n{policy}{servers}}}\n"
        f"server {{\n  listen {PORT};\n  location / {{\n    proxy_pass http://servers;\n    proxy_buffering off;\n"
        "    proxy_read_timeout 1h;\n  }\n}\n"
    )


def _notes_of(deployment: Deployment) -> tuple[str, ...]:
    """Return notes on settings that the start file cannot express."""
    notes = [note for pool in pools_of(deployment).values() for note in launch_notes(pool)]
    if deployment.router not in (ROUND_ROBIN, RANDOM, "least-loaded"):
        notes.append(
            f"The router {deployment.router!r} of the forecast is that of a gateway, which this file may not have."
        )
    return tuple(dict.fromkeys(notes))

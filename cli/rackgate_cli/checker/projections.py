"""From an object's JSON to its row; what no rule looks at is not even decoded."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from functools import lru_cache
from sys import intern
from typing import Any, Final, TypeVar

import msgspec

from rackgate.api import names
from rackgate.quantity import QuantityError, amount
from rackgate.resources import pod_requests
from rackgate.wire import core
from rackgate.wire.core import View
from rackgate.wire.depth import tolerant
from rackgate_cli.checker import rows

R = TypeVar("R")
Decode = Callable[[bytes | msgspec.Raw], R]

UNGATER: Final = "rackgate-ungater"
ADMITTERS: Final = (str(names.FieldManager.ADMISSION), "kueue-admission")
SHARED_LIMIT: Final = 65536


@lru_cache(maxsize=65536)
def seconds(moment: str | None) -> float:
    """Unix time of a timestamp; 0 for none, or for what is no time."""
    try:
        return datetime.fromisoformat(moment).timestamp() if moment else 0.0
    except ValueError:
        return 0.0


class Managed(View, frozen=True):
    """Who wrote last, and when; which fields is only decoded where it is asked for."""

    manager: str = ""
    subresource: str = ""
    time: str | None = None


class ManagedMeta(core.Meta, frozen=True):
    """Metadata with its writers."""

    managed_fields: tuple[Managed, ...] = ()


def written_at(meta: ManagedMeta, managers: Iterable[str], subresource: str) -> float:
    """When one of these managers wrote last; 0 for never."""
    return max(
        (
            seconds(entry.time)
            for entry in meta.managed_fields
            if entry.manager in managers and entry.subresource == subresource
        ),
        default=0.0,
    )


def _amounts(quantities: Mapping[str, str | int | float]) -> dict[str, int]:
    """Amounts by resource; one that cannot be read counts as absent."""
    found: dict[str, int] = {}
    for resource, value in quantities.items():
        try:
            found[resource] = amount(resource, value)
        except QuantityError:
            continue
    return found


# Nodes.

_node = tolerant(msgspec.json.Decoder(core.Node).decode)


def node_row(raw: bytes | msgspec.Raw) -> rows.NodeRow:
    """A node's labels and allocatable amounts."""
    node = _node(raw)
    return rows.NodeRow(
        name=node.metadata.name,
        labels={intern(key): intern(value) for key, value in node.metadata.labels.items()},
        allocatable=_amounts(node.status.allocatable),
        version=node.metadata.resource_version,
        uid=node.metadata.uid,
    )


# Pods.


class _Container(View, frozen=True):
    """Resources stay raw: pods of one Job have them in common, and are looked up by them."""

    resources: msgspec.Raw = msgspec.Raw(b"{}")
    restart_policy: str | None = None


class _PodSpec(View, frozen=True):
    node_name: str = ""
    node_selector: dict[str, str] = msgspec.field(default_factory=dict)
    scheduling_gates: tuple[core.SchedulingGate, ...] = ()
    containers: tuple[_Container, ...] = ()
    init_containers: tuple[_Container, ...] = ()
    overhead: msgspec.Raw = msgspec.Raw(b"{}")
    resources: msgspec.Raw = msgspec.Raw(b"{}")


class _PodStatus(View, frozen=True):
    conditions: tuple[core.Condition, ...] = ()


class _Pod(View, frozen=True):
    metadata: ManagedMeta = ManagedMeta()
    spec: _PodSpec = _PodSpec()
    status: _PodStatus = _PodStatus()


_pod = tolerant(msgspec.json.Decoder(_Pod).decode)
_requests_by_raw: dict[Any, rows.Amounts] = {}
_shared: dict[Any, Any] = {}


def _one(key: Any, value: R) -> R:
    """An equal value that is kept already; only new ones are kept anew."""
    found: R = _shared.setdefault((type(value), key), value)
    if len(_shared) > SHARED_LIMIT:
        _shared.clear()  # what is in use stays in use
    return found


def _containers(found: Iterable[_Container]) -> tuple[tuple[bytes, str | None], ...]:
    return tuple((bytes(one.resources), one.restart_policy) for one in found)


def _requests(spec: _PodSpec) -> rows.Amounts:
    """What a pod takes of its node."""
    running, starting = _containers(spec.containers), _containers(spec.init_containers)
    key = (running, starting, bytes(spec.overhead), bytes(spec.resources))
    known = _requests_by_raw.get(key)
    if known is None:
        whole = core.PodSpec(
            containers=_resources(running),
            init_containers=_resources(starting),
            overhead=msgspec.json.decode(spec.overhead, type=dict[str, str | int | float]),
            resources=msgspec.json.decode(spec.resources, type=core.Resources),
        )
        if len(_requests_by_raw) >= SHARED_LIMIT:
            _requests_by_raw.clear()
        known = _requests_by_raw[key] = amounts_of(whole)
    return known


def _resources(containers: Iterable[tuple[bytes, str | None]]) -> tuple[core.Container, ...]:
    return tuple(
        core.Container(
            resources=msgspec.json.decode(raw, type=core.Resources), restart_policy=policy
        )
        for raw, policy in containers
    )


def amounts_of(spec: core.PodSpec) -> rows.Amounts:
    """A pod's requests, sorted; none where they cannot be read."""
    try:
        return tuple(sorted(pod_requests(spec).items()))
    except QuantityError:  # the API server lets no such pod through
        return ()


def pod_row(raw: bytes | msgspec.Raw) -> rows.PodRow:
    """A pod, whatever its phase."""
    pod = _pod(raw)
    meta, spec = pod.metadata, pod.spec
    owner = meta.controller
    selector = spec.node_selector
    created_at = seconds(meta.creation_timestamp)
    bound = next(
        (c for c in pod.status.conditions if c.type == "PodScheduled" and c.status == "True"), None
    )
    return rows.PodRow(
        namespace=intern(meta.namespace),
        name=meta.name,
        uid=meta.uid,
        version=meta.resource_version,
        owner=intern(owner.uid) if owner else "",
        owner_name=intern(owner.name) if owner else "",
        workload=intern(meta.annotations.get(names.WORKLOAD_ANNOTATION, "")),
        podset=intern(meta.labels.get(names.PODSET_LABEL, "")),
        gates=tuple(intern(gate.name) for gate in spec.scheduling_gates),
        selector=_one(tuple(selector.items()), selector),
        node=intern(spec.node_name),
        requests=_requests(spec),
        index=_index(meta),
        terminating=meta.deletion_timestamp is not None,
        ends_at=seconds(meta.deletion_timestamp),
        created_at=created_at,
        scheduled_at=seconds(bound.last_transition_time) if bound else created_at,
        released_at=written_at(meta, (UNGATER,), ""),
    )


def _index(meta: core.Meta) -> int:
    text = meta.labels.get(names.COMPLETION_INDEX_LABEL, "")
    if names.POD_INDEX_OFFSET in meta.annotations or not text.isdecimal() or len(text) > 9:
        return -1
    return int(text)


# Jobs.


class _TemplateSpec(View, frozen=True):
    node_selector: dict[str, str] = msgspec.field(default_factory=dict)
    tolerations: tuple[dict[str, Any], ...] = ()
    scheduling_gates: tuple[core.SchedulingGate, ...] = ()
    priority_class_name: str = ""


class Template(View, frozen=True):
    """A pod template, as far as Rackgate writes to it."""

    metadata: core.Meta = core.Meta()
    spec: _TemplateSpec = _TemplateSpec()


class _JobSpec(View, frozen=True):
    suspend: bool = False
    parallelism: int = 1
    completions: int | None = None
    completion_mode: str = "NonIndexed"
    managed_by: str | None = None
    template: Template = Template()


class _JobStatus(View, frozen=True):
    start_time: str | None = None
    conditions: tuple[core.Condition, ...] = ()


class _Job(View, frozen=True):
    metadata: core.Meta = core.Meta()
    spec: _JobSpec = _JobSpec()
    status: _JobStatus = _JobStatus()


_job = tolerant(msgspec.json.Decoder(_Job).decode)
_canonical = msgspec.json.Encoder(order="deterministic").encode


def placing_of(template: Template) -> str:
    """Canonical text of what a start adds to besides marks."""
    spec = template.spec
    return _canonical([spec.node_selector, spec.tolerations]).decode()


def _marks(template: Template) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Rackgate's marks on a template, and those of them that it has from its creation."""
    meta, gates = template.metadata, {gate.name for gate in template.spec.scheduling_gates}
    asks = any(key in meta.annotations for key in names.TOPOLOGY_ANNOTATIONS)
    found: list[str] = []
    if names.WORKLOAD_ANNOTATION in meta.annotations:
        found.append(f"annotation {names.WORKLOAD_ANNOTATION}")
    if names.TAS_LABEL in meta.labels:
        found.append(f"label {names.TAS_LABEL}")
    if names.ELASTIC_GATE in gates:
        found.append(f"gate {names.ELASTIC_GATE}")
    created: list[str] = []
    if names.PODSET_LABEL in meta.labels:
        created.append(f"label {names.PODSET_LABEL}")
    if names.TOPOLOGY_GATE in gates:
        created.append(f"gate {names.TOPOLOGY_GATE}")
    return (*found, *created), tuple(created) if asks else ()


def job_row(raw: bytes | msgspec.Raw) -> rows.JobRow:
    """A Job."""
    job = _job(raw)
    meta, spec, template = job.metadata, job.spec, job.spec.template
    labelled = names.QUEUE_LABEL in meta.labels
    true = {c.type: c for c in job.status.conditions if c.status == "True"}
    turned = [c.last_transition_time for c in job.status.conditions if c.type == "Suspended"]
    moments = [meta.creation_timestamp, job.status.start_time, *turned]
    marks, created = _marks(template)
    marked = names.WORKLOAD_ANNOTATION in meta.annotations
    named = spec.template.spec.priority_class_name or names.PRIORITY_CLASS_LABEL in meta.labels
    completions = spec.parallelism if spec.completions is None else spec.completions
    return rows.JobRow(
        namespace=intern(meta.namespace),
        name=meta.name,
        uid=intern(meta.uid),
        version=meta.resource_version,
        labelled=labelled,
        governed=bool(meta.labels.get(names.QUEUE_LABEL))
        and meta.namespace not in names.UNMANAGED_NAMESPACES
        and spec.managed_by in (None, "kubernetes.io/job-controller"),
        owned=meta.controller is not None,
        suspended=spec.suspend,
        finished="Complete" in true or "Failed" in true,
        deleting=meta.deletion_timestamp is not None,
        count=max(0, min(spec.parallelism, completions)),
        whole=spec.completion_mode == "Indexed" and completions == spec.parallelism,
        settled_at=max(map(seconds, moments)),
        marks=_one(marks, marks),
        created_marks=_one(created, created),
        started=marked or names.WORKLOAD_ANNOTATION in template.metadata.annotations,
        named_class=bool(named),
        placing=_one(placing := placing_of(template), placing) if labelled else "",
    )

"""Plain pods as they are stored: the fields that queueing a group needs.

Pods of one role request the same. The role of a pod that was not started is a hash of what it
requests. A start changes that (`nodeSelector`, tolerations), so a started pod carries its role in
the PodSet label, which no one else may write.
"""

from __future__ import annotations

import hashlib
from typing import Any, Final

import msgspec

from rackgate.api.names import (
    ADMISSION_GATE,
    MANAGED_FINALIZER,
    POD_GROUP_INDEX_ANNOTATION,
    POD_GROUP_INDEX_LABEL,
    POD_GROUP_LABEL,
    PODSET_GROUP,
    PODSET_LABEL,
    RETRIABLE_ANNOTATION,
    SLICE_SIZE,
    TOPOLOGY_ANNOTATIONS,
    TOPOLOGY_GATE,
    WORKLOAD_ANNOTATION,
)
from rackgate.jobframework.podsets import without_empty
from rackgate.jobframework.topology_request import topology_request
from rackgate.wire.core import Condition, Meta, SchedulingGate, View

# Released together: a pod may come with both.
POD_GATES: Final = (ADMISSION_GATE, TOPOLOGY_GATE)
_ROLE_DIGITS: Final = 8
_SHARED_LIMIT: Final = 4096
_TOPOLOGY: Final = frozenset((*TOPOLOGY_ANNOTATIONS, SLICE_SIZE, PODSET_GROUP))
# Fields of a pod's spec that decide how much it uses and where it can run.
_SHAPE: Final = (
    "resources",
    "overhead",
    "nodeSelector",
    "affinity",
    "tolerations",
    "runtimeClassName",
    "priorityClassName",
    "topologySpreadConstraints",
    "resourceClaims",
)
_CONTAINER_SHAPE: Final = ("resources", "restartPolicy")


class Role(msgspec.Struct, frozen=True):
    """What pods of one role request.

    Attributes:
        name: of the PodSet.
        template: the pod template of the PodSet.
        request: its topologyRequest, None without one.
    """

    name: str
    template: dict[str, Any]
    request: dict[str, Any] | None = None


class GroupPod(msgspec.Struct, frozen=True):
    """One plain pod.

    Attributes:
        metadata: labels and annotations included.
        role: what it requests; of a started pod only the name is certain.
        node: the node it is bound to, "" without one.
        phase: `status.phase`.
        ready: condition Ready is True.
        gates: names of all its scheduling gates.
        node_selector: as stored.
        tolerations: as stored.
        folders: its emptyDir volumes. They are part of its shape, and not of its role.
    """

    metadata: Meta
    role: Role
    node: str = ""
    phase: str = ""
    ready: bool = False
    gates: tuple[str, ...] = ()
    node_selector: dict[str, str] = {}
    tolerations: tuple[dict[str, Any], ...] = ()
    folders: tuple[dict[str, Any], ...] = ()

    @property
    def started(self) -> bool:
        """Whether it was started under an admission."""
        return WORKLOAD_ANNOTATION in self.metadata.annotations

    @property
    def succeeded(self) -> bool:
        """Whether it has done its work."""
        return self.phase == "Succeeded"

    @property
    def failed(self) -> bool:
        """Whether it has ended without success."""
        return self.phase == "Failed"

    @property
    def terminating(self) -> bool:
        """Whether it is being deleted."""
        return self.metadata.deletion_timestamp is not None

    @property
    def active(self) -> bool:
        """Whether it runs or will run."""
        return not (self.terminating or self.succeeded or self.failed)

    @property
    def over(self) -> bool:
        """Whether none of its containers runs any more, or ever ran."""
        if self.succeeded or self.failed:
            return True
        # Deleted by force, or never bound: only finalizers keep the object.
        return self.terminating and not (
            self.node and self.metadata.deletion_grace_period_seconds != 0
        )

    @property
    def kept(self) -> bool:
        """Whether our finalizer keeps it."""
        return MANAGED_FINALIZER in self.metadata.finalizers

    @property
    def retriable(self) -> bool:
        """Whether another pod may take its place when it fails."""
        return self.metadata.annotations.get(RETRIABLE_ANNOTATION) != "false"

    @property
    def group(self) -> str:
        """Name of its group, "" for a pod alone."""
        return self.metadata.labels.get(POD_GROUP_LABEL, "")

    @property
    def age_order(self) -> tuple[str, str]:
        """Sorts the oldest first."""
        return self.metadata.creation_timestamp or "", self.metadata.name


class _PodStatus(View, frozen=True):
    phase: str = ""
    conditions: tuple[Condition, ...] = ()


class _Volume(View, frozen=True):
    name: str = ""
    empty_dir: dict[str, Any] | None = None


class _PodSpec(View, frozen=True):
    node_name: str = ""
    scheduling_gates: tuple[SchedulingGate, ...] = ()
    node_selector: dict[str, str] = {}  # noqa: RUF012 - msgspec copies empty defaults
    tolerations: tuple[dict[str, Any], ...] = ()
    containers: tuple[dict[str, Any], ...] = ()
    init_containers: tuple[dict[str, Any], ...] = ()
    resources: dict[str, Any] = {}  # noqa: RUF012 - msgspec copies empty defaults
    overhead: dict[str, Any] = {}  # noqa: RUF012 - msgspec copies empty defaults
    affinity: dict[str, Any] | None = None
    runtime_class_name: str | None = None
    priority_class_name: str | None = None
    topology_spread_constraints: tuple[dict[str, Any], ...] = ()
    resource_claims: tuple[dict[str, Any], ...] = ()
    volumes: tuple[_Volume, ...] = ()


class _Pod(View, frozen=True):
    metadata: Meta = Meta()
    spec: _PodSpec = _PodSpec()
    status: _PodStatus = _PodStatus()


_decode = msgspec.json.Decoder(_Pod).decode
_encode = msgspec.json.Encoder(order="sorted").encode
_known_roles: dict[str, Role] = {}


def decode_group_pod(raw: bytes | msgspec.Raw) -> GroupPod:
    """Decode a pod's JSON.

    Raises:
        msgspec.MsgspecError: the JSON is not a pod.
    """
    pod = _decode(raw)
    meta, spec = pod.metadata, pod.spec
    role = _role_of(pod)
    if WORKLOAD_ANNOTATION in meta.annotations and PODSET_LABEL in meta.labels:
        role = msgspec.structs.replace(role, name=meta.labels[PODSET_LABEL])
    ready = any(found.type == "Ready" and found.status == "True" for found in pod.status.conditions)
    return GroupPod(
        metadata=meta,
        role=role,
        node=spec.node_name,
        phase=pod.status.phase,
        ready=ready,
        gates=tuple(gate.name for gate in spec.scheduling_gates),
        node_selector=spec.node_selector,
        tolerations=spec.tolerations,
        folders=tuple(
            {"name": volume.name, "emptyDir": volume.empty_dir}
            for volume in spec.volumes
            if volume.empty_dir is not None
        ),
    )


def _role_of(pod: _Pod) -> Role:
    """The role of a pod by what it requests; equal roles are stored once."""
    fields = msgspec.to_builtins(pod.spec)
    spec = {key: fields.get(key) for key in _SHAPE}
    for key in ("containers", "initContainers"):
        # Without names and images: they differ between pods that request the same.
        spec[key] = [
            {"name": f"{number}", **{part: found.get(part) for part in _CONTAINER_SHAPE}}
            for number, found in enumerate(fields.get(key) or ())
        ]
    meta = pod.metadata
    annotations = {key: value for key, value in meta.annotations.items() if key in _TOPOLOGY}
    template = without_empty({"metadata": {"annotations": annotations}, "spec": spec})
    label = meta.annotations.get(POD_GROUP_INDEX_ANNOTATION, POD_GROUP_INDEX_LABEL)
    request = topology_request(template, index_label=label if label in meta.labels else None)
    digest = hashlib.sha1(_encode((template, request)), usedforsecurity=False)
    name = digest.hexdigest()[:_ROLE_DIGITS]
    known = _known_roles.get(name)
    if known is not None and known.template == template:
        return known
    if len(_known_roles) >= _SHARED_LIMIT:
        _known_roles.clear()  # roles in use stay in use
    role = _known_roles[name] = Role(name, template, request)
    return role

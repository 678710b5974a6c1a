"""Partial msgspec views of core/v1 kinds. Unknown fields are skipped while decoding."""

from __future__ import annotations

from typing import Any

import msgspec


class View(msgspec.Struct, frozen=True, rename="camel", gc=True):
    """Base of all partial views: camelCase on the wire, snake_case here, immutable."""


class OwnerReference(View, frozen=True):
    """A reference to the owner of an object."""

    kind: str = ""
    name: str = ""
    uid: str = ""
    api_version: str = ""
    controller: bool = False
    block_owner_deletion: bool = False


class Meta(View, frozen=True):
    """The part of ObjectMeta that is read."""

    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    creation_timestamp: str | None = None
    deletion_timestamp: str | None = None
    deletion_grace_period_seconds: int | None = None
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    finalizers: tuple[str, ...] = ()
    owner_references: tuple[OwnerReference, ...] = ()

    @property
    def key(self) -> str:
        """`namespace/name`, or the name alone for cluster-scoped objects."""
        return f"{self.namespace}/{self.name}" if self.namespace else self.name

    @property
    def controller(self) -> OwnerReference | None:
        """The owner reference with `controller: true`, if there is one."""
        return next((owner for owner in self.owner_references if owner.controller), None)


class MetadataOnly(View, frozen=True):
    """An object of any kind, of which only the metadata is read."""

    metadata: Meta = Meta()


class Taint(View, frozen=True):
    """A node taint."""

    key: str = ""
    value: str = ""
    effect: str = ""


class Toleration(View, frozen=True):
    """A toleration of a pod template or flavor."""

    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""
    toleration_seconds: int | None = None


class Condition(View, frozen=True):
    """A condition of any kind. `status` is "True", "False" or "Unknown"."""

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None
    observed_generation: int = 0


class NodeSpec(View, frozen=True):
    """Scheduling part of a node's spec."""

    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False


class NodeStatus(View, frozen=True):
    """Capacity and readiness of a node."""

    allocatable: dict[str, str | int | float] = {}
    conditions: tuple[Condition, ...] = ()


class Node(View, frozen=True):
    """A node."""

    metadata: Meta = Meta()
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()

    @property
    def ready(self) -> bool:
        """Whether condition Ready is True."""
        return any(c.type == "Ready" and c.status == "True" for c in self.status.conditions)


class Resources(View, frozen=True):
    """Requests and limits; quantities as written (strings, or numbers from lax clients)."""

    requests: dict[str, str | int | float] = {}
    limits: dict[str, str | int | float] = {}


class Container(View, frozen=True):
    """Requests and limits of a container, init container or sidecar."""

    name: str = ""
    resources: Resources = Resources()
    restart_policy: str | None = None


class SchedulingGate(View, frozen=True):
    """One scheduling gate."""

    name: str = ""


class SchedulingGroup(View, frozen=True):
    """The native group of a pod."""

    pod_group_name: str = ""


class PodSpec(View, frozen=True):
    """The part of a PodSpec that scheduling and accounting read."""

    node_name: str | None = None
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    overhead: dict[str, str | int | float] = {}
    resources: Resources = Resources()
    node_selector: dict[str, str] = {}
    tolerations: tuple[Toleration, ...] = ()
    scheduling_gates: tuple[SchedulingGate, ...] = ()
    affinity: dict[str, Any] | None = None
    priority_class_name: str = ""
    priority: int | None = None
    runtime_class_name: str | None = None
    termination_grace_period_seconds: int | None = None
    scheduling_group: SchedulingGroup | None = None


class ContainerStatus(View, frozen=True):
    """Resources of a container on its node, which differ from its spec during a resize."""

    name: str = ""
    resources: Resources = Resources()
    allocated_resources: dict[str, str | int | float] = {}


class PodStatus(View, frozen=True):
    """Phase, conditions and container statuses of a pod."""

    phase: str = ""
    conditions: tuple[Condition, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()
    init_container_statuses: tuple[ContainerStatus, ...] = ()


class Pod(View, frozen=True):
    """A pod."""

    metadata: Meta = Meta()
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def terminal(self) -> bool:
        """Whether the pod has ended: phase Succeeded or Failed."""
        return self.status.phase in ("Succeeded", "Failed")

    def has_gate(self, name: str) -> bool:
        """Whether the scheduling gate `name` is present."""
        return any(gate.name == name for gate in self.spec.scheduling_gates)


class PodTemplate(View, frozen=True):
    """A pod template."""

    metadata: Meta = Meta()
    spec: PodSpec = PodSpec()


class Namespace(View, frozen=True):
    """A namespace, for the namespace selectors of ClusterQueues."""

    metadata: Meta = Meta()


class PriorityClass(View, frozen=True):
    """A scheduling.k8s.io/v1 PriorityClass."""

    metadata: Meta = Meta()
    value: int = 0
    global_default: bool = False


class LimitRangeItem(View, frozen=True):
    """Limits of one type (Pod, Container); only Container has defaults."""

    type: str = ""
    max: dict[str, str | int | float] = {}
    min: dict[str, str | int | float] = {}
    default: dict[str, str | int | float] = {}
    default_request: dict[str, str | int | float] = {}
    max_limit_request_ratio: dict[str, str | int | float] = {}


class LimitRangeSpec(View, frozen=True):
    """The spec of a LimitRange."""

    limits: tuple[LimitRangeItem, ...] = ()


class LimitRange(View, frozen=True):
    """A LimitRange: defaults and limits of the pods of its namespace."""

    metadata: Meta = Meta()
    spec: LimitRangeSpec = LimitRangeSpec()


class Overhead(View, frozen=True):
    """Resources of a RuntimeClass's pods in addition to their containers."""

    pod_fixed: dict[str, str | int | float] = {}


class RuntimeClassScheduling(View, frozen=True):
    """Node selector and tolerations of a RuntimeClass's pods."""

    node_selector: dict[str, str] = {}
    tolerations: tuple[Toleration, ...] = ()


class RuntimeClass(View, frozen=True):
    """A node.k8s.io/v1 RuntimeClass."""

    metadata: Meta = Meta()
    overhead: Overhead | None = None
    scheduling: RuntimeClassScheduling | None = None

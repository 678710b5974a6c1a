"""Effective resource request of one pod, from its spec alone.

Source: `PodRequests` of k8s.io/component-helpers and the defaults that the API server gives to
pods (limits stand in for missing requests), which templates of jobs have not got yet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from rackgate.resources.quantity import QuantityError, amount

Quantities = Mapping[str, str | int | float]
Amounts = dict[str, int]


class ResourcesLike(Protocol):
    """Requests and limits, as `wire.core.Resources` has them."""

    @property
    def requests(self) -> Quantities:
        """Requests by resource name."""
        ...

    @property
    def limits(self) -> Quantities:
        """Limits by resource name."""
        ...


class ContainerLike(Protocol):
    """A container, as `wire.core.Container` has it."""

    @property
    def name(self) -> str:
        """Name, for messages."""
        ...

    @property
    def resources(self) -> ResourcesLike:
        """What it asks for."""
        ...

    @property
    def restart_policy(self) -> str | None:
        """`Always` marks an init container as a sidecar."""
        ...


class ContainerStatusLike(Protocol):
    """What a container holds on its node, as `wire.core.ContainerStatus` has it."""

    @property
    def name(self) -> str:
        """Name of the container."""
        ...

    @property
    def resources(self) -> ResourcesLike:
        """What the node has set for it."""
        ...

    @property
    def allocated_resources(self) -> Quantities:
        """What the node has set aside for it."""
        ...


class PodSpecLike(Protocol):
    """The part of a pod spec that is counted, as `wire.core.PodSpec` has it."""

    @property
    def containers(self) -> Sequence[ContainerLike]:
        """Main containers."""
        ...

    @property
    def init_containers(self) -> Sequence[ContainerLike]:
        """Init containers and sidecars, in order."""
        ...

    @property
    def overhead(self) -> Quantities:
        """What the runtime class adds."""
        ...

    @property
    def resources(self) -> ResourcesLike:
        """Resources of the pod as a whole."""
        ...


def _amounts(quantities: Quantities, where: str) -> Amounts:
    found: Amounts = {}
    for resource, value in quantities.items():
        try:
            found[resource] = amount(resource, value)
        except QuantityError as error:
            raise QuantityError(f"{where}.{resource}: {error}") from error
    return found


def _container_amounts(container: ContainerLike, where: str) -> Amounts:
    """Requests of one container; a limit counts where no request is given."""
    path = f'{where}["{container.name}"].resources'
    limits = _amounts(container.resources.limits, f"{path}.limits")
    return limits | _amounts(container.resources.requests, f"{path}.requests")


def _add(total: Amounts, more: Amounts) -> None:
    for resource, value in more.items():
        total[resource] = total.get(resource, 0) + value


def _raise_to_maximum(total: Amounts, floor: Amounts) -> None:
    for resource, value in floor.items():
        total[resource] = max(total.get(resource, value), value)


def _allocated_amounts(statuses: Sequence[ContainerStatusLike]) -> dict[str, Amounts]:
    """What containers hold on their node, by name."""
    allocated: dict[str, Amounts] = {}
    for status in statuses:
        where = f'status["{status.name}"]'
        amounts = allocated.setdefault(status.name, {})
        _raise_to_maximum(amounts, _amounts(status.resources.requests, where))
        _raise_to_maximum(amounts, _amounts(status.allocated_resources, where))
    return allocated


def _container_requests(spec: PodSpecLike, allocated: Mapping[str, Amounts]) -> Amounts:
    """Max of the running phase and every init phase; sidecars stay from their start on."""
    sidecars: Amounts = {}
    peak: Amounts = {}
    for container in spec.init_containers:
        phase = _container_amounts(container, "initContainers")
        _raise_to_maximum(phase, allocated.get(container.name, {}))
        if container.restart_policy == "Always":
            _add(sidecars, phase)
            phase = {}
        _add(phase, sidecars)
        _raise_to_maximum(peak, phase)
    running = dict(sidecars)
    for container in spec.containers:
        amounts = _container_amounts(container, "containers")
        _raise_to_maximum(amounts, allocated.get(container.name, {}))
        _add(running, amounts)
    _raise_to_maximum(running, peak)
    return running


def pod_requests(spec: PodSpecLike, statuses: Sequence[ContainerStatusLike] = ()) -> dict[str, int]:
    """Amounts that one pod takes from a node: cpu in millicores, else base units.

    The larger of the running phase (containers and sidecars) and each init phase, then pod-level
    resources in its place where given, then overhead. A resource asked as zero stays as 0.

    Args:
        spec: `wire.core.PodSpec`, or anything of that shape.
        statuses: of its containers and init containers. A container that is resized in place
            counts with the larger of what it asks for and what it holds, as for the scheduler:
            what it gives up is free only when the node has taken it back.

    Returns:
        By resource name, without `pods`: callers count the pod itself.

    Raises:
        QuantityError: a quantity cannot be read; the message names its place in the spec.
    """
    total = _container_requests(spec, _allocated_amounts(statuses))
    whole = _amounts(spec.resources.requests, "resources.requests")
    for resource, limit in _amounts(spec.resources.limits, "resources.limits").items():
        # As the API server's default: containers' sum first, the pod's limit where they are silent.
        if resource not in whole and (resource not in total or resource.startswith("hugepages-")):
            whole[resource] = limit
    total |= whole
    _add(total, _amounts(spec.overhead, "overhead"))
    total.pop("pods", None)
    return total

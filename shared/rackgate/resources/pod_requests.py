"""Effective resource requests of one pod, from its spec.

The larger of the running phase and each init phase counts, per resource; then pod-level resources,
then overhead. Limits stand in for missing requests, as the API server's defaults do: pod templates
of jobs do not have these defaults yet.

Source: `PodRequests` of k8s.io/component-helpers, `SetDefaults_Pod` of k8s.io/kubernetes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from rackgate.resources.quantity import QuantityError, amount
from rackgate.wire import core

Quantities = Mapping[str, str | int | float]
Amounts = dict[str, int]


def pod_requests(spec: core.PodSpec, statuses: Sequence[core.ContainerStatus] = ()) -> Amounts:
    """Amounts that one pod takes from a node: cpu in millicores, else base units.

    A resource with request zero is included, with 0.

    Args:
        spec: the pod's spec.
        statuses: status of its containers and init containers. During an in-place resize, a
            container counts with the larger of its request and the resources allocated on the
            node, as in kube-scheduler: what it gives up is free only after the node has resized.

    Returns:
        Amounts by resource name, without `pods`: callers count the pod itself.

    Raises:
        QuantityError: a quantity cannot be parsed; the message has its path in the spec.
    """
    allocated = _allocated_amounts(statuses)
    total = effective_total(
        (_container_amounts(one, "containers", allocated) for one in spec.containers),
        (
            (_container_amounts(one, "initContainers", allocated), one.restart_policy == "Always")
            for one in spec.init_containers
        ),
    )
    whole = _amounts(spec.resources.requests, "resources.requests")
    for resource, limit in _amounts(spec.resources.limits, "resources.limits").items():
        # As the API server's default: the sum of the containers first, else the pod's limit.
        if resource not in whole and (resource not in total or resource.startswith("hugepages-")):
            whole[resource] = limit
    total |= whole
    _add(total, _amounts(spec.overhead, "overhead"))
    total.pop("pods", None)
    return total


def effective_total(
    containers: Iterable[Amounts], init_containers: Iterable[tuple[Amounts, bool]]
) -> Amounts:
    """The larger of the running phase and each init phase, per resource.

    Args:
        containers: amounts of the main containers.
        init_containers: amounts, and whether the container is a sidecar, in order. A sidecar runs
            from its start to the end of the pod.
    """
    sidecars: Amounts = {}
    peak: Amounts = {}
    for amounts, is_sidecar in init_containers:
        phase = {} if is_sidecar else dict(amounts)
        if is_sidecar:
            _add(sidecars, amounts)
        _add(phase, sidecars)
        _raise_to_maximum(peak, phase)
    running = dict(sidecars)
    for amounts in containers:
        _add(running, amounts)
    _raise_to_maximum(running, peak)
    return running


def _amounts(quantities: Quantities, where: str) -> Amounts:
    found: Amounts = {}
    for resource, value in quantities.items():
        try:
            found[resource] = amount(resource, value)
        except QuantityError as error:
            raise QuantityError(f"{where}.{resource}: {error}") from error
    return found


def _container_amounts(
    container: core.Container, where: str, allocated: Mapping[str, Amounts]
) -> Amounts:
    path = f'{where}["{container.name}"].resources'
    limits = _amounts(container.resources.limits, f"{path}.limits")
    amounts = limits | _amounts(container.resources.requests, f"{path}.requests")
    if container.name in allocated:
        _raise_to_maximum(amounts, allocated[container.name])
    return amounts


def _allocated_amounts(statuses: Sequence[core.ContainerStatus]) -> dict[str, Amounts]:
    """Resources that are allocated to containers on their node, by container name."""
    allocated: dict[str, Amounts] = {}
    for status in statuses:
        where = f'status["{status.name}"]'
        amounts = allocated.setdefault(status.name, {})
        _raise_to_maximum(amounts, _amounts(status.resources.requests, where))
        _raise_to_maximum(amounts, _amounts(status.allocated_resources, where))
    return allocated


def _add(total: Amounts, more: Amounts) -> None:
    for resource, value in more.items():
        total[resource] = total.get(resource, 0) + value


def _raise_to_maximum(total: Amounts, floor: Amounts) -> None:
    for resource, value in floor.items():
        total[resource] = max(total.get(resource, value), value)

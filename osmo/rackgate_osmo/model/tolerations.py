"""Which nodes the pods of a pool may use: its node selector, and the taints that they tolerate."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from rackgate.resources.quantity import to_milli
from rackgate_osmo.model.model import Pool, Resource, Toleration

GPU: Final = "nvidia.com/gpu"
# As the API server's plugin ExtendedResourceToleration adds it, but for every effect.
_GPU_TOLERATION: Final = Toleration(key=GPU, operator="Exists")


def uses_gpus(resource: Resource | None) -> bool:
    """Whether a task of this resource asks for at least a part of a GPU."""
    return resource is not None and resource.gpu is not None and to_milli(resource.gpu) > 0


def tolerations_of(pool: Pool, resource: Resource | None) -> tuple[Toleration, ...]:
    """What the pod of a task tolerates: what its pool says, and GPU nodes if it asks for GPUs."""
    found = list(pool.tolerations)
    if pool.gpu_toleration and uses_gpus(resource) and _GPU_TOLERATION not in found:
        found.append(_GPU_TOLERATION)
    return tuple(found)


def tolerates(tolerations: Iterable[Toleration], key: str, value: str, effect: str) -> bool:
    """Whether pods with these tolerations may run in spite of a taint."""
    return any(
        one.key in ("", key)
        and one.effect in ("", effect)
        and (one.operator == "Exists" or one.value == value)
        for one in tolerations
    )

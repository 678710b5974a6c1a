"""What pods of tasks request and tolerate, and how KAI counts pods of several sizes."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final, TypeAlias

from rackgate.resources.quantity import amount, to_milli
from rackgate_osmo.model.workflow import Pool, Resource, Toleration

# By resource of Kubernetes, sorted; whole numbers.
Requests: TypeAlias = tuple[tuple[str, int], ...]

GPU: Final = "nvidia.com/gpu"
# Of a task's resource -> of Kubernetes.
SIZES: Final = {"cpu": "cpu", "memory": "memory", "storage": "ephemeral-storage", "gpu": GPU}
UNSIZED: Final[Requests] = (("cpu", 1000),)  # OSMO's default
_PLAIN: Final = frozenset({"cpu", "memory", GPU})
# As the API server's plugin ExtendedResourceToleration adds it, but for every effect.
_GPU_TOLERATION: Final = Toleration(key=GPU, operator="Exists")


def requests_of(resource: Resource | None) -> Requests:
    """What a task of a resource takes; one cpu where no size is given at all."""
    if resource is None:
        return UNSIZED
    sizes = {name: getattr(resource, field) for field, name in SIZES.items()}
    given = {name: amount(name, size) for name, size in sizes.items() if size is not None}
    return tuple(sorted((name, size) for name, size in given.items() if size)) if given else UNSIZED


def is_sized(resource: Resource | None) -> bool:
    """Whether any size is given."""
    return resource is not None and any(getattr(resource, field) is not None for field in SIZES)


def counted_by_largest(pods: Collection[Requests]) -> bool:
    """Whether KAI counts each pod of a subgroup as large as the largest, resource by resource.

    It does where all pods use GPUs or none does, and all ask for the same things beside cpu and
    memory; else it goes by sums.
    """
    kinds = {
        (GPU in names, names - _PLAIN) for names in (frozenset(dict(one)) for one in set(pods))
    }
    return len(kinds) == 1


def is_overcounted(pods: Collection[Requests]) -> bool:
    """Whether KAI counts more than pods ask for: they differ, and each counts as the largest."""
    return len(set(pods)) > 1 and counted_by_largest(pods)


def tolerations_of(pool: Pool, resource: Resource | None) -> tuple[Toleration, ...]:
    """What the pod of a task tolerates: what its pool says, and GPU nodes if it asks for GPUs."""
    uses_gpus = resource is not None and resource.gpu is not None and to_milli(resource.gpu) > 0
    if pool.gpu_toleration and uses_gpus and _GPU_TOLERATION not in pool.tolerations:
        return (*pool.tolerations, _GPU_TOLERATION)
    return pool.tolerations


def tolerates(tolerations: Iterable[Toleration], key: str, value: str, effect: str) -> bool:
    """Whether pods with these tolerations may run in spite of a taint."""
    return any(
        one.key in ("", key)
        and one.effect in ("", effect)
        and (one.operator == "Exists" or one.value == value)
        for one in tolerations
    )

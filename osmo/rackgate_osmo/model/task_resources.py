"""Requests and tolerations of the pods of tasks, and how KAI counts pods of different sizes."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final, TypeAlias

from rackgate.resources.quantity import amount, to_milli
from rackgate_osmo.model.workflow import Pool, Resource, Toleration

# Amounts by Kubernetes resource, sorted; integers.
Requests: TypeAlias = tuple[tuple[str, int], ...]

GPU: Final = "nvidia.com/gpu"
# Field of a task's resource -> Kubernetes resource.
SIZES: Final = {"cpu": "cpu", "memory": "memory", "storage": "ephemeral-storage", "gpu": GPU}
UNSIZED: Final[Requests] = (("cpu", 1000),)  # OSMO's default
_PLAIN: Final = frozenset({"cpu", "memory", GPU})
# Like the toleration of the admission plugin ExtendedResourceToleration, but for every effect.
_GPU_TOLERATION: Final = Toleration(key=GPU, operator="Exists")


def requests_of(resource: Resource | None) -> Requests:
    """What a task of a resource requests; one cpu if no size is given."""
    if resource is None:
        return UNSIZED
    sizes = {name: getattr(resource, field) for field, name in SIZES.items()}
    given = {name: amount(name, size) for name, size in sizes.items() if size is not None}
    return tuple(sorted((name, size) for name, size in given.items() if size)) if given else UNSIZED


def is_sized(resource: Resource | None) -> bool:
    """Whether any size is given."""
    return resource is not None and any(getattr(resource, field) is not None for field in SIZES)


def counted_by_largest(pods: Collection[Requests]) -> bool:
    """Whether KAI counts each pod of a subgroup as large as the largest one, resource by resource.

    It does so if all pods use GPUs or none does, and all request the same resources apart from cpu
    and memory. Else it compares sums.
    """
    kinds = {
        (GPU in names, names - _PLAIN) for names in (frozenset(dict(one)) for one in set(pods))
    }
    return len(kinds) == 1


def is_overcounted(pods: Collection[Requests]) -> bool:
    """Whether KAI counts more than pods request: sizes differ, and each counts as the largest."""
    return len(set(pods)) > 1 and counted_by_largest(pods)


def tolerations_of(pool: Pool, resource: Resource | None) -> tuple[Toleration, ...]:
    """Tolerations of a task's pod: those of its pool, and one for GPU nodes if it requests GPUs."""
    uses_gpus = resource is not None and resource.gpu is not None and to_milli(resource.gpu) > 0
    if pool.gpu_toleration and uses_gpus and _GPU_TOLERATION not in pool.tolerations:
        return (*pool.tolerations, _GPU_TOLERATION)
    return pool.tolerations


def tolerates(tolerations: Iterable[Toleration], key: str, value: str, effect: str) -> bool:
    """Whether pods with these tolerations may run on a node with this taint."""
    return any(
        one.key in ("", key)
        and one.effect in ("", effect)
        and (one.operator == "Exists" or one.value == value)
        for one in tolerations
    )

"""What tasks ask for, and how KAI counts pods of several sizes."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final, TypeAlias

from rackgate.resources.quantity import amount
from rackgate_osmo.model.model import Resource
from rackgate_osmo.model.tolerations import GPU

# By resource of Kubernetes, sorted; whole numbers.
Requests: TypeAlias = tuple[tuple[str, int], ...]

# Of a task's resource -> of Kubernetes.
SIZES: Final = {
    "cpu": "cpu",
    "memory": "memory",
    "storage": "ephemeral-storage",
    "gpu": GPU,
}
UNSIZED: Final[Requests] = (("cpu", 1000),)  # OSMO's default
_PLAIN: Final = frozenset({"cpu", "memory", GPU})


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
    """Whether KAI counts each pod of a part as large as the largest, resource by resource.

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

"""Which generation of the API a cluster serves, by its discovery documents. Pure."""

from __future__ import annotations

from typing import Final

import msgspec

from rackgate.gang.native import v1alpha2, v1beta1
from rackgate.gang.native.adapter import Adapter
from rackgate.wire.core import View

GROUP_PATH: Final = "/apis/scheduling.k8s.io"
# The newest first.
ADAPTERS: Final[tuple[Adapter, ...]] = (v1beta1.ADAPTER, v1alpha2.ADAPTER)


class _Version(View, frozen=True):
    version: str = ""


class _Group(View, frozen=True):
    versions: tuple[_Version, ...] = ()


class _Resource(View, frozen=True):
    name: str = ""


class _Resources(View, frozen=True):
    resources: tuple[_Resource, ...] = ()


_decode_group = msgspec.json.Decoder(_Group).decode
_decode_resources = msgspec.json.Decoder(_Resources).decode


def candidates(group: bytes) -> list[Adapter]:
    """The known generations among the served versions of the group, the newest first.

    Args:
        group: the answer to `GROUP_PATH`.

    Raises:
        msgspec.DecodeError: it is not a discovery document.
    """
    served = {one.version for one in _decode_group(group).versions}
    return [adapter for adapter in ADAPTERS if adapter.resource.version in served]


def version_path(adapter: Adapter) -> str:
    """Where the API server lists the resources of a version."""
    return f"{GROUP_PATH}/{adapter.resource.version}"


def serves_pod_groups(adapter: Adapter, resources: bytes) -> bool:
    """Whether a version has PodGroups.

    Args:
        adapter: of the version.
        resources: the answer to `version_path`.

    Raises:
        msgspec.DecodeError: it is not a discovery document.
    """
    return any(
        one.name == adapter.resource.plural for one in _decode_resources(resources).resources
    )

"""Maps values of the hostname label to nodes, so that a pod can name its node. Pure.

With a nodeSelector, kube-scheduler evaluates every node of the cluster for each pod. With a
required node affinity on the field `metadata.name`, it evaluates only that node; DaemonSets do the
same. The affinity is written in addition to the selector, and is omitted if the node is not
certain.
"""

from __future__ import annotations

from collections.abc import Sequence
from sys import intern
from typing import Any, Final

import msgspec

from rackgate.api import names
from rackgate.topology.assignment import Domain
from rackgate.wire.depth import tolerant
from rackgate_ungater.state_machine.gated_objects import decode_metadata

_HOSTNAME_LABEL: Final = names.HOSTNAME_LABEL
_NAME_FIELD: Final = "metadata.name"


class NodeHostname(msgspec.Struct, frozen=True, gc=False):
    """One node.

    Attributes:
        hostname: value of its hostname label, empty when it has none.
    """

    name: str
    uid: str
    resource_version: str
    hostname: str


_decode_terms = tolerant(msgspec.json.Decoder(list[dict[str, Any]]).decode)


def decode_node(data: bytes | msgspec.Raw) -> NodeHostname:
    """Decode a node's JSON, or its metadata alone.

    Raises:
        msgspec.MsgspecError: the JSON is no object.
    """
    meta = decode_metadata(data)
    name = intern(meta.name)
    return NodeHostname(
        name, meta.uid, meta.resource_version, intern(meta.labels.get(_HOSTNAME_LABEL, ""))
    )


class NodesByHostname:
    """Names of nodes by the value of their hostname label. Usually the two are equal."""

    def __init__(self) -> None:
        self._by_host: dict[str, frozenset[str]] = {}

    def upsert(self, before: NodeHostname | None, node: NodeHostname) -> None:
        """Add or update a node."""
        if before is not None:
            if before.hostname == node.hostname and before.name == node.name:
                return
            self.delete(before)
        if node.hostname:
            known = self._by_host.get(node.hostname, frozenset())
            self._by_host[node.hostname] = known | {node.name}

    def delete(self, node: NodeHostname) -> None:
        """Remove a node."""
        left = self._by_host.get(node.hostname, frozenset()) - {node.name}
        if left:
            self._by_host[node.hostname] = left
        else:
            self._by_host.pop(node.hostname, None)

    def only_node_of(self, levels: Sequence[str], domain: Domain) -> str:
        """Name of the only node of a domain; empty if that is not certain.

        Args:
            levels: node label keys.
            domain: one value per level.
        """
        if not levels or levels[-1] != _HOSTNAME_LABEL:
            return ""
        found = self._by_host.get(domain[-1], frozenset())
        return next(iter(found)) if len(found) == 1 else ""


def node_name_affinity(node: str, terms: str = "") -> dict[str, Any]:
    """The affinity that names a node, in addition to the pod's own terms.

    Args:
        node: name of the node.
        terms: JSON of the pod's own required `nodeSelectorTerms`; empty without any. They are
            alternatives, so each must name the node. An empty term matches nothing, and the API
            server does not allow additions to it.

    Returns:
        The `affinity` of a pod, for a patch that replaces lists of terms as a whole.
    """
    requirement = {"key": _NAME_FIELD, "operator": "In", "values": [node]}
    own = _decode_terms(terms.encode()) if terms else []
    named = [
        {**term, "matchFields": [*(term.get("matchFields") or ()), requirement]}
        if term.get("matchExpressions") or term.get("matchFields")
        else term
        for term in own
    ]
    required = {"nodeSelectorTerms": named or [{"matchFields": [requirement]}]}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}

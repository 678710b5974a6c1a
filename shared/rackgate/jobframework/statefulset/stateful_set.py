"""StatefulSets: a gang if all pods are created at once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rackgate.api.resources import STATEFUL_SETS
from rackgate.jobframework.linked_kind import LinkedGang, LinkedKind, Manifest, count_at
from rackgate.jobframework.templates import section

ORDERED: Final = (
    "podManagementPolicy OrderedReady creates a pod when the one before is ready; Parallel makes"
    " all of them a gang"
)


class StatefulSetKind(LinkedKind):
    """`apps` StatefulSet."""

    resource = STATEFUL_SETS
    built_in = True
    rank_path = "metadata.labels['apps.kubernetes.io/pod-index']"

    def template_parts(self, manifest: Manifest) -> Iterator[tuple[str, ...]]:
        """Its one template."""
        yield "spec", "template"

    def gang(self, manifest: Manifest) -> LinkedGang:
        """All replicas, if they do not wait for each other."""
        if section(manifest, "spec").get("podManagementPolicy") != "Parallel":
            return LinkedGang(alone=ORDERED)
        return LinkedGang(count_at(manifest, "spec", "replicas", default=1))

    def has_pods(self, manifest: Manifest) -> bool:
        """Whether `status.replicas` is not 0."""
        return count_at(manifest, "status", "replicas") > 0

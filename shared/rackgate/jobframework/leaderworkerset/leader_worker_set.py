"""LeaderWorkerSets: each replica, a leader and its workers, is a gang."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rackgate.api.names import GANG_REPLICAS_VARY_ANNOTATION
from rackgate.api.resources import LEADER_WORKER_SETS
from rackgate.jobframework.linked_kind import LinkedGang, LinkedKind, Manifest, count_at
from rackgate.jobframework.templates import annotations_of, section

_DOMAIN: Final = "leaderworkerset.sigs.k8s.io"
EXCLUSIVE: Final = (f"{_DOMAIN}/exclusive-topology", f"{_DOMAIN}/subgroup-exclusive-topology")
_TEMPLATE: Final = ("spec", "leaderWorkerTemplate")


class LeaderWorkerSetKind(LinkedKind):
    """`leaderworkerset.x-k8s.io` LeaderWorkerSet."""

    resource = LEADER_WORKER_SETS
    replica_key = f"{_DOMAIN}/group-key"
    rank_path = f"metadata.labels['{_DOMAIN}/worker-index']"

    def template_parts(self, manifest: Manifest) -> Iterator[tuple[str, ...]]:
        """Those of leaders and workers; leaders have that of workers if they have none."""
        yield (*_TEMPLATE, "leaderTemplate")
        yield (*_TEMPLATE, "workerTemplate")

    def gang(self, manifest: Manifest) -> LinkedGang:
        """Each replica, unless workers are created only after their leader runs."""
        annotations = annotations_of(manifest)
        if section(manifest, "spec").get("startupPolicy") == "LeaderReady":
            why = "startupPolicy LeaderReady creates workers when their leader is ready"
            return LinkedGang(alone=f"{why}; LeaderCreated makes each replica a gang")
        for key in EXCLUSIVE:
            if annotations.get(key):
                why = f"annotation {key} creates workers when their leader has a node"
                return LinkedGang(alone=f"{why}; request a topology of Rackgate instead")
        if annotations.get(GANG_REPLICAS_VARY_ANNOTATION) == "true":
            return LinkedGang(alone=f"annotation {GANG_REPLICAS_VARY_ANNOTATION} says so")
        return LinkedGang(
            count_at(manifest, *_TEMPLATE, "size", default=1),
            count_at(manifest, "spec", "replicas", default=1),
        )

    def has_pods(self, manifest: Manifest) -> bool:
        """Whether `status.replicas` is not 0."""
        return count_at(manifest, "status", "replicas") > 0

"""MPIJobs: launcher and workers are one gang."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from rackgate.api.resources import MPI_JOBS
from rackgate.jobframework.linked_kind import LinkedGang, LinkedKind, Manifest, at, count_at
from rackgate.jobframework.templates import section

_REPLICAS: Final = ("spec", "mpiReplicaSpecs")
_DEFAULTS: Final = {"Launcher": 1}


class MPIJobKind(LinkedKind):
    """`kubeflow.org/v2beta1` MPIJob."""

    resource = MPI_JOBS
    rank_path = "metadata.labels['training.kubeflow.org/replica-index']"

    def template_parts(self, manifest: Manifest) -> Iterator[tuple[str, ...]]:
        """Those of the launcher and the workers."""
        for role in at(manifest, _REPLICAS) or ():
            yield (*_REPLICAS, role, "template")

    def gang(self, manifest: Manifest) -> LinkedGang:
        """All pods, unless the launcher is created only after the workers run."""
        if section(manifest, "spec").get("launcherCreationPolicy") == "WaitForWorkersReady":
            why = "launcherCreationPolicy WaitForWorkersReady creates the launcher when all workers"
            return LinkedGang(alone=f"{why} are ready; AtStartup makes all pods a gang")
        roles = at(manifest, _REPLICAS) or ()
        counts = (
            count_at(manifest, *_REPLICAS, role, "replicas", default=_DEFAULTS.get(role, 0))
            for role in roles
        )
        return LinkedGang(sum(counts))

    def has_pods(self, manifest: Manifest) -> bool:
        """Whether a role has active pods."""
        statuses = ("status", "replicaStatuses")
        roles = at(manifest, statuses) or ()
        return any(count_at(manifest, *statuses, role, "active") for role in roles)

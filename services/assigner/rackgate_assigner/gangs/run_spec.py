"""The Workload of gangs of a job, as far as its start needs it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final


@dataclass(frozen=True, slots=True)
class JobGang:
    """The Workload of gangs of a job, as far as its start needs it.

    Attributes:
        links: by PodSet, its name, or `PER_JOB`; empty for a job without gangs.
        run_spec: value of the annotation that its start writes; "" while it does not exist.
        is_own: Rackgate makes it, or has made it.
        topology: by PodSet, fields of `topologyRequest` that say what it requests.
        nesting: domains that its PodSets share, for the annotation of the Workload of Kueue's API;
            "" if there are none.
        started: the job was started with it.
        pod_groups: by PodSet, annotations that say which native PodGroup its pods are in.
    """

    links: Mapping[str, str] = field(default_factory=dict)
    run_spec: str = ""
    is_own: bool = False
    topology: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    nesting: str = ""
    started: bool = False
    pod_groups: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    @property
    def missing(self) -> str:
        """Name of the Workload of gangs that the job waits for; "" if it waits for none."""
        return min(self.links.values()) if self.links and not self.run_spec else ""


NO_GANG: Final = JobGang()

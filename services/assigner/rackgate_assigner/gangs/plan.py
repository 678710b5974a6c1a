"""The next action for the Workload of gangs of one job. Pure.

Each action changes an object, the watch shows it, and the plan is made again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from rackgate.gang.lifecycle import GangChoice
from rackgate_assigner.gangs.gang_workload import GangWorkload, without_templates
from rackgate_assigner.gangs.holds import is_owned_by


@dataclass(frozen=True, slots=True)
class CreateGangWorkload:
    """Create the one that the job has by itself."""

    choice: GangChoice


@dataclass(frozen=True, slots=True)
class DeleteGangWorkload:
    """Delete one that Rackgate made and that no pod names."""

    workload: GangWorkload
    why: str


@dataclass(frozen=True, slots=True)
class AdoptGangWorkload:
    """Add the job as an owner, so that it is deleted with the job."""

    workload: GangWorkload


Action: TypeAlias = CreateGangWorkload | DeleteGangWorkload | AdoptGangWorkload


@dataclass(frozen=True, slots=True)
class GangJob:
    """A job, as far as the life of its Workload of gangs depends on it.

    Attributes:
        uid: of the job.
        choice: its Workload of gangs.
        over: it has finished, or is being deleted.
        inactive: it is suspended, not started, and has no pods: no pod names anything.
        adopts: it may own what its user made.
    """

    uid: str
    choice: GangChoice
    over: bool = False
    inactive: bool = True
    adopts: bool = False


def plan_gang(job: GangJob, own: GangWorkload | None, named: GangWorkload | None) -> Action | None:
    """The next action, None if there is none.

    Args:
        job: see `GangJob`.
        own: the object with the name that Rackgate gives, None if there is none.
        named: the object that the pods name or will name.
    """
    if job.over:
        return None  # deleted with the job
    mine = own is not None and is_owned_by(own, job.uid)
    gone = own is not None and own.metadata.deletion_timestamp is not None
    if own is not None and mine and not gone and job.inactive:
        if not job.choice.is_own and not job.choice.problem:
            return DeleteGangWorkload(own, "the job does not use it")
        # No one has changed it since it was made, so what it says is what the job said then.
        if job.choice.spec is not None and own.metadata.generation <= 1:
            wanted = without_templates(job.choice.spec)
            if own.spec != wanted:
                return DeleteGangWorkload(own, "the job was changed, and it is made again")
    if job.choice.is_own:
        return CreateGangWorkload(job.choice) if own is None else None
    if named is not None and job.adopts:
        return AdoptGangWorkload(named)
    return None

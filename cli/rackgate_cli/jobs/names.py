"""How users name jobs and Workloads: NAME, job/NAME, jobset/NAME, workload/NAME. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from rackgate.jobframework.registry import KINDS
from rackgate.wire.core import OwnerReference
from rackgate.wire.kueue import Workload
from rackgate_cli.errors import CommandError, UsageError
from rackgate_cli.spellings import SPELLINGS, WORKLOAD
from rackgate_cli.verbs import did_you_mean

_SPELLINGS: Final = {
    word: kind for word, kind in SPELLINGS.items() if kind == WORKLOAD or kind in KINDS
}


@dataclass(frozen=True, slots=True)
class JobName:
    """The name of a job.

    Attributes:
        kind: as in the API; "" if any kind is meant.
        name: of the job or Workload.
    """

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind.lower()}/{self.name}" if self.kind else self.name


def kind_of(word: str) -> str:
    """The kind of jobs, or Workload, that a word means; "" if none."""
    return _SPELLINGS.get(word.lower(), "")


def parse(text: str) -> JobName:
    """Read NAME or KIND/NAME.

    Raises:
        UsageError: it is neither, or the kind is unknown.
    """
    kind, slash, name = text.rpartition("/")
    if not name or "/" in kind or (slash and not kind):
        raise UsageError(f'"{text}" is not a name: write NAME or KIND/NAME')
    if not kind:
        return JobName("", name)
    known = kind_of(kind)
    if not known:
        shown = sorted({one.lower() for one in _SPELLINGS.values()})
        hint = did_you_mean(kind, _SPELLINGS) or f" (known: {', '.join(shown)})"
        raise UsageError(f'unknown kind "{kind}" in "{text}"{hint}')
    return JobName(known, name)


def name_of(workload: Workload) -> JobName:
    """The job of a Workload, or the Workload itself if no job controls it."""
    owner = workload.metadata.controller
    if owner is None or owner.kind not in KINDS:
        return JobName(WORKLOAD, workload.metadata.name)
    return JobName(owner.kind, owner.name)


def is_named(job: JobName, workload: Workload) -> bool:
    """Whether a name means this Workload, or the job that controls it."""
    owner = workload.metadata.controller
    if job.kind in ("", WORKLOAD) and workload.metadata.name == job.name:
        return True
    return owner is not None and _is_owner(job, owner)


def _is_owner(job: JobName, owner: OwnerReference) -> bool:
    return owner.name == job.name and (owner.kind == job.kind if job.kind else owner.kind in KINDS)


def choose(job: JobName, workloads: Iterable[Workload]) -> list[Workload]:
    """The Workloads of one job: those of a resize have several.

    Args:
        job: what its user wrote.
        workloads: of the namespace.

    Returns:
        An empty list if there is none.

    Raises:
        CommandError: jobs of several kinds have this name.
    """
    listed = list(workloads)
    found = [one for one in listed if is_named(job, one)]
    known = sorted({str(name_of(one)) for one in found})
    if len(known) > 1:
        raise CommandError(f'"{job}" is the name of {" and of ".join(known)}: write one of these')
    if job.kind == WORKLOAD:
        return found
    # A slice of an elastic job is controlled by the Workload before it.
    uids = {one.job_uid for one in found} - {""}
    names = {one.metadata.name for one in found}
    slices = [
        one
        for one in listed
        if one.parent is not None and one.job_uid in uids and one.metadata.name not in names
    ]
    return [*found, *slices]

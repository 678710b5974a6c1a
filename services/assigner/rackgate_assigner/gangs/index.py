"""Which job uses which Workload of gangs, kept up to date by the events of the watches.

Everything follows from the objects. After each event the holds of the jobs that it may concern are
computed again, before any scheduling cycle can read them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

from rackgate.api import names
from rackgate.features import Features
from rackgate.gang.levels import Object
from rackgate.gang.lifecycle import GangChoice, choose_gang, own_name
from rackgate.gang.link import PER_JOB
from rackgate.gang.native.templates import template_annotations
from rackgate.gang.nesting import NestedPodSet, encode_nesting
from rackgate.gang.runs.run_spec import decode_run_spec, encode_child_specs, encode_run_spec
from rackgate.gang.topology_requests import GangPodSet, Rejected, Requests, topology_requests
from rackgate.jobframework.generic_job import GenericJob, JobLike
from rackgate.jobframework.registry import kind_of
from rackgate.jobframework.templates import labels_of
from rackgate.wire.core import Meta
from rackgate.wire.kueue import Workload
from rackgate_assigner.gangs.gang_workload import GangWorkload
from rackgate_assigner.gangs.holds import (
    NO_REQUESTS,
    Hold,
    find_child_hold,
    find_hold,
    is_owned_by,
)
from rackgate_assigner.gangs.run_spec import NO_GANG, JobGang


class JobKey(NamedTuple):
    """A job by kind and `namespace/name`."""

    kind: str
    name: str


class _Rank(NamedTuple):
    """The order in which jobs get a Workload of gangs that several of them name."""

    is_pending: bool
    created_at: str
    uid: str


@dataclass(frozen=True, slots=True)
class _Known:
    """What a job says about its gangs, and of which version of it.

    Attributes:
        own: key of the Workload of Kueue's API; the Workload of gangs that Rackgate makes for it
            has the same name.
        started: what a started job was started with; None for other jobs.
    """

    uid: str
    own: str
    generation: int
    annotations: Mapping[str, str]
    choice: GangChoice
    podsets: tuple[GangPodSet, ...]
    started: JobGang | None


_NO_CHOICE: Final = GangChoice()


class GangIndex:
    """Jobs by the Workload of gangs that they use, and what holds them.

    Attributes:
        is_job: whether a job is managed by itself, and not as a part of another one.
    """

    def __init__(
        self,
        features: Features,
        jobs: Mapping[str, Mapping[str, JobLike]],
        workloads: Mapping[str, Workload],
        gangs: Mapping[str, GangWorkload],
        *,
        is_job: Callable[[JobLike], bool],
        set_hold: Callable[[str, str], None],
        on_change: Callable[[JobKey], None],
        on_use_change: Callable[[str], None] = lambda _gang: None,
        on_children_change: Callable[[str], None] = lambda _uid: None,
        topologies: Callable[[str], Sequence[Sequence[str]] | None] = lambda _queue: None,
    ) -> None:
        """Start empty.

        Args:
            features: feature gates.
            jobs: by kind, then by `namespace/name`.
            workloads: of Kueue's API, by `namespace/name`.
            gangs: Workloads of gangs, by `namespace/name`.
            is_job: whether a job is managed by itself, and not as a part of another one.
            set_hold: called with the key of a Workload, and why it is not admitted.
            on_change: called with the key of a job to be reconciled.
            on_use_change: called with the key of a Workload of gangs whose use may have changed.
            on_children_change: called with the UID of a job whose child Jobs have Workloads of
                gangs, if what is true of them may have changed.
            topologies: level keys, coarsest first, of each Topology that Workloads of a LocalQueue
                may be placed in; None while that is not known.
        """
        self._topologies, self._on_use_change = topologies, on_use_change
        self._on_children_change = on_children_change
        self._rev_n, self._nested = features.workload_rev_n, features.gang_nested_placement
        self._native = features.native_pod_groups
        self._jobs, self._workloads, self._gangs = jobs, workloads, gangs
        self.is_job, self._set_hold, self._on_change = is_job, set_hold, on_change
        self._known: dict[JobKey, _Known] = {}
        # By `namespace/name` of the Workload of gangs, and by the one of the job's own.
        self._users: dict[str, dict[JobKey, _Rank]] = {}
        self._by_own_name: dict[str, JobKey] = {}
        self._holders: dict[str, JobKey] = {}
        self._ended: dict[str, tuple[_Rank, JobKey]] = {}  # the youngest job that is over
        self._holds: dict[JobKey, Hold] = {}

    # Reading.

    def choice(self, job: JobLike) -> GangChoice:
        """Which Workload of gangs a job has."""
        return self._current(job).choice

    def hold(self, job: JobLike) -> Hold | None:
        """Why a job is not admitted."""
        self._current(job)
        return self._holds.get(key_of(job))

    def podsets(self, job: JobLike) -> tuple[GangPodSet, ...]:
        """The PodSets of a job whose pods are in gangs."""
        return self._current(job).podsets

    def _current(self, job: JobLike) -> _Known:
        key = key_of(job)
        found = self._known.get(key)
        if found is None or not _is_current(found, job.metadata):
            return self._learn(key, job)
        return found

    def job_gang(self, job: JobLike) -> JobGang:
        """What the start of a job needs; of a started job, what it was started with."""
        annotations = job.metadata.annotations
        is_started = names.WORKLOAD_ANNOTATION in annotations
        if is_started and names.GANG_RUN_SPEC_ANNOTATION not in annotations:
            return NO_GANG  # and a job that is not managed does not become a user of one
        known = self._current(job)
        if known.started is not None:
            return known.started
        choice = known.choice
        if not choice.links:
            return NO_GANG
        if choice.children:
            return self._gangs_of_children(job, choice)
        found = self.gang(job.metadata.namespace, choice.name)
        if found is None or found.metadata.deletion_timestamp is not None or not found.readable:
            return JobGang(choice.links, is_own=choice.is_own)
        if choice.is_own and not is_owned_by(found, job.metadata.uid):
            return JobGang(choice.links)  # nothing is made under a name that is taken
        run_spec = encode_run_spec(choice.links, found.canonical)
        requests = self.topology(job, choice, found, self.podsets(job))
        groups = self._pod_groups(found.canonical, choice.name, self.podsets(job))
        unplaced = JobGang(choice.links, run_spec, choice.is_own, pod_groups=groups)
        return _with_requests(unplaced, requests)

    def _started_gang(
        self, kind: GenericJob[Any], meta: Meta, podsets: Sequence[GangPodSet]
    ) -> JobGang | None:
        """What a job was started with; None if it is not started."""
        if names.WORKLOAD_ANNOTATION not in meta.annotations:
            return None
        run = decode_run_spec(meta.annotations)
        if run is None:
            return NO_GANG  # it was started without, and its pods are not held
        text = meta.annotations[names.GANG_RUN_SPEC_ANNOTATION]
        if run.children:
            groups = self._child_pod_groups(run.children, podsets)
            return JobGang(run.links, text, started=True, pod_groups=groups)
        groups = self._pod_groups(run.spec, run.workload, podsets)
        is_own = run.workload == own_name(kind, meta)
        return JobGang(run.links, text, is_own, started=True, pod_groups=groups)

    def _gangs_of_children(self, job: JobLike, choice: GangChoice) -> JobGang:
        specs = {podset: one.canonical for podset, one in choice.children.items()}
        run_spec = encode_child_specs(specs)
        groups = self._child_pod_groups(specs, self.podsets(job))
        unplaced = JobGang(choice.links, run_spec, pod_groups=groups)
        return _with_requests(unplaced, self.child_topology(job))

    def child_topology(self, job: JobLike, podset: str = "") -> Requests | Rejected:
        """What a job gets from the topology requests of the Workloads of gangs of its child Jobs.

        Args:
            job: whose child Jobs have them.
            podset: the only PodSet to look at; "" for all.
        """
        return self._child_topology(job, self._current(job), podset)

    def _child_topology(self, job: JobLike, known: _Known, podset: str = "") -> Requests | Rejected:
        by_podset: dict[str, Mapping[str, Any]] = {}
        nesting: list[NestedPodSet] = []
        not_enforced: list[str] = []
        for one in known.podsets:
            if podset not in ("", one.name):
                continue
            children = known.choice.children[one.name]
            found = self._requests(job, children.canonical, [one], PER_JOB)
            if isinstance(found, Rejected):
                return replace(found, path=f"{children.path}: {found.path}")
            by_podset |= found.by_podset
            nesting += (_nested_in(one.name, nested) for nested in found.nesting)
            not_enforced += found.not_enforced
        return Requests(by_podset, tuple(nesting), tuple(not_enforced))

    def _pod_groups(
        self, canonical: Object, workload: str, podsets: Iterable[GangPodSet]
    ) -> dict[str, Mapping[str, str]]:
        if not self._native:
            return {}
        found = {one.name: template_annotations(canonical, workload, one.labels) for one in podsets}
        return {name: annotations for name, annotations in found.items() if annotations}

    def _child_pod_groups(
        self, specs: Mapping[str, Object], podsets: Iterable[GangPodSet]
    ) -> dict[str, Mapping[str, str]]:
        found: dict[str, Mapping[str, str]] = {}
        for one in podsets:
            if one.name in specs:
                found |= self._pod_groups(specs[one.name], PER_JOB, [one])
        return found

    def topology(
        self, job: JobLike, choice: GangChoice, gang: GangWorkload, podsets: Sequence[GangPodSet]
    ) -> Requests | Rejected:
        """What a job gets from the topology requests of its Workload of gangs."""
        if not gang.requests_topology:
            return Requests()
        return self._requests(job, gang.canonical, podsets, choice.name)

    def _requests(
        self, job: JobLike, canonical: Object, podsets: Sequence[GangPodSet], workload: str
    ) -> Requests | Rejected:
        meta = job.metadata
        return topology_requests(
            canonical,
            podsets,
            workload=workload,
            topologies=self._topologies(
                f"{meta.namespace}/{meta.labels.get(names.QUEUE_LABEL, '')}"
            ),
            nested=self._nested,
        )

    def gang(self, namespace: str, name: str) -> GangWorkload | None:
        """A Workload of gangs, None if there is none."""
        return self._gangs.get(f"{namespace}/{name}")

    def users(self, key: str) -> list[JobKey]:
        """The jobs that use a Workload of gangs, those with quota first, then by their age."""
        found = self._users.get(key, {})
        return sorted(found, key=lambda one: found[one])

    def last_user(self, key: str) -> JobKey | None:
        """The youngest job that used a Workload of gangs, is over, and still exists."""
        found = self._ended.get(key)
        return found[1] if found is not None else None

    def keys_for(self, gang: str) -> list[JobKey]:
        """The jobs to reconcile when a Workload of gangs changes."""
        found = list(self._users.get(gang, ()))
        own = self._by_own_name.get(gang)
        return found if own is None or own in found else [*found, own]

    # Events.

    def on_job_upsert(self, job: JobLike) -> None:
        """A job was added or changed."""
        key = key_of(job)
        if not self.is_job(job):
            self._forget(key)
            return
        before, known = self._known.get(key), self._learn(key, job)
        is_concerned = known.choice != _NO_CHOICE or known.own in self._gangs
        if is_concerned and (known is not before or not _is_running(job)):
            self._on_change(key)

    def on_job_delete(self, job: JobLike) -> None:
        """A job was deleted, or is not managed any more."""
        self._forget(key_of(job))

    def _learn(self, key: JobKey, job: JobLike) -> _Known:
        """Read what a job says about its gangs, if this version of it is not known."""
        meta = job.metadata
        known = self._known.get(key)
        if known is not None and known.uid != meta.uid:
            self._forget(key)
            known = None
        is_new = known is None or not _is_current(known, meta)
        if known is None or is_new:
            kind = kind_of(job)
            choice = choose_gang(kind, kind.manifest(job), meta, rev_n=self._rev_n)
            podsets = _podsets_of(job, choice) if choice.links else ()
            own = self.workload_key(job)
            if known is not None and known.choice.name != choice.name:
                self._unlink(key, f"{meta.namespace}/{known.choice.name}")
                self._drop_ended(key, f"{meta.namespace}/{known.choice.name}")
            found = _Known(
                meta.uid,
                own,
                meta.generation,
                dict(meta.annotations),
                choice,
                podsets,
                self._started_gang(kind, meta, podsets),
            )
            self._known[key] = known = found
            self._by_own_name[own] = key
            if choice.children:
                self._on_children_change(meta.uid)
        gang = f"{meta.namespace}/{known.choice.name}"
        if known.choice.name:
            self._link(key, job, gang, own=known.own)
        if is_new or known.choice.children or self._depends_on_queue(gang):
            self._refresh(key)
        else:  # nothing that holds it has changed: a job's status changes with each of its pods
            self._on_use_change(gang)
        return known

    def _depends_on_queue(self, gang: str) -> bool:
        """Whether the queue of a job decides what a Workload of gangs means for it."""
        found = self._gangs.get(gang)
        return found is not None and found.requests_topology

    def on_workload_change(self, workload: Workload) -> None:
        """A Workload of Kueue's API was added, changed or deleted: it may have quota now."""
        key = self._by_own_name.get(workload.metadata.key)
        job = self._jobs.get(key.kind, {}).get(key.name) if key is not None else None
        if key is None or job is None:
            return
        known = self._known.get(key)
        if known is not None and known.choice.name:
            gang = f"{workload.metadata.namespace}/{known.choice.name}"
            self._link(key, job, gang, own=known.own)
            self._on_use_change(gang)
        elif known is not None and known.choice.children:
            self._on_children_change(known.uid)

    def on_pods_change(self, workload: str) -> None:
        """Pods of a job were bound or have ended, or their PodGroup changed.

        Args:
            workload: key of the Workload of the job.
        """
        key = self._by_own_name.get(workload)
        known = self._known.get(key) if key is not None else None
        if known is not None and known.choice.name:
            self._on_use_change(f"{workload.partition('/')[0]}/{known.choice.name}")
        elif known is not None and known.choice.children:
            self._on_children_change(known.uid)

    def on_gang_upsert(self, before: GangWorkload | None, gang: GangWorkload) -> None:
        """A Workload of gangs was added or changed; its status does not count."""
        if before is None or _identity(before) != _identity(gang):
            self._gang_changed(gang.metadata.key)

    def on_gang_delete(self, gang: GangWorkload) -> None:
        """A Workload of gangs was deleted."""
        self._gang_changed(gang.metadata.key)

    def on_topologies_change(self) -> None:
        """The levels of a Topology, or which of them the jobs of a queue can use, changed."""
        for key, known in list(self._known.items()):
            gang = f"{key.name.partition('/')[0]}/{known.choice.name}"
            if known.choice.children or self._depends_on_queue(gang):
                self._refresh(key)
                self._on_change(key)

    def _gang_changed(self, gang: str) -> None:
        for key in self.keys_for(gang):
            self._refresh(key)
            self._on_change(key)

    def _forget(self, key: JobKey) -> None:
        known = self._known.pop(key, None)
        if known is None:
            return
        self._by_own_name.pop(known.own, None)
        self._holds.pop(key, None)
        self._set_hold(known.own, "")
        if known.choice.name:
            namespace = key.name.partition("/")[0]
            self._unlink(key, f"{namespace}/{known.choice.name}")
            self._drop_ended(key, f"{namespace}/{known.choice.name}")

    def _link(self, key: JobKey, job: JobLike, gang: str, *, own: str) -> None:
        """Record that a job uses a Workload of gangs, or does not any more because it is over.

        Args:
            key: of the job.
            job: as stored.
            gang: key of the Workload of gangs.
            own: key of the job's Workload of Kueue's API.
        """
        workload = self._workloads.get(own)
        meta = job.metadata
        created_at = meta.creation_timestamp or ""
        if _is_over(job, workload):
            ended = (_Rank(True, created_at, meta.uid), key)
            self._ended[gang] = max(ended, self._ended.get(gang, ended))
            self._unlink(key, gang)
            return
        has_quota = workload is not None and workload.status.admission is not None
        rank = _Rank(not has_quota, created_at, meta.uid)
        users = self._users.setdefault(gang, {})
        if users.get(key) == rank:
            return
        users[key] = rank
        holder = self._holders.get(gang)
        if holder is None or (holder != key and rank < users[holder]):
            self._set_holder(gang, key)
        elif holder == key:
            self._set_holder(gang, min(users, key=lambda one: users[one]))

    def _unlink(self, key: JobKey, gang: str) -> None:
        users = self._users.get(gang, {})
        if users.pop(key, None) is None:
            return
        self._on_use_change(gang)
        if not users:
            del self._users[gang]
        if self._holders.get(gang) == key:
            del self._holders[gang]
            if users:
                self._set_holder(gang, min(users, key=lambda one: users[one]))

    def _drop_ended(self, key: JobKey, gang: str) -> None:
        found = self._ended.get(gang)
        if found is not None and found[1] == key:
            del self._ended[gang]
            self._on_use_change(gang)

    def _set_holder(self, gang: str, key: JobKey) -> None:
        before = self._holders.get(gang)
        if before == key:
            return
        self._holders[gang] = key
        for one in (before, key):
            if one is not None and one in self._known:
                self._refresh(one)
                self._on_change(one)

    def _refresh(self, key: JobKey) -> None:
        """Compute again what holds a job."""
        known = self._known.get(key)
        job = self._jobs.get(key.kind, {}).get(key.name)
        if known is None or job is None:
            return
        meta = job.metadata
        gang = f"{meta.namespace}/{known.choice.name}"
        holder, found = self._holders.get(gang), self._gangs.get(gang)
        if known.choice.children:
            hold = find_child_hold(known.choice, known.podsets, self._child_topology(job, known))
            if hold != self._holds.get(key):
                self._on_children_change(known.uid)
        else:
            hold = find_hold(
                known.choice,
                found,
                known.podsets,
                job_uid=meta.uid,
                holder="" if holder in (None, key) else holder.name.partition("/")[2],
                topology=NO_REQUESTS
                if found is None
                else self.topology(job, known.choice, found, known.podsets),
            )
        if hold is None:
            self._holds.pop(key, None)
        else:
            self._holds[key] = hold
        self._set_hold(known.own, "" if hold is None else hold.message)
        self._on_use_change(gang)

    @staticmethod
    def workload_key(job: JobLike) -> str:
        """Key of the Workload of Kueue's API of a job: both have the same name."""
        return f"{job.metadata.namespace}/{own_name(kind_of(job), job.metadata)}"


def key_of(job: JobLike) -> JobKey:
    """The key of a job."""
    return JobKey(kind_of(job).name, job.metadata.key)


def _identity(gang: GangWorkload) -> tuple[object, ...]:
    """What jobs depend on."""
    meta = gang.metadata
    return (
        meta.uid,
        meta.owner_references,
        meta.deletion_timestamp,
        gang.spec,
        gang.shapes,
        gang.readable,
    )


def _is_current(known: _Known, meta: Meta) -> bool:
    same = known.uid == meta.uid and known.generation == meta.generation > 0
    return same and known.annotations == meta.annotations


def _is_running(job: JobLike) -> bool:
    """Whether only its pods have changed, if its spec and annotations are the same."""
    kind = kind_of(job)
    is_over = kind.finished(job) is not None or job.metadata.deletion_timestamp is not None
    return not is_over and not kind.is_suspended(job)


def _is_over(job: JobLike, workload: Workload | None) -> bool:
    """Whether a job uses no Workload of gangs any more, until its user changes it."""
    if kind_of(job).finished(job) is not None or job.metadata.deletion_timestamp is not None:
        return True
    if workload is None:
        return False
    if workload.is_true(names.WorkloadCondition.FINISHED):
        return True
    return not workload.spec.active and workload.status.admission is None


def _podsets_of(job: JobLike, choice: GangChoice) -> tuple[GangPodSet, ...]:
    kind = kind_of(job)
    manifest = kind.manifest(job)
    counts, added = kind.counts(manifest), kind.pod_labels(manifest)
    asked = {one["name"]: one.get("topologyRequest") for one in kind.podsets(manifest)}
    ranks = kind.rank_fields(manifest)
    return tuple(
        GangPodSet(
            one.podset,
            counts.get(one.podset, 0),
            {**_text(labels_of(one.template)), **added.get(one.podset, {})},
            asked.get(one.podset),
            ranks.get(one.podset, {}).get("subGroupCount", 1),
            copies=choice.children[one.podset].jobs if choice.children else 1,
        )
        for one in kind.templates(manifest)
        if one.podset in choice.links
    )


def _with_requests(gang: JobGang, requests: Requests | Rejected) -> JobGang:
    if isinstance(requests, Rejected):
        return gang
    nesting = encode_nesting(requests.nesting) if requests.nesting else ""
    return replace(gang, topology=requests.by_podset, nesting=nesting)


def _nested_in(podset: str, nested: NestedPodSet) -> NestedPodSet:
    """With groups of other names than those of other PodSets: they share nothing with them."""
    within = tuple(replace(one, group=f"{podset}/{one.group}") for one in nested.within)
    return replace(nested, within=within)


def _text(labels: Mapping[str, object]) -> dict[str, str]:
    return {str(key): str(value) for key, value in labels.items()}

"""Gangs of pods that no managed job owns, kept up to date by the events of the watches. Pure.

Each pod belongs to at most one group, by the name of its Workload of Kueue's API:

1. A started pod belongs to the Workload that its start names. It never moves.
2. Any other belongs to the gang that its labels say, as they were when it was first seen; to a
   group of its own if its gang group is no gang; to none while its Workload of gangs is missing.
3. A pod that comes when its gang runs, and is not needed there, gets a group of its own.

The name follows from the Workload of gangs, gang group and replica. So there are never two
Workloads of Kueue's API for one gang. A group is assembled when it is read, and kept until
something it depends on changes. It exists as long as it has pods or a Workload: that has the number
of evictions, also while all pods are deleted.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import msgspec

from rackgate.api import names
from rackgate.gang.levels import Object, upper_bound
from rackgate.gang.link import link_of
from rackgate.gang.membership import GangKey, Mismatch, Part, part_of
from rackgate.gang.nesting import encode_nesting
from rackgate.gang.readiness import Waiting
from rackgate.gang.runs.run_spec import RunSpec, decode_run_spec, encode_instance_spec
from rackgate.gang.topology_requests import GangPodSet, Rejected, Requests, topology_requests
from rackgate.jobframework.pod_group.gang_group import GangGroup, GangInstance
from rackgate.jobframework.pod_group.membership import MANAGED, is_gang_id, uid_of_gang
from rackgate.jobframework.pod_group.pod_group import MAX_ROLES, PodGroupSpec
from rackgate.jobframework.pod_group.pods import POD_GATES, GroupPod
from rackgate.jobframework.templates import RESERVED_GATES
from rackgate.wire.core import Meta
from rackgate.wire.kueue import Workload
from rackgate_assigner.gangs.gang_workload import GangWorkload, min_count
from rackgate_assigner.gangs.holds import HoldReason

# Used by pods that name no queue, as in Kueue.
DEFAULT_QUEUE: Final = "default"
_OUR_GATES: Final = frozenset((*RESERVED_GATES, *POD_GATES))
# Of the Workload of gangs, for pods that do not have them.
_JOB_LABELS: Final = (names.PRIORITY_CLASS_LABEL, names.MAX_EXECUTION_TIME_LABEL)
_ROLE_DIGITS: Final = 8
_SHOWN_PODS: Final = 3


class _Id(NamedTuple):
    """One group: its name, what identifies it, and which gang it is."""

    namespace: str
    name: str
    uid: str
    instance: GangInstance

    @property
    def key(self) -> str:
        return f"{self.namespace}/{self.name}"

    @property
    def link(self) -> str:
        return f"{self.namespace}/{self.instance.workload}"


@dataclass(slots=True)
class _Member:
    """One pod.

    Attributes:
        pod: as watched, with the role that it has in its gang.
        labels: as they were when it was first seen.
        link: key of its Workload of gangs.
        key: of its group, "" if it is in none.
        mismatch: why it belongs to no gang.
        gang: key of the gang that it is not needed in, "" for all other pods.
    """

    pod: GroupPod
    labels: Mapping[str, str]
    link: str
    key: str = ""
    mismatch: str = ""
    gang: str = ""


def is_gang_pod(pod: GroupPod, *, groups_elsewhere: bool) -> bool:
    """Whether a pod names a Workload of gangs, and no managed job owns it.

    Args:
        pod: as watched.
        groups_elsewhere: pods with the label of a pod group are queued as that group.
    """
    meta = pod.metadata
    if not link_of(meta.annotations) or meta.labels.get(names.MANAGED_LABEL) != MANAGED:
        return False
    if is_gang_id(meta.labels.get(names.GANG_ID_LABEL, "")):
        return True
    return not pod.started and not (groups_elsewhere and pod.group)


class GangInstances(Mapping[str, GangGroup]):
    """Gangs of pods, by `namespace/name`."""

    def __init__(
        self,
        gangs: Mapping[str, GangWorkload],
        workloads: Mapping[str, Workload],
        *,
        has_default_queue: Callable[[str], bool],
        topologies: Callable[[str], Sequence[Sequence[str]] | None] = lambda _queue: None,
        nested: bool = False,
        set_hold: Callable[[str, str], None] = lambda _key, _hold: None,
        on_upsert: Callable[[GangGroup], None] = lambda _group: None,
        on_change: Callable[[str], None] = lambda _key: None,
        on_delete: Callable[[GangGroup], None] = lambda _group: None,
        on_use_change: Callable[[str], None] = lambda _gang: None,
    ) -> None:
        """Start empty.

        Args:
            gangs: Workloads of gangs, by `namespace/name`.
            workloads: of Kueue's API, by `namespace/name`.
            has_default_queue: whether a namespace has the LocalQueue `DEFAULT_QUEUE`.
            topologies: level keys of each Topology that a LocalQueue, by key, can use, coarsest
                first; None while that is not known.
            nested: whether the feature gate GangNestedPlacement is on.
            set_hold: called with the key of a Workload, and why it is not admitted.
            on_upsert: called with a new group, and with one whose queue may have changed.
            on_change: called with the key of a group to be reconciled.
            on_delete: called with a group that has no pods and no Workload any more.
            on_use_change: called with the key of a Workload of gangs whose use may have changed.
        """
        self._gangs, self._workloads, self._nested = gangs, workloads, nested
        self._has_default_queue, self._topologies = has_default_queue, topologies
        self._set_hold, self._on_upsert, self._on_change = set_hold, on_upsert, on_change
        self._on_delete, self._on_use_change = on_delete, on_use_change
        self._members: dict[str, _Member] = {}  # by UID
        self._by_link: dict[str, dict[str, None]] = {}  # UIDs
        self._ids: dict[str, _Id] = {}
        self._pods: dict[str, dict[str, None]] = {}  # UIDs by group
        self._keys_by_link: dict[str, dict[str, None]] = {}
        self._assembled: dict[str, GangGroup] = {}
        self._apart: dict[str, dict[str, None]] = {}  # UIDs by the gang that does not need them

    # Reading.

    def __getitem__(self, key: str) -> GangGroup:
        found = self._assembled.get(key)
        if found is None:
            found = self._assembled[key] = self._assemble(self._ids[key])
        return found

    def __iter__(self) -> Iterator[str]:
        return iter(self._ids)

    def __len__(self) -> int:
        return len(self._ids)

    def __contains__(self, key: object) -> bool:
        return key in self._ids

    def groups(self, gang: str) -> list[tuple[GangGroup, Workload | None]]:
        """The groups of a Workload of gangs, by name, each with its Workload of Kueue's API."""
        keys = sorted(self._keys_by_link.get(gang, ()))
        return [(self[key], self._workload(self._ids[key])) for key in keys]

    def mismatched(self, gang: str) -> dict[str, list[str]]:
        """Names of the pods that belong to no gang of a Workload of gangs, by reason."""
        found: dict[str, list[str]] = {}
        for uid in self._by_link.get(gang, ()):
            member = self._members[uid]
            if member.mismatch:
                found.setdefault(member.mismatch, []).append(member.pod.metadata.name)
        return found

    def apart(self, key: str) -> int:
        """How many pods have a group of their own because a running gang does not need them."""
        return len(self._apart.get(key, ()))

    # Events.

    def on_pod_upsert(self, pod: GroupPod) -> None:
        """A pod of a gang was added or changed."""
        meta = pod.metadata
        member = self._members.get(meta.uid)
        if member is None:
            link = f"{meta.namespace}/{link_of(meta.annotations)}"
            member = self._members[meta.uid] = _Member(pod, dict(meta.labels), link)
            self._by_link.setdefault(link, {})[meta.uid] = None
        member.pod = pod
        self._place(member)
        self._changed(member.key)
        self._on_use_change(member.link)

    def on_pod_delete(self, pod: GroupPod) -> None:
        """A pod is gone."""
        uid = pod.metadata.uid
        member = self._members.pop(uid, None)
        if member is None:
            return
        linked = self._by_link[member.link]
        del linked[uid]
        if not linked:
            del self._by_link[member.link]
        self._forget_apart(member.gang, uid)
        self._leave(member.key, uid)
        self._on_use_change(member.link)

    def on_gang_upsert(self, before: GangWorkload | None, gang: GangWorkload) -> None:
        """A Workload of gangs was added or changed; its status does not count."""
        if before is None or _identity(before) != _identity(gang):
            self._gang_changed(gang.metadata.key)

    def on_gang_delete(self, gang: GangWorkload) -> None:
        """A Workload of gangs was deleted."""
        self._gang_changed(gang.metadata.key)

    def on_workload_upsert(self, workload: Workload) -> None:
        """A Workload of Kueue's API was added or changed."""
        uid = workload.owner_uid
        if not is_gang_id(uid):
            return
        key = workload.metadata.key
        if key not in self._ids:
            meta, run = workload.metadata, decode_run_spec(workload.metadata.annotations)
            self._add(_Id(meta.namespace, meta.name, uid, _instance_of(run)))
        if workload.status.admission is None:
            self._return_to(key)
        self._queue_may_change([key])
        self._on_use_change(self._ids[key].link)

    def on_workload_delete(self, workload: Workload) -> None:
        """A Workload of Kueue's API was deleted."""
        key = workload.metadata.key
        found = self._ids.get(key)
        if found is None or workload.owner_uid != found.uid:
            return
        self._set_hold(key, "")
        self._return_to(key)
        if self._pods.get(key):
            self._changed(key)
        else:
            self._remove(key)
        self._on_use_change(found.link)

    def on_default_queue_change(self, namespace: str) -> None:
        """A LocalQueue `DEFAULT_QUEUE` was added or deleted."""
        self._queue_may_change([key for key in self._ids if key.startswith(f"{namespace}/")])

    def on_topologies_change(self) -> None:
        """The levels that a queue can use may have changed."""
        for key in list(self._ids):
            self._changed(key)

    def set_apart(self, key: str, pods: Sequence[GroupPod]) -> None:
        """Give pods that a running gang does not need a group each."""
        if not pods:
            return
        for pod in pods:
            member = self._members.get(pod.metadata.uid)
            if member is not None and member.key == key and not member.pod.started:
                member.gang = key
                self._apart.setdefault(key, {})[pod.metadata.uid] = None
                self._place(member)
                self._changed(member.key)
        self._changed(key)

    # Membership.

    def _gang_changed(self, link: str) -> None:
        for uid in list(self._by_link.get(link, ())):
            self._place(self._members[uid])
        self._queue_may_change(list(self._keys_by_link.get(link, ())))
        self._on_use_change(link)

    def _return_to(self, key: str) -> None:
        """Pods that the gang did not need may be members of its next run."""
        for uid in self._apart.pop(key, {}):
            member = self._members[uid]
            member.gang = ""
            self._place(member)

    def _forget_apart(self, key: str, uid: str) -> None:
        apart = self._apart.get(key, {})
        apart.pop(uid, None)
        if not apart:
            self._apart.pop(key, None)

    def _place(self, member: _Member) -> None:
        """Find the group of a pod, and move it there."""
        pod = member.pod
        if pod.started:
            found: _Id | None = self._id_of_started(pod)
        else:
            gang = self._gangs.get(member.link)
            if gang is not None and gang.metadata.deletion_timestamp is None and gang.readable:
                found = self._id_of_gated(member, gang)
            elif member.key:
                return  # it stays where it is
            else:
                found = None
            if found is None and pod.terminating and pod.kept:
                found = _id_of_pod(pod)  # to be released by the job controller
        key = "" if found is None else found.key
        uid = pod.metadata.uid
        if member.key != key:
            before, member.key = member.key, key
            self._leave(before, uid)
        if found is not None:
            self._pods.setdefault(key, {})[uid] = None
            self._add(found)

    def _id_of_started(self, pod: GroupPod) -> _Id:
        meta = pod.metadata
        name = meta.annotations[names.WORKLOAD_ANNOTATION]
        known = self._ids.get(f"{meta.namespace}/{name}")
        if known is not None:
            return known
        workload = self._workloads.get(f"{meta.namespace}/{name}")
        run = decode_run_spec(workload.metadata.annotations) if workload is not None else None
        instance = _instance_of(run)
        if run is None:
            instance = GangInstance(link_of(meta.annotations), "")
        return _Id(meta.namespace, name, meta.labels.get(names.GANG_ID_LABEL, ""), instance)

    def _id_of_gated(self, member: _Member, gang: GangWorkload) -> _Id | None:
        part = part_of(gang.canonical, member.labels)
        if isinstance(part, Mismatch):
            member.mismatch = part
            return None
        member.mismatch = ""
        meta, group = member.pod.metadata, _group(gang, part.gang.group)
        member.pod = _with_role(member.pod, part, group)
        link = gang.metadata.name
        is_gang = group is not None and min_count(group) > 0
        found = _id(meta.namespace, link, part.gang.group, part.gang.replica)
        if member.gang and (not is_gang or member.gang != found.key):
            self._forget_apart(member.gang, meta.uid)
            member.gang = ""
        if is_gang and not member.gang:
            return found
        return _id_of_pod(member.pod, part.gang.group, part.gang.replica)

    def _add(self, found: _Id) -> None:
        if found.key in self._ids:
            return
        self._ids[found.key] = found
        self._keys_by_link.setdefault(found.link, {})[found.key] = None
        self._on_upsert(self[found.key])

    def _leave(self, key: str, uid: str) -> None:
        """A pod leaves a group, which may be over."""
        if not key:
            return
        pods = self._pods.get(key, {})
        pods.pop(uid, None)
        if pods:
            self._changed(key)
            return
        self._pods.pop(key, None)
        found = self._ids.get(key)
        if found is not None and self._workload(found) is None:
            self._remove(key)
        else:
            self._changed(key)

    def _remove(self, key: str) -> None:
        found = self._ids[key]
        self._assembled.pop(key, None)
        group = self[key]
        del self._ids[key], self._assembled[key]
        keys = self._keys_by_link[found.link]
        del keys[key]
        if not keys:
            del self._keys_by_link[found.link]
        self._on_delete(group)

    def _changed(self, key: str) -> None:
        """Something that a group depends on changed."""
        found = self._ids.get(key)
        if found is None:
            return
        self._assembled.pop(key, None)
        workload = self._workload(found)
        # Nothing holds what is admitted, so the many events of running pods assemble nothing.
        if workload is not None and workload.status.admission is None:
            self._set_hold(key, self[key].hold)
        self._on_change(key)

    def _queue_may_change(self, keys: Iterable[str]) -> None:
        for key in keys:
            self._changed(key)
            if key in self._ids:
                self._on_upsert(self[key])

    # Groups.

    def _workload(self, found: _Id) -> Workload | None:
        workload = self._workloads.get(found.key)
        return workload if workload is not None and workload.owner_uid == found.uid else None

    def _assemble(self, found: _Id) -> GangGroup:
        workload, gang = self._workload(found), self._gangs.get(found.link)
        pods = [self._members[uid].pod for uid in self._pods.get(found.key, ())]
        # Pods that ended under an earlier Workload are not of this run.
        present = workload.metadata.uid if workload is not None else ""
        past = [pod for pod in pods if pod.started and pod.over and _workload_uid(pod) != present]
        if past:
            gone = {pod.metadata.uid for pod in past}
            pods = [pod for pod in pods if pod.metadata.uid not in gone]
        pods.sort(key=lambda pod: pod.age_order)
        instance = found.instance
        if gang is not None:
            instance = msgspec.structs.replace(instance, workload_uid=gang.metadata.uid)
        oldest = self._members[pods[0].metadata.uid].labels if pods else {}
        group = GangGroup(
            metadata=Meta(
                name=found.name,
                namespace=found.namespace,
                uid=found.uid,
                creation_timestamp=pods[0].metadata.creation_timestamp if pods else None,
                labels=self._labels(found, oldest, gang, workload),
            ),
            spec=PodGroupSpec(pods=tuple(pods)),
            instance=instance,
            past=tuple(past),
        )
        if gang is None or gang.metadata.deletion_timestamp is not None:
            hold = f'the Workload of gangs "{instance.workload}" does not exist: create it'
            return _held(group, Waiting.WORKLOAD_MISSING, hold)
        own = _group(gang, instance.gang)
        if not gang.readable or own is None:
            hold = f'the spec of the Workload of gangs "{instance.workload}" cannot be used'
            return _held(group, HoldReason.UNREADABLE, hold)
        return self._with_gang(group, gang, own)

    def _labels(
        self,
        found: _Id,
        oldest: Mapping[str, str],
        gang: GangWorkload | None,
        workload: Workload | None,
    ) -> dict[str, str]:
        """Those of the oldest pod, with the queue that the group uses, if there is one."""
        of_gang = gang.metadata.labels if gang is not None else {}
        labels = {key: of_gang[key] for key in _JOB_LABELS if key in of_gang} | dict(oldest)
        queue = labels.pop(names.QUEUE_LABEL, "") or of_gang.get(names.QUEUE_LABEL, "")
        if workload is not None and (workload.status.admission is not None or not queue):
            queue = workload.spec.queue_name
        if not queue and self._has_default_queue(found.namespace):
            queue = DEFAULT_QUEUE
        return {**labels, names.QUEUE_LABEL: queue} if queue else labels

    def _with_gang(self, group: GangGroup, gang: GangWorkload, own: Object) -> GangGroup:
        """The group with what its Workload of gangs says about it."""
        instance = group.instance
        least = 0 if instance.pod else min_count(own)
        most = None if instance.pod else upper_bound(own)
        group = msgspec.structs.replace(group, least=least, most=most)
        roles = group.roles  # all of its members, because nothing holds it yet
        canonical = _canonical(gang.canonical, own)
        podsets = [
            GangPodSet(role.name, count, self._labels_of(group, role.name), role.request)
            for role, count in roles
        ]
        requests: Requests | Rejected = Requests()
        if podsets:
            requests = topology_requests(
                canonical,
                podsets,
                workload=instance.workload,
                topologies=self._topologies(
                    f"{group.metadata.namespace}/{group.metadata.labels.get(names.QUEUE_LABEL, '')}"
                ),
                nested=self._nested,
                across=not _is_one_gang(gang.canonical),
            )
        reason, hold = _find_hold(group, len(roles), requests)
        topology = {} if isinstance(requests, Rejected) else dict(requests.by_podset)
        not_enforced = () if isinstance(requests, Rejected) else requests.not_enforced
        return msgspec.structs.replace(
            _held(group, reason, hold),
            not_enforced=not_enforced,
            run_spec=encode_instance_spec(
                instance.workload,
                [role.name for role, _ in roles],
                own,
                replica=instance.replica,
                pod=instance.pod,
            ),
            topology={name: dict(found) for name, found in topology.items()},
            nesting=""
            if isinstance(requests, Rejected) or not requests.nesting
            else encode_nesting(requests.nesting),
        )

    def _labels_of(self, group: GangGroup, role: str) -> Mapping[str, str]:
        """The labels of one pod of a role."""
        for pod in group.members:
            if pod.role.name == role:
                return self._members[pod.metadata.uid].labels
        return {}


def _workload_uid(pod: GroupPod) -> str:
    return pod.metadata.annotations.get(names.GANG_WORKLOAD_UID_ANNOTATION, "")


def _is_one_gang(canonical: Object) -> bool:
    return canonical["replicaMode"] == "Unreplicated" and len(canonical["gangGroups"]) == 1


def _canonical(canonical: Object, group: Object) -> Object:
    """The spec of one gang alone."""
    one = {key: value for key, value in group.items() if key != "selector"}
    kept = ("topologyRequest", "topologySpread")
    return {
        **{key: canonical[key] for key in kept if key in canonical},
        "replicaMode": "Unreplicated",
        "gangGroups": [one],
    }


def _held(group: GangGroup, reason: str, hold: str) -> GangGroup:
    return msgspec.structs.replace(group, hold=hold, hold_reason=str(reason))


def _find_hold(group: GangGroup, roles: int, requests: Requests | Rejected) -> tuple[str, str]:
    """Why a group is not admitted: reason and message; empty if it may be."""
    present, instance = group.members, group.instance
    gang = f"gang {GangKey(instance.gang, instance.replica)}"
    if len(present) < group.least:
        message = f"{len(present)} of {group.least} pods of {gang} exist"
        return Waiting.PODS_MISSING, message
    foreign = [pod for pod in present if not pod.started and not _OUR_GATES.issuperset(pod.gates)]
    if foreign:
        shown = ", ".join(pod.metadata.name for pod in foreign[:_SHOWN_PODS])
        return Waiting.FOREIGN_GATE, f"pods of {gang} have gates of other owners: {shown}"
    if roles > MAX_ROLES:
        message = f"the pods of {gang} request {roles} different things, {MAX_ROLES} at most"
        return HoldReason.UNSATISFIABLE, message
    if isinstance(requests, Rejected):
        message = f"{gang} cannot be placed: {requests.path}: {requests.message}"
        return HoldReason.TOPOLOGY, message
    return "", ""


def _id(
    namespace: str, workload: str, gang: str, replica: str, pod: str = "", *, name: str = ""
) -> _Id:
    uid = uid_of_gang(namespace, workload, gang, replica, pod)
    parts = [workload, name] if pod else [workload, gang, replica]
    # A value of a label may have characters that a name may not have; the hash tells them apart.
    text = "-".join(_as_name(part) for part in parts if part)
    return _Id(
        namespace,
        names.workload_name("gang", "", text, uid),
        uid,
        GangInstance(workload, gang, replica, pod),
    )


def _id_of_pod(pod: GroupPod, gang: str = "", replica: str = "") -> _Id:
    """Of a pod that starts by itself."""
    meta = pod.metadata
    link = link_of(meta.annotations)
    return _id(meta.namespace, link, gang, replica, meta.uid, name=meta.name)


def _as_name(text: str) -> str:
    return "".join(c if c.isalnum() and c.isascii() else "-" for c in text.lower()).strip("-")


def _instance_of(run: RunSpec | None) -> GangInstance:
    """Which gang a Workload of Kueue's API is of, by its annotation."""
    if run is None:
        return GangInstance("", "")
    gang = str(run.spec["gangGroups"][0]["name"])
    return GangInstance(run.workload, gang, run.replica, run.pod)


def _group(gang: GangWorkload, name: str) -> Object | None:
    return next((one for one in gang.canonical["gangGroups"] if one["name"] == name), None)


def _with_role(pod: GroupPod, part: Part, group: Object | None) -> GroupPod:
    """The pod with a role of its own in each group of levels 2 and 3."""
    if group is None or not _is_divided(group):
        return pod
    text = "/".join((pod.role.name, part.ranked_group or "", part.eq_group or ""))
    digest = hashlib.sha1(text.encode(), usedforsecurity=False).hexdigest()
    return msgspec.structs.replace(
        pod, role=msgspec.structs.replace(pod.role, name=digest[:_ROLE_DIGITS])
    )


def _is_divided(group: Object) -> bool:
    ranked = group["rankedGroups"]
    return len(ranked) > 1 or any(len(one["eqGroups"]) > 1 for one in ranked)


def _identity(gang: GangWorkload) -> tuple[object, ...]:
    """What groups depend on."""
    meta = gang.metadata
    return meta.uid, meta.deletion_timestamp, meta.labels, gang.spec, gang.readable

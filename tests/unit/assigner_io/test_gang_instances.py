"""Gangs of pods that no managed job owns: members, what each gang needs, and the status."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import pytest
from msgspec.structs import replace

from rackgate.api import names
from rackgate.api.resources import GANG_WORKLOADS
from rackgate.gang.nesting import Enclosing, decode_nesting
from rackgate.jobframework.injection import PodSetInfo
from rackgate.jobframework.managed import is_group_pod, owner_uid_of_pod
from rackgate.jobframework.pod_group.gang_group import GangGroup, replaces_pods
from rackgate.jobframework.pod_group.membership import uid_of_gang
from rackgate.jobframework.pod_group.pods import GroupPod, decode_group_pod
from rackgate.jobframework.registry import GANG, kind_of, owner_of
from rackgate.wire.core import Meta, OwnerReference
from rackgate.wire.kueue import Workload
from rackgate_assigner.gangs.gang_workload import GangWorkload, decode_gang_workload
from rackgate_assigner.gangs.instances import GangInstances, is_gang_pod
from rackgate_assigner.gangs.status.gang_status import MAX_GANGS, Summary
from rackgate_assigner.gangs.status.instance_status import InstanceUse, summarize_instances
from rackgate_assigner.jobs import plan as actions
from rackgate_assigner.jobs.plan import plan_job
from rackgate_assigner.jobs.pod_groups.gang_state import late_pods, read_gang_state
from rackgate_assigner.jobs.pod_groups.patches import group_workload_body, start_patch
from rackgate_assigner.jobs.pod_groups.state import pods_to_release, pods_to_start
from rackgate_assigner.jobs.state import Priority, workload_name_of
from rackgate_assigner.watches import decode_workload

AT = "2026-11-24T07:00:00Z"
ONE: Mapping[str, Any] = {"gangGroups": [{"name": "gg", "minCount": 2}]}
SET = ("apps/v1", "StatefulSet")


def pod(
    name: str,
    *,
    link: str = "w",
    labels: Mapping[str, str] | None = None,
    queue: str = "queue",
    own: Workload | None = None,
    phase: str = "Pending",
    node: str = "",
    gates: tuple[str, ...] = (names.GANG_GATE,),
    owner: tuple[str, str] | None = None,
    cpu: str = "1",
    version: str = "7",
    created: str = "2026-11-24T06:00:00Z",
    deleted: bool = False,
) -> GroupPod:
    """A pod as the API server stores it: gated, and started under a Workload if that is given."""
    found = {names.MANAGED_LABEL: "true", **(labels or {})}
    marks = {names.GANG_LINK_ANNOTATION: link}
    if queue:
        found[names.QUEUE_LABEL] = queue
    if own is not None:
        found |= {names.GANG_ID_LABEL: own.owner_uid, names.PODSET_LABEL: own.spec.pod_sets[0].name}
        marks |= {
            names.WORKLOAD_ANNOTATION: own.metadata.name,
            names.GANG_WORKLOAD_UID_ANNOTATION: own.metadata.uid,
        }
    meta: dict[str, Any] = {
        "name": name,
        "namespace": "ns",
        "uid": f"uid-{name}",
        "resourceVersion": version,
        "creationTimestamp": created,
        "labels": found,
        "annotations": marks,
    }
    if deleted:
        meta |= {"deletionTimestamp": AT, "finalizers": [names.MANAGED_FINALIZER]}
    if owner is not None:
        version_, kind = owner
        meta["ownerReferences"] = [
            {"apiVersion": version_, "kind": kind, "name": "o", "uid": "o", "controller": True}
        ]
    spec = {
        "containers": [{"name": "c", "resources": {"requests": {"cpu": cpu}}}],
        "schedulingGates": [{"name": gate} for gate in gates],
        "nodeName": node,
    }
    return decode_group_pod(
        json.dumps({"metadata": meta, "spec": spec, "status": {"phase": phase}}).encode()
    )


def gang(spec: Mapping[str, Any], name: str = "w", **metadata: Any) -> GangWorkload:
    meta = {"name": name, "namespace": "ns", "uid": "gang", "generation": 3, **metadata}
    return decode_gang_workload(json.dumps({"metadata": meta, "spec": spec}).encode())


def workload(
    group: GangGroup,
    *,
    admitted: bool = True,
    conditions: Mapping[str, str] | None = None,
    **status: Any,
) -> Workload:
    """The Workload of a group, as created for it."""
    body = group_workload_body(group, workload_name_of(group), Priority())
    body["metadata"] |= {"uid": "k", "resourceVersion": "9"}
    found = {**({"Admitted": "True"} if admitted else {}), **(conditions or {})}
    if admitted:
        assignments = [
            {"name": one["name"], "count": one["count"], "flavors": {"cpu": "f"}}
            for one in body["spec"]["podSets"]
        ]
        status["admission"] = {"clusterQueue": "cq", "podSetAssignments": assignments}
    status["conditions"] = [
        {"type": t, "status": s, "reason": t, "message": "", "lastTransitionTime": AT}
        for t, s in found.items()
    ]
    return decode_workload(json.dumps({**body, "status": status}).encode())


class Cluster:
    """An index, and what the watches show."""

    def __init__(self, *, default_queue: bool = False, nested: bool = False) -> None:
        self.gangs: dict[str, GangWorkload] = {}
        self.workloads: dict[str, Workload] = {}
        self.holds: dict[str, str] = {}
        self.gone: list[str] = []
        self.index = GangInstances(
            self.gangs,
            self.workloads,
            has_default_queue=lambda _namespace: default_queue,
            nested=nested,
            set_hold=self.holds.__setitem__,
            on_delete=lambda group: self.gone.append(group.metadata.name),
        )

    def describe(self, spec: Mapping[str, Any], **metadata: Any) -> None:
        found = gang(spec, **metadata)
        before = self.gangs.get(found.metadata.key)
        self.gangs[found.metadata.key] = found
        self.index.on_gang_upsert(before, found)

    def forget(self) -> None:
        self.index.on_gang_delete(self.gangs.pop("ns/w"))

    def add(self, *pods: GroupPod) -> None:
        for one in pods:
            self.index.on_pod_upsert(one)

    def put(self, found: Workload) -> Workload:
        self.workloads[found.metadata.key] = found
        self.index.on_workload_upsert(found)
        return found

    def drop(self, found: Workload) -> None:
        del self.workloads[found.metadata.key]
        self.index.on_workload_delete(found)

    @property
    def groups(self) -> dict[str, list[str]]:
        """Names of pods, by gang and replica."""
        found: dict[str, list[str]] = {}
        for group in self.index.values():
            key = "/".join(filter(None, (group.instance.gang, group.instance.replica)))
            found.setdefault(key, []).extend(one.metadata.name for one in group.pods)
        return found

    @property
    def only(self) -> GangGroup:
        (found,) = self.index.values()
        return found

    def step(self, own: Workload | None = None, **more: Any) -> actions.Action:
        state = read_gang_state(self.only, own, Priority(), **more)
        return plan_job(self.only, [] if own is None else [own], state)

    def status(self) -> Summary:
        use = InstanceUse(self.index.groups("ns/w"), self.index.mismatched("ns/w"))
        return summarize_instances(self.gangs["ns/w"], use)


def condition(found: Summary, type_: str) -> tuple[str, str]:
    return next((str(c.status), str(c.reason)) for c in found.changes if c.type == type_)


# Membership.


@pytest.mark.requirement("GNG-06")
def test_pods_are_in_no_group_before_their_workload_of_gangs_in_either_order() -> None:
    late, early = Cluster(), Cluster()
    late.add(pod("a"), pod("b"))
    assert late.groups == {}
    late.describe(ONE)
    early.describe(ONE)
    early.add(pod("a"), pod("b"))
    assert late.groups == early.groups == {"gg": ["a", "b"]}
    assert late.only.metadata == early.only.metadata


def test_only_linked_pods_that_no_managed_job_owns_are_in_gangs() -> None:
    assert is_gang_pod(pod("a"), groups_elsewhere=False)
    assert not is_gang_pod(pod("a", link=""), groups_elsewhere=False)
    assert not is_gang_pod(pod("a", labels={names.MANAGED_LABEL: ""}), groups_elsewhere=False)
    grouped = pod("a", labels={names.POD_GROUP_LABEL: "train"})
    assert is_gang_pod(grouped, groups_elsewhere=False)
    assert not is_gang_pod(grouped, groups_elsewhere=True)
    cluster = Cluster()
    cluster.describe(ONE)
    cluster.add(pod("a"), pod("b"))
    own = workload(cluster.only)
    assert is_gang_pod(pod("a", own=own), groups_elsewhere=True)


@pytest.mark.requirement("GNG-18", "GNG-46")
def test_each_replica_is_a_gang_of_its_own() -> None:
    cluster = Cluster()
    cluster.describe({**ONE, "replicaMode": "ReplicatedGangs", "replicaKey": "rank"})
    cluster.add(*(pod(f"{r}{n}", labels={"rank": r}) for r in ("r_1", "r-1", "r2") for n in "ab"))
    cluster.add(pod("none"))
    assert cluster.groups == {
        "gg/r_1": ["r_1a", "r_1b"],
        "gg/r-1": ["r-1a", "r-1b"],
        "gg/r2": ["r2a", "r2b"],
    }
    assert len({group.metadata.name for group in cluster.index.values()}) == 3
    assert cluster.index.mismatched("ns/w") == {"NoReplica": ["none"]}


@pytest.mark.requirement("GNG-17")
def test_each_gang_group_is_a_gang_of_its_own() -> None:
    groups = [
        {"name": name, "minCount": 2, "selector": {"key": "role", "values": [name]}}
        for name in ("a", "b")
    ]
    cluster = Cluster()
    cluster.describe({"gangGroups": groups})
    cluster.add(*(pod(name, labels={"role": name[0]}) for name in ("a1", "a2", "b1")))
    cluster.add(pod("c1", labels={"role": "c"}))
    assert cluster.groups == {"a": ["a1", "a2"], "b": ["b1"]}
    assert [group.complete for group in cluster.index.values()] == [True, False]
    assert cluster.index.mismatched("ns/w") == {"NoPart": ["c1"]}


def test_a_pod_keeps_the_labels_with_which_it_was_first_seen() -> None:
    groups = [
        {"name": name, "minCount": 1, "selector": {"key": "role", "values": [name]}}
        for name in ("a", "b")
    ]
    cluster = Cluster()
    cluster.describe({"gangGroups": groups})
    cluster.add(pod("p", labels={"role": "a"}))
    cluster.add(pod("p", labels={"role": "b"}, version="8"))
    assert cluster.groups == {"a": ["p"]}


def test_a_started_pod_stays_whatever_becomes_of_its_workload_of_gangs() -> None:
    cluster = Cluster()
    cluster.describe(ONE)
    cluster.add(pod("a"), pod("b"))
    own = cluster.put(workload(cluster.only))
    cluster.add(pod("a", own=own, version="8"))
    cluster.forget()
    assert cluster.groups == {"gg": ["a", "b"]}
    cluster.describe({"gangGroups": [{"name": "other", "minCount": 2}]})
    assert cluster.groups == {"gg": ["a"], "other": ["b"]}


def test_a_replica_that_starts_new_knows_the_gang_of_a_workload_without_pods() -> None:
    cluster = Cluster()
    cluster.describe({**ONE, "replicaMode": "ReplicatedGangs", "replicaKey": "rank"})
    cluster.add(*(pod(name, labels={"rank": "r"}) for name in "ab"))
    own, before = workload(cluster.only), cluster.only
    later = Cluster()
    later.put(own)
    later.describe({**ONE, "replicaMode": "ReplicatedGangs", "replicaKey": "rank"})
    assert later.only.instance == before.instance
    assert later.only.metadata.uid == before.metadata.uid
    assert owner_of(own) == (GANG, own.metadata.key)
    later.drop(own)
    assert later.groups == {}
    assert later.gone == [before.metadata.name]


def test_pods_of_a_group_that_is_no_gang_have_a_group_each() -> None:
    cluster = Cluster()
    cluster.describe({"replicaMode": "ReplicatedPods"})
    cluster.add(pod("a"), pod("b"))
    assert len(cluster.index) == 2
    assert all(group.complete and not group.least for group in cluster.index.values())


def test_pods_of_other_parts_have_podsets_of_their_own() -> None:
    ranked = [{"name": name, "selector": {"key": "role", "values": [name]}} for name in ("a", "b")]
    cluster = Cluster()
    cluster.describe({"gangGroups": [{"name": "gg", "minCount": 2, "rankedGroups": ranked}]})
    cluster.add(pod("a", labels={"role": "a"}), pod("b", labels={"role": "b"}))
    assert [count for _, count in cluster.only.roles] == [1, 1]
    (first, _), (second, _) = cluster.only.roles
    assert first.template == second.template


def test_the_id_of_a_gang_decides_what_a_pod_is_also_in_a_job() -> None:
    job = OwnerReference(kind="Job", name="j", uid="j", api_version="batch/v1", controller=True)
    uid = uid_of_gang("ns", "w", "gg")
    labels = {names.MANAGED_LABEL: "true", names.GANG_ID_LABEL: uid}
    found = Meta(name="a", namespace="ns", uid="u", labels=labels, owner_references=(job,))
    assert is_group_pod(found)
    assert owner_uid_of_pod(found) == uid
    forged = Meta(
        name="a", uid="u", labels={**labels, names.GANG_ID_LABEL: "j"}, owner_references=(job,)
    )
    assert owner_uid_of_pod(forged) == "j"
    assert not is_group_pod(forged)


# Queues.


@pytest.mark.parametrize(
    ("of_pod", "of_gang", "default", "expected"),
    [
        ("mine", "other", True, "mine"),
        ("", "other", True, "other"),
        ("", "", True, "default"),
        ("", "", False, None),
    ],
)
def test_the_queue_is_that_of_the_pods_then_of_the_workload_then_the_default(
    of_pod: str, of_gang: str, default: bool, expected: str | None
) -> None:
    cluster = Cluster(default_queue=default)
    labels = {names.QUEUE_LABEL: of_gang} if of_gang else {}
    cluster.describe(ONE, labels=labels)
    cluster.add(pod("a", queue=of_pod), pod("b", queue=of_pod))
    assert cluster.only.metadata.labels.get(names.QUEUE_LABEL) == expected


def test_an_admitted_gang_stays_in_its_queue() -> None:
    cluster = Cluster()
    cluster.describe(ONE)
    cluster.add(pod("a"), pod("b"))
    cluster.put(workload(cluster.only))
    cluster.describe(ONE, labels={names.QUEUE_LABEL: "other"})
    cluster.index.on_pod_delete(pod("a"))
    assert cluster.only.metadata.labels[names.QUEUE_LABEL] == "queue"


# What it needs.


def test_it_is_created_when_its_pods_exist_started_and_gone_on_with() -> None:
    cluster = Cluster()
    cluster.describe(ONE)
    cluster.add(pod("a"))
    assert isinstance(cluster.step(), actions.NoAction)
    cluster.add(pod("b"))
    assert cluster.step() == actions.CreateWorkload(cluster.only.metadata.name)
    own = cluster.put(workload(cluster.only))
    found = cluster.step(own)
    assert isinstance(found, actions.StartJob)
    cluster.add(pod("a", own=own, version="8"))
    assert isinstance(cluster.step(own), actions.ReapplyInjection)
    assert [one.metadata.name for one in pods_to_start(cluster.only, own)] == ["b"]


def test_its_workload_is_owned_by_the_workload_of_gangs_and_its_pods_and_controlled_by_none() -> (
    None
):
    cluster = Cluster()
    cluster.describe(ONE)
    cluster.add(pod("a"), pod("b"))
    own = workload(cluster.only)
    owners = [(one.kind, one.uid) for one in own.metadata.owner_references]
    assert owners == [("Workload", "gang"), ("Pod", "uid-a"), ("Pod", "uid-b")]
    assert own.metadata.controller is None
    assert own.owner_uid == cluster.only.metadata.uid
    assert own.metadata.owner_references[0].api_version == GANG_WORKLOADS.api_version


def test_a_start_says_which_gang_and_which_workload_and_leaves_the_gate() -> None:
    cluster = Cluster()
    cluster.describe(ONE)
    cluster.add(pod("a"), pod("b"))
    own = workload(cluster.only)
    info = PodSetInfo(own.spec.pod_sets[0].name, tas=False)
    patch = start_patch(cluster.only.pods[0], info, own.metadata, gang=cluster.only.metadata.uid)
    assert isinstance(patch, dict)
    meta = patch["metadata"]
    assert meta["labels"][names.GANG_ID_LABEL] == own.owner_uid
    assert meta["annotations"][names.GANG_WORKLOAD_UID_ANNOTATION] == "k"
    assert "schedulingGates" not in patch["spec"]
    assert meta["uid"] == "uid-a"


@pytest.mark.parametrize("tas", [False, True])
def test_the_gate_of_plain_pods_comes_off_at_the_start_unless_there_is_a_topology(
    tas: bool,
) -> None:
    info = PodSetInfo("p", tas=tas)
    both = pod("a", gates=(names.GANG_GATE, names.ADMISSION_GATE))
    patch = start_patch(both, info, Meta(name="k", uid="k"), gang="gang-x")
    assert isinstance(patch, dict)
    removed = [{"$patch": "delete", "name": names.ADMISSION_GATE}]
    assert patch["spec"].get("schedulingGates", []) == ([] if tas else removed)


def test_a_pending_workload_takes_new_numbers_and_a_run_keeps_its_own() -> None:
    cluster = Cluster()
    cluster.describe(ONE)
    cluster.add(pod("a"), pod("b"), pod("c"))
    pending = cluster.put(workload(cluster.only, admitted=False))
    cluster.describe({"gangGroups": [{"name": "gg", "minCount": 3}]})
    found = cluster.step(pending)
    assert isinstance(found, actions.UpdateWorkload)
    assert names.GANG_RUN_SPEC_ANNOTATION.replace("/", "~1") in str(found.ops)
    running = cluster.put(workload(cluster.only))
    cluster.describe({"gangGroups": [{"name": "gg", "minCount": 1}]})
    assert isinstance(cluster.step(running), actions.StartJob)


def test_a_gang_that_lost_a_pod_before_its_start_gives_its_quota_back() -> None:
    cluster = Cluster()
    cluster.describe(ONE)
    cluster.add(pod("a"), pod("b"))
    own = cluster.put(workload(cluster.only))
    cluster.index.on_pod_delete(pod("b"))
    found = cluster.step(own)
    assert isinstance(found, actions.EvictWorkload)
    assert found.reason == names.EvictionReason.JOB_CHANGED
    pending = cluster.put(_pending(own))
    assert cluster.holds[pending.metadata.key] == "1 of 2 pods of gang gg exist"
    assert isinstance(cluster.step(pending), actions.NoAction)


def _pending(own: Workload) -> Workload:
    return replace(own, status=replace(own.status, admission=None, conditions=()))


def test_a_workload_without_pods_waits_only_if_it_was_evicted_because_of_its_gang() -> None:
    cluster = Cluster()
    cluster.describe(ONE)
    cluster.add(pod("a"), pod("b"))
    own = cluster.put(_pending(workload(cluster.only)))
    for name in "ab":
        cluster.index.on_pod_delete(pod(name))
    assert isinstance(cluster.step(own), actions.DeleteWorkload)
    assert isinstance(cluster.step(own, waits=True), actions.NoAction)


@pytest.mark.parametrize(
    ("owner", "expected"),
    [
        (None, True),
        (SET, True),
        (("apps/v1", "ReplicaSet"), True),
        (("v1", "ReplicationController"), True),
        (("batch/v1", "Job"), False),
        (("example.com/v1", "StatefulSet"), False),
    ],
)
def test_pods_whose_controller_counts_failures_are_not_deleted_because_of_the_time(
    owner: tuple[str, str] | None, expected: bool
) -> None:
    assert replaces_pods(pod("a", owner=owner)) is expected
    cluster = Cluster()
    cluster.describe(ONE)
    cluster.add(pod("a", owner=owner), pod("b", owner=owner))
    own = cluster.put(workload(cluster.only))
    cluster.add(*(pod(name, own=own, owner=owner, version="8") for name in "ab"))
    state = read_gang_state(cluster.only, own, Priority())
    assert bool(state.gang.run_spec) is expected


def test_it_has_succeeded_when_all_pods_have_and_runs_again_only_with_new_ones() -> None:
    cluster = Cluster()
    cluster.describe(ONE)
    cluster.add(pod("a"), pod("b"))
    own = cluster.put(workload(cluster.only))
    cluster.add(*(pod(n, own=own, phase="Succeeded", gates=(), version="8") for n in "ab"))
    assert isinstance(cluster.step(own), actions.FinishWorkload)
    over = cluster.put(workload(cluster.only, conditions={"Finished": "True"}))
    cluster.add(pod("c"), pod("d"))
    assert not isinstance(cluster.step(over), actions.DeleteWorkload), "they are older than its end"
    for name in "cd":
        cluster.index.on_pod_delete(pod(name))
    cluster.add(pod("c", created=AT))
    assert not isinstance(cluster.step(over), actions.DeleteWorkload), "one is missing"
    cluster.add(pod("d", created=AT))
    assert isinstance(cluster.step(over), actions.DeleteWorkload)
    cluster.drop(over)
    assert [one.metadata.name for one in cluster.only.pods] == ["c", "d"]


def test_bare_pods_that_failed_end_it_and_those_of_a_controller_do_not() -> None:
    for owner, ends in ((None, True), (SET, False)):
        cluster = Cluster()
        cluster.describe(ONE)
        cluster.add(pod("a", owner=owner), pod("b", owner=owner))
        own = cluster.put(workload(cluster.only))
        cluster.add(
            *(pod(n, own=own, phase="Failed", gates=(), owner=owner, version="8") for n in "ab")
        )
        found = read_gang_state(cluster.only, own, Priority()).finished
        assert (found is not None and found.failed) is ends


def test_late_pods_are_set_apart_up_to_the_greatest_number_and_come_back() -> None:
    cluster = Cluster()
    cluster.describe({"gangGroups": [{"name": "gg", "minCount": 2, "maxCount": 3}]})
    cluster.add(pod("a"), pod("b"))
    own = cluster.put(workload(cluster.only))
    cluster.add(*(pod(n, own=own, gates=(), node="n", version="8") for n in "ab"))
    cluster.add(pod("c"), pod("d"))
    key = own.metadata.key
    late = late_pods(cluster.index[key], own)
    assert [one.metadata.name for one in late] == ["c"]
    cluster.index.set_apart(key, late)
    assert len(cluster.index) == 2
    assert cluster.index.apart(key) == 1
    assert late_pods(cluster.index[key], own, apart=1) == []
    cluster.put(_pending(own))
    assert [one.metadata.name for one in cluster.index[key].pods] == ["a", "b", "c", "d"]


def test_a_pod_that_says_the_replica_of_another_takes_no_place_from_older_ones() -> None:
    group = {"name": "gg", "minCount": 2, "maxCount": 2}
    cluster = Cluster()
    cluster.describe(
        {"gangGroups": [group], "replicaMode": "ReplicatedGangs", "replicaKey": "rank"}
    )
    cluster.add(pod("intruder", labels={"rank": "r"}, created=AT, cpu="9"))
    cluster.add(*(pod(name, labels={"rank": "r"}) for name in "ab"))
    own = cluster.put(workload(cluster.only))
    assert [one.metadata.name for one in pods_to_start(cluster.only, own)] == ["a", "b"]
    assert [podset.count for podset in own.spec.pod_sets] == [2]
    assert condition(cluster.status(), "PodsMatched") == ("False", "TooManyPods")


def test_while_a_pod_is_missing_those_that_wait_may_take_its_place() -> None:
    cluster = Cluster()
    cluster.describe(ONE)
    cluster.add(pod("a"), pod("b"))
    own = cluster.put(workload(cluster.only))
    cluster.add(pod("a", own=own, gates=(), node="n", version="8"))
    cluster.add(pod("c", cpu="2"))
    assert late_pods(cluster.only, own) == []


def test_a_pod_that_somebody_else_released_is_no_member() -> None:
    cluster = Cluster()
    cluster.describe(ONE)
    cluster.add(pod("a"), pod("b", gates=()))
    assert not cluster.only.complete
    assert condition(cluster.status(), "PodsMatched") == ("False", "NotHeld")


def test_a_pod_that_is_in_no_gang_is_released_when_it_is_deleted() -> None:
    """With the component for plain pods, a finalizer keeps it."""
    for spec in (None, {"gangGroups": [{"name": "a", "selector": {"key": "x", "values": ["y"]}}]}):
        cluster = Cluster()
        if spec is not None:
            cluster.describe(spec)
        cluster.add(pod("a"))
        assert cluster.groups == {}
        cluster.add(pod("a", deleted=True, version="8"))
        assert [one.metadata.name for one in pods_to_release(cluster.only, None)] == ["a"]
        assert cluster.only.metadata.labels[names.QUEUE_LABEL] == "queue"
        assert isinstance(cluster.step(), actions.NoAction)
        cluster.index.on_pod_delete(pod("a"))
        assert len(cluster.index) == 0


def test_pods_of_an_earlier_run_are_released() -> None:
    cluster = Cluster()
    cluster.describe(ONE)
    cluster.add(pod("a"), pod("b"))
    own = cluster.put(workload(cluster.only))
    over: dict[str, Any] = {"own": own, "phase": "Succeeded", "gates": (), "deleted": True}
    cluster.add(*(pod(name, version="8", **over) for name in "ab"))
    assert pods_to_release(cluster.only, own), "all of them are gone"
    cluster.drop(own)
    cluster.add(pod("c"))
    assert [one.metadata.name for one in cluster.only.pods] == ["c"]
    assert [one.metadata.name for one in pods_to_release(cluster.only, None)] == ["a", "b"]


def test_the_events_of_running_pods_assemble_nothing() -> None:
    cluster = Cluster()
    cluster.describe(ONE)
    cluster.add(pod("a"), pod("b"))
    own = cluster.put(workload(cluster.only))
    cluster.holds.clear()
    cluster.add(pod("a", own=own, gates=(), node="n", version="8"))
    assert cluster.holds == {}
    cluster.put(_pending(own))
    assert cluster.holds == {own.metadata.key: ""}


# Topology.


def replicas(**request: Any) -> dict[str, Any]:
    return {
        "replicaMode": "ReplicatedGangs",
        "replicaKey": "rank",
        "topologyRequest": request,
        "gangGroups": [{"name": "gg", "minCount": 2, "topologyRequest": {"required": "rack"}}],
    }


@pytest.mark.requirement("GNG-38")
def test_a_request_over_all_replicas_is_a_domain_that_their_workloads_share() -> None:
    cluster = Cluster(nested=True)
    cluster.describe(replicas(required="block"))
    cluster.add(*(pod(name, labels={"rank": "r"}) for name in "ab"))
    (podset,) = read_gang_state(cluster.only, None, Priority()).podsets
    assert podset["topologyRequest"] == {"required": "rack"}
    (nested,) = decode_nesting(cluster.only.nesting)
    assert nested.within == (Enclosing("spec", "block", required=True, across="w"),)
    assert condition(cluster.status(), "TopologyEnforced") == ("True", "Enforced")


@pytest.mark.requirement("GNG-38")
def test_without_the_gate_a_request_over_all_replicas_holds_them() -> None:
    cluster = Cluster()
    cluster.describe(replicas(required="block"))
    cluster.add(*(pod(name, labels={"rank": "r"}) for name in "ab"))
    assert "GangNestedPlacement" in cluster.only.hold
    assert "spec.topologyRequest" in cluster.only.hold


def test_what_all_replicas_prefer_is_not_enforced() -> None:
    cluster = Cluster(nested=True)
    cluster.describe(replicas(preferred="block"))
    cluster.add(*(pod(name, labels={"rank": "r"}) for name in "ab"))
    (podset,) = read_gang_state(cluster.only, None, Priority()).podsets
    assert podset["topologyRequest"] == {"required": "rack"}
    assert cluster.only.nesting == ""
    found = cluster.status()
    assert condition(found, "TopologyEnforced") == ("False", "NotSupported")
    text = next(c.message for c in found.changes if c.type == "TopologyEnforced")
    assert text == "no effect: spec.topologyRequest"


def test_an_outer_request_of_a_single_gang_reaches_its_workload() -> None:
    cluster = Cluster()
    cluster.describe({**ONE, "topologyRequest": {"required": "rack"}})
    cluster.add(pod("a"), pod("b"))
    (podset,) = read_gang_state(cluster.only, None, Priority()).podsets
    assert podset["topologyRequest"] == {"required": "rack"}
    assert kind_of(cluster.only) is GANG


# Status.


@pytest.mark.requirement("GNG-08")
def test_the_status_says_how_far_each_gang_is_and_why() -> None:
    cluster = Cluster()
    cluster.describe({"gangGroups": [{"name": "gg", "minCount": 2, "maxCount": 2}]})
    cluster.add(pod("a"))
    assert condition(cluster.status(), "GangScheduled") == ("False", "PodsMissing")
    cluster.add(pod("b"))
    assert condition(cluster.status(), "GangScheduled") == ("False", "WaitingForQuota")
    own = cluster.put(workload(cluster.only))
    assert condition(cluster.status(), "GangScheduled") == ("False", "WaitingForPlacement")
    cluster.add(pod("a", own=own, gates=(), node="n", version="8"))
    cluster.add(pod("b", own=own, gates=(), version="8"))
    found = cluster.status()
    assert condition(found, "GangScheduled") == ("False", "NotBound")
    assert found.fields["members"] == "1/2"
    assert found.fields["phase"] == "Releasing"
    cluster.add(pod("b", own=own, gates=(), node="n", version="9"))
    assert condition(cluster.status(), "GangScheduled") == ("True", "Running")
    assert "gangs" not in cluster.status().fields
    cluster.add(pod("c"))
    assert condition(cluster.status(), "PodsMatched") == ("False", "TooManyPods")


def test_a_gang_without_a_queue_says_so() -> None:
    cluster = Cluster()
    cluster.describe(ONE)
    cluster.add(pod("a", queue=""), pod("b", queue=""))
    assert condition(cluster.status(), "GangScheduled") == ("False", "NoQueue")


@pytest.mark.requirement("GNG-46")
def test_the_status_shows_a_limited_number_of_replicas_and_counts_all() -> None:
    cluster = Cluster()
    cluster.describe({**ONE, "replicaMode": "ReplicatedGangs", "replicaKey": "rank"})
    cluster.add(*(pod(f"p{n}", labels={"rank": f"{n}"}) for n in range(50)))
    found = cluster.status()
    assert found.fields["replicas"] == {"total": 50, "running": 0, "waiting": 50}
    assert len(found.fields["gangs"]) == MAX_GANGS == 16
    assert len(json.dumps(found.fields)) < 8192

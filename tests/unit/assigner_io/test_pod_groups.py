"""Groups of plain pods: what they request, what the assigner does next, and what it writes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from msgspec.structs import replace

from rackgate.api import names
from rackgate.api.names import workload_name
from rackgate.jobframework.injection import PodSetInfo, StartConflict, StopPhase
from rackgate.jobframework.managed import is_group_pod, owner_uid_of_pod
from rackgate.jobframework.pod_group.membership import uid_of_group
from rackgate.jobframework.pod_group.pod_group import PlainPod, PodGroup, assemble
from rackgate.jobframework.pod_group.pods import GroupPod, decode_group_pod
from rackgate.jobframework.registry import kind_of, owner_of
from rackgate.wire.core import Meta, OwnerReference, Toleration
from rackgate.wire.kueue import Workload
from rackgate_assigner.jobs import plan as actions
from rackgate_assigner.jobs.plan import plan_job
from rackgate_assigner.jobs.pod_groups.index import PodGroups, key_of
from rackgate_assigner.jobs.pod_groups.patches import group_workload_body, start_patch
from rackgate_assigner.jobs.pod_groups.state import (
    MAX_OWNERS,
    owner_ops,
    pods_to_delete,
    pods_to_release,
    pods_to_start,
    pods_to_stop,
    pods_without_podset,
    read_group_state,
)
from rackgate_assigner.jobs.state import Priority, resolve_priority, workload_name_of
from rackgate_assigner.watches import decode_workload

AT = "2026-11-24T07:00:00Z"
GROUP_UID = uid_of_group("ns", "train")
TRAIN = Meta(name="train", namespace="ns", uid="k")


def pod(
    name: str = "a",
    *,
    group: str = "train",
    total: str | None = "2",
    started: bool = False,
    gated: bool | None = None,
    phase: str = "Pending",
    node: str = "",
    deleted: bool = False,
    grace_s: int = 30,
    role: str = "",
    cpu: str = "1",
    created: int = 0,
    kept: bool = True,
    annotations: Mapping[str, str] | None = None,
    labels: Mapping[str, str] | None = None,
    spec: Mapping[str, Any] | None = None,
) -> GroupPod:
    """A pod as the API server stores it; gated unless it was started."""
    marks = {**(annotations or {})}
    tags = {names.QUEUE_LABEL: "queue", names.MANAGED_LABEL: "true", **(labels or {})}
    if group:
        tags[names.POD_GROUP_LABEL] = group
    if group and total is not None:
        marks[names.POD_GROUP_TOTAL_ANNOTATION] = total
    if started:
        marks[names.WORKLOAD_ANNOTATION] = group
        tags[names.PODSET_LABEL] = role or role_of(cpu)
    gates = [{"name": names.ADMISSION_GATE}] if (not started if gated is None else gated) else []
    meta: dict[str, Any] = {
        "name": name,
        "namespace": "ns",
        "uid": f"uid-{name}",
        "resourceVersion": "7",
        "creationTimestamp": f"2026-11-24T06:00:{created:02}Z",
        "labels": tags,
        "annotations": marks,
        "finalizers": [names.MANAGED_FINALIZER] if kept else [],
    }
    if deleted:
        meta |= {"deletionTimestamp": AT, "deletionGracePeriodSeconds": grace_s}
    container = {"name": name, "image": name, "resources": {"requests": {"cpu": cpu}}}
    body = {"containers": [container], "schedulingGates": gates, "nodeName": node, **(spec or {})}
    status = {
        "phase": phase,
        "conditions": [{"type": "Ready", "status": str(phase == "Running")}],
    }
    return decode_group_pod(json.dumps({"metadata": meta, "spec": body, "status": status}).encode())


def role_of(cpu: str = "1") -> str:
    return pod(cpu=cpu).role.name


def running(name: str, **more: Any) -> GroupPod:
    return pod(name, started=True, phase="Running", node="n1", **more)


def group_of(*pods: GroupPod) -> PodGroup:
    return assemble(pods)


def workload(
    group: PodGroup,
    *,
    admitted: bool = True,
    conditions: Mapping[str, str] | None = None,
    deleted: bool = False,
    owners: Sequence[str] | None = None,
    podsets: Sequence[Mapping[str, Any]] | None = None,
) -> Workload:
    """The Workload of a group, as created for it."""
    body = group_workload_body(group, workload_name_of(group), Priority())
    if podsets is not None:
        body["spec"]["podSets"] = list(podsets)
    meta = body["metadata"]
    meta |= {"uid": "w", "resourceVersion": "9", "deletionTimestamp": AT if deleted else None}
    if owners is not None:
        meta["ownerReferences"] = [
            {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": f"uid-{name}"}
            for name in owners
        ]
    states = {**({"Admitted": "True"} if admitted else {}), **(conditions or {})}
    status: dict[str, Any] = {
        "conditions": [
            {"type": type_, "status": value, "reason": type_, "message": ""}
            for type_, value in states.items()
        ]
    }
    if admitted:
        assignments = [
            {"name": found["name"], "count": found["count"], "flavors": {"cpu": "f"}}
            for found in body["spec"]["podSets"]
        ]
        status["admission"] = {"clusterQueue": "cq", "podSetAssignments": assignments}
    return decode_workload(json.dumps({**body, "status": status}).encode())


def step(group: PodGroup, own: Workload | None = None, *, live_pods: int = 0) -> actions.Action:
    state = read_group_state(group, own, Priority(), live_pods=live_pods)
    return plan_job(group, [] if own is None else [own], state)


TWO = (pod("a"), pod("b"))


# Membership and PodSets.


def test_the_pods_of_a_job_are_never_plain_pods() -> None:
    """Any user may write the label into a template."""
    labels = {names.MANAGED_LABEL: "true", names.POD_GROUP_LABEL: "train"}
    job = OwnerReference(kind="Job", name="j", uid="job", api_version="batch/v1", controller=True)
    of_job = Meta(name="a", namespace="ns", uid="u", labels=labels, owner_references=(job,))
    assert not is_group_pod(of_job)
    assert owner_uid_of_pod(of_job) == "job"
    other = replace(job, kind="StatefulSet", api_version="apps/v1")
    of_other = replace(of_job, owner_references=(other,))
    assert owner_uid_of_pod(of_other) == GROUP_UID
    assert owner_uid_of_pod(replace(of_other, labels={})) == "job"
    assert owner_uid_of_pod(Meta(name="a", uid="u")) == ""


def test_a_pod_alone_is_a_group_of_one_with_the_name_of_kueue() -> None:
    alone = group_of(pod("a", group=""))
    assert isinstance(alone, PlainPod)
    assert alone.metadata.uid == "uid-a"
    name = workload_name("Pod", "", "a", "uid-a")
    assert step(alone) == actions.CreateWorkload(name)
    own = workload(alone)
    assert own.owner_uid == "uid-a"
    assert owner_of(own) == (kind_of(alone), "ns/a")


def test_a_group_has_the_name_of_its_workload_and_no_controller() -> None:
    group = group_of(*TWO)
    assert step(group) == actions.CreateWorkload("train")
    own = workload(group)
    assert own.metadata.controller is None
    assert own.owner_uid == own.job_uid == group.metadata.uid == GROUP_UID
    assert owner_of(own) == (kind_of(group), "ns/train")
    assert [owner.uid for owner in own.metadata.owner_references] == ["uid-a", "uid-b"]


def test_pods_that_request_the_same_are_one_podset_whatever_they_are_called() -> None:
    group = group_of(
        *(
            pod(name, total="4", cpu=cpu)
            for name, cpu in (("a", "1"), ("b", "2"), ("c", "1"), ("d", "2"))
        )
    )
    counts = kind_of(group).counts(kind_of(group).manifest(group))
    assert counts == {role_of("1"): 2, role_of("2"): 2}


def test_topology_annotations_become_the_request_of_the_podset() -> None:
    marks = {names.REQUIRED_TOPOLOGY: "rack"}
    ranked = {names.POD_GROUP_INDEX_LABEL: "0"}
    group = group_of(*(pod(name, annotations=marks, labels=ranked) for name in "ab"))
    (podset,) = read_group_state(group, None, Priority()).podsets
    assert podset["topologyRequest"] == {
        "required": "rack",
        "podIndexLabel": names.POD_GROUP_INDEX_LABEL,
    }


@pytest.mark.parametrize("total", [None, "0", "-1", "many", "9" * 30, "2147483648"])
def test_a_group_without_a_number_of_pods_gets_no_workload(total: str | None) -> None:
    group = group_of(pod("a", total=total), pod("b", total=total))
    assert isinstance(step(group), actions.NoAction)
    assert pods_to_delete(group) == []


def test_an_incomplete_group_waits_unless_it_asks_for_fast_admission() -> None:
    assert isinstance(step(group_of(pod("a"))), actions.NoAction)
    fast = {names.POD_GROUP_FAST_ADMISSION: "true"}
    group = group_of(pod("a", annotations=fast))
    assert step(group) == actions.CreateWorkload("train")
    assert read_group_state(group, None, Priority()).pod_count == 2


def test_a_group_with_too_many_roles_gets_no_workload() -> None:
    group = group_of(*(pod(f"p{n}", total="9", cpu=str(n + 1)) for n in range(9)))
    assert isinstance(step(group), actions.NoAction)


def test_the_priority_class_of_the_oldest_pod_counts_even_if_pods_are_missing() -> None:
    spec = {"priorityClassName": "high"}
    group = group_of(pod("a", spec=spec))
    assert resolve_priority(group, {}, {}).missing == "PriorityClass/high"


# Start and stop.


@pytest.mark.requirement("OPS-07")
def test_an_admitted_group_starts_and_goes_on_where_a_start_was_cut_off() -> None:
    group = group_of(*TWO)
    own = workload(group)
    assert step(group, own) == actions.StartJob(own)
    half = group_of(running("a"), pod("b"))
    assert step(half, own) == actions.ReapplyInjection(own)
    assert [one.metadata.name for one in pods_to_start(half, own)] == ["b"]
    assert not pods_to_start(group_of(running("a"), running("b")), own)


def test_no_more_pods_start_than_were_admitted() -> None:
    own = workload(group_of(*TWO))
    group = group_of(running("a"), running("b", deleted=True), pod("c"))
    assert pods_to_start(group, own) == [], "a pod that is being deleted keeps its room"
    group = group_of(running("a"), pod("b", started=True, phase="Failed", node="n1"), pod("c"))
    assert [one.metadata.name for one in pods_to_start(group, own)] == ["c"]
    group = group_of(running("a"), pod("b", started=True, phase="Succeeded", node="n1"), pod("c"))
    assert pods_to_start(group, own) == [], "one that succeeded is not replaced"


def test_a_pod_that_requests_something_else_never_starts() -> None:
    own = workload(group_of(*TWO))
    group = group_of(running("a"), pod("b", cpu="64"))
    assert pods_to_start(group, own) == []
    assert [one.metadata.name for one in pods_without_podset(group, own)] == ["b"]
    forged = pod("b", cpu="64")
    same_name = GroupPod(
        forged.metadata,
        type(forged.role)(role_of("1"), forged.role.template),
        gates=forged.gates,
    )
    assert pods_to_start(group_of(running("a"), same_name), own) == []


def test_an_evicted_group_is_stopped_by_deleting_the_pods_that_were_started() -> None:
    own = workload(group_of(*TWO), conditions={"Evicted": "True"}, owners="abc")
    group = group_of(running("a"), pod("b", started=True, gated=True), pod("c"))
    found = step(group, own)
    assert isinstance(found, actions.StopJob)
    assert found.action.phase is StopPhase.SUSPEND
    assert [one.metadata.name for one in pods_to_stop(group)] == ["a", "b"]
    stopping = group_of(running("a", deleted=True), pod("c"))
    assert isinstance(step(stopping, own), actions.NoAction)
    assert isinstance(step(group_of(pod("c")), own, live_pods=1), actions.NoAction)
    assert isinstance(step(group_of(pod("c")), own), actions.ReleaseQuota)


def test_a_pending_workload_of_a_group_that_lacks_pods_is_deleted() -> None:
    own = workload(group_of(*TWO), admitted=False, owners="c")
    assert isinstance(step(group_of(pod("c")), own), actions.DeleteWorkload)


def test_a_running_group_that_lost_a_pod_keeps_its_quota() -> None:
    own = workload(group_of(*TWO))
    found = step(group_of(running("a")), own)
    assert isinstance(found, actions.NoAction), found


def test_pods_that_run_without_a_workload_are_stopped_before_one_is_created() -> None:
    group = group_of(running("a"), running("b"))
    assert isinstance(step(group), actions.StopJob)
    ending = group_of(running("a", deleted=True), pod("b"), pod("c"))
    assert isinstance(step(ending), actions.NoAction)


@pytest.mark.requirement("OPS-07")
def test_pods_that_come_later_become_owners_before_they_start() -> None:
    own = workload(group_of(*TWO))
    group = group_of(running("a"), pod("c"))
    found = step(group, own)
    assert isinstance(found, actions.UpdateWorkload)
    (op,) = found.ops
    assert [owner["uid"] for owner in op["value"]] == ["uid-a", "uid-c"]


def test_a_large_group_has_few_owners() -> None:
    pods = [pod(f"p{n:03}", total="300") for n in range(300)]
    own = workload(group_of(*pods))
    assert len(own.metadata.owner_references) == MAX_OWNERS
    assert owner_ops(group_of(*pods), own) == ()


# The end.


def test_a_group_has_finished_when_all_its_pods_succeeded() -> None:
    own = workload(group_of(*TWO))
    done = [pod(name, started=True, phase="Succeeded", node="n1") for name in "ab"]
    found = step(group_of(*done), own)
    assert isinstance(found, actions.FinishWorkload)
    assert found.message == "2 of 2 pods succeeded"
    one = group_of(done[0], running("b"))
    assert read_group_state(one, own, Priority()).reclaimable_pods == {role_of(): 1}


def test_a_failed_pod_is_waited_for_unless_it_may_not_be_replaced() -> None:
    own = workload(group_of(*TWO))
    done = pod("a", started=True, phase="Succeeded", node="n1")
    failed = pod("b", started=True, phase="Failed", node="n1")
    assert not isinstance(step(group_of(done, failed), own), actions.FinishWorkload)
    final = pod(
        "b",
        started=True,
        phase="Failed",
        node="n1",
        annotations={names.RETRIABLE_ANNOTATION: "false"},
    )
    found = step(group_of(done, final), own)
    assert isinstance(found, actions.FinishWorkload)
    assert found.reason == "Failed"
    assert not isinstance(step(group_of(running("a"), final), own), actions.FinishWorkload)


def test_a_pod_alone_that_failed_has_finished_and_one_that_is_deleted_has_not() -> None:
    alone = group_of(pod("a", group=""))
    own = workload(alone)
    failed = pod("a", group="", started=True, phase="Failed", node="n1")
    assert isinstance(step(group_of(failed), own), actions.FinishWorkload)
    stopped = pod("a", group="", started=True, phase="Failed", node="n1", deleted=True)
    assert isinstance(step(group_of(stopped), own), actions.NoAction)


def test_surplus_pods_that_did_not_start_are_deleted_the_newest_first() -> None:
    pods = [pod(name, created=age) for age, name in enumerate("abcd")]
    assert [one.metadata.name for one in pods_to_delete(group_of(*pods))] == ["d", "c"]
    late = [pod("a", created=1), running("b", created=2), running("c", created=3)]
    assert [one.metadata.name for one in pods_to_delete(group_of(*late))] == ["a"]


def test_a_pod_that_succeeded_is_kept_until_its_group_has_finished() -> None:
    done = pod("a", started=True, phase="Succeeded", node="n1", deleted=True)
    own = workload(group_of(*TWO))
    assert pods_to_release(group_of(done, running("b")), own) == []
    over = workload(group_of(*TWO), conditions={"Finished": "True"})
    assert pods_to_release(group_of(done, running("b")), over) == [done]
    assert pods_to_release(group_of(done), own) == [done], "the whole group is deleted"


@pytest.mark.parametrize(
    ("found", "released"),
    [
        (pod("a", deleted=True), True),
        (running("a", deleted=True), False),
        (running("a", deleted=True, grace_s=0), True),
        (pod("a", started=True, phase="Failed", node="n1", deleted=True), True),
        (pod("a", started=True, phase="Failed", node="n1"), False),
        (pod("a", deleted=True, kept=False), False),
    ],
    ids=["never ran", "runs", "by force", "failed", "not deleted", "not kept"],
)
def test_a_deleted_pod_is_released_when_it_is_over(found: GroupPod, released: bool) -> None:
    group = group_of(found, running("b"))
    assert pods_to_release(group, workload(group_of(*TWO))) == ([found] if released else [])


# Writes.


def test_a_start_adds_what_the_flavor_needs_in_one_write() -> None:
    gated = pod("a", spec={"nodeSelector": {"a": "1"}, "tolerations": [{"key": "own"}]})
    toleration = Toleration(key="gpu", operator="Exists")
    info = PodSetInfo(role_of(), tas=False, node_labels={"b": "2"}, tolerations=[toleration])
    patch = start_patch(gated, info, TRAIN)
    assert patch == {
        "metadata": {
            "uid": "uid-a",
            "resourceVersion": "7",
            "labels": {names.PODSET_LABEL: role_of()},
            "annotations": {names.WORKLOAD_ANNOTATION: "train"},
        },
        "spec": {
            "nodeSelector": {"b": "2"},
            "tolerations": [{"key": "own"}, {"key": "gpu", "operator": "Exists"}],
            "schedulingGates": [{"$patch": "delete", "name": names.ADMISSION_GATE}],
        },
    }


def test_with_topology_the_gate_stays_for_the_ungater() -> None:
    patch = start_patch(pod("a"), PodSetInfo(role_of(), tas=True), TRAIN)
    assert isinstance(patch, dict)
    assert "schedulingGates" not in patch["spec"]
    assert patch["metadata"]["labels"][names.TAS_LABEL] == names.TAS_LABEL_VALUE


def test_a_pod_that_contradicts_its_flavor_does_not_start() -> None:
    other = pod("a", spec={"nodeSelector": {"zone": "1"}})
    found = start_patch(other, PodSetInfo(role_of(), tas=False, node_labels={"zone": "2"}), TRAIN)
    assert isinstance(found, StartConflict)


# The index.


def test_the_index_assembles_groups_and_forgets_them() -> None:
    groups = PodGroups()
    first, second = TWO
    kind, key = key_of(first)
    assert (kind, key) == ("PodGroup", "ns/train")
    assert groups.put(key, first) is True
    assert groups.put(key, second) is False
    assert [one.metadata.name for one in groups[key].pods] == ["a", "b"]
    assert groups.drop(key, first) is False
    assert [one.metadata.name for one in groups[key].pods] == ["b"]
    assert groups.drop(key, second) is True
    assert key not in groups
    assert key_of(pod("a", group="")) == ("Pod", "ns/a")

"""Rules about gangs: each planted broken, beside a healthy twin."""

from __future__ import annotations

import json

import pytest

from rackgate.api import names
from rackgate.gang.link import run_id
from rackgate_cli.invariants.follow import _CollectionHandler
from rackgate_invariants.cluster_state import ClusterState
from rackgate_invariants.judge import breaches, skipped_rules
from rackgate_invariants.reading import SOURCES
from rackgate_invariants.rows.rows import PodRow
from rackgate_invariants.rules.catalog import Breach
from tests.support.sound_cluster import (
    EARLY,
    LATE,
    NAMESPACE,
    Object,
    World,
    found,
    job,
    pod,
    rules,
    sound,
    workload,
)

DONE = names.GANG_DONE_PODS_ANNOTATION
GANG = "three"
RUN = run_id("workload-train", EARLY)
# Between EARLY, when the Workload was admitted, and LATE.
RELEASED = "2026-01-01T10:30:00Z"
FOREIGN_GATE = "example.com/data"


def gang_workload(**group: object) -> Object:
    """The Workload of gangs, as it was created before the admission."""
    return {
        "metadata": {
            "name": GANG,
            "namespace": NAMESPACE,
            "uid": GANG,
            "generation": 1,
            "creationTimestamp": "2026-01-01T09:00:00Z",
        },
        "spec": {"gangGroups": [{"name": "gg", "minCount": 3, **group}]},
    }


def release(pod: Object, run: str = RUN, at: str = RELEASED) -> Object:
    """A pod of the gang, as the ungater has patched it."""
    meta = pod["metadata"]
    meta["creationTimestamp"] = EARLY
    meta["annotations"] |= {names.GANG_LINK_ANNOTATION: GANG, names.GANG_RUN_ANNOTATION: run}
    meta["managedFields"] = [{"manager": "rackgate-ungater", "time": at}]
    pod["spec"].pop("schedulingGates", None)
    return pod


def hold(pod: Object, *gates: str) -> Object:
    """A pod of the gang, as it was created."""
    meta, spec = pod["metadata"], pod["spec"]
    meta["creationTimestamp"] = EARLY
    meta["annotations"].pop(names.GANG_RUN_ANNOTATION, None)
    meta["annotations"][names.GANG_LINK_ANNOTATION] = GANG
    meta.pop("managedFields", None)
    spec.pop("nodeName", None)
    spec.pop("nodeSelector", None)
    held = (names.TOPOLOGY_GATE, names.GANG_GATE, *gates)
    spec["schedulingGates"] = [{"name": gate} for gate in held]
    return pod


def gang(**group: object) -> World:
    """The sound cluster, whose Job is one gang of three pods that were released."""
    world = sound()
    world.gang_workloads = [gang_workload(**group)]
    for item in world.pods:
        release(item)
    return world


def rules_of_gangs(world: World) -> list[str]:
    return [one for one in rules(world) if one.startswith("gang-")]


def test_a_sound_gang_shows_nothing() -> None:
    assert rules(gang()) == []
    assert rules(gang(maxCount=3)) == []


def test_a_gang_that_waits_as_a_whole_shows_nothing() -> None:
    world = gang()
    for item in world.pods:
        hold(item)
    assert rules_of_gangs(world) == []


@pytest.mark.requirement("OPS-12")
def test_a_pod_that_is_bound_with_the_gate_of_gangs_is_found() -> None:
    world = gang()
    hold(world.pod("train-2"))["spec"]["nodeName"] = "n2"
    assert "gang-bound-while-gated" in rules(world)


@pytest.mark.requirement("OPS-12")
def test_a_pod_that_was_released_in_a_run_of_no_admission_is_found() -> None:
    world = gang()
    release(world.pod("train-2"), run_id("workload-train", LATE))
    (breach,) = found(world)
    assert (breach.rule, breach.subject) == ("gang-other-run", "team/train-2")
    world.pod("train-2")["metadata"]["deletionTimestamp"] = LATE
    assert rules(world) == [], "it leaves"


def test_pods_of_an_evicted_job_keep_the_run_that_is_over() -> None:
    world = gang()
    world.workload["status"]["conditions"].append(
        {"type": "Evicted", "status": "True", "lastTransitionTime": LATE}
    )
    world.workload["status"]["conditions"][1] |= {"status": "False", "lastTransitionTime": LATE}
    assert rules_of_gangs(world) == []


def test_a_run_that_is_written_before_the_gate_goes_is_found() -> None:
    world = gang()
    hold(world.pod("train-2"))["metadata"]["annotations"][names.GANG_RUN_ANNOTATION] = RUN
    (breach,) = (one for one in found(world) if one.rule == "gang-other-run")
    assert "still the gate of gangs" in breach.found


@pytest.mark.requirement("OPS-12")
def test_a_pod_without_gate_and_run_was_released_by_somebody_else() -> None:
    world = gang()
    del world.pod("train-2")["metadata"]["annotations"][names.GANG_RUN_ANNOTATION]
    (breach,) = found(world)
    assert (breach.rule, breach.subject) == ("gang-without-run", "team/train-2")
    assert 'bound to node "n2"' in breach.found


@pytest.mark.parametrize("reason", ["older than its Workload of gangs", "no gang", "none exists"])
def test_a_pod_that_nobody_had_to_hold_is_no_breach(reason: str) -> None:
    world = gang(**({"minCount": 0} if reason == "no gang" else {}))
    del world.pod("train-2")["metadata"]["annotations"][names.GANG_RUN_ANNOTATION]
    if reason == "older than its Workload of gangs":
        world.gang_workloads[0]["metadata"]["creationTimestamp"] = LATE
    elif reason == "none exists":
        world.gang_workloads = []
    assert rules(world) == []


@pytest.mark.requirement("OPS-12")
def test_more_pods_than_a_gang_may_have_are_found() -> None:
    world = gang(minCount=2, maxCount=2)
    (breach,) = found(world)
    assert (breach.rule, breach.subject) == ("gang-too-many", "team/three/gg")
    assert "3 pods released" in breach.found
    assert "at most 2" in breach.found


def test_numbers_that_were_written_later_do_not_count_for_this_run() -> None:
    world = gang(minCount=2, maxCount=2)
    meta = world.gang_workloads[0]["metadata"]
    meta |= {"generation": 2, "managedFields": [{"manager": "kubectl", "time": RELEASED}]}
    assert rules(world) == [], "the ungater may not have seen them"
    meta["managedFields"][0]["time"] = EARLY
    assert rules(world) == ["gang-too-many"]
    meta["generation"] = 1
    meta["creationTimestamp"] = LATE
    assert rules(world) == [], "it was deleted and created again"


def test_a_pod_that_is_being_deleted_makes_room_for_another_one() -> None:
    world = gang(minCount=2, maxCount=2)
    world.pod("train-2")["metadata"]["deletionTimestamp"] = LATE
    assert rules(world) == []


def two_jobs(**group: object) -> World:
    """Two admitted Jobs of one gang: the second one has one pod."""
    world = gang(**group)
    world.jobs.append(job("more", 1))
    world.workloads.append(workload("more", {("n3",): 1}))
    world.pods.append(release(pod("more", 0, "n3"), run_id("workload-more", EARLY)))
    return world


@pytest.mark.requirement("OPS-12")
def test_two_jobs_with_released_pods_of_one_gang_are_found() -> None:
    (breach,) = found(two_jobs())
    assert (breach.rule, breach.subject) == ("gang-shared", "team/three/gg")
    assert "team/job-more, team/job-train" in breach.found


def test_a_job_that_waits_for_the_gang_of_another_one_is_no_breach() -> None:
    world = two_jobs()
    hold(world.pod("more-0"))
    assert rules_of_gangs(world) == []
    assert rules(two_jobs(minCount=0)) == [], "a Workload of gangs without a gang may be shared"


def in_part() -> World:
    """A gang of which only one pod was released."""
    world = gang()
    hold(world.pod("train-1"))
    hold(world.pod("train-2"))
    return world


@pytest.mark.requirement("OPS-12")
def test_a_gang_that_was_released_in_part_is_found() -> None:
    (breach,) = (one for one in found(in_part()) if one.rule == "gang-in-part")
    assert breach.subject == "team/three/gg"
    assert "1 of at least 3 pods released" in breach.found
    assert "train-1, train-2" in breach.found
    assert breach.since, "writes may be under way until then"
    assert "gang-in-part" not in [one.rule for one in breaches(in_part().cluster())]


def test_a_gate_of_another_owner_is_no_reason_to_release_the_others() -> None:
    world = in_part()
    hold(world.pod("train-2"), FOREIGN_GATE)
    (breach,) = (one for one in found(world) if one.rule == "gang-in-part")
    assert FOREIGN_GATE in breach.found


@pytest.mark.parametrize(
    "loss", ["replaced", "gone", "succeeded", "done", "unhealthy", "evicted", "enough"]
)
def test_a_gang_that_has_lost_pods_may_be_released_in_part(loss: str) -> None:
    world = in_part()
    if loss == "replaced":
        world.pod("train-2")["metadata"]["creationTimestamp"] = LATE
    elif loss == "gone":
        world.pods.remove(world.pod("train-2"))
    elif loss == "succeeded":
        world.workload["status"]["reclaimablePods"] = [{"name": "main", "count": 1}]
    elif loss == "done":
        world.workload["metadata"].setdefault("annotations", {})[DONE] = "{}"
    elif loss == "unhealthy":
        world.workload["status"]["unhealthyNodes"] = [{"name": "n2"}]
    elif loss == "evicted":
        evicted = {"type": "Evicted", "status": "True", "lastTransitionTime": LATE}
        world.workload["status"]["conditions"].append(evicted)
    else:
        world.gang_workloads[0]["spec"]["gangGroups"][0]["minCount"] = 1
    assert rules_of_gangs(world) == []


@pytest.mark.requirement("OPS-12")
@pytest.mark.parametrize("reason", ["missing pod", "foreign gate", "no Workload", "unhealthy host"])
def test_a_gang_that_waits_for_something_is_not_late(reason: str) -> None:
    world = gang()
    for item in world.pods:
        hold(item)
    assert rules(world) == ["not-released"], "nothing is missing"
    if reason == "missing pod":
        world.pods.remove(world.pod("train-2"))
    elif reason == "foreign gate":
        hold(world.pod("train-2"), FOREIGN_GATE)
    elif reason == "no Workload":
        world.gang_workloads = []
    else:
        world.workload["status"]["unhealthyNodes"] = [{"name": "n2"}]
    assert rules(world) == []


def test_a_replacement_in_a_gang_that_has_started_is_late_by_itself() -> None:
    world = gang()
    hold(world.pod("train-2"))["metadata"]["creationTimestamp"] = LATE
    assert rules(world) == ["not-released"]


def test_each_replica_is_a_gang_of_its_own() -> None:
    world = gang()
    spec = world.gang_workloads[0]["spec"]
    spec |= {"replicaMode": "ReplicatedGangs", "replicaKey": "replica"}
    spec["gangGroups"][0] |= {"minCount": 1, "maxCount": 2}
    for item, replica in zip(world.pods, "aab", strict=True):
        item["metadata"]["labels"]["replica"] = replica
    assert rules(world) == []
    world.pod("train-2")["metadata"]["labels"]["replica"] = "a"
    (breach,) = found(world)
    assert (breach.rule, breach.subject) == ("gang-too-many", "team/three/gg of replica a")


def test_without_the_right_to_read_workloads_of_gangs_the_rules_say_so() -> None:
    cluster = gang().cluster(unread={"schedworkloads": "schedworkloads cannot be listed"})
    assert set(skipped_rules(cluster)) == {
        "gang-without-run",
        "gang-too-many",
        "gang-shared",
        "gang-in-part",
        "gang-started-short",
    }


class Watched:
    """A gang of three pods that are held, and what `--watch` says about events of its pods."""

    def __init__(self, **group: object) -> None:
        self.world = gang(**group)
        self.state, self.now = ClusterState(), 1000.0
        self.found = list[Breach]()
        pods = self.world.pods
        self.world.pods = []
        for source in SOURCES:
            handler = self.handler(source.attribute)
            for item in getattr(self.world, source.attribute, ()):
                handler.upsert(None, handler.decode(json.dumps(item).encode()))
        for item in pods:
            self.show(hold(item))

    def handler(self, attribute: str) -> _CollectionHandler:
        source = next(one for one in SOURCES if one.attribute == attribute)
        return _CollectionHandler(
            self.state, attribute, self.found.append, source.decode, lambda: self.now
        )

    def pod(self, name: str) -> PodRow | None:
        found: PodRow | None = self.state.rows.get("pods", {}).get(f"{NAMESPACE}/{name}")
        return found

    def show(self, *items: Object) -> None:
        """The watch shows new versions of pods."""
        handler = self.handler("pods")
        for item in items:
            before = self.pod(item["metadata"]["name"])
            handler.upsert(before, handler.decode(json.dumps(item).encode()))

    def drop(self, name: str) -> None:
        """The watch shows a pod no more."""
        row = self.pod(name)
        assert row is not None
        self.handler("pods").delete(row)

    def short(self) -> list[Breach]:
        """What was found so far."""
        return [one for one in self.found if one.rule == "gang-started-short"]


def released(name: str, run: str = RUN) -> Object:
    return release(pod("train", int(name.rpartition("-")[2]), None), run)


@pytest.mark.requirement("OPS-12")
def test_a_gang_that_starts_before_all_of_its_pods_exist_is_found() -> None:
    seen = Watched()
    seen.drop("train-2")
    seen.now += 31
    seen.show(released("train-0"))
    (breach,) = seen.short()
    assert breach.subject == "team/three/gg"
    assert breach.found == "2 of 3 pods existed when the first one was released, train-0"
    seen.show(released("train-1"))
    assert len(seen.short()) == 1, "it happened once"


def test_a_gang_that_starts_as_a_whole_is_right() -> None:
    seen = Watched()
    seen.show(*(released(f"train-{index}") for index in range(3)))
    assert seen.found == []


@pytest.mark.parametrize("loss", ["gone", "terminating"])
def test_a_pod_that_goes_while_its_gang_is_released_counts(loss: str) -> None:
    """The ungater had counted it; its next patches find it gone."""
    seen = Watched()
    if loss == "terminating":
        gone = hold(pod("train", 2, None))
        gone["metadata"]["deletionTimestamp"] = LATE
        seen.show(gone)
    else:
        seen.drop("train-2")
    seen.now += 29
    seen.show(released("train-0"))
    assert seen.short() == []


@pytest.mark.parametrize(
    "reason", ["started", "relisted", "later numbers", "another run", "reclaimed", "done"]
)
def test_starts_that_cannot_be_judged_are_left_out(reason: str) -> None:
    group = {"minCount": 5} if reason == "later numbers" else {}
    seen = Watched(**group)
    if reason == "started":
        seen.show(released("train-1"))
    elif reason == "later numbers":
        meta = seen.world.gang_workloads[0]["metadata"]
        meta |= {"generation": 2, "managedFields": [{"manager": "kubectl", "time": EARLY}]}
    elif reason == "reclaimed":
        seen.world.workload["status"]["reclaimablePods"] = [{"name": "main", "count": 1}]
    elif reason == "done":
        seen.world.workload["metadata"].setdefault("annotations", {})[DONE] = "{}"
    for attribute in ("workloads", "gang_workloads"):
        handler = seen.handler(attribute)
        for item in getattr(seen.world, attribute):
            handler.upsert(None, handler.decode(json.dumps(item).encode()))
    seen.drop("train-2")
    seen.now += 31
    if reason == "relisted":
        handler = seen.handler("pods")
        handler.decode(json.dumps(hold(pod("train", 1, None))).encode())
        row = handler.decode(json.dumps(released("train-0")).encode())
        handler.upsert(seen.pod("train-0"), row)
    else:
        run = run_id("workload-train", LATE) if reason == "another run" else RUN
        seen.show(released("train-0", run))
    assert seen.short() == []


def test_pods_of_another_gang_or_job_do_not_count() -> None:
    seen = Watched()
    seen.drop("train-2")
    of_another_job = hold(pod("train", 2, None))
    of_another_job["metadata"]["annotations"][names.WORKLOAD_ANNOTATION] = "job-other"
    seen.now += 31
    seen.show(of_another_job, released("train-0"))
    assert len(seen.short()) == 1

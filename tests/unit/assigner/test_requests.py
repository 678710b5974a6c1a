"""What LimitRanges and RuntimeClasses add counts in quota and places, and changes are taken up."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from rackgate.features import Features
from rackgate.topology.assignment import TopologyAssignment
from rackgate.wire.core import LimitRange
from rackgate_assigner.cache.cache import Cache
from rackgate_assigner.cache.hosts import Hosts
from rackgate_assigner.explain import workload as workload_explanation
from rackgate_assigner.node_replacement.second_pass import second_pass
from rackgate_assigner.workload.decisions import Assignment, PodSetAssignment, ReplaceNode, Requeue
from rackgate_assigner.workload.info import workload_info
from tests.unit.assigner.builders import (
    HOST,
    admissions,
    admit_all,
    cache_with,
    cluster_queue_status_of,
    domains,
    limit_range,
    node,
    plan_cycle,
    podset,
    rebuild_matches,
    runtime_class,
    workload,
)

pytestmark = pytest.mark.requirement("CAP-05")

DEFAULTS = limit_range("limits", {"defaultRequest": {"cpu": "500m"}})


def two(name: str = "w", count: int = 4, **more: Any) -> Any:
    """A Workload whose pods have a container of 1 cpu, and one that says nothing."""
    found = podset(count=count, topology={"required": HOST})
    found["template"]["spec"]["containers"].append({"name": "helper"})
    found["template"]["spec"] |= more
    return workload(name, [found])


def held(cache: Cache, name: str = "w") -> tuple[str, str]:
    """Reason and message of a Workload that waits."""
    (hold,) = (
        d for d in plan_cycle(cache) if d.workload == f"team/{name}" and isinstance(d, Requeue)
    )
    return str(hold.reason), hold.message


def usage(cache: Cache) -> str:
    (flavor,) = cluster_queue_status_of(cache, "cq")["flavorsReservation"]
    return str(flavor["resources"][0]["total"])


def free(cache: Cache) -> int:
    flavor_topology = cache.flavor_topologies().by_flavor["tas"]
    return int(flavor_topology.capacity.free_row(flavor_topology.capacity.rows["cpu"])[0])


@pytest.mark.parametrize("first", ["limits", "workload"])
def test_defaults_count_in_quota_and_in_places(first: str) -> None:
    cache = cache_with([node("a", cpu="6")])
    if first == "limits":
        cache.set_limit_range(DEFAULTS)
    cache.set_workload(two())
    cache.set_limit_range(DEFAULTS)
    assignment = admit_all(cache)["w"]
    assert assignment.podsets[0].usage == {"cpu": 6000}
    assert (usage(cache), free(cache)) == ("6", 0)
    cache.set_workload(two("late", 1))
    assert "late" not in admissions(plan_cycle(cache))


def test_what_fits_only_without_them_waits_until_they_change() -> None:
    cache = cache_with([node("a", cpu="5")])
    cache.set_limit_range(DEFAULTS)
    cache.set_workload(two())
    assert admissions(plan_cycle(cache)) == {}
    epoch = cache.epoch
    cache.set_limit_range(limit_range("limits", {"defaultRequest": {"cpu": "250m"}}))
    assert cache.epoch > epoch
    assert admissions(plan_cycle(cache))["w"].podsets[0].usage == {"cpu": 5000}
    cache.drop_limit_range("team/limits")
    assert admissions(plan_cycle(cache))["w"].podsets[0].usage == {"cpu": 4000}


def test_another_namespace_is_not_touched() -> None:
    cache = cache_with([node("a", cpu="4")])
    cache.set_workload(two())
    row, epoch = cache.workloads.get("team/w"), cache.epoch
    cache.set_limit_range(limit_range("limits", {"max": {"cpu": "1m"}}, namespace="other"))
    cache.set_runtime_class(runtime_class("kata", {"cpu": "1"}))
    assert (cache.workloads.get("team/w"), cache.epoch) == (row, epoch)
    assert list(admissions(plan_cycle(cache))) == ["w"]


def test_a_missing_runtime_class_is_waited_for() -> None:
    cache = cache_with([node("a", cpu="5")])
    cache.set_workload(two(runtimeClassName="kata"))
    reason, message = held(cache)
    assert reason == "Misconfigured"
    assert message.startswith(
        'spec.podSets[main].template.spec.runtimeClassName: RuntimeClass "kata" not found'
    )
    epoch = cache.epoch
    cache.set_runtime_class(runtime_class("kata", {"cpu": "250m"}))
    assert cache.epoch > epoch
    assert admissions(plan_cycle(cache))["w"].podsets[0].usage == {"cpu": 5000}
    cache.set_runtime_class(runtime_class("kata", {"cpu": "300m"}))
    assert held(cache)[0] == "TopologyPlacementFailed"
    cache.drop_runtime_class("kata")
    assert held(cache)[0] == "Misconfigured"


def test_a_runtime_class_chooses_nodes() -> None:
    vm = {"vm": "yes"}
    cache = cache_with([node("a", cpu="8"), node("b", cpu="8", labels=vm)])
    cache.set_runtime_class(runtime_class("kata", nodeSelector=vm))
    cache.set_workload(two(runtimeClassName="kata"))
    (part,) = admissions(plan_cycle(cache))["w"].podsets
    assert part.topology is not None
    assert part.topology.domains == ((("b",), 4),)


def test_what_a_limit_range_forbids_waits_in_the_words_of_kueue() -> None:
    cache = cache_with([node("a", cpu="8")])
    cache.set_limit_range(limit_range("limits", {"min": {"cpu": "2"}}))
    cache.set_workload(two())
    assert held(cache) == (
        "Misconfigured",
        "resources didn't satisfy LimitRange constraints: spec.podSets[main].template.spec"
        ".containers[0]: minimum cpu usage per Container is 2, but request is 1 "
        '(LimitRange "limits")',
    )
    cache.drop_limit_range("team/limits")
    assert list(admissions(plan_cycle(cache))) == ["w"]


@pytest.mark.parametrize("change", ["raised", "lowered", "gone", "max"])
def test_what_is_admitted_keeps_what_it_was_admitted(change: str) -> None:
    cache = cache_with([node("a", cpu="8")])
    cache.set_limit_range(DEFAULTS)
    cache.set_runtime_class(runtime_class("kata", {"cpu": "250m"}))
    waiting = two(count=3, runtimeClassName="kata")
    cache.set_workload(waiting)
    assignment = admissions(plan_cycle(cache))["w"]

    def changes() -> None:
        if change == "gone":
            cache.drop_limit_range("team/limits")
            cache.drop_runtime_class("kata")
        elif change == "max":
            cache.set_limit_range(limit_range("limits", {"max": {"cpu": "1m"}}))
        else:
            cpu = "2" if change == "raised" else "1m"
            cache.set_limit_range(limit_range("limits", {"defaultRequest": {"cpu": cpu}}))
            cache.set_runtime_class(runtime_class("kata", {"cpu": cpu}))

    # Also while the write is under way, and when the watch shows it after the change.
    cache.assume("team/w", assignment)
    changes()
    assert (usage(cache), free(cache)) == ("5250m", 2750)
    podsets = [podset_of(waiting)]
    cache.set_workload(workload("w", podsets, version="2", assignment=assignment))
    assert (usage(cache), free(cache)) == ("5250m", 2750)
    assert rebuild_matches(cache) == []


def podset_of(waiting: Any) -> dict[str, Any]:
    """The PodSet of a Workload as it was given."""
    import json

    (found,) = waiting.spec.pod_sets
    whole = podset(count=found.count, topology={"required": HOST})
    whole["template"] = json.loads(bytes(found.template))
    return whole


@pytest.mark.parametrize(("now", "place"), [("500m", "b"), ("250m", "b"), ("1", "c")])
def test_a_replacement_goes_where_its_pods_as_they_are_created_now_have_room(
    now: str, place: str
) -> None:
    cpus = {"a": "4", "b": "3500m", "c": "4"}
    cache = cache_with([node(name, cpu=cpu) for name, cpu in cpus.items()])
    cache.set_limit_range(DEFAULTS)
    cache.set_workload(two(count=2))
    at = TopologyAssignment((HOST,), ((("a",), 2),))
    assignment = Assignment("cq", (PodSetAssignment("main", {"cpu": "tas"}, {"cpu": 3000}, 2, at),))
    lost = workload(
        "w", [podset_of(two(count=2))], assignment=assignment, unhealthy=["a"], version="2"
    )
    cache.set_workload(lost)
    cache.set_limit_range(limit_range("limits", {"defaultRequest": {"cpu": now}}))
    cache.set_node(node("a", cpu="4", ready=False))
    hosts = Hosts()
    for facts_of_node in cache.nodes.values():
        hosts.put(facts_of_node)
    snapshot = cache.snapshot()
    (repair,) = second_pass(snapshot, hosts, {}, Features())
    assert isinstance(repair, ReplaceNode)
    assert domains(repair.assignment) == {place: 2}
    # Charged is what was granted, as the cache does when it sees the write.
    flavor_topology = snapshot.flavor_topologies.by_flavor["tas"]
    leaf = flavor_topology.tree.leaf_of_host(place)
    free_cpu = flavor_topology.capacity.free_row(flavor_topology.capacity.rows["cpu"])
    assert leaf is not None
    assert free_cpu[leaf] == {"b": 500, "c": 1000}[place]


def test_an_evicted_workload_asks_for_what_its_pods_would_request_now() -> None:
    cache = cache_with([node("a", cpu="6")])
    cache.set_workload(two())
    assignment = admit_all(cache)["w"]
    cache.set_workload(workload("w", [podset_of(two())], version="2", assignment=assignment))
    cache.set_limit_range(DEFAULTS)
    cache.set_workload(two())
    assert admissions(plan_cycle(cache))["w"].podsets[0].usage == {"cpu": 6000}


def test_an_excluded_resource_of_a_default_counts_nowhere() -> None:
    cache = Cache(excluded=("example.com/",))
    cache.set_limit_range(
        limit_range("limits", {"default": {"example.com/x": "1"}, "defaultRequest": {"cpu": "1"}})
    )
    cache.set_workload(workload("w", [podset(requests={})]))
    row = cache.workloads.get("team/w")
    assert row is not None
    assert row.podsets[0].request.requests == {"cpu": 1000}
    assert rebuild_matches(cache) == []


def test_a_workload_event_reads_no_limit_range_again(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = cache_with([node("a", cpu="6")])
    cache.set_limit_range(DEFAULTS)
    cache.set_workload(two())
    before = cache.workloads.get("team/w")
    monkeypatch.setattr("rackgate_assigner.cache.pods.pod_defaults.with_defaults", None)
    monkeypatch.setattr("rackgate_assigner.cache.pods.pod_defaults.summarize_limit_ranges", None)
    told = {"QuotaReserved": ("False", "WaitingForQuota", "later")}
    cache.set_workload(workload("w", [podset_of(two())], version="2", conditions=told))
    after = cache.workloads.get("team/w")
    assert before is not None
    assert after is not None
    assert after.podsets[0] is before.podsets[0]
    # Nor is anything done for an equal LimitRange at a new version.
    named = replace_version(DEFAULTS)
    cache.set_limit_range(named)


def replace_version(item: LimitRange) -> LimitRange:
    """The same at another resourceVersion."""
    import msgspec

    meta = msgspec.structs.replace(item.metadata, resource_version="99")
    return msgspec.structs.replace(item, metadata=meta)


def test_an_explanation_shows_what_pods_will_request() -> None:
    cache = cache_with([node("a", cpu="5")])
    cache.set_limit_range(DEFAULTS)
    cache.set_workload(two())
    told = workload_explanation.explain(cache, "team/w", Features())
    assert told is not None
    assert [(line.resource, line.requested) for line in told.quota] == [("cpu", "6")]
    # One that is not submitted, too.
    row = cache.pod_defaults.with_pod_defaults(
        replace(workload_info(two("new")), queue_timestamp="9999")
    )
    told = workload_explanation.explain_row(cache, row, "notSubmitted", Features())
    assert [line.requested for line in told.quota] == ["6"]


def test_a_rebuild_notices_requests_that_were_not_taken_up() -> None:
    cache = cache_with([node("a", cpu="5")])
    cache.set_limit_range(DEFAULTS)
    cache.set_workload(two())
    stale = workload_info(two())
    cache.workloads["team/w"] = stale
    assert rebuild_matches(cache) == ["requests team/w"]
    cache.rebuild_derived_state()
    assert rebuild_matches(cache) == []
    assert admissions(plan_cycle(cache)) == {}

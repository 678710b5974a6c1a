"""Traps of the field about what nodes hold: effective requests, resizes, nodes made anew."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rackgate.wire import core
from rackgate_assigner.cache.cache import Cache
from rackgate_assigner.watches import decode_pod
from tests.unit.assigner.builders import (
    RACK,
    admissions,
    admit_all,
    cache_with,
    cluster_queue,
    domains,
    node,
    plan_cycle,
    pod,
    podset,
    rebuild_matches,
    runtime_class,
    workload,
)


def free(cache: Cache, host: str, resource: str = "cpu") -> int:
    flavor_topology = cache.flavor_topologies().by_flavor["tas"]
    leaf = flavor_topology.tree.leaf_of_values((host,))
    assert leaf is not None
    return int(flavor_topology.capacity.free[leaf, flavor_topology.capacity.rows[resource]])


def cpu(amount: str, name: str = "c", **more: Any) -> dict[str, Any]:
    return {"name": name, "resources": {"requests": {"cpu": amount}}, **more}


def foreign(name: str, spec: dict[str, Any], status: dict[str, Any] | None = None) -> core.Pod:
    """A pod of nobody's on node `a`, through the watch's own decoder."""
    whole = {
        "metadata": {"name": name, "namespace": "team"},
        "spec": {"nodeName": "a", "containers": [cpu("1")], **spec},
        "status": {"phase": "Running", **(status or {})},
    }
    return decode_pod(json.dumps(whole).encode())


SPECS: dict[str, tuple[dict[str, Any], int]] = {
    "init container": ({"initContainers": [cpu("3", "i")]}, 3000),
    "sidecar": ({"initContainers": [cpu("2", "s", restartPolicy="Always")]}, 3000),
    "overhead": ({"overhead": {"cpu": "250m"}}, 1250),
    "whole pod": ({"resources": {"requests": {"cpu": "2"}}}, 2000),
    "nothing": ({"containers": [{"name": "c"}]}, 0),
    "zero": ({"containers": [cpu("0")]}, 0),
}


@pytest.mark.requirement("CAP-03", "CAP-05")
@pytest.mark.parametrize("kind", SPECS)
def test_a_foreign_pod_takes_what_the_scheduler_counts(kind: str) -> None:
    spec, takes = SPECS[kind]
    cache = cache_with([node("a")])
    cache.set_pod(foreign("p", spec))
    assert free(cache, "a") == 4000 - takes
    assert free(cache, "a", "pods") == 109


@pytest.mark.requirement("CAP-05")
@pytest.mark.parametrize("kind", ["init container", "sidecar", "overhead", "whole pod"])
def test_a_placed_pod_takes_what_the_scheduler_counts(kind: str) -> None:
    more, takes = SPECS[kind]
    more = {"runtimeClassName": "kata"} if kind == "overhead" else more
    cache = cache_with([node("a", cpu="16"), node("b", "b1/r2", cpu="16")])
    cache.set_runtime_class(runtime_class("kata", {"cpu": "250m"}))
    counted = podset(count=16000 // takes, topology={"required": RACK})
    counted["template"]["spec"] |= more
    cache.set_workload(workload("fits", [counted]))
    too_many = podset(count=16000 // takes + 1, topology={"required": RACK})
    too_many["template"]["spec"] |= more
    cache.set_workload(workload("refused", [too_many]))
    assert list(admissions(plan_cycle(cache))) == ["fits"]


@pytest.mark.requirement("CAP-03")
@pytest.mark.field_note("C5")
def test_a_pod_that_shrinks_in_place_gives_back_when_its_node_has_taken_it_back() -> None:
    cache = cache_with([node("a")])

    def seen(asked: str, held: str) -> None:
        status = {"name": "c", "resources": {"requests": {"cpu": held}}}
        spec = {"containers": [cpu(asked)]}
        cache.set_pod(foreign("p", spec, {"containerStatuses": [status]}))

    seen("3", "3")
    assert free(cache, "a") == 1000
    seen("1", "3")
    assert free(cache, "a") == 1000
    seen("1", "1")
    assert free(cache, "a") == 3000
    assert rebuild_matches(cache) == []


@pytest.mark.requirement("CAP-03")
@pytest.mark.field_note("C5")
def test_a_pod_that_grows_in_place_takes_room_as_soon_as_it_is_asked_for() -> None:
    cache = cache_with([node("a")])
    sidecar = cpu("3", "s", restartPolicy="Always")
    allocated = {"name": "s", "allocatedResources": {"cpu": "1"}}
    status = {"initContainerStatuses": [allocated]}
    cache.set_pod(foreign("p", {"initContainers": [sidecar]}, status))
    assert free(cache, "a") == 0


@pytest.mark.requirement("CAP-03")
@pytest.mark.field_note("C4")
def test_a_foreign_pod_that_is_deleted_holds_its_room_until_it_is_gone() -> None:
    cache = cache_with([node("a")])
    cache.set_pod(pod("p", "a", cpu="3"))
    cache.set_pod(pod("p", "a", cpu="3", leaving=True))
    cache.set_workload(workload("w", [podset(count=2)]))
    assert admissions(plan_cycle(cache)) == {}
    cache.drop_pod("team/p")
    assert domains(admissions(plan_cycle(cache))["w"]) == {"a": 2}


@pytest.mark.requirement("CAP-07")
@pytest.mark.field_note("C2", "C15")
def test_a_node_made_again_under_its_name_takes_its_pods_and_workloads_along() -> None:
    cache = cache_with([node("a", "b1/r1"), node("b", "b1/r1"), node("c", "b1/r2")])
    cache.set_workload(workload("w", [podset(count=3)]))
    assignment = admit_all(cache)["w"]
    cache.set_workload(workload("w", [podset(count=3)], version="2", assignment=assignment))
    (host,) = domains(assignment)
    cache.set_pod(pod("foreign", host))
    cache.drop_node(host)
    cache.set_node(node(host, "b2/r9"))
    assert free(cache, host) == 0
    racked = podset(count=5, topology={"required": RACK})
    cache.set_workload(workload("wide", [racked]))
    assert "wide" not in admissions(plan_cycle(cache))  # no rack has two free nodes any more
    assert rebuild_matches(cache) == []


@pytest.mark.requirement("CAP-04")
@pytest.mark.field_note("C15")
def test_room_is_one_whatever_the_node_and_its_hostname_are_called() -> None:
    """Node `x` calls itself `y`, and node `y` calls itself `x`."""
    cache = cache_with([node("x", host="y"), node("y", host="x")])
    cache.set_pod(pod("foreign", "x", cpu="4"))
    assert (free(cache, "y"), free(cache, "x")) == (0, 4000)
    cache.set_workload(workload("w", [podset(count=4)]))
    assignment = admit_all(cache)["w"]
    assert domains(assignment) == {"x": 4}
    cache.set_workload(workload("w", [podset(count=4)], version="2", assignment=assignment))
    for index in range(4):
        cache.set_pod(pod(f"w-{index}", "y", workload="w"))
    assert (free(cache, "y"), free(cache, "x")) == (0, 0)


@pytest.mark.field_note("C16")
def test_memory_written_with_a_fraction_is_counted_whole() -> None:
    queue = cluster_queue("cq", {"tas": {"memory": "1Ti"}})
    cache = cache_with([node("a")], queue=queue)
    # 16Gi are offered; a third of it and a bit is asked for, in thousandths of a byte.
    asked = podset(count=3, requests={"memory": f"{16 * 2**30 * 1000 // 3 + 1}m"})
    cache.set_workload(workload("w", [asked]))
    assert admissions(plan_cycle(cache)) == {}
    fits = podset(count=3, requests={"memory": f"{16 * 2**30 // 3 * 1000}m"})
    cache.set_workload(workload("v", [fits]))
    assert list(admissions(plan_cycle(cache))) == ["v"]

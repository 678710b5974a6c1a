"""`rackgate osmo explain` with several groups, and with very many: the answer is exact."""

from __future__ import annotations

import time

import pytest

from rackgate_cli.errors import UsageError
from rackgate_cli.osmo.nodes import short_nodes
from rackgate_osmo import read_pool, read_workflow
from rackgate_osmo.explain.answer import ExplainRequest, explain
from rackgate_osmo.explain.explanation import WorkflowExplanation
from rackgate_osmo.explain.placement import STEPS

KEYS = [{"key": key, "label": key} for key in ("zone", "rack")]


def explained(groups: int, racks: int, steps: int = STEPS) -> WorkflowExplanation:
    """Groups of ten pods, each in one rack and all in one zone, on racks of ten nodes.

    Five pods of a group take one cpu and five take two; a node has two.
    """
    tasks, resources = [], {}
    for at in range(groups):
        for cpu in (1, 2):
            name, topology = f"r{at}-{cpu}", [{"key": "zone"}, {"key": "rack", "group": f"g{at}"}]
            resources[name] = {"cpu": cpu, "topology": topology}
            tasks += [{"name": f"{name}-{pod}", "resource": name} for pod in range(5)]
    asked = {"name": "w", "groups": [{"name": "g", "tasks": tasks}]}
    pool = read_pool({"name": "p", "topology_keys": KEYS})
    workflow = read_workflow({"workflow": asked, "resources": resources}, pool)
    nodes = [
        {"count": 10, "cpu": 2, "labels": {"zone": "a", "rack": str(at)}} for at in range(racks)
    ]
    return explain(ExplainRequest(pool, workflow, steps=steps), short_nodes("nodes", nodes))


@pytest.mark.requirement("OSM-25")
def test_where_kai_puts_the_first_subgroup_is_not_guessed() -> None:
    sizes = {"a": 3, "b": 1, "c": 2}
    tasks = [{"name": f"{g}{at}", "resource": g} for g, pods in sizes.items() for at in range(pods)]
    resources = {g: {"cpu": 1, "topology": [{"key": "rack", "group": g}]} for g in sizes}
    asked = {"name": "w", "groups": [{"name": "g", "tasks": tasks}]}
    pool = read_pool({"name": "p", "topology_keys": KEYS})
    workflow = read_workflow({"workflow": asked, "resources": resources}, pool)
    racks = [{"cpu": 4, "labels": {"zone": "a", "rack": "1"}}]
    racks.append({"cpu": 2, "labels": {"zone": "a", "rack": "2"}})
    # "a" leaves one cpu in rack 1. Whether "b" goes there, and leaves rack 2 to "c", is up to KAI.
    found = explain(ExplainRequest(pool, workflow), short_nodes("nodes", racks))
    assert (found.answer, found.kai_result) == ("scheduled", "unknown")
    assert [one.name for one in found.groups[0].kai.deviations] == ["sibling order"]
    racks.append({"cpu": 2, "labels": {"zone": "a", "rack": "3"}})
    # Two racks are large enough for "c", and "b" can block one.
    assert (
        explain(ExplainRequest(pool, workflow), short_nodes("nodes", racks)).kai_result
        == "scheduled"
    )


@pytest.mark.requirement("OSM-25")
def test_what_a_domain_takes_of_many_groups_is_counted_to_the_end() -> None:
    short = explained(50, 49, steps=4000).groups[0].shortages[0]
    # Each rack has five cpus to spare: the last group's small pods fit beside another group.
    assert (short.takes, short.missing) == (495, 5)


@pytest.mark.requirement("OSM-25")
def test_what_kai_does_is_known_over_hundreds_of_racks_too() -> None:
    assert explained(300, 300).kai_result == "scheduled"


def test_a_name_that_comes_twice_among_many_nodes_is_found_at_once() -> None:
    started = time.process_time()
    with pytest.raises(UsageError, match='has two nodes with the name "node-49999"'):
        short_nodes("nodes", [{"count": 49_999}, {"name": "node-49999"}])
    # Looking at all names for each took minutes.
    assert time.process_time() - started < 20

"""`rackgate get topology`: rows from the assigner's cache, and what is printed of them."""

from __future__ import annotations

import pytest

from rackgate_assigner.cache.cache import Cache
from rackgate_cli.errors import CommandError
from rackgate_cli.get.topology import DomainUsage, topology_blocks, topology_report
from rackgate_cli.tables import plain
from tests.unit.assigner.builders import BLOCK, RACK, admit_all, cache_with, fx_a, podset, workload


@pytest.fixture
def cache() -> Cache:
    asked = podset(count=4, requests={"cpu": "4"}, topology={"required": RACK})
    found = cache_with(fx_a())
    found.set_workload(workload("train", [asked]))
    assert list(admit_all(found)) == ["train"]
    return found


def test_each_domain_shows_what_is_used(cache: Cache) -> None:
    report = topology_report(cache, [], "")
    assert {row.level for row in report.items} == {RACK}
    used = [row.usage[0] for row in report.items if row.usage[0].used != "0"]
    assert used == [DomainUsage("cpu", "16", used[0].allocatable, 16 / int(used[0].allocatable))]
    assert all([usage.resource for usage in row.usage] == ["cpu"] for row in report.items)
    shown = plain(topology_blocks(report))
    assert shown.startswith(f"TOPOLOGY default (flavor tas, level {RACK})\nDOMAIN")
    assert "b1/r1" in shown


def test_levels_and_topologies_are_chosen_by_name(cache: Cache) -> None:
    whole = topology_report(cache, ["default"], BLOCK)
    racks = topology_report(cache, ["default"], RACK.rpartition("/")[2])
    hosts = topology_report(cache, [], "hostname")
    counts = [sum(row.nodes for row in report.items) for report in (whole, racks, hosts)]
    assert counts[0] == counts[1] == counts[2] == len(hosts.items)
    assert len(whole.items) < len(racks.items) < len(hosts.items)
    with pytest.raises(CommandError, match=r'no flavor has a topology "defualt" \(did you mean'):
        topology_report(cache, ["defualt"], "")
    with pytest.raises(CommandError, match=r'no topology has a level "row" \(levels: '):
        topology_report(cache, [], "row")


def test_without_nodes_there_is_nothing_to_show() -> None:
    report = topology_report(cache_with([]), [], "")
    assert plain(topology_blocks(report)) == "No topology with nodes found.\n"

"""Rows of the page, from the cache of the assigner."""

from __future__ import annotations

import dataclasses
import json
import random
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest

from rackgate_assigner.cache.cache import Cache
from rackgate_assigner.visibility.pending_order import order_of_cache
from rackgate_console.feed import Feed, Row
from rackgate_console.rows import topology as topology_rows
from rackgate_console.rows.queues import queue_rows
from rackgate_console.rows.topology import TopologyRows
from rackgate_console.rows.workloads import WorkloadRows
from rackgate_console.viewers.access import DOMAINS, HOSTS, TOPOLOGIES, WORKLOADS
from tests.unit.assigner.builders import (
    BLOCK,
    HOST,
    RACK,
    admit_all,
    cache_with,
    cluster_queue,
    cohort,
    fx_a,
    node,
    pod,
    podset,
    workload,
)


class Shown:
    """The rows of a cache, and what bound pods use."""

    def __init__(self, cache: Cache) -> None:
        self.cache, self.feed, self.used = cache, Feed(), {}
        self.rows = TopologyRows(self.feed, lambda name: self.used.get(name, {}))
        self._version = 0

    used: dict[str, Mapping[str, int]]

    def update(self) -> None:
        self._version += 1
        self.rows.update(self.cache, self._version)

    def update_without_nodes(self) -> None:
        self.rows.update(self.cache, self._version)

    def table(self, name: str) -> dict[str, Any]:
        return {key: json.loads(row.body) for key, row in self.feed.table(name).items()}


def test_hosts_and_domains_show_what_they_offer_and_what_is_used() -> None:
    cache = cache_with(fx_a())
    cache.set_workload(
        workload("train", [podset(count=4, requests={"cpu": "4"}, topology={"required": RACK})])
    )
    admit_all(cache)
    shown = Shown(cache)
    shown.update()
    (found,) = shown.table(TOPOLOGIES).values()
    assert found["levels"] == [BLOCK, RACK, HOST]
    assert found["resources"] == ["cpu", "memory", "pods"]
    assert found["hostRows"]
    assert found["hosts"] == len(shown.table(HOSTS))
    domains = shown.table(DOMAINS)
    assert {row["l"] for row in domains.values()} == {0, 1}
    assert sum(row["u"][0] for row in shown.table(HOSTS).values()) == 16_000
    for level in (0, 1):
        rows = [row for row in domains.values() if row["l"] == level]
        assert sum(row["u"][0] for row in rows) == 16_000
        assert sum(row["n"] for row in rows) == len(fx_a())
    (rack,) = [row for row in domains.values() if row["l"] == 1 and row["u"][0]]
    assert rack["p"][1].startswith("r")


def test_hosts_that_take_no_part_are_shown_at_their_place_with_why() -> None:
    nodes = [
        node("a", "b1/r1"),
        node("down", "b1/r1", ready=False),
        node("off", "b1/r1", unschedulable=True),
        node("tainted", "b1/r1", taints=[{"key": "x", "effect": "NoSchedule"}]),
        node("lost", "b1/r1", labels={RACK: ""}),
    ]
    bare = msgspec.structs.replace(
        nodes[4], metadata=msgspec.structs.replace(nodes[4].metadata, labels={"pool": "gpu"})
    )
    shown = Shown(cache_with([*nodes[:4], bare]))
    shown.used["down"] = {"cpu": 3000, "pods": 1}
    shown.update()
    hosts = {row["h"]: row for row in shown.table(HOSTS).values()}
    assert {name: row.get("m", "") for name, row in hosts.items()} == {
        "a": "",
        "down": "u",
        "off": "c",
        "tainted": "t",
    }
    assert hosts["down"]["u"] == [3000, 0, 1]
    assert hosts["down"]["p"] == ["b1", "r1"]
    (found,) = shown.table(TOPOLOGIES).values()
    assert found["outside"] == [["lost", f'level label "{BLOCK}" is missing']]
    rack = next(row for row in shown.table(DOMAINS).values() if row["l"] == 1)
    assert rack["m"] == {"unready": 1, "cordoned": 1, "tainted": 1}
    assert rack["n"] == 2
    # Its pods end while no node changes.
    shown.used["down"] = {}
    shown.update_without_nodes()
    assert shown.table(HOSTS)["tas|down"]["u"] == [0, 0, 0]


def test_what_changes_is_what_a_new_page_would_see() -> None:
    chance = random.Random(7)
    cache = cache_with(fx_a())
    shown = Shown(cache)
    shown.update()
    names = [one.metadata.name for one in fx_a()]
    for step in range(60):
        name = chance.choice(names)
        match chance.randrange(5):
            case 0:
                cache.set_pod(pod(f"p{step}", node=name, cpu="1"))
                shown.update_without_nodes()
            case 1:
                cache.drop_pod(f"team/p{chance.randrange(step + 1)}")
                shown.update_without_nodes()
            case 2:
                cache.drop_node(name)
                shown.update()
            case 3:
                cache.set_node(
                    node(name, f"b1/r{chance.randrange(1, 4)}", ready=chance.random() > 0.3)
                )
                shown.update()
            case _:
                cache.set_node(node(name, "b2/r1", unschedulable=chance.random() > 0.5))
                shown.update()
        fresh = Shown(cache)
        fresh.update()
        for table in (TOPOLOGIES, DOMAINS, HOSTS):
            assert shown.table(table) == fresh.table(table), (step, table)


def test_only_changed_leaves_are_encoded(monkeypatch: pytest.MonkeyPatch) -> None:
    cache = cache_with(fx_a())
    shown = Shown(cache)
    shown.update()
    shown.feed.commit("t")
    seen: list[tuple[str, set[str]]] = []
    real = shown.feed.update

    def update(table: str, rows: Mapping[str, Row | None]) -> None:
        seen.append((table, set(rows)))
        real(table, rows)

    monkeypatch.setattr(shown.feed, "update", update)
    name = fx_a()[0].metadata.name
    cache.set_pod(pod("p", node=name, cpu="1"))
    shown.update_without_nodes()
    assert (HOSTS, {f"tas|{name}"}) in seen
    assert sum(len(keys) for table, keys in seen if table == DOMAINS) == 2


def test_a_topology_with_more_hosts_than_a_page_draws_has_domains_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(topology_rows, "MOST_HOSTS", 3)
    shown = Shown(cache_with(fx_a()))
    shown.update()
    assert shown.table(HOSTS) == {}
    assert not shown.table(TOPOLOGIES)["tas"]["hostRows"]
    assert shown.table(DOMAINS)


def test_a_flavor_that_is_gone_has_no_rows() -> None:
    cache = cache_with(fx_a())
    shown = Shown(cache)
    shown.update()
    cache.drop_flavor("tas")
    shown.update()
    assert [shown.table(name) for name in (TOPOLOGIES, DOMAINS, HOSTS)] == [{}, {}, {}]


def test_queues_are_a_tree_with_what_is_used_borrowed_and_lent() -> None:
    quota = {"tas": {"cpu": "8"}}
    cache = cache_with(fx_a(), queue=cluster_queue(quotas=quota, cohortName="all"))
    cache.set_cluster_queue(cluster_queue("other", quota, cohortName="all"))
    cache.set_cohort(cohort("all", "root"))
    cache.set_workload(workload("train", [podset(count=12, requests={"cpu": "1"})]))
    admit_all(cache)
    rows = {key: json.loads(row.body) for key, row in queue_rows(cache, fair_sharing=True).items()}
    (mine,) = rows["ClusterQueue/cq"]["quotas"]
    assert (mine["nominal"], mine["used"], mine["borrowed"]) == (8000, 12_000, 4000)
    assert rows["ClusterQueue/cq"]["parent"] == "Cohort/all"
    assert rows["ClusterQueue/cq"]["share"] == 250
    assert rows["ClusterQueue/cq"]["admitted"] == 1
    (shared,) = rows["Cohort/all"]["quotas"]
    assert (shared["nominal"], shared["used"], shared["lent"]) == (16_000, 12_000, 4000)
    assert rows["Cohort/all"]["parent"] == "Cohort/root"
    local = queue_rows(cache, fair_sharing=False)["LocalQueue/team/lq"]
    assert local.namespace == "team"
    assert json.loads(local.body)["quotas"] == [
        {"flavor": "tas", "resource": "cpu", "used": 12_000}
    ]


def order(cache: Cache) -> Any:
    steps = order_of_cache(cache)
    while True:
        try:
            next(steps)
        except StopIteration as finished:
            return finished.value


def test_workloads_have_their_place_in_the_queue_or_in_the_topology() -> None:
    cache = cache_with(fx_a())

    def asked(count: int) -> dict[str, Any]:
        return podset(count=count, requests={"cpu": "4"}, topology={"required": RACK})

    objects = {
        f"team/{name}": workload(name, [asked(count)])
        for name, count in (("train", 4), ("large", 400), ("later", 400))
    }
    for one in objects.values():
        cache.set_workload(one)
    assigned = admit_all(cache)["train"]
    objects["team/train"] = workload("train", [asked(4)], assignment=assigned)
    cache.set_workload(objects["team/train"])
    feed = Feed()
    rows = WorkloadRows(feed)
    rows.set_order(order(cache))
    for key in objects:
        rows.mark(key)
    rows.update(cache, objects)
    found = {key: json.loads(row.body) for key, row in feed.table(WORKLOADS).items()}
    train = found["team/train"]
    assert (train["status"], train["cq"], train["job"]) == ("Admitted", "cq", "Job/train")
    assert sum(count for _, count in train["podsets"][0]["domains"]) == 4
    assert found["team/large"]["position"] == [0, 0]
    assert found["team/later"]["position"] == [1, 1]
    cache.drop_workload("team/large")
    del objects["team/large"]
    rows.mark("team/large")
    rows.set_order(order(cache))
    rows.update(cache, objects)
    found = {key: json.loads(row.body) for key, row in feed.table(WORKLOADS).items()}
    assert "team/large" not in found
    assert found["team/later"]["position"] == [0, 0]


def test_hosts_of_a_tree_that_is_too_large_are_listed_for_one_domain(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(topology_rows, "MOST_HOSTS", 3)
    cache = cache_with(fx_a())
    cordoned = next(name for name, one in cache.nodes.items() if one.labels[RACK] == "r1")
    cache.put_node(dataclasses.replace(cache.nodes[cordoned], unschedulable=True))
    shown = Shown(cache)
    shown.used = {cordoned: {"cpu": 7}}
    shown.update()
    assert shown.table(HOSTS) == {}
    described = next(iter(shown.table(TOPOLOGIES).values()))
    assert (described["hostRows"], described["listsHosts"]) == (False, True)
    domain = shown.table(DOMAINS)["tas|1|b1/r1"]
    found = shown.rows.hosts_of(described["flavor"], tuple(domain["p"]))
    assert found is not None
    rows, total = found
    hosts = [json.loads(row.body) for row in rows]
    assert total == len(hosts) == domain["n"] + 1
    assert {"c"} == {one.get("m", "") for one in hosts if one["h"] == cordoned}
    assert hosts[0]["u"][described["resources"].index("cpu")] == 7
    assert all(one["p"] == domain["p"] for one in hosts)
    monkeypatch.setattr(topology_rows, "MOST_LISTED", 1)
    again = shown.rows.hosts_of(described["flavor"], tuple(domain["p"]))
    assert again is not None
    assert (len(again[0]), again[1]) == (1, total)


@pytest.mark.parametrize("path", [(), ("none",), ("b1", "none"), ("b1", "r1", "x1", "y")])
def test_hosts_of_no_domain_are_none(path: tuple[str, ...]) -> None:
    shown = Shown(cache_with(fx_a()))
    shown.update()
    flavor = next(iter(shown.table(TOPOLOGIES).values()))["flavor"]
    assert shown.rows.hosts_of(flavor, path) is None
    assert shown.rows.hosts_of("none", path) is None

"""Pods and timeline of one Workload, connection, history, and settings."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import msgspec
import pytest
from pydantic import ValidationError

from rackgate.api import names
from rackgate.wire.core import Pod
from rackgate_assigner.workload.info import node_info, workload_info
from rackgate_console import history as history_module
from rackgate_console.connection import Connection
from rackgate_console.details import in_thread
from rackgate_console.history import History
from rackgate_console.rows.pods import pod_rows
from rackgate_console.rows.timeline import ObservedEvent, timeline
from rackgate_console.settings import ConsoleSettings
from tests.unit.assigner.builders import (
    RACK,
    admit_all,
    cache_with,
    cluster_queue,
    fx_a,
    podset,
    workload,
)


def running(rank: int, host: str, phase: str = "Running", gates: tuple[str, ...] = ()) -> Pod:
    return msgspec.convert(
        {
            "metadata": {
                "name": f"train-{rank}",
                "namespace": "team",
                "annotations": {names.WORKLOAD_ANNOTATION: "train"},
                "labels": {names.PODSET_LABEL: "main", names.COMPLETION_INDEX_LABEL: str(rank)},
            },
            "spec": {"nodeName": host, "schedulingGates": [{"name": name} for name in gates]},
            "status": {"phase": phase},
        },
        Pod,
    )


def rows_of(*pods: Pod) -> list[dict[str, Any]]:
    cache = cache_with(fx_a())
    asked = [podset(count=3, requests={"cpu": "8"}, topology={"preferred": RACK})]
    cache.set_workload(workload("train", asked))
    admitted = workload("train", asked, assignment=admit_all(cache)["train"])
    nodes = {one.metadata.name: node_info(one) for one in fx_a()}
    rows, total = pod_rows(admitted, workload_info(admitted), pods, nodes)
    assert total == len(pods)
    return rows


def test_each_rank_has_the_domain_it_was_assigned() -> None:
    rows = rows_of(running(1, ""), running(0, ""), running(2, ""), running(7, ""))
    assert [row["rank"] for row in rows] == [0, 1, 2, 7]
    assigned = [row["assigned"] for row in rows]
    assert len(set(assigned[:3])) == 3
    assert assigned[3] == ()
    assert not any(row["misplaced"] for row in rows)


def test_only_a_pod_outside_all_domains_of_its_podset_is_misplaced() -> None:
    (host,) = rows_of(running(0, ""))[0]["assigned"]
    used = {row["assigned"] for row in rows_of(*(running(rank, "") for rank in range(3)))}
    wrong = next(node.metadata.name for node in fx_a() if (node.metadata.name,) not in used)
    rows = rows_of(running(0, host), running(1, wrong), running(2, wrong, phase="Succeeded"))
    assert [row["misplaced"] for row in rows] == [False, True, False]
    assert rows_of(running(0, "gone"))[0]["misplaced"] is False


async def test_who_goes_away_is_counted_until_the_thread_ends() -> None:
    begun, may_end = threading.Event(), threading.Event()

    def compute() -> None:
        begun.set()
        may_end.wait(60)

    task = asyncio.create_task(in_thread(compute))
    await asyncio.to_thread(begun.wait, 60)
    task.cancel()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert not task.done()
    may_end.set()
    with pytest.raises(asyncio.CancelledError):
        await task


def test_a_gated_pod_says_what_it_waits_for() -> None:
    (row,) = rows_of(running(0, "", phase="Pending", gates=(names.TOPOLOGY_GATE,)))
    assert row["gated"]
    assert "ungater" in row["why"]


def event(reason: str, time: str, **more: Any) -> ObservedEvent:
    return msgspec.convert(
        {"reason": reason, "note": "n", "eventTime": time, **more}, ObservedEvent
    )


def test_the_timeline_is_in_order_and_counts_repeated_events() -> None:
    found = workload("w", conditions={"QuotaReserved": ("False", "Pending", "waits")})
    entries = timeline(
        found,
        [
            event("Later", "2026-08-01T12:10:00Z", type="Warning"),
            event(
                "Often",
                "2026-08-01T11:00:00Z",
                series={"count": 7, "lastObservedTime": "2026-08-01T12:05:00.5Z"},
            ),
            event("Odd", "not a time"),
        ],
    )
    assert [entry["event"] for entry in entries] == [
        "Odd",
        "Created",
        "not QuotaReserved",
        "Often",
        "Later",
    ]
    assert entries[3]["count"] == 7
    assert entries[4]["warning"]


def test_since_when_a_watch_fails_is_kept_while_it_fails() -> None:
    state = Connection().after(["", "away"], "t1")
    assert (state.reachable, state.since, state.problem) == (False, "t1", "away")
    assert state.after(["still away", ""], "t2").since == "t1"
    assert state.after(["", ""], "t3").reachable


def test_history_has_the_last_points_of_each_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history_module, "POINTS", 3)
    cache, history = cache_with(), History()
    for number in range(5):
        if number == 3:
            cache.set_cluster_queue(cluster_queue("new", {"tas": {"cpu": "4"}}))
        history.add(cache.quota_usage().tree, f"t{number}")
    found = history.of_queue("new")
    assert found is not None
    assert found["series"][0]["nominal"][-2:] == [4000, 4000]
    assert history.of_queue("none") is None
    cache.drop_cluster_queue("new")
    history.add(cache.quota_usage().tree, "t5")
    assert history.of_queue("new") is None


@pytest.mark.parametrize(
    ("page", "said"),
    [
        ({"host": "0.0.0.0"}, "tokens would be sent in plain text"),  # noqa: S104 - what is rejected
        ({"certFile": "/tls.crt"}, "belong together"),
        ({"host": "example.com"}, "tokens would be sent in plain text"),
    ],
)
def test_tokens_are_never_sent_in_plain_text_by_mistake(page: dict[str, Any], said: str) -> None:
    with pytest.raises(ValidationError, match=said):
        ConsoleSettings.model_validate({"page": page})


@pytest.mark.parametrize(
    "page",
    [
        {},
        {"host": "::1"},
        {"host": "localhost"},
        {"host": "0.0.0.0", "certFile": "/a", "keyFile": "/b"},  # noqa: S104 - with TLS
        {"host": "0.0.0.0", "allowPlainHTTP": True},  # noqa: S104 - the user says so
    ],
)
def test_a_page_that_is_encrypted_or_local_is_served(page: dict[str, Any]) -> None:
    assert ConsoleSettings.model_validate({"page": page}).page.port == 8090

"""`rackgate get`: rows of queues and Workloads from objects, and what is printed of them."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any, cast

import msgspec
import pytest

from rackgate.wire.kueue import ClusterQueue, LocalQueue, Workload
from rackgate_assigner.cache.cache import Cache
from rackgate_assigner.scheduler.backfill import ExpectedStart, with_expected_start
from rackgate_assigner.scheduler.nomination.nomination import Nomination
from rackgate_assigner.workload.decisions import Assignment, PodSetAssignment
from rackgate_cli.queues.model import (
    NO_POSITION,
    Position,
    QueueReport,
    UsageRow,
    WorkloadReport,
    WorkloadRow,
    cluster_queue_row,
    local_queue_row,
    order_of,
    positions_of,
    sorted_rows,
    workload_row,
)
from rackgate_cli.queues.view import age, bar, queue_blocks, workload_blocks
from rackgate_cli.tables import plain
from tests.unit.assigner.builders import cluster_queue, local_queue, podset, workload

NOW = datetime(2026, 8, 1, 13, 30, tzinfo=UTC)
QUEUES = {"team/lq": "cq", "other/lq": "cq"}
QUOTA = {"tas": {"cpu": "10", "memory": "0"}}


def with_status(queue: ClusterQueue | LocalQueue, **status: Any) -> Any:
    found = msgspec.convert(status, type(queue.status))
    return msgspec.structs.replace(queue, status=found)


def reserved(**amounts: str) -> list[dict[str, Any]]:
    resources = [{"name": name, "total": total} for name, total in amounts.items()]
    return [{"name": "tas", "resources": resources}]


def ready(**more: Any) -> dict[str, Any]:
    condition = {"type": "Active", "status": "True", "reason": "Ready", "message": "ready"}
    return {"conditions": [condition], **more}


def row_of(found: Workload, position: Position = NO_POSITION) -> WorkloadRow:
    return workload_row(found, QUEUES, {"high": 100}, position, NOW)


def running(name: str = "runs") -> Workload:
    part = PodSetAssignment("main", {"cpu": "tas"}, {"cpu": 4000}, 4)
    return workload(name, [podset(count=4)], assignment=Assignment("cq", (part,)))


def test_usage_is_shown_against_the_nominal_quota() -> None:
    queue = with_status(
        cluster_queue("cq", QUOTA),
        **ready(
            pendingWorkloads=3,
            reservingWorkloads=2,
            admittedWorkloads=1,
            flavorsReservation=reserved(cpu="2500m", memory="1Gi"),
        ),
    )
    row = cluster_queue_row(queue)
    assert (row.active, row.pending_workloads, row.admitted_workloads) == (True, 3, 1)
    assert row.usage == (
        UsageRow("tas", "cpu", "2500m", "10", 0.25),
        UsageRow("tas", "memory", "1Gi", "0", None),
    )
    assert plain(queue_blocks(QueueReport((row,)))) == (
        "ClusterQueue cq\n"
        "active    yes\n"
        "pending   3\n"
        "admitted  1 and 1 with reserved quota\n"
        "FLAVOR  RESOURCE  USED   NOMINAL  USAGE\n"
        "tas     cpu       2500m  10       [#####...............] 25%\n"
        "tas     memory    1Gi    0        -\n"
    )


def test_a_queue_that_is_not_active_says_why() -> None:
    stopped = {"type": "Active", "status": "False", "reason": "Stopped", "message": "is stopped"}
    row = cluster_queue_row(with_status(cluster_queue(), conditions=[stopped]))
    assert "active    no (Stopped: is stopped)\n" in plain(queue_blocks(QueueReport((row,))))
    new = plain(queue_blocks(QueueReport((cluster_queue_row(cluster_queue()),))))
    assert "active    unknown (the assigner has not evaluated it yet)\n" in new


def test_a_local_queue_shows_its_part_of_the_quota() -> None:
    local = with_status(local_queue(), **ready(flavorsReservation=reserved(cpu="5")))
    row = local_queue_row(local, cluster_queue("cq", QUOTA))
    assert row.usage[0] == UsageRow("tas", "cpu", "5", "10", 0.5)
    # Without the right to read ClusterQueues.
    unknown = local_queue_row(local, None)
    assert unknown.usage == (UsageRow("tas", "cpu", "5", None, None),)
    assert "tas     cpu       5     -        -\n" in plain(queue_blocks(QueueReport((unknown,))))


def test_a_malformed_amount_is_shown_as_it_is() -> None:
    odd = with_status(cluster_queue("cq", QUOTA), flavorsReservation=reserved(cpu="many"))
    assert cluster_queue_row(odd).usage[0] == UsageRow("tas", "cpu", "many", "10", None)


@pytest.mark.parametrize(
    ("share", "shown"),
    [
        (None, "-"),
        (0.0, f"[{'.' * 20}] 0%"),
        (0.001, f"[#{'.' * 19}] 0%"),
        (0.5, f"[{'#' * 10}{'.' * 10}] 50%"),
        (1.0, f"[{'#' * 20}] 100%"),
        (1.75, f"[{'#' * 20}] 175%"),
    ],
)
def test_bars_have_one_width(share: float | None, shown: str) -> None:
    assert bar(share) == shown


@pytest.mark.parametrize(
    ("seconds", "shown"),
    [
        (None, "-"),
        (0, "0s"),
        (119, "119s"),
        (120, "2m"),
        (7199, "119m"),
        (7200, "2h"),
        (9**6, "6d"),
    ],
)
def test_ages_are_those_of_kubectl(seconds: int | None, shown: str) -> None:
    assert age(seconds) == shown


def test_a_pending_workload_has_reason_position_and_age() -> None:
    waits = workload(
        "waits",
        created="2026-08-01T12:30:00Z",
        priorityClassRef={"group": "kueue.x-k8s.io", "kind": "x", "name": "high"},
        conditions={"QuotaReserved": ("False", "WaitingForQuota", "8 more needed")},
    )
    row = row_of(waits, Position(4, 1))
    assert (row.status, row.reason, row.message) == ("Pending", "WaitingForQuota", "8 more needed")
    assert (row.job, row.local_queue, row.cluster_queue) == ("Job/waits", "lq", "cq")
    assert (row.priority, row.age_seconds, row.position_in_cluster_queue) == (100, 3600, 4)
    shown = plain(workload_blocks(WorkloadReport((row,)), all_namespaces=False, nothing=""))
    cells = ["job/waits", "lq", "5", "100", "60m", "WaitingForQuota"]
    assert shown.splitlines()[2].split() == cells
    report = WorkloadReport((row,))
    wide = plain(workload_blocks(report, all_namespaces=False, nothing="", wide=True))
    cells = ["job/waits", "waits", "lq", "cq", "5", "2", "100", "60m", "60m", "WaitingForQuota"]
    assert wide.splitlines()[2].split()[:10] == cells
    assert wide.splitlines()[2].endswith("8 more needed")


def test_each_table_names_the_job_and_its_queue() -> None:
    rows = (row_of(workload("waits")), row_of(running()), row_of(workload("off", active=False)))
    shown = plain(workload_blocks(WorkloadReport(rows), all_namespaces=False, nothing=""))
    lines = [line.split()[:2] for line in shown.splitlines()]
    assert lines.count(["JOB", "LOCALQUEUE"]) == 3
    assert [line[0] for line in lines if line[1:] == ["lq"]] == ["job/waits", "job/runs", "job/off"]


def test_who_was_queued_again_waits_since_then() -> None:
    waits = workload(
        "waits",
        created="2026-08-01T12:30:00Z",
        conditions={"Requeued": ("True", "Preempted", "")},
    )
    (condition,) = waits.status.conditions
    when = msgspec.structs.replace(condition, last_transition_time="2026-08-01T13:20:00Z")
    status = msgspec.structs.replace(waits.status, conditions=(when,))
    row = row_of(msgspec.structs.replace(waits, status=status))
    assert (row.age_seconds, row.wait_seconds) == (3600, 600)


@pytest.mark.parametrize(("by", "shown"), [(True, "by"), (False, "not before")])
def test_the_expected_start_is_what_the_assigner_says(by: bool, shown: str) -> None:
    at = NOW.timestamp() + 600
    start = ExpectedStart(at, 2, cast("Nomination", object()) if by else None)
    message = with_expected_start("8 more needed", start, NOW.timestamp())
    row = row_of(workload("w", conditions={"QuotaReserved": ("False", "Waiting", message)}))
    assert (row.expected_start, row.starts_by) == ("2026-08-01T13:40:00Z", by)
    found = plain(workload_blocks(WorkloadReport((row,)), all_namespaces=False, nothing=""))
    assert "EXPECTED START" in found
    assert f"{shown} 2026-08-01T13:40:00Z" in found
    # Without a time, there is no estimate.
    unknown = with_expected_start("8 more needed", None, NOW.timestamp())
    row = row_of(workload("w", conditions={"QuotaReserved": ("False", "Waiting", unknown)}))
    assert row.expected_start == ""
    found = plain(workload_blocks(WorkloadReport((row,)), all_namespaces=False, nothing=""))
    assert "EXPECTED START" not in found


def test_what_a_workload_holds_is_shown() -> None:
    row = row_of(running())
    assert (row.status, [(one.resource, one.amount) for one in row.holds]) == (
        "Admitted",
        [("cpu", "4")],
    )
    shown = plain(workload_blocks(WorkloadReport((row,)), all_namespaces=True, nothing=""))
    assert shown.startswith("HOLDING QUOTA\nNAMESPACE  JOB")
    assert "4 cpu (tas)" in shown


def test_statuses() -> None:
    assert row_of(workload("off", active=False)).status == "Deactivated"
    done = workload("done", conditions={"Finished": ("True", "Succeeded", "")})
    assert row_of(done).status == "Finished"
    assert row_of(workload("new")).message == "the assigner has not evaluated it yet"


def test_pending_ones_come_first_in_the_order_of_the_queue() -> None:
    rows = [
        row_of(running()),
        row_of(workload("unknown")),
        row_of(workload("second"), Position(1, 0)),
        row_of(workload("first"), Position(0, 0)),
    ]
    assert [row.name for row in sorted_rows(rows)] == ["first", "second", "unknown", "runs"]


def test_computed_positions_are_those_of_the_assigner() -> None:
    all_of_them = [
        workload("late", created="2026-08-01T13:00:00Z"),
        workload("theirs", namespace="other"),
        workload("urgent", priority=9, created="2026-08-01T14:00:00Z"),
        running(),
    ]
    order = order_of(all_of_them, QUEUES, {})
    assert positions_of(order, whole_cluster=True) == {
        "team/urgent": Position(0, 0),
        "other/theirs": Position(1, 0),
        "team/late": Position(2, 1),
    }
    # Without those of other namespaces, nobody knows how many are ahead in the ClusterQueue.
    own = [one for one in all_of_them if one.metadata.namespace == "team"]
    assert positions_of(order_of(own, QUEUES, {}), whole_cluster=False) == {
        "team/urgent": Position(None, 0),
        "team/late": Position(None, 1),
    }
    cache = Cache()
    for one in all_of_them:
        cache.set_workload(one)
    assert len(cache.pending()) == 3


def test_untrusted_text_does_not_reach_the_terminal() -> None:
    hostile = row_of(workload("w", conditions={"QuotaReserved": ("False", "X", "a\x1b[2Jb\u202e")}))
    report = WorkloadReport((hostile,))
    shown = plain(workload_blocks(report, all_namespaces=False, nothing="", wide=True))
    assert "[2Jb" in shown
    assert "\x1b" not in shown
    assert "\u202e" not in shown

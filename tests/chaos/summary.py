"""Reports of scenarios as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from rackgate.api.names import PreemptedReason
from tests.chaos.injector import WINDOWS
from tests.chaos.runner import Report
from tests.chaos.scenario import Fault
from tests.support.proxy_faults import Kind

DELAYED_KINDS = (Kind.LATENCY, Kind.HANG)
UNANSWERED_KINDS = (Kind.DROP, Kind.LOSE, Kind.HANG)
REJECTED_KINDS = (Kind.CONFLICT, Kind.THROTTLE, Kind.FAIL)
RECLAIMED = (
    PreemptedReason.IN_COHORT_RECLAMATION,
    PreemptedReason.IN_COHORT_RECLAIM_WHILE_BORROWING,
)

COLUMNS = (
    "seed",
    "s",
    "requests",
    "writes",
    "held",
    "lost",
    "refused",
    "faults",
    "exits",
    "fenced",
    "jobs",
    "pods",
    "sets",
    "elastic",
    "resizes",
    "preempted",
    "reclaimed",
    "borrowed",
    "gangs",
    "gave way",
    "unfinished",
    "breaches",
    "late",
    "problems",
)


def row(report: Report) -> list[str]:
    """One line of the table; pods are those that Jobs asked for."""
    counts, jobs = report.counts, report.scenario.jobs
    return [
        str(report.scenario.seed),
        f"{report.seconds:.0f}",
        str(counts["requests"]),
        str(report.writes),
        *(
            str(sum(counts[kind.value] for kind in group))
            for group in (DELAYED_KINDS, UNANSWERED_KINDS, REJECTED_KINDS)
        ),
        str(report.faults.total()),
        str(len(report.exits)),
        str(report.lease_expired_exits),
        str(len(jobs)),
        str(sum(job.pods for job in jobs)),
        str(len(report.scenario.sets)),
        str(len(report.scenario.elastic)),
        str(sum(len(plan.sizes) for plan in report.scenario.elastic)),
        str(report.preemptions.total()),
        str(sum(report.preemptions[reason] for reason in RECLAIMED)),
        str(report.borrowed_cpu),
        str(report.gang_runs),
        str(report.gang_evictions.total()),
        str(report.unfinished),
        str(len(report.breaches)),
        str(len(report.late)),
        str(len(report.problems)),
    ]


def line(report: Report) -> str:
    """How one scenario went, in one line and one for each problem."""
    words = [f"{value} {name}" for name, value in zip(COLUMNS[1:], row(report)[1:], strict=True)]
    verdict = "ok" if not report.problems else "FAILED"
    head = f"seed {report.scenario.seed}: {verdict}; {', '.join(words)}"
    spent = ", ".join(f"{name} {seconds:.0f} s" for name, seconds in report.phases.items())
    spent += f"; proxy late by {report.lag_s:.1f} s at most"
    spent += f"; {report.at_no_write} kills and stops waited for a write in vain"
    spent += f"; ended last: {', '.join(sorted(report.last)) or 'none'}"
    preempted = ", ".join(f"{n} {reason}" for reason, n in sorted(report.preemptions.items()))
    spent += f"\n  preempted: {preempted or 'NONE'}; {report.borrowed_cpu} CPU borrowed at most"
    if report.gang_evictions:
        reasons = sorted(report.gang_evictions.items())
        spent += f"\n  gave way: {', '.join(f'{n} {reason}' for reason, n in reasons)}"
    ends = Counter(f"{end.name} {end.code}" for end in report.exits)
    spent += f"\n  exit codes: {', '.join(f'{end} ({n})' for end, n in sorted(ends.items()))}"
    return "\n".join([head, f"  {spent}", *(f"  ! {problem}" for problem in report.problems)])


def table(reports: Sequence[Report]) -> str:
    """All scenarios, their sum, and the faults by kind."""
    rows = [row(report) for report in reports]
    sums = ["all", *(str(sum(int(r[i]) for r in rows)) for i in range(1, len(COLUMNS)))]
    widths = [max(map(len, column)) for column in zip(COLUMNS, *rows, sums, strict=True)]
    lines = [
        "  ".join(cell.rjust(width) for cell, width in zip(cells, widths, strict=True))
        for cells in (COLUMNS, *rows, sums)
    ]
    faults: Counter[str] = Counter()
    for report in reports:
        faults += report.faults
    lines.append("faults: " + ", ".join(f"{n} {kind}" for kind, n in sorted(faults.items())))
    failed = [str(r.scenario.seed) for r in reports if r.problems]
    if failed:
        lines.append(f"failed seeds: {', '.join(failed)}; replay one with SEED=<seed> make chaos")
    return "\n".join(lines)


def never_shared(reports: Sequence[Report]) -> list[str]:
    """What no scenario showed of queues that share quota."""
    preemptions: Counter[str] = Counter()
    for report in reports:
        preemptions += report.preemptions
    wanted = (PreemptedReason.IN_CLUSTER_QUEUE, PreemptedReason.IN_COHORT_RECLAMATION)
    found = [f"preempted {reason.value}" for reason in wanted if not preemptions[reason.value]]
    return found + ["borrowed"] * (not any(report.borrowed_cpu for report in reports))


def never_injected(reports: Sequence[Report]) -> list[str]:
    """Faults that befell nobody in any scenario.

    A storm that was announced has struck only when it met a request.
    """
    injected: Counter[str] = Counter()
    requests: Counter[str] = Counter()
    for report in reports:
        injected += report.faults
        requests += report.counts
    return [
        fault.value
        for fault in Fault
        if not (requests[WINDOWS[fault].value] if fault in WINDOWS else injected[fault.value])
    ]

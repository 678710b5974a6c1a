"""What `rackgate invariants` prints, as text and as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from rackgate.api.timestamps import rfc3339
from rackgate_cli.tables import Block, Grid, Heading, Line
from rackgate_invariants.cluster import Cluster, OwnerIndex, jobs_of
from rackgate_invariants.rules.catalog import RULES, Breach

API_VERSION: Final = "invariants.rackgate.dev/v1"


@dataclass(frozen=True, slots=True)
class CheckResult:
    """What one check found.

    Attributes:
        found: breaches that count.
        skipped_rules: each with the reason.
        warnings: why the result is less certain.
    """

    cluster: Cluster
    found: Sequence[Breach]
    skipped_rules: Mapping[str, str]
    warnings: Sequence[str] = ()


def format_time(seconds: float) -> str:
    """A Unix time as Kubernetes writes it."""
    return rfc3339(datetime.fromtimestamp(seconds, UTC))


def format_extent(cluster: Cluster) -> str:
    """What was checked, as text."""
    counts = [
        _count(len(cluster.pods), "pod"),
        f"of {_count(_managed_jobs(cluster), 'managed Job')}",
        f"and {_count(len(cluster.workloads), 'Workload')}",
    ]
    if cluster.nodes:
        counts.append(f"on {_count(len(cluster.nodes), 'node')}")
    return " ".join(counts)


def _managed_jobs(cluster: Cluster) -> int:
    """Managed jobs of all kinds without their child Jobs."""
    owners = OwnerIndex(cluster)
    return sum(job.managed and not owners.is_child_job(job) for job in jobs_of(cluster))


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"


def format_breaches(number: int) -> str:
    """A number of breaches as text."""
    return "no breach" if not number else f"{number} breach{'' if number == 1 else 'es'}"


def result_blocks(result: CheckResult) -> list[Block]:
    """The result of one check as text."""
    found = result.found
    blocks: list[Block] = []
    if found:
        since = [f", since {format_time(b.since)}" if b.since else "" for b in found]
        rows = [(b.rule, b.subject, b.found + s) for b, s in zip(found, since, strict=True)]
        blocks += [Grid(("RULE", "OBJECT", "FOUND"), rows), Heading("What must hold")]
        broken = [RULES[rule] for rule in dict.fromkeys(breach.rule for breach in found)]
        sentences = [(one.id, f"{one.sentence} (invariant {one.invariant})") for one in broken]
        blocks.append(Grid((), sentences))
        blocks.append(Line(""))
    blocks += [*warning_blocks(result.warnings), *skipped_blocks(result.skipped_rules)]
    words = f"checked {format_extent(result.cluster)}: {format_breaches(len(found))}"
    return [*blocks, Line(words, "bold red" if found else "bold green")]


def warning_blocks(warnings: Iterable[str]) -> list[Block]:
    """One line per warning."""
    return [Line(f"warning: {words}", "yellow") for words in warnings]


def skipped_blocks(skipped_rules: Mapping[str, str]) -> list[Block]:
    """Skipped rules by reason."""
    by_reason: dict[str, list[str]] = {}
    for rule, reason in skipped_rules.items():
        by_reason.setdefault(reason, []).append(rule)
    return [
        Line(f"not checked: {', '.join(rules)} ({reason})", "yellow")
        for reason, rules in by_reason.items()
    ]


def rules() -> list[Block]:
    """All rules, by invariant."""
    rows = [
        (str(rule.invariant), rule.id, rule.sentence, "patience" if rule.patient else "at once")
        for rule in RULES.values()
    ]
    return [Grid(("NO", "RULE", "WHAT MUST HOLD", "COUNTS"), rows)]


def document(result: CheckResult) -> dict[str, Any]:
    """The result of one check as JSON."""
    return {
        "apiVersion": API_VERSION,
        "checked": checked(result.cluster),
        "breaches": [as_json(breach) for breach in result.found],
        "notChecked": dict(result.skipped_rules),
        "warnings": list(result.warnings),
    }


def checked(cluster: Cluster) -> dict[str, int]:
    """Numbers of objects that were checked."""
    return {
        "pods": len(cluster.pods),
        "governedJobs": _managed_jobs(cluster),
        "workloads": len(cluster.workloads),
        "nodes": len(cluster.nodes),
    }


def as_json(breach: Breach) -> dict[str, Any]:
    """One breach as JSON."""
    rule = RULES[breach.rule]
    fields: dict[str, Any] = {
        "rule": breach.rule,
        "invariant": rule.invariant,
        "object": breach.subject,
        "found": breach.found,
    }
    return {**fields, "since": format_time(breach.since)} if breach.since else fields

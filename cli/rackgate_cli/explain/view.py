"""An explanation as headings, lines and tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from rackgate_assigner.explain.explanation import (
    DomainCapacity,
    Exclusion,
    Explanation,
    FlavorView,
    GangView,
    Holder,
    LevelCapacity,
    NotRunningPods,
    PodSetStatus,
    QueuePosition,
    QuotaLine,
    Resize,
)
from rackgate_cli.tables import Block, Grid, Heading, Line

_WHEN = {"now": "now", "whenEmpty": "after others have ended", "perhaps": "possibly"}
_RULES = {
    "flavorLabels": "not of this flavor",
    "missingLevel": "lacks level labels",
    "notReady": "not ready",
    "unschedulable": "unschedulable",
    "hostname": "hostname taken by another node",
    "taint": "taint",
    "nodeSelector": "nodeSelector",
    "affinity": "node affinity",
    "resource": "not even one pod fits",
}


def blocks(found: Explanation, levels: Sequence[str] = ()) -> Iterator[Block]:
    """The explanation, the answer first.

    Args:
        found: the explanation.
        levels: level keys (or their last parts) to show; empty for all.
    """
    yield Line(_title(found), "bold")
    yield Line(found.summary, "green" if _is_good(found) else "yellow")
    yield from (Line(f"warning: {text}", "red") for text in found.warnings)
    if found.errors:
        yield Heading("REJECTED")
        yield Grid(
            ("FIELD", "PROBLEM", "WHAT WOULD HELP"),
            [(error.path, error.problem, error.help) for error in found.errors],
        )
        return
    said = [("reason", found.reason), ("message", found.message), ("next cycle", found.in_turn)]
    rows = [(name, text) for name, text in said if text]
    if rows:
        yield Line("")
        yield Grid((), rows)
    if found.changes:
        yield Heading("WHAT WOULD HELP (each alone)")
        yield Grid((), [(_WHEN[change.when], change.text) for change in found.changes])
    if any(line.waiting or line.asked != line.granted for line in found.resizes):
        yield Heading("RESIZE")
        yield _resizes(found.resizes)
    for gang in found.gangs:
        yield from gang_blocks(gang)
    for run in found.podsets:
        yield from _run(run)
    for view in found.flavors:
        yield from _flavor(view, levels)
    if found.quota:
        yield Heading("QUOTA")
        yield _quota(found.quota)
    if found.not_preempted:
        yield Heading("NOT PREEMPTED")
        yield _not_preempted(found)
    if found.queue is not None and found.queue.local_queue:
        yield Heading("QUEUE")
        yield Grid((), list(_queue(found.queue)))


def _is_good(found: Explanation) -> bool:
    return found.state in ("admitted", "finished") or bool(found.fits and not found.in_turn)


def _title(found: Explanation) -> str:
    job = f", of {found.job_kind or 'Job'} {found.job}" if found.job else ""
    state = {
        "notSubmitted": "not submitted",
        "noWorkload": "no Workload",
        "ungoverned": "not managed",
        "waiting": "pending",
    }.get(found.state, found.state)
    return f"{found.workload}: {state}{job}"


def _flavor(view: FlavorView, levels: Sequence[str]) -> Iterator[Block]:
    yield Heading(f"TOPOLOGY {view.topology or '-'} (flavor {view.flavor})")
    yield Grid((), list(_flavor_facts(view)))
    yield from _domain_rows(view)
    shown = [level for level in view.levels if not levels or _identity(level.level, levels)]
    unknown = [
        name for name in levels if not any(_identity(key, [name]) for key in view.level_keys)
    ]
    if unknown:
        yield Line(
            f"--levels: topology {view.topology} has no level {', '.join(unknown)}", "yellow"
        )
    if shown:
        yield Heading("LEVELS")
        yield Grid(
            ("LEVEL", "DOMAINS", "FITTING PODS", "BEST DOMAIN", "FITS", "FITS IF EMPTY"),
            [_level(level) for level in shown],
        )
    for level in shown:
        if (level.asked or levels) and level.best:
            yield Heading(f"BEST of {level.level}")
            yield Grid(
                ("DOMAIN", "FITS", "USABLE NODES", "TIGHTEST", "LACKS", "USED BY"),
                [_domain(domain) for domain in level.best],
            )
    if view.excluded:
        yield Heading("EXCLUDED NODES")
        yield Grid(
            ("NODES", "REASON", "DETAIL", "EXAMPLES"), [_exclusion(e) for e in view.excluded]
        )
    for other in view.overlaps:
        yield Line(
            f"{other.nodes} of its nodes also belong to flavor {other.flavor}: a node must belong "
            "to one flavor only",
            "red",
        )


def _flavor_facts(view: FlavorView) -> Iterator[tuple[str, str]]:
    yield "levels", ", ".join(view.level_keys)
    yield "nodes", str(view.nodes)
    if view.asked:
        yield "requested", f"{view.asked}, by {', '.join(view.refused or view.podsets)}"
    if view.problem:
        yield "not usable", view.problem
    if view.cause:
        yield "never fits", view.cause
    if view.fits:
        yield "fits", "yes"
    elif view.fitting is not None:
        units = f"{view.unit}s" if view.slice_size == 1 else f"slices of {view.slice_size}"
        yield "fits", f"{view.fitting} of {view.wanted} {units}"
        yield "fits on an empty cluster", "yes" if view.fits_when_empty else "no"
    if view.message and view.fitting is None:
        yield "message", view.message


def _domain_rows(view: FlavorView) -> Iterator[Block]:
    if not (view.fits and view.places):
        return
    rows = [
        (part.podset, "/".join(place.domain), str(place.pods))
        for part in view.places
        for place in part.places
    ]
    more = sum(part.domains - len(part.places) for part in view.places)
    yield Grid(("PODSET", "DOMAIN", "PODS"), rows)
    if more:
        yield Line(_more_domains(more))


def _more_domains(count: int) -> str:
    return "and 1 more domain" if count == 1 else f"and {count} more domains"


def _identity(level: str, wanted: Sequence[str]) -> bool:
    return level in wanted or level.rpartition("/")[2] in wanted


def _level(level: LevelCapacity) -> tuple[str, ...]:
    name = f"{level.level} (requested)" if level.asked else level.level
    numbers = (str(level.domains), str(level.pods))
    if not level.best:
        return (name, *numbers, "-", "-", "-")
    best = level.best[0]
    return (name, *numbers, "/".join(best.domain), str(best.pods), str(best.pods_when_empty))


def _domain(domain: DomainCapacity) -> tuple[str, ...]:
    takes = str(domain.pods)
    if domain.pods_with_leader is not None:
        takes += f" ({domain.pods_with_leader} with the leader)"
    lacks = [
        f"{r.missing} {r.resource} ({r.free} of {r.wanted} free)"
        for r in domain.resources
        if r.missing != "0"
    ]
    if domain.fragmented:
        pieces = [f"{r.stranded} {r.resource}" for r in domain.resources if r.stranded != "0"]
        lacks.append(f"free but fragmented: {', '.join(pieces)}" if pieces else "fragmented")
    return (
        "/".join(domain.domain),
        takes,
        f"{domain.usable_nodes} of {domain.nodes}",
        domain.tightest or "-",
        ", ".join(lacks) or "-",
        _holders(domain.holders, domain.more_holders),
    )


def _holders(found: Sequence[Holder], more: int) -> str:
    parts = []
    for one in found:
        amounts = ", ".join(f"{amount} {name}" for name, amount in one.amounts.items())
        if one.kind == "Pod":
            parts.append(f"pod {one.name} ({amounts})")
        else:
            pods = f"{one.pods} pods, " if one.pods > 1 else ""
            parts.append(f"{one.name} ({pods}{amounts})")
    if more:
        parts.append(f"{more} more")
    return "; ".join(parts) or "-"


def _exclusion(found: Exclusion) -> tuple[str, ...]:
    names = ", ".join(found.names)
    if found.nodes > len(found.names):
        names += ", ..."
    return str(found.nodes), _RULES[found.rule], found.detail, names


def _quota(lines: Sequence[QuotaLine]) -> Grid:
    rows = [
        (
            line.flavor or "-",
            line.resource,
            line.requested,
            f"{line.used} of {line.nominal}",
            line.missing if line.missing != "0" else "-",
            line.problem or ("more than the whole quota" if line.never else ""),
            _holders(line.holders, line.more_holders),
        )
        for line in lines
    ]
    headings = ("FLAVOR", "RESOURCE", "REQUESTED", "IN USE", "MISSING", "PROBLEM", "USED BY")
    return Grid(headings, rows)


def _not_preempted(found: Explanation) -> Grid:
    rows = [
        (one.workload, one.cluster_queue, str(one.priority), one.text)
        for one in found.not_preempted
    ]
    if found.more_not_preempted:
        rows.append((f"and {found.more_not_preempted} more", "", "", ""))
    return Grid(("WORKLOAD", "CLUSTERQUEUE", "PRIORITY", "WHY"), rows)


def _queue(side: QueuePosition) -> Iterator[tuple[str, str]]:
    yield "LocalQueue", side.local_queue
    strategy = f" ({side.strategy})" if side.strategy else ""
    yield "ClusterQueue", f"{side.cluster_queue or '-'}{strategy}"
    for problem in side.problems:
        yield "problem", problem
    if side.position is not None:
        yield "position", f"{side.position + 1} of {side.waiting} pending"
    for other in side.ahead:
        yield "behind", f"{other.workload} (priority {other.priority}, since {other.since or '-'})"


def _resizes(lines: Sequence[Resize]) -> Grid:
    rows = []
    for line in lines:
        names = ", ".join(line.slices)
        if line.more_slices:
            names += f" and {line.more_slices} more"
        numbers = (str(line.asked), str(line.granted), str(line.waiting))
        rows.append((line.podset, *numbers, line.because or "-", names or "-"))
    return Grid(("PODSET", "REQUESTED", "ADMITTED", "PENDING", "REASON", "SLICES"), rows)


def gang_blocks(gang: GangView) -> Iterator[Block]:
    """One gang: what it waits for, and how long it may."""
    yield Heading(f"GANG {gang.gang or '-'} (of {gang.workload})")
    rows = [("state", gang.state)]
    if gang.min_count:
        counts = f"{gang.members} of {gang.min_count} exist, {gang.released} released"
        rows.append(("pods", f"{counts}, {gang.bound} with a node"))
    if gang.why:
        rows.append(("waits for", gang.why))
    rows += [(f"{lack.pods} without a node", _not_running(lack)) for lack in gang.pods]
    if gang.left_seconds is not None:
        left = f"in {gang.left_seconds} s" if gang.left_seconds else "now"
        rows.append(("timeout", f"{left}: the job is evicted, and tries again later"))
    yield Grid((), rows)


def _not_running(held: NotRunningPods) -> str:
    more = ", ..." if held.pods > len(held.names) else ""
    return f"{held.why} ({', '.join(held.names)}{more})"


def _run(run: PodSetStatus) -> Iterator[Block]:
    yield Heading(f"PODSET {run.podset}")
    flavors = ", ".join(f"{name} of {resource}" for resource, name in sorted(run.flavors.items()))
    rows = [("admitted", f"{run.granted} pods"), ("flavors", flavors or "-")]
    rows.append(("running", str(run.running)))
    if run.ended:
        rows.append(("ended", str(run.ended)))
    rows += [("not running", f"{held.pods} {_not_running(held)}") for held in run.held]
    if run.missing:
        rows.append(("missing", f"{run.missing} not created yet by their controller"))
    rows += [("unhealthy node", name) for name in run.broken_nodes]
    if run.places is not None:
        rows += [
            ("domain", f"{'/'.join(place.domain)}: {place.pods}") for place in run.places.places
        ]
        if run.places.domains > len(run.places.places):
            rows.append(("", _more_domains(run.places.domains - len(run.places.places))))
    yield Grid((), rows)

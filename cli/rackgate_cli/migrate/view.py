"""A migration report and its plan, as text for a terminal."""

from __future__ import annotations

import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

from rackgate_cli.migrate.report import Item, Report, Result
from rackgate_cli.tables import Block, Grid, Heading, Line, clean

if TYPE_CHECKING:
    from rackgate_cli.migrate.plan import Plan

_ORDER: Final = (Result.NOT_YET, Result.DIFFERS, Result.BETTER, Result.SAME)
_STYLES: Final = {Result.NOT_YET: "red", Result.DIFFERS: "yellow"}
_WIDTH: Final = 100


def blocks(report: Report, *, everything: bool) -> list[Block]:
    """The report: items by result, worst first, and a summary at the end."""
    found: list[Block] = []
    for result in _ORDER:
        items = [one for one in report.items if one.result is result]
        if not items:
            continue
        found.append(Heading(f"{result.upper()} ({len(items)})"))
        if result is Result.SAME and not everything:
            found.append(Line(_counted(items)))
            continue
        found.append(Grid(("KIND", "NAME", "FIELD", "WHY", "WHAT TO DO"), list(_rows(items))))
    total = report.summary
    found.append(Heading("SUMMARY"))
    found.append(
        Line(
            f"{total.same} same, {total.better} better, {total.differs} differ, "
            f"{total.not_yet} not yet (compared with Kueue {report.kueue_version})"
        )
    )
    if total.blocking:
        verb = "blocks" if total.blocking == 1 else "block"
        found.append(Line(f"{total.blocking} of them {verb} the switch: lines with BLOCKS", "red"))
    else:
        found.append(Line("Nothing blocks the switch."))
    return found


def _counted(items: Sequence[Item]) -> str:
    counts = Counter(one.kind for one in items)
    return f"{', '.join(f'{count} {kind}' for kind, count in counts.items())} (--all lists them)"


def _rows(items: Sequence[Item]) -> Iterator[tuple[str, ...]]:
    for item in items:
        name = f"{item.namespace}/{item.name}" if item.namespace else item.name
        if not item.findings:
            yield item.kind, name, "", "", ""
        for finding in item.findings:
            to_do = f"BLOCKS: {finding.to_do}" if finding.blocks else finding.to_do
            yield item.kind, name, finding.path, finding.why, to_do


def plan_text(plan: Plan) -> str:
    """The steps, as text that can be kept in a file."""
    lines = [
        f"# From Kueue to Rackgate: {plan.mode}",
        "# Each step says how to verify it and how to go back.",
    ]
    for number, step in enumerate(plan.steps, 1):
        lines += ["", f"## {number}. {step.title}", *_comment(step.why)]
        lines += [clean(line) for line in step.commands]
        lines += _comment(f"Verify: {step.verify}")
        lines += _comment(f"Go back: {step.go_back}")
    return "\n".join(lines) + "\n"


def _comment(text: str) -> list[str]:
    lines = textwrap.wrap(text, _WIDTH, break_long_words=False, break_on_hyphens=False)
    return [f"# {clean(line)}" for line in lines]

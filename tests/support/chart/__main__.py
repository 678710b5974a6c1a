"""Command line of the generator; see the package."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Final

from tests.support.chart.templates import DEPLOY, templates
from tests.support.chart.values import schema_text, values_text

CHART: Final = DEPLOY / "helm" / "rackgate"
BY_HAND: Final = frozenset(
    {
        ".helmignore",
        "Chart.yaml",
        "templates/NOTES.txt",
        "templates/_checks.tpl",
        "templates/_helpers.tpl",
        "templates/checks.yaml",
    }
)


def generated() -> dict[str, str]:
    """Every generated file of the chart, by its path."""
    return {
        **templates(),
        "values.yaml": values_text(),
        "values.schema.json": schema_text(),
    }


def stale(chart: Path = CHART) -> list[str]:
    """Files of the chart that are missing, differ, or do not belong there."""
    wanted = generated()
    there = {str(path.relative_to(chart)) for path in chart.rglob("*") if path.is_file()}
    differing = {
        name
        for name, text in wanted.items()
        if name not in there or (chart / name).read_text() != text
    }
    return sorted(differing | (there - set(wanted) - BY_HAND))


def main() -> int:
    """Write the chart, or say what in it is stale."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.chart", description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail when a file is stale")
    arguments = parser.parse_args()
    found = stale()
    if arguments.check and found:
        print(f"stale in {CHART.name}: {', '.join(found)}: run `make chart`", file=sys.stderr)
        return 1
    wanted = generated()
    for name in found:
        path = CHART / name
        if name in wanted:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(wanted[name])
        else:
            path.unlink()
        print(f"{path.relative_to(DEPLOY.parent)} {'written' if name in wanted else 'removed'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

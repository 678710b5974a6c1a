"""Command line of the generator; see the package."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import Final

from tests.support.chart import elsewhere
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
    """Every generated file, by its path in deploy/."""
    chart = {**templates(), "values.yaml": values_text(), "values.schema.json": schema_text()}
    prefix = CHART.relative_to(DEPLOY)
    return {elsewhere.PATH: elsewhere.text()} | {
        str(prefix / name): text for name, text in chart.items()
    }


def stale(deploy: Path = DEPLOY) -> list[str]:
    """Generated files that are missing or differ, and files that do not belong into the chart."""
    wanted = generated()
    chart = deploy / CHART.relative_to(DEPLOY)
    by_hand = {chart / name for name in BY_HAND}
    differing = {
        name
        for name, text in wanted.items()
        if not (deploy / name).is_file() or (deploy / name).read_text() != text
    }
    there = {
        str(path.relative_to(deploy))
        for path in chart.rglob("*")
        if path.is_file() and path not in by_hand
    }
    return sorted(differing | (there - set(wanted)))


def main() -> int:
    """Write what is generated, or say what of it is stale."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.chart", description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail when a file is stale")
    arguments = parser.parse_args()
    found = stale()
    if arguments.check and found:
        print(f"stale in deploy: {', '.join(found)}: run `make chart`", file=sys.stderr)
        return 1
    wanted = generated()
    for name in found:
        path = DEPLOY / name
        if name in wanted:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(wanted[name])
        else:
            path.unlink()
        print(f"{path.relative_to(DEPLOY.parent)} {'written' if name in wanted else 'removed'}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Command line of the generator; see the package."""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Final

from tests.support.reference import REFERENCE, ROOT

# Page -> module. The metrics come first: their groups show in a process that imported no service.
PAGES: Final = {
    "metrics": "metrics",
    "settings": "settings",
    "feature-gates": "feature_gates",
    "cli": "cli",
    "conditions-and-reasons": "conditions",
    "events": "events",
    "annotations-and-labels": "keys",
    "rbac": "rbac",
    "behaviour": "behaviour",
    "compatibility": "compatibility_page",
    "helm-values": "helm_values",
}


SCHEMAS: Final = "schemas"


def _files(pages: Collection[str]) -> Iterator[tuple[Path, str]]:
    """Path and text of these pages, of all for none."""
    for name, module in PAGES.items():
        if not pages or name in pages:
            text: str = importlib.import_module(f"tests.support.reference.{module}").text()
            yield REFERENCE / f"{name}.md", text
    if not pages or SCHEMAS in pages:
        from tests.support.reference.schemas import schemas

        for kind, text in schemas().items():
            yield REFERENCE / "schemas" / f"{kind}.json", text


def main() -> int:
    """Write the pages, or say which of them are stale."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.reference", description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail when a page is stale")
    parser.add_argument(
        "pages", nargs="*", metavar="PAGE", help=f"of: {', '.join((*PAGES, SCHEMAS))}"
    )
    arguments = parser.parse_args()
    if unknown := sorted(set(arguments.pages) - {*PAGES, SCHEMAS}):
        parser.error(f"unknown pages: {', '.join(unknown)}")
    stale = []
    for path, text in _files(arguments.pages):
        if path.exists() and path.read_text() == text:
            continue
        stale.append(str(path.relative_to(ROOT)))
        if not arguments.check:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
    if arguments.check and stale:
        print(f"stale: {', '.join(stale)}: run `make docs`", file=sys.stderr)
        return 1
    for entry in stale:
        print(f"{entry} written")
    return 0


if __name__ == "__main__":
    sys.exit(main())

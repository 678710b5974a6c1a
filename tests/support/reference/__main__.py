"""Command line of the generator; see the package."""

from __future__ import annotations

import argparse
import importlib
import sys
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


def main() -> int:
    """Write the pages, or say which of them are stale."""
    parser = argparse.ArgumentParser(prog="python -m tests.support.reference", description=__doc__)
    parser.add_argument("--check", action="store_true", help="fail when a page is stale")
    parser.add_argument("pages", nargs="*", metavar="PAGE", help=f"of: {', '.join(PAGES)}")
    arguments = parser.parse_args()
    if unknown := sorted(set(arguments.pages) - set(PAGES)):
        parser.error(f"unknown pages: {', '.join(unknown)}")
    stale = []
    for name, module in PAGES.items():
        if arguments.pages and name not in arguments.pages:
            continue
        text: str = importlib.import_module(f"tests.support.reference.{module}").text()
        path = REFERENCE / f"{name}.md"
        if path.exists() and path.read_text() == text:
            continue
        stale.append(str(path.relative_to(ROOT)))
        if not arguments.check:
            path.write_text(text)
    if arguments.check and stale:
        print(f"stale: {', '.join(stale)}: run `make docs`", file=sys.stderr)
        return 1
    for entry in stale:
        print(f"{entry} written")
    return 0


if __name__ == "__main__":
    sys.exit(main())

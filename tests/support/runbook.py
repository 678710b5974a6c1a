"""Commands of docs/operators.md, as they are printed there."""

from __future__ import annotations

import re
from typing import Final

from rackgate_cli.locations import deploy_dir

PAGE: Final = deploy_dir().parent / "docs" / "operators.md"
_BLOCK: Final = re.compile(r"```sh\n(?P<text>.*?)```", re.DOTALL)


def commands(after: str) -> str:
    """The first block of commands after a text that is on the page once."""
    page = PAGE.read_text()
    assert page.count(after) == 1, f"{page.count(after)} times on the page: {after}"
    found = _BLOCK.search(page, page.index(after))
    assert found is not None
    return found["text"]

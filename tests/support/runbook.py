"""Commands of pages of docs/tasks, as they are printed there."""

from __future__ import annotations

import re

from tests.support.task_pages import COMMANDS, FOLDER, blocks


def commands(page: str, after: str) -> str:
    """The first block of commands after a text that is on the page once."""
    text = (FOLDER / f"{page}.md").read_text()
    (found,) = re.finditer(r"\s+".join(map(re.escape, after.split())), text)
    rest = blocks(text[found.start() :])
    return next(block.text for block in rest if block.language in COMMANDS)

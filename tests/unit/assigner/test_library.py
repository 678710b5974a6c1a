"""The page for those who call the engine: what it shows runs, and prints what it says."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

PAGE = Path(__file__).parents[3] / "docs" / "tasks" / "use-a-placement-library.md"


def test_the_example_runs_and_prints_what_the_page_says() -> None:
    text = PAGE.read_text()
    (code,) = re.findall(r"```python\n(.*?)```", text, re.DOTALL)
    (printed,) = re.findall(r"It prints:\n\n```console\n(.*?)```", text, re.DOTALL)
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert ran.stdout == printed

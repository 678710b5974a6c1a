"""The page about `rackgate osmo explain` and `check` shows what they really print."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from rackgate_cli.__main__ import main

PAGE = (Path(__file__).parents[3] / "docs" / "reference" / "osmo.md").read_text()
FILES = dict(re.findall(r"```yaml\n# (\S+)\n(.*?)```", PAGE, re.DOTALL))
RUNS = re.findall(r"```\n\$ rackgate (.*?)\n(.*?)```", PAGE, re.DOTALL)


@pytest.mark.parametrize(("line", "printed"), RUNS, ids=[line for line, _ in RUNS])
def test_the_page_shows_what_the_command_prints(
    line: str,
    printed: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    for name, text in FILES.items():
        (tmp_path / name).write_text(text)
    monkeypatch.chdir(tmp_path)
    assert main(line.split()) == 0
    assert capsys.readouterr().out == printed


def test_no_example_of_the_page_is_overlooked() -> None:
    assert len(RUNS) == 6
    assert len(FILES) == 6

"""A playground for tests that does not start."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.support import playground


def test_a_start_that_is_given_up_leaves_nothing_running(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    called: list[tuple[str, ...]] = []

    def rackgate(*words: str, limit_s: float) -> str:
        called.append(words[:3])
        if words[0] == "up":
            raise subprocess.TimeoutExpired("rackgate up", limit_s)
        return ""

    monkeypatch.setattr(playground, "rackgate", rackgate)
    with pytest.raises(subprocess.TimeoutExpired):
        playground.start_playground(tmp_path)
    assert called == [(verb, "--state", str(tmp_path)) for verb in ("up", "down")]

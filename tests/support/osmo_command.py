"""A pool and a workflow in files, and what `rackgate osmo` says to them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from rackgate_cli.__main__ import main

POOL: Final = """\
name: my-pool
backend: backend-1
scheduler: kai
topology_keys:
  - {key: zone, label: topology.kubernetes.io/zone}
  - {key: rack, label: topology.kubernetes.io/rack}
"""
WORKFLOW: Final = """\
workflow:
  name: train
  groups:
  - name: models
    tasks:
    - name: one
      image: trainer:1
      command: [python, train.py]
      environment: {EPOCHS: 10, DEBUG: true}
    - {name: two}
resources:
  default: {cpu: 0.5, memory: 1Gi, gpu: 2, topology: [{key: rack}]}
"""
RENDER: Final = ("render", "-f", "workflow.yaml", "--pool", "pool.yaml")


def rendered(capsys: pytest.CaptureFixture[str], *more: str) -> list[dict[str, Any]]:
    """What `render` prints, as data."""
    assert main(["osmo", *RENDER, *more]) == 0
    return list(yaml.safe_load_all(capsys.readouterr().out))


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """What is said when the command line or a file is refused; nothing else may be printed."""
    assert main(["osmo", *words]) == 2
    said = capsys.readouterr()
    assert said.out == ""
    return said.err


def prepare(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Write both files and make `folder` the current one; no cluster is to be found."""
    for name in ("KUBECONFIG", "RACKGATE_STATE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(folder / "home"))
    monkeypatch.setenv("XDG_STATE_HOME", str(folder / "state"))
    monkeypatch.chdir(folder)
    (folder / "pool.yaml").write_text(POOL)
    (folder / "workflow.yaml").write_text(WORKFLOW)

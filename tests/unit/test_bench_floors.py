"""The bench's floors: recorded ratios, and what counts as a loss."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench import floors

ROOT = Path(__file__).resolve().parents[2]


def test_a_ratio_is_lost_below_two_thirds_of_what_was_recorded() -> None:
    found = {"held": 2.0, "lost": 1.9, "not recorded": 0.1}
    recorded = {"held": 3.0, "lost": 3.0, "not measured": 9.0}
    assert [str(loss) for loss in floors.losses(found, recorded)] == ["lost: 1.90, recorded 3.00"]


def test_recording_replaces_what_was_measured_and_keeps_the_rest(tmp_path: Path) -> None:
    file = tmp_path / "floors.toml"
    assert floors.read(file) == {}
    floors.write({"sketch / engine, 640 nodes": 1.2345, "b": 2.0}, file)
    floors.write({"b": 3.0}, file)
    assert floors.read(file) == {"sketch / engine, 640 nodes": 1.23, "b": 3.0}


def test_recording_one_bench_leaves_the_ratios_of_the_others(tmp_path: Path) -> None:
    file = tmp_path / "floors.toml"
    floors.write({"a": 1.0}, file)
    floors.write({"a": 2.0}, file, section="ungate")
    floors.write({"b": 3.0}, file, section="ungate")
    assert floors.read(file) == {"a": 1.0}
    assert floors.read(file, section="ungate") == {"a": 2.0, "b": 3.0}
    assert floors.read(file, section="webhook") == {}


def test_the_recorded_ratios_can_be_read() -> None:
    assert all(ratio > 0 for ratio in floors.read().values())
    assert floors.read()


@pytest.mark.requirement("TAS-34")
def test_time_and_memory_are_stated_by_node_count(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    command = [sys.executable, "-m", "bench.placement", "--nodes", "256", "320"]
    subprocess.run([*command, "--json", str(figures)], check=True, timeout=280, cwd=ROOT)
    found = json.loads(figures.read_text())
    for nodes in (256, 320):
        assert (
            found["placement_ms"][f"required rack, half full, rules none, fits, {nodes} nodes"] > 0
        )
    assert set(found["memory_mib_per_10000_nodes"]) >= {"tree", "capacity"}

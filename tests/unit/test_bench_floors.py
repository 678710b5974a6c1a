"""The bench's floors: recorded ratios, and what counts as a loss."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.measuring import floors
from bench.measuring.floors import Range

ROOT = Path(__file__).resolve().parents[2]


def test_a_ratio_of_one_run_is_lost_below_two_thirds_of_it() -> None:
    found = {"held": 2.01, "lost": 1.9, "not recorded": 0.1}
    three = Range(3.0, 3.0)
    recorded = {"held": three, "lost": three, "not measured": Range(9.0, 9.0)}
    lost = [str(loss) for loss in floors.losses(found, recorded)]
    assert lost == ["lost: 1.90, recorded 3.00, floor 2.00"]


@pytest.mark.parametrize(
    ("least", "most", "floor"), [(1.0, 1.0, 2 / 3), (1.0, 1.5, 0.825), (0.64, 0.99, 0.5445)]
)
def test_half_the_speed_is_noticed_wherever_in_its_range_a_machine_stands(
    least: float, most: float, floor: float
) -> None:
    assert Range(least, most).floor == pytest.approx(floor)
    recorded = {"a": Range(least, most)}
    for stands in (least, (least + most) / 2, most):
        assert not floors.losses({"a": stands}, recorded)
        assert not floors.losses({"a": 0.92 * least}, recorded)
        assert floors.losses({"a": stands / 2}, recorded)


def test_what_was_found_without_a_loss_is_none_however_wide_the_range() -> None:
    recorded = {"a": Range(1.0, 4.0)}
    assert recorded["a"].floor == 0.9
    assert not floors.losses({"a": 1.0}, recorded)
    assert floors.losses({"a": 0.89}, recorded)


def test_recording_replaces_what_was_measured_and_keeps_the_rest(tmp_path: Path) -> None:
    file = tmp_path / "floors.toml"
    assert floors.read(file) == {}
    floors.write({"sketch / engine, 640 nodes": 1.2345, "b": 2.0}, file)
    floors.write({"b": 3.0}, file)
    assert floors.read(file) == {
        "sketch / engine, 640 nodes": Range(1.23, 1.23),
        "b": Range(3.0, 3.0),
    }


def test_another_machine_widens_what_was_recorded(tmp_path: Path) -> None:
    file = tmp_path / "floors.toml"
    floors.write({"a": 0.99}, file)
    floors.write({"a": 0.64, "b": 2.0}, file, widen=True)
    floors.write({"a": 0.8}, file, widen=True)
    assert floors.read(file) == {"a": Range(0.64, 0.99), "b": Range(2.0, 2.0)}
    floors.write({"a": 1.1}, file)
    assert floors.read(file)["a"] == Range(1.1, 1.1)


def test_recording_one_bench_leaves_the_ratios_of_the_others(tmp_path: Path) -> None:
    file = tmp_path / "floors.toml"
    floors.write({"a": 1.0}, file)
    floors.write({"a": 2.0}, file, section="ungate")
    floors.write({"b": 3.0}, file, section="ungate")
    assert floors.read(file) == {"a": Range(1.0, 1.0)}
    assert floors.read(file, section="ungate") == {"a": Range(2.0, 2.0), "b": Range(3.0, 3.0)}
    assert floors.read(file, section="webhook") == {}


@pytest.mark.parametrize("text", ["[2.0, 1.0]", "[1.0]", "0.0", '"1"', "[1.0, 2.0, 3.0]"])
def test_a_record_that_is_no_range_is_rejected(tmp_path: Path, text: str) -> None:
    file = tmp_path / "floors.toml"
    file.write_text(f'[placement]\n"a" = {text}\n')
    with pytest.raises(ValueError, match=r"range|a number"):
        floors.read(file)


@pytest.mark.parametrize("section", ["placement", "slices", "tree", "ungate", "webhook"])
def test_what_is_recorded_would_show_half_the_speed(section: str) -> None:
    recorded = floors.read(section=section)
    assert recorded
    blind = [name for name, one in recorded.items() if one.most / 2 >= one.floor]
    assert len(blind) <= len(recorded) / 4, blind


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

"""Ratios that a bench has reached once, and which it must not fall far below."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

FILE: Final = Path(__file__).with_name("floors.toml")
# A change may lose a third of what was recorded.
SHARE: Final = 2 / 3
PLACEMENT: Final = "placement"
_HEADER: Final = """\
# Ratios that were reached, larger is better: how many times as long the base of a comparison
# takes, or ours as a share of it. `--record` of a bench writes its section; a bench fails below
# two thirds of these.
"""


@dataclass(frozen=True, slots=True)
class Loss:
    """A ratio below its floor."""

    name: str
    recorded: float
    found: float

    def __str__(self) -> str:
        return f"{self.name}: {self.found:.2f}, recorded {self.recorded:.2f}"


def losses(found: Mapping[str, float], recorded: Mapping[str, float]) -> list[Loss]:
    """Ratios that lost more than a third; what was not measured, or never recorded, is left out."""
    return [
        Loss(name, recorded[name], ratio)
        for name, ratio in found.items()
        if name in recorded and ratio < recorded[name] * SHARE
    ]


def read(path: Path = FILE, *, section: str = PLACEMENT) -> dict[str, float]:
    """Ratios that one bench recorded, by name; none without a file or a section."""
    return _sections(path).get(section, {})


def write(ratios: Mapping[str, float], path: Path = FILE, *, section: str = PLACEMENT) -> None:
    """Record ratios of one bench; those that were not measured this time stay."""
    sections = _sections(path)
    sections[section] = {**sections.get(section, {}), **ratios}
    parts = [_HEADER]
    for name, kept in sorted(sections.items()):
        lines = [f'"{key}" = {ratio:.3g}' for key, ratio in sorted(kept.items())]
        parts.append("\n".join([f"[{name}]", *lines]) + "\n")
    path.write_text("\n".join(parts))


def judge(found: Mapping[str, float], section: str, *, record: bool) -> tuple[list[str], bool]:
    """Record ratios, or compare them with the record: lines for people, and whether all hold."""
    if record:
        write(found, section=section)
        return [f"recorded {len(found)} ratios in {FILE.name}"], True
    lost = losses(found, read(section=section))
    return [f"LOST more than a third: {loss}" for loss in lost], not lost


def _sections(path: Path) -> dict[str, dict[str, float]]:
    if not path.exists():
        return {}
    found: dict[str, dict[str, float]] = tomllib.loads(path.read_text())
    return found

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
_HEADER: Final = """\
# How many times as long the base of a comparison takes as the placement engine, by
# `python -m bench.placement --record`. The bench fails below two thirds of these.
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


def read(path: Path = FILE) -> dict[str, float]:
    """Recorded ratios by name; none without a file."""
    if not path.exists():
        return {}
    ratios: dict[str, float] = tomllib.loads(path.read_text())["placement"]
    return ratios


def write(ratios: Mapping[str, float], path: Path = FILE) -> None:
    """Record ratios; those that were not measured this time stay."""
    kept = {**read(path), **ratios}
    lines = [f'"{name}" = {ratio:.3g}' for name, ratio in sorted(kept.items())]
    path.write_text(_HEADER + "\n[placement]\n" + "\n".join(lines) + "\n")

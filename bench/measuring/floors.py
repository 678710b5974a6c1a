"""Ratios that a bench has reached, and which it must not fall far below.

A ratio is recorded as the range it was found in, on several machines and under several loads:
its base and ours do not share everything (one waits for memory, the other for the interpreter),
so that a faster cache or a full machine moves it, and nothing was lost. What is judged is whether
a run lies below all of that.
"""

from __future__ import annotations

import argparse
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

FILE: Final = Path(__file__).with_name("floors.toml")
# A change may lose a third of the least that was found,
SHARE: Final = 2 / 3
# but not so much that half the speed would pass where the most was found,
NOTICED: Final = 0.55
# unless that is as much as was found elsewhere without a loss.
SPARED: Final = 0.9
PLACEMENT: Final = "placement"
_HEADER: Final = """\
# Ratios that were reached, larger is better: how many times as long the base of a comparison
# takes, or ours as a share of it. Two numbers are the least and the most of several machines and
# loads. `--record` of a bench writes its section again, `--widen` takes a run into the ranges; how
# they are judged is told in README.md.
"""


@dataclass(frozen=True, slots=True)
class Range:
    """Where a ratio was found."""

    least: float
    most: float

    def __post_init__(self) -> None:
        """Check.

        Raises:
            ValueError: not a range of positive numbers.
        """
        if not 0 < self.least <= self.most:
            raise ValueError(f"not a range of ratios: {self.least:g} to {self.most:g}")

    @property
    def floor(self) -> float:
        """Below this something was lost."""
        return min(max(self.least * SHARE, self.most * NOTICED), self.least * SPARED)

    def widened(self, ratio: float) -> Range:
        """With one more run."""
        return Range(min(self.least, ratio), max(self.most, ratio))

    def __str__(self) -> str:
        if self.least == self.most:
            return f"{self.least:.2f}"
        return f"{self.least:.2f} to {self.most:.2f}"


@dataclass(frozen=True, slots=True)
class Loss:
    """A ratio below its floor."""

    name: str
    recorded: Range
    found: float

    def __str__(self) -> str:
        floor = f"{self.recorded.floor:.2f}"
        return f"{self.name}: {self.found:.2f}, recorded {self.recorded}, floor {floor}"


def losses(found: Mapping[str, float], recorded: Mapping[str, Range]) -> list[Loss]:
    """Ratios below their floors; what was not measured, or never recorded, is left out."""
    return [
        Loss(name, recorded[name], ratio)
        for name, ratio in found.items()
        if name in recorded and ratio < recorded[name].floor
    ]


def read(path: Path = FILE, *, section: str = PLACEMENT) -> dict[str, Range]:
    """Ranges that one bench recorded, by name; none without a file or a section.

    Raises:
        ValueError: what is recorded is neither a number nor two, the lesser first.
    """
    return _sections(path).get(section, {})


def write(
    ratios: Mapping[str, float], path: Path = FILE, *, section: str = PLACEMENT, widen: bool = False
) -> None:
    """Record ratios of one bench; those that were not measured this time stay.

    Args:
        ratios: by name.
        path: the file.
        section: of the bench.
        widen: take them into the ranges, instead of putting them in their place.
    """
    sections = _sections(path)
    before = sections.get(section, {})
    sections[section] = before | {
        name: before[name].widened(ratio) if widen and name in before else Range(ratio, ratio)
        for name, ratio in ratios.items()
    }
    parts = [_HEADER]
    for name, kept in sorted(sections.items()):
        lines = [f'"{key}" = {_written(one)}' for key, one in sorted(kept.items())]
        parts.append("\n".join([f"[{name}]", *lines]) + "\n")
    path.write_text("\n".join(parts))


def add_options(parser: argparse.ArgumentParser) -> None:
    """`--record` and `--widen` of a bench."""
    ways = parser.add_mutually_exclusive_group()
    ways.add_argument("--record", action="store_true", help="make this run's ratios the floors")
    ways.add_argument(
        "--widen",
        action="store_true",
        help="on another machine or load, with nothing lost: take its ratios into the record",
    )


def judge(
    found: Mapping[str, float], section: str, arguments: argparse.Namespace
) -> tuple[list[str], bool]:
    """Record ratios, or compare them with the record: lines for people, and whether all hold.

    Args:
        found: by name.
        section: of the bench.
        arguments: with those of `add_options`.
    """
    if arguments.record or arguments.widen:
        write(found, section=section, widen=arguments.widen)
        return [f"recorded {len(found)} ratios in {FILE.name}"], True
    lost = losses(found, read(section=section))
    return [f"LOST: {loss}" for loss in lost], not lost


def _written(one: Range) -> str:
    least, most = (f"{number:.3g}" for number in (one.least, one.most))
    return least if least == most else f"[{least}, {most}]"


def _sections(path: Path) -> dict[str, dict[str, Range]]:
    if not path.exists():
        return {}
    found = tomllib.loads(path.read_text())
    return {
        section: {name: _range(name, value) for name, value in kept.items()}
        for section, kept in found.items()
    }


def _range(name: str, value: object) -> Range:
    numbers = value if isinstance(value, list) else [value, value]
    ratios = [float(one) for one in numbers if isinstance(one, int | float)]
    if not len(ratios) == len(numbers) == 2:
        raise ValueError(f'"{name}": a number, or the least and the most, not {value!r}')
    return Range(*ratios)

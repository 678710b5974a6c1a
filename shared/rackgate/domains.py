"""Topology domains as tuples of label values, and the two wire forms of an assignment.

A domain is the tuple of its level values, coarsest first: never a joined string, so a host
named like a rack, or a value that contains a separator, cannot be mistaken for another.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, TypeAlias

Domain: TypeAlias = tuple[str, ...]

SLICE_DOMAINS: Final = 100_000  # most domains that one slice may hold
MAX_SLICES: Final = 1000
MAX_VALUE: Final = 63  # characters of a label value


class AssignmentError(ValueError):
    """The assignment breaks a rule of its wire form; the message begins with a field path."""


@dataclass(frozen=True, slots=True)
class TopologyAssignment:
    """Which lowest-level domains take how many pods of one PodSet.

    Attributes:
        levels: node label keys, coarsest first; only the hostname when that is the lowest level.
        domains: `(values, count)` in rank order: the first `count` ranks go to the first domain.
            `values` has one entry per level; `count` is at least 1; no domain appears twice.
    """

    levels: tuple[str, ...]
    domains: tuple[tuple[Domain, int], ...]

    @property
    def count(self) -> int:
        """Total pods over all domains."""
        return sum(count for _, count in self.domains)


def _require(holds: bool, message: str) -> None:
    if not holds:
        raise AssignmentError(message)


def _check(assignment: TopologyAssignment) -> None:
    """Refuse what no reader could take back: the invariants of `TopologyAssignment`."""
    width = len(assignment.levels)
    _require(width > 0, "levels: at least one level is needed")
    _require(bool(assignment.domains), "slices: at least one domain is needed")
    _require(
        len(assignment.domains) <= MAX_SLICES * SLICE_DOMAINS,
        f"slices: {len(assignment.domains)} domains are more than one object can hold",
    )
    seen: set[Domain] = set()
    for values, count in assignment.domains:
        shown = "/".join(values)
        _require(len(values) == width, f'slices: domain "{shown}" has not {width} values')
        _require(count >= 1, f'slices: domain "{shown}" takes {count} pods: at least 1 is needed')
        _require(values not in seen, f'slices: domain "{shown}" appears twice')
        too_long = next((value for value in values if len(value) > MAX_VALUE), None)
        _require(too_long is None, f'slices: value "{too_long}" is longer than {MAX_VALUE}')
        seen.add(values)


def _common_prefix(values: Sequence[str]) -> str:
    """Longest prefix of all: that of the first and the last in alphabetical order."""
    low, high = min(values), max(values)
    length = next(
        (i for i, (left, right) in enumerate(zip(low, high, strict=False)) if left != right),
        min(len(low), len(high)),
    )
    return low[:length]


def _encode_values(values: Sequence[str]) -> dict[str, Any]:
    """One level of one slice: universal, or roots between the longest common ends."""
    if all(value == values[0] for value in values):
        return {"universal": values[0]}
    prefix = _common_prefix(values)
    # The suffix is sought in what the prefix left over, so that the two never overlap.
    rests = [value[len(prefix) :] for value in values]
    suffix = _common_prefix([rest[::-1] for rest in rests])[::-1]
    individual: dict[str, Any] = {}
    if prefix:
        individual["prefix"] = prefix
    if suffix:
        individual["suffix"] = suffix
    individual["roots"] = [rest[: len(rest) - len(suffix)] for rest in rests]
    return {"individual": individual}


def _encode_counts(counts: Sequence[int]) -> dict[str, Any]:
    if all(count == counts[0] for count in counts):
        return {"universal": counts[0]}
    return {"individual": list(counts)}


def _encode_slice(domains: Sequence[tuple[Domain, int]]) -> dict[str, Any]:
    columns = zip(*(values for values, _ in domains), strict=True)
    return {
        "domainCount": len(domains),
        "valuesPerLevel": [_encode_values(column) for column in columns],
        "podCounts": _encode_counts([count for _, count in domains]),
    }


def encode(assignment: TopologyAssignment) -> dict[str, Any]:
    """The v1beta2 `topologyAssignment`: `levels` and `slices`, domains in the given order.

    One slice, with the longest common prefix and suffix of every level taken out; more than
    `SLICE_DOMAINS` domains continue in further slices.

    Raises:
        AssignmentError: no level, no domain, a domain named twice, of another length than
            `levels`, with a count below 1 or with a value longer than a label value.
    """
    _check(assignment)
    domains = assignment.domains
    return {
        "levels": list(assignment.levels),
        "slices": [
            _encode_slice(domains[start : start + SLICE_DOMAINS])
            for start in range(0, len(domains), SLICE_DOMAINS)
        ],
    }


def _list_of(value: Any, kind: type, path: str) -> list[Any]:
    fits = isinstance(value, list | tuple) and all(type(item) is kind for item in value)
    _require(fits, f"{path}: must be a list of {kind.__name__}")
    return list(value)


def _either(column: Any, path: str) -> tuple[Any, Any]:
    """`(universal, individual)`, exactly one of them not None."""
    _require(isinstance(column, Mapping), f"{path}: must be an object")
    universal, individual = column.get("universal"), column.get("individual")
    _require(
        (universal is None) != (individual is None),
        f"{path}: exactly one of universal and individual must be set",
    )
    return universal, individual


def _decode_values(column: Any, length: int, path: str) -> list[str]:
    universal, individual = _either(column, path)
    if individual is None:
        _require(isinstance(universal, str), f"{path}.universal: must be a string")
        return [universal] * length
    _require(isinstance(individual, Mapping), f"{path}.individual: must be an object")
    prefix, suffix = individual.get("prefix") or "", individual.get("suffix") or ""
    ends = isinstance(prefix, str) and isinstance(suffix, str)
    _require(ends, f"{path}.individual: prefix and suffix must be strings")
    roots = _list_of(individual.get("roots"), str, f"{path}.individual.roots")
    _require(
        len(roots) == length,
        f"{path}.individual.roots: {len(roots)} entries for domainCount {length}",
    )
    return [f"{prefix}{root}{suffix}" for root in roots]


def _decode_counts(column: Any, length: int, path: str) -> list[int]:
    universal, individual = _either(column, path)
    chosen = [universal] if individual is None else individual
    counts = _list_of(chosen, int, path)
    _require(all(count >= 1 for count in counts), f"{path}: counts must be at least 1")
    if individual is None:
        return counts * length
    _require(
        len(counts) == length,
        f"{path}.individual: {len(counts)} entries for domainCount {length}",
    )
    return counts


def _decode_slice(part: Any, width: int, path: str) -> list[tuple[Domain, int]]:
    _require(isinstance(part, Mapping), f"{path}: must be an object")
    length = part.get("domainCount")
    if type(length) is not int or not 1 <= length <= SLICE_DOMAINS:
        raise AssignmentError(f"{path}.domainCount: must be 1 to {SLICE_DOMAINS}")
    columns = _list_of_columns(part.get("valuesPerLevel"), width, f"{path}.valuesPerLevel")
    rows = zip(
        *(
            _decode_values(column, length, f"{path}.valuesPerLevel[{level}]")
            for level, column in enumerate(columns)
        ),
        strict=True,
    )
    counts = _decode_counts(part.get("podCounts"), length, f"{path}.podCounts")
    return list(zip(rows, counts, strict=True))


def _list_of_columns(value: Any, width: int, path: str) -> list[Any]:
    fits = isinstance(value, list | tuple) and len(value) == width
    _require(fits, f"{path}: must have one entry per level ({width})")
    return list(value)


def decode(wire: Mapping[str, Any]) -> TopologyAssignment:
    """Read a v1beta2 `topologyAssignment` of any legal shape; the order of domains is kept.

    Raises:
        AssignmentError: missing or wrongly typed fields, lengths that disagree, counts below 1,
            or a domain named twice.
    """
    levels = _list_of(wire.get("levels"), str, "levels")
    _require(bool(levels), "levels: at least one level is needed")
    slices = wire.get("slices")
    if not isinstance(slices, list | tuple) or not 1 <= len(slices) <= MAX_SLICES:
        raise AssignmentError(f"slices: must be a list of 1 to {MAX_SLICES} slices")
    domains: list[tuple[Domain, int]] = []
    for index, part in enumerate(slices):
        domains.extend(_decode_slice(part, len(levels), f"slices[{index}]"))
    _require(
        len({values for values, _ in domains}) == len(domains),
        "slices: a domain appears twice",
    )
    return TopologyAssignment(levels=tuple(levels), domains=tuple(domains))

"""Encode and decode `topologyAssignment`; domains are tuples of label values.

A domain is the tuple of its level values, coarsest first, never a joined string: a host that is
named like a rack, or a value that contains a separator, cannot be confused with another.

Wire form (v1beta2): the domains are a list of slices. A slice has one column per level, either one
universal value or `prefix + root + suffix` per domain, and a column of pod counts. `encode` cuts
the list where that saves bytes (`assignment_slices.py`); `decode` reads any legal form in time and
memory linear in its size.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, NoReturn, TypeAlias

import msgspec

from rackgate.topology.assignment_slices import common_prefix, slice_starts

Domain: TypeAlias = tuple[str, ...]

SLICE_DOMAINS: Final = 100_000  # most domains that one slice may hold
MAX_SLICES: Final = 1000
MAX_VALUE: Final = 63  # characters of a label value
MAX_PODS: Final = 2**31 - 1  # of a PodSet, and so of its domains together
LEVELS: Final = 16  # most levels of a topology
MAX_LEVEL_LENGTH: Final = 317  # characters of a level's label key

_SHOWN: Final = 60  # characters of a value in a message


class AssignmentError(ValueError):
    """The assignment is invalid; the message starts with a field path."""


@dataclass(frozen=True, slots=True)
class TopologyAssignment:
    """Lowest-level domains of one PodSet, and the pods of each.

    Attributes:
        levels: node label keys, coarsest first; only the hostname if that is the lowest level.
        domains: `(values, count)` in rank order: the first `count` ranks go to the first domain.
            `values` has one entry per level; `count` is at least 1; no domain appears twice.
    """

    levels: tuple[str, ...]
    domains: tuple[tuple[Domain, int], ...]

    @property
    def count(self) -> int:
        """Pods of all domains."""
        return sum(count for _, count in self.domains)


def _reject(path: str, problem: str) -> NoReturn:
    raise AssignmentError(f"{path}: {problem}")


def shown(value: object) -> str:
    """A value, shortened for messages."""
    if isinstance(value, str):
        text = json.dumps(value[:_SHOWN], ensure_ascii=False)  # control characters escaped
        return text if len(value) <= _SHOWN else f'{text[:-1]}..."'
    if isinstance(value, Mapping):
        return "an object"
    if isinstance(value, list | tuple):
        return f"a list of {len(value)}"
    if value is None:
        return "nothing"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int) and value.bit_length() > 64:
        return f"a number of {value.bit_length()} bits"
    return str(value)[:_SHOWN]


def _check(assignment: TopologyAssignment) -> None:
    """Check the invariants of `TopologyAssignment`, and the limits of the schema."""
    _check_levels(assignment.levels)
    width, domains = len(assignment.levels), assignment.domains
    if not domains:
        _reject("slices", "at least one domain is needed")
    if len(domains) > MAX_SLICES * SLICE_DOMAINS:
        _reject("slices", f"{len(domains)} domains are more than one object can hold")
    for values, count in domains:
        if len(values) == width and 1 <= count <= MAX_PODS and max(map(len, values)) <= MAX_VALUE:
            continue
        domain = shown("/".join(values))
        if len(values) != width:
            _reject("slices", f"domain {domain} does not have {width} values")
        if max(map(len, values)) > MAX_VALUE:
            _reject("slices", f"domain {domain} has a value longer than {MAX_VALUE} characters")
        _reject("slices", f"domain {domain} has {count} pods: must be 1 to {MAX_PODS}")
    _check_totals(domains)


def _check_levels(levels: Sequence[str]) -> None:
    if not 1 <= len(levels) <= LEVELS:
        _reject("levels", f"{len(levels)} levels: must be 1 to {LEVELS}")
    for index, level in enumerate(levels):
        if len(level) > MAX_LEVEL_LENGTH:
            problem = f"{shown(level)} is longer than {MAX_LEVEL_LENGTH} characters"
            _reject(f"levels[{index}]", problem)
        if level in levels[:index]:
            _reject(f"levels[{index}]", f"{shown(level)} appears twice")


def _check_totals(domains: Sequence[tuple[Domain, int]]) -> None:
    """Reject duplicate domains, and more pods than a PodSet can have."""
    if len({values for values, _ in domains}) != len(domains):
        seen: set[Domain] = set()
        for values, _ in domains:
            if values in seen:
                _reject("slices", f"domain {shown('/'.join(values))} appears twice")
            seen.add(values)
    pods = sum(count for _, count in domains)
    if pods > MAX_PODS:
        _reject("slices", f"{pods} pods in total: a PodSet has at most {MAX_PODS}")


def _encode_values(values: Sequence[str]) -> dict[str, Any]:
    """One level of one slice: universal, or roots between the longest common ends."""
    prefix = common_prefix(values)
    if len(prefix) == max(map(len, values)):
        return {"universal": values[0]}
    # The suffix is searched after the prefix, so that the two do not overlap.
    middles = [value[len(prefix) :] for value in values]
    suffix = common_prefix([rest[::-1] for rest in middles])[::-1]
    individual: dict[str, Any] = {}
    if prefix:
        individual["prefix"] = prefix
    if suffix:
        individual["suffix"] = suffix
    individual["roots"] = [rest[: len(rest) - len(suffix)] for rest in middles]
    return {"individual": individual}


def _encode_slice(columns: Sequence[Sequence[str]], counts: Sequence[int]) -> dict[str, Any]:
    uniform = counts.count(counts[0]) == len(counts)
    return {
        "domainCount": len(counts),
        "valuesPerLevel": [_encode_values(column) for column in columns],
        "podCounts": {"universal": counts[0]} if uniform else {"individual": list(counts)},
    }


def _is_plain_json(columns: Sequence[Sequence[str]]) -> bool:
    """Whether each character of the values takes one byte of JSON."""
    text = "".join("".join(column) for column in columns)
    return text.isascii() and text.isprintable() and not {'"', "\\"}.intersection(text)


def encode(assignment: TopologyAssignment) -> dict[str, Any]:
    """The v1beta2 `topologyAssignment`: `levels` and `slices`, domains in the given order.

    The list is cut into slices where that saves bytes. The result is never larger than with the
    fewest possible slices.

    Raises:
        AssignmentError: no level or domain; a domain that is duplicate, has another length than
            `levels`, a count below 1 or a value longer than a label value; more levels or pods
            than the schema allows.
    """
    _check(assignment)
    return encode_unchecked(assignment.levels, assignment.domains)


def encode_unchecked(
    levels: Sequence[str], domains: Sequence[tuple[Sequence[str], int]]
) -> dict[str, Any]:
    """As `encode`, also for an assignment that is not valid, such as one with a domain twice.

    Each domain must have one value for each level, and there must be at least one of both.
    """
    columns = list(zip(*(values for values, _ in domains), strict=True))
    counts = [count for _, count in domains]
    starts = slice_starts(columns, counts, max_slices=MAX_SLICES, max_length=SLICE_DOMAINS)
    found = _encode_slices(columns, counts, starts)
    fewest_starts = range(0, len(counts), SLICE_DOMAINS)
    if len(starts) > len(fewest_starts) and not _is_plain_json(columns):
        # The cuts were chosen by characters, not bytes.
        fewest_slices = _encode_slices(columns, counts, fewest_starts)
        found = min(fewest_slices, found, key=lambda slices: len(msgspec.json.encode(slices)))
    return {"levels": list(levels), "slices": found}


def _encode_slices(
    columns: Sequence[Sequence[str]], counts: Sequence[int], starts: Sequence[int]
) -> list[dict[str, Any]]:
    return [
        _encode_slice([column[start:stop] for column in columns], counts[start:stop])
        for start, stop in pairwise([*starts, len(counts)])
    ]


def encoded_size(assignment: TopologyAssignment) -> int:
    """Bytes that the encoded assignment takes in JSON.

    Raises:
        AssignmentError: as `encode`.
    """
    return len(msgspec.json.encode(encode(assignment)))


def _list_of(value: Any, kind: type, path: str) -> list[Any]:
    if not isinstance(value, list | tuple):
        _reject(path, f"{shown(value)}: must be a list")
    bad = next((i for i, item in enumerate(value) if type(item) is not kind), None)
    if bad is not None:
        kinds = {str: "string", int: "whole number"}
        _reject(f"{path}[{bad}]", f"{shown(value[bad])}: must be a {kinds[kind]}")
    return list(value)


def _universal_or_individual(column: Any, path: str) -> tuple[Any, Any]:
    """`(universal, individual)`, exactly one of them not None."""
    if not isinstance(column, Mapping):
        _reject(path, f"{shown(column)}: must be an object")
    universal, individual = column.get("universal"), column.get("individual")
    if (universal is None) == (individual is None):
        found = "neither is" if universal is None else "both are"
        _reject(path, f"{found} set: exactly one of universal and individual must be set")
    return universal, individual


def _checked_text(value: Any, path: str) -> str:
    """A string no longer than a label value."""
    if not isinstance(value, str):
        _reject(path, f"{shown(value)}: must be a string")
    if len(value) > MAX_VALUE:
        _reject(path, f"{shown(value)}: must not be longer than {MAX_VALUE} characters")
    return value


def _decode_values(column: Any, length: int, path: str) -> list[str]:
    universal, individual = _universal_or_individual(column, path)
    if individual is None:
        return [_checked_text(universal, f"{path}.universal")] * length
    path = f"{path}.individual"
    if not isinstance(individual, Mapping):
        _reject(path, f"{shown(individual)}: must be an object")
    prefix, suffix = (
        "" if individual.get(end) is None else _checked_text(individual[end], f"{path}.{end}")
        for end in ("prefix", "suffix")
    )
    roots = _list_of(individual.get("roots"), str, f"{path}.roots")
    if len(roots) != length:
        _reject(f"{path}.roots", f"{len(roots)} entries for domainCount {length}")
    values = [f"{prefix}{root}{suffix}" for root in roots]
    if max(map(len, values)) > MAX_VALUE:
        bad = next(i for i, value in enumerate(values) if len(value) > MAX_VALUE)
        problem = f"{shown(values[bad])}: prefix, root and suffix together must not be longer"
        _reject(f"{path}.roots[{bad}]", f"{problem} than {MAX_VALUE} characters")
    return values


def _decode_counts(column: Any, length: int, path: str) -> list[int]:
    universal, individual = _universal_or_individual(column, path)
    if individual is None:
        _check_count(universal, f"{path}.universal")
        return [universal] * length
    path = f"{path}.individual"
    counts = _list_of(individual, int, path)
    if len(counts) != length:
        _reject(path, f"{len(counts)} entries for domainCount {length}")
    if min(counts) < 1 or max(counts) > MAX_PODS:
        for index, count in enumerate(counts):
            _check_count(count, f"{path}[{index}]")
    return counts


def _check_count(count: Any, path: str) -> None:
    if type(count) is not int or not 1 <= count <= MAX_PODS:
        _reject(path, f"{shown(count)}: must be a whole number from 1 to {MAX_PODS}")


def _is_universal(column: Any) -> bool:
    return isinstance(column, Mapping) and isinstance(column.get("universal"), str)


def _decode_slice(part: Any, width: int, path: str) -> list[tuple[Domain, int]]:
    if not isinstance(part, Mapping):
        _reject(path, f"{shown(part)}: must be an object")
    length = part.get("domainCount")
    if type(length) is not int or not 1 <= length <= SLICE_DOMAINS:
        problem = f"{shown(length)}: must be a whole number from 1 to {SLICE_DOMAINS}"
        _reject(f"{path}.domainCount", problem)
    levels = part.get("valuesPerLevel")
    if not isinstance(levels, list | tuple) or len(levels) != width:
        problem = f"{shown(levels)}: must be a list of one entry per level ({width})"
        _reject(f"{path}.valuesPerLevel", problem)
    if length > 1 and all(map(_is_universal, levels)):
        # Checked before the values are expanded: a few bytes could request any number of them.
        _reject(f"{path}.valuesPerLevel", f"one domain, universal at every level, {length} times")
    columns = [
        _decode_values(column, length, f"{path}.valuesPerLevel[{level}]")
        for level, column in enumerate(levels)
    ]
    counts = _decode_counts(part.get("podCounts"), length, f"{path}.podCounts")
    return list(zip(zip(*columns, strict=True), counts, strict=True))


def decode(wire: Mapping[str, Any]) -> TopologyAssignment:
    """Decode a v1beta2 `topologyAssignment` of any legal shape, in the order of its domains.

    Raises:
        AssignmentError: missing fields, wrong types, lengths that differ, values or lists beyond
            the bounds of the schema, counts below 1, more pods than a PodSet can have, or duplicate
            domains. The message has the path of the field, its value and what it must be.
    """
    levels = _list_of(wire.get("levels"), str, "levels")
    _check_levels(levels)
    slices = wire.get("slices")
    if not isinstance(slices, list | tuple) or not 1 <= len(slices) <= MAX_SLICES:
        _reject("slices", f"{shown(slices)}: must be a list of 1 to {MAX_SLICES} slices")
    domains: list[tuple[Domain, int]] = []
    for index, part in enumerate(slices):
        domains.extend(_decode_slice(part, len(levels), f"slices[{index}]"))
    _check_totals(domains)
    return TopologyAssignment(levels=tuple(levels), domains=tuple(domains))

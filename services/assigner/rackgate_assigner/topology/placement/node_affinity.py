"""The node affinity of a template: Workloads made by hand may carry anything there."""

from __future__ import annotations

from typing import Any

import msgspec

from rackgate.wire.core import PodSpec, View


class _Expression(View, frozen=True, omit_defaults=True):
    key: str = ""
    operator: str = ""
    values: tuple[str, ...] | None = None


class _Term(View, frozen=True, omit_defaults=True):
    match_expressions: tuple[_Expression, ...] | None = None
    match_fields: tuple[_Expression, ...] | None = None


class _Selector(View, frozen=True, omit_defaults=True):
    node_selector_terms: tuple[_Term, ...] | None = None


class _Preference(View, frozen=True, omit_defaults=True):
    weight: int = 0
    preference: _Term | None = None


class _NodeAffinity(View, frozen=True, omit_defaults=True):
    required_during_scheduling_ignored_during_execution: _Selector | None = None
    preferred_during_scheduling_ignored_during_execution: tuple[_Preference, ...] | None = None


class _Affinity(View, frozen=True):
    node_affinity: _NodeAffinity | None = None


def node_affinity(spec: PodSpec) -> dict[str, Any] | None:
    """The NodeAffinity of a pod, None without one; without fields that nobody knows.

    Raises:
        msgspec.ValidationError: it is none that the API server would let through in a pod.
    """
    found = None if spec.affinity is None else msgspec.convert(spec.affinity, _Affinity)
    if found is None or found.node_affinity is None:
        return None
    # What is unknown may be nested without end, and must not get to where it is walked through.
    known: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(found.node_affinity))
    return known or None

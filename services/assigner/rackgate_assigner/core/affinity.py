"""The node affinity of a template: Workloads made by hand may carry anything there."""

from __future__ import annotations

from typing import Any

import msgspec

from rackgate.wire.core import PodSpec, View


class _Expression(View, frozen=True):
    key: str = ""
    operator: str = ""
    values: tuple[str, ...] | None = None


class _Term(View, frozen=True):
    match_expressions: tuple[_Expression, ...] | None = None
    match_fields: tuple[_Expression, ...] | None = None


class _Selector(View, frozen=True):
    node_selector_terms: tuple[_Term, ...] | None = None


class _Preference(View, frozen=True):
    weight: int = 0
    preference: _Term | None = None


class _NodeAffinity(View, frozen=True):
    required_during_scheduling_ignored_during_execution: _Selector | None = None
    preferred_during_scheduling_ignored_during_execution: tuple[_Preference, ...] | None = None


class _Affinity(View, frozen=True):
    node_affinity: _NodeAffinity | None = None


def node_affinity(spec: PodSpec) -> dict[str, Any] | None:
    """The NodeAffinity of a pod as it stands, None without one.

    Raises:
        msgspec.ValidationError: it is none that the API server would let through in a pod.
    """
    if spec.affinity is None or msgspec.convert(spec.affinity, _Affinity).node_affinity is None:
        return None
    found: dict[str, Any] = spec.affinity["nodeAffinity"]
    return found or None

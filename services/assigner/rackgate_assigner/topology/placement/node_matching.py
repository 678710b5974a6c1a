"""Which nodes a pod may run on: taints, node selector, node affinity.

Only if the lowest level is the hostname. Otherwise a leaf has many nodes, and Kueue checks none
of the three there (CAP-06; conformance/tas, section 7).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np

from rackgate.wire.core import PodSpec, Taint, Toleration, View
from rackgate_assigner.topology.model import BoolVector, IntVector, PodSetRequest
from rackgate_assigner.topology.nodes import NAME_COLUMN, Column, int64
from rackgate_assigner.topology.tree import TopologyTree

MAX_WEIGHT = 100
BLOCKING_EFFECTS = ("NoSchedule", "NoExecute")
# Entries of a nodeSelector, tolerations, or expressions of a node affinity.
MAX_SELECTORS = 1000
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED = "preferredDuringSchedulingIgnoredDuringExecution"


@dataclass(frozen=True, slots=True, eq=False)
class Eligibility:
    """Which nodes the pods of one template may use; compared by identity.

    Attributes:
        blocked: shape (nodes,), True where a pod may not run; None if it may run everywhere.
        codes: shape (nodes,): 0 where it may run, else 1 + index into `reasons`.
        reasons: as in a message: `affinity`, `nodeSelector`, `taint "..."`.
        numbers: nodes per reason; a node counts for the first one.
        scores: shape (nodes,): sum of the weights of matching preferred terms, 0 where blocked;
            None if they do not count.
    """

    blocked: BoolVector | None = None
    codes: IntVector | None = None
    reasons: tuple[str, ...] = ()
    numbers: tuple[int, ...] = ()
    scores: IntVector | None = None


ALL_ELIGIBLE = Eligibility()


def match_nodes(
    tree: TopologyTree,
    podset: PodSetRequest,
    flavor_tolerations: Sequence[Toleration],
    *,
    soft_affinity: bool,
    match_every_node: bool = False,
) -> Eligibility:
    """Match all nodes of the tree against a PodSet's template; the result is cached in the tree.

    Args:
        tree: no node is excluded unless its lowest level is the hostname.
        podset: its selector, tolerations and affinity count.
        flavor_tolerations: added by the flavor.
        soft_affinity: score the preferred terms.
        match_every_node: also if a leaf has many nodes.
    """
    if not tree.lowest_is_hostname and not match_every_node:
        return ALL_ELIGIBLE
    affinity = podset.node_affinity or {}
    shape: Hashable = (
        tuple(sorted(podset.node_selector.items())),
        podset.tolerations,
        tuple(flavor_tolerations),
        msgspec.json.encode(affinity) if affinity else b"",
        soft_affinity,
    )
    return tree.memo.get(
        shape,
        lambda: _match_all_nodes(
            tree,
            podset.node_selector,
            affinity,
            (*podset.tolerations, *flavor_tolerations),
            soft_affinity,
        ),
    )


def tolerates(toleration: Toleration, taint: Taint) -> bool:
    """Whether one toleration covers one taint."""
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    match toleration.operator:
        case "Exists":
            return True
        case "" | "Equal":
            return toleration.value == taint.value
        case "Gt":
            return _compare(taint.value, toleration.value) > 0
        case "Lt":
            return _compare(taint.value, toleration.value) < 0
        case _:
            return False


def blocking_taint(taints: Sequence[Taint], tolerations: Sequence[Toleration]) -> Taint | None:
    """The first taint of a node that repels new pods, or None. PreferNoSchedule never does."""
    for taint in taints:
        if taint.effect in BLOCKING_EFFECTS and not any(
            tolerates(toleration, taint) for toleration in tolerations
        ):
            return taint
    return None


def expression_holds(expression: Mapping[str, Any], value: str | None) -> bool:
    """Whether a node selector expression holds for a label's value; None: no such label."""
    values = expression.get("values")
    if not isinstance(values, list | tuple):
        values = []
    match expression.get("operator"):
        case "In":
            return value is not None and value in values
        case "NotIn":
            return value is None or value not in values
        case "Exists":
            return value is not None
        case "DoesNotExist":
            return value is None
        case "Gt":
            return len(values) == 1 and _compare(value, values[0]) > 0
        case "Lt":
            return len(values) == 1 and _compare(value, values[0]) < 0
        case _:
            return False


def match_expression(column: Column, expression: Mapping[str, Any]) -> BoolVector:
    """`expression_holds` for the value of each node, shape (nodes,).

    A user may write many expressions, so each takes an array operation instead of a call for each
    distinct value.
    """
    given = expression.get("values")
    values = [one for one in given if isinstance(one, str)] if isinstance(given, list) else []
    match expression.get("operator"):
        case "In":
            return column.among(values)
        case "NotIn":
            return ~column.among(values)
        case "Exists":
            return ~column.among((None,))
        case "DoesNotExist":
            return column.among((None,))
        case "Gt" | "Lt" as operator:
            limit = int64(values[0]) if len(values) == 1 else None
            if limit is not None:
                valid, numbers = column.integers
                compared = numbers > limit if operator == "Gt" else numbers < limit
                return (valid & compared)[column.codes]
    return np.zeros(len(column.codes), dtype=np.bool_)


def taint_text(taint: Taint) -> str:
    """`KEY=VALUE:EFFECT`, or `KEY:EFFECT` without a value."""
    value = f"={taint.value}" if taint.value else ""
    return f"{taint.key}{value}:{taint.effect}"


def _match_all_nodes(
    tree: TopologyTree,
    selector: Mapping[str, str],
    affinity: Mapping[str, Any],
    tolerations: Sequence[Toleration],
    soft_affinity: bool,
) -> Eligibility:
    codes, reasons = _taint_codes(tree, tolerations)
    if selector:
        matches = np.ones(len(tree.nodes), dtype=np.bool_)
        for key, wanted in selector.items():
            matches &= tree.column(key).among((wanted,))
        reasons.append("nodeSelector")
        codes[(codes == 0) & ~matches] = len(reasons)
    required = affinity.get(_REQUIRED)
    if required is not None:
        fits = np.zeros(len(tree.nodes), dtype=np.bool_)
        for term in _objects(required, "nodeSelectorTerms"):
            fits |= _term_mask(tree, term)
        reasons.append("affinity")
        codes[(codes == 0) & ~fits] = len(reasons)
    blocked = codes != 0
    scores = _scores(tree, affinity, blocked) if soft_affinity else None
    if not blocked.any():
        return ALL_ELIGIBLE if scores is None else Eligibility(scores=scores)
    numbers = np.bincount(codes, minlength=len(reasons) + 1)[1:].tolist()
    return Eligibility(blocked, codes, tuple(reasons), tuple(numbers), scores)


def _taint_codes(
    tree: TopologyTree, tolerations: Sequence[Toleration]
) -> tuple[IntVector, list[str]]:
    reasons: list[str] = []

    def code(taints: tuple[Taint, ...] | None) -> int:
        taint = blocking_taint(taints or (), tolerations)
        if taint is None:
            return 0
        text = f'taint "{taint_text(taint)}"'
        if text not in reasons:
            reasons.append(text)
        return reasons.index(text) + 1

    return tree.column(None).map(code), reasons


def _objects(holder: object, key: str) -> list[Mapping[str, Any]]:
    """The objects of a list field; a template comes from users, so anything else is left out."""
    found = holder.get(key) if isinstance(holder, Mapping) else None
    return [one for one in found if isinstance(one, Mapping)] if isinstance(found, list) else []


def _term_mask(tree: TopologyTree, term: object) -> BoolVector:
    """Nodes for which every expression of a term holds; an empty term matches none."""
    expressions = _objects(term, "matchExpressions")
    fields = _objects(term, "matchFields")
    if not expressions and not fields:
        return np.zeros(len(tree.nodes), dtype=np.bool_)
    mask = np.ones(len(tree.nodes), dtype=np.bool_)
    for expression in expressions:
        mask &= match_expression(tree.column(str(expression.get("key", ""))), expression)
    for expression in fields:
        if expression.get("key") != "metadata.name":
            return np.zeros(len(tree.nodes), dtype=np.bool_)
        mask &= match_expression(tree.column(NAME_COLUMN), expression)
    return mask


def _scores(
    tree: TopologyTree, affinity: Mapping[str, Any], blocked: BoolVector
) -> IntVector | None:
    terms = _objects(affinity, _PREFERRED)
    if not terms:
        return None
    scores = np.zeros(len(tree.nodes), dtype=np.int64)
    for term in terms:
        weight = term.get("weight")
        if isinstance(weight, int) and 0 < weight <= MAX_WEIGHT:
            scores[_term_mask(tree, term.get("preference"))] += weight
    scores[blocked] = 0
    return scores


def _compare(left: object, right: object) -> int:
    """-1, 0 or 1 comparing two decimal integers; 0 also when either is none within 64 bits."""
    a = int64(left)
    b = None if a is None else int64(right)
    return 0 if a is None or b is None else (a > b) - (a < b)


# The typed form of a template's node affinity.


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
    """The NodeAffinity of a pod, without unknown fields; None without one.

    Raises:
        msgspec.ValidationError: the API server would reject it in a pod.
    """
    found = None if spec.affinity is None else msgspec.convert(spec.affinity, _Affinity)
    if found is None or found.node_affinity is None:
        return None
    # Unknown fields may be nested without end, and later code walks through everything.
    known: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(found.node_affinity))
    return known or None


def selector_problem(path: str, spec: PodSpec, affinity: Mapping[str, Any]) -> str | None:
    """Why a template is not matched with nodes: its author could ask for hours of work.

    Args:
        path: of the spec, for the message.
        spec: of the template.
        affinity: of `node_affinity`.
    """
    required = _objects(affinity.get(_REQUIRED), "nodeSelectorTerms")
    preferred = _objects(affinity, _PREFERRED)
    terms = [*required, *(one.get("preference") for one in preferred)]
    expressions = sum(
        len(_objects(term, field))
        for term in terms
        for field in ("matchExpressions", "matchFields")
    )
    found = {
        "nodeSelector": len(spec.node_selector),
        "tolerations": len(spec.tolerations),
        "affinity.nodeAffinity": max(expressions, len(terms)),
    }
    for field, count in found.items():
        if count > MAX_SELECTORS:
            return (
                f"{path}.{field}: {count} entries; at most {MAX_SELECTORS} are matched with nodes"
            )
    return None

"""Label selectors as queues carry them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rackgate_assigner.topology.placement.node_matching import expression_holds

# A label selector knows these four only; `Gt` and `Lt` belong to node selectors.
_OPERATORS = frozenset({"In", "NotIn", "Exists", "DoesNotExist"})


def selects(selector: Mapping[str, Any] | None, labels: Mapping[str, str]) -> bool:
    """Whether a LabelSelector matches labels: None selects nothing, an empty one everything."""
    if selector is None:
        return False
    wanted = selector.get("matchLabels") or {}
    if any(labels.get(key) != value for key, value in wanted.items()):
        return False
    return all(
        expression.get("operator") in _OPERATORS
        and expression_holds(expression, labels.get(expression.get("key", "")))
        for expression in selector.get("matchExpressions") or ()
    )

"""Which pods belong to which group of a list: by selectors, or by the names of the groups."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rackgate.api.names import GANG_GROUP, REPLICATED_JOB_LABEL
from rackgate.gang.levels import Object

# Without selectors, a pod belongs to the group that the first of these labels names.
NAME_LABELS: Final = (
    f"{GANG_GROUP}/group",
    REPLICATED_JOB_LABEL,
    "trainer.kubeflow.org/trainjob-ancestor-step",
)
# All pods have one template, and so the same labels.
_ONE_TEMPLATE: Final = frozenset(
    {
        ("batch", "Job"),
        ("batch", "CronJob"),
        ("apps", "Deployment"),
        ("apps", "ReplicaSet"),
        ("apps", "StatefulSet"),
        ("apps", "DaemonSet"),
    }
)


def are_distinguishable(groups: Sequence[Object], spec: Object) -> bool:
    """Whether each pod can belong to at most one group of a list.

    Args:
        groups: the entries of one list.
        spec: the whole; its controllerRef says which labels the pods have.
    """
    rest = sum("selector" not in group for group in groups)
    if rest <= 1:
        return True
    controller = spec.get("controllerRef", {})
    key = (controller.get("apiGroup", ""), controller.get("kind", ""))
    return rest == len(groups) and key not in _ONE_TEMPLATE

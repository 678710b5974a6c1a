"""ClusterRoles for people, as in `deploy/cluster/users.yaml`."""

from __future__ import annotations

from typing import Final

BATCH_USER: Final = "rackgate-batch-user"
BATCH_ADMIN: Final = "rackgate-batch-admin"
VIEWER: Final = "rackgate-viewer"
OPERATOR: Final = "rackgate-operator"
# The control plane collects the rules of these from roles whose names start with `PARTS`.
AGGREGATED: Final = frozenset({BATCH_USER, BATCH_ADMIN, VIEWER, OPERATOR})
PARTS: Final = "rackgate-users:"
# As Kueue calls them.
KUEUE_ROLES: Final = frozenset(
    {
        "kueue-batch-admin-role",
        "kueue-batch-user-role",
        "kueue-pending-workloads-cq-viewer-role",
        "kueue-pending-workloads-lq-viewer-role",
    }
)


def ask_for(role: str, where: str) -> str:
    """What a user without rights does.

    Args:
        role: ClusterRole that has them.
        where: how it is bound.
    """
    return f'ask an administrator to bind the ClusterRole "{role}" to you {where}'


def is_for_people(name: str) -> bool:
    """Whether a ClusterRole or its binding is for people, and not for a service."""
    return name.startswith(PARTS) or name in AGGREGATED or name in KUEUE_ROLES

"""What jobs of any kind ask for, and what befalls them."""

from __future__ import annotations

from enum import StrEnum


class TopologyMode(StrEnum):
    """What a job asks for."""

    REQUIRED = "required"
    PREFERRED = "preferred"
    UNCONSTRAINED = "unconstrained"
    NONE = "none"


class UserAction(StrEnum):
    """What its user does to a job beside creating it."""

    NONE = "none"
    DELETE = "delete"
    SUSPEND = "suspend"
    DEACTIVATE = "deactivate"
    HOLD = "hold"

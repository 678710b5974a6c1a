"""Feature gates, Kubernetes style: one table of name, default, stage; unknown names refuse."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Stage(StrEnum):
    """How settled a gate is."""

    ALPHA = "alpha"
    BETA = "beta"
    GA = "ga"


@dataclass(frozen=True, slots=True)
class Gate:
    """One feature gate."""

    name: str
    default: bool
    stage: Stage
    purpose: str


GATES: Final = (
    Gate(
        "DeactivateInvalidTopology",
        True,
        Stage.BETA,
        "Deactivate a Workload whose topology request no offered flavor can ever meet.",
    ),
    Gate(
        "RequireTopologyOnAllPodSets",
        False,
        Stage.ALPHA,
        "One template with a topology annotation demands one on every template of the job.",
    ),
)


class UnknownGateError(ValueError):
    """A gate name that is not in the table."""


class FeatureGates:
    """The gates of one process: the table's defaults, overridden by configuration."""

    def __init__(
        self, overrides: Mapping[str, bool] | None = None, table: Iterable[Gate] = GATES
    ) -> None:
        """Apply `overrides` to `table`.

        Raises:
            UnknownGateError: a name that is not in `table`; names the nearest one.
        """
        self._enabled = {gate.name: gate.default for gate in table}
        for name, enabled in (overrides or {}).items():
            self._require(name)
            self._enabled[name] = enabled

    def enabled(self, name: str) -> bool:
        """Whether the gate is on.

        Raises:
            UnknownGateError: `name` is not in the table.
        """
        self._require(name)
        return self._enabled[name]

    def as_dict(self) -> dict[str, bool]:
        """All gates, by name."""
        return dict(self._enabled)

    def _require(self, name: str) -> None:
        if name in self._enabled:
            return
        near = difflib.get_close_matches(name, self._enabled, n=1)
        hint = f' (did you mean "{near[0]}"?)' if near else ""
        known = ", ".join(sorted(self._enabled))
        raise UnknownGateError(f'unknown feature gate "{name}"{hint}; known: {known}')

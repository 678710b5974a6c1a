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
    """One feature gate.

    Attributes:
        price: what an operator pays who turns it on, said when a service starts with it; empty
            when there is nothing to weigh.
    """

    name: str
    default: bool
    stage: Stage
    purpose: str
    price: str = ""


# A required and a preferred level in one request: webhook and assigner must agree on it.
BOTH_LEVELS: Final = "RackgateRequiredAndPreferred"
# Jobs that grow and shrink while they run: webhook, assigner and ungater must agree on them.
ELASTIC_JOBS: Final = "ElasticJobsViaWorkloadSlices"
ELASTIC_INDEXED_JOBS: Final = "RackgateElasticIndexedJobs"
# Pools and workflows of OSMO in the cluster: webhook and assigner, with deploy/osmo.
OSMO_POOLS: Final = "RackgateOsmoPools"
# Jobs whose pods another scheduler places: the webhook alone must know of it.
RENDER_FOR_KAI: Final = "RackgateRenderForKAI"
# Pods name their node beside its label: the ungater alone must know of it.
NODES_BY_NAME: Final = "RackgateNodesByName"
# Quota is held until the pods of a stopped job are gone: the assigner alone must know of it.
HOLD_FOR_TERMINATING: Final = "RackgateHoldQuotaForTerminatingPods"
# Which Workloads hold the head of a StrictFIFO queue: the assigner alone must know of it.
SKIP_IMPOSSIBLE: Final = "RackgateStrictFIFOSkipsImpossible"

GATES: Final = (
    Gate(
        "TopologyAwareScheduling",
        True,
        Stage.BETA,
        "Place pods by topology; off: flavors of a topology count as plain, requests wait.",
    ),
    Gate(
        "TASFailedNodeReplacement",
        True,
        Stage.BETA,
        "Give pods of a broken node another place, and leave the others where they are.",
    ),
    Gate(
        "TASFailedNodeReplacementFailFast",
        True,
        Stage.BETA,
        "Evict a Workload whose broken node has no replacement; off: it runs on, tried again.",
    ),
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
    Gate(
        "TASProfileMixed",
        True,
        Stage.BETA,
        "Least free room first for unconstrained requests; off: best fit for every request.",
    ),
    Gate(
        "TASBalancedPlacement",
        False,
        Stage.ALPHA,
        "Spread preferred requests evenly over as few domains as can be.",
    ),
    Gate(
        "TASRespectNodeAffinityPreferred",
        False,
        Stage.ALPHA,
        "Let preferred node affinity order the domains.",
    ),
    Gate(
        ELASTIC_JOBS,
        False,
        Stage.ALPHA,
        "Let RayClusters that scale themselves take and give back quota replica by replica.",
    ),
    Gate(
        ELASTIC_INDEXED_JOBS,
        False,
        Stage.ALPHA,
        "The same for Indexed Jobs whose parallelism is changed; needs the gate of elastic jobs.",
    ),
    Gate(
        RENDER_FOR_KAI,
        False,
        Stage.ALPHA,
        "Hand Jobs of schedulerName kai-scheduler over to KAI, with their queue and levels.",
    ),
    Gate(
        OSMO_POOLS,
        False,
        Stage.ALPHA,
        "Check OSMO's Pools and Workflows; keep one Topology of KAI's in step with each Pool.",
    ),
    Gate(
        NODES_BY_NAME,
        True,
        Stage.BETA,
        "Let released pods name their node, too, so that the scheduler looks at no other.",
    ),
    Gate(
        HOLD_FOR_TERMINATING,
        True,
        Stage.BETA,
        "Hold quota until the pods of a stopped job are gone; off: until it is inactive, as Kueue.",
    ),
    Gate(
        SKIP_IMPOSSIBLE,
        True,
        Stage.BETA,
        "Let others pass the head of a StrictFIFO queue that does not fit even when all is empty.",
    ),
    # Placements better than the field's default; docs/adr/0013-gates-of-ours.md has the reasons.
    Gate(
        BOTH_LEVELS,
        False,
        Stage.ALPHA,
        "A required level and a finer preferred one together; in webhook and assigner alike.",
    ),
    Gate(
        "RackgateFewestDomains",
        False,
        Stage.ALPHA,
        "Choose several domains exactly: the fewest, then the fewest untouched, then least over.",
        "Few domains come before untouched ones: on 5,120 hosts 5 to 8 % of the racks stayed free "
        "as a whole, where 6 to 9 % do without the gate, and a placement takes 3 to 5 times as "
        "long; docs/adr/0013-gates-of-ours.md.",
    ),
    Gate(
        "RackgateBestFitBelowSlices",
        False,
        Stage.ALPHA,
        "Fill few hosts within the domain of a slice, instead of the smallest hosts first.",
    ),
    Gate(
        "RackgateLeaderRules",
        False,
        Stage.ALPHA,
        "Judge a leader by its own selector, affinity and tolerations, on a host of its own.",
    ),
    Gate(
        "RackgateLeaderRefusals",
        False,
        Stage.ALPHA,
        "Say in a refusal when it is the leader that finds no place.",
    ),
    Gate(
        "RackgateNodesBelowLeaves",
        False,
        Stage.ALPHA,
        "Without a host level, judge the nodes of a leaf one by one: taints, selectors, size.",
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
        table = tuple(table)
        self._enabled = {gate.name: gate.default for gate in table}
        self._prices = {gate.name: gate.price for gate in table if gate.price}
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

    def prices(self) -> dict[str, str]:
        """What the gates that are on cost, by name; those with nothing to weigh are left out."""
        return {name: price for name, price in self._prices.items() if self._enabled[name]}

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

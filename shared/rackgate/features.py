"""Feature gates: one typed table of name, default, stage and purpose, as Kubernetes has them.

Code reads `features.elastic_jobs`; configuration says `ElasticJobsViaWorkloadSlices: true`. To add
a gate, add a field: the settings, `--help` and the checks of names follow from it.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from typing import Any, Final, Self

# Names of gates that other code writes into configurations.
ELASTIC_JOBS: Final = "ElasticJobsViaWorkloadSlices"
ELASTIC_INDEXED_JOBS: Final = "RackgateElasticIndexedJobs"
OSMO_POOLS: Final = "RackgateOsmoPools"
RENDER_FOR_KAI: Final = "RackgateRenderForKAI"
NODES_BY_NAME: Final = "RackgateNodesByName"


class Stage(StrEnum):
    """Maturity of a gate."""

    ALPHA = "alpha"
    BETA = "beta"
    GA = "ga"


@dataclass(frozen=True, slots=True)
class Gate:
    """One feature gate.

    Attributes:
        cost: what an operator pays who turns it on, logged when a service starts with it; empty
            when there is nothing to weigh.
    """

    name: str
    default: bool
    stage: Stage
    purpose: str
    cost: str = ""


def _gate(name: str, default: bool, stage: Stage, purpose: str, cost: str = "") -> Any:
    return field(default=default, metadata={"gate": Gate(name, default, stage, purpose, cost)})


class UnknownGateError(ValueError):
    """A gate name that is not in the table."""


@dataclass(frozen=True, slots=True)
class Features:
    """The feature gates of one process: each field is one gate."""

    topology_aware_scheduling: bool = _gate(
        "TopologyAwareScheduling",
        True,
        Stage.BETA,
        "Place pods by topology; off: flavors of a topology count as plain, requests wait.",
    )
    failed_node_replacement: bool = _gate(
        "TASFailedNodeReplacement",
        True,
        Stage.BETA,
        "Give pods of a broken node another place, and leave the others where they are.",
    )
    failed_node_replacement_fail_fast: bool = _gate(
        "TASFailedNodeReplacementFailFast",
        True,
        Stage.BETA,
        "Evict a Workload whose broken node has no replacement; off: it runs on, tried again.",
    )
    deactivate_invalid_topology: bool = _gate(
        "DeactivateInvalidTopology",
        True,
        Stage.BETA,
        "Deactivate a Workload whose topology request no offered flavor can ever meet.",
    )
    topology_on_all_podsets: bool = _gate(
        "RequireTopologyOnAllPodSets",
        False,
        Stage.ALPHA,
        "One template with a topology annotation demands one on every template of the job.",
    )
    profile_mixed: bool = _gate(
        "TASProfileMixed",
        True,
        Stage.BETA,
        "Least free room first for unconstrained requests; off: best fit for every request.",
    )
    balanced_placement: bool = _gate(
        "TASBalancedPlacement",
        False,
        Stage.ALPHA,
        "Spread preferred requests evenly over as few domains as can be.",
    )
    node_affinity_preferred: bool = _gate(
        "TASRespectNodeAffinityPreferred",
        False,
        Stage.ALPHA,
        "Let preferred node affinity order the domains.",
    )
    elastic_jobs: bool = _gate(
        "ElasticJobsViaWorkloadSlices",
        False,
        Stage.ALPHA,
        "Let RayClusters that scale themselves take and give back quota replica by replica.",
    )
    elastic_indexed_jobs: bool = _gate(
        "RackgateElasticIndexedJobs",
        False,
        Stage.ALPHA,
        "The same for Indexed Jobs whose parallelism is changed; needs the gate of elastic jobs.",
    )
    render_for_kai: bool = _gate(
        "RackgateRenderForKAI",
        False,
        Stage.ALPHA,
        "Hand Jobs of schedulerName kai-scheduler over to KAI, with their queue and levels.",
    )
    osmo_pools: bool = _gate(
        "RackgateOsmoPools",
        False,
        Stage.ALPHA,
        "Check OSMO's Pools and Workflows; keep one Topology of KAI's in step with each Pool.",
    )
    nodes_by_name: bool = _gate(
        "RackgateNodesByName",
        True,
        Stage.BETA,
        "Let released pods name their node, too, so that the scheduler looks at no other.",
    )
    hold_quota_for_terminating_pods: bool = _gate(
        "RackgateHoldQuotaForTerminatingPods",
        True,
        Stage.BETA,
        "Hold quota until the pods of a stopped job are gone; off: until it is inactive, as Kueue.",
    )
    strict_fifo_skips_impossible: bool = _gate(
        "RackgateStrictFIFOSkipsImpossible",
        True,
        Stage.BETA,
        "Let others pass the head of a StrictFIFO queue that does not fit even when all is empty.",
    )
    required_and_preferred: bool = _gate(
        "RackgateRequiredAndPreferred",
        False,
        Stage.ALPHA,
        "A required level and a finer preferred one together; in webhook and assigner alike.",
    )
    fewest_domains: bool = _gate(
        "RackgateFewestDomains",
        False,
        Stage.ALPHA,
        "Choose several domains exactly: the fewest, then the fewest untouched, then least over.",
        "Few domains come before untouched ones: on 5,120 hosts 5 to 8 % of the racks stayed free "
        "as a whole, where 6 to 9 % do without the gate, and a placement takes 3 to 5 times as "
        "long; docs/design/adr/0013-gates-of-ours.md.",
    )
    best_fit_below_slices: bool = _gate(
        "RackgateBestFitBelowSlices",
        False,
        Stage.ALPHA,
        "Fill few hosts within the domain of a slice, instead of the smallest hosts first.",
    )
    leader_rules: bool = _gate(
        "RackgateLeaderRules",
        False,
        Stage.ALPHA,
        "Judge a leader by its own selector, affinity and tolerations, on a host of its own.",
    )
    leader_messages: bool = _gate(
        "RackgateLeaderRefusals",
        False,
        Stage.ALPHA,
        "Say in a refusal when it is the leader that finds no place.",
    )
    nodes_below_leaves: bool = _gate(
        "RackgateNodesBelowLeaves",
        False,
        Stage.ALPHA,
        "Without a host level, judge the nodes of a leaf one by one: taints, selectors, size.",
    )
    skip_reassignment_for_pod_owned: bool = _gate(
        "SkipReassignmentForPodOwnedWorkloads",
        True,
        Stage.BETA,
        "Workloads that one plain Pod owns keep their assignment when a node fails.",
    )
    resize_in_place: bool = _gate(
        "ElasticJobsViaWorkloadSlicesWithTAS",
        False,
        Stage.ALPHA,
        "A PodSet with a previous assignment keeps it and only grows or shrinks.",
    )
    topology_with_cohorts: bool = _gate(
        "TASWithCohorts",
        False,
        Stage.ALPHA,
        "Keep a queue with a cohort and a topology active; nominal quota alone counts.",
    )
    topology_with_preemption: bool = _gate(
        "TASWithPreemption",
        False,
        Stage.ALPHA,
        "Keep a queue with preemption and a topology active; without a topology it preempts.",
    )
    topology_with_multikueue: bool = _gate(
        "TASWithMultiKueue",
        False,
        Stage.ALPHA,
        "Keep a queue with a MultiKueue check and a topology active.",
    )
    topology_with_provisioning_request: bool = _gate(
        "TASWithProvisioningRequest",
        False,
        Stage.ALPHA,
        "Keep a queue with a ProvisioningRequest check and a topology active.",
    )

    @classmethod
    def of(cls, gates: Mapping[str, bool] | None = None) -> Self:
        """The defaults, changed by gates of these names.

        Raises:
            UnknownGateError: a name that is not in the table; names the nearest one.
        """
        gates = gates or {}
        for name in gates:
            _require(name)
        return cls(**{_FIELDS[name]: enabled for name, enabled in gates.items()})

    def costs(self) -> dict[str, str]:
        """What the gates that are on cost, by name; gates without a cost are left out."""
        return {gate.name: gate.cost for gate in GATES if gate.cost and self.as_dict()[gate.name]}

    def as_dict(self) -> dict[str, bool]:
        """All gates, by name."""
        return {name: getattr(self, entry) for name, entry in _FIELDS.items()}


def _require(name: str) -> None:
    if name in _FIELDS:
        return
    near = difflib.get_close_matches(name, _FIELDS, n=1)
    hint = f' (did you mean "{near[0]}"?)' if near else ""
    known = ", ".join(sorted(_FIELDS))
    raise UnknownGateError(f'unknown feature gate "{name}"{hint}; known: {known}')


GATES: Final = tuple(gate.metadata["gate"] for gate in fields(Features))
_FIELDS: Final = {entry.metadata["gate"].name: entry.name for entry in fields(Features)}
# Gates that `place` and `replace` of the placement library read.
PLACEMENT_GATES: Final = frozenset(
    {
        "TASProfileMixed",
        "SkipReassignmentForPodOwnedWorkloads",
        "ElasticJobsViaWorkloadSlicesWithTAS",
        "TASRespectNodeAffinityPreferred",
        "TASBalancedPlacement",
        "RackgateRequiredAndPreferred",
        "RackgateFewestDomains",
        "RackgateBestFitBelowSlices",
        "RackgateLeaderRules",
        "RackgateLeaderRefusals",
        "RackgateNodesBelowLeaves",
    }
)
DEFAULTS: Final = Features()

"""Feature gates: one typed table of name, stage and purpose.

Code reads `features.elastic_jobs`; configuration says `ElasticJobsViaWorkloadSlices: true`. To add
a gate, add a field: the settings, `--help` and the check of names follow from it. As in
Kubernetes, alpha gates are off by default and beta gates are on.
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


@dataclass(frozen=True, slots=True)
class Gate:
    """One feature gate.

    Attributes:
        cost: what the gate costs, logged when a service starts with it on; empty for most.
        placement: whether `place` and `replace` of the placement library read it.
    """

    name: str
    stage: Stage
    purpose: str
    cost: str = ""
    placement: bool = False

    @property
    def default(self) -> bool:
        """Whether the gate is on unless the configuration says otherwise."""
        return self.stage is Stage.BETA


def _alpha(name: str, purpose: str, cost: str = "", *, placement: bool = False) -> Any:
    return _field(Gate(name, Stage.ALPHA, purpose, cost, placement))


def _beta(name: str, purpose: str, *, placement: bool = False) -> Any:
    return _field(Gate(name, Stage.BETA, purpose, placement=placement))


def _field(gate: Gate) -> Any:
    return field(default=gate.default, metadata={"gate": gate})


class UnknownGateError(ValueError):
    """A gate name that is not in the table."""


@dataclass(frozen=True, slots=True)
class Features:
    """The feature gates of one process: each field is one gate."""

    topology_aware_scheduling: bool = _beta(
        "TopologyAwareScheduling",
        "Place pods by topology. Off: topologies of flavors are ignored, topology requests stay "
        "pending.",
    )
    failed_node_replacement: bool = _beta(
        "TASFailedNodeReplacement",
        "Move the pods of an unhealthy node to another node; the other pods keep theirs.",
    )
    failed_node_replacement_fail_fast: bool = _beta(
        "TASFailedNodeReplacementFailFast",
        "Evict a Workload whose unhealthy node has no replacement. Off: it keeps running, with "
        "retries.",
    )
    deactivate_invalid_topology: bool = _beta(
        "DeactivateInvalidTopology",
        "Deactivate a Workload whose topology request no flavor of its queue can ever meet.",
    )
    topology_on_all_podsets: bool = _alpha(
        "RequireTopologyOnAllPodSets",
        "If one template of a job has a topology annotation, require one on every template.",
    )
    profile_mixed: bool = _beta(
        "TASProfileMixed",
        "Least free capacity first for unconstrained requests. Off: best fit for every request.",
        placement=True,
    )
    balanced_placement: bool = _alpha(
        "TASBalancedPlacement",
        "Distribute preferred requests evenly over as few domains as possible.",
        placement=True,
    )
    node_affinity_preferred: bool = _alpha(
        "TASRespectNodeAffinityPreferred",
        "Order the domains by preferred node affinity.",
        placement=True,
    )
    elastic_jobs: bool = _alpha(
        ELASTIC_JOBS,
        "Let RayClusters with an autoscaler acquire and release quota replica by replica.",
    )
    elastic_indexed_jobs: bool = _alpha(
        ELASTIC_INDEXED_JOBS,
        f"The same for Indexed Jobs whose parallelism changes; requires {ELASTIC_JOBS}.",
    )
    render_for_kai: bool = _alpha(
        RENDER_FOR_KAI,
        "Hand Jobs with schedulerName kai-scheduler over to KAI, with their queue and levels.",
    )
    osmo_pools: bool = _alpha(
        OSMO_POOLS,
        "Validate OSMO Pools and Workflows; keep a KAI Topology in sync with each Pool.",
    )
    nodes_by_name: bool = _beta(
        NODES_BY_NAME,
        "Ungated pods also select their node by name, so that the scheduler checks only that node.",
    )
    hold_quota_for_terminating_pods: bool = _beta(
        "RackgateHoldQuotaForTerminatingPods",
        "Charge quota until the pods of a stopped job are gone. Off: until it is inactive, as "
        "Kueue.",
    )
    strict_fifo_skips_impossible: bool = _beta(
        "RackgateStrictFIFOSkipsImpossible",
        "Skip the head of a StrictFIFO queue if it does not fit even on an empty cluster.",
    )
    required_and_preferred: bool = _alpha(
        "RackgateRequiredAndPreferred",
        "Allow a required level with a finer preferred level; set it in webhook and assigner.",
        placement=True,
    )
    fewest_domains: bool = _alpha(
        "RackgateFewestDomains",
        "Choose several domains exactly: fewest domains, then fewest unused ones, then best fit.",
        "Fewer domains take precedence over fewer unused ones: on 5,120 hosts 5 to 8 % of the "
        "racks stayed "
        "completely free, compared with 6 to 9 % without the gate. A placement takes 3 to 5 "
        "times as long; docs/design/adr/0013-gates-of-ours.md.",
        placement=True,
    )
    best_fit_below_slices: bool = _alpha(
        "RackgateBestFitBelowSlices",
        "Fill few hosts within the domain of a slice, instead of the smallest hosts first.",
        placement=True,
    )
    leader_rules: bool = _alpha(
        "RackgateLeaderRules",
        "Place a leader by its own node selector, affinity and tolerations, on a separate host.",
        placement=True,
    )
    leader_messages: bool = _alpha(
        "RackgateLeaderRefusals",
        "Say in the pending message when it is the leader that does not fit.",
        placement=True,
    )
    nodes_below_leaves: bool = _alpha(
        "RackgateNodesBelowLeaves",
        "Without a host level, check each node of a leaf: taints, selectors, capacity.",
        placement=True,
    )
    skip_reassignment_for_pod_owned: bool = _beta(
        "SkipReassignmentForPodOwnedWorkloads",
        "Workloads owned by a single plain Pod keep their assignment when a node fails.",
        placement=True,
    )
    resize_in_place: bool = _alpha(
        "ElasticJobsViaWorkloadSlicesWithTAS",
        "A PodSet with a previous assignment keeps it, and only grows or shrinks.",
        placement=True,
    )
    topology_with_cohorts: bool = _alpha(
        "TASWithCohorts",
        "Keep a queue with a cohort and a topology active; only nominal quota counts.",
    )
    topology_with_preemption: bool = _alpha(
        "TASWithPreemption",
        "Keep a queue with preemption and a topology active; it preempts only without a topology.",
    )
    topology_with_multikueue: bool = _alpha(
        "TASWithMultiKueue", "Keep a queue with a MultiKueue check and a topology active."
    )
    topology_with_provisioning_request: bool = _alpha(
        "TASWithProvisioningRequest",
        "Keep a queue with a ProvisioningRequest check and a topology active.",
    )

    @classmethod
    def of(cls, gates: Mapping[str, bool] | None = None) -> Self:
        """The defaults, overridden by gates of these names.

        Raises:
            UnknownGateError: a name that is not in the table; the message suggests the nearest.
        """
        gates = gates or {}
        for name in gates:
            _require_known(name)
        return cls(**{_FIELDS[name]: enabled for name, enabled in gates.items()})

    def costs(self) -> dict[str, str]:
        """Cost by name, of the gates that are on and have one."""
        enabled = self.as_dict()
        return {gate.name: gate.cost for gate in GATES if gate.cost and enabled[gate.name]}

    def as_dict(self) -> dict[str, bool]:
        """All gates, by name."""
        return {name: getattr(self, entry) for name, entry in _FIELDS.items()}


def _require_known(name: str) -> None:
    if name in _FIELDS:
        return
    near = difflib.get_close_matches(name, _FIELDS, n=1)
    hint = f' (did you mean "{near[0]}"?)' if near else ""
    known = ", ".join(sorted(_FIELDS))
    raise UnknownGateError(f'unknown feature gate "{name}"{hint}; known: {known}')


GATES: Final = tuple(entry.metadata["gate"] for entry in fields(Features))
PLACEMENT_GATES: Final = frozenset(gate.name for gate in GATES if gate.placement)
DEFAULTS: Final = Features()
_FIELDS: Final = {entry.metadata["gate"].name: entry.name for entry in fields(Features)}

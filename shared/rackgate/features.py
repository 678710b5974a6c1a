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

from rackgate.kueue_gates import KUEUE_GATES

# Names of gates that other code writes into configurations.
ELASTIC_JOBS: Final = "ElasticJobsViaWorkloadSlices"
ELASTIC_INDEXED_JOBS: Final = "RackgateElasticIndexedJobs"
OSMO_POOLS: Final = "RackgateOsmoPools"
RENDER_FOR_KAI: Final = "RackgateRenderForKAI"
WORKLOAD_REV_N: Final = "WorkloadRevN"
GANG_SCHEDULING: Final = "GangScheduling"
GANG_NESTED_PLACEMENT: Final = "GangNestedPlacement"
NATIVE_POD_GROUPS: Final = "NativePodGroups"
NODES_BY_NAME: Final = "RackgateNodesByName"
POD_GROUPS: Final = "RackgatePodGroups"


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


class GateError(ValueError):
    """A gate that cannot be set so; the message says what to do."""


class UnknownGateError(GateError):
    """A gate name that is not in the table."""


class FixedGateError(GateError):
    """A gate of Kueue, with a value that Rackgate cannot follow."""


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
    visibility_on_demand: bool = _beta(
        "VisibilityOnDemand",
        "Serve the positions of pending Workloads as API visibility.kueue.x-k8s.io.",
    )
    admission_fair_sharing: bool = _beta(
        "AdmissionFairSharing",
        "Order the LocalQueues of a ClusterQueue by their usage over time, if its admissionScope "
        "says so and admissionFairSharing is configured.",
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
    local_queue_defaulting: bool = _beta(
        "LocalQueueDefaulting",
        "A job without a queue label gets the LocalQueue `default` of its namespace, if it exists; "
        "needs the component deploy/unlabelled.",
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
        OSMO_POOLS, "Validate OSMO Pools and Workflows; keep a KAI Topology in sync with each Pool."
    )
    pod_groups: bool = _alpha(
        POD_GROUPS,
        "Manage plain pods with a queue label, alone and in groups; needs the component "
        "deploy/pods.",
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
    sticky_preemptors: bool = _beta(
        "RackgateStickyPreemptors",
        "Decide about a Workload for which others were preempted before the heads of other "
        "ClusterQueues, and admit those behind it into what it does not need. Off: in Kueue's "
        "order, in which the preempted Workload may take the quota back, and its queue waits.",
    )
    no_mutual_preemption: bool = _beta(
        "RackgateNoMutualPreemption",
        "With fair sharing, preempt no Workload that could reclaim its quota from the preemptor at "
        "once, and by LessThanInitialShare none that was preempted before. Off: as Kueue, where "
        "Workloads may preempt each other without end.",
    )
    smallest_disruption: bool = _alpha(
        "RackgateSmallestDisruption",
        "Preempt for a domain the Workloads with the fewest pods, then the least run time lost. "
        "Off: in Kueue's order.",
    )
    backfill: bool = _alpha(
        "RackgateBackfill",
        "In a StrictFIFO queue, admit Workloads ahead of a head that does not fit, if its expected "
        "start does not change. If running Workloads end early, the head may start later than "
        "without the gate, but not after its expected start.",
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
    topology_with_cohorts: bool = _beta(
        "TASWithCohorts",
        "Let a queue with a topology share quota in a cohort. Off: such a queue is inactive.",
    )
    topology_with_preemption: bool = _beta(
        "TASWithPreemption",
        "Let a queue with a topology preempt Workloads for domains. Off: such a queue is inactive.",
    )
    topology_with_multikueue: bool = _alpha(
        "TASWithMultiKueue", "Keep a queue with a MultiKueue check and a topology active."
    )
    topology_with_provisioning_request: bool = _alpha(
        "TASWithProvisioningRequest",
        "Keep a queue with a ProvisioningRequest check and a topology active.",
    )

    gang_scheduling: bool = _alpha(
        GANG_SCHEDULING,
        "Start the pods of a gang together or not at all. Set it in all services, with the "
        "component deploy/gangs.",
    )
    gang_nested_placement: bool = _alpha(
        GANG_NESTED_PLACEMENT,
        "Place the groups of a gang in domains that they share, level by level. Off: a Workload "
        "that needs this stays pending.",
    )
    native_pod_groups: bool = _alpha(
        NATIVE_POD_GROUPS,
        "Let kube-scheduler bind the pods of a gang together, by a PodGroup for each, where the "
        f"cluster serves them; requires {GANG_SCHEDULING} and the component deploy/native-gangs.",
    )
    workload_rev_n: bool = _alpha(
        WORKLOAD_REV_N,
        "Accept fields of RevN in the Workload of gangs. The webhook and `rackgate gang` read it.",
    )

    @classmethod
    def of(cls, gates: Mapping[str, bool] | None = None) -> Self:
        """The defaults, overridden by gates of these names.

        Gates of Kueue that ask for what Rackgate does anyway are accepted, see `KUEUE_GATES`.

        Raises:
            UnknownGateError: a name that is not in the table; the message suggests the nearest.
            FixedGateError: a gate of Kueue that asks for something else.
        """
        gates = gates or {}
        for name, enabled in gates.items():
            _require_settable(name, enabled)
        own = {_FIELDS[name]: enabled for name, enabled in gates.items() if name in _FIELDS}
        return cls(**own)

    def costs(self) -> dict[str, str]:
        """Cost by name, of the gates that are on and have one."""
        enabled = self.as_dict()
        return {gate.name: gate.cost for gate in GATES if gate.cost and enabled[gate.name]}

    def as_dict(self) -> dict[str, bool]:
        """All gates, by name."""
        return {name: getattr(self, entry) for name, entry in _FIELDS.items()}


def without_effect(gates: Mapping[str, bool]) -> dict[str, str]:
    """Notes by name, of the gates that no service reads: some of Kueue's."""
    notes = {name: gate.note for name, gate in KUEUE_GATES.items()}
    return {name: notes[name] for name in sorted(gates) if name in notes}


def _require_settable(name: str, enabled: bool) -> None:
    if name in _FIELDS:
        return
    if name in KUEUE_GATES:
        if problem := KUEUE_GATES[name].problem(name, enabled):
            raise FixedGateError(problem)
        return
    near = difflib.get_close_matches(name, [*_FIELDS, *KUEUE_GATES], n=1)
    hint = f' (did you mean "{near[0]}"?)' if near else ""
    known = ", ".join(sorted(_FIELDS))
    raise UnknownGateError(f'unknown feature gate "{name}"{hint}; known: {known}')


GATES: Final = tuple(entry.metadata["gate"] for entry in fields(Features))
PLACEMENT_GATES: Final = frozenset(gate.name for gate in GATES if gate.placement)
DEFAULTS: Final = Features()
_FIELDS: Final = {entry.metadata["gate"].name: entry.name for entry in fields(Features)}

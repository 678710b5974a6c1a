"""Feature gates of placement, by their Kubernetes-style names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Gates:
    """Which variants of placement are on.

    Attributes:
        mixed_profile: least free for unconstrained requests; best fit everywhere when off.
        skip_pod_owned: Workloads owned by one plain pod keep their assignment when a node breaks.
        resize: a PodSet with a previous assignment keeps it and only grows or shrinks.
        soft_affinity: preferred node affinity orders domains.
        balanced: preferred requests spread evenly where they can.
        required_and_preferred: both levels of one request count.
        fewest_domains: several domains are chosen exactly: fewest, then fewest untouched ones.
        best_fit_below_slices: best fit also within the domains of slices.
        leader_rules: a leader goes by its own selector, affinity and tolerations.
        leader_refusals: a refusal says when it is the leader that finds no place.
        nodes_below_leaves: without a host level, nodes are judged one by one all the same.
    """

    mixed_profile: bool = True
    skip_pod_owned: bool = True
    resize: bool = False
    soft_affinity: bool = False
    balanced: bool = False
    required_and_preferred: bool = False
    fewest_domains: bool = False
    best_fit_below_slices: bool = False
    leader_rules: bool = False
    leader_refusals: bool = False
    nodes_below_leaves: bool = False


# Also asked for where requests are checked, before any placement.
GATE_BOTH_LEVELS: Final = "RackgateRequiredAndPreferred"

GATE_FIELDS = {
    "TASProfileMixed": "mixed_profile",
    "SkipReassignmentForPodOwnedWorkloads": "skip_pod_owned",
    "ElasticJobsViaWorkloadSlicesWithTAS": "resize",
    "TASRespectNodeAffinityPreferred": "soft_affinity",
    "TASBalancedPlacement": "balanced",
    # Gates of ours: answers that are better than the field's, each described in ADR 13.
    GATE_BOTH_LEVELS: "required_and_preferred",
    "RackgateFewestDomains": "fewest_domains",
    "RackgateBestFitBelowSlices": "best_fit_below_slices",
    "RackgateLeaderRules": "leader_rules",
    "RackgateLeaderRefusals": "leader_refusals",
    "RackgateNodesBelowLeaves": "nodes_below_leaves",
}


def read_gates(gates: Mapping[str, bool] | None) -> Gates:
    """Defaults with the named gates changed.

    Raises:
        ValueError: a name that is no gate of placement.
    """
    unknown = sorted(set(gates or {}) - set(GATE_FIELDS))
    if unknown:
        raise ValueError(
            f'unknown feature gate "{unknown[0]}" (known: {", ".join(sorted(GATE_FIELDS))})'
        )
    return Gates(**{GATE_FIELDS[name]: on for name, on in (gates or {}).items()})

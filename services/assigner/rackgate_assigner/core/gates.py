"""Feature gates of placement, by their Kubernetes-style names."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Gates:
    """Which variants of placement are on.

    Attributes:
        mixed_profile: least free for unconstrained requests; best fit everywhere when off.
        skip_pod_owned: Workloads owned by one plain pod keep their assignment when a node breaks.
        resize: a PodSet with a previous assignment keeps it and only grows or shrinks.
        soft_affinity: preferred node affinity orders domains.
        balanced: preferred requests spread evenly where they can.
    """

    mixed_profile: bool = True
    skip_pod_owned: bool = True
    resize: bool = False
    soft_affinity: bool = False
    balanced: bool = False


GATE_FIELDS = {
    "TASProfileMixed": "mixed_profile",
    "SkipReassignmentForPodOwnedWorkloads": "skip_pod_owned",
    "ElasticJobsViaWorkloadSlicesWithTAS": "resize",
    "TASRespectNodeAffinityPreferred": "soft_affinity",
    "TASBalancedPlacement": "balanced",
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

"""Kueue's own load for its scheduler, as its repository describes it, and the figures it publishes.

Source: `test/performance/scheduler/configs` of Kueue, `baseline` and `tas`. Each queue gets streams
of Workloads of one class; a stream creates one Workload after each interval.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

COHORTS: Final = 5
QUEUES_PER_COHORT: Final = 6
NOMINAL_CPU: Final = 20
BORROWING_CPU: Final = 100
RACKS: Final = 10
NODES_PER_RACK: Final = 64
NODE_CPU: Final = 96


@dataclass(frozen=True, slots=True)
class WorkloadClass:
    """Workloads of one class.

    Attributes:
        pods: of one Workload.
        pod_mcpu: request of one pod, in millicores.
        run_s: from its admission to its end.
        constraint: of the rack level: "required", "preferred", "balanced", or "" for none.
            Balanced Workloads have slices, each of which needs one rack.
        slice_size: pods of a slice; 0 without slices.
    """

    name: str
    pods: int
    pod_mcpu: int
    run_s: float
    priority: int
    constraint: str = ""
    slice_size: int = 0

    @property
    def cpu(self) -> float:
        """CPUs of one Workload."""
        return self.pods * self.pod_mcpu / 1000


@dataclass(frozen=True, slots=True)
class Stream:
    """Workloads of one class that one queue gets."""

    of: WorkloadClass
    count: int
    interval_s: float

    @property
    def names(self) -> list[str]:
        """Names of its Workloads, in order of creation."""
        return [f"{self.of.name}-{index:05}" for index in range(self.count)]


@dataclass(frozen=True, slots=True)
class _Size:
    """A size of Workloads; `thirds` are the counts of required, preferred and balanced ones."""

    name: str
    count: int
    thirds: tuple[int, int, int]
    interval_s: float
    run_s: float
    priority: int
    cpu: int
    pods: int
    pod_mcpu: int
    slice_size: int


_SIZES: Final = (
    _Size("small", 350, (120, 120, 110), 0.1, 0.2, 50, 1, 2, 500, 1),
    _Size("medium", 100, (34, 33, 33), 0.5, 0.5, 100, 5, 4, 1250, 2),
    _Size("large", 50, (17, 17, 16), 1.2, 1.0, 200, 20, 8, 2500, 4),
)
CONSTRAINTS: Final = ("required", "preferred", "balanced")


def scaled(count: int, scale: float) -> int:
    """A share of a count, rounded, and at least one."""
    return max(1, int(count * scale + 0.5))


def streams(*, topology: bool, scale: float = 1.0) -> list[Stream]:
    """What every queue gets.

    Args:
        topology: with requests for racks, in nine streams instead of three.
        scale: share of the counts; intervals stay as they are.
    """
    found = []
    for size in _SIZES:
        if not topology:
            plain = WorkloadClass(size.name, 1, size.cpu * 1000, size.run_s, size.priority)
            found.append(Stream(plain, scaled(size.count, scale), size.interval_s))
            continue
        for constraint, count in zip(CONSTRAINTS, size.thirds, strict=True):
            asked = WorkloadClass(
                f"{size.name}-{constraint}",
                size.pods,
                size.pod_mcpu,
                size.run_s,
                size.priority,
                constraint,
                size.slice_size if constraint == "balanced" else 0,
            )
            found.append(Stream(asked, scaled(count, scale), size.interval_s))
    return found


def creation_s(parts: Sequence[Stream]) -> float:
    """Seconds until the last Workload is created: no run takes less."""
    return max(part.count * part.interval_s for part in parts)


def quota_s(parts: Sequence[Stream]) -> float:
    """Seconds that the Workloads of a queue take on its nominal quota without any gap.

    All queues get the same, so borrowing does not shorten it.
    """
    return sum(part.count * part.of.cpu * part.of.run_s for part in parts) / NOMINAL_CPU


@dataclass(frozen=True, slots=True)
class Published:
    """What Kueue publishes for the whole load.

    Attributes:
        wall_s: of 15,000 Workloads.
        use: mean share of the nominal quota in use.
        to_admission_s: mean time to admission, by size. With a topology, the mean of the three
            constraints, which differ by less than 5 %.
    """

    wall_s: float
    use: float
    to_admission_s: dict[str, float]


# Means in the comments of `rangespec.yaml`, Kueue v0.19.2.
PUBLISHED: Final = {
    False: Published(351, 0.559, {"small": 215.5, "medium": 76.8, "large": 16.5}),
    True: Published(401, 0.624, {"small": 243.6, "medium": 106.6, "large": 39.0}),
}

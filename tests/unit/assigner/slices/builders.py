"""Parents, slices and grants in few words: `a` is the PodSet unless told otherwise."""

from __future__ import annotations

from collections.abc import Mapping

from rackgate.topology.assignment import TopologyAssignment
from rackgate.wire.kueue import MergedSlice
from rackgate_assigner.workload.decisions import Assignment, PodSetAssignment
from rackgate_assigner.workload_slices.model import Parent, Phase, Slice

CPU = 1000


def places(**racks: int) -> TopologyAssignment:
    """An assignment by rack, in this order."""
    return TopologyAssignment(("rack",), tuple(((name,), count) for name, count in racks.items()))


def part(
    count: int,
    topology: TopologyAssignment | None = None,
    *,
    podset: str = "a",
    flavor: str = "f",
) -> PodSetAssignment:
    """What a PodSet was given; 1 cpu for each pod."""
    return PodSetAssignment(podset, {"cpu": flavor}, {"cpu": count * CPU}, count, topology)


def parent(
    count: int,
    *,
    asked_before: int | None = None,
    phase: Phase = Phase.RUNNING,
    merged: tuple[str, ...] = (),
    topology: TopologyAssignment | None = None,
    others: Mapping[str, int] | None = None,
) -> Parent:
    """A Workload `job` with one PodSet of `count` granted pods, and `others`."""
    counts = {"a": count if asked_before is None else asked_before, **(others or {})}
    podsets = [part(count, topology)]
    podsets += [part(number, podset=name) for name, number in (others or {}).items()]
    held = phase in (Phase.RUNNING, Phase.EVICTING)
    return Parent(
        "job",
        phase,
        counts,
        Assignment("cq", tuple(podsets)) if held else None,
        tuple(MergedSlice(uid, "a") for uid in merged),
    )


def waiting(ordinal: int, count: int = 1, *, podset: str = "a", **more: object) -> Slice:
    """A slice that waits; its uid is `u<ordinal>`."""
    name = f"job-{podset}-{ordinal}"
    return Slice(name, f"u{ordinal}", podset, ordinal, count, **more)  # type: ignore[arg-type]  # fields by name


def admitted(
    ordinal: int,
    count: int = 1,
    topology: TopologyAssignment | None = None,
    *,
    podset: str = "a",
    flavor: str = "f",
    **more: object,
) -> Slice:
    """A slice that holds something."""
    assignment = part(count, topology, podset=podset, flavor=flavor)
    return waiting(ordinal, count, podset=podset, assignment=assignment, **more)

"""A job that is resized at random, the Workloads of its family, and all that act on them.

The API server is the end of a log: every write appends a state, bound to the version it was
judged by. The slice controller and the ungater each see an earlier state of that log, as one watch
shows it; the job comes by a watch of its own. What holds of any write is checked as it happens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial

from rackgate.jobframework.generic_job import RequestedCount
from rackgate.topology.assignment import Domain, TopologyAssignment
from rackgate.wire.kueue import MergedSlice
from rackgate_assigner.workload.decisions import Assignment, PodSetAssignment
from rackgate_assigner.workload_slices.merge_plan import ParentUpdate
from rackgate_assigner.workload_slices.model import NewSlice, Parent, Phase, Slice, admitted_pods
from rackgate_assigner.workload_slices.resize_plan import Plan, plan_resize, progress

HEAD, TAS, PLAIN = "head", "a", "b"
STEPS = {HEAD: 1, TAS: 2, PLAIN: 1}
RACKS = ("r0", "r1", "r2")
QUOTA = 24
CPU = 1000


@dataclass(frozen=True)
class Family:
    """One state: the parent's fields and all slices by name."""

    counts: Mapping[str, int]
    version: int = 0
    assignment: Assignment | None = None
    merged: tuple[MergedSlice, ...] = ()
    evicted: bool = False
    slices: Mapping[str, tuple[int, Slice]] = field(default_factory=dict)

    @property
    def phase(self) -> Phase:
        if self.assignment is None:
            return Phase.IDLE
        return Phase.EVICTING if self.evicted else Phase.RUNNING

    @property
    def parent(self) -> Parent:
        return Parent("job", self.phase, self.counts, self.assignment, self.merged)

    @property
    def pieces(self) -> list[Slice]:
        return [piece for _, piece in self.slices.values()]

    def held(self) -> dict[str, int]:
        """Pods that quota is taken for: the rule of SLC-21, whoever looks at it, and when."""
        held = dict.fromkeys(self.counts, 0)
        for part in self.assignment.podsets if self.assignment else ():
            held[part.name] += part.count
        settled = {entry.uid for entry in self.merged}
        for piece in self.pieces:
            if piece.assignment is not None and piece.uid not in settled:
                held[piece.podset] += piece.assignment.count
        return held


def given(podset: str, count: int, racks: tuple[str, ...] = ("r0",)) -> PodSetAssignment:
    """A assignment of so many pods, spread over racks when the PodSet has a topology."""
    topology = None
    if podset == TAS and count:
        used: dict[Domain, int] = {}
        for index in range(count):
            rack = (racks[index % len(racks)],)
            used[rack] = used.get(rack, 0) + 1
        topology = TopologyAssignment(("rack",), tuple(used.items()))
    return PodSetAssignment(podset, {"cpu": "f"}, {"cpu": count * CPU}, count, topology)


class Refused(Exception):  # noqa: N818 - an answer of the server, not a fault of the test
    """409 or 404: the object is not as it was judged."""


class World:
    """See the module."""

    def __init__(self, asked: Mapping[str, int]) -> None:
        self.asked_log = [{HEAD: 1, **asked}]
        counts = dict(self.asked_log[0])
        assignment = Assignment("cq", tuple(given(name, count) for name, count in counts.items()))
        self.log = [Family(counts, assignment=assignment)]
        self.seen, self.job_seen, self.ungater_seen = 0, 0, 0
        self.others = 0
        self.uids = 0
        self.pods = {name: [0, 0] for name in counts}  # gated, ungated

    @property
    def now(self) -> Family:
        return self.log[-1]

    @property
    def asked(self) -> dict[str, int]:
        return self.asked_log[-1]

    # The API server.

    def _append(self, after: Family, expected: Mapping[str, int]) -> None:
        """A new state; `expected` is by how much each PodSet's held pods change."""
        before = self.now.held()
        self.log.append(after)
        changes = {name: count - before[name] for name, count in after.held().items()}
        assert changes == {**dict.fromkeys(before, 0), **expected}
        self.check()

    def _newer(self) -> Family:
        return replace(self.now, version=self.now.version + 1)

    def _put(self, piece: Slice, expected: Mapping[str, int] | None = None) -> None:
        version = self.now.slices.get(piece.name, (0, piece))[0] + 1
        after = replace(self.now, slices={**self.now.slices, piece.name: (version, piece)})
        self._append(after, expected or {})

    def _judged(self, name: str, view: Family) -> Slice:
        """The slice as it is now; it must be as the view has it."""
        found = self.now.slices.get(name)
        if found is None or found != view.slices[name]:
            raise Refused
        return found[1]

    def settle(self, view: Family, settle: ParentUpdate) -> None:
        if view.version != self.now.version:
            raise Refused
        lost = dict.fromkeys(self.now.counts, 0)
        for name, count in (settle.scaled_down or {}).items():
            lost[name] -= count
        for piece in settle.withdrawn:
            assert piece.evicted_or_finished
            lost[piece.podset] -= piece.count
        known = {entry.uid for entry in self.now.merged}
        assert not known & {piece.uid for piece in settle.newly_merged}, "folded twice"
        after = replace(self._newer(), assignment=settle.assignment, merged=settle.merged)
        self._append(after, lost)

    def follow(self, view: Family, counts: Mapping[str, int]) -> None:
        if view.version != self.now.version:
            raise Refused
        for part in self.now.assignment.podsets if self.now.assignment else ():
            assert counts[part.name] <= max(part.count, self.now.counts[part.name]), "schema"
        self._append(replace(self._newer(), counts=dict(counts)), {})

    def create(self, new: NewSlice) -> None:
        if new.name in self.now.slices:
            raise Refused
        self.uids += 1
        ordinal = int(new.name.rpartition("-")[2])
        self._put(Slice(new.name, f"u{self.uids}", new.podset, ordinal, new.count))

    def delete(self, name: str, view: Family) -> None:
        self._put(replace(self._judged(name, view), deleting=True))

    def release(self, name: str, view: Family) -> None:
        piece = self._judged(name, view)
        assert piece.deleting
        left = {key: found for key, found in self.now.slices.items() if key != name}
        after = replace(self.now, slices=left)
        loses = self.now.held()[piece.podset] - after.held()[piece.podset]
        assert not loses or self.now.assignment is None, "quota of a running job went with a slice"
        self._append(after, {piece.podset: -loses})

    # Users, the cycle and the job controller.

    def scale(self, podset: str, replicas: int) -> None:
        self.asked_log.append({**self.asked, podset: replicas * STEPS[podset]})

    def admit(self, pick: int, rack: int) -> None:
        """The scheduling cycle: it knows what is held, and what the parent's state is."""
        waiting = [piece for piece in self.now.pieces if piece.is_pending]
        if not waiting or self.now.phase is not Phase.RUNNING:
            return
        piece = waiting[pick % len(waiting)]
        if sum(self.now.held().values()) + self.others + piece.count > QUOTA:
            return
        part = given(piece.podset, piece.count, (RACKS[rack], RACKS[(rack + 1) % 3]))
        self._put(replace(piece, assignment=part), {piece.podset: piece.count})

    def compete(self, pods: int) -> None:
        """Another job takes what is free, or gives it back."""
        free = QUOTA - sum(self.now.held().values())
        self.others = max(0, min(pods, free))

    def evict_slice(self, pick: int) -> None:
        held = [
            piece
            for piece in self.now.pieces
            if piece.assignment is not None and not piece.evicted_or_finished
        ]
        if held:
            self._put(replace(held[pick % len(held)], evicted_or_finished=True))

    def remove_slice(self, pick: int) -> None:
        """A user deletes a slice; the finalizer keeps it."""
        here = [piece for piece in self.now.pieces if not piece.deleting]
        if here:
            self._put(replace(here[pick % len(here)], deleting=True))

    def evict(self) -> None:
        if self.now.phase is Phase.RUNNING:
            self._append(replace(self._newer(), evicted=True), {})

    def stop(self) -> None:
        """The job has stopped: no pod is left, and the reservation is given back."""
        if self.now.phase is not Phase.EVICTING or self.now.assignment is None:
            return
        self.pods = {name: [0, 0] for name in self.pods}
        lost = {part.name: -part.count for part in self.now.assignment.podsets}
        self._append(replace(self._newer(), assignment=None), lost)

    def admit_anew(self) -> None:
        """In the size that the job has, when the slice controller says that it is in step."""
        if self.now.assignment is not None or self.view.slices:
            return
        if self.view.version != self.now.version:
            return
        counts = dict(self.asked)
        if sum(counts.values()) + sum(self.now.held().values()) + self.others > QUOTA:
            return
        assignment = Assignment(
            "cq", tuple(given(name, count, RACKS) for name, count in counts.items())
        )
        after = replace(self._newer(), counts=counts, assignment=assignment, evicted=False)
        self._append(after, counts)

    # The slice controller: nothing is remembered between two looks.

    @property
    def view(self) -> Family:
        return self.log[self.seen]

    def deliver(self, count: int) -> None:
        self.seen = min(self.seen + count, len(self.log) - 1)
        self.job_seen = min(self.job_seen + count, len(self.asked_log) - 1)

    def plan(self) -> Plan:
        sizes = self.asked_log[self.job_seen]
        asked = {name: RequestedCount(pods, STEPS[name]) for name, pods in sizes.items()}
        progress(asked, self.view.parent, self.view.pieces)
        return plan_resize(asked, self.view.parent, self.view.pieces)

    def look(self, writes: int = 1000) -> bool:
        """Plan, and send so many of the writes before dying; whether there was any."""
        found = list(self._writes(self.view, self.plan()))
        for write in found[:writes]:
            try:
                write()
            except Refused:
                continue
        return bool(found)

    def _writes(self, view: Family, plan: Plan) -> Iterator[Callable[[], None]]:
        if plan.merge is not None:
            yield partial(self.settle, view, plan.merge)
        if plan.count_updates is not None:
            yield partial(self.follow, view, plan.count_updates)
        yield from (partial(self.create, new) for new in plan.create)
        yield from (partial(self.delete, piece.name, view) for piece in plan.delete)
        yield from (partial(self.release, piece.name, view) for piece in plan.release)

    # Pods.

    def make_pods(self) -> None:
        """The operator makes gated pods, and deletes what is too many."""
        for name, wanted in self.asked.items():
            ungated = min(self.pods[name][1], wanted)
            self.pods[name] = [wanted - ungated, ungated]

    def ungate(self, behind: int) -> None:
        """The ungater releases what its view grants, less what is there (SLC-14)."""
        self.ungater_seen = max(self.ungater_seen, len(self.log) - 1 - behind)
        view = self.log[self.ungater_seen]
        for name, count in admitted_pods(view.parent, view.pieces).items():
            gated, ungated = self.pods[name]
            room = min(gated, max(count - ungated, 0))
            self.pods[name] = [gated - room, ungated + room]
            assert not room or ungated + room <= view.held()[name]

    # What holds at any time, and in the end.

    def check(self) -> None:
        family = self.now
        held = family.held()
        assert sum(held.values()) + self.others <= QUOTA, "quota is given twice"
        may_run = admitted_pods(family.parent, family.pieces)
        assert all(count <= held[name] for name, count in may_run.items())
        for part in family.assignment.podsets if family.assignment else ():
            assert part.usage == {"cpu": part.count * CPU}
            assert part.name != HEAD or part.count == 1
            if part.name == TAS:
                assert part.count == (part.topology.count if part.topology else 0)

    def converge(self) -> None:
        """Everybody goes on, nothing dies: the end is the size of the job and nothing else."""
        self.others = 0
        for _ in range(80):
            self.deliver(10_000)
            busy = self.look()
            self.stop()
            self.deliver(10_000)
            self.admit_anew()
            for _ in range(len(self.now.slices)):
                self.admit(0, 0)
            self.make_pods()
            self.ungate(0)
            if not busy and not self.now.slices and self.now.phase is Phase.RUNNING:
                break
        family = self.now
        assert family.assignment is not None
        assert {part.name: part.count for part in family.assignment.podsets} == self.asked
        assert family.counts == self.asked
        assert family.slices == {}
        assert family.merged == ()
        assert {name: ungated for name, (_, ungated) in self.pods.items()} == self.asked
        wanted = {name: RequestedCount(pods) for name, pods in self.asked.items()}
        told = progress(wanted, family.parent, [])
        assert told is not None
        assert not told.resizing

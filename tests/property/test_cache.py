"""Usage kept event by event equals usage rebuilt, and equals a naive count, whatever happens.

Names are hostile on purpose: hosts named like racks, names that are prefixes of each other or
contain separators, Node names that differ from hostname labels.
"""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from rackgate.topology.assignment import TopologyAssignment
from rackgate.wire import core
from rackgate_assigner.cache.cache import Cache
from rackgate_assigner.cache.flavor_topologies import FlavorTopology
from rackgate_assigner.workload.decisions import Admit, Assignment, PodSetAssignment
from tests.unit.assigner.builders import (
    BLOCK,
    HOST,
    RACK,
    cluster_queue,
    flavor,
    limit_range,
    local_queue,
    namespace,
    node,
    plan_cycle,
    pod,
    podset,
    rebuild_matches,
    runtime_class,
    topology,
    workload,
)

VALUES = ("a", "a-b", "a/b", "a,b")
NODES = ("a", "b", "a/b")
WORKLOADS = ("w", "w-1")
PODSETS = ("main", "main-2")
PODS = ("p", "p-1", "q", "w-0", "w-1")
LEVELS = {"default": (BLOCK, RACK, HOST), "racks": (BLOCK, RACK)}
FLAVORS = {"all": ({"pool": "gpu"}, "default"), "some": ({"kind": "x"}, "default")}
RACK_FLAVORS = {"rack-all": ({"pool": "gpu"}, "racks"), "rack-some": ({"kind": "x"}, "racks")}

counts = st.integers(min_value=1, max_value=3)
values = st.sampled_from(VALUES)


class CacheMachine(RuleBasedStateMachine):
    """Random life of a small cluster, with a shadow of what was last said of each object."""

    def __init__(self) -> None:
        super().__init__()
        self.cache = Cache()
        self.nodes: dict[str, core.Node] = {}
        self.pods: dict[str, core.Pod] = {}
        self.held: dict[str, Assignment] = {}
        self.finished: dict[str, Assignment] = {}
        self.known: set[str] = set()
        # Controllers of pods, also of those that lost theirs.
        self.controllers: dict[str, str] = {}
        self.version = 0
        self.cache.set_namespace(namespace())
        self.cache.set_runtime_class(runtime_class("kata"))
        for name, levels in LEVELS.items():
            self.cache.set_topology(topology(name, levels))
        quota = {"cpu": "1000"}
        names = (*FLAVORS, *RACK_FLAVORS)
        self.cache.set_cluster_queue(cluster_queue("cq", dict.fromkeys(names, quota)))
        self.cache.set_local_queue(local_queue())
        for name in names:
            self._flavor(name)
        for name, host in zip(NODES, VALUES, strict=False):
            self.set_node(name=name, block="a", rack="a", host=host, kind="x", cpu="3", ready=True)
        self.admitted_elsewhere("w", [("all", {"a": 2, "a/b": 1})])

    def _flavor(self, name: str) -> None:
        labels, topology_name = (FLAVORS | RACK_FLAVORS)[name]
        self.cache.set_flavor(flavor(name, topology_name, labels))

    def _version(self) -> str:
        self.version += 1
        return str(self.version)

    @rule(
        name=st.sampled_from(NODES),
        block=values,
        rack=values,
        host=values,
        kind=st.sampled_from(["x", "x", "y"]),
        cpu=st.sampled_from(["2", "3"]),
        ready=st.sampled_from([True, True, False]),
    )
    def set_node(
        self, *, name: str, block: str, rack: str, host: str, kind: str, cpu: str, ready: bool
    ) -> None:
        labels = {BLOCK: block, RACK: rack, "kind": kind}
        found = node(name, host=host, cpu=cpu, labels=labels, ready=ready)
        self.nodes[name] = found
        self.cache.set_node(found)

    @rule(name=st.sampled_from(NODES))
    def drop_node(self, name: str) -> None:
        self.nodes.pop(name, None)
        self.cache.drop_node(name)

    @rule(
        name=st.sampled_from(PODS),
        on=st.sampled_from(NODES),
        cpu=st.sampled_from(["1", "500m"]),
        of=st.sampled_from([None, *WORKLOADS]),
        part=st.sampled_from(PODSETS),
        owner=st.sampled_from([None, "stranger"]),
        phase=st.sampled_from(["Running", "Running", "Leaving", "Succeeded"]),
    )
    def set_pod(
        self,
        *,
        name: str,
        on: str,
        cpu: str,
        of: str | None,
        part: str,
        owner: str | None,
        phase: str,
    ) -> None:
        marks: dict[str, Any] = {"workload": of, "podset": part, "owner": owner}
        found = pod(name, on, cpu=cpu, phase=phase, leaving=phase == "Leaving", **marks)
        controller = found.metadata.controller
        if found.terminal:
            self.pods.pop(name, None)
            self.controllers.pop(name, None)
        else:
            self.pods[name] = found
            before = self.controllers.get(name, "")
            self.controllers[name] = before if controller is None else controller.uid
        self.cache.set_pod(found)

    @precondition(lambda self: self.held)
    @rule(picks=st.lists(st.integers(min_value=0, max_value=9), min_size=1, max_size=len(PODS)))
    def bind(self, picks: list[int]) -> None:
        """Pods of admitted Workloads land where they were sent, one pod too many at times."""
        places = sorted(
            (owner, part.name, found.metadata.name)
            for owner, assignment in self.held.items()
            for part in assignment.podsets
            for found in self.nodes.values()
            if part.topology is not None
            and tuple(found.metadata.labels[level] for level in part.topology.levels)
            in dict(part.topology.domains)
        )
        for name, pick in zip(PODS, picks, strict=False):
            if places:
                owner, part_name, on = places[pick % len(places)]
                self._run(name, on, owner, part_name)

    def _run(self, name: str, on: str, owner: str, part: str) -> None:
        self.set_pod(name=name, on=on, cpu="1", of=owner, part=part, owner=None, phase="Running")

    @rule(name=st.sampled_from(PODS))
    def drop_pod(self, name: str) -> None:
        self.pods.pop(name, None)
        self.controllers.pop(name, None)
        self.cache.drop_pod(f"team/{name}")

    @rule(
        name=st.sampled_from(WORKLOADS),
        sizes=st.lists(counts, min_size=1, max_size=2),
        level=st.sampled_from([None, RACK]),
    )
    def ask(self, name: str, sizes: list[int], level: str | None) -> None:
        """A Workload that waits: new, or one whose reservation was taken back."""
        wish = {"required": level} if level else {"unconstrained": True}
        podsets = [
            podset(part, count, topology=wish, runtimeClassName="kata")
            for part, count in zip(PODSETS, sizes, strict=False)
        ]
        self.held.pop(name, None)
        self.finished.pop(name, None)
        self.known.add(name)
        self.cache.set_workload(workload(name, podsets, version=self._version(), generation=0))

    @rule(fail=st.booleans())
    def cycle(self, fail: bool) -> None:
        """Plan, assume, and either lose the write or see it."""
        for decision in plan_cycle(self.cache):
            assert isinstance(decision, Admit) or not hasattr(decision, "assignment")
            if not isinstance(decision, Admit):
                continue
            key = decision.workload
            self.cache.assume(key, decision.assignment)
            assert rebuild_matches(self.cache) == []
            if fail:
                self.cache.forget(key)
            else:
                self._show(key.partition("/")[2], decision.assignment)
        if not fail:
            return
        assert not self.cache.assumed

    def _show(self, name: str, assignment: Assignment, **more: object) -> None:
        podsets = [
            podset(part.name, part.count, runtimeClassName="kata") for part in assignment.podsets
        ]
        self.held[name] = assignment
        self.finished.pop(name, None)
        self.known.add(name)
        options: dict[str, Any] = dict(more)
        version = self._version()
        found = workload(
            name, podsets, version=version, generation=0, assignment=assignment, **options
        )
        self.cache.set_workload(found)

    @rule(
        name=st.sampled_from(WORKLOADS),
        parts=st.lists(
            st.tuples(
                st.sampled_from([*FLAVORS]),
                st.dictionaries(values, counts, min_size=1, max_size=3),
            ),
            min_size=1,
            max_size=2,
        ),
    )
    def admitted_elsewhere(self, name: str, parts: list[tuple[str, dict[str, int]]]) -> None:
        """An admission found at start, over hosts that may not exist."""
        podsets = []
        for part, (flavor_name, hosts) in zip(PODSETS, parts, strict=False):
            domains = tuple(((host,), count) for host, count in hosts.items())
            total = sum(hosts.values())
            podsets.append(
                PodSetAssignment(
                    part,
                    {"cpu": flavor_name},
                    {"cpu": 1000 * total},
                    total,
                    TopologyAssignment((HOST,), domains),
                )
            )
        self._show(name, Assignment("cq", tuple(podsets)))

    @precondition(lambda self: self.held)
    @rule(name=st.sampled_from(WORKLOADS))
    def finish(self, name: str) -> None:
        assignment = self.held.get(name)
        if assignment is not None:
            self._show(name, assignment, conditions={"Finished": ("True", "Succeeded", "")})
            self.finished[name] = self.held.pop(name)

    @rule(name=st.sampled_from(WORKLOADS))
    def drop_workload(self, name: str) -> None:
        self.held.pop(name, None)
        self.finished.pop(name, None)
        self.known.discard(name)
        self.cache.drop_workload(f"team/{name}")

    @rule(name=st.sampled_from([*FLAVORS, *RACK_FLAVORS]), back=st.booleans())
    def flavor_goes(self, name: str, back: bool) -> None:
        self.cache.drop_flavor(name)
        self.kept_equals_rebuilt()
        if back:
            self._flavor(name)

    @rule(name=st.sampled_from([*LEVELS]), back=st.booleans())
    def topology_goes(self, name: str, back: bool) -> None:
        self.cache.drop_topology(name)
        self.kept_equals_rebuilt()
        if back:
            self.cache.set_topology(topology(name, LEVELS[name]))

    @rule(overhead=st.sampled_from([None, "0", "500m", "1"]))
    def runtime_class_changes(self, overhead: str | None) -> None:
        """Pods that are created from now on take more, or less, or cannot be created."""
        if overhead is None:
            self.cache.drop_runtime_class("kata")
        else:
            self.cache.set_runtime_class(runtime_class("kata", {"cpu": overhead}))

    @rule(most=st.sampled_from([None, "2", "500m"]), name=st.sampled_from(["a", "b"]))
    def limit_range_changes(self, most: str | None, name: str) -> None:
        """Some LimitRanges let no pod of a whole cpu in."""
        if most is None:
            self.cache.drop_limit_range(f"team/{name}")
        else:
            self.cache.set_limit_range(limit_range(name, {"max": {"cpu": most}}))

    @rule()
    def all_is_back(self) -> None:
        for name, levels in LEVELS.items():
            self.cache.set_topology(topology(name, levels))
        for name in (*FLAVORS, *RACK_FLAVORS):
            self._flavor(name)

    @invariant()
    def kept_equals_rebuilt(self) -> None:
        assert rebuild_matches(self.cache) == []

    @invariant()
    def kept_equals_a_naive_count(self) -> None:
        for name in FLAVORS:
            flavor_topology = self.cache.flavor_topologies().by_flavor.get(name)
            if flavor_topology is not None:
                for leaf, found in enumerate(flavor_topology.tree.nodes):
                    assert self._free(flavor_topology, leaf) == self._naive(found.name)

    @invariant()
    def quota_in_use_is_the_larger_of_what_is_held_and_what_lives(self) -> None:
        used: dict[tuple[str, str], int] = {}
        for name in self.known:
            granted: dict[tuple[str, str], int] = {}
            for part in self.held[name].podsets if name in self.held else ():
                for resource, amount in part.usage.items():
                    pair = (part.flavors[resource], resource)
                    granted[pair] = granted.get(pair, 0) + amount
            living = self._living(name, granted)
            for pair in {*granted, *living}:
                amount = max(granted.get(pair, 0), living.get(pair, 0))
                used[pair] = used.get(pair, 0) + amount
        found = self.cache.totals.used().get("cq", {})
        assert found == {pair: amount for pair, amount in used.items() if amount}

    def _living(self, name: str, granted: dict[tuple[str, str], int]) -> dict[tuple[str, str], int]:
        """What pods of a job take, by the flavor that they are charged to."""
        assignment = self.held.get(name) or self.finished.get(name)
        flavors = [*FLAVORS, *RACK_FLAVORS]
        if assignment is not None:
            flavors = list(dict.fromkeys(part.flavors["cpu"] for part in assignment.podsets))
        labels = {key: found for key, (found, _) in (FLAVORS | RACK_FLAVORS).items()}
        total: dict[tuple[str, str], int] = {}
        for key, found in sorted(self.pods.items()):
            on = self.nodes.get(found.spec.node_name or "")
            leaving = found.metadata.deletion_timestamp is not None
            if self.controllers[key] != f"job-{name}" or (leaving and not (on and on.ready)):
                continue
            here = on.metadata.labels.items() if on is not None else {}.items()
            present = [one for one in flavors if one in self.cache.flavors]
            fits = [one for one in present if on is not None and labels[one].items() <= here]
            meant = fits if len(flavors) > 1 and fits else flavors
            asked = str(found.spec.containers[0].resources.requests["cpu"])
            more = {"1": 1000, "500m": 500}[asked]
            pairs = [(one, "cpu") for one in meant]
            pair = pairs[0]
            for one in reversed(pairs):
                if total.get(one, 0) + more <= granted.get(one, 0):
                    pair = one
            total[pair] = total.get(pair, 0) + more
        return total

    def _free(self, flavor_topology: FlavorTopology, leaf: int) -> tuple[int, int]:
        rows = flavor_topology.capacity.rows
        free = flavor_topology.capacity.free
        return int(free[leaf, rows["cpu"]]), int(free[leaf, rows["pods"]])

    def _naive(self, name: str) -> tuple[int, int]:
        """Free cpu and pods of a host, counted from the shadow."""
        labels = self.nodes[name].metadata.labels
        cpu = 1000 * int(self.nodes[name].status.allocatable["cpu"])
        slots = 110
        for owner, assignment in self.held.items():
            for part in assignment.podsets:
                if part.topology is None or part.topology.levels != (HOST,):
                    continue
                count = dict(part.topology.domains).get((labels[HOST],), 0)
                cpu, slots = cpu - part.usage["cpu"] // part.count * count, slots - count
                assert owner in WORKLOADS
        for key in self._uncovered():
            found = self.pods[key]
            if found.spec.node_name == name:
                asked = found.spec.containers[0].resources.requests["cpu"]
                cpu, slots = cpu - {"1": 1000, "500m": 500}[str(asked)], slots - 1
        return cpu, slots

    def _uncovered(self) -> set[str]:
        """Pods that no assignment pays for: the first `count` by name in each domain are paid."""
        found = set(self.pods)
        for owner, assignment in self.held.items():
            for part in assignment.podsets:
                if part.topology is None:
                    continue
                room = dict(part.topology.domains)
                for name in sorted(self.pods):
                    domain = self._domain(name, owner, part)
                    if domain is not None and room.get(domain, 0) > 0:
                        room[domain] -= 1
                        found.discard(name)
        return found

    def _domain(self, name: str, owner: str, part: PodSetAssignment) -> tuple[str, ...] | None:
        meta, on = self.pods[name].metadata, self.nodes.get(self.pods[name].spec.node_name or "")
        claimed = (*meta.annotations.values(), *meta.labels.values())
        controller = meta.controller
        if claimed != (owner, part.name) or on is None or part.topology is None:
            return None
        if controller is None or controller.uid != f"job-{owner}":
            return None
        return tuple(on.metadata.labels[level] for level in part.topology.levels)


@pytest.mark.requirement("CAP-02", "CAP-04", "CAP-09", "OPS-07")
@pytest.mark.field_note("C2", "C3", "C13", "C14", "C15")
def test_usage_is_right_after_every_event_of_any_life() -> None:
    run_state_machine_as_test(
        CacheMachine,
        settings=settings(max_examples=40, stateful_step_count=40, deadline=None),
    )


def live(machine: CacheMachine, rng: random.Random) -> None:
    """One event of a dense life: mostly pods that come and go where their Workload was sent."""
    name, of = rng.choice(PODS), rng.choice(WORKLOADS)
    match rng.choice("bbbbppddnnwwaatfrl"):
        case "b" if machine.held:
            machine.bind([rng.randrange(10) for _ in range(rng.randint(1, 3))])
        case "d":
            machine.drop_pod(name)
        case "n":
            on, kind = rng.choice(NODES), rng.choice("xxy")
            spot = {key: rng.choice(VALUES) for key in ("block", "rack", "host")}
            ready = rng.random() < 0.9
            machine.set_node(name=on, kind=kind, cpu=rng.choice("23"), ready=ready, **spot)
        case "w":
            hosts = rng.sample(VALUES, 2)
            parts = [(rng.choice([*FLAVORS]), {host: rng.randint(1, 2) for host in hosts})]
            machine.admitted_elsewhere(of, parts)
        case "a":
            machine.ask(of, [rng.randint(1, 3)], rng.choice([None, RACK]))
        case "t":
            rng.choice([machine.finish, machine.drop_workload])(of)
        case "r":
            machine.runtime_class_changes(rng.choice(["0", "500m", "1", None]))
        case "l":
            machine.limit_range_changes(rng.choice(["2", "2", "500m", None]), rng.choice("ab"))
        case "f":
            machine.flavor_goes(rng.choice([*FLAVORS, *RACK_FLAVORS]), True)
        case _:
            owner = rng.choice([None, None, "stranger"])
            phase = rng.choice(["Running", "Leaving", "Succeeded"])
            on, part = rng.choice(NODES), rng.choice(PODSETS)
            claimed = rng.choice([None, of])
            machine.set_pod(
                name=name, on=on, cpu="500m", of=claimed, part=part, owner=owner, phase=phase
            )


@pytest.mark.requirement("CAP-02", "CAP-04", "CAP-09", "OPS-07")
@pytest.mark.field_note("C2", "C3", "C4", "C13", "C14", "C15", "U2")
@settings(max_examples=25, deadline=None)
@given(seed=st.integers(min_value=0, max_value=2**32))
def test_usage_is_right_after_every_event_of_a_long_life(seed: int) -> None:
    machine, rng = CacheMachine(), random.Random(seed)
    for _ in range(120):
        if rng.random() < 0.1:
            machine.cycle(rng.random() < 0.5)
        epoch, planned = machine.cache.epoch, plan_cycle(machine.cache)
        live(machine, rng)
        if machine.cache.epoch == epoch:
            assert plan_cycle(machine.cache) == planned
        machine.kept_equals_rebuilt()
        machine.kept_equals_a_naive_count()
        machine.quota_in_use_is_the_larger_of_what_is_held_and_what_lives()

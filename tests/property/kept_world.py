"""A drawn life of queues whose pending Workloads are kept from plan to plan."""

from __future__ import annotations

from random import Random
from typing import Any, Final

import msgspec

from rackgate.api.names import WorkloadCondition
from rackgate.features import Features
from rackgate.wire import core, kueue
from rackgate_assigner.cache.cache import Cache
from rackgate_assigner.preemption.fair_sharing import STRATEGIES
from rackgate_assigner.scheduler.cycle import plan
from rackgate_assigner.scheduler.planner import Planner
from rackgate_assigner.workload.decisions import Admit, Assignment, Decision, Evict, Preempt
from rackgate_assigner.workload.status import admission_of
from tests.unit.assigner.builders import (
    BLOCK,
    HOST,
    RACK,
    cluster_queue,
    cohort,
    flavor,
    local_queue,
    namespace,
    node,
    podset,
    topology,
    workload,
)

FEATURES: Final = Features.of({"TASWithCohorts": True, "TASWithPreemption": True})
REQUESTS: Final = ({"required": RACK}, {"required": HOST}, {"preferred": BLOCK})
WITHIN: Final = ("Never", "LowerPriority", "LowerPriority", "LowerOrNewerEqualPriority")
RECLAIM: Final = ("Never", "LowerPriority", "Any", "Any")
SEARCH: Final = ("MayStopSearch", "TryNextFlavor")


class KeptWorld:
    """Queues of two or three trees under pressure; whatever is decided is written at once.

    Attributes:
        last: the decisions of the last plan.
    """

    def __init__(self, seed: int) -> None:
        self.rng = rng = Random(seed)
        self.fair = rng.choice((None, None, STRATEGIES, STRATEGIES[1:]))
        self.cache = Cache(FEATURES)
        self.planner = Planner(self.cache)
        self.last: list[Decision] = []
        self._workloads: dict[str, kueue.Workload] = {}
        self._version = 0
        self._has_topology = rng.random() < 0.6
        self._flavors = ("one", "two", "three")[: rng.choice((1, 1, 2, 3))]
        self._resources = ("cpu", "memory")[: rng.randint(1, 2)]
        self._nodes = [f"n{number}" for number in range(rng.randint(2, 8))]
        self._cohorts = ("x", "y", "z")[: rng.randint(1, 3)]
        self._queues = [f"q{number}" for number in range(rng.randint(2, 7))]
        self.cache.set_namespace(namespace())
        self.cache.set_topology(topology())
        for name in self._flavors:
            levels = "default" if self._has_topology else None
            self.cache.set_flavor(flavor(name, levels, rng.choice(({}, {"kind": "0"}))))
        for name in self._nodes:
            self._set_node(name)
        for name in self._cohorts:
            self._set_cohort(name)
        for name in self._queues:
            self._set_queue(name)
            self.cache.set_local_queue(local_queue(name, name))
        for _ in range(rng.randint(5, 25)):
            self._create()

    def step(self) -> None:
        """A plan, and an event or two."""
        snapshot, queues = self.planner.prepare(lambda _key: False)
        self.last = plan(snapshot, FEATURES, fair_sharing=self.fair, queues=queues)
        for decision in self.last:
            if isinstance(decision, Admit):
                self.cache.assume(decision.workload, decision.assignment)
        for decision in self.last:
            self._write(decision)
        for key in self._admitted():
            if self._is(key, WorkloadCondition.EVICTED) and self.rng.random() < 0.5:
                self._release(key)
        for _ in range(self.rng.choice((1, 1, 1, 2))):
            self._change()

    def _change(self) -> None:
        rng, admitted = self.rng, self._admitted()
        match rng.choice("wwwwwwwffffffffffddnerqc"):
            case "w":
                self._create()
            case "f" if admitted:
                self._add_condition(rng.choice(admitted), WorkloadCondition.FINISHED)
            case "d" if self._workloads:
                key = rng.choice(sorted(self._workloads))
                del self._workloads[key]
                self.cache.drop_workload(key)
            case "n":
                self._set_node(rng.choice(self._nodes))
            case "e" if admitted:
                self._release(rng.choice(admitted))
            case "r" if self._workloads:
                self.planner.decide_again(rng.choice(sorted(self._workloads)))
            case "q" if rng.random() < 0.1:
                self._set_queue(rng.choice(self._queues))
            case "c" if rng.random() < 0.1:
                self._set_cohort(rng.choice(self._cohorts))
            case _:
                pass

    def _set_node(self, name: str) -> None:
        rng, number = self.rng, int(name[1:])
        path, cpu = f"b{number // 4}/r{number // 2}", rng.choice("248")
        labels = {"kind": str(number % 2)}
        self.cache.set_node(node(name, path, cpu=cpu, labels=labels, ready=rng.random() < 0.9))

    def _groups(self, *, limits: bool) -> list[dict[str, Any]]:
        rng = self.rng
        names = rng.sample(self._flavors, rng.randint(1, len(self._flavors)))
        flavors = []
        for name in names:
            quotas = []
            for resource in self._resources:
                unit = "Gi" if resource == "memory" else ""
                quota = {"name": resource, "nominalQuota": f"{rng.randint(0, 8)}{unit}"}
                for limit in ("borrowingLimit", "lendingLimit"):
                    if limits and rng.random() < 0.25:
                        quota[limit] = f"{rng.randint(0, 5)}{unit}"
                quotas.append(quota)
            flavors.append({"name": name, "resources": quotas})
        return [{"coveredResources": list(self._resources), "flavors": flavors}]

    def _set_cohort(self, name: str) -> None:
        rng, above = self.rng, self._cohorts[: self._cohorts.index(name)]
        parent = rng.choice(above) if above and rng.random() < 0.7 else None
        groups = self._groups(limits=parent is not None) if rng.random() < 0.4 else []
        self.cache.set_cohort(cohort(name, parent, resourceGroups=groups))

    def _set_queue(self, name: str) -> None:
        rng, in_cohort = self.rng, self.rng.random() < 0.9
        preemption: dict[str, Any] = {
            "withinClusterQueue": rng.choice(WITHIN),
            "reclaimWithinCohort": rng.choice(RECLAIM),
        }
        if preemption["reclaimWithinCohort"] != "Never" and rng.random() < 0.3:
            preemption["borrowWithinCohort"] = {"policy": "LowerPriority"}
        queue = cluster_queue(
            name,
            cohortName=rng.choice(self._cohorts) if in_cohort else None,
            preemption=preemption,
            queueingStrategy=rng.choice(("BestEffortFIFO",) * 4 + ("StrictFIFO",)),
            resourceGroups=self._groups(limits=in_cohort),
            fairSharing={"weight": rng.choice(("1", "2", "0"))},
            flavorFungibility={
                "whenCanBorrow": rng.choice(SEARCH),
                "whenCanPreempt": rng.choice(SEARCH),
            },
        )
        self.cache.set_cluster_queue(queue)

    def _create(self) -> None:
        rng = self.rng
        self._version += 1
        requests = {"cpu": rng.choice("112")}
        if "memory" in self._resources and rng.random() < 0.8:
            requests["memory"] = rng.choice(("1Gi", "2Gi"))
        asked = rng.choice(REQUESTS) if self._has_topology else None
        main = podset(count=rng.choice((1, 1, 2, 3, 4)), requests=requests, topology=asked)
        if rng.random() < 0.15:
            main["minCount"] = 1
        made = workload(
            f"w{self._version:04}",
            [main],
            queue=rng.choice(self._queues),
            priority=rng.choice((0, 0, 1, 2)),
            created=f"2026-08-01T12:{self._version // 60 % 60:02}:{self._version % 60:02}Z",
            version=str(self._version),
        )
        self._show(made)

    def _write(self, decision: Decision) -> None:
        if isinstance(decision, Admit):
            self._admit(decision.workload, decision.assignment)
        elif isinstance(decision, Evict | Preempt) and self.rng.random() < 0.5:
            self._release(decision.workload)
        elif isinstance(decision, Evict | Preempt):
            self._add_condition(decision.workload, WorkloadCondition.EVICTED)

    def _admit(self, key: str, assignment: Assignment) -> None:
        since = f"2026-08-02T00:{self._version // 60 % 60:02}:{self._version % 60:02}Z"
        reserved = (WorkloadCondition.QUOTA_RESERVED, WorkloadCondition.ADMITTED)
        conditions = tuple(
            core.Condition(type=kind, status="True", last_transition_time=since)
            for kind in reserved
        )
        admission = msgspec.convert(admission_of(assignment), kueue.Admission)
        self._set_status(key, admission=admission, conditions=conditions)

    def _release(self, key: str) -> None:
        gone = core.Condition(type=WorkloadCondition.QUOTA_RESERVED, status="False")
        self._set_status(key, admission=None, conditions=(gone,))

    def _add_condition(self, key: str, kind: WorkloadCondition) -> None:
        before = self._workloads[key].status.conditions
        now = core.Condition(type=kind, status="True", reason="Preempted")
        self._set_status(key, conditions=(*before, now))

    def _set_status(self, key: str, **status: Any) -> None:
        self._version += 1
        before = self._workloads[key]
        replaced = msgspec.structs.replace
        meta = replaced(before.metadata, resource_version=str(self._version))
        self._show(replaced(before, metadata=meta, status=replaced(before.status, **status)))

    def _show(self, shown: kueue.Workload) -> None:
        self._workloads[shown.metadata.key] = shown
        self.cache.set_workload(shown)

    def _is(self, key: str, kind: WorkloadCondition) -> bool:
        return any(one.type == kind for one in self._workloads[key].status.conditions)

    def _admitted(self) -> list[str]:
        return sorted(
            key
            for key, one in self._workloads.items()
            if one.status.admission is not None and not self._is(key, WorkloadCondition.FINISHED)
        )

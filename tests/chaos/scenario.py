"""What one seed draws: replicas and their clocks, jobs and what befalls them, faults. Pure.

The same seed and length always give the same scenario. What comes of it depends on the machine:
a fault strikes at the time drawn, and the services may be anywhere by then.
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TypeVar

from tests.chaos import queues
from tests.chaos.composites import KEPT_S, ElasticPlan, SetPlan, draw_elastic, draw_set
from tests.chaos.gangs import GangPlan, draw_gangs, has_gangs
from tests.chaos.job_options import TopologyMode, UserAction
from tests.chaos.queues import Change, ChangePlan, QuotaPlan
from tests.chaos.rayjobs import RayJobPlan, draw_rayjobs
from tests.support.objects import BLOCK, RACK
from tests.support.playground import SERVICES

RACKS, HOSTS_PER_RACK, CPU_PER_HOST = 8, 8, 8
# Certificates are made valid from five minutes ago; what lies beyond is for their users to mend.
LARGEST_SKEW_S = 240.0
FLAP_KINDS = ("cordon", "drain", "taint")
# Of the services: shorter than every stop, and standbys take over within a scenario.
LEASE_S = 4.0


class Fault(StrEnum):
    """Everything that is injected."""

    KILL_BEFORE = "kill before a write"
    KILL_AFTER = "kill after a write"
    KILL_ALL = "kill all replicas"
    PAUSE = "stop beyond the lease"
    APISERVER = "restart the API server"
    CUT = "cut watches"
    EXPIRE = "410 in watches"
    WATCH_500 = "500 in watches"
    STALL = "stall watches"
    CONFLICT = "conflict storm"
    TOUCH = "another writer first"
    LOSE = "lose answers"
    HANG = "hang answers"
    DROP = "drop requests"
    FAIL = "500 storm"
    THROTTLE = "429 storm"
    LATENCY = "latency"
    SCALE = "scale"


@dataclass(frozen=True, slots=True)
class JobPlan:
    """One Job.

    Attributes:
        at: second of its creation.
        run_s: how long its pods run.
        linger_s: how long a deleted pod takes to go.
        fate_at: second at which its fate comes.
        queue, priority: where it is submitted, and its class.
        after: a job that is admitted before it is created, "" for none.
    """

    name: str
    at: float
    pods: int
    cpu: int
    topology_mode: TopologyMode
    level: str
    indexed: bool
    run_s: float
    linger_s: int
    user_action: UserAction = UserAction.NONE
    fate_at: float = 0.0
    queue: str = ""
    priority: str = queues.NO_CLASS
    after: str = ""

    @property
    def ends(self) -> bool:
        """Whether it completes by itself."""
        return self.user_action not in (UserAction.DELETE, UserAction.DEACTIVATE)


@dataclass(frozen=True, slots=True)
class FaultPlan:
    """One fault.

    Attributes:
        at: second at which it begins.
        service: whose replicas it strikes.
        seconds: how long.
        number: which write, or how many replicas.
        rate: share of the requests.
        value: seconds of latency, hanging or Retry-After.
        all_replicas: strikes all of the service's replicas, not only the busiest one.
    """

    at: float
    fault: Fault
    service: str
    seconds: float = 0.0
    number: int = 0
    rate: float = 1.0
    value: float = 0.0
    all_replicas: bool = True

    def __str__(self) -> str:
        words = [f"{self.at:5.1f} s", f"{self.fault.value}, {self.service}"]
        if self.number:
            words.append(f"no. {self.number}")
        if self.seconds:
            words.append(f"for {self.seconds:.1f} s")
        if self.rate < 1:
            words.append(f"{self.rate:.0%}")
        if self.value:
            words.append(f"{self.value:g} s each")
        return "  ".join(words)


@dataclass(frozen=True, slots=True)
class FlapPlan:
    """One node that is out of use for a while."""

    at: float
    kind: str
    host: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Scenario:
    """All that a seed draws.

    Attributes:
        seconds: how long faults are injected.
        replicas: of each service at the start.
        offsets: of each replica's wall clock, in seconds.
        tree: queues and Cohorts.
        changes: what their administrator changes meanwhile.
        gangs: those that users write; with any, the feature gates of gangs are on.
        rayjobs: those that users write, in a queue of their own.
    """

    seed: int
    seconds: float
    replicas: Mapping[str, int]
    offsets: Mapping[str, float]
    jobs: tuple[JobPlan, ...]
    faults: tuple[FaultPlan, ...]
    flaps: tuple[FlapPlan, ...]
    sets: tuple[SetPlan, ...] = ()
    elastic: tuple[ElasticPlan, ...] = ()
    tree: tuple[QuotaPlan, ...] = ()
    changes: tuple[ChangePlan, ...] = ()
    gangs: tuple[GangPlan, ...] = ()
    rayjobs: tuple[RayJobPlan, ...] = ()

    def lines(self) -> Iterator[str]:
        """What is drawn, for people."""
        counts = ", ".join(f"{n} {service}" for service, n in self.replicas.items())
        skews = [round(offset) for offset in self.offsets.values()]
        pods = sum(job.pods for job in self.jobs)
        yield (
            f"seed {self.seed}: {counts}; clocks {min(skews):+d} to {max(skews):+d} s; "
            f"{len(self.jobs)} Jobs, {pods} pods; {len(self.flaps)} nodes flap"
        )
        for node in self.tree:
            yield f"  {node}"
        for change in self.changes:
            yield f"  {change}"
        for jobset in self.sets:
            yield (
                f"  {jobset.at:5.1f} s  {_describe(jobset)}, {jobset.replicas} x {jobset.pods} pods"
            )
        for plan in self.elastic:
            sizes = ", ".join(f"{size} at {at:g} s" for at, size in plan.sizes)
            yield f"  {plan.at:5.1f} s  {_describe(plan)}, {plan.size} pods; {sizes}"
        for gang in self.gangs:
            yield f"  {gang.at:5.1f} s  {gang}"
        for rayjob in self.rayjobs:
            yield f"  {rayjob.at:5.1f} s  {rayjob}"
        for fault in self.faults:
            yield f"  {fault}"


def _describe(plan: SetPlan | ElasticPlan) -> str:
    words = (
        f"{plan.name} in {plan.queue}, {plan.priority or 'no'} priority, {plan.cpu} CPU, "
        f"{plan.topology_mode.value} {plan.level.rpartition('-')[2]}"
    )
    return (
        words
        if plan.user_action is UserAction.NONE
        else f"{words}, {plan.user_action} at {plan.fate_at:g} s"
    )


def draw(seed: int, *, seconds: float = 35.0, jobs: int = 22, faults: int = 8) -> Scenario:
    """The scenario of a seed.

    Args:
        seed: any number.
        seconds: how long faults are injected.
        jobs: how many Jobs come in that time.
        faults: how many faults, of as many kinds as there are.
    """
    dice = random.Random(f"chaos {seed}")
    replicas = {service: dice.randint(1, 3) for service in SERVICES}
    # Faults need somebody left to take over as often as not.
    if dice.random() < 0.5:
        replicas["assigner"] = max(2, replicas["assigner"])
    names = [f"{service}-{number}" for service in SERVICES for number in range(3)]
    offsets = {name: round(dice.uniform(-LARGEST_SKEW_S, LARGEST_SKEW_S), 1) for name in names}
    drawn = _with_queues(
        Scenario(
            seed,
            seconds,
            replicas,
            offsets,
            tuple(_job(dice, index, jobs, seconds) for index in range(jobs)),
            tuple(sorted(_faults(dice, seed, faults, seconds), key=lambda fault: fault.at)),
            tuple(_flap(dice, seconds) for _ in range(dice.randint(1, 4))),
            *_composites(seed, seconds),
            rayjobs=draw_rayjobs(seed, seconds),
        )
    )
    return _with_gangs(drawn) if has_gangs(seed) else drawn


_Plan = TypeVar("_Plan", JobPlan, SetPlan, ElasticPlan)


def _with_queues(scenario: Scenario) -> Scenario:
    """A scenario with queues, and a queue and priority for each job, by dice of their own."""
    dice = random.Random(f"queues {scenario.seed}")

    def submitted(plans: tuple[_Plan, ...]) -> tuple[_Plan, ...]:
        found = []
        for plan in plans:
            early = plan.at < scenario.seconds / 4
            queue, priority = queues.draw_home(dice, early=early)
            found.append(replace(plan, queue=queue, priority=priority))
        return tuple(found)

    return replace(
        scenario,
        tree=queues.draw_tree(dice),
        changes=queues.draw_changes(dice, scenario.seed, scenario.seconds),
        jobs=submitted(scenario.jobs),
        sets=submitted(scenario.sets),
        elastic=submitted(scenario.elastic),
    )


def _with_gangs(scenario: Scenario) -> Scenario:
    """A scenario with gangs. Pods that are held by a gate of their user are in gangs, too."""
    dice = random.Random(f"gangs of JobSets {scenario.seed}")

    def in_gang(plan: JobPlan) -> JobPlan:
        held = plan.user_action is UserAction.HOLD and plan.pods > 1
        return replace(plan, indexed=True) if held else plan

    return replace(
        scenario,
        jobs=tuple(map(in_gang, scenario.jobs)),
        sets=tuple(replace(plan, gang_per_job=dice.random() < 0.5) for plan in scenario.sets),
        gangs=draw_gangs(scenario.seed, scenario.seconds),
    )


def _composites(seed: int, seconds: float) -> tuple[tuple[SetPlan, ...], tuple[ElasticPlan, ...]]:
    """JobSets and elastic jobs, by dice of their own: the rest of a seed stays what it was."""
    dice = random.Random(f"composites {seed}")
    sets = tuple(draw_set(dice, index, seconds) for index in range(dice.randint(2, 3)))
    elastic = [
        draw_elastic(dice, f"grow-{index:02}", seconds, ray=False)
        for index in range(dice.randint(1, 2))
    ]
    return sets, (*elastic, draw_elastic(dice, "ray-00", seconds, ray=True))


def _job(dice: random.Random, index: int, jobs: int, seconds: float) -> JobPlan:
    at = round(seconds * 0.8 * index / jobs, 1)
    pods, cpu = dice.choice(((1, 4), (2, 8), (4, 2), (8, 4), (12, 1), (16, 2), (16, 4), (24, 1)))
    topology_mode = dice.choice(list(TopologyMode))
    # The first ones have the fates, so that they come about under fire.
    fates = (UserAction.DEACTIVATE, UserAction.HOLD, UserAction.SUSPEND, UserAction.DELETE)
    user_action = (
        fates[index] if index < len(fates) else dice.choice((UserAction.NONE,) * 9 + fates[2:])
    )
    fate_at = min(at + dice.uniform(4, max(5.0, seconds * 0.6)), seconds)
    return JobPlan(
        name=f"job-{index:02}",
        at=at,
        pods=pods,
        cpu=cpu,
        topology_mode=topology_mode,
        level=dice.choice((RACK, BLOCK)),
        indexed=dice.random() < 0.7,
        run_s=KEPT_S if user_action is UserAction.DEACTIVATE else round(dice.uniform(1, 6), 1),
        linger_s=dice.choice((0, 0, 2, 5)),
        user_action=user_action,
        fate_at=round(fate_at if user_action is not UserAction.NONE else 0.0, 1),
    )


def _flap(dice: random.Random, seconds: float) -> FlapPlan:
    return FlapPlan(
        round(dice.uniform(3, seconds), 1),
        dice.choice(FLAP_KINDS),
        dice.randrange(RACKS * HOSTS_PER_RACK),
        round(dice.uniform(3, 10), 1),
    )


def _faults(dice: random.Random, seed: int, count: int, seconds: float) -> Iterator[FaultPlan]:
    """`count` faults; consecutive seeds together go through all kinds evenly."""
    kinds = list(Fault)
    for number in range(count):
        fault = kinds[(seed * count + number) % len(kinds)]
        at = round(dice.uniform(2, seconds * 0.75), 1)
        yield _fault(dice, fault, at, dice.choice(SERVICES))


def _fault(dice: random.Random, fault: Fault, at: float, service: str) -> FaultPlan:
    # The webhook hardly writes: what strikes requests is for the other two.
    writer = service if service != "webhook" else dice.choice(SERVICES[1:])
    storm_s = round(dice.uniform(3, 8), 1)
    match fault:
        case Fault.KILL_BEFORE | Fault.KILL_AFTER:
            return FaultPlan(at, fault, writer, number=dice.randint(1, 25))
        case Fault.KILL_ALL | Fault.CUT | Fault.EXPIRE | Fault.WATCH_500:
            return FaultPlan(at, fault, service)
        case Fault.PAUSE:
            pause_s = round(dice.uniform(6, 14), 1)
            number = dice.randint(1, 15) if service != "webhook" else 0
            return FaultPlan(at, fault, service, seconds=pause_s, number=number)
        case Fault.APISERVER:
            return FaultPlan(at, fault, "kube-apiserver", seconds=round(dice.uniform(0, 2), 1))
        case Fault.STALL:
            return FaultPlan(at, fault, writer, seconds=storm_s, all_replicas=dice.random() < 0.5)
        case Fault.CONFLICT | Fault.TOUCH | Fault.FAIL:
            rate = dice.choice((0.3, 0.6, 0.9))
            return FaultPlan(at, fault, writer, seconds=storm_s, rate=rate)
        case Fault.LOSE | Fault.DROP:
            return FaultPlan(at, fault, writer, seconds=2 * storm_s, rate=0.1)
        case Fault.HANG:
            return FaultPlan(at, fault, writer, seconds=storm_s, rate=0.1, value=6.0)
        case Fault.THROTTLE:
            return FaultPlan(at, fault, writer, seconds=storm_s, rate=0.5, value=1.0)
        case Fault.LATENCY:
            rate = dice.choice((0.3, 1.0))
            return FaultPlan(at, fault, writer, seconds=storm_s, rate=rate, value=2.0)
        case Fault.SCALE:
            return FaultPlan(at, fault, service, number=dice.randint(1, 3))


# Resized before, amid and after the faults of the short scenario. It borrows what it uses.
BRIEF_ELASTIC = ElasticPlan(
    name="grow-00",
    ray=False,
    at=0.0,
    size=2,
    cpu=2,
    topology_mode=TopologyMode.REQUIRED,
    level=RACK,
    sizes=((3.0, 6), (7.0, 3), (10.5, 8), (14.0, 5)),
    together=True,
    user_action=UserAction.NONE,
    fate_at=0.0,
    queue=queues.BATCH,
)
# Takes the whole quota of its queue back, and so what the elastic Job has borrowed.
BRIEF_RECLAIM = JobPlan(
    name="reclaim",
    at=3.0,
    pods=16,
    cpu=6,
    topology_mode=TopologyMode.NONE,
    level=RACK,
    indexed=True,
    run_s=2.0,
    linger_s=0,
    queue=queues.PRODUCTION,
    priority="high",
    after=BRIEF_ELASTIC.name,
)
BRIEF_TREE = (
    QuotaPlan(queues.ORG, "", 0),
    QuotaPlan(queues.RESEARCH, queues.ORG, 0),
    QuotaPlan(
        queues.PRODUCTION,
        queues.ORG,
        BRIEF_RECLAIM.pods * BRIEF_RECLAIM.cpu,
        preemption={"withinClusterQueue": "LowerPriority", "reclaimWithinCohort": "Any"},
    ),
    QuotaPlan(queues.BATCH, queues.RESEARCH, 1, preemption={}),
)


def brief(seed: int) -> Scenario:
    """A short scenario with the faults that have found most: two replicas of each service.

    One elastic Job beside the others, which has to give back what it borrows. Kinds of operators
    are left to the long scenarios.
    """
    dice = random.Random(f"brief {seed}")
    names = [f"{service}-{number}" for service in SERVICES for number in range(2)]
    seconds = 14.0
    faults = (
        FaultPlan(1.0, Fault.LOSE, "ungater", seconds=12.0, rate=0.1),
        FaultPlan(1.5, Fault.LOSE, "assigner", seconds=12.0, rate=0.1),
        FaultPlan(2.0, Fault.KILL_AFTER, "ungater", number=dice.randint(2, 8)),
        FaultPlan(4.0, Fault.PAUSE, "assigner", seconds=6.0, number=dice.randint(1, 4)),
        FaultPlan(6.0, Fault.TOUCH, "ungater", seconds=4.0, rate=0.6),
        FaultPlan(9.0, Fault.APISERVER, "kube-apiserver"),
        FaultPlan(12.0, Fault.PAUSE, "ungater", seconds=6.0),
    )
    drawn = Scenario(
        seed,
        seconds,
        dict.fromkeys(SERVICES, 2),
        {name: round(dice.uniform(-LARGEST_SKEW_S, LARGEST_SKEW_S), 1) for name in names},
        tuple(_job(dice, index, 10, seconds) for index in range(10)),
        faults,
        (_flap(dice, seconds),),
        elastic=(BRIEF_ELASTIC,),
        tree=BRIEF_TREE,
        changes=(ChangePlan(6.0, queues.BATCH, Change.HOLD, 3.0),),
    )
    jobs = (replace(job, queue=queues.PRODUCTION) for job in drawn.jobs)
    return replace(drawn, jobs=(*jobs, BRIEF_RECLAIM))

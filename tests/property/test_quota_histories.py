"""Claims over histories: many cycles, with whoever decides judged by what comes next.

Each claim says for which scenarios it holds. `plain` makes them: one flavor per resource group, no
`minCount`, no reclaimable pods and no earlier conditions. Outside of these Kueue's rules have
counterexamples (seeds of `quota_scenario`; the first two with the conditions as drawn):

- a preemptor that does not fit afterwards, with `minCount`: 10407. Its victims made room for fewer
  pods; in the next cycle the full count is tried first, has victims now, and evicts again
- the same with two flavors: 1883. Without the victims another flavor is looked at first, and a
  preemption there is preferred to a fit in the next flavor
- A evicts B evicts A, with two flavors: 2782. A's second plan takes another flavor, and borrows
- for ever A evicts B, and B is admitted before A, with `minCount`: 11130, 13853
- for ever the same with fair sharing, even in plain scenarios: 4541, 5930, 5919, 7775, 9864, 6022
  (6 of about 4000; these not where preemptors go first, `RackgateStickyPreemptors`). The victim
  waits again, its queue now has the smaller share, so it goes before the preemptor and takes the
  place that was made; the preemptor no longer fits, and evicts it again
- A evicts B evicts A with fair sharing, also where preemptors go first: 5005207, 5005285, 5005966,
  5009312, 21394348; for ever: 5003016 (these not with `RackgateNoMutualPreemption`). A evicts B and
  a larger C; then B alone is within its quota, and reclaims it
- adding quota loses an admission, with two flavors and `whenCanPreempt: MayStopSearch`: 28. With
  more quota the first flavor is no longer out of the question but preempts, and the search stops.
  The same with `TryNextFlavor`: 2621, 4261 (`minCount`)
- adding quota loses an admission where several heads compete, with one flavor: 397, 1076. Another
  head fits now, goes first, and takes more
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from copy import deepcopy
from itertools import count

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from rackgate_assigner.quota_scenario import scenario as engine
from tests.property.quota_drawing import Json, quota_scenario
from tests.property.test_quota_engine import engine as decide
from tests.support.quota_history import History

SEEDS = st.integers(0, 2**48 - 1)
MANY = settings(max_examples=150, deadline=None)
CYCLES = 20


def plain(seed: int, *, fair: bool | None = None) -> Json:
    """The first scenario from a seed on with one flavor per resource group."""
    drawn = (quota_scenario(number, fair=fair) for number in count(seed))
    scenario = next(found for found in drawn if _one_flavor(found))
    for workload in scenario["workloads"]:
        workload.pop("conditions", None)
        workload.pop("reclaimable", None)
        for podset in workload["podSets"]:
            podset.pop("minCount", None)
    return scenario


def _one_flavor(scenario: Json) -> bool:
    groups = [group for queue in scenario["clusterQueues"] for group in queue["resourceGroups"]]
    return all(len(group["flavors"]) == 1 for group in groups)


def cycles(history: History) -> Iterator[Json]:
    """Answers until nothing happens any more, at most `CYCLES`."""
    for _ in range(CYCLES):
        answer = history.step()
        yield answer
        if not answer["admitted"] and not answer["preempted"]:
            return


@pytest.mark.requirement("STR-07")
@MANY
@given(SEEDS)
def test_nobody_is_evicted_for_a_preemptor_that_does_not_fit_then(seed: int) -> None:
    """With its victims gone and those admitted in the same cycle running, it is admitted if it is
    the only one that waits."""
    history = History(plain(seed), decide)
    for answer in cycles(history):
        for by in {found["by"] for found in answer["preempted"]}:
            assert by in decide(history.alone(by))["admitted"], by


@MANY
@given(SEEDS)
def test_nobody_evicts_who_evicted_it(seed: int) -> None:
    """As long as nothing finishes or arrives, and a preemptor is the head of its queue next.

    Without fair sharing: with it, Kueue's rules have counterexamples, see above.
    """
    history = History(plain(seed, fair=False), decide)
    pairs = set()
    for answer in cycles(history):
        pairs |= {(found["by"], found["workload"]) for found in answer["preempted"]}
    assert not [(by, victim) for by, victim in pairs if (victim, by) in pairs]


@MANY
@given(SEEDS)
def test_cycles_come_to_rest_without_fair_sharing(seed: int) -> None:
    answers = list(cycles(History(plain(seed, fair=False), decide)))
    assert not answers[-1]["admitted"]
    assert not answers[-1]["preempted"]


class StickyEngine:
    """The engine with `RackgateStickyPreemptors` and `RackgateNoMutualPreemption`.

    Preemptors of the last cycle go first, and who was preempted before is known.
    """

    def __init__(self) -> None:
        self.first: set[str] = set()
        self.preempted: set[str] = set()

    def __call__(self, question: Json) -> Json:
        body = {"format": "quota-scenario/1", "scenarios": [question]}
        (scenario,) = engine.read_quota_scenarios(json.dumps(body).encode())
        answer = engine.answer(scenario, self.first, self.preempted)
        found: Json = json.loads(json.dumps(answer))
        self.preempted |= {one["workload"] for one in found["preempted"]}
        told = found["pending"].items()
        self.first = {key for key, one in told if one.get("requeue") == "PendingPreemption"}
        return found


# With Kueue's rules these go on for ever, or evict each other in turn, see above.
@example(4541)
@example(5930)
@example(6022)
@example(5003016)
@example(5005207)
@example(5009312)
@example(21394348)
@pytest.mark.requirement("STR-07")
@settings(max_examples=40, deadline=None)
@given(SEEDS)
def test_nobody_evicts_who_evicted_it_in_turn_with_fair_sharing(seed: int) -> None:
    """And cycles come to rest."""
    history, pairs, last = History(plain(seed, fair=True), StickyEngine()), set(), None
    for last in cycles(history):
        pairs |= {(found["by"], found["workload"]) for found in last["preempted"]}
    assert not [(by, victim) for by, victim in pairs if (victim, by) in pairs]
    assert last is not None
    assert not last["admitted"]
    assert not last["preempted"]


@MANY
@given(SEEDS, st.integers(0, 99), st.integers(1, 4))
def test_adding_quota_never_loses_the_admission_of_one_head(seed: int, at: int, by: int) -> None:
    """One workload waits: with more nominal quota anywhere it is admitted with as many pods."""
    scenario = plain(seed)
    running = [work for work in scenario["workloads"] if work.get("reservedAt") is not None]
    for waiting in [work for work in scenario["workloads"] if work.get("reservedAt") is None]:
        alone = {**scenario, "workloads": [*running, waiting]}
        before, after = decide(alone)["admitted"], decide(_with_more(alone, at, by))["admitted"]
        assert set(before) <= set(after)
        assert [_counts(after[key]) for key in before] == [_counts(before[key]) for key in before]


def _counts(admitted: Json) -> list[int]:
    return [podset["count"] for podset in admitted["podSets"]]


def _with_more(scenario: Json, at: int, by: int) -> Json:
    """With `by` more nominal quota at one of the places that have quota."""
    more = deepcopy(scenario)
    groups = [
        group
        for node in more["clusterQueues"] + more["cohorts"]
        for group in node.get("resourceGroups") or []
    ]
    quotas = [quota for group in groups for f in group["flavors"] for quota in f["quotas"].values()]
    quota = quotas[at % len(quotas)]
    number = quota["nominal"].removesuffix("Gi")
    quota["nominal"] = quota["nominal"].replace(number, str(int(number) + by))
    return more


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 6), st.integers(1, 3)), min_size=2, max_size=4),
    st.integers(0, 10),
    st.integers(0, 9),
)
def test_shares_converge(queues: list[tuple[int, int]], spare: int, start: int) -> None:
    """Equal small work in every queue without end: at rest no queue could give one to another.

    Shares are `borrowed / weight`. At rest the largest share of a queue, less one workload, is not
    above any other queue's share with one more: the tree is fair to one workload. Everything runs
    that the quota holds. Holds with the default strategies, from any start.
    """
    scenario = _crowd(queues, spare, start)
    history = History(scenario, decide)
    for _ in range(200):
        answer = history.step()
        if not answer["admitted"] and not answer["preempted"]:
            break
    else:
        raise AssertionError("no rest")
    total = sum(nominal for nominal, _ in queues) + spare
    usage = dict.fromkeys(range(len(queues)), 0)
    for key in history.running:
        usage[int(history.workloads[key]["queue"].removeprefix("cq"))] += 1
    assert sum(usage.values()) == total
    for rich, (nominal, weight) in enumerate(queues):
        borrowed = usage[rich] - nominal
        for poor, (other_nominal, other_weight) in enumerate(queues):
            if poor != rich and borrowed > 0:
                more = max(0, usage[poor] - other_nominal + 1)
                assert (borrowed - 1) / weight <= more / other_weight, usage


def _crowd(queues: list[tuple[int, int]], spare: int, start: int) -> Json:
    """Queues of (nominal, weight) below one cohort; the first one runs `start` of the total."""
    total = sum(nominal for nominal, _ in queues) + spare

    def group(nominal: int) -> list[Json]:
        quotas = {"cpu": {"nominal": str(nominal)}}
        return [{"resources": ["cpu"], "flavors": [{"name": "f", "quotas": quotas}]}]

    workloads: list[Json] = []
    for at in range(len(queues)):
        for number in range(total + 1):
            work: Json = {
                "namespace": "ns",
                "name": f"w{at}-{number}",
                "queue": f"cq{at}",
                "created": -100 * number - at - 1,
                "podSets": [{"name": "main", "count": 1, "requests": {"cpu": "1"}}],
            }
            if at == 0 and number < min(start, total):
                admitted = {
                    "name": "main",
                    "count": 1,
                    "flavors": {"cpu": "f"},
                    "usage": {"cpu": "1"},
                }
                work["admission"] = {"clusterQueue": "cq0", "podSets": [admitted]}
                work["reservedAt"] = work["created"]
            workloads.append(work)
    return {
        "id": "crowd",
        "tags": [],
        "fairSharing": {},
        "flavors": [{"name": "f"}],
        "cohorts": [{"name": "root", "resourceGroups": group(spare)}],
        "clusterQueues": [
            {
                "name": f"cq{at}",
                "cohort": "root",
                "fairWeight": str(weight),
                "resourceGroups": group(nominal),
                "queueingStrategy": "BestEffortFIFO",
                "preemption": {"withinClusterQueue": "Never", "reclaimWithinCohort": "Any"},
                "flavorFungibility": {
                    "whenCanBorrow": "MayStopSearch",
                    "whenCanPreempt": "TryNextFlavor",
                },
            }
            for at, (nominal, weight) in enumerate(queues)
        ],
        "localQueues": [
            {"namespace": "ns", "name": f"cq{at}", "clusterQueue": f"cq{at}"}
            for at in range(len(queues))
        ],
        "namespaces": [{"name": "ns", "labels": {}}],
        "workloads": workloads,
    }

"""What a user of one namespace is shown of an explanation."""

from __future__ import annotations

import msgspec
import pytest

from rackgate_assigner.explain.explanation import (
    DomainCapacity,
    Explanation,
    FlavorView,
    Holder,
    LevelCapacity,
    NotPreempted,
    QueuePosition,
    Remedy,
    WorkloadAhead,
)
from rackgate_assigner.explain.tenant import HIDDEN, for_namespace


def domain(*holders: str) -> DomainCapacity:
    return DomainCapacity(
        domain=("block-1", "rack-1"),
        pods=1,
        pods_when_empty=2,
        slices=1,
        nodes=2,
        usable_nodes=2,
        tightest="cpu",
        fragmented=False,
        resources=(),
        holders=tuple(Holder(kind="Workload", name=name, pods=3) for name in holders),
    )


def found() -> Explanation:
    level = LevelCapacity(
        level="cloud.example/rack",
        asked=True,
        domains=1,
        pods=1,
        best=(domain("team/own", "team-b/secret", "team-b/secret-2"),),
        fragmented=False,
    )
    flavor = FlavorView(
        flavor="tas", topology="t", level_keys=("cloud.example/rack",), nodes=2, levels=(level,)
    )
    return Explanation(
        workload="team/w",
        state="waiting",
        summary="It waits for team-b/secret-2 and 2/4 pods.",
        queue=QueuePosition("team/lq", "cq", ahead=(WorkloadAhead("team-c/first", 7, "now"),)),
        flavors=(flavor,),
        changes=(Remedy("wait", "team-b/secret", "whenEmpty", "wait until team-b/secret ends"),),
        not_preempted=(NotPreempted("team-b/secret", "cq", 9, "priority", "it has priority 9"),),
        message='topology "t" allows to fit only 1 out of 2 pod(s), kubernetes.io/hostname',
    )


@pytest.mark.requirement("OPS-05")
def test_names_of_other_namespaces_are_hidden_wherever_they_stand() -> None:
    shown = for_namespace(found(), "team")
    text = msgspec.json.encode(shown).decode()
    assert "secret" not in text
    assert "team-b" not in text
    assert "team-c" not in text
    assert shown.summary == f"It waits for {HIDDEN} and 2/4 pods."
    assert shown.changes[0].text == f"wait until {HIDDEN} ends"
    names = [holder.name for holder in shown.flavors[0].levels[0].best[0].holders]
    assert names == ["team/own", HIDDEN, HIDDEN]


def test_everything_else_is_as_it_was() -> None:
    whole = found()
    shown = for_namespace(whole, "team")
    assert (shown.message, shown.workload) == (whole.message, whole.workload)
    assert shown.queue is not None
    assert shown.queue.local_queue == "team/lq"
    assert shown.flavors[0].levels[0].best[0].domain == ("block-1", "rack-1")
    alone = msgspec.structs.replace(whole, flavors=(), changes=(), not_preempted=(), queue=None)
    assert for_namespace(alone, "team") is alone

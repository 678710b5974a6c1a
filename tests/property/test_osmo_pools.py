"""Whatever is there when a Pool is looked at: a few steps bring it in step, or it says why not."""

from __future__ import annotations

import copy
from typing import Any, Final

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rackgate.api.names import OSMO_GROUP, OSMO_POOL_LABEL, OSMO_VERSION, PoolReason
from rackgate.wire.osmo import KaiTopology, Pool
from rackgate_assigner.osmo_pools.plan import (
    AdoptTopology,
    CreateTopology,
    DeleteTopology,
    Plan,
    PoolState,
    ReplaceTopology,
    is_ours,
    plan_pool,
    topology_name,
)
from tests.support.apiserver_objects import apply_patch

Object = dict[str, Any]
NAME: Final = "my-pool"
TOPOLOGY: Final = topology_name(NAME)
LABELS: Final = ("zone", "spine", "rack", "example.com/clique")
AT: Final = "2026-08-01T12:00:00Z"
# Create, replace and mark each come once at most, and a look that finds it well.
STEPS: Final = 3


def owner(kind: str, name: str, uid: str, *, controller: bool, group: str = OSMO_GROUP) -> Object:
    version = f"{group}/{OSMO_VERSION}"
    found = {"apiVersion": version, "kind": kind, "name": name, "uid": uid}
    return {**found, "controller": True} if controller else found


KEYS = st.lists(st.sampled_from(LABELS), unique=True).map(
    lambda found: [{"key": label[-4:], "label": label} for label in found]
)
POOLS = st.none() | st.fixed_dictionaries(
    {
        "metadata": st.fixed_dictionaries(
            {"name": st.just(NAME), "uid": st.just("now")},
            optional={"deletionTimestamp": st.just(AT)},
        ),
        "spec": st.fixed_dictionaries(
            {"topology_keys": KEYS}, optional={"scheduler": st.sampled_from(("kai", "other"))}
        ),
    }
)
OWNERS = st.lists(
    st.sampled_from(
        (
            owner("Pool", NAME, "now", controller=True),
            owner("Pool", NAME, "before", controller=True),
            owner("Pool", "other", "x", controller=True),
            owner("Pool", NAME, "now", controller=True, group="example.com"),
            owner("ConfigMap", "c", "y", controller=False),
        )
    ),
    max_size=2,
    unique_by=lambda found: found.get("controller", False),
)
TOPOLOGIES = st.none() | st.fixed_dictionaries(
    {
        "metadata": st.fixed_dictionaries(
            {"name": st.just(TOPOLOGY), "uid": st.just("t"), "resourceVersion": st.just("7")},
            optional={
                "labels": st.dictionaries(
                    st.sampled_from((OSMO_POOL_LABEL, "team")), st.sampled_from((NAME, "other"))
                ),
                "ownerReferences": OWNERS,
                "finalizers": st.just(["example.com/hold"]),
                "deletionTimestamp": st.just(AT),
            },
        ),
        "spec": st.fixed_dictionaries(
            {"levels": KEYS.map(lambda keys: [{"nodeLabel": key["label"]} for key in keys])}
        ),
    }
)


def look(pool: Object | None, topology: Object | None, *served: bool) -> Plan:
    def view(found: Object | None, kind: Any) -> Any:
        return None if found is None else msgspec.convert(found, kind)

    return plan_pool(PoolState(NAME, view(pool, Pool), view(topology, KaiTopology), *served))


def removed(topology: Object) -> Object | None:
    """What a deletion leaves."""
    if not topology["metadata"].get("finalizers"):
        return None
    topology["metadata"]["deletionTimestamp"] = AT
    return topology


def taken(plan: Plan, topology: Object | None) -> Object | None:
    """The Topology after a step, as the API server would have it."""
    found = copy.deepcopy(topology)
    match plan.action:
        case CreateTopology(body):
            assert found is None
            found = copy.deepcopy(body)
        case ReplaceTopology(old, body):
            assert found
            assert old.uid == found["metadata"]["uid"]
            found = removed(found) or copy.deepcopy(body)
        case AdoptTopology(_, operations):
            assert found
            patch = msgspec.json.encode(operations)
            found = apply_patch(found, "application/json-patch+json", patch)
        case DeleteTopology(old):
            assert found
            assert old.uid == found["metadata"]["uid"]
            found = removed(found)
    return found


@pytest.mark.requirement("OSM-08")
@given(POOLS, TOPOLOGIES)
def test_a_few_steps_add_a_pool_in_step_or_say_why(
    pool: Object | None, topology: Object | None
) -> None:
    before, ours = copy.deepcopy(topology), topology is None
    if topology is not None:
        ours = is_ours(msgspec.convert(topology, KaiTopology), NAME)
    steps = 0
    while (plan := look(pool, topology)).action is not None:
        assert ours, "what somebody else made is never touched"
        assert plan.condition is None
        topology, steps = taken(plan, topology), steps + 1
        assert steps < STEPS, f"still {plan.action}"
    leaving = pool is None or "deletionTimestamp" in pool["metadata"]
    if pool is None or leaving:
        held = topology and "deletionTimestamp" in topology["metadata"]
        assert topology is None or held or not ours
        return
    said = plan.condition
    assert said is not None
    wanted = [key["label"] for key in pool["spec"]["topology_keys"]]
    if said.reason is PoolReason.IN_STEP:
        assert topology
        assert [level["nodeLabel"] for level in topology["spec"]["levels"]] == wanted
        assert topology["metadata"]["labels"][OSMO_POOL_LABEL] == NAME
        held_by = [one for one in topology["metadata"]["ownerReferences"] if one.get("controller")]
        assert [one["uid"] for one in held_by] == ["now"]
    elif said.reason is PoolReason.NO_TOPOLOGY_KEYS:
        assert not wanted
        assert topology is None or not ours
    elif said.reason is PoolReason.WAITING_FOR_DELETION:
        assert topology
        assert "deletionTimestamp" in topology["metadata"]
    else:
        assert topology == before
        assert not said.synced
    if before and topology and before["metadata"]["uid"] == topology["metadata"].get("uid"):
        team = before["metadata"].get("labels", {}).get("team")
        assert topology["metadata"].get("labels", {}).get("team") == team


@given(POOLS, TOPOLOGIES, st.booleans(), st.booleans())
def test_without_the_kinds_nothing_is_made_and_without_pools_nothing_removed(
    pool: Object | None, topology: Object | None, pools: bool, topologies: bool
) -> None:
    plan = look(pool, topology, pools, topologies)
    if not topologies and pool is not None and "deletionTimestamp" not in pool["metadata"]:
        assert not isinstance(plan.action, CreateTopology | ReplaceTopology | AdoptTopology)
    if not pools and pool is None:
        assert plan == Plan()

"""`rackgate osmo apply` beside other writers: docs/design/races/osmo.md, section apply."""

from __future__ import annotations

import asyncio
import copy
import json
from collections.abc import AsyncIterator
from typing import Any

import pytest

from rackgate.api.names import OSMO_POOL_LABEL
from rackgate.api.resources import (
    KAI_POD_GROUPS,
    KAI_QUEUES,
    KAI_TOPOLOGIES,
    OSMO_POOLS,
    PODS,
    Resource,
)
from rackgate.kube.client import Client
from rackgate_cli.errors import CommandError
from rackgate_cli.osmo.apply import applier as osmo_applying
from rackgate_cli.osmo.apply.applier import Applier, Outcome
from rackgate_cli.osmo.apply.preconditions import (
    check_served,
    has_pool,
    missing_queue,
    nodes_outside_pool_warning,
    of_pool,
)
from rackgate_cli.osmo.inputs import find_pool
from tests.support.apiserver import FakeApiServer, Request
from tests.support.apiserver_faults import Fault
from tests.wire.osmo_world import (
    LABELS,
    SPACE,
    TOPOLOGY,
    WRITES,
    Before,
    Death,
    Wanted,
    dies,
    levels,
    pool,
    results,
    writes,
)


@pytest.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer() as found:
        yield found


@pytest.fixture
async def client(server: FakeApiServer) -> AsyncIterator[Client]:
    found = server.client(request_timeout_s=30)
    yield found
    await found.close()


@pytest.mark.requirement("OSM-21")
async def test_a_workflow_writes_its_own_objects_alone_and_nothing_when_called_again(
    server: FakeApiServer, client: Client
) -> None:
    wanted = Wanted()
    first = await wanted.apply(client)
    assert wanted.is_in(server)
    assert set(results(first).values()) == {"created"}
    assert len(writes(server)) == 1 + len(wanted.groups) + len(wanted.pods)
    # A field that the server does not know would be dropped without a word otherwise.
    sent = [seen.query for seen in server.requests if seen.method != "GET"]
    assert all(query["fieldValidation"] == "Strict" for query in sent)
    server.requests.clear()
    again = await wanted.apply(client)
    assert set(results(again).values()) == {"unchanged"}
    assert writes(server) == []


@pytest.mark.parametrize("applied", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("number", range(WRITES))
async def test_a_call_after_a_death_at_any_write_completes(
    server: FakeApiServer, client: Client, number: int, applied: bool
) -> None:
    server.put(KAI_TOPOLOGIES, Wanted(("rack",)).topology)
    wanted = Wanted()
    death = Death(number, applied=applied)
    server.faults.append(death)
    await dies(wanted.apply(client), death.struck)
    # Pods are written side by side: those after the last write may be there, too.
    assert applied or not wanted.is_in(server)
    await wanted.apply(client)
    assert wanted.is_in(server)


async def test_a_death_between_deleting_and_creating_the_topology_is_fixed(
    server: FakeApiServer, client: Client
) -> None:
    server.put(KAI_TOPOLOGIES, Wanted(("rack",)).topology)
    death = Death(0, applied=True)
    server.faults.append(death)
    await dies(Wanted().apply(client), death.struck)
    assert levels(server) is None
    outcome = await Wanted().apply(client)
    assert results(outcome)[f"Topology {TOPOLOGY}"] == "created"
    assert levels(server) == [LABELS["zone"], LABELS["rack"]]


@pytest.mark.parametrize("applied", [False, True], ids=["lost", "done"])
@pytest.mark.parametrize("method", ["POST", "DELETE", "PATCH"])
async def test_a_write_without_an_answer_is_looked_at_before_it_is_repeated(
    server: FakeApiServer, client: Client, method: str, applied: bool
) -> None:
    wanted = Wanted()
    if method == "DELETE":
        server.put(KAI_TOPOLOGIES, Wanted(("rack",)).topology)
    if method == "PATCH":
        server.put(KAI_POD_GROUPS, Wanted(second="a").groups[0])
    server.faults.append(Fault.cut(applied=applied, method=method))
    outcome = await wanted.apply(client)
    assert wanted.is_in(server)
    # And told as what it was.
    word = {"POST": "created", "DELETE": "replaced", "PATCH": "changed"}[method]
    assert word in results(outcome).values()
    assert "unchanged" not in results(outcome).values()


@pytest.mark.parametrize(
    ("kind", "name"),
    [(KAI_POD_GROUPS, "w-train"), (KAI_TOPOLOGIES, TOPOLOGY)],
    ids=["group", "topology"],
)
async def test_what_somebody_creates_first_is_taken_as_it_is(
    server: FakeApiServer, client: Client, kind: Any, name: str
) -> None:
    wanted = Wanted()
    items = [wanted.topology, *wanted.groups]
    theirs = next(item for item in items if item["metadata"]["name"] == name)
    path = kind.path(SPACE if kind.namespaced else None)
    server.faults.append(
        Before(lambda: server.put(kind, copy.deepcopy(theirs)), method="POST", path=path)
    )
    outcome = await wanted.apply(client)
    assert results(outcome)[f"{kind.kind} {name}"] == "unchanged"
    assert wanted.is_in(server)


@pytest.mark.requirement("OSM-08")
async def test_only_the_topology_that_was_looked_at_is_deleted(
    server: FakeApiServer, client: Client
) -> None:
    old, wanted = Wanted(("rack",)), Wanted()
    server.put(KAI_TOPOLOGIES, old.topology)
    made: list[str] = []

    def somebody_replaces_it() -> None:
        server.remove(KAI_TOPOLOGIES, TOPOLOGY)
        made.append(server.put(KAI_TOPOLOGIES, wanted.topology)["metadata"]["uid"])

    server.faults.append(Before(somebody_replaces_it, method="DELETE"))
    outcome = await wanted.apply(client)
    assert results(outcome)[f"Topology {TOPOLOGY}"] == "unchanged"
    found = server.get(KAI_TOPOLOGIES, TOPOLOGY)
    assert found is not None
    assert found["metadata"]["uid"] == made[0]


async def test_a_group_that_changed_since_it_was_read_is_read_again(
    server: FakeApiServer, client: Client
) -> None:
    wanted = Wanted()
    old = Wanted(second="a").groups[0]
    server.put(KAI_POD_GROUPS, copy.deepcopy(old))

    def somebody_changes_it() -> None:
        spec = {**old["spec"], "priorityClassName": "train"}
        server.put(KAI_POD_GROUPS, {**old, "spec": spec})

    server.faults.append(Before(somebody_changes_it, method="PATCH"))
    await wanted.apply(client)
    found = server.get(KAI_POD_GROUPS, "w-train", SPACE)
    assert found is not None
    assert found["spec"] == {**wanted.groups[0]["spec"], "priorityClassName": "train"}


async def test_two_calls_at_once_make_each_object_once(
    server: FakeApiServer, client: Client
) -> None:
    one, two = await asyncio.gather(Wanted().apply(client), Wanted().apply(client))
    assert Wanted().is_in(server)
    for name in results(one):
        assert {results(one)[name], results(two)[name]} <= {"created", "unchanged"}
        assert [results(one)[name], results(two)[name]].count("created") <= 1


async def test_a_group_that_took_another_shape_under_its_new_pods_is_reported(
    server: FakeApiServer, client: Client
) -> None:
    other = Wanted(second="a").groups[0]
    server.faults.append(
        Before(lambda: server.put(KAI_POD_GROUPS, other), method="POST", path="/pods")
    )
    with pytest.raises(CommandError, match='PodGroup "w-train" was changed or deleted while'):
        await Wanted().apply(client)


async def test_nothing_is_written_when_a_group_with_pods_would_change(
    server: FakeApiServer, client: Client
) -> None:
    await Wanted(("rack",)).apply(client)
    server.requests.clear()
    with pytest.raises(CommandError) as refused:
        await Wanted(("zone", "rack"), second="a").apply(client)
    assert "nothing is written:" in str(refused.value)
    assert 'PodGroup "w-train": ' in str(refused.value)
    assert 'PodGroup "w-eval": ' in str(refused.value)
    assert writes(server) == []


@pytest.mark.requirement("OSM-08")
async def test_keys_change_under_groups_that_run_and_nothing_but_the_topology(
    server: FakeApiServer, client: Client
) -> None:
    before = Wanted(("rack",))
    await before.apply(client)
    server.requests.clear()
    outcome = await Wanted().apply(client)
    path = KAI_TOPOLOGIES.path(None, TOPOLOGY)
    assert writes(server) == [f"DELETE {path}", f"POST {KAI_TOPOLOGIES.path()}"]
    found = results(outcome)
    assert found.pop(f"Topology {TOPOLOGY}") == "replaced"
    assert set(found.values()) == {"unchanged"}
    assert outcome.warnings == []


@pytest.mark.requirement("OSM-08")
async def test_every_write_of_a_dry_run_says_that_it_is_one(
    server: FakeApiServer, client: Client
) -> None:
    server.put(KAI_TOPOLOGIES, Wanted(("rack",)).topology)
    wanted, outcome = Wanted(), Outcome()
    applier = Applier(client, SPACE, outcome, dry_run=True)
    await applier.apply(wanted.topology, wanted.groups, wanted.pods)
    assert results(outcome)[f"Topology {TOPOLOGY}"] == "replaced"
    sent = [seen for seen in server.requests if seen.method != "GET"]
    assert len(sent) == WRITES
    for seen in sent:
        # Of a deletion with a body the server reads no query.
        said = json.loads(seen.body) if seen.method == "DELETE" else seen.query
        assert said.get("dryRun") in ("All", ["All"]), seen


async def test_groups_that_use_a_level_which_goes_away_are_named(
    server: FakeApiServer, client: Client
) -> None:
    await Wanted(("zone", "rack")).apply(client)
    constraint = {"topology": TOPOLOGY, "requiredTopologyLevel": LABELS["zone"]}
    spec = {"queue": "q", "minMember": 1, "topologyConstraint": constraint}
    theirs = {"metadata": {"name": "theirs", "namespace": "team-b"}, "spec": spec}
    server.put(KAI_POD_GROUPS, theirs)
    outcome = await Wanted(("rack",)).apply(client)
    (warning,) = outcome.warnings
    assert warning.startswith("PodGroups team-b/theirs use a level that is removed")


async def test_who_may_not_look_at_other_groups_is_reported_so(
    server: FakeApiServer, client: Client
) -> None:
    await Wanted(("rack",)).apply(client)

    class Everywhere(Fault):
        def matches(self, request: Request) -> bool:
            return request.path == KAI_POD_GROUPS.path()

    server.faults.append(Everywhere(Fault.status(403, "Forbidden").answer))
    outcome = await Wanted().apply(client)
    (warning,) = outcome.warnings
    assert "cannot be listed" in warning
    assert Wanted().is_in(server)


async def test_an_object_that_is_being_deleted_is_waited_for(
    server: FakeApiServer, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(osmo_applying, "_POLL_S", 0.01)
    wanted = Wanted()
    going = copy.deepcopy(wanted.topology)
    going["metadata"] |= {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["x/y"]}
    server.put(KAI_TOPOLOGIES, going)
    path = KAI_TOPOLOGIES.path(None, TOPOLOGY)
    server.faults += [
        Before(lambda: None, method="GET", path=path, times=3),
        Before(lambda: server.remove(KAI_TOPOLOGIES, TOPOLOGY), method="GET", path=path),
    ]
    outcome = await wanted.apply(client)
    assert results(outcome)[f"Topology {TOPOLOGY}"] == "created"
    assert wanted.is_in(server)


async def test_one_that_stays_is_reported_with_what_holds_it(
    server: FakeApiServer, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(osmo_applying, "GONE_LIMIT_S", 0.0)
    going = copy.deepcopy(Wanted().topology)
    going["metadata"] |= {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["x/y"]}
    server.put(KAI_TOPOLOGIES, going)
    with pytest.raises(
        CommandError, match=f'Topology "{TOPOLOGY}" is being deleted, and waits for x/y'
    ):
        await Wanted().apply(client)


async def test_an_object_that_never_stands_still_is_given_up(
    server: FakeApiServer, client: Client
) -> None:
    server.faults.append(Fault.status(409, "Conflict", method="POST", path="topologies", times=99))
    with pytest.raises(CommandError, match="could not be written in 8 tries: POST"):
        await Wanted().apply(client)


async def test_pods_that_admission_changed_are_the_same_when_called_again(
    server: FakeApiServer, client: Client
) -> None:
    wanted = Wanted()
    await wanted.apply(client)
    for pod in wanted.pods:
        found = server.get(PODS, pod["metadata"]["name"], SPACE)
        assert found is not None
        found["spec"]["containers"].append({"name": "sidecar", "image": "proxy:1"})
        server.put(PODS, found)
    assert set(results(await wanted.apply(client)).values()) == {"unchanged"}


@pytest.mark.parametrize("name", [".", "../../../api/v1/namespaces/team-a/pods", "a?b", "x" * 9000])
async def test_what_is_no_name_of_a_pool_is_not_asked_for(
    server: FakeApiServer, client: Client, name: str
) -> None:
    assert await find_pool(client, name) is None
    assert server.requests == []


async def test_what_was_done_before_a_rejection_is_known(
    server: FakeApiServer, client: Client
) -> None:
    server.faults.append(
        Fault.status(422, "Invalid", "no such image", method="POST", path="/pods", times=99)
    )
    outcome = Outcome()
    with pytest.raises(CommandError, match="is rejected: no such image"):
        await Wanted().apply(client, outcome)
    assert {done.kind for done in outcome.results} == {"Topology", "PodGroup"}
    server.faults.clear()
    again = results(await Wanted().apply(client))
    assert list(again.values()).count("created") == 4


async def test_a_pool_of_the_cluster_gets_its_topology_marked_and_decides_its_keys(
    server: FakeApiServer, client: Client
) -> None:
    wanted = Wanted()
    assert await has_pool(client, wanted.pool) is False
    spec = {"topology_keys": pool("zone", "rack")["topology_keys"]}
    api = {"apiVersion": OSMO_POOLS.api_version, "kind": "Pool"}
    server.put(OSMO_POOLS, {**api, "metadata": {"name": "my-pool"}, "spec": spec})
    assert await has_pool(client, wanted.pool) is True
    marked = of_pool(wanted.topology, wanted.pool)
    assert marked["metadata"]["labels"] == {OSMO_POOL_LABEL: "my-pool"}
    assert json.dumps(wanted.topology).find(OSMO_POOL_LABEL) == -1
    with pytest.raises(CommandError, match=r"other topology keys \(zone, rack\)"):
        await has_pool(client, Wanted(("rack",)).pool)


@pytest.mark.parametrize("kind", [KAI_TOPOLOGIES, KAI_POD_GROUPS], ids=lambda kind: kind.plural)
async def test_a_kind_that_is_not_there_is_named_with_who_adds_it(
    server: FakeApiServer, client: Client, kind: Resource
) -> None:
    with pytest.raises(CommandError) as refused:
        await check_served(client, kind)
    assert str(refused.value) == (
        f"the cluster does not serve {kind.full_name} in version {kind.version}: install the KAI "
        f'scheduler with the CustomResourceDefinition "{kind.full_name}" (on a '
        'playground: "rackgate up --with kai-crds")'
    )
    resources = {"resources": [{"name": kind.plural}]}
    path = f"/apis/{kind.api_version}"
    server.faults.append(Fault.body(json.dumps(resources).encode(), path=path))
    await check_served(client, kind)


async def test_a_queue_that_is_not_there_is_reported(server: FakeApiServer, client: Client) -> None:
    found = Wanted().pool
    warning = await missing_queue(client, found)
    assert warning is not None
    assert warning.startswith('queue "osmo-pool-my-pool" does not exist')
    server.put(KAI_QUEUES, {"metadata": {"name": "osmo-pool-my-pool"}, "spec": {}})
    assert await missing_queue(client, found) is None


@pytest.mark.requirement("OSM-17")
async def test_pods_that_no_selector_ties_to_their_pool_are_reported(
    server: FakeApiServer, client: Client
) -> None:
    mine = Wanted().pool
    tied = mine.model_copy(update={"node_selector": {"pool": "a"}})
    assert await nodes_outside_pool_warning(client, mine) is None
    api = {"apiVersion": OSMO_POOLS.api_version, "kind": "Pool"}
    server.put(OSMO_POOLS, {**api, "metadata": {"name": "other"}, "spec": {}})
    warning = await nodes_outside_pool_warning(client, mine)
    assert warning is not None
    assert warning.endswith("may run on nodes of other pools (other)")
    assert await nodes_outside_pool_warning(client, tied) is None
    spec = {"node_selector": {"pool": "b"}}
    server.put(OSMO_POOLS, {**api, "metadata": {"name": "my-pool"}, "spec": spec})
    for pool_ in (mine, tied):
        told = await nodes_outside_pool_warning(client, pool_)
        assert told is not None
        assert 'has another node_selector ({"pool": "b"})' in told
    server.faults.append(Fault.status(403, "Forbidden", path="pools"))
    assert await nodes_outside_pool_warning(client, mine) is None

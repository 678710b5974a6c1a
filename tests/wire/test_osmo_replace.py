"""`rackgate osmo apply --replace`: docs/design/races/osmo.md, rows A19 to A25."""

from __future__ import annotations

import copy
import json
from collections.abc import AsyncIterator

import pytest

from rackgate.api.resources import PODS
from rackgate.kube.client import Client
from rackgate_cli.errors import CommandError
from rackgate_cli.osmo.apply import applier as osmo_applying
from rackgate_cli.osmo.apply.applier import Outcome
from tests.support.apiserver import FakeApiServer
from tests.support.apiserver_faults import Fault, Request
from tests.wire.osmo_world import SPACE, Before, Death, Wanted, dies, results, writes

pytestmark = pytest.mark.requirement("OSM-17")


@pytest.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer() as found:
        yield found


@pytest.fixture
async def client(server: FakeApiServer) -> AsyncIterator[Client]:
    found = server.client(request_timeout_s=30)
    yield found
    await found.close()


def uids(server: FakeApiServer, wanted: Wanted) -> dict[str, str]:
    found = {}
    for pod in wanted.pods:
        stored = server.get(PODS, pod["metadata"]["name"], SPACE)
        if stored is not None:
            found[pod["metadata"]["name"]] = stored["metadata"]["uid"]
    return found


def of(group: str, wanted: Wanted) -> set[str]:
    names = (pod["metadata"]["name"] for pod in wanted.pods)
    return {name for name in names if name.startswith(f"w-{group}-")}


async def test_only_the_task_group_that_changed_is_made_again_and_as_a_whole(
    server: FakeApiServer, client: Client
) -> None:
    await Wanted().apply(client)
    wanted = Wanted(image="trainer:2")
    before = uids(server, wanted)
    with pytest.raises(CommandError, match=r"another pod has this name: .* --replace"):
        await wanted.apply(client)
    assert uids(server, wanted) == before
    found = results(await wanted.apply(client, replacing=True))
    assert wanted.is_in(server)
    after = uids(server, wanted)
    assert {name for name in after if after[name] != before[name]} == of("train", wanted)
    assert {found[f"Pod {name}"] for name in of("train", wanted)} == {"replaced"}
    assert {found[f"Pod {name}"] for name in of("eval", wanted)} == {"unchanged"}
    server.requests.clear()
    assert set(results(await wanted.apply(client, replacing=True)).values()) == {"unchanged"}
    assert writes(server) == []


async def test_a_group_of_another_shape_is_changed_once_its_pods_are_gone(
    server: FakeApiServer, client: Client
) -> None:
    await Wanted().apply(client)
    wanted = Wanted(second="a")
    seen: list[int] = []
    patch = Before(
        lambda: seen.append(len(uids(server, wanted))), method="PATCH", path="podgroups", times=9
    )
    server.faults.append(patch)
    outcome = await wanted.apply(client, replacing=True)
    assert wanted.is_in(server)
    # Two groups, each tried in a dry run first, beside all pods, and then written without them.
    assert seen == [4, 4, 0, 0]
    words = set(results(outcome).values())
    assert words == {"unchanged", "changed", "replaced"}  # the Topology, the groups, the pods


async def test_pods_of_tasks_that_are_gone_go_too_and_ended_ones_stay(
    server: FakeApiServer, client: Client
) -> None:
    await Wanted().apply(client)
    wanted = Wanted()
    one = copy.deepcopy(server.get(PODS, wanted.pods[0]["metadata"]["name"], SPACE))
    assert one is not None
    for name, phase in (("w-train-old-1", "Running"), ("w-train-old-2", "Succeeded")):
        metadata = {**one["metadata"], "name": name}
        del metadata["uid"]
        server.put(PODS, {**one, "metadata": metadata, "status": {"phase": phase}})
    found = results(await Wanted(image="trainer:2").apply(client, replacing=True))
    assert found["Pod w-train-old-1"] == "deleted"
    assert server.get(PODS, "w-train-old-1", SPACE) is None
    assert server.get(PODS, "w-train-old-2", SPACE) is not None


@pytest.mark.parametrize("mark", ["annotation", "owner"])
async def test_pods_of_another_origin_are_never_deleted(
    server: FakeApiServer, client: Client, mark: str
) -> None:
    await Wanted().apply(client)
    wanted = Wanted(image="trainer:2")
    name = wanted.pods[1]["metadata"]["name"]
    theirs = copy.deepcopy(server.get(PODS, name, SPACE))
    assert theirs is not None
    if mark == "annotation":
        del theirs["metadata"]["annotations"]["osmo.rackgate.dev/applied"]
    else:
        theirs["metadata"]["ownerReferences"] = [{"kind": "Job", "name": "j", "uid": "u"}]
    server.put(PODS, theirs)
    server.requests.clear()
    with pytest.raises(CommandError, match=f"{name} was not"):
        await wanted.apply(client, replacing=True)
    assert writes(server) == []


async def test_nothing_is_deleted_when_the_new_pods_would_be_rejected(
    server: FakeApiServer, client: Client
) -> None:
    await Wanted().apply(client)
    wanted = Wanted(image="trainer:2")
    before = uids(server, wanted)
    server.faults.append(
        Fault.status(422, "Invalid", "no such image", method="POST", path="/pods", times=9)
    )
    with pytest.raises(CommandError, match="are rejected: no such image"):
        await wanted.apply(client, replacing=True)
    assert uids(server, wanted) == before
    # A quota that the old pods use up is no reason: it is free when they are gone.
    server.faults.clear()
    server.faults.append(
        Fault.status(403, "Forbidden", "exceeded quota: q", method="POST", path="/pods", times=2)
    )
    await wanted.apply(client, replacing=True)
    assert wanted.is_in(server)


async def test_a_pod_that_came_meanwhile_under_the_name_stays(
    server: FakeApiServer, client: Client
) -> None:
    await Wanted().apply(client)
    wanted = Wanted(image="trainer:2")
    name = wanted.pods[0]["metadata"]["name"]
    stored = copy.deepcopy(server.get(PODS, name, SPACE))
    assert stored is not None

    def somebody_replaces_it() -> None:
        server.remove(PODS, name, SPACE)
        metadata = {**stored["metadata"], "uid": "another"}
        server.put(PODS, {**stored, "metadata": metadata})

    server.faults.append(Before(somebody_replaces_it, method="DELETE", path=name))
    with pytest.raises(CommandError, match="was replaced in the meantime: run the command again"):
        await wanted.apply(client, replacing=True)
    found = server.get(PODS, name, SPACE)
    assert found is not None
    assert found["metadata"]["uid"] == "another"
    await wanted.apply(client, replacing=True)
    assert wanted.is_in(server)


@pytest.mark.parametrize("applied", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("number", range(9))
async def test_a_call_after_a_death_at_any_write_of_a_replacement_completes(
    server: FakeApiServer, client: Client, number: int, applied: bool
) -> None:
    await Wanted().apply(client)
    wanted = Wanted(image="trainer:2", second="a")
    death = Death(number, applied=applied)
    server.faults.append(death)
    await dies(wanted.apply(client, replacing=True), death.struck)
    await wanted.apply(client, replacing=True)
    assert wanted.is_in(server)


async def test_after_all_deletions_a_call_without_the_flag_completes_too(
    server: FakeApiServer, client: Client
) -> None:
    await Wanted().apply(client)
    wanted = Wanted(image="trainer:2")
    outcome = Outcome()

    class NoTry(Fault):
        """A dry run passes."""

        def matches(self, request: Request) -> bool:
            return super().matches(request) and "dryRun" not in request.query

    refusal = Fault.status(422, "Invalid", "no").answer
    server.faults.append(NoTry(refusal, method="POST", path="/pods", times=99))
    with pytest.raises(CommandError):
        await wanted.apply(client, outcome, replacing=True)
    assert "deleted" in results(outcome).values()
    server.faults.clear()
    await wanted.apply(client)
    assert wanted.is_in(server)


async def test_pods_that_do_not_end_are_named(
    server: FakeApiServer, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(osmo_applying, "GONE_LIMIT_S", -1000.0)
    await Wanted().apply(client)
    wanted = Wanted(image="trainer:2")
    held = Fault.body(b"{}", method="DELETE", times=9)  # a finalizer holds them
    server.faults.append(held)
    with pytest.raises(CommandError, match="pods w-train-train0, w-train-train1 are being deleted"):
        await wanted.apply(client, replacing=True)
    assert set(uids(server, wanted)) == {pod["metadata"]["name"] for pod in wanted.pods}


async def test_a_dry_run_tells_what_would_be_replaced_and_writes_nothing(
    server: FakeApiServer, client: Client
) -> None:
    await Wanted().apply(client)
    wanted = Wanted(image="trainer:2", second="a")
    before = uids(server, wanted)
    server.requests.clear()
    outcome = await wanted.apply(client, replacing=True, dry_run=True)
    assert uids(server, wanted) == before
    assert {word for name, word in results(outcome).items() if name.startswith("Pod ")} == {
        "replaced"
    }
    sent = [seen for seen in server.requests if seen.method != "GET"]
    for seen in sent:
        said = json.loads(seen.body) if seen.method == "DELETE" else seen.query
        assert said.get("dryRun") in ("All", ["All"]), seen

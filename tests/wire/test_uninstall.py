"""The end of an installation, and everything that is none: docs/races/uninstall.md."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import pytest

from rackgate.api import names
from rackgate.kube import resources as kinds
from rackgate.kube.client import Client
from rackgate.kube.errors import KubeError
from rackgate.kube.resources import Resource
from rackgate.kube.uninstall import FINALIZER, Uninstall
from rackgate_assigner.uninstall import Report, release_all
from rackgate_assigner.uninstall_plan import Jobs
from rackgate_ungater.uninstall import release_pods
from tests.support import objects
from tests.support.apiserver import FakeApiServer, Fault, Object
from tests.support.waiting import until
from tests.wire.assigner_world import NAMESPACE, START, World, assigner, furnish

SYSTEM, NAME = "rackgate-system", "rackgate-assigner"
FULL = f"{NAME}.{SYSTEM}"
OWN: tuple[tuple[Resource, str, str], ...] = (
    (kinds.CLUSTER_ROLE_BINDINGS, FULL, ""),
    (kinds.CLUSTER_ROLES, FULL, ""),
    (kinds.SERVICE_ACCOUNTS, NAME, SYSTEM),
)
HELD = (kinds.WORKLOADS, kinds.CLUSTER_QUEUES, kinds.FLAVORS, kinds.TOPOLOGIES)
BINDING, _ROLE, ACCOUNT = OWN


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with World() as found:
        found.put(kinds.NAMESPACES, {"metadata": {"name": SYSTEM, "finalizers": ["kubernetes"]}})
        for kind, name, namespace in OWN:
            meta = {"name": name, "namespace": namespace, "finalizers": [FINALIZER, "other/one"]}
            found.put(kind, {"metadata": meta})
        yield found


def deleted(world: World, *which: tuple[Resource, str, str]) -> None:
    """As the API server keeps what is deleted while it has finalizers."""
    for kind, name, namespace in which:
        stored = world.get(kind, name, namespace)
        assert stored is not None
        meta = {**stored["metadata"], "deletionTimestamp": START}
        world.put(kind, {**stored, "metadata": meta})


def finalizers(world: FakeApiServer, which: tuple[Resource, str, str]) -> list[str]:
    found = world.get(*which)
    return found["metadata"]["finalizers"] if found else []


@contextlib.asynccontextmanager
async def following(world: World) -> AsyncIterator[tuple[Uninstall, Client]]:
    client = world.client()
    found = Uninstall(client, "assigner", SYSTEM)
    running = asyncio.create_task(found.run())
    try:
        yield found, client
        assert not running.done()
    finally:
        running.cancel()
        await asyncio.wait((running,))
        await client.close()


async def nothing() -> None:
    """Nothing is held."""


async def test_binding_and_account_deleted_together_are_an_uninstall(world: World) -> None:
    async with following(world) as (uninstall, _):
        deleted(world, BINDING, ACCOUNT)
        await asyncio.wait_for(uninstall.begun.wait(), 30)
        assert await uninstall.at_stop()


async def looked_at(world: World, path: str, times: int = 3) -> None:
    """Wait until it was asked for that often: nothing more would come of waiting longer."""
    before = sum(path in seen.path for seen in world.requests)
    await until(lambda: sum(path in seen.path for seen in world.requests) >= before + times)


@pytest.mark.requirement("OPS-14")
async def test_a_binding_that_is_deleted_alone_is_no_uninstall(world: World) -> None:
    """To change its role it has to be deleted and made anew."""
    async with following(world) as (uninstall, _):
        deleted(world, BINDING)
        await looked_at(world, "/serviceaccounts/")
        assert not uninstall.begun.is_set()
        # It is made anew, and then all is as before.
        world.remove(kinds.CLUSTER_ROLE_BINDINGS, FULL)
        world.put(kinds.CLUSTER_ROLE_BINDINGS, {"metadata": {"name": FULL}})
        await until(lambda: uninstall._binding.store[FULL].metadata.deletion_timestamp is None)
        assert not await uninstall.at_stop()
        deleted(world, ACCOUNT)
        assert not uninstall.begun.is_set()


@pytest.mark.requirement("OPS-14")
async def test_a_restart_is_no_uninstall_and_writes_nothing(world: World) -> None:
    async with following(world) as (uninstall, _):
        assert not await uninstall.at_stop()
    assert world.writes() == []
    assert all(FINALIZER in finalizers(world, which) for which in OWN)


async def test_a_stop_that_comes_before_the_rest_of_the_deletion_waits_for_it(
    world: World,
) -> None:
    """`kubectl delete` deletes one object after another, and pods are ended by others."""
    async with following(world) as (uninstall, _):
        space = world.get(kinds.NAMESPACES, SYSTEM)
        assert space is not None
        meta = {**space["metadata"], "deletionTimestamp": START}
        world.put(kinds.NAMESPACES, {"metadata": meta})
        stopping = asyncio.create_task(uninstall.at_stop())
        await until(lambda: any("/namespaces/rackgate" in seen.path for seen in world.requests))
        deleted(world, ACCOUNT, BINDING)
        assert await asyncio.wait_for(stopping, 30)


async def test_a_stop_without_an_api_server_is_no_uninstall(world: World) -> None:
    async with following(world) as (uninstall, _):
        await world.stop()
        assert not await asyncio.wait_for(uninstall.at_stop(), 30)


@pytest.mark.requirement("OPS-14")
async def test_finalizers_go_last_and_the_account_after_all_others(world: World) -> None:
    async with following(world) as (uninstall, _):
        deleted(world, *OWN)

        async def work() -> None:
            assert all(FINALIZER in finalizers(world, which) for which in OWN)

        await uninstall.give_back(work)
    assert [finalizers(world, which) for which in OWN] == [["other/one"]] * 3
    patched = [seen.path for seen in world.writes()]
    assert [path.split("/")[-2] for path in patched] == [
        "clusterrolebindings",
        "clusterroles",
        "serviceaccounts",
    ]


@pytest.mark.parametrize("lost", [False, True], ids=["refused", "lost"])
@pytest.mark.parametrize("write", range(3))
async def test_whoever_dies_between_two_writes_leaves_them_to_another(
    world: World, write: int, lost: bool
) -> None:
    deleted(world, *OWN)
    kind = OWN[write][0].plural
    async with following(world) as (uninstall, _):
        broken = Fault.status(403, "Forbidden", method="PATCH", path=kind)
        if lost:

            async def applied(_: Any, handle: Callable[[], Awaitable[Any]]) -> Any:
                await handle()
                raise asyncio.CancelledError

            broken = Fault(applied, method="PATCH", path=kind, times=1)
        world.faults.append(broken)
        with contextlib.suppress(asyncio.CancelledError):
            await uninstall.give_back(nothing)
    world.faults.clear()
    async with following(world) as (again, _):
        await again.give_back(nothing)
    assert [finalizers(world, which) for which in OWN] == [["other/one"]] * 3


async def test_two_replicas_at_once_come_to_the_same_end(world: World) -> None:
    async with following(world) as (one, client), following(world) as (other, _):
        deleted(world, *OWN)
        furnish(world)
        hold(world)

        async def work() -> None:
            await release_all(client, system_namespace=SYSTEM)

        await asyncio.gather(one.give_back(work), other.give_back(work))
    assert held(world) == []
    assert [finalizers(world, which) for which in OWN] == [["other/one"]] * 3


async def test_a_replica_without_rights_leaves_it_to_the_other(world: World) -> None:
    async with following(world) as (uninstall, client):
        world.faults.append(Fault.status(403, "Forbidden", path="/workloads", times=100))

        async def work() -> None:
            await release_all(client, system_namespace=SYSTEM)

        await uninstall.give_back(work)
    assert all(FINALIZER in finalizers(world, which) for which in OWN)


async def test_who_is_about_to_act_puts_its_finalizers_and_keeps_those_of_others(
    world: World,
) -> None:
    for kind, name, namespace in OWN:
        world.put(kind, {"metadata": {"name": name, "namespace": namespace, "finalizers": ["o/1"]}})
    async with following(world) as (one, _), following(world) as (other, _):
        await asyncio.gather(one.hold(), other.hold())
        written = len(world.writes())
        await one.hold()
    assert [finalizers(world, which) for which in OWN] == [["o/1", FINALIZER]] * 3
    assert len(world.writes()) == written, "a restart writes nothing"


async def test_what_is_being_deleted_gets_no_finalizer(world: World) -> None:
    for kind, name, namespace in OWN:
        world.put(kind, {"metadata": {"name": name, "namespace": namespace, "finalizers": ["o/1"]}})
    deleted(world, *OWN)
    async with following(world) as (uninstall, _):
        await uninstall.hold()
    assert [finalizers(world, which) for which in OWN] == [["o/1"]] * 3


async def test_an_older_role_keeps_nobody_from_acting(world: World) -> None:
    world.faults.append(Fault.status(403, "Forbidden", path="/serviceaccounts/", times=9))
    async with following(world) as (uninstall, _):
        await uninstall.hold()


# What is given back.


def hold(world: World) -> None:
    """Give everything the finalizer that the assigner gives it."""
    for kind in HELD:
        for item in list(world._objects.get(kind.full_name, {}).values()):
            meta = {**item["metadata"], "finalizers": ["other/one", names.IN_USE_FINALIZER]}
            world.put(kind, {**item, "metadata": meta})


def held(world: World) -> list[str]:
    return [
        f"{kind.kind} {item['metadata']['name']}"
        for kind in HELD
        for item in world._objects.get(kind.full_name, {}).values()
        if names.IN_USE_FINALIZER in item["metadata"].get("finalizers", ())
    ]


async def given_back(world: World, jobs: Jobs = Jobs.LEAVE, **options: Any) -> Report:
    client = world.client()
    try:
        return await release_all(client, system_namespace=SYSTEM, jobs=jobs, **options)
    finally:
        await client.close()


async def with_jobs(world: World) -> None:
    """One job that runs with a topology, and one that is too large, as the webhook made it."""
    furnish(world)
    world.submit("runs", 4, required=objects.RACK)
    waits = world.submit("waits", 40, required=objects.RACK)
    spec = waits["spec"]["template"]["spec"]
    gates = [{"name": names.TOPOLOGY_GATE}, {"name": "example.com/own"}]
    world.put(
        kinds.JOBS,
        {
            **waits,
            "spec": {
                **waits["spec"],
                "template": {
                    **waits["spec"]["template"],
                    "spec": {**spec, "schedulingGates": gates},
                },
            },
        },
    )
    async with assigner(world):
        await until(world.started("runs"))
        await until(world.shows("waits", "QuotaReserved", "False"))


def template(world: World, name: str) -> Mapping[str, Any]:
    found: Mapping[str, Any] = world.job(name)["spec"]["template"]
    return found


def gates(world: World, name: str) -> list[str]:
    return [gate["name"] for gate in template(world, name)["spec"].get("schedulingGates", ())]


@pytest.mark.requirement("OPS-14")
async def test_jobs_that_run_are_left_and_jobs_that_wait_are_as_their_users_wrote_them(
    world: World,
) -> None:
    await with_jobs(world)
    running = world.job("runs")
    report = await given_back(world)
    assert world.job("runs") == running, "not one write"
    assert gates(world, "waits") == ["example.com/own"]
    assert world.job("waits")["spec"]["suspend"] is True
    assert held(world) == []
    assert report.restored == {f"Job {NAMESPACE}/waits"}
    assert report.running == report.gated == [f"Job {NAMESPACE}/runs"]
    # Owners and admissions stay: the Workloads go with their jobs, and tell who runs.
    owners = [item["metadata"]["ownerReferences"][0]["name"] for item in world.workloads()]
    assert sorted(owners) == ["runs", "waits"]
    assert world.admitted("runs")


@pytest.mark.requirement("OPS-14")
async def test_an_installation_that_comes_back_restarts_nothing_and_holds_everything_again(
    world: World,
) -> None:
    await with_jobs(world)
    running = world.job("runs")
    await given_back(world)
    async with assigner(world):
        await until(lambda: len(held(world)) == 7)  # 2 Workloads, 2 queues, 2 flavors, 1 Topology
    assert world.job("runs") == running
    assert world.broken_rules == []


async def test_running_jobs_are_suspended_where_that_is_chosen(world: World) -> None:
    await with_jobs(world)
    report = await given_back(world, Jobs.SUSPEND)
    assert world.job("runs")["spec"]["suspend"] is True
    assert gates(world, "runs") == []
    assert "nodeSelector" not in template(world, "runs")["spec"]
    assert names.WORKLOAD_ANNOTATION not in world.job("runs")["metadata"]["annotations"]
    assert (report.running, report.stopping) == ([], [])
    assert held(world) == []


async def test_a_job_that_does_not_stop_in_time_is_named(world: World) -> None:
    await with_jobs(world)
    client = world.client()
    stuck = Fault.status(409, "Conflict", method="PATCH", path="/jobs/runs", times=10**6)
    world.faults.append(stuck)
    try:
        report = await release_all(
            client, system_namespace=SYSTEM, jobs=Jobs.SUSPEND, patience_s=0.5
        )
    finally:
        await client.close()
    assert report.stopping == [f"Job {NAMESPACE}/runs"]
    assert held(world) == [], "what else was held is given back all the same"


async def test_a_template_that_a_policy_does_not_let_us_write_is_named(world: World) -> None:
    await with_jobs(world)
    world.faults.append(
        Fault.status(403, "Forbidden", "a policy says no", method="PATCH", path="/jobs/", times=99)
    )
    report = await given_back(world)
    assert report.refused == {f"Job {NAMESPACE}/waits": "a policy says no"}
    assert held(world) == []


async def test_finalizers_that_come_back_for_ever_are_an_error(world: World) -> None:
    furnish(world)
    hold(world)
    world.faults.append(
        Fault.status(409, "Conflict", method="PATCH", path="/topologies", times=999)
    )
    with pytest.raises(KubeError, match="again and again"):
        await given_back(world)


def pod(name: str, *gate_names: str, leaving: bool = False) -> Object:
    meta: Object = {
        "name": name,
        "namespace": NAMESPACE,
        "labels": {names.PODSET_LABEL: "main", names.TAS_LABEL: "true"},
        "annotations": {names.WORKLOAD_ANNOTATION: "job-train"},
    }
    if leaving:
        meta |= {"deletionTimestamp": START, "finalizers": ["other/one"]}
    gates = [{"name": gate} for gate in gate_names]
    return {"metadata": meta, "spec": {"schedulingGates": gates}, "status": {"phase": "Pending"}}


@pytest.mark.requirement("OPS-14")
async def test_gated_pods_are_released_and_other_gates_stay(world: World) -> None:
    world.put(kinds.PODS, pod("one", names.TOPOLOGY_GATE, "example.com/own"))
    world.put(kinds.PODS, pod("two", names.TOPOLOGY_GATE, names.ELASTIC_GATE))
    world.put(kinds.PODS, pod("leaving", names.TOPOLOGY_GATE, leaving=True))
    world.put(kinds.PODS, pod("other", "example.com/own"))
    # Somebody writes a pod between the list and the patch: it is read again.
    world.faults.append(Fault.status(409, "Conflict", method="PATCH", path="/pods/one"))
    client = world.client()
    try:
        assert await release_pods(client) == {f"{NAMESPACE}/one", f"{NAMESPACE}/two"}
    finally:
        await client.close()

    def left(name: str) -> list[str]:
        found = world.get(kinds.PODS, name, NAMESPACE)
        assert found is not None
        return [gate["name"] for gate in found["spec"].get("schedulingGates", ())]

    assert left("one") == left("other") == ["example.com/own"]
    assert left("two") == []
    assert left("leaving") == [names.TOPOLOGY_GATE]

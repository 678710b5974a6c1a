"""The end of an installation, and everything that is none: docs/design/races/uninstall.md."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import pytest
from aiohttp import web
from structlog.testing import capture_logs

from rackgate.api import names
from rackgate.api import resources as kinds
from rackgate.api.resources import Resource
from rackgate.installation.uninstall import (
    FINALIZER,
    FINALIZER_RETRY_S,
    Uninstall,
    is_uninstall,
    run_concurrently,
)
from rackgate.kube.client import Client
from rackgate.kube.errors import ForbiddenError, KubeError
from rackgate.wire.core import Meta
from rackgate_assigner.uninstall.controller import UninstallReport, uninstall_all
from rackgate_assigner.uninstall.plan import RunningJobsPolicy
from rackgate_cli.uninstall.steps import Uninstaller
from rackgate_ungater.uninstall import ReleaseResult, log_release_result, release_pods
from tests.support import objects
from tests.support.apiserver import FakeApiServer, Fault, Object
from tests.support.apiserver_objects import status_body
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
# Pauses between two tries, here a tenth of what they are.
PAUSES = (
    "rackgate.installation.uninstall.POLL_S",
    "rackgate_assigner.uninstall.controller._POLL_S",
    "rackgate_ungater.uninstall._POLL_S",
)


@pytest.fixture(autouse=True)
def _tries_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    for pause in PAUSES:
        monkeypatch.setattr(pause, 0.03)
    short = [pause_s / 10 for pause_s in FINALIZER_RETRY_S]
    monkeypatch.setattr("rackgate.installation.uninstall.FINALIZER_RETRY_S", short)


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
async def following(world: World, **limits: float) -> AsyncIterator[tuple[Uninstall, Client]]:
    client = world.client()
    found = Uninstall(client, "assigner", SYSTEM, **limits)
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


ABSENT, THERE, LEAVING = None, Meta(), Meta(deletion_timestamp=START)


@pytest.mark.requirement("OPS-14")
@pytest.mark.parametrize("binding", [ABSENT, THERE, LEAVING])
@pytest.mark.parametrize("account", [ABSENT, THERE, LEAVING])
def test_neither_binding_nor_account_alone_is_an_uninstall(
    binding: Meta | None, account: Meta | None
) -> None:
    assert is_uninstall(binding, account) is (binding is account is LEAVING)


async def test_binding_and_account_deleted_together_are_an_uninstall(world: World) -> None:
    async with following(world) as (uninstall, _):
        deleted(world, BINDING, ACCOUNT)
        await asyncio.wait_for(uninstall.begun.wait(), 30)
        assert await uninstall.is_uninstalling_at_stop()


async def looked_at(world: World, path: str, times: int = 3) -> None:
    """Wait until it was asked for that often: nothing more would come of waiting longer."""
    before = sum(path in seen.path for seen in world.requests)
    await until(lambda: sum(path in seen.path for seen in world.requests) >= before + times)


@pytest.mark.requirement("OPS-14")
async def test_a_binding_that_is_deleted_alone_is_no_uninstall(world: World) -> None:
    """To change its role it has to be deleted and made anew."""
    async with following(world, deletion_grace_s=0.5) as (uninstall, _):
        deleted(world, BINDING)
        await looked_at(world, "/serviceaccounts/")
        assert not uninstall.begun.is_set()
        # It is made anew, and then all is as before.
        world.remove(kinds.CLUSTER_ROLE_BINDINGS, FULL)
        world.put(kinds.CLUSTER_ROLE_BINDINGS, {"metadata": {"name": FULL}})
        await until(
            lambda: (
                FULL in uninstall._binding.store
                and uninstall._binding.store[FULL].metadata.deletion_timestamp is None
            )
        )
        assert not await uninstall.is_uninstalling_at_stop()
        deleted(world, ACCOUNT)
        assert not await uninstall.is_uninstalling_at_stop(), (
            "nor is the account alone, when all time is over"
        )


@pytest.mark.requirement("OPS-14")
async def test_a_restart_is_no_uninstall_and_writes_nothing(world: World) -> None:
    async with following(world) as (uninstall, _):
        assert not await uninstall.is_uninstalling_at_stop()
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
        stopping = asyncio.create_task(uninstall.is_uninstalling_at_stop())
        await until(lambda: any("/namespaces/rackgate" in seen.path for seen in world.requests))
        deleted(world, ACCOUNT, BINDING)
        assert await asyncio.wait_for(stopping, 30)


@pytest.mark.requirement("OPS-14")
async def test_a_stop_after_the_binding_is_deleted_waits_for_the_account(world: World) -> None:
    """Helm deletes Deployments first, and accounts last."""
    async with following(world) as (uninstall, _):
        deleted(world, BINDING)
        stopping = asyncio.create_task(uninstall.is_uninstalling_at_stop())
        await looked_at(world, "/serviceaccounts/")
        assert not stopping.done()
        deleted(world, ACCOUNT)
        assert await asyncio.wait_for(stopping, 30)


async def test_a_stop_without_an_api_server_is_no_uninstall(world: World) -> None:
    async with following(world) as (uninstall, _):
        await world.stop()
        assert not await asyncio.wait_for(uninstall.is_uninstalling_at_stop(), 30)


@pytest.mark.requirement("OPS-14")
async def test_finalizers_go_last_and_the_account_after_all_others(world: World) -> None:
    async with following(world) as (uninstall, _):
        deleted(world, *OWN)

        async def work() -> None:
            assert all(FINALIZER in finalizers(world, which) for which in OWN)

        await uninstall.clean_up(work)
    assert [finalizers(world, which) for which in OWN] == [["other/one"]] * 3
    patched = [seen.path for seen in world.writes()]
    assert [path.split("/")[-2] for path in patched] == [
        "clusterrolebindings",
        "clusterroles",
        "serviceaccounts",
    ]


async def applied(_: Any, handle: Callable[[], Awaitable[Any]]) -> Any:
    """Do the work, and lose the answer."""
    await handle()
    raise asyncio.CancelledError


@pytest.mark.requirement("OPS-14")
@pytest.mark.parametrize("status", [403, 500, 422, 0])
@pytest.mark.parametrize("write", range(3))
async def test_whoever_dies_between_two_writes_leaves_them_to_another(
    world: World, write: int, status: int
) -> None:
    """500 and 422 are what webhooks of others answer, which are down or do not like the change."""
    deleted(world, *OWN)
    kind = OWN[write][0].plural
    async with following(world, clean_up_s=1.5) as (uninstall, _):
        broken = Fault.status(status, method="PATCH", path=kind, times=10**6)
        if not status:
            broken = Fault(applied, method="PATCH", path=kind, times=1)
        world.faults.append(broken)
        with capture_logs() as logs:
            await uninstall.clean_up(nothing)
    world.faults.clear()
    if status:
        assert all(FINALIZER in finalizers(world, which) for which in OWN[write:]), "none is next"
        assert "uninstall_done" not in {line["event"] for line in logs}
    async with following(world) as (again, _):
        await again.clean_up(nothing)
    assert [finalizers(world, which) for which in OWN] == [["other/one"]] * 3


async def test_two_replicas_at_once_come_to_the_same_end(world: World) -> None:
    async with following(world) as (one, client), following(world) as (other, _):
        deleted(world, *OWN)
        furnish(world)
        hold(world)

        async def work() -> None:
            await uninstall_all(client, system_namespace=SYSTEM)

        await asyncio.gather(one.clean_up(work), other.clean_up(work))
    assert held(world) == []
    assert [finalizers(world, which) for which in OWN] == [["other/one"]] * 3


async def test_a_replica_without_rights_leaves_it_to_the_other(world: World) -> None:
    async with following(world) as (uninstall, client):
        world.faults.append(Fault.status(403, "Forbidden", path="/workloads", times=100))

        async def work() -> None:
            await uninstall_all(client, system_namespace=SYSTEM)

        await uninstall.clean_up(work)
    assert all(FINALIZER in finalizers(world, which) for which in OWN)


async def test_who_is_about_to_act_puts_its_finalizers_and_keeps_those_of_others(
    world: World,
) -> None:
    for kind, name, namespace in OWN:
        world.put(kind, {"metadata": {"name": name, "namespace": namespace, "finalizers": ["o/1"]}})
    async with following(world) as (one, _), following(world) as (other, _):
        await asyncio.gather(one.add_finalizers(), other.add_finalizers())
        written = len(world.writes())
        await one.add_finalizers()
    assert [finalizers(world, which) for which in OWN] == [["o/1", FINALIZER]] * 3
    assert len(world.writes()) == written, "a restart writes nothing"


async def test_what_is_being_deleted_gets_no_finalizer(world: World) -> None:
    for kind, name, namespace in OWN:
        world.put(kind, {"metadata": {"name": name, "namespace": namespace, "finalizers": ["o/1"]}})
    deleted(world, *OWN)
    async with following(world) as (uninstall, _):
        await uninstall.add_finalizers()
    assert [finalizers(world, which) for which in OWN] == [["o/1"]] * 3


@pytest.mark.parametrize("status", [403, 500])
async def test_who_cannot_put_its_finalizers_acts_and_says_so(world: World, status: int) -> None:
    """Its role is older, perhaps, or a webhook of others is down."""
    for kind, name, namespace in OWN:
        world.put(kind, {"metadata": {"name": name, "namespace": namespace, "finalizers": ["o/1"]}})
    broken = Fault.status(status, method="PATCH", path="/serviceaccounts/", times=10**6)
    world.faults.append(broken)
    async with following(world) as (uninstall, _):
        with capture_logs() as logs:
            await uninstall.add_finalizers()
    assert [line["event"] for line in logs if "uninstall" in line["event"]] == [
        "uninstall_not_guarded"
    ]
    assert len(world.writes()) == len(FINALIZER_RETRY_S) + 1
    assert [finalizers(world, which) for which in OWN] == [["o/1"]] * 3


async def test_a_failure_leaves_no_write_unattended() -> None:
    """What is under way ends before the client is closed; nothing new begins."""
    begun, ended, goes_on = list[int](), list[int](), asyncio.Event()

    async def work(item: int) -> None:
        begun.append(item)
        if item == 0:
            await asyncio.sleep(0)  # the others begin
            asyncio.get_running_loop().call_later(0.05, goes_on.set)
            raise KubeError("PATCH", "/first")
        await goes_on.wait()
        ended.append(item)

    with pytest.raises(KubeError, match="/first"):
        await run_concurrently(work, range(100))
    assert begun[1:] == ended
    assert 1 < len(begun) < 100


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


async def given_back(
    world: World, jobs: RunningJobsPolicy = RunningJobsPolicy.LEAVE, **options: Any
) -> UninstallReport:
    client = world.client()
    try:
        return await uninstall_all(client, system_namespace=SYSTEM, jobs=jobs, **options)
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
    report = await given_back(world, RunningJobsPolicy.SUSPEND)
    assert world.job("runs")["spec"]["suspend"] is True
    assert gates(world, "runs") == []
    assert "nodeSelector" not in template(world, "runs")["spec"]
    assert names.WORKLOAD_ANNOTATION not in world.job("runs")["metadata"]["annotations"]
    assert (report.running, report.stopping) == ([], [])
    assert held(world) == []


@pytest.mark.requirement("OPS-14", "OPS-11")
async def test_jobs_that_are_not_managed_run_on_whatever_is_chosen(world: World) -> None:
    """Their namespaces are not selected: they have the label of a queue, and nothing of ours."""
    await with_jobs(world)
    world.submit("outside", 2, queue="elsewhere", spec={"suspend": False})
    outside = world.job("outside")
    report = await given_back(world, RunningJobsPolicy.SUSPEND)
    assert world.job("outside") == outside
    assert world.job("runs")["spec"]["suspend"] is True
    assert not any("outside" in label for label in (*report.running, *report.restored))


async def test_a_job_that_does_not_stop_in_time_is_named(world: World) -> None:
    await with_jobs(world)
    client = world.client()
    stuck = Fault.status(409, "Conflict", method="PATCH", path="/jobs/runs", times=10**6)
    world.faults.append(stuck)
    try:
        report = await uninstall_all(
            client, system_namespace=SYSTEM, jobs=RunningJobsPolicy.SUSPEND, stop_timeout_s=0.5
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
    assert report.failed == {f"Job {NAMESPACE}/waits": "a policy says no"}
    assert held(world) == []


@pytest.mark.requirement("OPS-14")
@pytest.mark.parametrize("status", [400, 403, 422, 500])
async def test_an_object_that_cannot_be_written_keeps_no_other_held(
    world: World, status: int
) -> None:
    furnish(world)
    hold(world)
    world.faults.append(
        Fault.status(status, "", "a policy says no", method="PATCH", path="/plain", times=10**6)
    )
    report = await given_back(world)
    assert report.failed == {
        "ClusterQueue plain": "a policy says no",
        "ResourceFlavor plain": "a policy says no",
    }
    assert sorted(held(world)) == ["ClusterQueue plain", "ResourceFlavor plain"]


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
    # Nothing of Rackgate but the gate that a policy has given it.
    linked = pod("linked", names.GANG_GATE, "example.com/own")
    linked["metadata"] |= {"labels": {}, "annotations": {names.GANG_LINK_ANNOTATION: "w"}}
    world.put(kinds.PODS, linked)
    # Somebody writes a pod between the list and the patch: it is read again.
    world.faults.append(Fault.status(409, "Conflict", method="PATCH", path="/pods/one"))
    done = {f"{NAMESPACE}/{name}" for name in ("one", "two", "linked")}
    assert await released(world) == ReleaseResult(done)
    assert (
        left(world, "one") == left(world, "other") == left(world, "linked") == ["example.com/own"]
    )
    assert left(world, "two") == []
    assert left(world, "leaving") == [names.TOPOLOGY_GATE]


@pytest.mark.requirement("OPS-14")
async def test_plain_pods_keep_their_gate_unless_they_were_admitted(world: World) -> None:
    ours = (names.ADMISSION_GATE, names.TOPOLOGY_GATE, names.GANG_GATE)
    for name, labels in (("admitted", {names.PODSET_LABEL: "main"}), ("pending", {})):
        plain = pod(name, *ours)
        plain["metadata"] |= {
            "labels": {names.MANAGED_LABEL: "true", **labels},
            "finalizers": [names.MANAGED_FINALIZER, "other/one"],
        }
        world.put(kinds.PODS, plain)
    done = {f"{NAMESPACE}/admitted", f"{NAMESPACE}/pending"}
    assert await released(world) == ReleaseResult(done)
    assert left(world, "admitted") == []
    assert left(world, "pending") == [names.ADMISSION_GATE]
    for name in ("admitted", "pending"):
        assert finalizers(world, (kinds.PODS, name, NAMESPACE)) == ["other/one"]


async def released(world: World) -> ReleaseResult:
    client = world.client()
    try:
        return await release_pods(client)
    finally:
        await client.close()


def left(world: World, name: str) -> list[str]:
    """Gates of a pod."""
    found = world.get(kinds.PODS, name, NAMESPACE)
    assert found is not None
    return [gate["name"] for gate in found["spec"].get("schedulingGates", ())]


@pytest.mark.requirement("OPS-14")
@pytest.mark.parametrize("status", [400, 403, 422, 500])
async def test_a_pod_that_cannot_be_written_is_named_and_keeps_no_other_gated(
    world: World, status: int
) -> None:
    """A policy rejects its patch, or the webhook of that policy is down."""
    for name in ("one", "odd", "two"):
        world.put(kinds.PODS, pod(name, names.TOPOLOGY_GATE))
    world.faults.append(
        Fault.status(status, "", "a policy says no", method="PATCH", path="/pods/odd", times=10**6)
    )
    deleted(world, *OWN)
    reports: list[ReleaseResult] = []
    async with following(world) as (uninstall, client):

        async def work() -> None:
            reports.append(await release_pods(client))
            log_release_result(reports[-1])

        with capture_logs() as logs:
            await uninstall.clean_up(work)
    assert reports == [
        ReleaseResult(
            {f"{NAMESPACE}/one", f"{NAMESPACE}/two"}, {f"{NAMESPACE}/odd": "a policy says no"}
        )
    ]
    assert left(world, "one") == left(world, "two") == []
    assert left(world, "odd") == [names.TOPOLOGY_GATE]
    assert [finalizers(world, which) for which in OWN] == [["other/one"]] * 3
    [named] = [line for line in logs if line["event"] == "pods_stay_gated"]
    assert (named["log_level"], named["pods"]) == ("error", reports[0].gated)


async def test_the_command_names_a_pod_that_stays_gated(world: World) -> None:
    world.put(kinds.PODS, pod("one", names.TOPOLOGY_GATE))
    world.put(kinds.PODS, pod("odd", names.TOPOLOGY_GATE))
    world.faults.append(
        Fault.status(403, "", "a policy says no", method="PATCH", path="/pods/odd", times=10**6)
    )
    client = world.client()
    try:
        command = await Uninstaller.find(client, SYSTEM, jobs="leave", timeout_s=0.1)
        done = await command.run(
            delete_crds=False, playground=None, local=False, say=lambda _: None
        )
    finally:
        await client.close()
    assert done.pods == {f"{NAMESPACE}/one"}
    assert f"Pod {NAMESPACE}/odd stays gated: a policy says no" in done.left


async def test_pods_that_come_again_and_again_do_not_keep_it_from_its_end(world: World) -> None:
    """Whoever may create pods in a namespace may write the label and the gate himself."""
    count = 0

    async def another(_: Any, handle: Callable[[], Awaitable[Any]]) -> Any:
        nonlocal count
        count += 1
        world.put(kinds.PODS, pod(f"pod-{count}", names.TOPOLOGY_GATE))
        return await handle()

    world.faults.append(Fault(another, method="PATCH", path="/pods/", times=10**6))
    world.put(kinds.PODS, pod("pod-0", names.TOPOLOGY_GATE))
    found = await asyncio.wait_for(released(world), 60)
    assert list(found.gated) == [f"{NAMESPACE}/pod-{count}"]
    assert len(found.pods) == count


async def test_pods_are_released_once_a_server_in_failure_has_recovered(world: World) -> None:
    world.put(kinds.PODS, pod("one", names.TOPOLOGY_GATE))
    world.faults.append(Fault.status(500, method="PATCH", path="/pods/one", times=4))
    assert await released(world) == ReleaseResult({f"{NAMESPACE}/one"})


async def test_without_a_right_to_list_pods_nothing_is_said_to_stay_gated(world: World) -> None:
    """Another replica was faster: its last writes took the rights of all."""
    world.put(kinds.PODS, pod("one", names.TOPOLOGY_GATE))

    async def last(_: Any, __: Any) -> web.StreamResponse:
        world.faults.append(Fault.status(403, "Forbidden", path="/pods", times=10**6))
        return web.Response(status=403, body=status_body(403, "Forbidden", "no right"))

    world.faults.append(Fault(last, method="PATCH", path="/pods/one"))
    with pytest.raises(ForbiddenError):
        await released(world)

"""`rackgate hold`, `resume`, `requeue`, `cancel` and `get -w` on a real control plane.

Their user has the rights of `rackgate-batch-user` in one namespace, and no others.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass, field

import pytest
import yaml

from rackgate.api import resources as kinds
from rackgate.kube.errors import ForbiddenError, KubeError
from rackgate_cli.cluster.rights import Right, missing
from rackgate_cli.errors import CommandError
from rackgate_cli.get import command as get_command
from rackgate_cli.get.kinds import parse as parse_kind
from rackgate_cli.jobs.actions import JobActions
from rackgate_cli.jobs.logs import JobLogs, LogOptions
from rackgate_cli.jobs.names import parse
from rackgate_cli.queues.model import WorkloadReport
from tests.support.cluster import Cluster, until
from tests.support.composite_jobs import jobset, replicated_job
from tests.support.composite_views import bound_pods, jobset_selector
from tests.support.identities import acting_as
from tests.support.objects import BLOCK, RACK, Object
from tests.support.playground import Playground

pytestmark = pytest.mark.integration

USER = "anna"
ROLE = "rackgate-batch-user"
TIMEOUT_S = 200.0


@dataclass
class User:
    """A batch user.

    Attributes:
        cluster: the test's cluster as the user sees it.
        actions: of the command.
        said: what the command printed.
    """

    cluster: Cluster
    actions: JobActions
    said: list[str] = field(default_factory=list)


@pytest.fixture
async def user(playground: Playground, cluster: Cluster) -> AsyncIterator[User]:
    await cluster.create(
        kinds.SERVICE_ACCOUNTS,
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": USER}},
    )
    group = "rbac.authorization.k8s.io"
    binding: Object = {
        "apiVersion": f"{group}/v1",
        "kind": "RoleBinding",
        "metadata": {"name": USER},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": ROLE},
        "subjects": [{"kind": "ServiceAccount", "name": USER, "namespace": cluster.namespace}],
    }
    await cluster.create(kinds.ROLE_BINDINGS, binding)
    async with acting_as(playground, cluster, (cluster.namespace, USER)) as own:
        needed = [Right("patch", kinds.WORKLOADS), Right("delete", kinds.JOBSETS)]

        async def allowed() -> bool:
            return await missing(own.client, cluster.namespace, needed) == []

        await until("the user has the rights", allowed)
        said: list[str] = []
        yield User(own, JobActions(own.client, cluster.namespace, said.append), said)


# The command as a terminal starts it: a shell lets its background jobs ignore SIGINT.
INTERRUPTIBLE = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from rackgate_cli.__main__ import main
sys.exit(main())
"""


async def prepare(cluster: Cluster) -> None:
    await cluster.add_fx_a()
    await cluster.add_queue(quota={"cpu": "16"})


async def active(cluster: Cluster, name: str) -> bool:
    return bool((await cluster.workload_of(name))["spec"]["active"])


async def test_a_user_holds_resumes_requeues_and_cancels_a_job(
    cluster: Cluster, user: User
) -> None:
    await prepare(cluster)
    await cluster.submit("train", 4)
    await cluster.bound("train", 4)
    await user.actions.hold(parse("job/train"))
    await cluster.condition("train", "Evicted", "True", "Deactivated")
    await cluster.condition("train", "QuotaReserved", "False")

    async def stopped() -> bool:
        return await cluster.pods_of("train") == []

    await until("its pods are gone", stopped)
    assert not await active(cluster, "train")
    await user.actions.resume(parse("train"))
    await cluster.bound("train", 4)
    before = {pod["metadata"]["uid"] for pod in await cluster.pods_of("train")}
    await user.actions.requeue(parse("train"), TIMEOUT_S)
    assert await active(cluster, "train")
    # Its place is free again: it is admitted again, with other pods.
    pods = await cluster.bound("train", 4)
    assert not before & {pod["metadata"]["uid"] for pod in pods}
    await cluster.condition("train", "Requeued", "True", "Reactivated")
    assert user.said == ["job/train held: its pods are being stopped", *RESUMED]
    name, uid = await user.actions.find_object(parse("train"))
    with pytest.raises(CommandError, match="another job/train exists now; nothing was deleted"):
        await user.actions.cancel(name, "0")
    await user.actions.cancel(name, uid)

    async def gone() -> bool:
        found = await cluster.find(kinds.JOBS, "train")
        return found is None and not await cluster.pods_of("train")

    await until("the Job and its pods are gone", gone)


RESUMED = ["job/train resumed", "job/train requeued"]


async def test_a_requeued_job_gives_its_place_to_a_more_urgent_one(
    cluster: Cluster, user: User
) -> None:
    await prepare(cluster)
    await cluster.submit("first", 4, cpu="4")
    await cluster.bound("first", 4)
    urgent = await cluster.add_priority(100)
    await cluster.submit("urgent", 4, cpu="4", labels=urgent)
    await cluster.condition("urgent", "QuotaReserved", "False")
    await user.actions.requeue(parse("first"), TIMEOUT_S)
    await cluster.bound("urgent", 4)
    await cluster.condition("first", "QuotaReserved", "False")
    assert await active(cluster, "first")


async def test_a_user_holds_resumes_requeues_and_cancels_a_jobset(
    cluster: Cluster, user: User
) -> None:
    await prepare(cluster)
    workers = replicated_job("workers", 2, replicas=2)
    await cluster.create(kinds.JOBSETS, jobset("train", [workers]))
    selector = jobset_selector("train")
    await bound_pods(cluster, selector, 4)
    await user.actions.hold(parse("jobset/train"))
    await cluster.condition("train", "QuotaReserved", "False")
    await user.actions.resume(parse("jobset/train"))
    await bound_pods(cluster, selector, 4)
    await user.actions.requeue(parse("jobset/train"), TIMEOUT_S)
    await bound_pods(cluster, selector, 4)
    with pytest.raises(CommandError, match='there is no "job/train" in namespace'):
        await user.actions.find_object(parse("job/train"))
    await user.actions.cancel(*await user.actions.find_object(parse("train")))

    async def gone() -> bool:
        return await cluster.find(kinds.JOBSETS, "train") is None

    await until("the JobSet is gone", gone)
    assert user.said[-1] == "jobset/train canceled"


async def test_what_a_user_reads_needs_no_more_than_the_role(cluster: Cluster, user: User) -> None:
    await prepare(cluster)
    await cluster.submit("train", 4, cpu="4")
    await cluster.bound("train", 4)
    await cluster.submit("next", 4, cpu="4")
    await cluster.condition("next", "QuotaReserved", "False")
    shown, names = parse_kind("workloads", [])
    given = argparse.Namespace(
        names=names,
        selector=None,
        field_selector=None,
        status=None,
        cluster_queue=None,
        local_queue=None,
    )

    async def read() -> WorkloadReport:
        found = await get_command.read_report(user.cluster.client, given, shown, cluster.namespace)
        assert isinstance(found, WorkloadReport)
        return found

    async def positioned() -> bool:
        return [row.position_in_local_queue for row in (await read()).items] == [0, None]

    await until("the pending one has a position", positioned)
    first, second = (await read()).items
    assert (first.job, first.status) == ("Job/next", "Pending")
    assert first.wait_seconds is not None
    assert (second.job, second.status) == ("Job/train", "Admitted")
    shown, given.names = parse_kind("topology", [])
    given.level = ""
    with pytest.raises(CommandError, match='bind the ClusterRole "rackgate-viewer"'):
        await get_command.read_report(user.cluster.client, given, shown, cluster.namespace)
    with pytest.raises(ForbiddenError):
        await user.cluster.client.get(kinds.NODES.path())
    # The simulated nodes have no logs: what the API server says is passed on.
    with pytest.raises(KubeError, match="train-"):
        await JobLogs(user.cluster.client, cluster.namespace, LogOptions()).run(parse("train"))


async def test_domains_show_what_is_used(cluster: Cluster, playground: Playground) -> None:
    await prepare(cluster)
    await cluster.submit("train", 4, cpu="4", required=RACK)
    await cluster.bound("train", 4)
    shown = playground.run("get", "topology", f"{cluster.pool}-queue", "-o", "json")
    rows = json.loads(shown)["items"]
    used = [usage["used"] for row in rows for usage in row["usage"] if usage["resource"] == "cpu"]
    assert sorted(used) == ["0"] * (len(rows) - 1) + ["16"]
    assert {row["level"] for row in rows} == {RACK}
    blocks = playground.run("get", "topology", f"{cluster.pool}-queue", "--level", BLOCK)
    assert "ALLOCATABLE" in blocks
    found = yaml.safe_load(playground.run("get", "cq", f"{cluster.pool}-queue", "-o", "yaml"))
    assert [row["name"] for row in found["items"]] == [f"{cluster.pool}-queue"]


async def test_watching_prints_what_changes(cluster: Cluster, playground: Playground) -> None:
    await prepare(cluster)
    arguments = ["get", "workloads", "-w", "-o", "name", "-n", cluster.namespace]
    running = await asyncio.create_subprocess_exec(
        sys.executable,
        "-c",
        INTERRUPTIBLE,
        *arguments,
        "--state",
        str(playground.state),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "PYTHONUNBUFFERED": "1"},
    )
    try:
        await cluster.submit("train", 4)
        name = (await cluster.workload_of("train"))["metadata"]["name"]
        assert running.stdout is not None
        line = await asyncio.wait_for(running.stdout.readline(), TIMEOUT_S)
        assert line.decode().strip() == f"workload.kueue.x-k8s.io/{name}"
        running.send_signal(signal.SIGINT)
        assert await asyncio.wait_for(running.wait(), TIMEOUT_S) == 1
    finally:
        with contextlib.suppress(ProcessLookupError):
            running.kill()
        await running.wait()

"""A console with a fake API server full of objects, and browsers that look at it."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from rackgate.api import names
from rackgate.api import resources as kinds
from rackgate.features import Features
from rackgate.runtime import clock
from rackgate.topology.assignment import TopologyAssignment, encode
from rackgate_console.console import Console
from rackgate_console.details import Details
from rackgate_console.server import ConsoleServer
from rackgate_console.viewers.sessions import Sessions
from rackgate_console.viewers.viewer import LocalViewers, Viewers
from tests.support.apiserver import FakeApiServer, Object
from tests.support.waiting import until

GPU = "nvidia.com/gpu"
LEVELS = ("cloud.example.com/block", "cloud.example.com/rack", names.HOSTNAME_LABEL)
START = "2026-08-01T12:00:00Z"
# Names as an adversary writes them, where the API server takes any text.
HOSTILE = '<img src=x onerror="document.title=1">\u202egnp.exe&amp;'

VIEWS = {
    "map": "",
    "explained": "w=vision/job-eval-0",
    "host": "host=node-00003&color=tenant",
    "queues": "view=queues",
    "pending": "view=pending",
    "workload": "view=workload&w=vision/job-eval-0",
    "pods": "view=workload&w=research/job-train-0",
    "what-if": "view=what-if",
}
# What is there once a view is complete.
WAITS_FOR = {
    "explained": ".explanation",
    "workload": ".explanation",
    "pods": "tr.misplaced",
    "queues": ".queue",
    "pending": ".workloads tbody tr",
}
READY = "body[data-connection=live]"
MANIFEST = """
apiVersion: batch/v1
kind: Job
metadata: {name: tune, namespace: vision, labels: {kueue.x-k8s.io/queue-name: main}}
spec:
  parallelism: %d
  template:
    metadata:
      annotations: {kueue.x-k8s.io/podset-required-topology: cloud.example.com/rack}
    spec:
      restartPolicy: Never
      containers:
      - {name: c, image: busybox, resources: {requests: {nvidia.com/gpu: "8", cpu: "90"}}}
"""


def chromium() -> str | None:
    """The path of a browser; None if this machine has none."""
    found = os.environ.get("CHROME") or ""
    return found or next(
        filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
    )


def node(number: int, hosts_of_rack: int, racks_of_block: int, **more: Any) -> Object:
    """A node with eight GPUs."""
    rack = number // hosts_of_rack
    offers = {GPU: "8", "cpu": "96", "memory": "1Ti", "pods": "110"}
    host = f"node-{number:05d}"
    labels = {
        LEVELS[0]: f"block-{rack // racks_of_block + 1}",
        LEVELS[1]: f"rack-{rack % racks_of_block + 1}",
        LEVELS[2]: host,
        "pool": "gpu",
    }
    ready = "True" if number % 97 else "False"
    return {
        "metadata": {"name": host, "labels": labels},
        "spec": {"unschedulable": number % 89 == 3, **more},
        "status": {"allocatable": offers, "conditions": [{"type": "Ready", "status": ready}]},
    }


def queue(name: str, cohort: str, gpus: int) -> Object:
    """A ClusterQueue with a quota of GPUs."""
    resources = [
        {"name": GPU, "nominalQuota": str(gpus), "borrowingLimit": str(gpus)},
        {"name": "cpu", "nominalQuota": str(gpus * 12)},
    ]
    group = {
        "coveredResources": [GPU, "cpu"],
        "flavors": [{"name": "h100", "resources": resources}],
    }
    spec = {"namespaceSelector": {}, "cohortName": cohort, "resourceGroups": [group]}
    return {"metadata": {"name": name, "generation": 1}, "spec": spec}


def workload(
    namespace: str,
    name: str,
    pods: int,
    *,
    hosts: list[tuple[str, int]] | None = None,
    message: str = "",
    priority: int = 0,
    job: str = "",
) -> Object:
    """A Workload of GPU pods: admitted on hosts, else pending."""
    requests = {GPU: "8", "cpu": "90"}
    template = {
        "metadata": {"annotations": {names.REQUIRED_TOPOLOGY: LEVELS[1]}},
        "spec": {"containers": [{"name": "c", "resources": {"requests": requests}}]},
    }
    podset: Object = {"name": "main", "count": pods, "template": template}
    podset["topologyRequest"] = {"required": LEVELS[1]}
    owner = {
        "kind": "Job",
        "apiVersion": "batch/v1",
        "name": job or name,
        "uid": f"job-{name}",
        "controller": True,
    }
    meta = {
        "name": name,
        "namespace": namespace,
        "uid": f"uid-{namespace}-{name}",
        "creationTimestamp": START,
        "ownerReferences": [owner],
    }
    status: Object = {"conditions": []}
    if hosts is not None:
        assignment = encode(
            TopologyAssignment(LEVELS[2:], tuple(((host,), count) for host, count in hosts))
        )
        flavors = dict.fromkeys(requests, "h100")
        usage = {GPU: str(8 * pods), "cpu": str(90 * pods)}
        part = {"name": "main", "flavors": flavors, "resourceUsage": usage, "count": pods}
        part["topologyAssignment"] = assignment
        status["admission"] = {"clusterQueue": namespace, "podSetAssignments": [part]}
        types = ("QuotaReserved", "Admitted")
        status["conditions"] = [
            {
                "type": one,
                "status": "True",
                "reason": one,
                "message": f"{one} in {namespace}",
                "lastTransitionTime": "2026-08-01T12:00:09Z",
            }
            for one in types
        ]
    elif message:
        status["conditions"] = [
            {
                "type": "QuotaReserved",
                "status": "False",
                "reason": "Pending",
                "message": message,
                "lastTransitionTime": START,
            }
        ]
    spec = {"queueName": "main", "priority": priority, "podSets": [podset]}
    return {"metadata": meta, "spec": spec, "status": status}


def pod(namespace: str, workload_name: str, rank: int, host: str) -> Object:
    """A running pod of a Workload."""
    meta = {
        "name": f"{workload_name}-{rank}",
        "namespace": namespace,
        "uid": f"pod-{workload_name}-{rank}",
        "annotations": {names.WORKLOAD_ANNOTATION: workload_name},
        "labels": {names.PODSET_LABEL: "main", names.COMPLETION_INDEX_LABEL: str(rank)},
        "ownerReferences": [
            {"kind": "Job", "name": "j", "uid": f"job-{workload_name}", "controller": True}
        ],
    }
    requests = {GPU: "8", "cpu": "90"}
    spec = {"nodeName": host, "containers": [{"name": "c", "resources": {"requests": requests}}]}
    return {"metadata": meta, "spec": spec, "status": {"phase": "Running"}}


def fill(
    api: FakeApiServer, *, hosts: int = 192, hosts_of_rack: int = 16, racks_of_block: int = 4
) -> None:
    """A cluster with three teams: some racks full, some hosts down, a pending gang."""
    levels = [{"nodeLabel": level} for level in LEVELS]
    api.put(kinds.TOPOLOGIES, {"metadata": {"name": "default"}, "spec": {"levels": levels}})
    flavor = {"nodeLabels": {"pool": "gpu"}, "topologyName": "default"}
    api.put(kinds.FLAVORS, {"metadata": {"name": "h100"}, "spec": flavor})
    for number in range(hosts):
        api.put(kinds.NODES, node(number, hosts_of_rack, racks_of_block))
    for team in ("research", "vision", "speech"):
        api.put(kinds.NAMESPACES, {"metadata": {"name": team}})
        api.put(kinds.CLUSTER_QUEUES, queue(team, "all", hosts * 8 // 3))
        local = {"metadata": {"name": "main", "namespace": team, "generation": 1}}
        api.put(kinds.LOCAL_QUEUES, {**local, "spec": {"clusterQueue": team}})
    free = [f"node-{number:05d}" for number in range(hosts) if number % 97 and number % 89 != 3]
    racks = [
        free[start : start + hosts_of_rack - 1] for start in range(0, len(free), hosts_of_rack)
    ]
    for number, rack in enumerate(racks):
        team = ("research", "vision", "speech")[number % 3]
        used = rack[: max(1, len(rack) - (1, 3, 0, 2)[number % 4])]
        one = workload(
            team,
            f"job-train-{number}",
            len(used),
            hosts=[(host, 1) for host in used],
            job=f"train-{number}",
        )
        api.put(kinds.WORKLOADS, one)
    waits = (
        'couldn\'t assign flavors to pod set main: topology "default" allows to fit only 15 out of '
        "16 pod(s)"
    )
    for number in range(5):
        api.put(
            kinds.WORKLOADS,
            workload(
                "vision",
                f"job-eval-{number}",
                16,
                message=waits,
                priority=100 - number,
                job=f"eval-{number}",
            ),
        )
    api.put(kinds.WORKLOADS, workload("speech", "job-hostile", 2, message=HOSTILE, job="x" * 63))
    # Its second rank runs on another host than it was assigned.
    first = api.get(kinds.WORKLOADS, "job-train-0", "research")
    assert first is not None
    for rank in range(2):
        host = racks[0][0] if rank == 0 else racks[-1][-1]
        api.put(kinds.PODS, pod("research", "job-train-0", rank, host))
    for event in (("Pending", "Normal", waits), ("Hostile", "Warning", HOSTILE)):
        reason, type_, note = event
        about = {"kind": "Workload", "name": "job-eval-0", "namespace": "vision"}
        meta = {
            "name": f"e-{reason.lower()}",
            "namespace": "vision",
            "creationTimestamp": "2026-08-01T12:00:04Z",
        }
        api.put(
            kinds.EVENTS,
            {"metadata": meta, "regarding": about, "reason": reason, "type": type_, "note": note},
        )


class Site:
    """A console of a fake cluster, for the user of this machine.

    Attributes:
        api: the cluster.
        console: what the page shows.
        server: serves it.
        address: of the page.
    """

    def __init__(
        self, api: FakeApiServer, console: Console, server: ConsoleServer, sessions: Sessions
    ) -> None:
        self.api, self.console, self.server, self.sessions = api, console, server, sessions
        self.address = f"http://127.0.0.1:{server.port}"

    def link(self, state: str = "") -> str:
        """The address with a new code."""
        code = self.sessions.new_code(clock.monotonic())
        return f"{self.address}/#code={code}" + (f"&{state}" if state else "")


@asynccontextmanager
async def site(viewers: Viewers | None = None, **size: int) -> AsyncIterator[Site]:
    """A running console.

    Args:
        viewers: know who asks; by default the user of this machine.
        size: of the cluster, see `fill`.
    """
    async with FakeApiServer() as api:
        fill(api, **size)
        client = api.client()
        console = Console(client, Features.of(None), fair_sharing=("LessThanOrEqualToFinalShare",))
        sessions = Sessions(clock.monotonic())
        local = LocalViewers(sessions, "me", 0)
        details = Details(console, client)
        server = ConsoleServer(console, viewers or local, details, "a cluster of the tests")
        await server.start("127.0.0.1", 0)
        local.port = server.port
        following = asyncio.create_task(console.follow())
        try:
            await until(lambda: console.feed.number, 120)
            yield Site(api, console, server, sessions)
        finally:
            await server.stop()
            following.cancel()
            await asyncio.wait([following])
            await client.close()

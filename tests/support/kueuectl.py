"""Requests like those of `kueuectl`, after its public sources, and what it prints of answers."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any, Final

import aiohttp

from rackgate.api.resources import Resource
from tests.support.cluster import Cluster
from tests.support.composite_views import conditions
from tests.support.identities import authorization, server_context
from tests.support.objects import Object
from tests.support.playground import Playground

KUEUE: Final = "/apis/kueue.x-k8s.io/v1beta2"
# A typed Go client names these; its GET of one object and its creation have no parameters.
HEADERS: Final = {
    "Accept": "application/json, */*",
    "User-Agent": "kubectl-kueue/v0.19.2 (linux/amd64) kubernetes/$Format",
}
# The first that is True is the status that is printed.
STATUSES: Final = {"Finished": "FINISHED", "Admitted": "ADMITTED", "QuotaReserved": "QUOTARESERVED"}


class AnswerError(AssertionError):
    """The API server did not answer as the command expects."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(f"{status}: {text}")
        self.status = status


@dataclass(frozen=True)
class Row:
    """A line of `kueuectl list workload`; the position is empty where none is known."""

    job: str
    local_queue: str
    cluster_queue: str
    status: str
    position: str


@dataclass(frozen=True)
class Kueuectl:
    """One user of the command.

    Attributes:
        session: with the credentials of the user.
        server: URL of the API server.
        namespace: of the context in the user's kubeconfig.
    """

    session: aiohttp.ClientSession
    server: str
    namespace: str

    async def list_workloads(self, *, page: int = 100, visibility: str = "v1beta2") -> list[Row]:
        """`kueuectl list workload`.

        Args:
            page: KUEUECTL_LIST_REQUEST_LIMIT.
            visibility: version of the visibility API; older releases ask for `v1beta1`.
        """
        rows: list[Row] = []
        query = {"limit": str(page)}
        while True:
            found = await self._get(f"{self._namespaced}/workloads", query)
            queues: dict[str, str] = {}
            summaries: dict[str, Object] = {}
            for workload in found["items"]:
                rows.append(await self._row(workload, queues, summaries, visibility))
                for owner in workload["metadata"].get("ownerReferences", ()):
                    await self._get(f"/apis/{owner['apiVersion']}")
            if not found["metadata"].get("continue"):
                return rows
            query["continue"] = found["metadata"]["continue"]

    async def _row(
        self, workload: Object, queues: dict[str, str], summaries: dict[str, Object], version: str
    ) -> Row:
        meta, local = workload["metadata"], workload["spec"]["queueName"]
        queue = workload.get("status", {}).get("admission", {}).get("clusterQueue")
        if not queue and local not in queues:
            found = await self._get(f"{self._namespaced}/localqueues/{local}")
            queues[local] = found["spec"]["clusterQueue"]
        queue = queue or queues[local]
        true = [kind for kind, found in conditions(workload).items() if found["status"] == "True"]
        status = next((STATUSES[kind] for kind in STATUSES if kind in true), "PENDING")
        position = ""
        if status == "PENDING":
            if queue not in summaries:
                root = f"/apis/visibility.kueue.x-k8s.io/{version}"
                summaries[queue] = await self._get(f"{root}/clusterqueues/{queue}/pendingworkloads")
            for item in summaries[queue]["items"]:
                own = item["metadata"]
                if (own["namespace"], own["name"]) == (meta["namespace"], meta["name"]):
                    position = str(item["positionInLocalQueue"])
        (owner,) = meta["ownerReferences"]
        return Row(owner["name"], local, queue, status, position)

    async def stop(self, kind: Resource, name: str, *, keep_running: bool = False) -> None:
        """`kueuectl stop clusterqueue` or `localqueue`, with or without --keep-already-running."""
        policy = "Hold" if keep_running else "HoldAndDrain"
        await self._change(kind, name, {"stopPolicy": policy})

    async def resume(self, kind: Resource, name: str) -> None:
        """`kueuectl resume clusterqueue` or `localqueue`."""
        await self._change(kind, name, {"stopPolicy": "None"})

    async def activate(self, kind: Resource, name: str, *, active: bool) -> None:
        """`kueuectl stop workload` or `resume workload`."""
        await self._change(kind, name, {"active": active})

    async def _change(self, kind: Resource, name: str, spec: Object) -> None:
        path = kind.path(self.namespace if kind.namespaced else None, name)
        await self._get(path)
        body = json.dumps({"spec": spec}).encode()
        await self._send("PATCH", path, body, {"Content-Type": "application/merge-patch+json"})

    async def create(self, kind: Resource, name: str, spec: Object, status: Object) -> None:
        """`kueuectl create`: the Go structure of the kind, with the zero values of its status."""
        meta: Object = {"name": name, "creationTimestamp": None}
        if kind.namespaced:
            meta["namespace"] = self.namespace
        document = {"kind": kind.kind, "apiVersion": "kueue.x-k8s.io/v1beta2", "metadata": meta}
        body = json.dumps({**document, "spec": spec, "status": status}).encode()
        path = kind.path(self.namespace if kind.namespaced else None)
        await self._send("POST", path, body, {"Content-Type": "application/json"})

    async def delete_workload(self, name: str) -> None:
        """`kueuectl delete workload --yes`: it deletes the jobs that own it."""
        workload = await self._get(f"{self._namespaced}/workloads/{name}")
        for owner in workload["metadata"]["ownerReferences"]:
            options = {
                "kind": "DeleteOptions",
                "apiVersion": "v1",
                "preconditions": {"uid": owner["uid"]},
            }
            plural = f"{owner['kind'].lower()}s"
            path = f"/apis/{owner['apiVersion']}/namespaces/{self.namespace}/{plural}"
            body = json.dumps(options).encode()
            json_type = {"Content-Type": "application/json"}
            await self._send("DELETE", f"{path}/{owner['name']}", body, json_type)

    @property
    def _namespaced(self) -> str:
        return f"{KUEUE}/namespaces/{self.namespace}"

    async def _get(self, path: str, query: dict[str, str] | None = None) -> Object:
        return await self._send("GET", path, query=query)

    async def _send(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        headers: dict[str, str] | None = None,
        query: dict[str, str] | None = None,
    ) -> Object:
        url = self.server + path
        async with self.session.request(
            method, url, data=body, headers=headers, params=query
        ) as answer:
            text = await answer.text()
            if answer.status not in (200, 201, 202):
                raise AnswerError(answer.status, f"{method} {path}: {text}")
            found: dict[str, Any] = json.loads(text)
            return found


@asynccontextmanager
async def kueuectl(
    playground: Playground, cluster: Cluster, account: tuple[str, str]
) -> AsyncIterator[Kueuectl]:
    """The command of a ServiceAccount, in the test's namespace."""
    headers = {**HEADERS, "Authorization": await authorization(cluster, account)}
    connector = aiohttp.TCPConnector(ssl=server_context(playground))
    async with aiohttp.ClientSession(connector=connector, headers=headers) as session:
        yield Kueuectl(session, playground.server, cluster.namespace)

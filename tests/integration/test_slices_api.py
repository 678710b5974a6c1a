"""What the API server itself keeps from everybody: resized Workloads without the annotation."""

from __future__ import annotations

import json
from typing import Any

import pytest

from rackgate.api import names
from rackgate.api.resources import WORKLOADS
from rackgate.kube.client import Client, PatchType
from rackgate.kube.errors import ForbiddenError, UnprocessableError
from tests.support.cluster import Cluster, until
from tests.support.composite_views import conditions
from tests.support.manifests import assigned, podset, workload

pytestmark = pytest.mark.integration

ELASTIC = {names.ELASTIC_ANNOTATION: "true"}
DRY_RUN = {"dryRun": "All"}


class Stored:
    """A Workload that holds quota for four pods, changed by dry runs."""

    def __init__(self, client: Client, namespace: str, name: str) -> None:
        self._client = client
        self._path = WORKLOADS.path(namespace, name)
        self._collection = WORKLOADS.path(namespace)
        self._name = name

    async def create(self, annotations: dict[str, str]) -> None:
        meta = {"name": self._name, "annotations": annotations}
        body = {**workload(active=False), "metadata": meta}
        await self._client.create(self._collection, json.dumps(body).encode())
        await self._grant()

    async def _grant(self) -> None:
        status = {"status": assigned()}
        await self._client.patch(
            f"{self._path}/status", json.dumps(status).encode(), PatchType.MERGE
        )

    async def refusal(self, change: dict[str, Any], *, sub: str = "") -> str:
        """What a change is refused with while the quota is held; empty when it is accepted."""

        async def asked() -> tuple[str] | None:
            answer = await self._asked(change, sub)
            if await self._holds():
                return (answer,)
            # The assigner takes quota from what is not active, and may have come first.
            await self._grant()
            return None

        answer = await until(f"{self._name} is judged while it holds its quota", asked)
        assert answer is not None
        return answer[0]

    async def _holds(self) -> bool:
        found = json.loads(await self._client.get(self._path))
        reserved = conditions(found).get("QuotaReserved", {})
        return reserved.get("status") == "True" and "admission" in found["status"]

    async def _asked(self, change: dict[str, Any], sub: str) -> str:
        body = json.dumps(change).encode()
        try:
            await self._client.patch(f"{self._path}{sub}", body, PatchType.MERGE, DRY_RUN)
        except (ForbiddenError, UnprocessableError) as error:
            return error.message
        return ""

    async def remove(self) -> None:
        await self._client.patch(self._path, b'{"metadata":{"finalizers":null}}', PatchType.MERGE)
        await self._client.delete(self._path)


@pytest.mark.requirement("SLC-18", "SLC-23")
@pytest.mark.field_note("E16")
async def test_only_an_elastic_workload_is_admitted_another_number_of_pods(
    cluster: Cluster,
) -> None:
    grown = {"status": assigned(count=5)}
    folded = {"status": {"foldedSlices": [{"uid": "u", "podSet": "main"}]}}
    fixed = Stored(cluster.client, cluster.namespace, "fixed")
    elastic = Stored(cluster.client, cluster.namespace, "elastic")
    await fixed.create({})
    await elastic.create(ELASTIC)
    try:
        assert "counts change only" in await fixed.refusal(grown, sub="/status")
        assert "has workload slices" in await fixed.refusal(folded, sub="/status")
        assert await elastic.refusal(grown, sub="/status") == ""
        assert await elastic.refusal(folded, sub="/status") == ""
        toggled = {"metadata": {"annotations": ELASTIC}}
        assert "is immutable while" in await fixed.refusal(toggled)
        untoggled = {"metadata": {"annotations": {names.ELASTIC_ANNOTATION: None}}}
        assert "is immutable while" in await elastic.refusal(untoggled)
        beyond = {"spec": {"podSets": [podset(count=5)]}}
        assert "follow the admission" in await elastic.refusal(beyond)
    finally:
        await fixed.remove()
        await elastic.remove()

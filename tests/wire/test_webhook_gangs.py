"""Workloads of gangs on real TLS connections: the patch, the refusal and the warning."""

from __future__ import annotations

import json
from typing import Any

import aiohttp
import pytest

from rackgate.features import WORKLOAD_REV_N
from rackgate_webhook.admission.gangs import GANG_WORKLOAD, GangRules
from tests.support.gang_cases import pairs
from tests.unit.webhook.reviews import body, patch_of
from tests.wire.webhook_server import calling, serving
from tests.wire.webhook_world import JSON


async def posted(session: aiohttp.ClientSession, port: int, path: str, spec: Any) -> bytes:
    sent = json.dumps(body(GANG_WORKLOAD, {"metadata": {"name": "w"}, "spec": spec})).encode()
    url = f"https://localhost:{port}{path}"
    async with session.post(url, data=sent, headers=JSON) as answer:
        assert answer.status == 200
        return await answer.read()


@pytest.mark.requirement("GNG-09", "GNG-34")
async def test_objects_are_mutated_and_validated() -> None:
    spec = {"gangGroups": [{"name": "gg", "gangMode": False}]}
    rules = GangRules(on=True, rev_n=True)
    async with serving(gangs=rules) as server, calling() as session:
        assert patch_of(await posted(session, server.port, "/mutate", spec)) == [
            {"op": "replace", "path": "/spec/gangGroups/0/gangMode", "value": "Off"}
        ]
        answer = json.loads(await posted(session, server.port, "/validate", spec))
        assert answer["response"] == {"uid": "uid-1", "allowed": True}
        spec = pairs()["indexed-job"]["revN"]["spec"]
        answer = json.loads(await posted(session, server.port, "/validate", spec))
        assert answer["response"]["allowed"] is True
        assert len(answer["response"]["warnings"]) == 1
    async with serving(gangs=GangRules(on=True)) as server, calling() as session:
        answer = json.loads(await posted(session, server.port, "/validate", spec))
        status = answer["response"]["status"]
        assert (status["code"], answer["response"]["allowed"]) == (422, False)
        assert status["details"]["causes"][0]["field"] == "spec.topologyRequest"
        assert WORKLOAD_REV_N in status["message"]

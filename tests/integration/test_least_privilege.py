"""The audit log against the roles, and a cluster at rest."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import pytest

from tests.support.cluster import Cluster, until
from tests.support.objects import RACK
from tests.support.playground import Playground
from tests.support.rights import SERVICES, USER, audited_requests, granted, user_of

pytestmark = pytest.mark.integration


@pytest.mark.requirement("OPS-05")
async def test_no_request_of_a_service_was_rejected(
    playground: Playground, cluster: Cluster
) -> None:
    await cluster.add_fx_a()
    await cluster.add_queue()
    await cluster.submit("train", 4, required=RACK)
    await cluster.bound("train", 4)
    found = audited_requests(playground.audit_log)
    assert {service: found[service].refused for service in SERVICES} == {
        service: [] for service in SERVICES
    }


@pytest.mark.requirement("OPS-05")
def test_every_use_of_a_right_is_admitted_by_a_role(playground: Playground) -> None:
    """On this control plane so far; `whole_run.py` judges the whole run, in both directions."""
    found, rights = audited_requests(playground.audit_log), granted()
    beyond = {service: sorted(found[service].used - rights[service]) for service in SERVICES}
    assert beyond == {service: [] for service in SERVICES}


def requests_since(log: Path, offset: int) -> tuple[list[str], int]:
    """What the services asked for beyond leases and watches, after `offset` bytes of the log.

    Returns:
        The requests, and where the last whole line ended.
    """
    with log.open("rb") as file:
        file.seek(offset)
        text = file.read()
    whole = text[: text.rfind(b"\n") + 1]
    users = {USER.format(service) for service in SERVICES}
    found = []
    for line in whole.splitlines():
        entry = json.loads(line)
        resource = (entry.get("objectRef") or {}).get("resource")
        user = user_of(entry)
        if user in users and resource != "leases" and entry["verb"] != "watch":
            found.append(f"{user} {entry['verb']} {entry['requestURI']}")
    return found, offset + len(whole)


@pytest.mark.timeout(600)
@pytest.mark.field_note("U9", "C7")
async def test_an_idle_cluster_causes_nothing_but_leases_and_watches(
    playground: Playground, cluster: Cluster
) -> None:
    await cluster.add_fx_a()
    await cluster.add_queue()
    await cluster.submit("train", 4, required=RACK)
    await cluster.submit("waits", 16, required=RACK)
    await cluster.bound("train", 4)
    await cluster.condition("waits", "QuotaReserved", "False")
    log, loop = playground.audit_log, asyncio.get_running_loop()
    _, offset = requests_since(log, 0)
    last = loop.time()

    async def quiet() -> bool:
        nonlocal offset, last
        found, offset = requests_since(log, offset)
        last = loop.time() if found else last
        return loop.time() - last >= 12

    await until("twelve seconds pass without a request", quiet, timeout_s=240)

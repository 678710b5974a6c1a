"""kill -9 at every write that a service makes, once before it is applied and once after.

Scenarios as seeds draw them, without their faults. Which writes there are is not listed here: the
roles in `deploy/rbac` say it, and each right to write must have been cut short both ways, and each
kind of write that was seen. OSMO's pools have no part in scenarios.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import replace

import pytest

from rackgate.api import resources as kinds
from rackgate.kube.errors import NotFoundError
from tests.chaos import limits
from tests.chaos.runner import chaos_playground, run_scenario, say
from tests.chaos.scenario import draw
from tests.chaos.summary import line
from tests.support.cluster import Cluster, until
from tests.support.objects import cluster_queue, flavor, local_queue, topology_object
from tests.support.playground import SERVICES, Playground
from tests.support.rights import UNSEEN, granted
from tests.support.write_points import WritePoints

pytestmark = [
    pytest.mark.chaos,
    pytest.mark.timeout(limits.SCENARIO_LIMIT_S + 120, func_only=True),
]

# Enough for all points; a scenario in which nobody dies any more is not begun.
SEEDS = range(200, 208)
# Deaths in one scenario: each costs up to a Lease and a restart.
DEATHS = 30
METHODS = {"create": "POST", "patch": "PATCH", "update": "PUT", "delete": "DELETE"}
SECRET = "rackgate-webhook-tls"
# Rights to write that scenarios do not need, with the reason.
_UNINSTALL = "finalizers of the installation: tests/wire/test_uninstall.py ends them anywhere"
_OWN_OBJECTS = ("serviceaccounts", "clusterroles", "clusterrolebindings")
ELSEWHERE = {
    ("assigner", "POST", "leases"): "once in the life of an installation",
    ("ungater", "POST", "leases"): "once in the life of an installation",
    ("webhook", "POST", "leases"): "once in the life of an installation",
    ("assigner", "PATCH", "pods/status"): "only for a pod that waits for a broken node",
    ("ungater", "POST", "events"): "only where pods stay gated for a reason that a user can change",
    **{
        (name, "PATCH", kind): _UNINSTALL
        for name in ("assigner", "ungater")
        for kind in _OWN_OBJECTS
    },
}


@pytest.fixture(scope="module")
def playground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Playground]:
    folder = tmp_path_factory.mktemp("points") / "state"
    with chaos_playground(folder, ("jobset", "kuberay")) as running:
        yield running


@pytest.fixture(scope="module")
def points() -> Iterator[WritePoints]:
    found = WritePoints()
    yield found
    for point in sorted(found.deaths):
        say(f"  {found.deaths[point]} deaths  {point}")


# The services that write the finalizers die again and again meanwhile.
IN_USE_S = 300.0


async def administer(cluster: Cluster) -> None:
    """What makes the webhook and the finalizers of configuration write."""
    await asyncio.sleep(3)
    secret = kinds.SECRETS.path("rackgate-system", SECRET)
    await cluster.client.delete(secret)

    async def there() -> bool:
        try:
            await cluster.client.get(secret)
        except NotFoundError:
            return False
        return True

    await until("the certificate is there again", there)
    # Of this scenario alone: what an earlier one left behind is not in the way.
    name = f"passing-{cluster.namespace}"
    await cluster.create(kinds.TOPOLOGIES, topology_object(name))
    await cluster.create(kinds.FLAVORS, flavor(name, name, name))
    await cluster.create(kinds.CLUSTER_QUEUES, cluster_queue(name, name, {"cpu": "1"}))
    await cluster.create(kinds.LOCAL_QUEUES, local_queue(name, name))
    await until("it is in use", lambda: held(cluster, name), timeout_s=IN_USE_S)
    for kind in (kinds.LOCAL_QUEUES, kinds.CLUSTER_QUEUES, kinds.FLAVORS, kinds.TOPOLOGIES):
        await cluster.delete(kind, name)


async def held(cluster: Cluster, name: str) -> bool:
    """Whether the queue and what it needs are kept by finalizers."""
    found = [
        await cluster.get(kind, name)
        for kind in (kinds.CLUSTER_QUEUES, kinds.FLAVORS, kinds.TOPOLOGIES)
    ]
    return all(entry["metadata"].get("finalizers") for entry in found)


@pytest.mark.requirement("OPS-12", "OPS-03", "OPS-06", "CAP-09", "UNG-10", "UNG-13", "HOOK-15")
@pytest.mark.parametrize("seed", SEEDS)
async def test_every_job_ends_though_services_die_at_their_writes(
    playground: Playground, points: WritePoints, seed: int
) -> None:
    if points.deaths and not points.left:
        pytest.skip("at each write that was seen somebody died before and after")
    points.most = DEATHS
    # Gangs have kills at their own writes in tests/integration/test_gang_kills.py.
    scenario = replace(draw(seed), faults=(), gangs=(), replicas=dict.fromkeys(SERVICES, 2))
    report = await run_scenario(playground, scenario, points=points, beside=administer)
    say(line(report))
    say(f"seed {seed}: {sum(points.deaths.values())} deaths at {len(points.deaths)} points")
    assert report.problems == []


@pytest.mark.requirement("OPS-12")
def test_every_right_to_write_was_cut_short(points: WritePoints) -> None:
    missing = []
    for service in SERVICES:
        for right in sorted(granted(components=False)[service] - UNSEEN[service].keys()):
            verb, _, resource = right
            if verb not in METHODS or (service, METHODS[verb], resource) in ELSEWHERE:
                continue
            seen = points.rights.get((service, METHODS[verb], resource), set())
            deaths = max((points.deaths.get(point, 0) for point in seen), default=0)
            if deaths < 2:
                missing.append(f"{service} may {verb} {resource}: {deaths} deaths")
    assert missing == []
    # What is written once in all scenarios together was cut short before, and not after.
    assert len(points.left) <= len(points.deaths) // 10

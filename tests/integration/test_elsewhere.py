"""Another namespace, every log line, a rollout, and what monitoring asks for.

One more control plane for all of these: the services run in namespace `team-infra`, at log level
`debug`, and tests stop and start them.
"""

from __future__ import annotations

import asyncio
import base64
import json
import signal
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest
from prometheus_client.samples import Sample

from rackgate.api import names
from rackgate.api import resources as kinds
from rackgate.kube.errors import ForbiddenError, UnprocessableError
from rackgate_cli.controlplane.ports import reserved
from tests.support import promql
from tests.support.cluster import Cluster, until
from tests.support.elsewhere import NAMESPACE, Elsewhere, certificate_data, samples
from tests.support.objects import RACK, Object, job
from tests.support.playground import SERVICES, start_playground

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600)]
CANARY = "canary-5e1f0c"
# Series that only trouble makes, with what makes them. Their metric and labels are still checked.
TROUBLE = {
    "rackgate_api_requests_total": "answers 401, 403, 429 and 5xx",
    "rackgate_events_dropped_total": "Events that cannot be written",
    "rackgate_webhook_connections_closed_total": "idle, slow or too many callers",
    "rackgate_webhook_requests_refused_total": "callers that send no review",
}


@pytest.fixture(scope="module")
def elsewhere(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Elsewhere]:
    folder = tmp_path_factory.mktemp("elsewhere")
    playground = start_playground(folder / "state", nodes=0, services=())
    # Held to the end: the services stop and start again, and others take ports meanwhile.
    with reserved(dict.fromkeys((*SERVICES, "reviews", "visibility"))) as ports:
        there = Elsewhere(playground, folder, ports)
        try:
            there.install()
            there.start(*SERVICES)
            yield there
        finally:
            there.stop(*SERVICES)
            playground.stop()


@pytest.fixture
async def here(elsewhere: Elsewhere, request: pytest.FixtureRequest) -> AsyncIterator[Cluster]:
    """A namespace, pool and queue of the test's own; all services ready, the webhook called."""
    name = request.node.name.removeprefix("test_").replace("_", "-")[:20].strip("-")
    async with elsewhere.playground.client() as client:
        space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        await client.create(kinds.NAMESPACES.path(), json.dumps(space).encode())
        cluster = Cluster(client, name, name)
        await all_ready(elsewhere, cluster)
        await cluster.add_fx_a()
        await cluster.add_queue()
        yield cluster
        await cluster.clean()


async def all_ready(elsewhere: Elsewhere, cluster: Cluster) -> None:
    for service in SERVICES:

        async def ready(service: str = service) -> bool:
            return await asyncio.to_thread(elsewhere.ready, service)

        await until(f"{service} is ready", ready)

    async def suspends() -> bool:
        body = json.dumps(job("probe", 1)).encode()
        try:
            answer = await cluster.client.create(
                kinds.JOBS.path(cluster.namespace), body, {"dryRun": "All"}
            )
        except (ForbiddenError, UnprocessableError):
            return False
        return json.loads(answer)["spec"].get("suspend") is True

    await until("the API server calls the webhook", suspends)


async def lease_holders(cluster: Cluster, namespace: str) -> set[str]:
    listed = json.loads(await cluster.client.get(kinds.LEASES.path(namespace)))["items"]
    return {item["metadata"]["name"] for item in listed if item["spec"].get("holderIdentity")}


@pytest.mark.field_note("W6")
@pytest.mark.requirement("OPS-02")
async def test_jobs_run_with_the_services_in_another_namespace(
    elsewhere: Elsewhere, here: Cluster
) -> None:
    await here.submit("train", 4, required=RACK)
    places = await here.places("train", 4)
    assert len({(block, rack) for block, rack, _ in places}) == 1
    assert "rackgate-assigner" in await lease_holders(here, NAMESPACE)
    assert await lease_holders(here, names.SYSTEM_NAMESPACE) == set()
    assert certificate_data(elsewhere.playground)
    # The namespace of the services is nobody's to queue in, and the old name is one like others.
    own = Cluster(here.client, NAMESPACE, here.pool)
    stored = await own.create(kinds.JOBS, job("mine", 1))
    assert stored["spec"]["suspend"] is False
    assert stored["spec"]["template"]["metadata"].get("labels", {}).get(names.PODSET_LABEL) is None
    await own.delete(kinds.JOBS, "mine")


async def test_a_second_installation_is_rejected_with_words_and_the_first_goes_on(
    elsewhere: Elsewhere, here: Cluster
) -> None:
    """With all rights; with those of the second installation's account it could not even watch."""
    own = names.SYSTEM_NAMESPACE
    for service in ("assigner", "ungater"):
        code, said = await asyncio.to_thread(elsewhere.second, service, own)
        binding = "ClusterRoleBinding rackgate"
        assert code == 3
        assert (
            f"Rackgate is installed in namespace {NAMESPACE} ({binding}), and this service belongs "
            f"to an installation in namespace {own}." in said
        )
    assert await lease_holders(here, names.SYSTEM_NAMESPACE) == set()
    await here.submit("train", 4, required=RACK)
    await here.bound("train", 4)


def secrets_of(elsewhere: Elsewhere) -> dict[str, str]:
    """What must not be told, by what it is: tokens whole and in part, keys line by line."""
    found = {"a user's value": CANARY}
    for service in SERVICES:
        token = elsewhere.token_file(service).read_text()
        found |= {f"token of {service}, part {i}": part for i, part in enumerate(token.split("."))}
        # The first part is the same for all tokens, and says nothing.
        del found[f"token of {service}, part 0"]
    for key, value in certificate_data(elsewhere.playground).items():
        found[f"Secret, {key}"] = value[-80:]
        text = base64.b64decode(value).decode(errors="replace")
        lines = [line for line in text.splitlines() if len(line) > 40]
        found |= {f"Secret, {key}, line {i}": line for i, line in enumerate(lines)}
    return found


async def told(elsewhere: Elsewhere, cluster: Cluster) -> dict[str, str]:
    """Everything that the services said: logs, metrics, Events, conditions."""
    texts = {f"log of {name}": elsewhere.log_file(name).read_text() for name in SERVICES}
    for name in SERVICES:
        texts[f"metrics of {name}"] = await asyncio.to_thread(elsewhere.metrics, name)
    texts["Events"] = (await cluster.client.get(kinds.EVENTS.path())).decode()
    workloads = json.loads(await cluster.client.get(kinds.WORKLOADS.path()))["items"]
    texts["statuses of Workloads"] = json.dumps([item.get("status") for item in workloads])
    return texts


def with_canary(name: str, **more: Any) -> Object:
    made = job(name, 2, required=RACK, annotations={"example.com/note": CANARY}, **more)
    container = made["spec"]["template"]["spec"]["containers"][0]
    container["env"] = [{"name": "PASSWORD", "value": CANARY}]
    container["args"] = [f"--token={CANARY}"]
    return made


@pytest.mark.requirement("OPS-09", "HOOK-13")
async def test_no_secret_is_reported_through_a_jobs_life_and_a_rotation(
    elsewhere: Elsewhere, here: Cluster
) -> None:
    await here.create(kinds.JOBS, with_canary("train"))
    await here.bound("train", 2)
    # Refused, with the object at hand.
    with pytest.raises((ForbiddenError, UnprocessableError)):
        await here.create(kinds.JOBS, with_canary("odd", preferred=RACK))
    before = secrets_of(elsewhere)
    await asyncio.to_thread(
        elsewhere.playground.run,
        *("kubectl", "delete", "secret", "rackgate-webhook-tls", "-n", NAMESPACE),
    )

    async def rotated() -> bool:
        now = await asyncio.to_thread(certificate_data, elsewhere.playground)
        return "tls.key" in now and now["tls.key"][-80:] != before["Secret, tls.key"]

    await until("there is a new key", rotated)
    await all_ready(elsewhere, here)
    elsewhere.running["assigner"].send_signal(signal.SIGUSR1)

    async def verified() -> bool:
        return "cache_verified" in elsewhere.log_file("assigner").read_text()

    await until("the assigner compared its cache", verified)
    await here.merge(
        kinds.WORKLOADS,
        (await here.workload_of("train"))["metadata"]["name"],
        {"spec": {"active": False}},
    )
    await here.condition("train", "Evicted")
    texts = await told(elsewhere, here)
    for name in ("webhook", "assigner"):  # the ungater has nothing to say at this level here
        assert '"level":"debug"' in texts[f"log of {name}"], f"{name} does not log everything"
    hidden = before | {f"new {what}": text for what, text in secrets_of(elsewhere).items()}
    assert len([what for what in hidden if "tls.key" in what]) > 4
    found = [
        (where, what) for where, text in texts.items() for what in hidden if hidden[what] in text
    ]
    assert found == []


def kept(pods: list[Object]) -> dict[str, tuple[Any, ...]]:
    """What a rollout must leave alone, by pod."""
    return {
        pod["metadata"]["uid"]: (
            pod["spec"].get("nodeName"),
            pod["spec"].get("schedulingGates"),
            pod["spec"].get("nodeSelector"),
        )
        for pod in pods
    }


@pytest.mark.requirement("OPS-14", "OPS-02")
async def test_a_rollout_leaves_running_jobs_alone_and_forgets_no_one_who_waits(
    elsewhere: Elsewhere, here: Cluster
) -> None:
    await here.submit("steady", 4, required=RACK)
    pods = await here.bound("steady", 4)
    await here.condition("steady", "PodsReady")
    await asyncio.to_thread(elsewhere.stop, "ungater")
    await here.submit("late", 2, required=RACK)
    await here.condition("late", "Admitted")

    async def gated() -> bool:
        late = await here.pods_of("late")
        return len(late) == 2 and all(pod["spec"].get("schedulingGates") for pod in late)

    await until("the pods of the later job wait behind their gate", gated)
    codes = await asyncio.to_thread(elsewhere.stop, "webhook", "assigner")
    assert set(codes.values()) == {0}
    before = await here.workload_of("steady"), await here.get(kinds.JOBS, "steady")
    assert kept(await here.pods_of("steady")) == kept(pods)
    await asyncio.to_thread(elsewhere.start, *SERVICES)
    await all_ready(elsewhere, here)
    await here.bound("late", 2)
    assert kept(await here.pods_of("steady")) == kept(pods)
    # Not one write, for the version is part of it.
    assert (await here.workload_of("steady"), await here.get(kinds.JOBS, "steady")) == before


async def cause_trouble(elsewhere: Elsewhere, here: Cluster) -> None:
    """What a quiet day does not show: an eviction, one that waits, a node that is left out."""
    await here.submit("train", 2, required=RACK, run_seconds=1)
    await here.condition("train", "Finished")
    await here.submit("stopped", 2, required=RACK)
    await here.bound("stopped", 2)
    name = (await here.workload_of("stopped"))["metadata"]["name"]
    await here.merge(kinds.WORKLOADS, name, {"spec": {"active": False}})
    await here.condition("stopped", "Evicted")
    await here.submit("waits", 5000, required=RACK)
    # A node that its flavor leaves out.
    (node, *_) = await here._pool()
    await here.merge(kinds.NODES, node["metadata"]["name"], {"spec": {"unschedulable": True}})


async def scraped(elsewhere: Elsewhere, here: Cluster) -> str:
    texts = [await asyncio.to_thread(elsewhere.metrics, service) for service in SERVICES]
    own = "\n".join(texts)
    theirs = (await here.client.get("/metrics")).decode()
    # Prometheus adds this one itself.
    return f"{own}\n{theirs}\nup 1\n"


def unknown_labels(found: list[Sample]) -> list[str]:
    """Labels that expressions group by, and legends name, on none of the series they select."""
    seen: dict[str, set[str]] = {}
    for sample in found:
        seen.setdefault(sample.name, set()).update(sample.labels)
    unknown = []
    for where, text in promql.expressions():
        asked = {use.metric for use in promql.uses(text)}
        if asked & seen.keys():  # else it is of trouble alone
            there = promql.OF_SCRAPE.union(*(seen.get(metric, set()) for metric in asked))
            unknown += [f"{where}: label {name}" for name in promql.grouped_by(text) - there]
    return unknown


@pytest.mark.requirement("OPS-09")
async def test_every_series_that_an_alert_or_panel_asks_for_is_in_a_real_scrape(
    elsewhere: Elsewhere, here: Cluster
) -> None:
    await cause_trouble(elsewhere, here)
    wanted = {use for _, text in promql.expressions() for use in promql.uses(text)}
    # Cuts every watch; and the API server's own counters begin anew.
    for verb in ("stop", "start"):
        await asyncio.to_thread(elsewhere.playground.run, verb, "kube-apiserver")
    await all_ready(elsewhere, here)
    await asyncio.to_thread(elsewhere.stop, "webhook")
    await here.submit("away", 1, spec={"suspend": True})
    await asyncio.to_thread(elsewhere.start, "webhook")
    await all_ready(elsewhere, here)
    missing: list[str] = []

    async def complete() -> bool:
        text = await scraped(elsewhere, here)
        asked = {use.metric for use in wanted}
        found = samples(text, asked.__contains__)
        missing[:] = sorted(
            str(use)
            for use in wanted
            if use.metric not in TROUBLE
            and not any(s.name == use.metric and promql.selects(use, s.labels) for s in found)
        )
        for name in TROUBLE:
            assert f"# TYPE {name}" in text
        missing.extend(unknown_labels(found))
        return not missing

    try:
        await until("every series is there", complete)
    except AssertionError:
        pytest.fail("not in the scrape:\n" + "\n".join(missing))

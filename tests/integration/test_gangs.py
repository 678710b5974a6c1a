"""Gangs before a real API server: what it takes, what it rejects, and which pods are held."""

from __future__ import annotations

import asyncio
import itertools
import json
from collections.abc import AsyncIterator, Iterator, Mapping
from typing import Any, Final
from unittest.mock import ANY

import pytest

from rackgate.api import names
from rackgate.api import resources as kinds
from rackgate.api.resources import Resource
from rackgate.features import GANG_SCHEDULING, WORKLOAD_REV_N
from rackgate.gang.forms.expand import quote_off
from rackgate.kube.client import PatchType
from rackgate.kube.errors import ForbiddenError, UnprocessableError
from rackgate_cli.controlplane import install
from rackgate_cli.locations import deploy_dir
from tests.support.cluster import Cluster, until
from tests.support.gang_cases import Case, invalid_cases, pairs, rev1_specs, rev_n_specs
from tests.support.identities import acting_as, as_tenant
from tests.support.objects import job
from tests.support.playground import Playground, rackgate, start_playground
from tests.support.whole_answers import Server

pytestmark = pytest.mark.integration

DRY_RUN: Final = "?dryRun=All&fieldValidation=Strict"
APPLY: Final = f"{DRY_RUN}&fieldManager=test&force=true"
LINK, RUN, GATE = names.GANG_LINK_ANNOTATION, names.GANG_RUN_ANNOTATION, names.GANG_GATE
UNGATER: Final = (names.SYSTEM_NAMESPACE, "rackgate-ungater")
# Kinds of the pairs that a playground serves. LeaderWorkerSet and TrainJob are of other projects.
SERVED: Final = {
    ("v1", "Service"): "/api/v1/namespaces/{}/services",
    ("batch/v1", "Job"): "/apis/batch/v1/namespaces/{}/jobs",
    ("apps/v1", "StatefulSet"): "/apis/apps/v1/namespaces/{}/statefulsets",
    ("apps/v1", "Deployment"): "/apis/apps/v1/namespaces/{}/deployments",
    ("autoscaling/v2", "HorizontalPodAutoscaler"): (
        "/apis/autoscaling/v2/namespaces/{}/horizontalpodautoscalers"
    ),
    ("jobset.x-k8s.io/v1alpha2", "JobSet"): "/apis/jobset.x-k8s.io/v1alpha2/namespaces/{}/jobsets",
}


@pytest.fixture(scope="module")
def playground(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Playground]:
    """A control plane of its own: gangs change what happens to Jobs of other tests.

    The assigner and the ungater are away: pods stay as the API server stored them.
    """
    running = start_playground(
        tmp_path_factory.mktemp("gangs") / "state",
        services=("webhook",),
        operators=("jobset",),
        gates=(GANG_SCHEDULING, WORKLOAD_REV_N),
    )
    try:
        with running.webhooks_port():
            yield running
    finally:
        running.stop()


@pytest.fixture
def rev1_only(playground: Playground, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A webhook without the gate WorkloadRevN. To be asked for before `cluster`."""
    playground.run("stop", "webhook")
    with monkeypatch.context() as patch:
        patch.setenv("RACKGATE_WEBHOOK_FEATURE_GATES", json.dumps({WORKLOAD_REV_N: False}))
        playground.run("start", "webhook")
        yield
        playground.run("stop", "webhook")
    playground.run("start", "webhook")


def manifest(spec: Case, name: str = "w") -> Case:
    head = {"apiVersion": kinds.GANG_WORKLOADS.api_version, "kind": "Workload"}
    return {**head, "metadata": {"name": name}, "spec": spec}


@pytest.fixture
async def server(playground: Playground, cluster: Cluster) -> Server:
    """The API server, once it calls the webhook."""
    found = Server(playground)
    path = kinds.GANG_WORKLOADS.path(cluster.namespace) + DRY_RUN
    broken = next(iter(invalid_cases("webhook").values()))["spec"]

    async def called() -> bool:
        return (await found.send("POST", path, manifest(broken)))[0] == 422

    await until("the webhook is called", called)
    return found


@pytest.mark.requirement("GNG-01")
async def test_the_kind_is_served_beside_kueues(playground: Playground, cluster: Cluster) -> None:
    for kind in (kinds.GANG_WORKLOADS, kinds.WORKLOADS):
        found = json.loads(await cluster.client.get(kind.path(cluster.namespace)))
        assert found["items"] == []
    await cluster.create(kinds.GANG_WORKLOADS, manifest({}))
    where = ("-n", cluster.namespace, "-o", "name")
    assert playground.run("kubectl", "get", "workloads", *where).split() == []
    for name in ("swl", "schedworkload", "schedworkloads"):
        assert playground.run("kubectl", "get", name, *where).split() == [
            f"workload.{kinds.GANG_WORKLOADS.group}/w"
        ]


async def test_the_columns_say_how_far_the_gangs_are(
    playground: Playground, cluster: Cluster
) -> None:
    await cluster.create(kinds.GANG_WORKLOADS, manifest({"gangGroups": [{"name": "gg"}]}))
    condition = {
        "type": "GangScheduled",
        "status": "False",
        "reason": "PodsMissing",
        "message": "7 of 8 pods exist",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    gang = {"name": "gg", "state": "Collecting", "members": 7, "minCount": 8}
    status = {
        "observedGeneration": 1,
        "phase": "Collecting",
        "members": "7/8",
        "podPhase": "Pending",
        "gangGroups": [{"name": "gg", "phase": "Pending"}],
        "waitingFor": "PodsMissing",
        "conditions": [condition],
        "gangs": [{**gang, "released": 0, "bound": 0, "run": "0123456789", "message": "waits"}],
        "replicas": {"total": 1, "running": 0, "waiting": 1},
    }
    stored = await cluster.merge(kinds.GANG_WORKLOADS, "w", {"status": status}, "status")
    assert stored["status"] == status, "the schema drops nothing of it"
    head, row = playground.run("kubectl", "get", "swl", "-n", cluster.namespace).splitlines()
    assert head.split() == ["NAME", "PHASE", "PODS", "MEMBERS", "WAITING", "FOR", "AGE"]
    assert row.split()[:5] == ["w", "Collecting", "Pending", "7/8", "PodsMissing"]


async def test_every_valid_spec_is_stored_as_it_was_written(
    server: Server, cluster: Cluster
) -> None:
    path = kinds.GANG_WORKLOADS.path(cluster.namespace) + DRY_RUN
    specs = {**dict(rev1_specs()), **dict(rev_n_specs())}
    assert len(specs) > 80
    for name, spec in specs.items():
        status, answer, _ = await server.send("POST", path, manifest(spec))
        assert (status, answer.get("message")) == (201, None), name
        assert answer["spec"] == spec, name


@pytest.mark.requirement("GNG-45")
@pytest.mark.parametrize("name", pairs())
async def test_a_pair_of_the_seed_is_applied_unchanged(
    name: str, server: Server, cluster: Cluster
) -> None:
    pair, served = pairs()[name], 0
    for found in pair["trueWorkload"]:
        if path := SERVED.get((found["apiVersion"], found["kind"])):
            where = f"{path.format(cluster.namespace)}/{found['metadata']['name']}{APPLY}"
            status, answer, _ = await server.send("PATCH", where, found, PatchType.APPLY.value)
            assert (status, answer.get("message")) == (201, None), found["kind"]
            served += 1
    assert served or name.startswith(("trainjob", "leaderworkerset", "lws"))
    for form in ("rev1", "revN", "correctedRevN"):
        if (found := pair.get(form)) is None:
            continue
        where = kinds.GANG_WORKLOADS.path(cluster.namespace, found["metadata"]["name"]) + APPLY
        status, answer, warnings = await server.send("PATCH", where, found, PatchType.APPLY.value)
        assert (status, answer.get("message")) == (201, None), form
        assert answer["spec"] == found["spec"], form
        expected = pair.get("warnings", []) if form == "revN" else []
        assert len(warnings.splitlines()) == len(expected), warnings
        for one in expected:
            assert one["path"] in warnings


@pytest.mark.requirement("GNG-33", "GNG-39", "GNG-40")
async def test_every_invalid_spec_is_rejected_with_its_path_and_reason(
    server: Server, cluster: Cluster
) -> None:
    path = kinds.GANG_WORKLOADS.path(cluster.namespace)
    cases = invalid_cases("schema", "rule", "webhook")
    assert (len(cases), len(invalid_cases())) == (56, 58)
    for name, case in cases.items():
        if quote_off(case["spec"]) != case["spec"]:
            continue  # the webhook repairs it, see below
        if "old" in case:
            old = await cluster.create(kinds.GANG_WORKLOADS, manifest(case["old"], name))
            body = {**old, "spec": case["spec"]}
            status, answer, _ = await server.send("PUT", f"{path}/{name}{DRY_RUN}", body)
        else:
            status, answer, _ = await server.send("POST", path + DRY_RUN, manifest(case["spec"]))
        assert status == 422, name
        causes = [(cause["field"], cause["reason"]) for cause in answer["details"]["causes"]]
        if case["by"] == "webhook":
            assert case["path"] in [field for field, _ in causes], name
        else:
            assert (case["path"], case["serverReason"]) in causes, name


async def test_what_only_a_strict_client_or_a_topology_can_tell(
    server: Server, cluster: Cluster
) -> None:
    path = kinds.GANG_WORKLOADS.path(cluster.namespace) + DRY_RUN
    for case in invalid_cases("strict").values():
        status, answer, _ = await server.send("POST", path, manifest(case["spec"]))
        assert (status, answer["reason"]) == (400, "BadRequest")
        assert f'unknown field "{case["path"]}"' in answer["message"]
    for name, case in invalid_cases("condition").items():
        status, answer, _ = await server.send("POST", path, manifest(case["spec"]))
        assert status == 201, (name, answer.get("message"))


@pytest.mark.requirement("GNG-34")
async def test_an_unquoted_off_is_stored_as_off(server: Server, cluster: Cluster) -> None:
    path = kinds.GANG_WORKLOADS.path(cluster.namespace) + DRY_RUN
    ranked = {"name": "rg", "rankMode": False}
    spec = {"gangGroups": [{"name": "gg", "gangMode": False, "rankedGroups": [ranked]}]}
    status, answer, _ = await server.send("POST", path, manifest(spec))
    assert (status, answer.get("message")) == (201, None)
    (group,) = answer["spec"]["gangGroups"]
    assert (group["gangMode"], group["rankedGroups"][0]["rankMode"]) == ("Off", "Off")


@pytest.mark.requirement("GNG-09")
@pytest.mark.usefixtures("rev1_only")
async def test_without_its_gate_fields_of_rev_n_are_rejected_and_rev1_is_not(
    server: Server, cluster: Cluster
) -> None:
    path = kinds.GANG_WORKLOADS.path(cluster.namespace) + DRY_RUN
    for name, spec in rev1_specs():
        status, answer, _ = await server.send("POST", path, manifest(spec))
        assert (status, answer.get("message")) == (201, None), name
    spec = {"gangGroups": [{"name": "gg", "minCount": 2, "maxCount": 3}]}
    status, answer, _ = await server.send("POST", path, manifest(spec))
    assert (status, answer["details"]["causes"][0]["field"]) == (422, "spec.gangGroups[0].maxCount")
    assert WORKLOAD_REV_N in answer["message"]


@pytest.mark.usefixtures("webhook_down")
async def test_without_a_webhook_the_schema_its_rules_and_the_gate_remain(
    playground: Playground, cluster: Cluster
) -> None:
    server, path = Server(playground), kinds.GANG_WORKLOADS.path(cluster.namespace) + DRY_RUN
    for name, spec in rev1_specs():
        status, answer, _ = await server.send("POST", path, manifest(spec))
        assert (status, answer.get("message")) == (201, None), name
    for name, case in invalid_cases("schema", "rule").items():
        if "old" not in case:
            status, answer, _ = await server.send("POST", path, manifest(case["spec"]))
            assert status == 422, name
    for name, case in invalid_cases("webhook").items():
        status, answer, _ = await server.send("POST", path, manifest(case["spec"]))
        assert status == 201, name
    status, answer, _ = await server.send(
        "POST", path, manifest({"gangGroups": [{"name": "gg", "gangMode": False}]})
    )
    assert (status, answer["details"]["causes"][0]["field"]) == (422, "spec.gangGroups[0].gangMode")
    assert gates(await cluster.create(kinds.PODS, pod("linked", {LINK: "w"}))) == [GATE]


def pod(name: str, annotations: Mapping[str, str] | None = None, **spec: Any) -> Case:
    container = {"name": "main", "image": "registry.example/any:1"}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "annotations": dict(annotations or {})},
        "spec": {
            "containers": [container],
            "tolerations": [{"operator": "Exists"}],
            **spec,
        },
    }


def gates(found: Mapping[str, Any]) -> list[str]:
    return sorted(gate["name"] for gate in found["spec"].get("schedulingGates", ()))


@pytest.mark.requirement("GNG-06")
async def test_a_linked_pod_is_created_gated_whatever_creates_it(cluster: Cluster) -> None:
    made = await cluster.create(kinds.PODS, pod("linked", {LINK: "w"}))
    assert gates(made) == [GATE]
    own = [{"name": "example.com/own"}]
    made = await cluster.create(kinds.PODS, pod("other", {LINK: "w"}, schedulingGates=own))
    assert gates(made) == ["example.com/own", GATE]
    made = await cluster.create(
        kinds.PODS, pod("both", {LINK: "w"}, schedulingGates=[{"name": GATE}])
    )
    assert gates(made) == [GATE]
    template = pod("", {LINK: "w"})
    template["metadata"]["labels"] = {"app": "set"}
    await cluster.create(
        kinds.STATEFUL_SETS,
        {
            "apiVersion": "apps/v1",
            "kind": "StatefulSet",
            "metadata": {"name": "set"},
            "spec": {
                "serviceName": "set",
                "replicas": 2,
                "podManagementPolicy": "Parallel",
                "selector": {"matchLabels": {"app": "set"}},
                "template": {**template, "metadata": {**template["metadata"], "name": None}},
            },
        },
    )

    async def made_gated() -> bool:
        found = await cluster.list_all(kinds.PODS, labelSelector="app=set")
        return len(found) == 2 and all(gates(one) == [GATE] for one in found)

    await until("the pods of the StatefulSet are gated", made_gated)
    await cluster.delete(kinds.STATEFUL_SETS, "set")


@pytest.mark.parametrize("queue", [None, "queue"])
async def test_who_links_pods_that_may_be_no_gang_is_warned(
    queue: str | None, server: Server, cluster: Cluster
) -> None:
    path, found = (
        kinds.JOBS.path(cluster.namespace),
        job("train", 2, queue=queue, annotations={LINK: "w"}),
    )
    status, _, warnings = await server.send("POST", path + DRY_RUN, found)
    assert status == 201
    assert ("Rackgate cannot stop this Job" in warnings) == (queue is None)
    plain = job("train", 2, queue=None)
    assert await server.send("POST", path + DRY_RUN, plain) == (201, ANY, "")
    pair = pairs()["parallel-statefulset"]["trueWorkload"][-1]
    template = pair["spec"]["template"]
    marked = {**template["metadata"], "annotations": {LINK: "w"}}
    linked = {**pair, "spec": {**pair["spec"], "template": {**template, "metadata": marked}}}
    where = kinds.STATEFUL_SETS.path(cluster.namespace) + DRY_RUN
    for policy in ("Parallel", "OrderedReady"):
        spec = {**linked["spec"], "podManagementPolicy": policy}
        status, _, warnings = await server.send("POST", where, {**linked, "spec": spec})
        assert status == 201
        assert ("use Parallel" in warnings) == (policy == "OrderedReady")


async def test_a_linked_pod_cannot_name_its_node(cluster: Cluster) -> None:
    with pytest.raises(UnprocessableError, match="nodeName"):
        await cluster.create(kinds.PODS, pod("bound", {LINK: "w"}, nodeName="n1"))


@pytest.mark.requirement("GNG-14")
async def test_pods_that_name_no_workload_are_left_alone(cluster: Cluster) -> None:
    for name, given in (("plain", {}), ("empty", {LINK: ""}), ("own", {"own": "value"})):
        assert gates(await cluster.create(kinds.PODS, pod(name, given))) == []
    own = [{"name": "example.com/own"}]
    assert gates(await cluster.create(kinds.PODS, pod("gated", schedulingGates=own))) == [
        "example.com/own"
    ]
    await cluster.merge(kinds.PODS, "gated", {"spec": {"schedulingGates": []}})
    await cluster.merge(kinds.PODS, "plain", {"metadata": {"annotations": {"own": "other"}}})


@pytest.mark.requirement("GNG-05")
async def test_the_link_of_a_pod_is_immutable(cluster: Cluster) -> None:
    await cluster.create(kinds.PODS, pod("linked", {LINK: "w"}))
    await cluster.create(kinds.PODS, pod("plain"))
    for name, value in (("linked", "other"), ("linked", None), ("plain", "w")):
        for sub in (None, "status"):
            change = {"metadata": {"annotations": {LINK: value}}}
            with pytest.raises(UnprocessableError, match="immutable"):
                await cluster.merge(kinds.PODS, name, change, sub)
    with pytest.raises(UnprocessableError, match="not a name of an object"):
        await cluster.create(kinds.PODS, pod("odd", {LINK: "Not A Name"}))


@pytest.fixture
async def tenant(playground: Playground, cluster: Cluster) -> AsyncIterator[Cluster]:
    async with as_tenant(playground, cluster) as found:
        yield found


@pytest.mark.requirement("GNG-12")
async def test_only_the_ungater_removes_the_gate_and_names_the_run(
    playground: Playground, cluster: Cluster, tenant: Cluster
) -> None:
    await tenant.create(kinds.PODS, pod("linked", {LINK: "w"}))
    ungate: Case = {"spec": {"schedulingGates": []}}
    run = {"metadata": {"annotations": {RUN: "0123456789"}}}
    for who in (tenant, cluster):
        with pytest.raises(ForbiddenError, match="delete the pod to give it up"):
            await who.merge(kinds.PODS, "linked", ungate)
        with pytest.raises(ForbiddenError, match="set by Rackgate"):
            await who.merge(kinds.PODS, "linked", run)
    with pytest.raises(UnprocessableError, match="reserved"):
        await tenant.create(kinds.PODS, pod("forged", {LINK: "w", RUN: "0123456789"}))
    with pytest.raises(UnprocessableError, match="only for pods with the annotation"):
        await tenant.create(kinds.PODS, pod("alone", schedulingGates=[{"name": GATE}]))
    async with acting_as(playground, cluster, UNGATER) as ungater:
        found = await ungater.merge(kinds.PODS, "linked", {**run, **ungate})
    assert gates(found) == []
    for who in (tenant, cluster):
        with pytest.raises(ForbiddenError, match="set by Rackgate"):
            await who.merge(kinds.PODS, "linked", {"metadata": {"annotations": {RUN: None}}})


@pytest.mark.requirement("GNG-05", "GNG-12")
async def test_a_pod_with_the_gate_of_a_template_breaks_no_rule_unseen(
    playground: Playground, cluster: Cluster, tenant: Cluster
) -> None:
    """The policy leaves out pods that look as those of a started job do."""

    def made(name: str, link: str = "w", **more: str) -> Case:
        given = pod(name, {LINK: link}, schedulingGates=[{"name": GATE}])
        given["metadata"]["labels"] = {"kueue.x-k8s.io/managed": "true", **more}
        return given

    forged = made("forged")
    forged["metadata"]["annotations"][RUN] = "0123456789"
    gang_id = made("gang-id", **{"scheduling.rackgate.dev/gang-id": "0123456789"})
    clean_up = made("clean-up", **{"ray.io/node-type": "redis-cleanup"})
    for rejected, why in (
        (forged, "reserved"),
        (gang_id, "reserved"),
        (clean_up, "only for pods with the annotation"),
        (made("odd", "Not A Name"), "not a name of an object"),
        (made("long", "w" * 254), "not a name of an object"),
        (made("lines", "w\nw"), "not a name of an object"),
    ):
        with pytest.raises(UnprocessableError, match=why):
            await tenant.create(kinds.PODS, rejected)
    assert gates(await tenant.create(kinds.PODS, made("linked"))) == [GATE]
    async with acting_as(playground, cluster, UNGATER) as ungater:
        for change, error in (
            ({"annotations": {LINK: "other", RUN: "0123456789"}}, UnprocessableError),
            ({"labels": {"kueue.x-k8s.io/managed": None}}, ForbiddenError),
            ({"labels": {"scheduling.rackgate.dev/gang-id": "0123456789"}}, ForbiddenError),
        ):
            released: Case = {"metadata": change, "spec": {"schedulingGates": []}}
            with pytest.raises(error):
                await ungater.merge(kinds.PODS, "linked", released)


async def test_users_who_edit_a_namespace_write_workloads_of_gangs(tenant: Cluster) -> None:
    spec: Case = {"gangGroups": [{"name": "gg", "minCount": 2}]}
    await tenant.create(kinds.GANG_WORKLOADS, manifest(spec))
    with pytest.raises(ForbiddenError):
        await tenant.merge(kinds.GANG_WORKLOADS, "w", {"status": {"phase": "Running"}}, "status")
    await tenant.delete(kinds.GANG_WORKLOADS, "w")


BINDINGS: Final = Resource(
    "admissionregistration.k8s.io",
    "v1",
    "mutatingadmissionpolicybindings",
    False,
    "MutatingAdmissionPolicyBinding",
)


@pytest.fixture
async def webhook_instead_of_policy(
    playground: Playground, cluster: Cluster, server: Server
) -> AsyncIterator[Server]:
    """As on a server before Kubernetes 1.36, with the component deploy/gangs/webhook."""
    client, path = cluster.client, BINDINGS.path(None, "rackgate-gangs.rackgate-system")
    binding = json.loads(await client.get(path))
    hooks = kinds.MUTATING_CONFIGS.path(None, "rackgate-mutating.rackgate-system")
    before = json.loads(await client.get(hooks))["webhooks"]
    own = next(one for one in before if one["name"] == "gangs.mutate.rackgate.dev")
    (added,) = install.documents(deploy_dir() / "gangs" / "webhook" / "webhooks.yaml")
    hook = {**added["webhooks"][0], "clientConfig": own["clientConfig"]}

    async def set_hooks(wanted: list[Case]) -> None:
        body = json.dumps({"webhooks": wanted}).encode()
        await client.patch(hooks, body, PatchType.MERGE)

    pods = kinds.PODS.path(cluster.namespace) + DRY_RUN

    async def answered(status: int) -> bool:
        return (await server.send("POST", pods, pod("probe", {LINK: "w"})))[0] == status

    await client.delete(path)
    try:
        await until("the policy is gone, and linked pods are rejected", lambda: answered(422))
        await set_hooks([*before, hook])
        await until("the webhook adds the gate", lambda: answered(201))
        yield server
    finally:
        await set_hooks(before)
        await until("the webhook adds the gate no more", lambda: answered(422))
        for field in ("resourceVersion", "uid", "creationTimestamp", "generation", "managedFields"):
            binding["metadata"].pop(field, None)
        await client.create(BINDINGS.path(), json.dumps(binding).encode())
        await until("the policy is back", lambda: answered(201))


@pytest.mark.requirement("GNG-12", "GNG-14")
async def test_before_kubernetes_1_36_the_webhook_holds_linked_pods_and_no_others(
    playground: Playground, cluster: Cluster, webhook_instead_of_policy: Server
) -> None:
    server = webhook_instead_of_policy
    assert gates(await cluster.create(kinds.PODS, pod("linked", {LINK: "w"}))) == [GATE]
    assert gates(await cluster.create(kinds.PODS, pod("free"))) == []
    pods = kinds.PODS.path(cluster.namespace) + DRY_RUN
    playground.run("stop", "webhook")
    try:
        assert (await server.send("POST", pods, pod("other")))[0] == 201, "it calls no webhook"
        status, answer, _ = await server.send("POST", pods, pod("held", {LINK: "w"}))
        assert status >= 400, "never created without its gate"
        assert "gang-pods.mutate.rackgate.dev" in answer["message"]
    finally:
        playground.run("start", "webhook")


async def test_nothing_is_held_once_the_component_is_removed(
    playground: Playground, cluster: Cluster
) -> None:
    """As docs/concepts/gangs.md says. No test of this module comes after it."""
    own = [{"name": "example.com/own"}]
    await cluster.create(kinds.PODS, pod("linked", {LINK: "w"}, schedulingGates=own))
    words = ("gang", "release", "--state", str(playground.state))
    said = await asyncio.to_thread(rackgate, *words, "--dry-run")
    assert f"{cluster.namespace}/linked has the gate" in said
    with pytest.raises(AssertionError, match="delete the pod to give it up"):
        await asyncio.to_thread(rackgate, *words)
    name = "rackgate-gangs.rackgate-system"
    both = (
        kinds.MUTATING_POLICY_BINDINGS,
        kinds.MUTATING_POLICIES,
        kinds.ADMISSION_POLICY_BINDINGS,
        kinds.ADMISSION_POLICIES,
    )
    for kind in both:
        await cluster.client.delete(kind.path(None, name))

    async def released() -> bool:
        try:
            said = await asyncio.to_thread(rackgate, *words)
        except AssertionError:
            return False  # the API server still knows the policy
        return f"{cluster.namespace}/linked released" in said

    await until("the pod is released", released)
    assert gates(await cluster.get(kinds.PODS, "linked")) == ["example.com/own"]

    async def left_alone() -> bool:
        made = await cluster.create(kinds.PODS, pod(f"after-{next(numbers)}", {LINK: "w"}))
        return gates(made) == []

    numbers = itertools.count()
    await until("linked pods are not held any more", left_alone)

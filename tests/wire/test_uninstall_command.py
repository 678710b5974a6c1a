"""`rackgate uninstall` step by step: what goes, what stays, and whose it is."""

from __future__ import annotations

import asyncio
import contextlib
import copy
import json
from argparse import ArgumentParser
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import yaml
from aiohttp import web

from rackgate.api import names
from rackgate.api import resources as kinds
from rackgate.api.resources import Resource
from rackgate.installation.uninstall import FINALIZER
from rackgate.kube.errors import KubeError
from rackgate_cli.__main__ import main
from rackgate_cli.cluster.roles import is_for_people
from rackgate_cli.controlplane import install
from rackgate_cli.errors import CommandError, UsageError
from rackgate_cli.locations import deploy_dir
from rackgate_cli.preflight import command as preflight
from rackgate_cli.preflight.findings import OLD_NAMES, OURS, PART_OF
from rackgate_cli.uninstall import command as uninstall
from rackgate_cli.uninstall.scope import CLAIMS, CRON_JOBS, DAEMON_SETS
from rackgate_cli.uninstall.steps import InstallationSurvey, Uninstaller, UninstallResult
from rackgate_cli.uninstall.view import plan
from tests.support.apiserver import Fault, Object
from tests.support.apiserver_objects import Target, status_body
from tests.wire.assigner_world import START, World

SYSTEM, OTHER = "rackgate-system", "team-infra"
DEPLOY = deploy_dir()
BUDGETS = Resource("policy", "v1", "poddisruptionbudgets", True, "PodDisruptionBudget")
RESOURCES = {
    one.kind: one
    for one in (BUDGETS, *vars(kinds).values())
    if isinstance(one, Resource) and one.group != kinds.KAI_TOPOLOGIES.group
}
MANIFESTS = [
    *install.documents(*(DEPLOY / name for name in ("rbac", "services", "visibility", "webhook"))),
    *install.documents(DEPLOY / "cluster", DEPLOY / "osmo" / "rbac.yaml"),
    *install.documents(DEPLOY / "osmo" / "cluster", DEPLOY / "gangs" / "cluster"),
    *install.documents(DEPLOY / "gangs" / "rbac.yaml", DEPLOY / "gangs" / "policies.yaml"),
    *install.documents(DEPLOY / "pods" / "rbac.yaml", DEPLOY / "pods" / "policies.yaml"),
]
OF_OTHERS = (
    *(kinds.DEPLOYMENTS, kinds.STATEFUL_SETS, DAEMON_SETS, kinds.JOBS, CRON_JOBS, kinds.PODS),
    *(CLAIMS, kinds.SECRETS, kinds.CONFIG_MAPS, kinds.SERVICES),
)
HOLDERS = ("rackgate-assigner", "rackgate-ungater")
MARK = (kinds.CLUSTER_ROLE_BINDINGS, "rackgate", "")
Which = tuple[Resource, str, str]


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with World() as found:
        yield found


def put_installation(
    world: World, namespace: str, *, acted: bool = True, marked: bool = True
) -> set[Which]:
    """All manifests, as an installation in that namespace has them; which they are."""
    put = set()
    for document in MANIFESTS:
        text = json.dumps(document).replace(SYSTEM, namespace)
        wanted, resource = json.loads(text), RESOURCES[document["kind"]]
        meta = wanted["metadata"]
        which = (resource, meta["name"], meta.get("namespace", ""))
        if which == MARK and not marked:
            continue
        holds = resource.kind.startswith(("ClusterRole", "ServiceAccount"))
        if acted and holds and meta["name"].split(".")[0] in HOLDERS:
            meta["finalizers"] = [FINALIZER]
        put.add(which)
        if world.get(*which) is None:  # what users are granted is there once for all
            world.put(resource, wanted)
    for resource, name in ((kinds.SECRETS, "rackgate-webhook-tls"), (kinds.LEASES, HOLDERS[0])):
        put_in(world, namespace, resource, name)
        put.add((resource, name, namespace))
    put_in(world, namespace, kinds.CONFIG_MAPS, "kube-root-ca.crt")
    return put


def put_in(world: World, namespace: str, resource: Resource, name: str, **more: Any) -> Which:
    meta = {"name": name, "namespace": namespace, **more}
    world.put(resource, {"metadata": meta, "spec": {"suspend": True, "template": {}}})
    return resource, name, namespace


def there(world: World, which: Iterable[Which]) -> set[Which]:
    return {one for one in which if world.get(*one) is not None}


def stored(world: World) -> dict[str, dict[str, Object]]:
    return copy.deepcopy(world._objects)


def stays_with_the_kinds(which: Which, namespace: str) -> bool:
    return is_for_people(which[1]) or which[1] == f"rackgate-uninstall.{namespace}"


async def uninstalled(
    world: World, namespace: str | None = None, *, delete_crds: bool = False
) -> tuple[InstallationSurvey, UninstallResult]:
    client = world.client()
    try:
        work = await Uninstaller.find(client, namespace, jobs="leave", timeout_s=1)
        survey = await work.survey()
        options: dict[str, Any] = {"playground": None, "local": False, "say": str}
        return survey, await work.run(delete_crds=delete_crds, **options)
    finally:
        await client.close()


@pytest.mark.requirement("OPS-06")
@pytest.mark.parametrize("delete_crds", [False, True])
async def test_a_second_installation_goes_and_nothing_of_the_first_or_of_users(
    world: World, delete_crds: bool
) -> None:
    put_installation(world, SYSTEM)
    crd = "workloads.kueue.x-k8s.io"
    world.put(kinds.CRDS, {"metadata": {"name": crd}, "spec": {"group": names.GROUP}})
    before = stored(world)
    put_installation(world, OTHER, acted=False, marked=False)
    survey, done = await uninstalled(world, OTHER, delete_crds=delete_crds)
    assert (survey.is_active, done.left) == (False, [])
    world.remove(kinds.CONFIG_MAPS, "kube-root-ca.crt", OTHER)  # goes with its namespace
    left = {kind: found for kind, found in stored(world).items() if found}
    assert left == before


@pytest.mark.requirement("OPS-14")
@pytest.mark.parametrize("group", [names.GROUP, names.OSMO_GROUP, names.GANG_GROUP])
async def test_kinds_go_only_with_the_crds(world: World, group: str) -> None:
    put_installation(world, SYSTEM)
    crd = (kinds.CRDS, f"things.{group}", "")
    world.put(kinds.CRDS, {"metadata": {"name": crd[1]}, "spec": {"group": group}})
    _, done = await uninstalled(world)
    assert (done.crds, there(world, [crd])) == (0, {crd})
    _, done = await uninstalled(world, delete_crds=True)
    assert (done.crds, there(world, [crd])) == (1, set())


@pytest.mark.requirement("OPS-14")
@pytest.mark.parametrize("namespace", [SYSTEM, OTHER])
async def test_what_belongs_to_the_cluster_stays_and_all_else_goes(
    world: World, namespace: str
) -> None:
    put = put_installation(world, namespace)
    stays = {one for one in put if stays_with_the_kinds(one, namespace)}
    _, done = await uninstalled(world)
    assert (done.left, there(world, put)) == ([], stays)
    assert (kinds.CLUSTER_ROLE_BINDINGS, "rackgate-users:osmo-pools", "") in stays
    assert (kinds.CLUSTER_ROLES, f"rackgate-uninstall.{namespace}", "") in stays
    # Once more with the kinds: found again by what stayed.
    survey, done = await uninstalled(world, delete_crds=True)
    assert (survey.namespace, done.left, there(world, put)) == (namespace, [], set())


@pytest.mark.requirement("OPS-14")
async def test_an_unfinished_kubectl_delete_is_ended_where_it_was_begun(world: World) -> None:
    """The mark has no finalizer, so it goes at once; the roles of who acted are still there."""
    put = put_installation(world, OTHER, marked=False)
    held = {one for one in put if FINALIZER in finalizers(world, one)}
    assert len(held) == 6
    for one in put - held:
        world.remove(*one)
    for resource, name, space in held:
        found = world.get(resource, name, space)
        assert found is not None
        world.put(
            resource, {**found, "metadata": {**found["metadata"], "deletionTimestamp": START}}
        )
    # What users make in their namespaces does not count.
    put_in(world, "team", kinds.SERVICE_ACCOUNTS, "rackgate-assigner", labels={PART_OF: OURS})
    survey, done = await uninstalled(world)
    assert (survey.namespace, survey.is_active) == (OTHER, True)
    assert (there(world, held), done.left) == (set(), [])


def finalizers(world: World, which: Which) -> list[str]:
    found = world.get(*which)
    return found["metadata"].get("finalizers", []) if found else []


async def test_of_several_installations_none_is_guessed(world: World) -> None:
    put_installation(world, SYSTEM, marked=False)
    put_installation(world, OTHER, marked=False)
    before = stored(world)
    with pytest.raises(UsageError, match=f"{SYSTEM}, {OTHER}: name one with --namespace"):
        await uninstalled(world)
    assert stored(world) == before
    # One that acted is told from one that never did.
    for resource in (kinds.CLUSTER_ROLES, kinds.CLUSTER_ROLE_BINDINGS):
        for name in HOLDERS:
            found = world.get(resource, f"{name}.{SYSTEM}")
            assert found is not None
            meta = {**found["metadata"], "finalizers": []}
            world.put(resource, {**found, "metadata": meta})
    survey, _ = await uninstalled(world)
    assert survey.namespace == OTHER


@pytest.mark.requirement("OPS-14")
@pytest.mark.parametrize("namespace", [SYSTEM, OTHER])
async def test_objects_of_old_names_go_with_their_installation(
    world: World, namespace: str
) -> None:
    """Else a policy of the version before would go on refusing, with nobody to unsuspend jobs."""
    old = set()
    for document in MANIFESTS:
        wanted, resource = copy.deepcopy(document), RESOURCES[document["kind"]]
        name = wanted["metadata"]["name"].removesuffix(f".{SYSTEM}").replace("-osmo", ":osmo")
        if resource.namespaced or name not in OLD_NAMES:
            continue
        wanted["metadata"]["name"] = name
        for subject in wanted.get("subjects", ()):
            subject["namespace"] = namespace
        world.put(resource, wanted)
        old.add((resource, name, ""))
    assert {name for _, name, _ in old} == OLD_NAMES
    assert len(old) == 2 + 2 * 9 + 2 * 5, "configurations; policies, roles, each with its binding"
    survey, done = await uninstalled(world)
    assert (survey.namespace, done.left, there(world, old)) == (namespace, [], set())


async def test_objects_of_old_names_stay_where_another_installation_has_them(world: World) -> None:
    put_installation(world, OTHER)
    found = world.get(kinds.CLUSTER_ROLE_BINDINGS, f"rackgate-webhook.{OTHER}")
    assert found is not None
    subjects = [{**found["subjects"][0], "namespace": SYSTEM}]
    meta = {"name": "rackgate-webhook", "labels": {PART_OF: OURS}}
    world.put(kinds.CLUSTER_ROLE_BINDINGS, {"metadata": meta, "subjects": subjects})
    world.put(kinds.ADMISSION_POLICIES, {"metadata": {**meta, "name": "rackgate-jobs"}})
    await uninstalled(world)
    assert world.get(kinds.ADMISSION_POLICIES, "rackgate-jobs")


@pytest.mark.requirement("OPS-14")
@pytest.mark.parametrize("kind", OF_OTHERS, ids=lambda kind: kind.kind)
async def test_a_namespace_that_has_anything_of_others_is_kept_with_it(
    world: World, kind: Resource
) -> None:
    put = put_installation(world, SYSTEM)
    theirs = put_in(world, SYSTEM, kind, "rackgate-like")
    survey, done = await uninstalled(world)
    assert survey.shared == [f"{kind.kind} rackgate-like"]
    said = "\n".join(plan(survey, "leave", delete_crds=False))
    assert f"Namespace {SYSTEM} stays: it also contains {kind.kind} rackgate-like" in said
    assert there(world, {theirs}) == {theirs}
    assert world.get(kinds.NAMESPACES, SYSTEM) is not None
    left = {one for one in there(world, put) if one[0] != kinds.NAMESPACES}
    assert all(stays_with_the_kinds(one, SYSTEM) for one in left)
    assert done.left == []


async def test_a_namespace_with_what_kubernetes_puts_there_is_not_kept(world: World) -> None:
    put_installation(world, SYSTEM)
    token = {"kubernetes.io/service-account.name": "default"}
    put_in(world, SYSTEM, kinds.SECRETS, "default-token-x", annotations=token)
    put_in(world, SYSTEM, kinds.PODS, "ends", deletionTimestamp=START)
    survey, _ = await uninstalled(world)
    assert survey.shared == []
    assert world.get(kinds.NAMESPACES, SYSTEM) is None


@pytest.mark.requirement("OPS-14")
async def test_finalizers_that_kueue_left_on_admission_checks_are_taken_off(world: World) -> None:
    put_installation(world, SYSTEM)
    meta = {"name": "check", "finalizers": ["other/one", names.IN_USE_FINALIZER]}
    world.put(kinds.ADMISSION_CHECKS, {"metadata": meta})
    _, done = await uninstalled(world)
    assert finalizers(world, (kinds.ADMISSION_CHECKS, "check", "")) == ["other/one"]
    assert done.report.released == {"AdmissionCheck": 1}


async def test_policies_and_webhooks_go_before_anything_else_is_written(world: World) -> None:
    put_installation(world, SYSTEM)
    await uninstalled(world)
    written = [Target.parse(seen.path).plural for seen in world.writes()]
    first = [kind for kind in written if kind.startswith(("validating", "mutating"))]
    assert len(first) == 36
    assert written[: len(first)] == first


@pytest.mark.requirement("OPS-14")
@pytest.mark.parametrize("delete_crds", [False, True])
@pytest.mark.parametrize(
    "step",
    [
        *("validatingadmissionpolicies", "mutatingwebhookconfigurations", "deployments"),
        *("clusterrolebindings", "configmaps", "roles", "secrets", "leases", "namespaces"),
        *("clusterroles", "clusterrolebindings/rackgate"),
    ],
)
async def test_whatever_it_dies_at_the_next_run_finds_the_same_installation_and_ends_it(
    world: World, step: str, delete_crds: bool
) -> None:
    put = put_installation(world, OTHER)

    async def refuse(request: Any, handle: Callable[[], Awaitable[Any]]) -> Any:
        target = Target.parse(request.path)
        if step not in (target.plural, f"{target.plural}/{target.name}"):
            return await handle()
        return web.Response(status=403, body=status_body(403, "Forbidden", "it is not allowed"))

    world.faults.append(Fault(refuse, method="DELETE", times=999))
    with pytest.raises(KubeError):
        await uninstalled(world, delete_crds=delete_crds)
    world.faults.clear()
    survey, done = await uninstalled(world, delete_crds=delete_crds)
    stays = {one for one in put if not delete_crds and stays_with_the_kinds(one, OTHER)}
    assert (survey.namespace, survey.is_active) == (OTHER, True)
    assert (done.left, there(world, put)) == ([], stays)


def kubeconfig(world: World, folder: Path) -> Path:
    path = folder / "config"
    context = {"cluster": "here", "user": "me"}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "production",
        "contexts": [{"name": "production", "context": context}],
        "clusters": [{"name": "here", "cluster": {"server": world.url}}],
        "users": [{"name": "me", "user": {"token": "x"}}],
    }
    path.write_text(yaml.safe_dump(document))
    return path


async def run(verb: Any, *arguments: str) -> int:
    parser = ArgumentParser()
    verb.add_parser(parser.add_subparsers())
    parsed = parser.parse_args([verb.__name__.split(".")[-2], *arguments])
    code: int = await asyncio.to_thread(verb.run, parsed)
    return code


@pytest.mark.parametrize("verb", [preflight, uninstall], ids=["preflight", "uninstall"])
async def test_each_verb_says_its_name_to_the_api_server(
    world: World, tmp_path: Path, verb: Any
) -> None:
    flags = ("--dry-run",) if verb is uninstall else ()
    with contextlib.suppress(CommandError):  # here is no /version
        await run(verb, "--kubeconfig", str(kubeconfig(world, tmp_path)), *flags)
    name = verb.__name__.split(".")[-2]
    assert {seen.headers["User-Agent"] for seen in world.requests} == {f"rackgate-{name}"}


async def test_who_is_asked_is_reported_which_cluster_it_is(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = kubeconfig(world, tmp_path)
    assert await run(uninstall, "--kubeconfig", str(path), "--dry-run") == 0
    first = capsys.readouterr().out.splitlines()[0]
    assert first == f"Cluster: {world.url}, context production of {path}."
    assert world.writes() == []


async def test_the_gate_of_gangs_is_removed_from_all_pods_and_no_other_gate(
    world: World, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, gate in (("linked", names.GANG_GATE), ("odd", names.GANG_GATE), ("plain", "a.b/c")):
        gates = [{"name": gate}, {"name": names.TOPOLOGY_GATE}]
        metadata = {"name": name, "namespace": "team-a"}
        world.put(kinds.PODS, {"metadata": metadata, "spec": {"schedulingGates": gates}})
    words = ("gang", "release", "--kubeconfig", str(kubeconfig(world, tmp_path)))
    assert await asyncio.to_thread(main, [*words, "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert said == "team-a/linked has the gate\nteam-a/odd has the gate\n"
    assert world.writes() == []
    # The admission policy is still there.
    world.faults.append(
        Fault.status(403, "", "a policy says no", method="PATCH", path="/pods/odd", times=10**6)
    )
    assert await asyncio.to_thread(main, [*words]) == 1
    said = capsys.readouterr().out
    assert said == "team-a/linked released\nteam-a/odd keeps the gate: a policy says no\n"
    found = world.get(kinds.PODS, "linked", "team-a")
    assert found is not None
    assert found["spec"]["schedulingGates"] == [{"name": names.TOPOLOGY_GATE}]

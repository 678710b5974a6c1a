"""An operator's day, on a control plane of its own, by the commands of docs/tasks.

Kueue is in the way, then an installation of old names, then another installation; install,
upgrade, scale, restore, uninstall with jobs running, install again. The services are processes
beside the cluster, with the tokens and the configurations of their manifests; pods of their
Deployments are simulated, as all pods are.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from rackgate.api import names
from rackgate.api import resources as kinds
from rackgate.installation.uninstall import FINALIZER
from rackgate.kube.errors import ForbiddenError, NotFoundError, UnprocessableError
from rackgate_cli.controlplane.ports import reserved
from rackgate_cli.controlplane.state import StateFolder
from rackgate_cli.locations import deploy_dir
from rackgate_cli.preflight.findings import OLD_NAMES
from tests.support.cluster import Cluster, until
from tests.support.elsewhere import Elsewhere, called_here, kustomized
from tests.support.etcdutl import etcdutl
from tests.support.identities import acting_as
from tests.support.objects import RACK, Object, job
from tests.support.playground import SERVICES, start_playground
from tests.support.runbook import commands

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1200)]

SYSTEM, OTHER, TEAM = "rackgate-system", "team-infra", "team"
MANAGER = "--field-manager=rackgate"
A_MINUTE = 60.0
COMPONENTS = ("kwok", "kube-scheduler", "kube-controller-manager", "kube-apiserver", "etcd")
CRD = "workloads.kueue.x-k8s.io"
Answer = tuple[int, str]


def stays_in_the_cluster() -> set[str]:
    """What deploy/cluster has in addition to CRDs: an uninstall leaves it, see its page."""
    files = ("users.yaml", "uninstall.yaml")
    texts = [(deploy_dir() / "cluster" / name).read_text() for name in files]
    return {one["metadata"]["name"] for text in texts for one in yaml.safe_load_all(text) if one}


class Day(Elsewhere):
    """A control plane without Rackgate, and what an operator types."""

    def kubectl(self, *arguments: str) -> str:
        return self.playground.run("kubectl", *arguments)

    def shell(self, text: str) -> str:
        """Commands as an operator pastes them, in the folder of the kustomization."""
        known = StateFolder(self.playground.state).load()
        assert known is not None
        programs = self.folder / "programs"
        programs.mkdir(exist_ok=True)
        kubectl = programs / "kubectl"
        if not kubectl.exists():
            kubectl.symlink_to(known.binaries["kubectl"])
        environment = {
            **os.environ,
            "KUBECONFIG": str(self.playground.kubeconfig),
            "PATH": os.pathsep.join(
                (str(programs), str(Path(sys.executable).parent), os.environ["PATH"])
            ),
        }
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", text],
            cwd=self.folder,
            env=environment,
            timeout=300,
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, f"{text}\n{done.stdout[-2000:]}{done.stderr[-2000:]}"
        return str(done.stdout)

    def tried(self, *arguments: str) -> Answer:
        """A verb that may fail: exit code, and all that it said."""
        state = ("--state", str(self.playground.state))
        command = [sys.executable, "-m", "rackgate_cli", arguments[0], *state, *arguments[1:]]
        done = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
        return done.returncode, done.stdout + done.stderr

    def documents(self, *, namespace: str = SYSTEM) -> list[Object]:
        """What `kubectl kustomize deploy` says, with webhooks that are called at this machine."""
        built = kustomized(self.playground, self.folder, namespace=namespace)
        return called_here(built, self.ports)

    def written(self, name: str, documents: list[Object]) -> str:
        path = self.folder / f"{name}.json"
        listed = {"apiVersion": "v1", "kind": "List", "items": documents}
        path.write_text(json.dumps(listed))
        return str(path)

    def apply(self, documents: list[Object], upgrade: bool = False) -> None:
        """The second of the commands that install, or upgrade, as the page prints it."""
        words = ("upgrade", "both parts again:") if upgrade else ("install", "manager `rackgate`:")
        _, line, _ = commands(*words).splitlines()
        assert line.endswith(" -k .")
        self.shell(line.replace("-k .", f"-f {self.written('all', documents)}"))

    def begin(self) -> None:
        """Install as documented, and start the services."""
        assert "nothing prevents an installation" in self.shell(
            commands("install", "## Check the cluster")
        )
        line, _, _ = commands("install", "manager `rackgate`:").splitlines()
        self.shell(line.replace("rackgate/deploy", str(deploy_dir())))
        self.kubectl("wait", "--for=condition=Established", f"crd/{CRD}", "--timeout=60s")
        documents = self.documents()
        self.apply(documents)
        self.configurations = configurations(documents)
        self.tokens()
        self.start(*SERVICES)

    def tokens(self, namespace: str = SYSTEM) -> None:
        for service in SERVICES:
            token = self.kubectl(
                *("create", "token", f"rackgate-{service}", "-n", namespace, "--duration=24h")
            )
            self.token_file(service).write_text(token.strip())


def configurations(documents: list[Object]) -> dict[str, Object]:
    return {
        entry["metadata"]["name"].removeprefix("rackgate-"): yaml.safe_load(
            entry["data"]["config.yaml"]
        )
        for entry in documents
        if entry["kind"] == "ConfigMap"
    }


@pytest.fixture(scope="module")
def day(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Day]:
    folder = tmp_path_factory.mktemp("day")
    playground = start_playground(folder / "state", nodes=0, services=())
    with reserved(dict.fromkeys((*SERVICES, "reviews", "visibility"))) as ports:
        there = Day(playground, folder, ports, level="info", namespace=SYSTEM)
        try:
            yield there
        finally:
            there.stop(*SERVICES)
            playground.stop()


@asynccontextmanager
async def team(day: Day) -> AsyncIterator[Cluster]:
    async with day.playground.client() as client:
        yield Cluster(client, TEAM, "day")


async def ready(day: Day, cluster: Cluster) -> None:
    """Every service is ready, and the API server calls the webhook."""
    for service in SERVICES:

        async def answers(service: str = service) -> bool:
            return await asyncio.to_thread(day.ready, service)

        await until(f"{service} is ready", answers)

    async def suspends() -> bool:
        body = json.dumps(job("probe", 1)).encode()
        try:
            answer = await cluster.client.create(kinds.JOBS.path(TEAM), body, {"dryRun": "All"})
        except (ForbiddenError, UnprocessableError):
            return False
        return json.loads(answer)["spec"].get("suspend") is True

    await until("the API server calls the webhook", suspends)


async def steady(cluster: Cluster, name: str) -> dict[str, Any]:
    """What must not change of a job that runs: the Job's spec, and where its pods are."""
    found = await cluster.get(kinds.JOBS, name)
    pods = await cluster.pods_of(name)
    return {
        "spec": found["spec"],
        "uid": found["metadata"]["uid"],
        "pods": {pod["metadata"]["uid"]: pod["spec"].get("nodeName") for pod in pods},
    }


async def held(cluster: Cluster) -> list[str]:
    """What carries a finalizer that only Rackgate takes off."""
    return [
        f"{kind.kind} {item['metadata']['name']}"
        for kind in (kinds.WORKLOADS, kinds.CLUSTER_QUEUES, kinds.FLAVORS, kinds.TOPOLOGIES)
        for item in await cluster.list_all(kind)
        if names.IN_USE_FINALIZER in item["metadata"].get("finalizers", ())
    ]


def kueue(crd: Object) -> list[Object]:
    """As an operator finds it: a kind with a conversion webhook, a Deployment, a webhook."""
    service = {"name": "kueue-webhook-service", "namespace": "kueue-system", "path": "/convert"}
    (version,) = (entry for entry in crd["spec"]["versions"] if entry["storage"])
    version.pop("selectableFields", None)
    theirs = {
        "apiVersion": crd["apiVersion"],
        "kind": crd["kind"],
        "metadata": {"name": crd["metadata"]["name"]},
        "spec": {
            **crd["spec"],
            "versions": [version, {**version, "name": "v1beta1", "storage": False}],
            "conversion": {
                "strategy": "Webhook",
                "webhook": {
                    "clientConfig": {"service": service},
                    "conversionReviewVersions": ["v1"],
                },
            },
        },
    }
    labels = {"app.kubernetes.io/name": "kueue"}
    container = {"name": "manager", "image": "registry.k8s.io/kueue/kueue:v0.14.0"}
    deployment = {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "kueue-controller-manager", "namespace": "kueue-system"},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": {"containers": [container]}},
        },
    }
    webhook = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "MutatingWebhookConfiguration",
        "metadata": {"name": "kueue-mutating-webhook-configuration"},
        "webhooks": [],
    }
    space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kueue-system"}}
    group = "visibility.kueue.x-k8s.io"
    visibility = {"name": "kueue-visibility-server", "namespace": "kueue-system"}
    served = {
        "apiVersion": "apiregistration.k8s.io/v1",
        "kind": "APIService",
        "metadata": {"name": f"v1beta2.{group}"},
        "spec": {
            "group": group,
            "version": "v1beta2",
            "service": visibility,
            "groupPriorityMinimum": 100,
            "versionPriority": 100,
            "insecureSkipTLSVerify": True,
        },
    }
    return [space, theirs, deployment, webhook, served]


async def beside_kueue_nothing_is_changed_and_no_service_acts(day: Day) -> None:
    day.kubectl("get", "ns")
    # What the playground comes with; no service of it ever ran.
    day.playground.delete_kinds("uninstall", "--yes", "--delete-crds", "--timeout", "120")
    code, said = day.tried("preflight")
    assert (code, "nothing prevents" in said) == (0, True), said
    crd = next(
        yaml.safe_load_all((deploy_dir() / "crds" / "kueue.x-k8s.io_workloads.yaml").read_text())
    )
    path = day.written("kueue", kueue(crd))
    day.kubectl("apply", "--server-side", "-f", path)
    async with team(day) as cluster:
        before = await cluster.get(kinds.CRDS, CRD)
        code, said = day.tried("preflight")
        assert code == 3
        for sign in (
            "Deployment kueue-system/kueue-controller-manager",
            "MutatingWebhookConfiguration kueue-mutating-webhook-configuration",
            "APIService v1beta2.visibility.kueue.x-k8s.io",
        ):
            assert f"conflict: Kueue's {sign}\n" in said, said
        assert f"conversion webhook: {CRD}" in said
        # Who does not ask before is refused by the API server: another manager has these fields.
        cluster_wide = str(deploy_dir() / "cluster")
        code, said = day.tried("kubectl", "apply", "--server-side", MANAGER, "-k", cluster_wide)
        assert code != 0
        assert 'with "kubectl"' in said, said
        assert ".spec.conversion.webhook.clientConfig.service.name" in said, said
        after = await cluster.get(kinds.CRDS, CRD)
        assert (after["spec"], after["metadata"]["generation"]) == (before["spec"], 1)
        # The services with all rights.
        day.configurations = configurations(day.documents())
        for service in ("assigner", "ungater"):
            code, said = await asyncio.to_thread(day.second, service, SYSTEM)
            assert (code, "Kueue is installed in this cluster" in said) == (3, True), said[-500:]
    # An APIService that nobody answers for would keep the namespace from going.
    day.shell(commands("migrate-from-kueue", "no namespace of the cluster can be deleted:"))
    for what in (("-f", path), ("-k", str(deploy_dir() / "cluster"))):
        day.playground.delete_kinds(
            "kubectl", "delete", *what, "--ignore-not-found", "--timeout=120s"
        )
    code, said = day.tried("preflight")
    assert code == 0, said


# Objects that there were not when cluster-wide names did not end in the namespace.
NEWER = (
    "rackgate-uninstall",
    "rackgate-other-kinds",
    "rackgate-rayjobs",
    "rackgate-workload-status",
)


def of_old_names(documents: list[Object]) -> list[Object]:
    """As they were when cluster-wide names did not end in the namespace of the installation."""
    bare = re.compile(r"(rackgate-[a-z-]+)\.rackgate-system(?!\.svc)")
    old = [
        json.loads(bare.sub(r"\1", json.dumps(entry)))
        for entry in documents
        if entry["metadata"]["name"] not in ("rackgate", f"rackgate.{SYSTEM}")
        and not entry["metadata"]["name"].startswith(NEWER)
    ]
    for entry in old:
        entry["metadata"]["name"] = entry["metadata"]["name"].replace("-osmo", ":osmo")
    return old


def with_image(documents: list[Object], tag: str) -> list[Object]:
    for entry in documents:
        if entry["kind"] == "Deployment":
            entry["spec"]["template"]["spec"]["containers"][0]["image"] = f"rackgate:{tag}"
    return documents


async def an_installation_of_old_names_is_upgraded_once_and_for_all(day: Day) -> None:
    documents = day.documents()  # and the kustomization that the commands apply
    cluster = str(deploy_dir() / "cluster")
    text = day.kubectl("kustomize", cluster)
    kinds_too = [one for one in yaml.safe_load_all(text) if one]
    old = of_old_names([*kinds_too, *documents])
    spaces = [entry for entry in old if entry["kind"] == "Namespace"]
    for part in (spaces, old):  # applied as that version said: by the manager that kubectl names
        day.kubectl("apply", "--server-side", "-f", day.written("old", part))
    code, said = day.tried("preflight")
    assert (code, "ValidatingAdmissionPolicy rackgate-jobs," in said) == (0, True), said
    block = commands("upgrade", "## Upgrade from a version with old names")
    assert "rackgate/deploy/cluster ." in block
    day.shell(block.replace("rackgate/deploy/cluster .", f"{cluster} ."))
    async with team(day) as there:
        for kind in (
            *(kinds.ADMISSION_POLICIES, kinds.ADMISSION_POLICY_BINDINGS, kinds.CLUSTER_ROLES),
            *(kinds.MUTATING_CONFIGS, kinds.VALIDATING_CONFIGS, kinds.CLUSTER_ROLE_BINDINGS),
        ):
            ours = [one["metadata"]["name"] for one in await there.list_all(kind)]
            assert [name for name in ours if name in OLD_NAMES] == []
        role = await there.get(kinds.CLUSTER_ROLES, f"rackgate-assigner.{SYSTEM}")
        assert [one["manager"] for one in role["metadata"]["managedFields"]] == ["rackgate"]
    # The version after that, without any force: nothing is owned by two.
    await asyncio.to_thread(day.apply, with_image(day.documents(), "0.1.1"))


async def installed_as_documented_jobs_run(day: Day) -> None:
    await asyncio.to_thread(day.begin)
    async with team(day) as cluster:
        space = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": TEAM}}
        await cluster.create(kinds.NAMESPACES, space)
        await ready(day, cluster)
        await cluster.add_fx_a()
        await cluster.add_queue()
        await cluster.submit("steady", 4, cpu="1", required=RACK)
        await cluster.bound("steady", 4)
        await cluster.submit("waits", 60, required=RACK)
        await cluster.condition("waits", "QuotaReserved", "False")
        account = await cluster.get(kinds.CLUSTER_ROLES, f"rackgate-assigner.{SYSTEM}")
        assert FINALIZER in account["metadata"]["finalizers"]


async def a_second_installation_changes_nothing_of_the_first(day: Day) -> None:
    code, said = day.tried("preflight", "--namespace", OTHER)
    assert (code, f"Rackgate is installed in namespace {SYSTEM}" in said) == (3, True), said
    second = day.documents(namespace=OTHER)
    path = day.written("second", second)
    own = [
        (kind, f"{name}.{SYSTEM}")
        for kind, name in (
            (kinds.CLUSTER_ROLES, "rackgate-assigner"),
            (kinds.CLUSTER_ROLE_BINDINGS, "rackgate-assigner"),
            (kinds.MUTATING_CONFIGS, "rackgate-mutating"),
            (kinds.ADMISSION_POLICIES, "rackgate-jobs"),
        )
    ]
    async with team(day) as cluster:
        own.append((kinds.CLUSTER_ROLE_BINDINGS, "rackgate"))
        before = [await cluster.get(*one) for one in own]
        # By whatever manager, and by force: a roleRef never changes.
        code, said = day.tried(
            *("kubectl", "apply", "--server-side", "--force-conflicts", "-f", path)
        )
        assert code != 0
        assert "cannot change roleRef" in said, said
        assert [await cluster.get(*one) for one in own] == before
        # Its services know, by their own rights, and the first goes on under both sets of policies.
        there = Day(day.playground, day.folder / OTHER, day.ports, namespace=OTHER)
        there.folder.mkdir()
        there.tokens(OTHER)
        there.configurations = configurations(second)
        for service in SERVICES:
            code, said = await asyncio.to_thread(alone, there, service)
            assert code == 3, said[-800:]
            assert f"Rackgate is installed in namespace {SYSTEM}" in said
        await cluster.submit("beside", 2, cpu="1", required=RACK)
        await cluster.bound("beside", 2)
        code, said = await asyncio.to_thread(day.tried, "uninstall", "--namespace", OTHER, "--yes")
        assert code == 0, said
        assert [await cluster.get(*one) for one in own] == before
        assert "Workload" not in said
        assert await held(cluster), "what the first holds is its own"
        with pytest.raises(NotFoundError):
            await cluster.get(kinds.NAMESPACES, OTHER)
        await cluster.submit("after", 1, cpu="1")
        await cluster.bound("after", 1)


def alone(there: Day, service: str) -> Answer:
    """Run a service with its own account until it ends by itself."""
    with reserved(dict.fromkeys((service, "reviews", "visibility"))) as ports:
        there.ports = dict(ports)
        there.start(service)
        code = there.running.pop(service).wait(100)
    return code, there.log_file(service).read_text()


async def an_upgrade_leaves_jobs_alone_and_ends_nothing(day: Day) -> None:
    async with team(day) as cluster:
        before = await steady(cluster, "steady")
        await asyncio.to_thread(day.apply, with_image(day.documents(), "0.2.0"), upgrade=True)
        codes = await asyncio.to_thread(day.stop, *SERVICES)
        assert set(codes.values()) == {0}
        assert await held(cluster), "a stop gives nothing back"
        await asyncio.to_thread(day.start, *SERVICES)
        await ready(day, cluster)
        assert await steady(cluster, "steady") == before
        role = await cluster.get(kinds.CLUSTER_ROLES, f"rackgate-assigner.{SYSTEM}")
        assert FINALIZER in role["metadata"]["finalizers"]
        assert "uninstall_begun" not in day.log_file("assigner").read_text()


async def numbers_of_replicas_belong_to_who_set_them_last(day: Day) -> None:
    path = day.written("next", with_image(day.documents(), "0.2.0"))
    apply = ("kubectl", "apply", "--server-side", MANAGER, "-f", path)
    scale = ("scale", "deployment", "rackgate-webhook", "-n", SYSTEM)

    async def replicas() -> int:
        found = await asyncio.to_thread(
            day.kubectl,
            *("get", "deployment", "rackgate-webhook", "-n", SYSTEM),
            *("-o", "jsonpath={.spec.replicas}"),
        )
        return int(found)

    await asyncio.to_thread(day.kubectl, *scale, "--replicas=5")
    code, said = await asyncio.to_thread(day.tried, *apply)
    assert code != 0
    assert 'conflict with "kubectl" with subresource "scale"' in said, said
    assert await replicas() == 5
    code, said = await asyncio.to_thread(day.tried, *apply, "--force-conflicts")
    assert (code, await replicas()) == (0, 2), said
    code, said = await asyncio.to_thread(day.tried, *apply)
    assert code == 0, said
    # Certificates are revoked, and etcd is restored, with 0: then it is nobody's.
    await asyncio.to_thread(day.kubectl, *scale, "--replicas=0")
    code, said = await asyncio.to_thread(day.tried, *apply)
    assert (code, await replicas()) == (0, 2), said


def restored(day: Day, command: str, copy: Path, store: Path) -> None:
    """Run the documented command on a copy of the store, for the one member of this cluster."""
    known = StateFolder(day.playground.state).load()
    assert known is not None
    peer = f"https://127.0.0.1:{known.ports['etcd-peer']}"
    # A copy of the file, not made by `etcdctl snapshot save`, has no checksum.
    member = (
        f"--name rackgate --initial-cluster rackgate={peer} "
        f"--initial-advertise-peer-urls {peer} --skip-hash-check"
    )
    assert "--bump-revision" in command
    assert "--mark-compacted" in command
    shutil.rmtree(store)
    day.shell(
        command.replace("etcdutl", str(etcdutl()), 1)
        .replace("snapshot.db", str(copy))
        .replace("--data-dir ...", f"--data-dir {store} {member}")
    )


async def a_store_of_the_past_is_restored_by_the_runbook(day: Day) -> None:
    store, saved = StateFolder(day.playground.state).data, day.folder / "saved.db"
    lines = commands("back-up-and-restore", "## Restore etcd").splitlines()
    (restore,) = (line for line in lines if line.startswith("etcdutl "))
    scaling = [line for line in lines if line.startswith("kubectl ")]
    assert len(scaling) == 4, "scale to 0, wait; restart, scale to what it was"

    def away() -> None:
        for name in COMPONENTS:
            day.playground.run("stop", name)

    def back() -> None:
        for name in reversed(COMPONENTS):
            day.playground.run("start", name)

    async with team(day) as cluster:
        before = await steady(cluster, "steady")
        await asyncio.to_thread(day.stop, *SERVICES)
        await asyncio.to_thread(away)
        shutil.copy(store / "member" / "snap" / "db", saved)
        await asyncio.to_thread(back)
        await asyncio.to_thread(day.start, *SERVICES)
        await ready(day, cluster)
        await cluster.submit("forgotten", 1, cpu="1")
        await cluster.bound("forgotten", 1)
    # The services first, then the store, then the services.
    await asyncio.to_thread(day.shell, "\n".join(scaling[:2]))
    await asyncio.to_thread(day.stop, "assigner", "ungater")
    await asyncio.to_thread(away)
    await asyncio.to_thread(restored, day, restore, saved, store)
    await asyncio.to_thread(back)
    await asyncio.to_thread(day.shell, "\n".join(scaling[2:]))
    await asyncio.to_thread(day.stop, "webhook")
    await asyncio.to_thread(day.start, *SERVICES)
    async with team(day) as cluster:  # a client that saw the newer store would believe nothing
        await ready(day, cluster)
        assert await cluster.find(kinds.JOBS, "forgotten") is None
        assert await steady(cluster, "steady") == before
        version = (await cluster.get(kinds.JOBS, "steady"))["metadata"]["resourceVersion"]
        await cluster.submit("restored", 1, cpu="1")
        await cluster.bound("restored", 1)
        after = (await cluster.get(kinds.JOBS, "restored"))["metadata"]["resourceVersion"]
        assert int(version) < 10**9 < int(after), "revisions were moved on"


async def surplus(cluster: Cluster) -> list[str]:
    """Gated pods that nobody will release: more than the job was granted."""
    await cluster.merge(kinds.JOBS, "steady", {"spec": {"parallelism": 6, "completions": 6}})

    async def gated() -> list[str]:
        pods = await cluster.pods_of("steady")
        return [p["metadata"]["name"] for p in pods if p["spec"].get("schedulingGates")]

    async def both() -> bool:
        return len(await gated()) == 2

    await until("two pods are gated", both)
    return await gated()


async def imitated(day: Day, cluster: Cluster, pod: str) -> None:
    """A user's ServiceAccount with the name of a service is not taken for that service."""
    name, group = "rackgate-ungater", "rbac.authorization.k8s.io"
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": name}}
    await cluster.create(kinds.SERVICE_ACCOUNTS, account)
    binding: Object = {
        "apiVersion": f"{group}/v1",
        "kind": "RoleBinding",
        "metadata": {"name": name},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "edit"},
        "subjects": [{"kind": "ServiceAccount", "name": name, "namespace": TEAM}],
    }
    await cluster.create(kinds.ROLE_BINDINGS, binding)
    async with acting_as(day.playground, cluster, (TEAM, name)) as user:

        async def refused() -> bool:
            try:
                await user.merge(kinds.PODS, pod, {"spec": {"schedulingGates": []}})
            except ForbiddenError as error:
                return f"rackgate-pods.{SYSTEM}" in error.message  # and not for want of a right
            pytest.fail("a gate was taken off")

        await until("the policy refuses", refused)


async def kubectl_delete_ends_in_a_minute_with_jobs_running(day: Day) -> None:
    async with team(day) as cluster:
        before = await steady(cluster, "restored")
        names_ = await surplus(cluster)
        await imitated(day, cluster, names_[0])
        began = time.monotonic()
        # Deleted after the accounts, as the namespace controller deletes them at once.
        block = commands("uninstall", "## Uninstall with kubectl")
        await asyncio.to_thread(
            day.shell, block.replace("-k .", f"-k {deploy_dir()} --timeout=60s")
        )
        assert time.monotonic() - began < A_MINUTE
        codes = {name: day.running.pop(name).wait(60) for name in ("assigner", "ungater")}
        assert codes == {"assigner": 0, "ungater": 0}
        await asyncio.to_thread(day.stop, "webhook")
        assert await held(cluster) == []
        for kind in (kinds.CLUSTER_ROLES, kinds.CLUSTER_ROLE_BINDINGS, kinds.ADMISSION_POLICIES):
            left = [one["metadata"]["name"] for one in await cluster.list_all(kind)]
            ours = [name for name in left if name.startswith("rackgate")]
            assert set(ours) <= stays_in_the_cluster(), ours
        assert await cluster.find(kinds.NAMESPACES, SYSTEM) is None
        # Kinds and queues are there, running jobs run, and the user's template is the user's.
        assert await cluster.get(kinds.CRDS, CRD)
        assert await steady(cluster, "restored") == before
        waits = await cluster.get(kinds.JOBS, "waits")
        assert waits["spec"]["suspend"] is True
        assert "schedulingGates" not in waits["spec"]["template"]["spec"]
        # Gated pods were given to the scheduler, and named.
        assert all(f"{TEAM}/{name}" in day.log_file("ungater").read_text() for name in names_)
        for name in names_:
            pod = await cluster.get(kinds.PODS, name)
            assert not pod["spec"].get("schedulingGates")


async def an_installation_that_comes_back_goes_on_with_what_runs(day: Day) -> None:
    async with team(day) as cluster:
        before = await steady(cluster, "restored")
        await asyncio.to_thread(day.begin)
        await ready(day, cluster)
        await cluster.submit("again", 1, cpu="1")
        await cluster.bound("again", 1)

        async def holds() -> bool:
            return "Workload" in " ".join(await held(cluster))

        await until("Workloads are held again", holds)
        assert await steady(cluster, "restored") == before


async def the_command_ends_it_without_any_service(day: Day) -> None:
    async with team(day) as cluster:
        await asyncio.to_thread(day.stop, *SERVICES)
        assert await held(cluster)
        # Begun by kubectl, which waits in vain: nobody is left who gives back.
        code, said = day.tried("kubectl", "delete", "-k", str(deploy_dir()), "--timeout=5s")
        assert code != 0
        assert await cluster.find(kinds.CLUSTER_ROLE_BINDINGS, "rackgate") is None
        assert await cluster.find(kinds.CLUSTER_ROLES, f"rackgate-assigner.{SYSTEM}")
        code, said = day.tried("uninstall")
        assert (code, "--yes" in said) == (2, True), said
        began = time.monotonic()
        arguments = ("uninstall", "--yes", "--jobs", "suspend")
        code, said = await asyncio.to_thread(day.tried, *arguments)
        assert (code, time.monotonic() - began < A_MINUTE) == (0, True), said
        assert await held(cluster) == []
        stopped = await cluster.get(kinds.JOBS, "restored")
        assert stopped["spec"]["suspend"] is True
        assert "schedulingGates" not in stopped["spec"]["template"]["spec"]
        assert f"Job {TEAM}/restored" in said
        # A namespace of users goes, too, and so do the kinds where that is asked for.
        day.kubectl("delete", "namespace", TEAM, "--timeout=60s")
        delete = ("uninstall", "--yes", "--delete-crds", "--timeout", "120")
        await asyncio.to_thread(day.playground.delete_kinds, *delete)
        assert await cluster.find(kinds.CRDS, CRD) is None
        left = await cluster.list_all(kinds.CLUSTER_ROLES)
        assert [one for one in left if one["metadata"]["name"].startswith("rackgate")] == []


STEPS = (
    beside_kueue_nothing_is_changed_and_no_service_acts,
    an_installation_of_old_names_is_upgraded_once_and_for_all,
    installed_as_documented_jobs_run,
    a_second_installation_changes_nothing_of_the_first,
    an_upgrade_leaves_jobs_alone_and_ends_nothing,
    numbers_of_replicas_belong_to_who_set_them_last,
    a_store_of_the_past_is_restored_by_the_runbook,
    kubectl_delete_ends_in_a_minute_with_jobs_running,
    an_installation_that_comes_back_goes_on_with_what_runs,
    the_command_ends_it_without_any_service,
)


@pytest.mark.requirement("OPS-02", "OPS-14")
async def test_an_operators_day(day: Day) -> None:
    """Each step begins where the one before it ended."""
    for step in STEPS:
        began = time.monotonic()
        await step(day)
        print(f"{step.__name__}: {time.monotonic() - began:.1f} s")

"""One attack's world: two namespaces that share a ClusterQueue of 16 CPU, and who acts there."""

from __future__ import annotations

import asyncio
import json
import uuid
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from rackgate.api import names
from rackgate.api import resources as kinds
from rackgate.api.resources import Resource
from rackgate.kube.client import Client, PatchType
from rackgate.kube.config import ConnectionSettings, connect
from rackgate.kube.errors import (
    ForbiddenError,
    KubeError,
    NotFoundError,
    ServerError,
    TransportError,
)
from rackgate_cli.controlplane.state import StateFolder
from tests.security.attacker_client import AttackerClient
from tests.security.catalog import Attack, Phase
from tests.security.ledger import UNMANAGED, Ledger, Observer
from tests.support import composite_jobs, objects
from tests.support.cluster import Cluster, until
from tests.support.objects import POOL_LABEL, RACK, Object
from tests.support.playground import Playground

QUOTA_CPU: Final = 16
USER: Final = "mallory"
# Queues without topology share these nodes; each could take every attack at once.
BROAD: Final = "redteam-broad"
BROAD_NODES: Final = 6
TERMINATE: Final = "rackgate.dev/terminate-seconds"
RUN: Final = "rackgate.dev/run-seconds"
HOURS: Final = str(4 * 3600)
TAINT: Final = "test.rackgate.dev/only"
CRON_JOBS: Final = Resource("batch", "v1", "cronjobs", True, "CronJob")
REPLICA_SETS: Final = Resource("apps", "v1", "replicasets", True, "ReplicaSet")
LIMIT_RANGES: Final = Resource("", "v1", "limitranges", True, "LimitRange")
RESOURCE_QUOTAS: Final = Resource("", "v1", "resourcequotas", True, "ResourceQuota")
RUNTIME_CLASSES: Final = Resource("node.k8s.io", "v1", "runtimeclasses", False, "RuntimeClass")
# They create what the others are made of.
OWNING_KINDS: Final = (
    CRON_JOBS,
    REPLICA_SETS,
    kinds.DEPLOYMENTS,
    kinds.JOBSETS,
    kinds.RAY_JOBS,
    kinds.RAY_CLUSTERS,
)
# What the edit role of a usual installation adds for the kinds of the two operators.
OPERATORS_ROLE: Final[Object] = {
    "apiVersion": "rbac.authorization.k8s.io/v1",
    "kind": "ClusterRole",
    "metadata": {
        "name": "redteam-operators:edit",
        "labels": {"rbac.authorization.k8s.io/aggregate-to-edit": "true"},
    },
    "rules": [
        {
            "apiGroups": ["jobset.x-k8s.io", "ray.io"],
            "resources": ["jobsets", "rayclusters", "rayjobs"],
            "verbs": ["*"],
        }
    ],
}


@dataclass
class World:
    """Where one attack takes place.

    Attributes:
        attack: what is tried.
        phase: state of the control plane.
        pool: prefix of all names; node label of a topology's own nodes.
        attacker: the adversary: `edit` in one namespace, and nothing else.
        admin: an administrator's view of the attacker's namespace.
        tenant: an administrator's view of the other tenant's namespace.
        ledger: what lives.
        notes: what the attack has to tell.
    """

    attack: Attack
    phase: Phase
    playground: Playground
    pool: str
    attacker: AttackerClient
    admin: Cluster
    tenant: Cluster
    ledger: Ledger
    notes: list[str]

    # -- manifests ---------------------------------------------------------------------------

    def job(
        self,
        name: str,
        count: int,
        *,
        cpu: str = "4",
        terminate: str | None = None,
        managed: bool = True,
        **more: Any,
    ) -> Object:
        """A Job as its user writes it; suspended where no webhook would do that."""
        annotations = dict(more.pop("annotations", {}))
        if terminate:
            annotations[TERMINATE] = terminate
        spec = dict(more.pop("spec", {}))
        if managed and self.phase.webhooks_down:
            spec.setdefault("suspend", True)
        if managed and self.attack.topology:
            more.setdefault("required", RACK)
        pod = {"tolerations": [{"operator": "Exists"}], **more.pop("pod", {})}
        made = objects.job(
            name,
            count,
            queue="queue" if managed else None,
            cpu=cpu,
            annotations=annotations,
            spec=spec,
            pod=pod,
            **more,
        )
        if not managed:
            made["spec"]["template"]["metadata"].setdefault("labels", {})[UNMANAGED] = "true"
        return made

    def jobset(
        self,
        name: str,
        parts: Mapping[str, tuple[int, str]],
        *,
        terminate: str | None = None,
        part: Mapping[str, Any] | None = None,
        **spec: Any,
    ) -> Object:
        """A JobSet of replicatedJobs `name: (pods, cpu)`; `part` goes into each JobSpec."""
        if self.phase.webhooks_down:
            spec.setdefault("suspend", True)
        annotations = self._marks(terminate)
        made = [
            composite_jobs.replicated_job(one, pods, cpu=cpu, annotations=annotations, spec=part)
            for one, (pods, cpu) in parts.items()
        ]
        for one in made:
            self._tolerate(one["template"]["spec"]["template"])
        return composite_jobs.jobset(name, made, **spec)

    def raycluster(
        self,
        name: str,
        replicas: int,
        *,
        cpu: str = "5",
        terminate: str | None = None,
        hosts: int = 1,
        autoscaling: bool = False,
        group: Mapping[str, Any] | None = None,
        **spec: Any,
    ) -> Object:
        """A RayCluster with a head of 1 CPU and one group of workers, `small`."""
        if self.phase.webhooks_down:
            spec.setdefault("suspend", True)
        annotations = self._marks(terminate)
        workers = composite_jobs.worker_group(
            "small", replicas, hosts=hosts, cpu=cpu, annotations=annotations, **(group or {})
        )
        made = composite_jobs.raycluster(
            name,
            [workers],
            autoscaling=autoscaling,
            head_annotations=annotations,
            **spec,
        )
        self._tolerate(made["spec"]["headGroupSpec"]["template"])
        self._tolerate(workers["template"])
        return made

    def rayjob(
        self, name: str, workers: int, *, cpu: str = "4", terminate: str | None = None, **spec: Any
    ) -> Object:
        """A RayJob with a head and a submitter of 1 CPU each, and one group of workers, `small`."""
        if self.phase.webhooks_down:
            spec.setdefault("suspend", True)
        annotations = self._marks(terminate)
        group = composite_jobs.worker_group("small", workers, cpu=cpu, annotations=annotations)
        container = self.pod("unused", "1")["spec"]["containers"][0]
        submitter: Object = {"spec": {"containers": [container], "restartPolicy": "Never"}}
        spec.setdefault("submitterPodTemplate", submitter)
        made = composite_jobs.rayjob(name, [group], head_annotations=annotations, **spec)
        head = made["spec"]["rayClusterSpec"]["headGroupSpec"]["template"]
        for template in (head, group["template"], made["spec"]["submitterPodTemplate"]):
            self._tolerate(template)
        return made

    def pod(self, name: str, cpu: str = "4", **metadata: Any) -> Object:
        """A pod of nobody."""
        container = {
            "name": "main",
            "image": composite_jobs.IMAGE,
            "resources": {"requests": {"cpu": cpu}},
        }
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, **metadata},
            "spec": {"containers": [container], "tolerations": [{"operator": "Exists"}]},
        }

    def owner(self, kind: str, api: str, name: str = "nobody", uid: str | None = None) -> Object:
        """A controller reference; to an object that does not exist unless a UID is given."""
        return {
            "apiVersion": api,
            "kind": kind,
            "name": name,
            "uid": uid or str(uuid.uuid4()),
            "controller": True,
            "blockOwnerDeletion": False,
        }

    def _marks(self, terminate: str | None) -> dict[str, str]:
        found = {TERMINATE: terminate} if terminate else {}
        if self.attack.topology:
            found[names.REQUIRED_TOPOLOGY] = RACK
        return found

    def _tolerate(self, template: Object) -> None:
        template["spec"]["tolerations"] = [{"operator": "Exists"}]

    @property
    def node(self) -> str:
        """A node that pods can name."""
        return f"{self.pool}-a1" if self.attack.topology else f"{BROAD}-0"

    async def lets_create_workloads(self) -> None:
        """The attacker may create and change Workloads from now on, as no role of ours allows."""
        verbs = ["create", "update"]
        rule = {"apiGroups": [names.GROUP], "resources": ["workloads"], "verbs": verbs}
        meta = {"name": f"{USER}-makes-workloads"}
        api = "rbac.authorization.k8s.io/v1"
        role = {"apiVersion": api, "kind": "Role", "metadata": meta, "rules": [rule]}
        await self.admin.create(kinds.ROLES, role)
        binding = {
            "apiVersion": api,
            "kind": "RoleBinding",
            "metadata": meta,
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "Role", **meta},
            "subjects": [
                {"kind": "ServiceAccount", "name": USER, "namespace": self.admin.namespace}
            ],
        }
        await self.admin.create(kinds.ROLE_BINDINGS, binding)
        asked = {"verb": "create", "group": names.GROUP, "resource": "workloads"}
        client, namespace = self.attacker.client, self.attacker.namespace
        await until("the attacker may create Workloads", lambda: may(client, namespace, asked))

    # -- what attacks wait for ---------------------------------------------------------------

    async def submit(self, name: str, count: int, **more: Any) -> Object | None:
        """Create a managed Job."""
        return await self.attacker.create(kinds.JOBS, self.job(name, count, **more))

    async def living(self, selector: str = "") -> list[Object]:
        """Bound pods of the attacker that have not ended and that nobody deletes."""
        return self.ledger.running(self.attacker.namespace, selector)

    async def runs(self, job: str, count: int, timeout_s: float = 90.0) -> list[Object]:
        """Wait until so many pods of a Job are bound: the positive control of most attacks."""
        return await self.bound(f"batch.kubernetes.io/job-name={job}", count, timeout_s)

    async def bound(self, selector: str, count: int, timeout_s: float = 90.0) -> list[Object]:
        """Wait until so many pods of a selector are bound."""

        async def there() -> list[Object]:
            found = await self.living(selector)
            return found if len(found) >= count else []

        return await until(f"{count} pods of {selector} live", there, timeout_s)

    async def workload_of(self, owner: str, timeout_s: float = 60.0) -> Object:
        """The Workload of a job of the attacker."""

        async def there() -> Object | None:
            for one in await self.attacker.all(kinds.WORKLOADS):
                owners = one["metadata"].get("ownerReferences", [])
                if any(it["name"] == owner for it in owners):
                    return one
            return None

        found = await until(f"{owner} has a Workload", there, timeout_s, every_s=0.5)
        assert found is not None
        return found

    async def hold(self, seconds: float) -> None:
        """Let the cluster go on; the ledger measures."""
        await asyncio.sleep(seconds)

    async def rounds(self, count: int, pause_s: float = 0.0) -> AsyncIterator[int]:
        """Numbers of rounds, with pauses between them."""
        for number in range(count):
            yield number
            await asyncio.sleep(pause_s)

    async def tenant_runs(self, name: str = "small", timeout_s: float = 75.0) -> None:
        """The other tenant's small Job is admitted, runs and ends."""
        job = self.job(name, 1, cpu="1")
        await self.tenant.create(kinds.JOBS, job)

        async def bound() -> list[Object]:
            selector = f"batch.kubernetes.io/job-name={name}"
            return self.ledger.running(self.tenant.namespace, selector)

        await until(f"the other tenant's Job {name} runs", bound, timeout_s)
        await self.tenant.finish(name)
        await self.tenant.delete(kinds.JOBS, name)

    def note(self, words: str) -> None:
        """Tell something in the report."""
        self.notes.append(words)

    # -- what the judge reads ----------------------------------------------------------------

    async def usage(self) -> dict[str, str]:
        """What the ClusterQueue says is used or reserved, without zeros."""
        path = kinds.CLUSTER_QUEUES.path(None, self.pool)
        status = json.loads(await self.admin.client.get(path)).get("status", {})
        found: dict[str, str] = {}
        for part in ("flavorsUsage", "flavorsReservation"):
            for flavor in status.get(part, []):
                for entry in flavor["resources"]:
                    if entry["total"] not in ("0", 0):
                        found[f"{part} {entry['name']}"] = str(entry["total"])
        return found

    async def clear(self) -> None:
        """End all jobs and pods of the attacker, and of finalizers all but the cluster's own.

        Workloads stay: what they hold without pods is for the judge to see.
        """
        for kind in OWNING_KINDS:
            await self._end_all(kind)
        await self._end_all(kinds.JOBS)

        async def no_pods() -> bool:
            await self._end_all(kinds.JOBS)
            await self._end_all(kinds.PODS, 0)
            return not self.ledger.living

        await until("the pods of the attack are gone", no_pods, 90.0, self.ledger.shown, 1.0)

    async def _end_all(self, kind: Resource, grace_s: int | None = None) -> None:
        client = self.admin.client
        namespaces = [self.admin.namespace]
        if kind is kinds.PODS:
            namespaces.append(self.tenant.namespace)
        for namespace in namespaces:
            path = kind.path(namespace)
            try:
                found = json.loads(await client.get(path))["items"]
            except NotFoundError:
                return  # not installed
            if not found:
                continue
            options: Object = {"propagationPolicy": "Background"}
            if grace_s is not None:
                options["gracePeriodSeconds"] = grace_s
            body = json.dumps(options).encode()
            # A long list takes a full machine its time; it is asked again. Child Jobs go with
            # their JobSet, and are refused to everybody before.
            with suppress(TransportError, ServerError, ForbiddenError):
                await client.delete(path, body)
            for one in found:
                with suppress(TransportError, ServerError, ForbiddenError, NotFoundError):
                    if kind is kinds.JOBS and "deletionTimestamp" not in one["metadata"]:
                        await client.delete(kind.path(namespace, one["metadata"]["name"]), body)
                await self._unhold(kind.path(namespace, one["metadata"]["name"]), one)

    async def _unhold(self, path: str, obj: Object) -> None:
        """Take away the finalizers that the attacker wrote."""
        held = [it for it in obj["metadata"].get("finalizers", []) if it.startswith("example.com/")]
        if not held:
            return
        rest = [it for it in obj["metadata"]["finalizers"] if it not in held]
        body = json.dumps({"metadata": {"finalizers": rest}}).encode()
        try:
            await self.admin.client.patch(path, body, PatchType.MERGE)
        except NotFoundError:
            return


def priority_class(name: str, value: int) -> Object:
    """A WorkloadPriorityClass."""
    return {
        "apiVersion": names.API_VERSION,
        "kind": "WorkloadPriorityClass",
        "metadata": {"name": name},
        "value": value,
    }


async def furnish(client: Client) -> None:
    """Nodes for all queues without topology, and the users' role; once for a playground."""
    for number in range(BROAD_NODES):
        made = objects.node(BROAD, "block", "rack", str(number), cpu="20000", pods="20000")
        made["metadata"]["name"] = f"{BROAD}-{number}"
        await _ensure(client, kinds.NODES, made)
    await _ensure(client, kinds.CLUSTER_ROLES, OPERATORS_ROLE)

    async def ready() -> bool:
        body = await client.get(kinds.NODES.path(), {"labelSelector": f"{POOL_LABEL}={BROAD}"})
        nodes = json.loads(body)["items"]
        return all(not node["spec"].get("taints") for node in nodes)

    await until("nodes are ready", ready)


async def _ensure(client: Client, kind: Resource, obj: Object) -> None:
    try:
        await client.get(kind.path(None, obj["metadata"]["name"]))
    except NotFoundError:
        await client.create(kind.path(), json.dumps(obj).encode())


@dataclass(frozen=True)
class Gate:
    """Where attacks come into a playground.

    Attributes:
        playground: with its nodes (`furnish`).
        client: an administrator's.
        observer: measures all worlds.
    """

    playground: Playground
    client: Client
    observer: Observer

    @asynccontextmanager
    async def entered(self, attack: Attack, phase: Phase) -> AsyncIterator[World]:
        """A new world; all that it made is deleted at the end, but its two namespaces."""
        short = attack.name.split("[")[0].replace("_", "-")[:24].strip("-")
        pool = f"rt-{short}-{uuid.uuid4().hex[:6]}"
        admin = Cluster(self.client, f"{pool}-a", pool)
        tenant = Cluster(self.client, f"{pool}-v", pool)
        spaces = frozenset((admin.namespace, tenant.namespace))
        ledger = Ledger(admin.namespace, spaces, attack.topology)
        self.observer.add(ledger)
        user: Client | None = None
        try:
            for one in (admin, tenant):
                namespace = {
                    "apiVersion": "v1",
                    "kind": "Namespace",
                    "metadata": {"name": one.namespace},
                }
                body = json.dumps(namespace).encode()
                await self.client.create(kinds.NAMESPACES.path(), body)
            await until(
                "both namespaces have their default ServiceAccount",
                partial(_have_default_accounts, admin, tenant),
            )
            await _queue(admin, tenant, attack)
            user = await _user(self.playground, admin)
            hand = AttackerClient(user, admin.namespace)
            yield World(attack, phase, self.playground, pool, hand, admin, tenant, ledger, [])
        finally:
            if user is not None:
                await user.close()
            await _leave(admin, tenant)
            self.observer.remove(ledger)


async def _have_default_accounts(*namespaces: Cluster) -> bool:
    """Without it, the API server refuses each pod of a namespace, and tries no defence."""
    found = [await one.find(kinds.SERVICE_ACCOUNTS, "default") for one in namespaces]
    return None not in found


async def _queue(admin: Cluster, tenant: Cluster, attack: Attack) -> None:
    """A ClusterQueue of 16 CPU and a LocalQueue of it in each namespace."""
    pool = admin.pool
    topology = pool if attack.topology else None
    if attack.topology:
        await admin.create(kinds.TOPOLOGIES, objects.topology_object(pool))
        nodes = [
            objects.node(pool, "block", rack, f"{rack}{number}") for rack in "ab" for number in "12"
        ]
        for node in nodes:
            taint = {"key": TAINT, "value": pool[:63], "effect": "NoSchedule"}
            node["spec"] = {"taints": [taint]}
            await admin.create(kinds.NODES, node)
    await admin.create(
        kinds.FLAVORS, objects.flavor(pool, pool if attack.topology else BROAD, topology)
    )
    quota = {"cpu": str(QUOTA_CPU), "memory": "100Gi"}
    await admin.create(
        kinds.CLUSTER_QUEUES, objects.cluster_queue(pool, pool, quota, **attack.queue)
    )
    for one in (admin, tenant):
        await one.create(kinds.LOCAL_QUEUES, objects.local_queue("queue", pool))


async def _user(playground: Playground, admin: Cluster) -> Client:
    """A user bound to `edit` in the attacker's namespace, connected."""
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": USER}}
    await admin.create(kinds.SERVICE_ACCOUNTS, account)
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "RoleBinding",
        "metadata": {"name": f"{USER}-edits"},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"},
        "subjects": [{"kind": "ServiceAccount", "name": USER, "namespace": admin.namespace}],
    }
    await admin.create(kinds.ROLE_BINDINGS, binding)
    token_request = {
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {},
    }
    path = kinds.SERVICE_ACCOUNTS.path(admin.namespace, USER, "token")
    answer = json.loads(await admin.client.create(path, json.dumps(token_request).encode()))
    token = await asyncio.to_thread(_write_token, playground, admin.pool, answer["status"]["token"])
    settings = ConnectionSettings(
        server=playground.server,
        ca_file=StateFolder(playground.state).pki / "ca.crt",
        token_file=token,
        request_timeout=30,
    )
    client = await connect(settings, user_agent=f"{USER}/1")

    asked = {"verb": "create", "group": "batch", "resource": "jobs"}
    await until("the attacker's rights hold", lambda: may(client, admin.namespace, asked))
    return client


async def may(client: Client, namespace: str, asked: Mapping[str, str]) -> bool:
    """Whether a user has a right: one reaches the authorizer a moment after it is written."""
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SelfSubjectAccessReview",
        "spec": {"resourceAttributes": {"namespace": namespace, **asked}},
    }
    path = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
    try:
        answer = json.loads(await client.create(path, json.dumps(review).encode()))
    except KubeError:
        return False
    return bool(answer["status"]["allowed"])


def _write_token(playground: Playground, name: str, token: str) -> Path:
    folder = playground.state / "redteam"
    folder.mkdir(exist_ok=True, mode=0o700)
    path = folder / name
    path.write_text(token)
    path.chmod(0o600)
    return path


async def _leave(admin: Cluster, tenant: Cluster) -> None:
    """Delete what the world made; what a lost answer leaves behind harms no other world."""
    options = json.dumps({"gracePeriodSeconds": 0, "propagationPolicy": "Background"}).encode()
    for one in (tenant, admin):
        for kind in (kinds.JOBS, kinds.WORKLOADS, kinds.PODS):
            with suppress(KubeError):
                await one.client.delete(kind.path(one.namespace), options)
        for kind, namespace, name in reversed(one.created):
            with suppress(KubeError):
                await one.client.delete(kind.path(namespace, name), options)

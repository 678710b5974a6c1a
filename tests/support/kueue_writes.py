"""Objects as the controllers of Kueue 0.19 write them, with its field managers and in its order.

`KueueControllers` acts on a control plane without Rackgate as Kueue's controllers do: it creates
the Workload of a job, admits it, starts the job, and removes the gates of its pods. The operators
of Kubernetes, JobSet and KubeRay do the rest. The CRDs of Kueue check the shapes in the test.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

from rackgate.api import resources as kinds
from rackgate.api.resources import Resource
from rackgate.kube.client import PatchType
from tests.support.cluster import Cluster, until
from tests.support.objects import Object

GROUP = "kueue.x-k8s.io"
VERSION = f"{GROUP}/v1beta2"
FINALIZER = f"{GROUP}/resource-in-use"
GATE = {"name": f"{GROUP}/topology"}
ELASTIC_GATE = {"name": f"{GROUP}/elastic-job"}
KUEUE, ADMISSION = "kueue", "kueue-admission"
UNCONSTRAINED = f"{GROUP}/podset-unconstrained-topology"
ELASTIC = f"{GROUP}/elastic-job"
INDEX = "batch.kubernetes.io/job-completion-index"
# Labels of a Job's template that Kueue does not copy into its Workload.
OF_THE_JOB = (
    "controller-uid",
    "job-name",
    "batch.kubernetes.io/controller-uid",
    "batch.kubernetes.io/job-name",
)
Place = tuple[str, int]  # host, pods


def timestamp(seconds_ago: float = 0) -> str:
    """A time as Kueue writes it."""
    then = datetime.now(UTC) - timedelta(seconds=seconds_ago)
    return then.strftime("%Y-%m-%dT%H:%M:%SZ")


def condition(
    type_: str, status: str, reason: str, message: str = "", *, seconds_ago: float = 0
) -> Object:
    """A condition."""
    return {
        "type": type_,
        "status": status,
        "reason": reason,
        "message": message or f"{type_} {reason}",
        "observedGeneration": 1,
        "lastTransitionTime": timestamp(seconds_ago),
    }


def workload_name(kind: str, group: str, owner: Object, extra: str = "") -> str:
    """The name that Kueue derives from an owner; `extra` is the generation of an elastic job."""
    meta = owner["metadata"]
    parts = [kind, group, meta["name"], meta["uid"], *([extra] if extra else [])]
    digest = hashlib.sha1("\n".join(parts).encode()).hexdigest()  # noqa: S324 - as Kueue does
    return f"{kind.lower()}-{meta['name']}"[:247] + f"-{digest[:5]}"


def topology_assignment(places: Sequence[Place]) -> Object:
    """Hosts with counts; Kueue keeps only the lowest level if that is the hostname."""
    roots = [host for host, _ in places]
    return {
        "levels": ["kubernetes.io/hostname"],
        "slices": [
            {
                "domainCount": len(places),
                "valuesPerLevel": [
                    {"individual": {"roots": roots}} if len(roots) > 1 else {"universal": roots[0]}
                ],
                "podCounts": {"individual": [count for _, count in places]},
            }
        ],
    }


@dataclass(frozen=True)
class Part:
    """One PodSet of a job as Kueue sees it.

    Attributes:
        name: of the PodSet.
        count: pods.
        template: the pod template in the manifest of the job; it is changed in place at the start.
        request: the topology request, as the annotations of the template and the kind of job ask.
        places: where the pods are assigned to; empty for a flavor without topology.
    """

    name: str
    count: int
    template: Object
    request: Object | None = None
    places: Sequence[Place] = ()


def parts_of_job(job: Object, places: Sequence[Place] = ()) -> list[Part]:
    """The only PodSet of a Job; Kueue asks for an index label without any topology as well."""
    template = job["spec"]["template"]
    asked = template.get("metadata", {}).get("annotations", {})
    request: Object = {"podIndexLabel": INDEX}
    if f"{GROUP}/podset-required-topology" in asked:
        request["required"] = asked[f"{GROUP}/podset-required-topology"]
    return [Part("main", job["spec"]["parallelism"], template, request, places)]


def parts_of_jobset(jobset: Object, places: Mapping[str, Sequence[Place]]) -> list[Part]:
    """A PodSet for each replicatedJob."""
    found = []
    for one in jobset["spec"]["replicatedJobs"]:
        spec = one["template"]["spec"]
        request = {
            "podIndexLabel": INDEX,
            "subGroupIndexLabel": "jobset.sigs.k8s.io/job-index",
            "subGroupCount": one["replicas"],
        }
        count = one["replicas"] * spec["parallelism"]
        found.append(Part(one["name"], count, spec["template"], request, places[one["name"]]))
    return found


def parts_of_raycluster(cluster: Object, places: Mapping[str, Sequence[Place]]) -> list[Part]:
    """The head, and a PodSet for each worker group; without containers that KubeRay adds."""
    spec = cluster["spec"]
    head = Part("head", 1, spec["headGroupSpec"]["template"], None, places["head"])
    return [
        head,
        *(
            Part(one["groupName"], one["replicas"], one["template"], None, places[one["groupName"]])
            for one in spec["workerGroupSpecs"]
        ),
    ]


def _cpu(part: Part) -> int:
    containers = part.template["spec"]["containers"]
    return part.count * sum(int(one["resources"]["requests"]["cpu"]) for one in containers)


def _plain(template: Object, without: Sequence[str]) -> Object:
    """A copy of a template for the Workload."""
    copied: Object = json.loads(json.dumps(template))
    labels = copied.get("metadata", {}).get("labels", {})
    for key in without:
        labels.pop(key, None)
    if not labels:
        copied.get("metadata", {}).pop("labels", None)
    copied.setdefault("metadata", {})
    return copied


@dataclass(frozen=True)
class KueueControllers:
    """Kueue's controllers, on the cluster of a test.

    Attributes:
        cluster: with the rights of an administrator.
        flavor: that all PodSets are assigned to.
        cluster_queue: of the admissions.
    """

    cluster: Cluster
    flavor: str
    cluster_queue: str

    async def create_workload(
        self,
        kind: Resource,
        owner: Object,
        parts: Sequence[Part],
        *,
        name: str = "",
        extra: str = "",
        annotations: Mapping[str, str] | None = None,
        finalizers: Sequence[str] = (FINALIZER,),
    ) -> Object:
        """The Workload of a job, as it is before its admission."""
        meta = owner["metadata"]
        reference = {
            "apiVersion": owner["apiVersion"],
            "kind": kind.kind,
            "name": meta["name"],
            "uid": meta["uid"],
            "controller": True,
            "blockOwnerDeletion": True,
        }
        podsets = [
            {
                "name": part.name,
                "count": part.count,
                "template": _plain(part.template, OF_THE_JOB if kind is kinds.JOBS else ()),
                **({"topologyRequest": part.request} if part.request is not None else {}),
            }
            for part in parts
        ]
        body = {
            "apiVersion": VERSION,
            "kind": "Workload",
            "metadata": {
                "name": name or workload_name(kind.kind, kind.group, owner, extra),
                "labels": {f"{GROUP}/job-uid": meta["uid"]},
                "annotations": dict(annotations or {}),
                "finalizers": list(finalizers),
                "ownerReferences": [reference],
            },
            "spec": {
                "active": True,
                "podSets": podsets,
                "priority": 0,
                "queueName": meta["labels"][f"{GROUP}/queue-name"],
            },
        }
        path = kinds.WORKLOADS.path(self.cluster.namespace)
        params = {"fieldManager": KUEUE, "fieldValidation": "Strict"}
        return dict(
            json.loads(await self.cluster.client.create(path, json.dumps(body).encode(), params))
        )

    async def apply_status(
        self, workload: Object, status: Object, manager: str = ADMISSION
    ) -> Object:
        """Server-side apply of a status, as `kueue-admission` or another manager of Kueue."""
        meta = workload["metadata"]
        body = {
            "apiVersion": VERSION,
            "kind": "Workload",
            "metadata": {"name": meta["name"], "namespace": meta["namespace"], "uid": meta["uid"]},
            "status": status,
        }
        path = kinds.WORKLOADS.path(self.cluster.namespace, meta["name"], "status")
        answer = await self.cluster.client.apply(path, json.dumps(body).encode(), manager)
        return dict(json.loads(answer))

    def admission(self, parts: Sequence[Part]) -> Object:
        """`status.admission`."""
        assignments = []
        for part in parts:
            assignment: Object = {
                "name": part.name,
                "flavors": {"cpu": self.flavor},
                "resourceUsage": {"cpu": str(_cpu(part))},
                "count": part.count,
            }
            if part.places:
                assignment["topologyAssignment"] = topology_assignment(part.places)
            assignments.append(assignment)
        return {"clusterQueue": self.cluster_queue, "podSetAssignments": assignments}

    async def admit(self, workload: Object, parts: Sequence[Part], *more: Object) -> Object:
        """Quota and admission, in one write."""
        where = f"ClusterQueue {self.cluster_queue}"
        said = [
            condition("QuotaReserved", "True", "QuotaReserved", f"Quota reserved in {where}"),
            condition("Admitted", "True", "Admitted", f"The workload is admitted by {where}"),
            *more,
        ]
        status = {"admission": self.admission(parts), "conditions": said}
        return await self.apply_status(workload, status)

    async def start(
        self,
        kind: Resource,
        job: Object,
        workload: Object,
        parts: Sequence[Part],
        node_labels: Mapping[str, str],
    ) -> Object:
        """The patch that starts a job: unsuspended, with what its admission adds to templates.

        Args:
            parts: with the templates in `job`, which are changed.
            node_labels: of the flavor.
        """
        elastic = workload["metadata"].get("annotations", {}).get(f"{GROUP}/workload-slice-name")
        for part in parts:
            template = part.template
            meta = template.setdefault("metadata", {})
            annotations = meta.setdefault("annotations", {})
            annotations[f"{GROUP}/workload"] = workload["metadata"]["name"]
            if elastic:
                annotations[f"{GROUP}/workload-slice-name"] = elastic
            meta.setdefault("labels", {}).update(
                {
                    f"{GROUP}/podset": part.name,
                    f"{GROUP}/local-queue-name": workload["spec"]["queueName"],
                    f"{GROUP}/cluster-queue-name": self.cluster_queue,
                }
            )
            template["spec"].setdefault("nodeSelector", {}).update(node_labels)
            if part.places:
                request = part.request or {}
                if not {"required", "preferred", "unconstrained"} & set(request):
                    annotations[UNCONSTRAINED] = "true"
                template["spec"].setdefault("schedulingGates", []).append(GATE)
        job["spec"]["suspend"] = False
        return await self._patch(kind, job["metadata"]["name"], {"spec": job["spec"]})

    async def _patch(self, kind: Resource, name: str, change: Object) -> Object:
        path = kind.path(self.cluster.namespace, name)
        body = json.dumps(change).encode()
        answer = await self.cluster.client.patch(
            path, body, PatchType.MERGE, {"fieldManager": KUEUE}
        )
        return dict(json.loads(answer))

    async def ungate(
        self,
        selector: str,
        podset: str,
        places: Sequence[Place],
        *,
        gated: int = 0,
        gate: Object = GATE,
    ) -> list[Object]:
        """Remove the gate of the pods of a PodSet, each with its host; the last `gated` keep it."""
        hosts = [host for host, count in places for _ in range(count)]

        async def created() -> list[Object]:
            label = f"{selector},{GROUP}/podset={podset}"
            found = await self.cluster.list_all(kinds.PODS, labelSelector=label)
            return found if len(found) == len(hosts) else []

        pods = await until(f"the pods of {selector} exist", created)
        pods.sort(key=_rank)
        done = []
        for pod, host in list(zip(pods, hosts, strict=True))[: len(hosts) - gated]:
            gates = [one for one in pod["spec"].get("schedulingGates", []) if one != gate]
            meta = pod["metadata"]
            change = {
                "metadata": {"uid": meta["uid"], "resourceVersion": meta["resourceVersion"]},
                "spec": {
                    "schedulingGates": gates or None,
                    "nodeSelector": {"kubernetes.io/hostname": host},
                },
            }
            done.append(await self._patch(kinds.PODS, meta["name"], change))
        return done


def _rank(pod: Object) -> tuple[int, str]:
    meta = pod["metadata"]
    return int(meta.get("labels", {}).get(INDEX, 0)), str(meta["name"])


def used_cpu(status: Object) -> str:
    """The CPU in `flavorsUsage` of a ClusterQueue or LocalQueue."""
    totals = [
        one["total"]
        for flavor in status.get("flavorsUsage", ())
        for one in flavor["resources"]
        if one["name"] == "cpu"
    ]
    return totals[0] if totals else "0"

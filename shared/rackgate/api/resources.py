"""Resources of the Kubernetes API that Rackgate reads and writes, and their URL paths."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from rackgate.api import names


@dataclass(frozen=True, slots=True)
class Resource:
    """One resource; the core group is ""."""

    group: str
    version: str
    plural: str
    namespaced: bool
    kind: str

    @property
    def api_version(self) -> str:
        """`group/version`, or the version alone for core."""
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def full_name(self) -> str:
        """`plural.group`, unique in a cluster; the plural alone for core."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    def path(
        self, namespace: str | None = None, name: str | None = None, sub: str | None = None
    ) -> str:
        """The URL path of a collection (no name), an object, or its subresource.

        Without a namespace, the path of a namespaced resource covers all namespaces.

        Raises:
            ValueError: the arguments do not fit the scope of the resource or each other.
        """
        if namespace and not self.namespaced:
            raise ValueError(f"{self.plural} are cluster-scoped, namespace {namespace!r} given")
        if name and self.namespaced and not namespace:
            raise ValueError(f"{self.plural} {name!r}: a namespace is needed")
        if sub and not name:
            raise ValueError(f"{self.plural}: subresource {sub!r} without a name")
        root = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        parts = [root]
        if namespace:
            parts.append(f"namespaces/{namespace}")
        parts.append(self.plural)
        if name:
            parts.append(name)
        if sub:
            parts.append(sub)
        return "/".join(parts)


def split_path(path: str) -> tuple[str, list[str]]:
    """The API group of a URL path, and its plural, name and subresource, as far as present.

    The namespace and the version are left out. The list is empty for paths of no resource.
    """
    group, *rest = path.strip("/").split("/")
    if group == "apis":
        group, rest = rest[0] if rest else "", rest[2:]
    elif group == "api":
        group, rest = "", rest[1:]
    else:
        return "", []
    if len(rest) > 2 and rest[0] == "namespaces" and rest[2] not in ("status", "finalize"):
        rest = rest[2:]
    return group, rest


def _kueue_resource(plural: str, kind: str, *, namespaced: bool = False) -> Resource:
    return Resource(names.GROUP, names.VERSION, plural, namespaced, kind)


PODS: Final = Resource("", "v1", "pods", True, "Pod")
NODES: Final = Resource("", "v1", "nodes", False, "Node")
NAMESPACES: Final = Resource("", "v1", "namespaces", False, "Namespace")
SECRETS: Final = Resource("", "v1", "secrets", True, "Secret")
CONFIG_MAPS: Final = Resource("", "v1", "configmaps", True, "ConfigMap")
SERVICES: Final = Resource("", "v1", "services", True, "Service")
LIMIT_RANGES: Final = Resource("", "v1", "limitranges", True, "LimitRange")
RUNTIME_CLASSES: Final = Resource("node.k8s.io", "v1", "runtimeclasses", False, "RuntimeClass")
SERVICE_ACCOUNTS: Final = Resource("", "v1", "serviceaccounts", True, "ServiceAccount")
JOBS: Final = Resource("batch", "v1", "jobs", True, "Job")
JOBSETS: Final = Resource(names.JOBSET_GROUP, "v1alpha2", "jobsets", True, "JobSet")
RAY_CLUSTERS: Final = Resource(names.RAY_GROUP, "v1", "rayclusters", True, "RayCluster")
RAY_JOBS: Final = Resource(names.RAY_GROUP, "v1", "rayjobs", True, names.RAY_JOB_KIND)
DEPLOYMENTS: Final = Resource("apps", "v1", "deployments", True, "Deployment")
STATEFUL_SETS: Final = Resource("apps", "v1", "statefulsets", True, "StatefulSet")
LEADER_WORKER_SETS: Final = Resource(
    "leaderworkerset.x-k8s.io", "v1", "leaderworkersets", True, "LeaderWorkerSet"
)
MPI_JOBS: Final = Resource("kubeflow.org", "v2beta1", "mpijobs", True, "MPIJob")
TRAIN_JOBS: Final = Resource("trainer.kubeflow.org", "v1alpha1", "trainjobs", True, "TrainJob")
EVENTS: Final = Resource("events.k8s.io", "v1", "events", True, "Event")
LEASES: Final = Resource("coordination.k8s.io", "v1", "leases", True, "Lease")
PRIORITY_CLASSES: Final = Resource(
    "scheduling.k8s.io", "v1", "priorityclasses", False, "PriorityClass"
)
CRDS: Final = Resource(
    "apiextensions.k8s.io", "v1", "customresourcedefinitions", False, "CustomResourceDefinition"
)

API_SERVICES: Final = Resource("apiregistration.k8s.io", "v1", "apiservices", False, "APIService")
SUBJECT_ACCESS_REVIEWS: Final = Resource(
    "authorization.k8s.io", "v1", "subjectaccessreviews", False, "SubjectAccessReview"
)

TOKEN_REVIEWS: Final = Resource("authentication.k8s.io", "v1", "tokenreviews", False, "TokenReview")

SELF_SUBJECT_ACCESS_REVIEWS: Final = Resource(
    "authorization.k8s.io", "v1", "selfsubjectaccessreviews", False, "SelfSubjectAccessReview"
)

_ADMISSION = "admissionregistration.k8s.io"
MUTATING_CONFIGS: Final = Resource(
    _ADMISSION, "v1", "mutatingwebhookconfigurations", False, "MutatingWebhookConfiguration"
)
VALIDATING_CONFIGS: Final = Resource(
    _ADMISSION, "v1", "validatingwebhookconfigurations", False, "ValidatingWebhookConfiguration"
)
ADMISSION_POLICIES: Final = Resource(
    _ADMISSION, "v1", "validatingadmissionpolicies", False, "ValidatingAdmissionPolicy"
)
ADMISSION_POLICY_BINDINGS: Final = Resource(
    _ADMISSION, "v1", "validatingadmissionpolicybindings", False, "ValidatingAdmissionPolicyBinding"
)
# Served since Kubernetes 1.36.
MUTATING_POLICIES: Final = Resource(
    _ADMISSION, "v1", "mutatingadmissionpolicies", False, "MutatingAdmissionPolicy"
)
MUTATING_POLICY_BINDINGS: Final = Resource(
    _ADMISSION, "v1", "mutatingadmissionpolicybindings", False, "MutatingAdmissionPolicyBinding"
)

# Objects that the KAI scheduler reads, and OSMO pools and workflows.
KAI_TOPOLOGIES: Final = Resource("kai.scheduler", "v1alpha1", "topologies", False, "Topology")
KAI_POD_GROUPS: Final = Resource("scheduling.run.ai", "v2alpha2", "podgroups", True, "PodGroup")
KAI_QUEUES: Final = Resource("scheduling.run.ai", "v2", "queues", False, "Queue")
OSMO_POOLS: Final = Resource(names.OSMO_GROUP, names.OSMO_VERSION, "pools", False, "Pool")
OSMO_WORKFLOWS: Final = Resource(
    names.OSMO_GROUP, names.OSMO_VERSION, "workflows", True, "Workflow"
)

# The Workload of gangs: another plural, so that `kubectl get workloads` means Kueue's.
GANG_WORKLOADS: Final = Resource(
    names.GANG_GROUP, names.GANG_VERSION, "schedworkloads", True, "Workload"
)

_RBAC = "rbac.authorization.k8s.io"
CLUSTER_ROLES: Final = Resource(_RBAC, "v1", "clusterroles", False, "ClusterRole")
CLUSTER_ROLE_BINDINGS: Final = Resource(
    _RBAC, "v1", "clusterrolebindings", False, "ClusterRoleBinding"
)
ROLES: Final = Resource(_RBAC, "v1", "roles", True, "Role")
ROLE_BINDINGS: Final = Resource(_RBAC, "v1", "rolebindings", True, "RoleBinding")

WORKLOADS: Final = _kueue_resource("workloads", "Workload", namespaced=True)
LOCAL_QUEUES: Final = _kueue_resource("localqueues", "LocalQueue", namespaced=True)
CLUSTER_QUEUES: Final = _kueue_resource("clusterqueues", "ClusterQueue")
COHORTS: Final = _kueue_resource("cohorts", "Cohort")
TOPOLOGIES: Final = _kueue_resource("topologies", "Topology")
FLAVORS: Final = _kueue_resource("resourceflavors", "ResourceFlavor")
WORKLOAD_PRIORITY_CLASSES: Final = _kueue_resource(
    "workloadpriorityclasses", "WorkloadPriorityClass"
)
ADMISSION_CHECKS: Final = _kueue_resource("admissionchecks", "AdmissionCheck")

"""The page of annotations, labels, gates and finalizers, from rackgate.api.names."""

from __future__ import annotations

import re
from typing import Final

from rackgate.api import names
from tests.support.reference import page, table

PURPOSE: Final = "This page lists the annotations, labels, scheduling gates and finalizers that Rackgate reads or writes."
Row = tuple[str, str, str]
# Section -> introduction and rows of key, object and meaning.
SECTIONS: Final[dict[str, tuple[str, tuple[Row, ...]]]] = {
    "Labels that you set": (
        "",
        (
            (
                "kueue.x-k8s.io/queue-name",
                "Job, JobSet, RayCluster, RayJob",
                "The LocalQueue of the job, in its namespace. A job with this label is managed.",
            ),
            (
                "kueue.x-k8s.io/priority-class",
                "Job, JobSet, RayCluster, RayJob",
                "A WorkloadPriorityClass. Its value is the priority of the Workload.",
            ),
            (
                "kueue.x-k8s.io/max-exec-time-seconds",
                "Job, JobSet, RayCluster, RayJob",
                "Seconds that the job may be admitted in total, a whole number. Then its Workload is deactivated"
                " (`spec.maximumExecutionTimeSeconds`).",
            ),
        ),
    ),
    "Annotations that you set on a pod template": (
        "LEVEL is the node label of a level of the Topology. At most one of the first three may be set."
        " [Topology](../concepts/topology.md) explains them.",
        (
            (
                "kueue.x-k8s.io/podset-required-topology",
                "pod template",
                "LEVEL. All pods run in one domain of the level, or the job stays pending.",
            ),
            (
                "kueue.x-k8s.io/podset-preferred-topology",
                "pod template",
                "LEVEL. All pods run in one domain of the level, else in one of the next coarser level, else in"
                " several domains of the coarsest level.",
            ),
            (
                "kueue.x-k8s.io/podset-unconstrained-topology",
                "pod template",
                '`"true"`. Pods run in any domains with free capacity.',
            ),
            (
                "kueue.x-k8s.io/podset-slice-required-topology",
                "pod template",
                "LEVEL. Every slice of the PodSet runs in one domain of the level.",
            ),
            (
                "kueue.x-k8s.io/podset-slice-size",
                "pod template",
                "The number of pods of a slice. It must divide the number of pods of the PodSet.",
            ),
            (
                "kueue.x-k8s.io/podset-slice-required-topology-constraints",
                "pod template",
                "Slices in up to three layers: a JSON list of `topology` and `size`, coarsest first.",
            ),
            (
                "kueue.x-k8s.io/podset-group-name",
                "pod template",
                "Two PodSets with the same value, a leader of one pod and its workers, share one domain.",
            ),
            (
                "kueue.x-k8s.io/pod-index-offset",
                "pod template",
                "The first index of the pods, for controllers that do not count from 0.",
            ),
        ),
    ),
    "Annotations that you set on a job": (
        "",
        (
            (
                "kueue.x-k8s.io/job-min-parallelism",
                "Job",
                "The fewest pods that the Job may start with. If not all of its pods fit, as many as fit are"
                " admitted, and `parallelism` is reduced while it runs.",
            ),
            (
                "kueue.x-k8s.io/job-completions-equal-parallelism",
                "Job",
                '`"true"`. `completions` is reduced together with `parallelism`.',
            ),
            (
                "kueue.x-k8s.io/elastic-job",
                "Job",
                '`"true"`. The Indexed Job may be resized while it runs, with the gate'
                " `RackgateElasticIndexedJobs`. Rackgate sets the annotation on Workloads and pod templates of elastic"
                " jobs.",
            ),
        ),
    ),
    "Keys of gangs": (
        "They have an effect with the gate `GangScheduling`. [Gangs](../concepts/gangs.md) explains them.",
        (
            (
                "scheduling.rackgate.dev/workload",
                "pod template, pod (annotation)",
                "The Workload of gangs of the pod, in its namespace. It cannot change once the pod exists. `job-*` in a"
                " template: that of the child Job. Rackgate writes it.",
            ),
            (
                "scheduling.rackgate.dev/group",
                "pod template, pod (label)",
                "The group of the pod, if the groups of its Workload of gangs have no selectors.",
            ),
            (
                "scheduling.rackgate.dev/workload-template",
                "Job, job template, Job template of a JobSet (annotation)",
                "The spec of a Workload of gangs as JSON. Each Job with it gets one of its own.",
            ),
            (
                "scheduling.rackgate.dev/nested-topology",
                "Workload of Kueue (annotation)",
                "Domains that several PodSets share, as JSON, with the gate `GangNestedPlacement`. Rackgate sets it for"
                " the topology requests of a Workload of gangs.",
            ),
            (
                "scheduling.rackgate.dev/replicas-vary",
                "LeaderWorkerSet",
                '`"true"`: the number of replicas changes, such as by an autoscaler. Each pod is queued on its own.',
            ),
            (
                "scheduling.rackgate.dev/gang-per",
                "JobSet (annotation)",
                "`ReplicatedJob`: each replicatedJob is a gang of its own. Without it, the JobSet is one gang.",
            ),
            (
                "scheduling.rackgate.dev/gang",
                "pod template, pod (scheduling gate)",
                "Keeps a pod from being scheduled until its gang is released. Rackgate adds and removes it.",
            ),
            (
                "scheduling.rackgate.dev/pod-group",
                "pod template, pod (annotation)",
                "The native PodGroup of the pods, with the gate `NativePodGroups`. Rackgate writes it into the template"
                " of a started job. An admission policy of `deploy/native-gangs` copies it into the field of the pod.",
            ),
            (
                "scheduling.rackgate.dev/pod-group-replica",
                "pod template, pod (annotation)",
                "The pod label whose value is appended to the name of the PodGroup, if each replica has its own.",
            ),
            (
                "scheduling.rackgate.dev/run-spec",
                "job, Workload of Kueue (annotation)",
                "The gangs of the present run as JSON: changes of the Workload of gangs count from the next run."
                " Rackgate writes it at the start of a job and removes it at the stop. Of pods that no managed job"
                " owns, their Workload of Kueue has it.",
            ),
            (
                "scheduling.rackgate.dev/done-pods",
                "Workload of Kueue (annotation)",
                "By PodSet and UID of the child Job, the pods of gangs that child Jobs of a JobSet have completed,"
                " as JSON. The gang does not wait for them. Rackgate writes it before the start, and while pods are"
                " missing.",
            ),
            (
                "scheduling.rackgate.dev/gang-id",
                "pod (label)",
                "The gang with which a pod was started that no managed job owns. Rackgate writes it.",
            ),
            (
                "scheduling.rackgate.dev/workload-uid",
                "pod (annotation)",
                "UID of the Workload of Kueue under which such a pod was started. Rackgate writes it.",
            ),
            (
                "scheduling.rackgate.dev/run",
                "pod (annotation), PodGroup (label)",
                "The admission under which the pod was released, or the PodGroup was made. Rackgate writes it.",
            ),
        ),
    ),
    "Labels and annotations that you set on a plain pod": (
        "With the feature gate `RackgatePodGroups`. A plain pod may also have the labels of a job and the"
        " topology annotations of a template. [Run plain pods](../tasks/run-plain-pods.md) explains them.",
        (
            (
                "kueue.x-k8s.io/pod-group-name",
                "pod (label)",
                "The group of the pod, and the name of its Workload.",
            ),
            (
                "kueue.x-k8s.io/pod-group-total-count",
                "pod (annotation)",
                "The number of pods of the group.",
            ),
            (
                "kueue.x-k8s.io/pod-group-fast-admission",
                "pod (annotation)",
                '`"true"`: the Workload is created with the first pod of the group.',
            ),
            (
                "kueue.x-k8s.io/pod-group-pod-index",
                "pod (label)",
                "The rank of the pod in its PodSet.",
            ),
            (
                "kueue.x-k8s.io/pod-group-pod-index-label",
                "pod (annotation)",
                "The label with the rank, if it is another one.",
            ),
            (
                "kueue.x-k8s.io/retriable-in-group",
                "pod (annotation)",
                '`"false"`: if the pod fails, the group fails when no other pod of it runs.',
            ),
            (
                "kueue.x-k8s.io/pod-group-serving",
                "pod (annotation)",
                "No effect; the webhook warns.",
            ),
        ),
    ),
    "Keys that Rackgate writes": (
        "These keys are reserved. The webhook and the admission policies reject them in templates and pods of"
        " users.",
        (
            (
                "kueue.x-k8s.io/workload",
                "pod template, pod (annotation)",
                "The Workload of the pod.",
            ),
            ("kueue.x-k8s.io/podset", "pod template, pod (label)", "The PodSet of the pod."),
            (
                "kueue.x-k8s.io/tas",
                "pod template, pod (label)",
                '`"true"`: the pod is placed by topology.',
            ),
            (
                "kueue.x-k8s.io/topology",
                "pod template, pod (scheduling gate)",
                "Keeps the pod from being scheduled until it has a domain.",
            ),
            (
                "kueue.x-k8s.io/elastic-job",
                "pod template, pod (scheduling gate)",
                "Keeps a pod of an elastic job from being scheduled until it is admitted.",
            ),
            (
                "kueue.x-k8s.io/admission",
                "plain pod (scheduling gate)",
                "Keeps a plain pod from being scheduled until it is admitted.",
            ),
            (
                "kueue.x-k8s.io/managed",
                "plain pod (label, finalizer)",
                "Rackgate manages the pod, and counts it until its group has finished.",
            ),
            (
                "kueue.x-k8s.io/is-group-workload",
                "Workload (annotation)",
                '`"true"`: a group of pods owns the Workload.',
            ),
            ("kueue.x-k8s.io/job-uid", "Workload (label)", "The UID of the job of the Workload."),
            (
                "kueue.x-k8s.io/resource-in-use",
                "Workload, ClusterQueue, ResourceFlavor, Topology (finalizer)",
                "Keeps the object while it is in use.",
            ),
            (
                "rackgate.dev/reminded-at-generation",
                "RayCluster (annotation)",
                "The generation at which Rackgate changed the object, so that its operator reconciles it again.",
            ),
            (
                "osmo.rackgate.dev/pool",
                "KAI's Topology (label)",
                "The Pool that the Topology belongs to.",
            ),
        ),
    ),
    "Keys of others that Rackgate reads": (
        "Kubernetes, JobSet, KubeRay and Kueue write them. Most of them tell the rank of a pod.",
        (
            ("kubernetes.io/hostname", "Node", "The level of hosts."),
            (
                "kueue.x-k8s.io/workload-slice-name",
                "Pod",
                "Of an elastic job that Kueue admitted: its first Workload slice. Its pods go on to name it"
                " after Kueue replaced it by a larger one.",
            ),
            ("batch.kubernetes.io/job-completion-index", "Pod", "The index of the pod in its Job."),
            ("jobset.sigs.k8s.io/jobset-name", "Job, Pod", "The JobSet."),
            ("jobset.sigs.k8s.io/replicatedjob-name", "Job, Pod", "The replicatedJob."),
            (
                "jobset.sigs.k8s.io/job-index",
                "Job, Pod",
                "The index of the Job in its replicatedJob.",
            ),
            (
                "jobset.sigs.k8s.io/replicatedjob-replicas",
                "Job, Pod",
                "The replicas of the replicatedJob.",
            ),
            (
                "jobset.sigs.k8s.io/restart-attempt",
                "Job, Pod",
                "The number of restarts of the JobSet.",
            ),
            ("ray.io/cluster", "Pod", "The RayCluster. Only `rackgate demo` reads it."),
            (
                "ray.io/node-type",
                "Pod",
                "The role of the pod. The cleanup pod of a RayCluster has the value `redis-cleanup`"
                " and is never gated.",
            ),
            ("ray.io/group", "Pod", "The worker group."),
            (
                "ray.io/originated-from-cr-name",
                "RayCluster, Job",
                "The RayJob that created it.",
            ),
            (
                "ray.io/originated-from-crd",
                "RayCluster, Job",
                "The kind that created it: `RayJob`.",
            ),
            (
                "ray.io/worker-group-replica-index",
                "Pod",
                "The index of the replica in its worker group.",
            ),
            (
                "batch.kubernetes.io/controller-uid",
                "Pod",
                "The Job of the pod, even if the pod no longer has a controller.",
            ),
            ("ray.io/replica-host-index", "Pod", "The index of the host in its replica."),
            (
                "leaderworkerset.sigs.k8s.io/group-key",
                "Pod",
                "The replica of the LeaderWorkerSet. It tells gangs of one Workload of gangs apart.",
            ),
        ),
    ),
}
# Values of that form that are not keys of objects.
_OTHERS: Final = frozenset(
    {names.API_VERSION, names.MULTIKUEUE_CONTROLLER, names.PROVISIONING_CONTROLLER}
)
_KEY: Final = re.compile(r"[a-z0-9.-]+\.[a-z0-9-]+/[a-z0-9-]+")
MORE: Final = """\
## Further keys

| Key | Object | Meaning |
|---|---|---|
| `rackgate.dev/managed-jobs` | Namespace (label) | Jobs of the namespace are managed, with the component `deploy/namespaces` |
| `osmo.rackgate.dev/applied` | Pod (annotation) | A digest of the pod that `rackgate osmo apply` requested |
| `rackgate.dev/run-seconds` | Pod (annotation) | In a playground: the simulated pod succeeds after this time |
| `rackgate.dev/fail-after-seconds` | Pod (annotation) | In a playground: the simulated pod fails after this time |
| `rackgate.dev/terminate-seconds` | Pod (annotation) | In a playground: the simulated pod takes this time to stop |

[Hand Jobs to KAI](../tasks/hand-jobs-to-kai.md) lists the keys of KAI. [Compatibility
with Kueue](compatibility.md#labels-annotations-gates-and-finalizers) lists all keys of Kueue, and those without effect."""


def gaps() -> list[str]:
    """Keys that the table lacks, and those that the sources do not have."""
    found = {
        value
        for name, value in vars(names).items()
        if name.isupper() and isinstance(value, str) and _KEY.fullmatch(value)
    } - _OTHERS
    listed = {row[0] for _, rows in SECTIONS.values() for row in rows}
    return sorted(found ^ listed)


def text() -> str:
    """The page.

    Raises:
        ValueError: the table does not fit the sources.
    """
    if found := gaps():
        raise ValueError(f"annotations and labels: {', '.join(found)}")
    blocks = []
    for title, (introduction, rows) in SECTIONS.items():
        shown = [(f"`{key}`", where, meaning) for key, where, meaning in rows]
        parts = (f"## {title}", introduction, table(("Key", "Object", "Meaning"), shown))
        blocks.append("\n\n".join(part for part in parts if part))
    return page("Annotations and labels", PURPOSE, *blocks, MORE)

"""The rules: what each of them says, what has to be read for it, and how long it is waited for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

# Plurals of what is read.
NODES: Final = "nodes"
PODS: Final = "pods"
JOBS: Final = "jobs"
JOBSETS: Final = "jobsets"
RAY_CLUSTERS: Final = "rayclusters"
WORKLOADS: Final = "workloads"
FLAVORS: Final = "resourceflavors"
TOPOLOGIES: Final = "topologies"
CLUSTER_QUEUES: Final = "clusterqueues"
LOCAL_QUEUES: Final = "localqueues"
ALL_JOBS: Final = (JOBS, JOBSETS, RAY_CLUSTERS)
# Not a kind: every namespace was read, not one alone.
ALL_NAMESPACES: Final = "all namespaces"
# What is asked to compare queues with the pods of their jobs.
QUOTA_KINDS: Final = (
    *(PODS, NODES, FLAVORS, WORKLOADS, *ALL_JOBS, CLUSTER_QUEUES, LOCAL_QUEUES),
    ALL_NAMESPACES,
)
# Not a kind: versions of objects were seen one after another.
WATCHING: Final = "watching"


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule.

    Attributes:
        id: stable, for scripts and alerts.
        invariant: number of the promise it belongs to, see docs/reference/invariants.md.
        sentence: what must hold.
        needs: what has to be read to judge it.
        patient: a correct cluster breaks it for a while; only what stays so is a breach.
    """

    id: str
    invariant: int
    sentence: str
    needs: frozenset[str]
    patient: bool = False


@dataclass(frozen=True, slots=True, order=True)
class Breach:
    """One broken rule.

    Attributes:
        rule: id of the rule.
        subject: the object, as `namespace/name` or name, and what of it.
        found: what was found, with the names of the objects that show it.
        since: Unix time since which the objects show it; 0 when they do not tell.
    """

    rule: str
    subject: str
    found: str
    since: float = 0.0


def _rule(
    id_: str, invariant: int, sentence: str, *needs: str, patient: bool = False
) -> tuple[str, Rule]:
    return id_, Rule(id_, invariant, sentence, frozenset(needs), patient)


RULES: Final[Mapping[str, Rule]] = dict(
    (
        _rule(
            "over-domain",
            1,
            "A domain never has more live ungated pods of a PodSet than it was assigned.",
            *(PODS, WORKLOADS),
        ),
        _rule(
            "over-granted",
            1,
            "A PodSet never has more live ungated pods than it was granted.",
            *(PODS, WORKLOADS),
        ),
        _rule(
            "beyond-grant",
            1,
            "No job without a topology has more bound pods than it was granted.",
            *(PODS, WORKLOADS, *ALL_JOBS),
        ),
        _rule(
            "over-granted-left",
            1,
            "Pods beyond what an elastic Workload was granted do not stay.",
            *(PODS, WORKLOADS, *ALL_JOBS),
            patient=True,
        ),
        _rule(
            "outside-assignment",
            1,
            "A pod of a placed PodSet runs in a domain that was assigned to it.",
            *(PODS, WORKLOADS),
        ),
        _rule(
            "past-the-gate",
            1,
            "A pod of a placed PodSet leaves its gate only together with a place.",
            *(PODS, WORKLOADS),
        ),
        _rule(
            "rank-order",
            1,
            "The pod of rank r runs in the domain that the assignment gives to rank r.",
            *(PODS, WORKLOADS, *ALL_JOBS),
        ),
        _rule(
            "assignment-unreadable",
            1,
            "Every topology assignment can be read, and names no domain twice.",
            WORKLOADS,
        ),
        _rule(
            "assignment-sum",
            1,
            "The domains of an assignment take exactly the pods that were granted.",
            WORKLOADS,
        ),
        _rule(
            "assignment-missing",
            1,
            "A PodSet that asks for a topology is admitted only with an assignment.",
            WORKLOADS,
        ),
        _rule(
            "level-split",
            1,
            "All pods of a PodSet lie in one domain of the level that it requires.",
            *(WORKLOADS, NODES, FLAVORS, TOPOLOGIES),
        ),
        _rule(
            "slice-split",
            1,
            "Every slice of a PodSet lies in one domain of the level that slices require.",
            *(WORKLOADS, NODES, FLAVORS, TOPOLOGIES),
        ),
        _rule(
            "ungated-before-admission",
            2,
            "No pod of a governed Job is ungated, bound or running before its admission.",
            *(PODS, WORKLOADS, *ALL_JOBS),
        ),
        _rule(
            "forged-owner",
            2,
            "A managed Job that names a JobSet or RayCluster as its controller is one of its own.",
            *ALL_JOBS,
            patient=True,
        ),
        _rule(
            "stray-marks",
            2,
            "A released pod with Rackgate's marks belongs to the job whose Workload it names.",
            *(PODS, WORKLOADS, *ALL_JOBS),
            patient=True,
        ),
        _rule(
            "left-behind",
            2,
            "A pod of a managed job has a controller.",
            *(PODS, WORKLOADS, *ALL_JOBS),
        ),
        _rule(
            "gate-taken",
            2,
            "Nobody but the ungater takes the topology gate off a pod.",
            *(PODS, WATCHING),
        ),
        _rule(
            "foreign-gate-taken",
            2,
            "The ungater takes no gate but its own off a pod.",
            *(PODS, WATCHING),
        ),
        _rule(
            "over-capacity",
            3,
            "What is assigned to a leaf, with the pods that were there before, fits its nodes.",
            *(NODES, PODS, WORKLOADS, JOBS, FLAVORS, ALL_NAMESPACES),
        ),
        _rule(
            "over-quota",
            3,
            "Admitted Workloads of a ClusterQueue use no more than its nominal quota.",
            *(WORKLOADS, CLUSTER_QUEUES, ALL_NAMESPACES),
        ),
        _rule(
            "pods-over-quota",
            3,
            "Pods of a ClusterQueue's jobs take no more than its nominal quota.",
            *QUOTA_KINDS,
        ),
        _rule(
            "uncharged",
            3,
            "No queue is charged less than the pods of its jobs take.",
            *QUOTA_KINDS,
            patient=True,
        ),
        _rule(
            "running-without-workload",
            3,
            "Pods of a managed job that is over hold quota until they are gone.",
            *(PODS, WORKLOADS, *ALL_JOBS),
            patient=True,
        ),
        _rule(
            "reclaimed-came-back",
            3,
            "Pods whose quota was given back as done do not come back.",
            *(PODS, WORKLOADS, *ALL_JOBS),
            patient=True,
        ),
        _rule(
            "usage-differs",
            3,
            "A Workload is charged its pods' requests times the pods it was granted.",
            *(WORKLOADS, PODS, *ALL_JOBS),
        ),
        _rule(
            "admitted-twice",
            3,
            "One Job holds quota through one Workload.",
            WORKLOADS,
        ),
        _rule(
            "queue-counts",
            3,
            "The status of a ClusterQueue counts what its jobs hold, use and ask.",
            *QUOTA_KINDS,
            patient=True,
        ),
        _rule(
            "local-queue-counts",
            3,
            "The status of a LocalQueue counts what its jobs hold, use and ask.",
            *(one for one in QUOTA_KINDS if one != ALL_NAMESPACES),
            patient=True,
        ),
        _rule(
            "slice-counted-twice",
            4,
            "A slice is settled in its parent once, and only in its own PodSet.",
            WORKLOADS,
        ),
        _rule(
            "grown-without-slice",
            4,
            "An elastic Workload grows only by the slices that are settled in the same write.",
            *(WORKLOADS, WATCHING),
        ),
        _rule(
            "slice-shape",
            4,
            "A slice asks for one PodSet of its parent, and is given the same flavors.",
            WORKLOADS,
        ),
        _rule(
            "slice-orphaned",
            4,
            "A slice belongs to an elastic Workload that holds quota.",
            WORKLOADS,
            patient=True,
        ),
        _rule(
            "slice-not-settled",
            4,
            "A slice that was admitted is taken in by its parent, then deleted and forgotten.",
            WORKLOADS,
            patient=True,
        ),
        _rule(
            "counts-differ",
            4,
            "An elastic Workload is granted what its spec says, and its slices ask for the rest.",
            *(WORKLOADS, *ALL_JOBS),
            patient=True,
        ),
        _rule(
            "elastic-gate-missing",
            4,
            "The templates of a running elastic job hold new pods behind the elastic gate.",
            *(WORKLOADS, *ALL_JOBS),
            patient=True,
        ),
        _rule(
            "not-restored",
            5,
            "A Job that was stopped has the template that its user wrote.",
            *(WORKLOADS, *ALL_JOBS),
            patient=True,
        ),
        _rule(
            "held-after-end",
            5,
            "A Workload whose Job is gone or over holds nothing once its pods are gone.",
            *(WORKLOADS, PODS, *ALL_JOBS),
            patient=True,
        ),
        _rule(
            "strange-owner",
            5,
            "A Workload that holds quota belongs to the job that it was made for.",
            WORKLOADS,
            patient=True,
        ),
        _rule(
            "not-started",
            6,
            "A Job whose Workload is admitted is started.",
            *(WORKLOADS, *ALL_JOBS),
            patient=True,
        ),
        _rule(
            "not-stopped",
            6,
            "A governed Job runs only while its Workload is admitted.",
            *(WORKLOADS, *ALL_JOBS),
            patient=True,
        ),
        _rule(
            "not-released",
            6,
            "A gated pod is released when its PodSet has room for it.",
            *(PODS, WORKLOADS, *ALL_JOBS),
            patient=True,
        ),
        _rule(
            "no-workload",
            6,
            "Every governed Job has a Workload.",
            *(WORKLOADS, *ALL_JOBS),
            patient=True,
        ),
        _rule(
            "orphan-gated-pod",
            6,
            "A gated pod belongs to a Workload that can release it.",
            *(PODS, WORKLOADS, JOBS),
            patient=True,
        ),
        _rule(
            "domain-gone",
            6,
            "Pods are not kept waiting for a domain that no node belongs to.",
            *(PODS, WORKLOADS, JOBS, NODES),
            patient=True,
        ),
        _rule(
            "marks-on-ungoverned",
            7,
            "A Job without a queue label carries none of Rackgate's marks.",
            *ALL_JOBS,
        ),
    )
)

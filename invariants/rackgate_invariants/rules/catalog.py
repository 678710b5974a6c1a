"""The rules: what each of them requires, what must be read for it, and whether it is patient.

docs/reference/invariants.md has the same table.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

# Not a collection: every namespace was read.
ALL_NAMESPACES: Final = "all-namespaces"

_JOBS: Final = frozenset({"jobs", "jobsets", "rayclusters", "rayjobs"})
_QUOTA_OF_NAMESPACE: Final = frozenset(
    {"pods", "nodes", "resourceflavors", "workloads", "clusterqueues", "localqueues", *_JOBS}
)
_GROUPS: Final = {
    "all-jobs": _JOBS,
    "quota-of-namespace": _QUOTA_OF_NAMESPACE,
    "quota": _QUOTA_OF_NAMESPACE | {ALL_NAMESPACES},
}
# Two lines for each rule. The first line has the invariant, the rule's id, "patient" if a correct
# cluster may break the rule for a while, and what must be read: plurals of kinds, the groups above,
# or "watching", which means consecutive versions of an object.
_TABLE: Final = """
1 over-domain               pods workloads
  A domain never has more live ungated pods of a PodSet than it was assigned.
1 over-granted              pods workloads
  A PodSet never has more live ungated pods than were admitted.
1 beyond-grant              pods workloads all-jobs
  No job without a topology has more bound pods than were admitted.
1 over-granted-left         patient pods workloads all-jobs
  Pods beyond what was admitted of an elastic Workload do not stay.
1 outside-assignment        pods workloads
  A pod of a placed PodSet runs in a domain that is assigned to it.
1 past-the-gate             pods workloads
  A pod of a placed PodSet is ungated only together with a domain.
1 rank-order                pods workloads all-jobs
  The pod of rank r runs in the domain that the assignment gives to rank r.
1 assignment-unreadable     workloads
  Every topology assignment can be decoded, and names no domain twice.
1 assignment-sum            workloads
  The domains of an assignment have exactly the pods that were admitted.
1 assignment-missing        workloads
  A PodSet that requests a topology is admitted only with an assignment.
1 level-split               nodes workloads resourceflavors topologies
  All pods of a PodSet are in one domain of the level that it requires.
1 slice-split               nodes workloads resourceflavors topologies
  Every slice of a PodSet is in one domain of the level that slices require.

2 ungated-before-admission  pods workloads all-jobs
  No pod of a managed Job is ungated, bound or running before its admission.
2 forged-owner              patient all-jobs
  The JobSet, RayCluster or RayJob that a managed Job names as its controller exists.
2 stray-marks               patient pods workloads all-jobs
  An ungated pod with labels of Rackgate belongs to the job whose Workload it names.
2 left-behind               pods workloads all-jobs
  A pod of a managed job has a controller.
2 gate-taken                pods watching
  Only the ungater removes the topology gate from a pod.
2 foreign-gate-taken        pods watching
  The ungater removes no gate but its own from a pod.

3 over-capacity             nodes pods workloads jobs resourceflavors all-namespaces
  The pods assigned to a leaf domain, with those that were there before, fit its nodes.
3 over-quota                workloads clusterqueues cohorts all-namespaces
  Admitted Workloads use no more than the limits of their ClusterQueue and the Cohorts above it.
3 pods-over-quota           quota cohorts
  Pods of jobs use no more than the limits of their ClusterQueue and the Cohorts above it.
3 uncharged                 patient quota
  No queue is charged less than the pods of its jobs use.
3 running-without-workload  patient pods workloads all-jobs
  Pods of a managed job that has ended hold quota until they are gone.
3 reclaimed-came-back       patient pods workloads all-jobs
  Pods whose quota was reclaimed do not come back.
3 usage-differs             pods workloads all-jobs
  A Workload is charged its pods' requests times the pods that were admitted.
3 admitted-twice            workloads
  One Job holds quota through one Workload.
3 queue-counts              patient quota
  The status of a ClusterQueue counts its Workloads, and what they reserve and use.
3 local-queue-counts        patient quota-of-namespace
  The status of a LocalQueue counts its Workloads, and what they reserve and use.

4 slice-counted-twice       workloads
  A slice is merged into its parent once, and only into its own PodSet.
4 grown-without-slice       workloads watching
  An elastic Workload grows only by the slices that are merged in the same write.
4 slice-shape               workloads
  A slice requests one PodSet of its parent, and has the same flavors.
4 slice-orphaned            patient workloads
  A slice belongs to an elastic Workload that holds quota.
4 slice-not-settled         patient workloads
  An admitted slice is merged into its parent, then deleted and forgotten.
4 counts-differ             patient workloads all-jobs
  An elastic Workload is admitted with what its spec says; its slices request the rest.
4 elastic-gate-missing      patient workloads all-jobs
  The templates of a running elastic job have the elastic gate.

5 not-restored              patient workloads all-jobs
  A stopped Job has the template that its user wrote.
5 held-after-end            patient pods workloads all-jobs
  A Workload whose Job has ended holds nothing once its pods are gone.
5 strange-owner             patient workloads
  A Workload that holds quota belongs to the job that it was created for.
5 evicted-still-runs        patient nodes pods workloads all-jobs
  Pods of an evicted Workload end within their grace periods.

6 not-started               patient workloads all-jobs
  A Job whose Workload is admitted is started.
6 not-stopped               patient workloads all-jobs
  A managed Job runs only while its Workload is admitted.
6 not-released              patient pods workloads all-jobs
  A gated pod is ungated when its PodSet has capacity for it.
6 no-workload               patient workloads all-jobs
  Every managed Job has a Workload.
6 orphan-gated-pod          patient pods workloads jobs
  A gated pod belongs to a Workload that can ungate it.
6 domain-gone               patient nodes pods workloads jobs
  Pods do not wait for a domain that has no node.

7 marks-on-ungoverned       all-jobs
  A Job without a queue label carries nothing that Rackgate injects.

8 preemption-unrecorded     workloads
  A preempted Workload says which Workload it gave way to, and why.
8 requeue-state             workloads
  An evicted Workload gets no quota before its requeueAt, and its timeouts are counted.
8 admitted-while-stopped    workloads clusterqueues localqueues
  A queue that is stopped admits nothing.
8 drained-queue-holds       patient workloads clusterqueues localqueues
  The admitted Workloads of a queue that drains are evicted.

9 gang-bound-while-gated    pods
  No pod is bound while it has the gate of gangs.
9 gang-other-run            pods workloads all-jobs
  The pods of a gang are released only in a run that their Workload was admitted for.
9 gang-without-run          pods schedworkloads
  A pod of a gang without the gate of gangs was released by the ungater.
9 gang-too-many             pods workloads schedworkloads all-jobs
  No more than maxCount pods of a gang are released in one run.
9 gang-shared               pods workloads schedworkloads all-jobs
  Two jobs never have released pods of one gang at the same time.
9 gang-in-part              patient pods workloads schedworkloads all-jobs
  A gang of which no pod was lost is not released in part.
9 gang-started-short        pods workloads schedworkloads watching
  No pod of a gang is released in a run before minCount of its pods exist.
"""


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule.

    Attributes:
        id: stable, for scripts and alerts.
        invariant: number of the promise it belongs to, see docs/reference/invariants.md.
        sentence: what must be true.
        needs: what must be read to check it.
        patient: a correct cluster may break it for a while; a breach counts only if it lasts.
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
        subject: the object, as `namespace/name` or name, and the detail concerned.
        found: what was found, with the names of the objects that show it.
        since: Unix time since which the objects show it; 0 if they do not show it.
    """

    rule: str
    subject: str
    found: str
    since: float = 0.0


def _rules(table: str) -> dict[str, Rule]:
    lines = [line for line in table.splitlines() if line]
    found = {}
    for head, sentence in zip(lines[::2], lines[1::2], strict=True):
        invariant, id_, *words = head.split()
        needs = (_GROUPS.get(word, {word}) for word in words if word != "patient")
        found[id_] = Rule(
            id_,
            int(invariant),
            sentence.strip(),
            frozenset().union(*needs),
            patient="patient" in words,
        )
    return found


RULES: Final[Mapping[str, Rule]] = _rules(_TABLE)

"""The steps of the switch from Kueue to Rackgate, for what a check has found. Pure.

docs/tasks/migrate-from-kueue.md explains them; a test compares the commands of both.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

from rackgate.api import names
from rackgate_cli.migrate.judging import CONFIGURATION
from rackgate_cli.migrate.report import API_VERSION, Item, Report, Result

KIND: Final = "MigrationPlan"
TAKE_OVER: Final = "admitted Workloads are taken over as they stand"
DRAIN: Final = "all queues are drained before"
# In deploy/cluster, and those of Kueue alone.
_PLURALS: Final = (
    "admissionchecks clusterqueues cohorts localqueues resourceflavors topologies "
    "workloadpriorityclasses workloads"
)
_KUEUE_ONLY: Final = ("multikueueclusters", "multikueueconfigs", "provisioningrequestconfigs")
MAX_NAMED: Final = 20


class Step(msgspec.Struct, frozen=True, rename="camel"):
    """One step.

    Attributes:
        title: what is done.
        why: why, and what must hold before.
        commands: to copy, a line each.
        verify: what must hold afterwards.
        go_back: how to undo it.
    """

    title: str
    why: str
    commands: tuple[str, ...]
    verify: str
    go_back: str


class Plan(msgspec.Struct, frozen=True, rename="camel"):
    """All steps, in their order.

    Attributes:
        api_version: that of the report.
        kind: `MigrationPlan`.
        mode: whether jobs are taken over, or queues are drained.
        blocking: what the check says that blocks the switch.
        components: of the installation that the cluster needs.
        gates: feature gates of Rackgate that the cluster needs.
        steps: in their order.
    """

    api_version: str
    kind: str
    mode: str
    blocking: tuple[str, ...]
    components: tuple[str, ...]
    gates: tuple[str, ...]
    steps: tuple[Step, ...]


def plan_of(report: Report, kueue_namespace: str, *, drain: bool) -> Plan:
    """The plan for a report.

    Args:
        report: of the cluster, or of files.
        kueue_namespace: where Kueue runs.
        drain: wait until all jobs have ended.
    """
    findings = [one for item in report.items for one in item.findings]
    components = _sorted(one.component for one in findings)
    gates = _sorted(one.gate for one in findings)
    space = shlex.quote(kueue_namespace)
    steps = [
        *_blocking(report.items),
        _back_up(space),
        _store(),
        _translate(report.items),
        *([_drain(report.items)] if drain else []),
        _stop(space),
        _preflight(report.items),
        _install(components, gates),
        _verify(report.items, drain=drain),
        *([_resume(report.items)] if drain else []),
        _remove(space),
    ]
    return Plan(
        API_VERSION,
        KIND,
        DRAIN if drain else TAKE_OVER,
        tuple(_named(one) for one in report.items if one.blocks),
        components,
        gates,
        tuple(steps),
    )


def _sorted(found: Iterable[str]) -> tuple[str, ...]:
    return tuple(sorted({one for one in found if one}))


def _named(item: Item) -> str:
    where = f"{item.namespace}/" if item.namespace else ""
    return f"{item.kind} {where}{item.name}"


def _blocking(items: Sequence[Item]) -> Iterator[Step]:
    blocking = [one for one in items if one.blocks]
    if not blocking:
        return
    said = [
        f"{_named(item)}: {finding.to_do or finding.why}"
        for item in blocking
        for finding in item.findings
        if finding.blocks
    ]
    more = [f"and {len(said) - MAX_NAMED} more"] if len(said) > MAX_NAMED else []
    yield Step(
        "Resolve what blocks the switch",
        "Jobs would wait forever or run without quota, or objects would be rejected. "
        + "; ".join((*said[:MAX_NAMED], *more)),
        ("rackgate migrate check",),
        "rackgate migrate check names as blocking only objects for which you chose a component of"
        " Rackgate, such as deploy/gangs or deploy/pods",
        "nothing of Kueue has changed yet, apart from what you changed here",
    )


_WEBHOOKS: Final = (
    "kubectl get validatingwebhookconfigurations,mutatingwebhookconfigurations -o name"
    " | grep '/kueue-'"
)
_API_SERVICES: Final = "kubectl get apiservices -o name | grep 'visibility\\.kueue\\.x-k8s\\.io$'"


def _saved(listed: str, file: str) -> str:
    """Without what the API server sets: `kubectl apply` creates them again."""
    set_by_server = "creationTimestamp|generation|resourceVersion|uid"
    return (
        f"{listed} | xargs -r kubectl get -o yaml"
        f" | sed -E '/^ {{2,4}}({set_by_server}): /d' > {file}.yaml"
    )


def _back_up(space: str) -> Step:
    listed = ",".join(f"{one}.{names.GROUP}" for one in _PLURALS.split())
    return Step(
        "Back up",
        "The files are needed to go back.",
        (
            f"kubectl get {listed} -A -o yaml > kueue-objects.yaml",
            _saved(_WEBHOOKS, "webhooks"),
            _saved(_API_SERVICES, "apiservices"),
            f"kubectl get configmap -n {space} kueue-manager-config -o yaml > kueue-config.yaml",
        ),
        "the files are not empty; apiservices.yaml is, if Kueue has no APIServices",
        "delete the files",
    )


def _store() -> Step:
    return Step(
        "Store all objects as v1beta2",
        "While Kueue still converts them, write each object once, and tell the API server that no"
        " older version is stored. Kueue before 0.16 stores v1beta1: then do this after Rackgate"
        " is installed. A conflict means that Kueue has written the object in the new version.",
        (
            f'kinds="{_PLURALS}"',
            "for kind in $kinds; do",
            "  kubectl get $kind.v1beta2.kueue.x-k8s.io -A -o json | kubectl replace -f -",
            "  kubectl patch crd $kind.kueue.x-k8s.io --subresource=status --type=merge "
            '-p \'{"status":{"storedVersions":["v1beta2"]}}\'',
            "done",
        ),
        "kubectl get crd workloads.kueue.x-k8s.io -o jsonpath='{.status.storedVersions}' prints"
        ' ["v1beta2"]',
        "nothing to do: Kueue serves and reads this version",
    )


def _translate(items: Sequence[Item]) -> Step:
    keys = [one for one in items if one.kind == CONFIGURATION]
    missing = [one.name for one in keys if one.result is Result.NOT_YET]
    why = "Rackgate does not read the configuration of Kueue."
    if missing:
        why += f" It has no setting for {', '.join(missing[:MAX_NAMED])}."
    return Step(
        "Translate the configuration",
        why,
        ("rackgate kueue-config kueue-config.yaml > rackgate-config.yaml",),
        "you accept what the command names as not translated",
        "delete the file",
    )


def _queues(items: Sequence[Item]) -> list[str]:
    return [shlex.quote(one.name) for one in items if one.kind == "ClusterQueue"]


def _patches(items: Sequence[Item], policy: str) -> tuple[str, ...]:
    change = f'\'{{"spec":{{"stopPolicy":"{policy}"}}}}\''
    return tuple(
        f"kubectl patch clusterqueue {name} --type=merge -p {change}" for name in _queues(items)
    )


def _drain(items: Sequence[Item]) -> Step:
    return Step(
        "Hold all queues, and wait for running jobs",
        "No new Workload is admitted. Running jobs end normally.",
        (
            *_patches(items, "Hold"),
            "kubectl get clusterqueues -o custom-columns="
            "NAME:.metadata.name,ADMITTED:.status.admittedWorkloads",
        ),
        "the number of admitted Workloads is 0 in all ClusterQueues",
        "set spec.stopPolicy of the ClusterQueues to what it is in kueue-objects.yaml",
    )


def _stop(space: str) -> Step:
    return Step(
        "Stop Kueue, and keep its CRDs",
        "Running pods continue. Until Rackgate runs, no job starts, and with Kueue's webhooks gone"
        " a job that is created is not suspended: tell your users, or do this in a quiet hour."
        " If a tool such as Argo CD or Flux installed Kueue, suspend its synchronization before."
        " Do not delete the CRDs: all queues and Workloads would go with them.",
        (
            f"kubectl -n {space} scale deployment kueue-controller-manager --replicas=0",
            f"kubectl -n {space} wait pod -l control-plane=controller-manager --for=delete"
            " --timeout=120s",
            f"{_WEBHOOKS} | xargs -r kubectl delete",
            "kubectl annotate crd clusterqueues.kueue.x-k8s.io localqueues.kueue.x-k8s.io"
            " workloads.kueue.x-k8s.io cert-manager.io/inject-ca-from-",
            f"{_API_SERVICES} | xargs -r kubectl delete",
        ),
        "the pods of running jobs are the same as before; kubectl delete namespace works for an"
        " empty namespace",
        "kubectl apply -f webhooks.yaml -f apiservices.yaml, and scale the Deployment back. With"
        " cert-manager, set the annotation of the CRDs again",
    )


def _preflight(items: Sequence[Item]) -> Step:
    crds = " ".join(f"{one}.{names.GROUP}" for one in _KUEUE_ONLY)
    has_any = any(
        one.kind in ("MultiKueueCluster", "MultiKueueConfig", "ProvisioningRequestConfig")
        for one in items
    )
    go_back = "install the CRDs of Kueue again"
    if has_any:
        go_back += ", and save the objects of these kinds before you delete them"
    return Step(
        "Check the cluster",
        "Kinds that Rackgate does not have are deleted with their objects: nothing reads them.",
        (f"kubectl delete crd --ignore-not-found {crds}", "rackgate preflight"),
        "the exit code of rackgate preflight is 0",
        go_back,
    )


def _install(components: Sequence[str], gates: Sequence[str]) -> Step:
    why = "docs/tasks/install.md describes the kustomization."
    if components:
        why += f" Your cluster needs the components {', '.join(components)}."
    if gates:
        why += f" Enable the feature gates {', '.join(gates)} in all services."
    return Step(
        "Install Rackgate",
        why,
        (
            "kubectl apply --server-side --field-manager=rackgate --force-conflicts"
            " -k rackgate/deploy/cluster",
            "kubectl apply --server-side --field-manager=rackgate -k .",
            "for service in webhook assigner ungater; do kubectl -n rackgate-system rollout status"
            " deploy/rackgate-$service; done",
        ),
        "all rollouts end",
        "wait until RayClusters that Rackgate admitted and elastic jobs that it resized have ended:"
        " Kueue would stop and queue them again. rackgate uninstall --yes keeps CRDs, queues,"
        " Workloads and running jobs. Then apply the CRDs of Kueue"
        " with --server-side --force-conflicts, kubectl apply -f webhooks.yaml -f apiservices.yaml,"
        " and scale the Deployment of Kueue back",
    )


def _verify(items: Sequence[Item], *, drain: bool) -> Step:
    count = sum(one.kind == "Workload" for one in items)
    taken = "" if drain else f" {count} Workloads were checked; admitted ones keep their usage."
    return Step(
        "Check the result",
        f"Rackgate reports each job whose Workload, pods or quota do not agree.{taken}",
        (
            "rackgate invariants",
            "rackgate queues -A",
            "kubectl get events -A --field-selector reason=UnsupportedField",
        ),
        "the exit code of rackgate invariants is 0; usage and pending Workloads are those of"
        " kueue-objects.yaml, apart from jobs that ended meanwhile",
        "as for the step before",
    )


def _resume(items: Sequence[Item]) -> Step:
    return Step(
        "Resume the queues",
        "Rackgate admits the pending Workloads in their order. Leave out queues that were held"
        " before.",
        _patches(items, "None"),
        "pending Workloads are admitted",
        "set spec.stopPolicy to Hold again",
    )


def _remove(space: str) -> Step:
    return Step(
        "Remove what is left of Kueue",
        "Do this when you will not go back. The CRDs belong to Rackgate now: do not use the"
        " manifest of Kueue to delete.",
        (
            f"kubectl delete namespace {space}",
            "kubectl get clusterroles,clusterrolebindings -o name"
            " | grep -E '/kueue-(manager|metrics|proxy|leader)' | xargs -r kubectl delete",
        ),
        "rackgate invariants and rackgate queues -A print the same as before",
        "install Kueue again, in another hour like this",
    )

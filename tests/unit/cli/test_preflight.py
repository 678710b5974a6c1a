"""What stands in the way of an installation, and what a deletion would do: words and verdicts."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from rackgate_assigner.uninstall.controller import UninstallReport
from rackgate_cli.preflight.command import format_findings
from rackgate_cli.preflight.findings import KUEUE_LEASE, OURS, PART_OF, ClusterSnapshot, findings
from rackgate_cli.uninstall.steps import InstallationSurvey, UninstallResult
from rackgate_cli.uninstall.view import outcome, plan

NOW = datetime(2026, 8, 1, 12, tzinfo=UTC)
LABELS = {PART_OF: OURS}
SYSTEM = "rackgate-system"

Object = dict[str, Any]


def seen(**more: Any) -> ClusterSnapshot:
    return ClusterSnapshot(version={"major": "1", "minor": "34+"}, now=NOW, **more)


def named(kind: str, name: str, namespace: str = "", **metadata: Any) -> Object:
    return {"kind": kind, "metadata": {"name": name, "namespace": namespace, **metadata}}


def deployment(name: str, namespace: str, image: str = "x", **metadata: Any) -> Object:
    spec = {"template": {"spec": {"containers": [{"image": image}]}}}
    return {**named("Deployment", name, namespace, **metadata), "spec": spec}


def crd(
    strategy: str = "None",
    stored: tuple[str, ...] = ("v1beta2",),
    name: str = "workloads",
    **metadata: Any,
) -> Object:
    return {
        **named("CustomResourceDefinition", f"{name}.kueue.x-k8s.io", **metadata),
        "spec": {"conversion": {"strategy": strategy}, "versions": [{"name": "v1beta2"}]},
        "status": {"storedVersions": list(stored)},
    }


def served(group: str) -> Object:
    return {**named("APIService", f"v1beta2.{group}"), "spec": {"group": group, "service": {}}}


def mark(namespace: str, **metadata: Any) -> Object:
    return {
        **named("ClusterRoleBinding", "rackgate", labels=LABELS, **metadata),
        "subjects": [{"kind": "ServiceAccount", "namespace": namespace}],
    }


def binding(name: str, **metadata: Any) -> Object:
    return named("ClusterRoleBinding", name, labels=LABELS, **metadata)


def conflicts(found: ClusterSnapshot, namespace: str = SYSTEM) -> list[str]:
    return [one.what for one in findings(found, namespace) if one.conflict]


def test_a_cluster_without_either_and_ones_own_installation_stand_in_nobodys_way() -> None:
    own = deployment("rackgate-assigner", SYSTEM, labels=LABELS)
    api = {**served("visibility.kueue.x-k8s.io"), **named("APIService", "v1beta2", labels=LABELS)}
    mine = seen(deployments=[own], bindings=[mark(SYSTEM)], crds=[crd()], api_services=[api])
    assert findings(seen(), SYSTEM) == findings(mine, SYSTEM) == []
    assert format_findings([], SYSTEM) == [
        "nothing prevents an installation into namespace rackgate-system"
    ]


@pytest.mark.requirement("OPS-06")
@pytest.mark.parametrize(
    "sign",
    [
        {
            "webhooks": [
                named("MutatingWebhookConfiguration", "kueue-mutating-webhook-configuration")
            ]
        },
        {"webhooks": [named("ValidatingWebhookConfiguration", "my-kueue-validating")]},
        {"deployments": [deployment("kueue-controller-manager", "kueue-system")]},
        {"deployments": [deployment("x", "y", labels={"app.kubernetes.io/name": "kueue"})]},
        {"deployments": [deployment("x", "y", image="registry.k8s.io/kueue/kueue:v0.14.0")]},
        {"deployments": [deployment("x", "y", image="mirror/kueue@sha256:00")]},
        {"api_services": [served("visibility.kueue.x-k8s.io")]},
    ],
)
def test_each_sign_of_a_kueue_that_lives_is_a_conflict(sign: dict[str, list[Object]]) -> None:
    (what,) = conflicts(seen(**sign))
    assert what.startswith("Kueue's ")


@pytest.mark.parametrize(("age_s", "holder", "lives"), [(10, "x", 1), (300, "x", 0), (10, "", 0)])
def test_a_lease_of_kueue_counts_while_it_is_renewed(age_s: int, holder: str, lives: int) -> None:
    renewed = (NOW - timedelta(seconds=age_s)).isoformat()
    lease = named("Lease", KUEUE_LEASE, "kueue-system")
    lease["spec"] = {"holderIdentity": holder, "renewTime": renewed}
    assert len(conflicts(seen(leases=[lease]))) == lives


def test_kinds_that_kueue_left_are_a_note() -> None:
    left = findings(seen(crds=[crd("Webhook")]), SYSTEM)
    assert [one.conflict for one in left] == [False]
    assert "--force-conflicts" in left[0].remedy


@pytest.mark.parametrize(
    "client", [{"service": {"name": "rackgate-webhook"}}, {"url": "https://x"}]
)
def test_kinds_that_rackgate_converts_are_not_worth_a_word(client: Object) -> None:
    own = crd("Webhook")
    own["spec"]["conversion"]["webhook"] = {"clientConfig": client}
    assert findings(seen(crds=[own]), SYSTEM) == []


@pytest.mark.requirement("OPS-04", "OPS-06")
@pytest.mark.parametrize("stored", [("v1beta1",), ("v1beta1", "v1beta2")])
def test_objects_of_the_version_that_the_webhook_converts_are_a_note(
    stored: tuple[str, ...],
) -> None:
    (note,) = findings(seen(crds=[crd("None", stored)]), SYSTEM)
    assert note.what == "objects may be stored as v1beta1: workloads.kueue.x-k8s.io"
    assert not note.conflict


def test_objects_of_still_older_versions_are_a_conflict() -> None:
    """Else the API server refuses the new definition with words of its own."""
    (what,) = conflicts(seen(crds=[crd("None", ("v1alpha1", "v1beta1"))]))
    assert what == "objects may be stored in older versions of workloads.kueue.x-k8s.io"
    theirs = [crd("Webhook", ("v1alpha1", "v1beta1"), name="multikueueconfigs")]
    (note,) = findings(seen(crds=theirs), SYSTEM)
    assert not note.conflict
    assert "multikueueconfigs.kueue.x-k8s.io" in note.what


def test_api_services_of_others_stand_in_nobodys_way() -> None:
    assert findings(seen(api_services=[served("metrics.k8s.io")]), SYSTEM) == []


@pytest.mark.requirement("OPS-06")
def test_another_installation_is_known_by_the_mark_and_by_its_deployments() -> None:
    other = deployment("rackgate-webhook", "team-infra", labels=LABELS)
    (by_mark,) = conflicts(seen(bindings=[mark("team-infra")]))
    (by_both,) = conflicts(seen(bindings=[mark("team-infra")], deployments=[other]))
    assert by_mark == "Rackgate is installed in namespace team-infra (ClusterRoleBinding rackgate)"
    assert "ClusterRoleBinding rackgate, Deployment rackgate-webhook" in by_both
    assert conflicts(seen(bindings=[mark("team-infra")]), "team-infra") == []


@pytest.mark.parametrize(
    "leaving",
    [
        {"bindings": [mark(SYSTEM, deletionTimestamp="x")]},
        {"bindings": [binding("rackgate-assigner.team-infra", deletionTimestamp="x")]},
        {"namespace": named("Namespace", SYSTEM, deletionTimestamp="x")},
        {"crds": [crd(deletionTimestamp="x")]},
    ],
)
def test_what_is_being_deleted_is_waited_for(leaving: dict[str, Any]) -> None:
    (what,) = conflicts(seen(**leaving))
    assert what.startswith("being deleted: ")


def test_old_names_are_a_note_and_an_old_api_server_is_a_conflict() -> None:
    old = named("MutatingWebhookConfiguration", "rackgate-mutating", labels=LABELS)
    (note,) = findings(seen(webhooks=[old]), SYSTEM)
    assert (note.conflict, "rackgate-mutating" in note.what) == (False, True)
    policy = named("ValidatingAdmissionPolicy", "rackgate-jobs", labels=LABELS)
    (note,) = findings(seen(policies=[policy]), SYSTEM)
    assert (note.conflict, "ValidatingAdmissionPolicy rackgate-jobs" in note.what) == (False, True)
    assert conflicts(ClusterSnapshot(version={"major": "1", "minor": "29"})) == [
        "the API server is of Kubernetes 1.29"
    ]


def test_conflicts_are_reported_first_and_then_nothing_is_promised() -> None:
    found = seen(crds=[crd("Webhook")], bindings=[mark("team-infra")])
    lines = format_findings(findings(found, SYSTEM), SYSTEM)
    assert [line.split(":")[0] for line in lines] == ["conflict", "note"]


def test_the_plan_says_what_becomes_of_every_job_and_pod() -> None:
    survey = InstallationSurvey(
        SYSTEM, running=1, waiting=2, gated=["team/a"], counts={"Workload": 3}
    )
    said = "\n".join(plan(survey, "leave", delete_crds=False))
    for words in (
        "1 job running: they continue. Pods that they create later",
        "2 jobs pending: they get their templates back and stay suspended",
        "1 pod gated: they are released to the scheduler",
        "CRDs, queues and Workloads stay (3 Workload)",
    ):
        assert words in said
    said = "\n".join(plan(survey, "suspend", delete_crds=True))
    assert "1 job running: they are suspended, and their pods are deleted" in said
    assert "The CRDs are DELETED with all their objects: 3 Workload." in said
    other = "\n".join(plan(InstallationSurvey(SYSTEM, is_active=False), "leave", delete_crds=True))
    assert "Another installation is active in this cluster" in other
    assert "DELETED" not in other


def test_the_outcome_names_what_stays_gated_and_what_is_left() -> None:
    report = UninstallReport(
        restored={"Job team/waits"}, running=["Job team/runs"], gated=["Job team/runs"]
    )
    done = UninstallResult(report=report, pods={"team/pod"})
    said = "\n".join(outcome(done, "leave"))
    for words in (
        "Job team/waits",
        "team/pod",
        "still running: 1 job (Job team/runs)",
        "stay gated",
    ):
        assert words in said
    assert said.endswith("Rackgate is uninstalled")
    done.left = ["Job team/x: still stopping"]
    assert outcome(done, "leave")[-2:] == [
        "  Job team/x: still stopping",
        "run the command again",
    ]

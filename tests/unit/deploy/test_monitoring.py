"""Alerts and dashboard against what the services declare, and against the page for operators."""

from __future__ import annotations

import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest
import yaml

from rackgate.runtime import kueue_metrics, metrics
from rackgate_cli.controlplane import install
from rackgate_cli.locations import deploy_dir
from tests.support import promql
from tests.support.reference.metrics import PARTS, import_all

DOCS = deploy_dir().parent / "docs"
PROCESS = {
    "process_cpu_seconds_total",
    "process_resident_memory_bytes",
    "process_start_time_seconds",
}
# What Prometheus and the API servers tell, with the labels that we rely on.
FOREIGN = {
    "up": set(),
    "apiserver_admission_webhook_fail_open_count": {"name"},
    "apiserver_admission_webhook_admission_duration_seconds": {"name", "le"},
} | {name: set() for name in PROCESS}
SEVERITIES = {"critical", "warning", "info"}
WAITS_ARE_BUILT_IN = re.compile(r"(increase|changes|min_over_time)\(|RackgateCertificateExpiresNow")


@cache
def declared_metrics() -> list[metrics.DeclaredMetric]:
    """The metrics of all services."""
    for _, package in PARTS:
        import_all(package)
    return metrics.DECLARED


@cache
def labels_of(family: str) -> set[str] | None:
    """Labels of a metric's series, those of a scrape apart; None when there is no such metric."""
    if family in FOREIGN:
        return FOREIGN[family]
    for declared in declared_metrics():
        if declared.name == family:
            return {*declared.labels, "le"} if declared.kind == "histogram" else {*declared.labels}
    return None


@cache
def anchors(page: Path) -> set[str]:
    """What links to a page's headings end in."""
    heads = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^a-z0-9 -]", "", head.lower()).replace(" ", "-") for head in heads}


@pytest.mark.requirement("OPS-09")
@pytest.mark.parametrize(("where", "expression"), promql.expressions())
def test_every_expression_asks_for_what_there_is(where: str, expression: str) -> None:
    known: set[str] = set(promql.OF_SCRAPE)
    for use in promql.uses(expression):
        labels = labels_of(use.family)
        if labels is None:
            labels = labels_of(use.metric)
        assert labels is not None, f"{where}: no metric {use.metric}"
        known |= labels
        for label, _, _ in use.matchers:
            assert label in labels | promql.OF_SCRAPE, f"{where}: {use.metric} has no {label}"
    assert promql.grouped_by(expression) <= known


@pytest.mark.requirement("OPS-09")
def test_choices_of_the_dashboard_are_labels_that_there_are() -> None:
    choices = [entry for entry in promql.variables() if entry["type"] == "query"]
    assert {f"${entry['name']}" for entry in choices} <= set(promql.VARIABLES)
    for entry in choices:
        asked = re.fullmatch(r"label_values\((\w+), (\w+)\)", entry["query"]["query"])
        assert asked, entry["query"]
        assert entry["definition"] == entry["query"]["query"]
        assert asked[2] in (labels_of(asked[1]) or ()), entry["query"]


@pytest.mark.requirement("OPS-09")
def test_legends_of_the_dashboard_name_labels_that_their_expression_keeps() -> None:
    for panel in promql.panels():
        for target in panel["targets"]:
            named = set(re.findall(r"\{\{\s*(\w+)\s*\}\}", target.get("legendFormat", "")))
            assert named <= promql.grouped_by(promql.filled_in(target["expr"])), target


@pytest.mark.parametrize("alert", promql.alerts(), ids=lambda alert: alert["alert"])
def test_every_alert_says_how_bad_what_and_where_to_look(alert: dict[str, object]) -> None:
    name, labels, told = alert["alert"], alert["labels"], alert["annotations"]
    assert isinstance(labels, dict)
    assert isinstance(told, dict)
    assert labels["severity"] in SEVERITIES
    assert str(told["summary"]).endswith(".")
    assert str(told["description"]).endswith((".", "?"))
    assert "for" in alert or WAITS_ARE_BUILT_IN.search(f"{name} {alert['expr']}")
    page, _, anchor = str(told["runbook_url"]).partition("#")
    assert page == "docs/tasks/monitor.md"
    assert anchor in anchors(DOCS / "tasks" / "monitor.md")


def test_labels_in_texts_are_those_that_an_alert_keeps() -> None:
    for alert in promql.alerts():
        named = set(re.findall(r"\$labels\.(\w+)", str(alert["annotations"])))
        grouped = promql.grouped_by(alert["expr"])
        aggregates = re.search(r"\b(sum|max|min|count)\b", alert["expr"])
        kept = grouped if aggregates else promql.OF_SCRAPE
        assert named <= kept, alert["alert"]


def test_the_page_has_a_section_for_each_alert_and_no_other() -> None:
    text = (DOCS / "tasks" / "monitor.md").read_text()
    sections = set(re.findall(r"^#+ (Rackgate[A-Z]\w+)$", text, re.MULTILINE))
    linked = {alert["annotations"]["runbook_url"].partition("#")[2] for alert in promql.alerts()}
    assert {section.lower() for section in sections} == linked


def test_the_kustomization_shown_to_operators_names_what_is_there() -> None:
    text = (DOCS / "tasks" / "install.md").read_text()
    blocks = re.findall(r"```yaml\n(.*?)```", text, re.DOTALL)
    block, *_ = (block for block in blocks if "components:" in block)
    shown = yaml.safe_load(block)
    for part, kind in (("resources", "Kustomization"), ("components", "Component")):
        for path in shown[part]:
            folder = DOCS.parent / path.removeprefix("rackgate/")
            assert yaml.safe_load((folder / "kustomization.yaml").read_text())["kind"] == kind


def test_log_lines_that_texts_name_are_written_somewhere() -> None:
    sources = "".join(
        path.read_text()
        for folder in ("services", "shared")
        for path in (DOCS.parent / folder).rglob("*.py")
    )
    pages = [page.read_text() for page in sorted((DOCS / "tasks").glob("*.md"))]
    text = "".join(pages) + (promql.FOLDER / "alerts.yaml").read_text()
    named = set(re.findall(r"(?:log line|log says|log for)\s+`?([a-z]+_[a-z_]+)", text))
    assert len(named) > 3
    assert {name for name in named if f'"{name}"' not in sources} == set()


@pytest.mark.requirement("OPS-09")
def test_every_metric_is_described() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.reference", "--check", "metrics"],
        cwd=DOCS.parent,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_labels_are_never_pods_workloads_or_other_unbounded_things() -> None:
    for metric in declared_metrics():
        unbounded = {"pod", "workload", "uid", "namespace", "node", "job"}
        if metric.name.startswith("rackgate_local_queue_"):  # administrators make those
            unbounded -= {"namespace"}
        assert not unbounded & set(metric.labels)


@pytest.mark.requirement("OPS-09")
@pytest.mark.parametrize(
    "name", ["RackgateWebhookDown", "RackgateNoAssigner", "RackgateShardsWithoutUngater"]
)
def test_a_service_that_is_down_is_reported_within_a_minute(name: str) -> None:
    document = yaml.safe_load((promql.FOLDER / "alerts.yaml").read_text())
    monitor = yaml.safe_load((promql.FOLDER / "podmonitor.yaml").read_text())["spec"]
    ((group, alert),) = (
        (group, rule)
        for group in document["spec"]["groups"]
        for rule in group["rules"]
        if rule["alert"] == name
    )
    (endpoint,) = monitor["podMetricsEndpoints"]
    waits = [endpoint["interval"], group["interval"], alert["for"]]
    assert sum(int(wait.removesuffix("s")) for wait in waits) <= 60


def test_labels_of_local_queues_win_over_those_of_the_scraped_pod() -> None:
    monitor = yaml.safe_load((promql.FOLDER / "podmonitor.yaml").read_text())["spec"]
    assert monitor["podMetricsEndpoints"][0]["honorLabels"] is True


def test_every_replica_is_scraped_under_the_name_of_its_service() -> None:
    monitor = yaml.safe_load((promql.FOLDER / "podmonitor.yaml").read_text())["spec"]
    label, (endpoint,) = monitor["jobLabel"], monitor["podMetricsEndpoints"]
    jobs = set()
    for entry in install.documents(deploy_dir() / "services"):
        if entry["kind"] == "Deployment":
            template = entry["spec"]["template"]
            assert monitor["selector"]["matchLabels"].items() <= (
                template["metadata"]["labels"].items()
            )
            ports = [port["name"] for port in template["spec"]["containers"][0]["ports"]]
            assert endpoint["port"] in ports
            jobs.add(template["metadata"]["labels"][label])
    wanted = {
        value
        for _, expression in promql.expressions()
        for use in promql.uses(expression)
        for name, _, values in use.matchers
        if name == "job"
        for value in values.split("|")
    }
    assert wanted == jobs


@pytest.mark.requirement("OPS-09")
def test_each_metric_under_a_name_of_kueue_is_one_of_ours() -> None:
    ours = {metric.name: set(metric.labels) for metric in declared_metrics()}
    for name, labels in kueue_metrics.LABELS.items():
        own = ours[f"{metrics.PREFIX}_{name}"]
        derived = {kueue_metrics.COHORT, "active"}
        assert set(labels) - derived <= own, name

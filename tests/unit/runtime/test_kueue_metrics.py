"""Series under Kueue's names: what a dashboard that was made for Kueue finds."""

from __future__ import annotations

import pytest
from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.parser import text_string_to_metric_families

from rackgate.runtime import metrics
from rackgate.runtime.kueue_metrics import LABELS, MISSING, kueue_metrics


def series(registry: CollectorRegistry) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    """The samples under Kueue's names."""
    return {
        (sample.name, frozenset(sample.labels.items())): sample.value
        for metric in kueue_metrics(list(registry.collect()))
        for sample in metric.samples
        if not sample.name.endswith("_created")
    }


def key(name: str, /, **labels: str) -> tuple[str, frozenset[tuple[str, str]]]:
    """A series."""
    return name, frozenset(labels.items())


@pytest.mark.requirement("OPS-09")
def test_a_queue_has_the_label_of_its_cohort_and_none_without_one() -> None:
    registry = CollectorRegistry()
    info = Gauge(
        "rackgate_cluster_queue_info",
        "",
        ("cluster_queue", "parent_cohort", "root_cohort"),
        registry=registry,
    )
    info.labels("a", "team", "all").set(1)
    info.labels("b", "", "").set(1)
    usage = Gauge(
        "rackgate_cluster_queue_resource_usage",
        "",
        ("cluster_queue", "flavor", "resource"),
        registry=registry,
    )
    usage.labels("a", "gpu", "cpu").set(3)
    usage.labels("b", "gpu", "cpu").set(4)
    found = series(registry)
    name, rest = "kueue_cluster_queue_resource_usage", {"flavor": "gpu", "resource": "cpu"}
    role = {"replica_role": "standalone"}
    assert found[key(name, cluster_queue="a", cohort="team", **rest, **role)] == 3
    assert found[key(name, cluster_queue="b", cohort="", **rest, **role)] == 4


@pytest.mark.requirement("OPS-09")
def test_the_role_is_that_of_the_lease() -> None:
    registry = CollectorRegistry()
    leader = Gauge("rackgate_leader", "", ("lease",), registry=registry)
    attempts = Counter("rackgate_admission_attempts_total", "", ("result",), registry=registry)
    attempts.labels("success").inc(2)
    leader.labels("rackgate-assigner").set(0)
    name = "kueue_admission_attempts_total"
    assert series(registry) == {key(name, result="success", replica_role="follower"): 2}
    leader.labels("rackgate-assigner").set(1)
    assert series(registry) == {key(name, result="success", replica_role="leader"): 2}


@pytest.mark.requirement("OPS-09")
def test_series_that_differ_in_a_label_that_kueue_lacks_are_summed() -> None:
    registry = CollectorRegistry()
    finished = Counter(
        "rackgate_finished_workloads_total", "", ("cluster_queue", "reason"), registry=registry
    )
    finished.labels("a", "Succeeded").inc(2)
    finished.labels("a", "Failed").inc(3)
    role = {"replica_role": "standalone"}
    assert series(registry) == {key("kueue_finished_workloads_total", cluster_queue="a", **role): 5}


@pytest.mark.requirement("OPS-09")
def test_buckets_of_a_histogram_keep_their_bounds() -> None:
    registry = CollectorRegistry()
    waits = Histogram(
        "rackgate_admission_wait_time_seconds",
        "",
        ("cluster_queue",),
        buckets=(1, 10),
        registry=registry,
    )
    waits.labels("a").observe(5)
    labels, name = {"cluster_queue": "a", "replica_role": "standalone"}, "kueue_admission_wait"
    assert series(registry) == {
        key(f"{name}_time_seconds_bucket", le="1.0", **labels): 0,
        key(f"{name}_time_seconds_bucket", le="10.0", **labels): 1,
        key(f"{name}_time_seconds_bucket", le="+Inf", **labels): 1,
        key(f"{name}_time_seconds_count", **labels): 1,
        key(f"{name}_time_seconds_sum", **labels): 5,
    }


@pytest.mark.requirement("OPS-09")
def test_a_local_queue_is_active_or_not() -> None:
    registry = CollectorRegistry()
    status = Gauge(
        "rackgate_local_queue_status", "", ("name", "namespace", "status"), registry=registry
    )
    status.labels("lq", "team", "active").set(1)
    status.labels("lq", "team", "pending").set(0)
    labels = {"name": "lq", "namespace": "team", "replica_role": "standalone"}
    assert series(registry) == {
        key("kueue_local_queue_status", active="True", **labels): 1,
        key("kueue_local_queue_status", active="False", **labels): 0,
    }


@pytest.mark.requirement("OPS-09")
def test_a_scrape_has_them_only_if_it_is_asked_for() -> None:
    family = GaugeMetricFamily("rackgate_reserving_active_workloads", "", labels=("cluster_queue",))
    family.add_metric(("a",), 7)
    with metrics.scraping(lambda: [family]):
        assert b"kueue_" not in metrics.render()
        text = metrics.render(kueue_names=True).decode()
    found = {one.name: one for one in text_string_to_metric_families(text)}
    (sample,) = found["kueue_reserving_active_workloads"].samples
    assert (sample.labels["cluster_queue"], sample.value) == ("a", 7)
    assert found["rackgate_reserving_active_workloads"].samples


def test_what_is_not_served_is_not_said_to_be_served() -> None:
    assert not set(LABELS) & set(MISSING)

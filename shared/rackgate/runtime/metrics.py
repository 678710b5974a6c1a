"""Prometheus metrics: one registry, one prefix, and the metrics of every service."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Metric, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from rackgate.runtime import clock
from rackgate.runtime.kueue_metrics import kueue_metrics

PREFIX: Final = "rackgate"
CONTENT_TYPE: Final = CONTENT_TYPE_LATEST
REGISTRY: Final = CollectorRegistry()
ProcessCollector(registry=REGISTRY)

SHORT_BUCKETS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


@dataclass(frozen=True, slots=True)
class DeclaredMetric:
    """A declared metric, for documentation and tests; `name` includes the prefix."""

    name: str
    kind: str
    labels: tuple[str, ...]
    help_text: str


# All metrics of the imported modules, in the order of declaration.
DECLARED: Final[list[DeclaredMetric]] = []


def _register_declaration(kind: str, name: str, help_text: str, labels: Sequence[str]) -> None:
    DECLARED.append(DeclaredMetric(f"{PREFIX}_{name}", kind, tuple(labels), help_text))


def counter(name: str, help_text: str, labels: Sequence[str] = ()) -> Counter:
    """A counter `rackgate_<name>`; `name` ends in `_total`."""
    _register_declaration("counter", name, help_text, labels)
    return Counter(name, help_text, labels, namespace=PREFIX, registry=REGISTRY)


def gauge(name: str, help_text: str, labels: Sequence[str] = ()) -> Gauge:
    """A gauge `rackgate_<name>`."""
    _register_declaration("gauge", name, help_text, labels)
    return Gauge(name, help_text, labels, namespace=PREFIX, registry=REGISTRY)


def histogram(
    name: str, help_text: str, labels: Sequence[str] = (), buckets: Sequence[float] = SHORT_BUCKETS
) -> Histogram:
    """A histogram `rackgate_<name>`; `name` ends in its unit."""
    _register_declaration("histogram", name, help_text, labels)
    return Histogram(name, help_text, labels, namespace=PREFIX, registry=REGISTRY, buckets=buckets)


@dataclass(frozen=True, slots=True)
class ScrapedGauge:
    """A gauge whose values are computed at each scrape.

    So it never shows outdated values, or values of deleted objects.
    """

    name: str
    help_text: str
    labels: tuple[str, ...]

    def family(self, samples: Iterable[tuple[Sequence[str], float]]) -> GaugeMetricFamily:
        """The series of one scrape.

        Args:
            samples: label values in the order of `labels`, each combination once, and the value.
        """
        family = GaugeMetricFamily(f"{PREFIX}_{self.name}", self.help_text, labels=self.labels)
        for values, value in samples:
            family.add_metric(values, value)
        return family


def scraped_gauge(name: str, help_text: str, labels: Sequence[str] = ()) -> ScrapedGauge:
    """A gauge `rackgate_<name>`, for a function that `scraping` registers."""
    _register_declaration("gauge", name, help_text, labels)
    return ScrapedGauge(name, help_text, tuple(labels))


class _ScrapeCollector(Collector):
    def __init__(self, families: Callable[[], Iterable[GaugeMetricFamily]]) -> None:
        self._families = families

    def collect(self) -> Iterable[GaugeMetricFamily]:
        return self._families()


@contextmanager
def scraping(families: Callable[[], Iterable[GaugeMetricFamily]]) -> Iterator[None]:
    """Add the gauges that `families` returns to every scrape, within this context.

    `families` runs on the event loop's thread, so it must be quick.
    """
    collector = _ScrapeCollector(families)
    REGISTRY.register(collector)
    try:
        yield
    finally:
        REGISTRY.unregister(collector)


BUILD_INFO: Final = gauge("build_info", "1, with the running version.", ("service", "version"))
API_REQUESTS: Final = counter(
    "api_requests_total",
    "Requests to the API server; code is the HTTP status, or 'none' without a response.",
    ("verb", "resource", "code"),
)
API_DURATION: Final = histogram(
    "api_request_duration_seconds",
    "Time to the complete response of one request to the API server, without the time that the "
    "client delayed it; watches are not included.",
    ("verb", "resource"),
    (0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)
WATCH_RESTARTS: Final = counter(
    "watch_restarts_total",
    "Watches that were restarted, by the reason why the last one ended.",
    ("resource", "reason"),
)
WATCH_LAG: Final = gauge(
    "watch_lag_seconds", "Seconds since the last data of the watch.", ("resource",)
)
LEADER: Final = gauge("leader", "1 while this process holds the Lease.", ("lease",))
EVENT_LOOP_LAG: Final = histogram("event_loop_lag_seconds", "How late the event loop woke a timer.")
GC_PAUSE: Final = histogram("gc_pause_seconds", "Pauses of the garbage collector.", ("generation",))
EVENTS_DROPPED: Final = counter(
    "events_dropped_total", "Kubernetes Events that were not written, by reason.", ("reason",)
)


def initialize_series(metric: Counter, label: str, values: Sequence[str]) -> Counter:
    """Start the series of a counter at 0 for every value of its one label.

    `increase()` does not see the first increment of a series that starts at 1.
    """
    for value in values:
        metric.labels(**{label: value})
    return metric


class _Collected(Collector):
    def __init__(self, families: Sequence[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def render(*, kueue_names: bool = False) -> bytes:
    """All metrics in the text exposition format.

    Args:
        kueue_names: also those of Kueue, under Kueue's names.
    """
    if not kueue_names:
        return generate_latest(REGISTRY)
    ours = list(REGISTRY.collect())
    return generate_latest(_Collected([*ours, *kueue_metrics(ours)]))


class _GcTimer:
    def __init__(self) -> None:
        self._started = 0.0
        self._children = [GC_PAUSE.labels(generation=str(n)) for n in range(3)]

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._started = clock.monotonic()
        else:
            self._children[info["generation"]].observe(clock.monotonic() - self._started)


def watch_gc() -> None:
    """Measure the garbage collections of this process; idempotent."""
    if not any(isinstance(callback, _GcTimer) for callback in gc.callbacks):
        gc.callbacks.append(_GcTimer())


async def watch_loop_lag(every_s: float = 0.5) -> None:
    """Measure how late the loop wakes this task, until cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + every_s
        await asyncio.sleep(every_s)
        EVENT_LOOP_LAG.observe(max(0.0, loop.time() - due))


def freeze_heap() -> None:
    """Collect once, and exclude all objects from later collections.

    Call it after the first sync of all caches: a full collection of a large cache blocks the loop
    for tens of milliseconds.
    """
    gc.collect()
    gc.freeze()

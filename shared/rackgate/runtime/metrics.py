"""Prometheus metrics: one registry, one prefix, and what every service measures."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.exposition import CONTENT_TYPE_LATEST
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.registry import Collector

from rackgate.runtime import clock

PREFIX: Final = "rackgate"
CONTENT_TYPE: Final = CONTENT_TYPE_LATEST
REGISTRY: Final = CollectorRegistry()
ProcessCollector(registry=REGISTRY)

SHORT_BUCKETS: Final = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5)


@dataclass(frozen=True, slots=True)
class DeclaredMetric:
    """What a metric of ours is, for the pages and checks that list all of them.

    Attributes:
        name: with prefix, as it is queried.
        kind: counter, gauge or histogram.
    """

    name: str
    kind: str
    labels: tuple[str, ...]
    help_text: str


# Every metric of the modules that were imported, in the order of their declaration.
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
    name: str,
    help_text: str,
    labels: Sequence[str] = (),
    buckets: Sequence[float] = SHORT_BUCKETS,
) -> Histogram:
    """A histogram `rackgate_<name>`; `name` ends in its unit."""
    _register_declaration("histogram", name, help_text, labels)
    return Histogram(name, help_text, labels, namespace=PREFIX, registry=REGISTRY, buckets=buckets)


@dataclass(frozen=True, slots=True)
class ScrapedGauge:
    """A gauge that keeps nothing: its values are computed whenever somebody scrapes.

    So it has no value that is older than what it counts, and none of what is gone.
    """

    name: str
    help_text: str
    labels: tuple[str, ...]

    def family(self, samples: Iterable[tuple[Sequence[str], float]]) -> GaugeMetricFamily:
        """The series of one scrape.

        Args:
            samples: values of the labels in their order, each combination once, and the value.
        """
        family = GaugeMetricFamily(f"{PREFIX}_{self.name}", self.help_text, labels=self.labels)
        for values, value in samples:
            family.add_metric(values, value)
        return family


def scraped_gauge(name: str, help_text: str, labels: Sequence[str] = ()) -> ScrapedGauge:
    """A gauge `rackgate_<name>` for a function that `scraping` registers."""
    _register_declaration("gauge", name, help_text, labels)
    return ScrapedGauge(name, help_text, tuple(labels))


class _ScrapeCollector(Collector):
    def __init__(self, families: Callable[[], Iterable[GaugeMetricFamily]]) -> None:
        self._families = families

    def collect(self) -> Iterable[GaugeMetricFamily]:
        return self._families()


@contextmanager
def scraping(families: Callable[[], Iterable[GaugeMetricFamily]]) -> Iterator[None]:
    """Serve what a function yields beside all other metrics, for as long as this lasts.

    Args:
        families: called in each scrape, in the event loop's thread: quick, and without waiting.
    """
    collector = _ScrapeCollector(families)
    REGISTRY.register(collector)
    try:
        yield
    finally:
        REGISTRY.unregister(collector)


BUILD_INFO: Final = gauge("build_info", "1, with the version that runs.", ("service", "version"))
API_REQUESTS: Final = counter(
    "api_requests_total",
    "Requests to the API server; code is the HTTP status, or 'none' without an answer.",
    ("verb", "resource", "code"),
)
API_DURATION: Final = histogram(
    "api_request_duration_seconds",
    "Time to the whole answer of one request to the API server, without the time it waited for "
    "its turn; watches are not in it.",
    ("verb", "resource"),
    (0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0),
)
WATCH_RESTARTS: Final = counter(
    "watch_restarts_total",
    "Watches started again, by why the last one ended.",
    ("resource", "reason"),
)
WATCH_LAG: Final = gauge(
    "watch_lag_seconds", "Seconds since the watch was last heard of.", ("resource",)
)
LEADER: Final = gauge("leader", "1 while this process holds the lease.", ("lease",))
EVENT_LOOP_LAG: Final = histogram("event_loop_lag_seconds", "How late the event loop woke a timer.")
GC_PAUSE: Final = histogram("gc_pause_seconds", "Pauses of the garbage collector.", ("generation",))
EVENTS_DROPPED: Final = counter(
    "events_dropped_total", "Kubernetes Events that were not written, by why.", ("reason",)
)


def initialize_series(metric: Counter, label: str, values: Sequence[str]) -> Counter:
    """Show a counter of one label with every value it can have from the start, at 0.

    A series that begins at 1 never rose, as far as `increase()` can see: an alert would miss
    the first time.
    """
    for value in values:
        metric.labels(**{label: value})
    return metric


def render() -> bytes:
    """All metrics in the text exposition format."""
    return generate_latest(REGISTRY)


class _GcTimer:
    """Times collections. The collector calls it before and after each one."""

    def __init__(self) -> None:
        self._started = 0.0
        self._children = [GC_PAUSE.labels(generation=str(n)) for n in range(3)]

    def __call__(self, phase: str, info: dict[str, int]) -> None:
        if phase == "start":
            self._started = clock.monotonic()
        else:
            self._children[info["generation"]].observe(clock.monotonic() - self._started)


def watch_gc() -> None:
    """Time garbage collections from now on. Repeating it is harmless."""
    if not any(isinstance(callback, _GcTimer) for callback in gc.callbacks):
        gc.callbacks.append(_GcTimer())


async def watch_loop_lag(every_s: float = 0.5) -> None:
    """Measure for ever how late the loop wakes this task."""
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + every_s
        await asyncio.sleep(every_s)
        EVENT_LOOP_LAG.observe(max(0.0, loop.time() - due))


def freeze_heap() -> int:
    """Collect once, then keep everything alive now out of later collections.

    To be called after the first sync of all caches: one full pass over a large cache stops
    the loop for tens of milliseconds.

    Returns:
        The number of frozen objects.
    """
    gc.collect()
    gc.freeze()
    return gc.get_freeze_count()

"""Requests counted by verb, resource and code, and timed."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from prometheus_client import Counter, Histogram

from rackgate.runtime import metrics

# Verb, resource, code, and seconds until the whole answer was there; None for a watch.
Observer = Callable[[str, str, str, float | None], None]


def count_request(verb: str, resource: str, code: str, spent_s: float | None) -> None:
    """The default observer.

    Counts into `rackgate_api_requests_total` and `rackgate_api_request_duration_seconds`.
    """
    _request_counter(verb, resource, code).inc()
    if spent_s is not None:
        _duration_histogram(verb, resource).observe(spent_s)


@cache  # as bounded as the labels are
def _request_counter(verb: str, resource: str, code: str) -> Counter:
    return metrics.API_REQUESTS.labels(verb=verb, resource=resource, code=code)


@cache
def _duration_histogram(verb: str, resource: str) -> Histogram:
    return metrics.API_DURATION.labels(verb=verb, resource=resource)


def resource_of(path: str) -> str:
    """The resource a path is about, as a bounded label: `pods`, `pods/status`, `other`."""
    parts = path.strip("/").split("/")
    skip = {"api": 2, "apis": 3}.get(parts[0])
    if skip is None:
        return "other"
    rest = parts[skip:]
    if len(rest) > 2 and rest[0] == "namespaces" and rest[2] not in ("status", "finalize"):
        rest = rest[2:]
    if not rest:
        return "other"
    return f"{rest[0]}/{rest[2]}" if len(rest) > 2 else rest[0]

"""A service's metrics over HTTP, and quantiles of its histograms."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path

import aiohttp
import yaml
from prometheus_client.parser import text_string_to_metric_families

Samples = dict[str, float]


def health_port(state: Path, component: str) -> int:
    """The health port of one replica of a playground, for instance of "ungater-0"."""
    document = yaml.safe_load((state / "services" / f"{component}.yaml").read_text())
    return int(document["health"]["port"])


async def scrape(port: int) -> Samples:
    """All samples, labels included in the name: `rackgate_x_bucket{le=0.05}`."""
    async with (
        aiohttp.ClientSession() as http,
        http.get(f"http://127.0.0.1:{port}/metrics") as answer,
    ):
        return parse(await answer.text())


def parse(text: str) -> Samples:
    """Samples of the text format, by name and sorted labels."""
    found: Samples = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = ",".join(f"{key}={value}" for key, value in sorted(sample.labels.items()))
            name = f"{sample.name}{{{labels}}}" if labels else sample.name
            found[name] = sample.value
    return found


def requests(text: str) -> Counter[tuple[str, str]]:
    """Requests that an API server has carried out, by verb and resource, with its subresource.

    Args:
        text: its metrics; those of everything else are not parsed.
    """
    lines = [line for line in text.splitlines() if line.startswith("apiserver_request_total{")]
    found: Counter[tuple[str, str]] = Counter()
    for family in text_string_to_metric_families("\n".join([*lines, ""])):
        for sample in family.samples:
            labels = sample.labels
            if labels["code"].startswith("2"):
                resource = "/".join(filter(None, (labels["resource"], labels["subresource"])))
                found[labels["verb"], resource] += int(sample.value)
    return found


def quantile(before: Mapping[str, float], after: Mapping[str, float], name: str, q: float) -> float:
    """The upper bound of the bucket that holds a quantile of what was observed in between.

    Args:
        name: of a histogram without labels.
        q: 0 to 1.

    Returns:
        Seconds; infinity above the last bucket, NaN without observations.
    """
    head = f"{name}_bucket{{le="
    counts = {
        float(key.removeprefix(head).removesuffix("}")): value - before.get(key, 0.0)
        for key, value in after.items()
        if key.startswith(head)
    }
    total = counts.get(math.inf, 0.0)
    if not total:
        return math.nan
    return min(bound for bound, count in counts.items() if count >= q * total)

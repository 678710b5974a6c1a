"""Percentiles, ratios and the lines a bench prints."""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Sequence
from typing import Any, Final

from bench.measuring.processes import BENCH
from bench.measuring.rounds import Round
from bench.measuring.world import MODES

SERVICES: Final = ("webhook", "assigner", "ungater")
FLOOR: Final = 0.6
AIM: Final = 0.9
MEMORY_AIM_MIB: Final = 400.0
# Above this share of the machine used by foreign work, figures say little.
FOREIGN_SHARE: Final = 0.15


def percentile(values: Sequence[float], share: float) -> float:
    """The smallest value that `share` of all values do not exceed; NaN without values."""
    if not values:
        return math.nan
    ordered = sorted(values)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def spread(values: Sequence[float]) -> dict[str, float]:
    """Minimum, median and maximum."""
    return {"min": min(values), "median": statistics.median(values), "max": max(values)}


def quantiles(values: Sequence[float]) -> dict[str, float]:
    return {
        "p50": percentile(values, 0.5),
        "p90": percentile(values, 0.9),
        "p99": percentile(values, 0.99),
        "max": max(values, default=math.nan),
    }


def of_mode(rounds: Iterable[Round], mode: str) -> list[Round]:
    return [one for one in rounds if one.mode == mode]


def ratios(rounds: Sequence[Round], base: str) -> list[float]:
    """Our rate against a baseline's, round by round."""
    pairs = zip(of_mode(rounds, "rackgate"), of_mode(rounds, base), strict=True)
    return [ours.rate / theirs.rate for ours, theirs in pairs]


def own_cpu_s(one: Round) -> float:
    """CPU seconds of everything that belongs to the bench: control plane, services, itself."""
    return sum(spent for name, spent in one.cpu_s.items() if name != "others")


def work_ratios(rounds: Sequence[Round], base: str) -> list[float]:
    """A baseline's CPU time against ours, round by round: the ratio of rates of a full machine.

    Foreign work changes it far less than it changes the rates.
    """
    pairs = zip(of_mode(rounds, "rackgate"), of_mode(rounds, base), strict=True)
    return [own_cpu_s(theirs) / own_cpu_s(ours) for ours, theirs in pairs]


def pooled(rounds: Iterable[Round], name: str) -> list[float]:
    return [value for one in rounds for value in getattr(one, name)]


def cpu_ms_per_pod(rounds: Sequence[Round]) -> dict[str, float]:
    """CPU milliseconds per bound pod and component: the median over rounds."""
    components = rounds[0].cpu_s
    return {
        name: statistics.median(one.cpu_s[name] / one.pods * 1e3 for one in rounds)
        for name in components
    }


def foreign_share(one: Round) -> float:
    """Share of all work on the machine that was none of this bench's."""
    return one.cpu_s["others"] / max(sum(one.cpu_s.values()), 1e-9)


def summary(rounds: Sequence[Round], memory_mib: dict[str, float]) -> dict[str, Any]:
    """Everything that is printed, as plain data. Times in seconds, memory in MiB."""
    ours = of_mode(rounds, "rackgate")
    return {
        "pods_per_second": {
            mode: spread([one.rate for one in of_mode(rounds, mode)]) for mode in MODES
        },
        "rackgate_against": {
            base: spread(ratios(rounds, base)) for base in MODES if base != "rackgate"
        },
        "work_against": {
            base: spread(work_ratios(rounds, base)) for base in MODES if base != "rackgate"
        },
        "admission_s": quantiles(pooled(ours, "admission_s")),
        "gate_wait_s": quantiles(pooled(ours, "gate_s")),
        "held_s": {
            mode: quantiles(pooled(of_mode(rounds, mode), "held_s"))
            for mode in ("limit", "rackgate")
        },
        "cpu_ms_per_pod": {mode: cpu_ms_per_pod(of_mode(rounds, mode)) for mode in MODES},
        "pss_mib": {**memory_mib, "total": sum(memory_mib.values())},
        "foreign_share": max(foreign_share(one) for one in rounds),
    }


def _row(name: str, cells: Iterable[str]) -> str:
    return f"  {name:26}" + "".join(f"{cell:>12}" for cell in cells)


def _seconds(figures: dict[str, float]) -> list[str]:
    return [f"{figures[key]:.2f}" for key in ("p50", "p90", "p99", "max")]


def table(found: dict[str, Any]) -> list[str]:
    """The summary as lines for people."""
    lines = [_row("pods per second", ("min", "median", "max"))]
    for mode, figures in found["pods_per_second"].items():
        lines.append(_row(f"  {mode}", (f"{value:.1f}" for value in figures.values())))
    for base, figures in found["rackgate_against"].items():
        lines.append(_row(f"  rackgate / {base}", (f"{value:.2f}" for value in figures.values())))
    for base, figures in found["work_against"].items():
        cells = (f"{value:.2f}" for value in figures.values())
        lines.append(_row(f"  {base} CPU / our CPU", cells))
    lines += ["", _row("seconds", ("p50", "p90", "p99", "max"))]
    lines.append(_row("  Job created to admitted", _seconds(found["admission_s"])))
    lines.append(_row("  admitted to pod ungated", _seconds(found["gate_wait_s"])))
    for mode, figures in found["held_s"].items():
        lines.append(_row(f"  pod held, {mode}", _seconds(figures)))
    lines += ["", _row("CPU ms per bound pod", MODES)]
    cpu = found["cpu_ms_per_pod"]
    for name in cpu["plain"]:
        lines.append(_row(f"  {name}", (f"{cpu[mode][name]:.2f}" for mode in MODES)))
    own = [sum(value for key, value in cpu[mode].items() if key != "others") for mode in MODES]
    lines.append(_row("  all but others", (f"{value:.2f}" for value in own)))
    services = sum(cpu["rackgate"][name] for name in SERVICES)
    lines.append(
        f"  services: {services / own[-1]:.0%} of the work; {BENCH} is the measuring process"
    )
    memory = found["pss_mib"]
    lines += ["", _row("PSS after the last run", memory)]
    lines.append(_row("  MiB", (f"{value:.1f}" for value in memory.values())))
    return lines


def evaluate_targets(found: dict[str, Any]) -> tuple[list[str], bool]:
    """Aims met or missed, and whether the floor holds."""
    limit = found["rackgate_against"]["limit"]["median"]
    total = found["pss_mib"]["total"]
    lines = [
        f"rackgate / limit {limit:.2f}: floor {FLOOR} {_met(limit >= FLOOR)},"
        f" aim {AIM} {_met(limit >= AIM)}",
        f"services {total:.0f} MiB: aim < {MEMORY_AIM_MIB:.0f} {_met(total < MEMORY_AIM_MIB)}",
    ]
    if found["leases_lost"]:
        lines.append(f"a service lost its lease {found['leases_lost']} times: it began again then")
    if found["foreign_share"] > FOREIGN_SHARE:
        lines.append(
            f"other programs took up to {found['foreign_share']:.0%} of the work in a round:"
            " trust neither the rates nor small differences of ratios"
        )
    return lines, limit >= FLOOR


def _met(met: bool) -> str:
    return "met" if met else "MISSED"

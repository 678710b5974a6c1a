"""What processes cost: CPU seconds and memory, read from /proc."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final

_TICKS: Final = os.sysconf("SC_CLK_TCK")
BENCH: Final = "bench"


def component_of(name: str) -> str:
    """`assigner-0` -> `assigner`; components of the control plane keep their name."""
    stem, _, number = name.rpartition("-")
    return stem if number.isdigit() else name


def cpu_seconds(pids: Mapping[str, int]) -> dict[str, float]:
    """User and system seconds since each process began, by component, this process included."""
    spent: dict[str, float] = {}
    for name, pid in {**pids, BENCH: os.getpid()}.items():
        # The second field is the program's name in parentheses and may hold spaces.
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        key = component_of(name)
        spent[key] = spent.get(key, 0.0) + (int(fields[11]) + int(fields[12])) / _TICKS
    return spent


def machine_busy_seconds() -> float:
    """Seconds that all cores together have worked since boot, for anybody."""
    first = Path("/proc/stat").read_text().split("\n", 1)[0]
    user, nice, system, _idle, _wait, irq, softirq, steal = (int(n) for n in first.split()[1:9])
    return (user + nice + system + irq + softirq + steal) / _TICKS


def pss_mib(pids: Mapping[str, int]) -> dict[str, float]:
    """Proportional set size of each process in MiB: pages shared with others count in part."""
    found: dict[str, float] = {}
    for name, pid in pids.items():
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                key = component_of(name)
                found[key] = found.get(key, 0.0) + int(line.split()[1]) / 1024
    return found

"""Alerts in Prometheus' own engine: which series make them fire, and which must not."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support import promql

pytestmark = [pytest.mark.integration, pytest.mark.timeout(1200)]
FOLDER = Path(__file__).parent / "alerts"
BUILD_LIMIT_S = 1100  # a first run compiles the engine; its cache is Go's own
AT = "60m"
CASES: list[dict[str, Any]] = yaml.safe_load((FOLDER / "cases.yaml").read_text())


def script(expression: str, case: dict[str, Any]) -> str:
    """One case in the language of Prometheus' tests."""
    series = dict(case.get("series", {}))
    for number in range(case.get("shards", 0)):
        series[f'rackgate_leader{{lease="rackgate-ungater-{number:02}",pod="a"}}'] = "1x60"
    lines = [f"  {name} {values}" for name, values in series.items()]
    asked = " ".join(f"count({expression}) or vector(0)".split())
    return "\n".join(
        ["load 1m", *lines, "", f"eval instant at {AT} {asked}", f"  {{}} {case['fires']}"]
    )


def test_every_alert_has_a_case_that_fires_and_all_but_one_a_case_that_does_not() -> None:
    assert [entry["alert"] for entry in CASES] == [alert["alert"] for alert in promql.alerts()]
    for entry in CASES:
        assert any(case["fires"] for case in entry["cases"]), entry["alert"]
    quiet = [e["alert"] for e in CASES if not any(case["fires"] == 0 for case in e["cases"])]
    assert quiet == ["RackgateReplicaDown"]  # its only case has a series that must stay quiet


@pytest.mark.requirement("OPS-09")
def test_alerts_fire_for_failure_and_for_nothing_else(tmp_path: Path) -> None:
    expressions = {alert["alert"]: alert["expr"] for alert in promql.alerts()}
    for entry in CASES:
        for case in entry["cases"]:
            name = f"{entry['alert']}: {case['says']}".replace("/", " ")
            (tmp_path / f"{name}.test").write_text(script(expressions[entry["alert"]], case) + "\n")
    done = subprocess.run(
        [shutil.which("go") or "go", "test", "-count=1", "-vet=off", "."],
        cwd=FOLDER,
        env={**os.environ, "RACKGATE_CASES": str(tmp_path), "CGO_ENABLED": "0", "GOWORK": "off"},
        capture_output=True,
        text=True,
        timeout=BUILD_LIMIT_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-6000:] + done.stderr[-2000:]

"""Whether a role grants exactly what is used is judged by records; without them it fails."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.support.rights import (
    ROOT,
    SERVICES,
    USER,
    Record,
    RecordsError,
    audited_requests,
    granted,
    recorded,
)


def entry(service: str, verb: str, resource: str, minute: int = 0, **more: Any) -> str:
    reference = {"resource": resource, "apiGroup": "batch"}
    found = {
        "stage": "ResponseComplete",
        "verb": verb,
        "requestURI": f"/apis/batch/v1/{resource}",
        "requestReceivedTimestamp": f"2026-08-01T12:{minute:02}:00.123456Z",
        "user": {"username": USER.format(service)},
        "objectRef": reference | more.pop("reference", {}),
        **more,
    }
    return json.dumps(found) + "\n"


def test_uses_and_rejections_are_read_from_a_log_that_is_still_written(tmp_path: Path) -> None:
    log = tmp_path / "audit.log"
    forbidden = {"authorization.k8s.io/decision": "forbid"}
    log.write_text(
        entry("assigner", "get", "jobs")
        + entry("assigner", "patch", "jobs", reference={"subresource": "status"})
        + entry("assigner", "list", "jobs", stage="RequestReceived")
        + entry("webhook", "delete", "jobs", annotations=forbidden)
        + entry("somebody", "delete", "jobs")
        # Rejected because the API server does not know who asks, here for the account of a service.
        + entry("nobody", "get", "jobs", user={}, requestURI=f"/{USER.format('webhook')}")
        + entry("ungater", "watch", "jobs", stage="ResponseStarted")
        + entry("ungater", "get", "jobs")[:-1]
    )
    found = audited_requests(log)
    assert found["assigner"].used == {("get", "batch", "jobs"), ("patch", "batch", "jobs/status")}
    assert found["webhook"].refused == ["delete /apis/batch/v1/jobs"]
    assert found["ungater"].used == {("watch", "batch", "jobs")}
    assert [found[service].refused for service in ("assigner", "ungater")] == [[], []]


def test_refusals_of_an_api_server_that_has_not_read_its_roles_do_not_count(tmp_path: Path) -> None:
    log = tmp_path / "audit.log"
    refused = {"annotations": {"authorization.k8s.io/decision": "forbid"}}
    log.write_text(
        entry("assigner", "list", "jobs")
        + entry("assigner", "list", "jobs", 5, **refused)
        + entry("ungater", "get", "leases", 5, **refused)
        + entry("ungater", "delete", "jobs", 7, **refused)
        + entry("assigner", "list", "jobs", 8)
    )
    found = audited_requests(log)
    assert found["assigner"].refused == []
    assert found["ungater"].refused == ["delete /apis/batch/v1/jobs"]


def test_every_service_has_rights() -> None:
    assert all(granted()[service] for service in SERVICES)


def test_the_records_of_a_run_count_together(tmp_path: Path) -> None:
    for name, verb in (("gw0", "get"), ("gw1", "list")):
        log = tmp_path / "audit.log"
        log.write_text(entry("assigner", verb, "jobs"))
        Record.begin(tmp_path / "records", name).write(audited_requests(log))
    used = recorded(tmp_path / "records")
    assert used["assigner"] == {("get", "batch", "jobs"), ("list", "batch", "jobs")}
    assert used["webhook"] == set()


def test_without_all_records_nothing_is_judged(tmp_path: Path) -> None:
    with pytest.raises(RecordsError, match="--audit-records"):
        recorded(None)
    with pytest.raises(RecordsError, match="has no record"):
        recorded(tmp_path / "never-made")
    log = tmp_path / "audit.log"
    log.write_text("")
    Record.begin(tmp_path / "records", "gw0").write(audited_requests(log))
    Record.begin(tmp_path / "records", "gw1")
    with pytest.raises(RecordsError, match=r"gw1\.json is empty"):
        recorded(tmp_path / "records")
    with pytest.raises(RecordsError, match="is there already"):
        Record.begin(tmp_path / "records", "gw0")


def test_make_judges_the_whole_run_by_the_records_of_its_tests() -> None:
    done = subprocess.run(
        ["make", "-n", "integration"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    runs = [line.split() for line in done.stdout.splitlines() if "-m pytest" in line]
    folders = [run[run.index("--audit-records") + 1] for run in runs]
    assert [run[-1] for run in runs] == ["tests/integration", "tests/integration/whole_run.py"]
    assert len(set(folders)) == 1
    assert f"rm -rf {folders[0]}" in done.stdout

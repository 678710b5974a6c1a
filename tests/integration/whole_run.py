"""What only a run of all integration tests can show; judged after it, over all its processes.

Named apart from `test_*.py`: a run of the folder, or of a part of it, leaves this file out.
`make integration` runs it last, with the records that the tests before it left.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.rights import SERVICES, UNSEEN, Right, granted, recorded

pytestmark = pytest.mark.integration


@pytest.fixture(scope="module")
def used(request: pytest.FixtureRequest) -> dict[str, set[Right]]:
    """Rights that the run used; without its records every test here fails."""
    folder = request.config.getoption("audit_records")
    return recorded(Path(folder) if folder else None)


@pytest.mark.parametrize("service", SERVICES)
def test_every_use_of_a_right_is_admitted_by_a_role(
    used: dict[str, set[Right]], service: str
) -> None:
    assert sorted(used[service] - granted()[service]) == []


@pytest.mark.parametrize("service", SERVICES)
def test_every_right_of_a_service_is_used(used: dict[str, set[Right]], service: str) -> None:
    rights, unseen = granted()[service], set(UNSEEN[service])
    assert sorted(rights - used[service] - unseen) == []
    assert unseen <= rights

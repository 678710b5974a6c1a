"""Settings that all tests share."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.database import MultiplexedDatabase

from tests.prove.stored import STORED

# A busy machine is no reason to fail: examples have no deadline. A landing is judged on the same
# examples every time, then on the stored ones (`tests/prove/stored.py`), which Hypothesis does not
# read where it draws the same every time. Developers' runs try the stored ones and look for new.
OWN = settings.get_profile("default").database
settings.register_profile(
    "dev",
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
    database=STORED if OWN is None else MultiplexedDatabase(OWN, STORED),
)
settings.register_profile(
    "ci", settings.get_profile("dev"), database=None, derandomize=True, print_blob=True
)
settings.register_profile(
    "stored",
    settings.get_profile("dev"),
    database=STORED,
    phases=(Phase.explicit, Phase.reuse),
)
settings.load_profile("ci" if os.environ.get("CI") else "dev")


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Tell the stored examples which test asks for its own."""
    STORED.test = item.nodeid

"""Settings that only make sense together."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from rackgate.runtime.settings import ConnectionSettings
from rackgate_ungater.settings import UngaterConfiguration, UngatingSettings


@pytest.mark.requirement("UNG-17", "OPS-11")
@pytest.mark.field_note("U10")
def test_ungating_leaves_connections_to_leases_and_watches() -> None:
    UngaterConfiguration()
    wide = UngatingSettings(concurrency=200)
    with pytest.raises(ValidationError, match=r"connection\.connections of at least 232"):
        UngaterConfiguration(ungating=wide)
    UngaterConfiguration(ungating=wide, connection=ConnectionSettings(connections=232))

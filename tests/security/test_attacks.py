"""Every attack of the threat model, in every state of the control plane: `make redteam`.

`-k` chooses attacks, `REDTEAM_PLAYGROUND` a playground that runs already.
"""

from __future__ import annotations

import pytest

from tests.security.catalog import Phase, load
from tests.security.judge import Outcome

# The first test of a phase runs them all, in its fixture; campaigns have limits of their own.
pytestmark = pytest.mark.timeout(60, func_only=True)

TRIED = [(phase, attack) for phase in Phase for attack in load() if attack.fits(phase)]
IDS = [f"{phase}-{attack.id}" for phase, attack in TRIED]


@pytest.mark.parametrize("outcome", TRIED, ids=IDS, indirect=True)
def test_there_is_no_way_around_quota(outcome: Outcome) -> None:
    assert not outcome.problems, f"{outcome.line}\n{outcome.evidence}"


def test_the_threat_model_has_sixty_attacks_and_more() -> None:
    assert len({attack.id for attack in load()}) >= 60

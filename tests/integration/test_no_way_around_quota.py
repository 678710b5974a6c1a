"""The first attacks of the threat model, side by side; `make redteam` tries all of them.

Each has namespaces and a queue of its own. What an attack does and who judges it: `tests/security`.
"""

from __future__ import annotations

import asyncio

import pytest

from tests.security import campaign
from tests.security.catalog import Attack, Phase, load
from tests.security.judge import Outcome
from tests.support.playground import Playground

pytestmark = [pytest.mark.integration, pytest.mark.timeout(60, func_only=True)]

TRIED = [attack for attack in load() if attack.ci]
# What no webhook may be needed for.
WITHOUT_WEBHOOKS = [attack for attack in TRIED if attack.group in ("owners", "pods")]


@pytest.fixture(scope="module")
def with_webhooks(playground: Playground) -> dict[str, Outcome]:
    return asyncio.run(campaign.run(playground, TRIED, Phase.UP, at_once=len(TRIED)))


@pytest.fixture(scope="module")
def without_webhooks(
    playground: Playground,
    with_webhooks: dict[str, Outcome],  # not at the same time
) -> dict[str, Outcome]:
    playground.run("stop", "webhook")
    try:
        return asyncio.run(
            campaign.run(playground, WITHOUT_WEBHOOKS, Phase.DOWN, at_once=len(WITHOUT_WEBHOOKS))
        )
    finally:
        playground.run("start", "webhook")


@pytest.mark.parametrize("attack", TRIED, ids=lambda attack: attack.id)
def test_there_is_no_way_around_quota(with_webhooks: dict[str, Outcome], attack: Attack) -> None:
    outcome = with_webhooks[attack.id]
    assert not outcome.problems, f"{outcome.line}\n{outcome.evidence}"


@pytest.mark.parametrize("attack", WITHOUT_WEBHOOKS, ids=lambda attack: attack.id)
def test_nor_while_no_webhook_answers(without_webhooks: dict[str, Outcome], attack: Attack) -> None:
    outcome = without_webhooks[attack.id]
    assert not outcome.problems, f"{outcome.line}\n{outcome.evidence}"

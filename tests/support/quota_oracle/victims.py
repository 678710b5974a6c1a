"""Whom a head evicts."""

from __future__ import annotations

from tests.support.quota_oracle.classical import find_classical
from tests.support.quota_oracle.fair import find_fair
from tests.support.quota_oracle.plan import Victim
from tests.support.quota_oracle.preemption import Question


def find_victims(question: Question) -> list[Victim]:
    """No one, if there is no way."""
    return find_fair(question) if question.world.fair else find_classical(question)

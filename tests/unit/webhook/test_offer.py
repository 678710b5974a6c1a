"""When a pair that somebody else issued replaces the one in use, and who is trusted meanwhile."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from rackgate.certificates.certificates import issue, read_bundle
from rackgate.certificates.provided import (
    MAX_OTHERS,
    ProvidedPair,
    TrustState,
    may_switch,
    merge_bundle,
    read_provided_pair,
)
from rackgate.certificates.tls import trust_failure

pytestmark = pytest.mark.requirement("HOOK-13")

NOW = datetime.now(UTC).replace(microsecond=0)
DAY = timedelta(days=1)
SETTLE = timedelta(seconds=30)
SETTLED = TrustState(offered=True, served=True, any=True, since=SETTLE)


def switches(trust: TrustState, served_until: datetime | None = NOW + DAY) -> bool:
    return may_switch(trust, served_until, now=NOW, settle=SETTLE)


def test_the_new_pair_waits_until_its_authority_has_settled() -> None:
    assert switches(SETTLED)
    assert not switches(TrustState(offered=True, served=True, any=True, since=SETTLE / 2))
    assert not switches(TrustState(offered=False, served=True, any=True))


@pytest.mark.parametrize("served_until", [None, NOW, NOW - DAY])
def test_without_a_valid_pair_in_use_there_is_nothing_to_wait_for(
    served_until: datetime | None,
) -> None:
    assert switches(TrustState(offered=False, served=True, any=True), served_until)


def test_where_no_one_calls_or_no_one_trusts_the_old_pair_nothing_is_waited_for() -> None:
    assert switches(TrustState(offered=False, served=False, any=False))
    assert switches(TrustState(offered=False, served=False, any=True))


def bundles(count: int, life: timedelta = DAY) -> list[bytes]:
    return [
        issue(["x"], validity=life, now=NOW, owner="rackgate-webhook").authority
        for _ in range(count)
    ]


def test_old_authorities_stay_beside_the_offered_one_while_they_are_kept() -> None:
    offered, old = bundles(2)
    offer = ProvidedPair("", authorities=offered)
    both = set(read_bundle(offered + old))
    assert set(read_bundle(merge_bundle(offer, [old, old], NOW, keep=True))) == both
    assert merge_bundle(offer, [old], NOW, keep=False) == offered
    assert merge_bundle(offer, [old], NOW + 2 * DAY, keep=True) == offered
    assert merge_bundle(offer, [b"nonsense", b""], NOW, keep=True) == offered


def test_few_old_authorities_are_kept_however_many_there_were() -> None:
    offered, *old = bundles(MAX_OTHERS + 4)
    kept = merge_bundle(ProvidedPair("", authorities=offered), [b"".join(old)], NOW, keep=True)
    assert len(read_bundle(kept)) == 1 + MAX_OTHERS
    assert kept.startswith(offered)


@pytest.mark.parametrize(
    ("name", "problem"),
    [
        ("a.example", ""),
        ("any.wild.example", ""),
        ("deep.any.wild.example", "its certificate is for"),
        ("10.0.0.1", ""),
        ("b.example", "its certificate is for"),
    ],
)
def test_names_are_matched_as_callers_do(name: str, problem: str) -> None:
    pair = issue(
        ["a.example", "*.wild.example", "10.0.0.1"], validity=DAY, now=NOW, owner="rackgate-webhook"
    )
    found = read_provided_pair({"tls.crt": pair.certificate, "tls.key": pair.key}, [name], NOW)
    assert found.problem.startswith(problem)
    assert bool(found.problem) == bool(problem)


def test_mistrust_is_reported_as_tls_tells_it() -> None:
    pair, other = (
        issue(["a.example"], validity=DAY, now=NOW, owner="rackgate-webhook") for _ in range(2)
    )
    ask = (pair.certificate, pair.key)
    assert trust_failure(*ask, "a.example", pair.authority) == ""
    assert trust_failure(*ask, "a.example", other.authority + pair.authority) == ""
    assert "unable to get local issuer" in trust_failure(*ask, "a.example", other.authority)
    assert "not valid for 'b.example'" in trust_failure(*ask, "b.example", pair.authority)
    assert trust_failure(*ask, "a.example", b"") == "no CA bundle"
    assert trust_failure(*ask, "a.example", b"nonsense") != ""
    assert trust_failure(other.certificate, pair.key, "a.example", pair.authority) != ""

"""Rotation: no moment in which bundle and served certificate do not fit."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from rackgate.certificates.certificates import (
    IssuedPair,
    ServingPair,
    issue,
    read_bundle,
    read_serving_pair,
)
from rackgate.certificates.registrations import bundle_patch, trusted_authorities
from rackgate.certificates.rotation import (
    MAX_AUTHORITIES,
    RotationRules,
    RotationStep,
    TlsPairs,
    TlsSecret,
    names_to_issue,
    next_step,
    prune_expired,
    read_secret,
    secret_data,
    switch_pair,
    with_issued_pair,
    with_next_pair,
)

pytestmark = pytest.mark.requirement("HOOK-13")

NOW = datetime(2026, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)
NAMES = frozenset({"localhost", "127.0.0.1"})
RULES = RotationRules(NAMES, renew_before=30 * DAY)


def facts(days_left: float, names: frozenset[str] = NAMES, authority: str = "a") -> ServingPair:
    return ServingPair(authority, names, NOW - 335 * DAY, NOW + days_left * DAY)


def step(pairs: TlsPairs, propagated: frozenset[str] = frozenset()) -> RotationStep:
    return next_step(pairs, RULES, now=NOW, propagated=propagated)


def test_an_empty_or_expired_secret_is_issued_at_once() -> None:
    assert step(TlsPairs()) is RotationStep.ISSUE
    assert step(TlsPairs(facts(-1))) is RotationStep.ISSUE


def test_a_fresh_certificate_is_kept() -> None:
    assert step(TlsPairs(facts(31), authorities={"a": NOW + DAY})) is RotationStep.KEEP


def test_the_next_pair_is_published_before_expiry() -> None:
    assert step(TlsPairs(facts(30))) is RotationStep.PUBLISH


def test_a_missing_name_is_published_as_well() -> None:
    assert step(TlsPairs(facts(300, frozenset({"localhost"})))) is RotationStep.PUBLISH


def test_the_switch_waits_until_the_new_authority_has_settled_everywhere() -> None:
    pairs = TlsPairs(facts(20), facts(365, authority="b"))
    assert step(pairs, frozenset("a")) is RotationStep.KEEP
    assert step(pairs, frozenset("ab")) is RotationStep.SWITCH


def test_a_published_pair_is_used_at_once_when_the_one_in_use_has_expired() -> None:
    pairs = TlsPairs(facts(-1), facts(365, authority="b"))
    assert step(pairs) is RotationStep.SWITCH


def test_a_published_pair_that_no_longer_fits_is_replaced() -> None:
    other = facts(365, frozenset({"elsewhere"}), "b")
    assert step(TlsPairs(facts(20), other)) is RotationStep.PUBLISH


def test_expired_authorities_are_pruned() -> None:
    pairs = TlsPairs(facts(300), authorities={"a": NOW + 300 * DAY, "old": NOW})
    assert step(pairs) is RotationStep.PRUNE


def test_a_renewal_longer_than_the_life_does_not_rotate_for_ever() -> None:
    fresh = ServingPair("a", NAMES, NOW, NOW + DAY)
    assert next_step(TlsPairs(fresh), RULES, now=NOW, propagated=frozenset()) is RotationStep.KEEP


@pytest.mark.field_note("W5")
def test_replicas_of_two_configurations_agree_on_the_union_of_their_names() -> None:
    old = TlsPairs(facts(300, frozenset({"old.svc"})))
    names = names_to_issue(old, RULES)
    assert names == NAMES | {"old.svc"}
    both = TlsPairs(facts(300, names))
    for rules in (RULES, replace(RULES, names=frozenset({"old.svc"}))):
        assert next_step(both, rules, now=NOW, propagated=frozenset()) is RotationStep.KEEP


def test_names_of_the_past_go_with_an_ordinary_renewal() -> None:
    assert names_to_issue(TlsPairs(facts(10, NAMES | {"old.svc"})), RULES) == NAMES


def made(at: datetime = NOW, names: frozenset[str] = NAMES) -> IssuedPair:
    return issue(names, validity=365 * DAY, now=at, owner="rackgate-webhook")


def test_a_pair_is_signed_by_its_own_authority_and_by_no_other() -> None:
    pair, other = made(), made()
    own = read_serving_pair(pair.certificate, pair.key, read_bundle(pair.authority))
    assert own is not None
    assert own.names == NAMES
    assert own.not_after == NOW + 365 * DAY
    assert read_serving_pair(pair.certificate, pair.key, read_bundle(other.authority)) is None
    assert read_serving_pair(pair.certificate, other.key, read_bundle(pair.authority)) is None


@pytest.mark.parametrize("broken", [b"", b"x", b"-----BEGIN CERTIFICATE-----\n"])
def test_broken_pem_is_no_pair(broken: bytes) -> None:
    pair = made()
    bundle = read_bundle(pair.authority)
    assert read_serving_pair(broken, pair.key, bundle) is None
    assert read_serving_pair(pair.certificate, broken, bundle) is None
    assert read_bundle(broken) == {}


def test_a_certificate_needs_a_name() -> None:
    with pytest.raises(ValueError, match="at least one DNS name or IP address"):
        issue([], validity=DAY, now=NOW, owner="rackgate-webhook")


@pytest.mark.field_note("W5")
def test_a_whole_rotation_always_trusts_what_is_served() -> None:
    secret = with_issued_pair(TlsSecret(), made(), NOW)
    first = secret.pairs.serving
    assert first is not None
    secret = with_next_pair(secret, made(NOW + 340 * DAY), NOW + 340 * DAY)
    assert secret.pairs.serving == first
    assert secret.pairs.upcoming is not None
    assert len(secret.pairs.authorities) == 2
    upcoming = secret.pairs.upcoming
    secret = switch_pair(secret)
    assert secret.pairs.serving == upcoming
    assert secret.pairs.upcoming is None
    assert first.authority in secret.pairs.authorities
    secret = prune_expired(secret, NOW + 366 * DAY)
    assert set(secret.pairs.authorities) == {upcoming.authority}


def test_the_bundle_never_drops_the_authority_in_use() -> None:
    secret = with_issued_pair(TlsSecret(), made(), NOW)
    for _ in range(MAX_AUTHORITIES + 2):
        secret = with_next_pair(secret, made(), NOW)
        assert secret.pairs.serving is not None
    assert len(read_bundle(secret.bundle)) == MAX_AUTHORITIES


def test_a_secret_survives_its_wire_form_and_ignores_what_is_no_base64() -> None:
    secret = with_next_pair(with_issued_pair(TlsSecret(), made(), NOW), made(), NOW)
    assert read_secret(secret_data(secret), NOW) == secret
    assert read_secret({"tls.crt": "%%%"}, None) == TlsSecret()


def configuration(*bundles: str | None) -> dict[str, object]:
    webhooks = [
        {"clientConfig": {"url": "https://x"} | ({"caBundle": bundle} if bundle else {})}
        for bundle in bundles
    ]
    return {"metadata": {"resourceVersion": "7"}, "webhooks": webhooks}


def test_the_bundle_is_written_only_where_it_differs() -> None:
    bundle = with_issued_pair(TlsSecret(), made(), NOW).bundle
    operations = bundle_patch(configuration(None, "eA=="), bundle)
    assert operations[0] == {"op": "test", "path": "/metadata/resourceVersion", "value": "7"}
    assert [op["path"] for op in operations[1:]] == [
        f"/webhooks/{index}/clientConfig/caBundle" for index in (0, 1)
    ]
    wanted = operations[1]["value"]
    assert bundle_patch(configuration(wanted, wanted), bundle) == []


def test_a_registration_carries_what_all_of_its_webhooks_carry() -> None:
    pair = with_issued_pair(TlsSecret(), made(), NOW)
    wanted = bundle_patch(configuration(None), pair.bundle)[1]["value"]
    assert trusted_authorities(configuration(wanted, wanted)) == set(pair.pairs.authorities)
    assert trusted_authorities(configuration(wanted, None)) == frozenset()
    assert trusted_authorities(configuration()) == frozenset()

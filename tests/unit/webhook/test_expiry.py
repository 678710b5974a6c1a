"""Rotation: no moment in which bundle and served certificate do not fit."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta

import pytest

from rackgate_webhook.certificates.ca_bundle import bundle_patch, carried_authorities
from rackgate_webhook.certificates.certificates import Issued, issue, read_bundle, serving_facts
from rackgate_webhook.certificates.rotation_rules import (
    Holding,
    RotationRules,
    ServingFacts,
    Step,
    names_to_issue,
    next_step,
)
from rackgate_webhook.certificates.secret import (
    MAX_AUTHORITIES,
    TlsSecret,
    issued,
    pruned,
    published,
    read_secret,
    secret_data,
    switched,
)

pytestmark = pytest.mark.requirement("HOOK-13")

NOW = datetime(2026, 1, 1, tzinfo=UTC)
DAY = timedelta(days=1)
NAMES = frozenset({"localhost", "127.0.0.1"})
RULES = RotationRules(NAMES, renew_before=30 * DAY)


def facts(days_left: float, names: frozenset[str] = NAMES, authority: str = "a") -> ServingFacts:
    return ServingFacts(authority, names, NOW - 335 * DAY, NOW + days_left * DAY)


def step(holding: Holding, settled: frozenset[str] = frozenset()) -> Step:
    return next_step(holding, RULES, now=NOW, settled=settled)


def test_an_empty_or_expired_secret_is_issued_at_once() -> None:
    assert step(Holding()) is Step.ISSUE
    assert step(Holding(facts(-1))) is Step.ISSUE


def test_a_fresh_certificate_is_kept() -> None:
    assert step(Holding(facts(31), authorities={"a": NOW + DAY})) is Step.KEEP


def test_the_next_pair_is_published_before_expiry() -> None:
    assert step(Holding(facts(30))) is Step.PUBLISH


def test_a_missing_name_is_published_as_well() -> None:
    assert step(Holding(facts(300, frozenset({"localhost"})))) is Step.PUBLISH


def test_the_switch_waits_until_the_new_authority_has_settled_everywhere() -> None:
    holding = Holding(facts(20), facts(365, authority="b"))
    assert step(holding, frozenset("a")) is Step.KEEP
    assert step(holding, frozenset("ab")) is Step.SWITCH


def test_a_published_pair_is_used_at_once_when_the_one_in_use_has_expired() -> None:
    holding = Holding(facts(-1), facts(365, authority="b"))
    assert step(holding) is Step.SWITCH


def test_a_published_pair_that_no_longer_fits_is_replaced() -> None:
    other = facts(365, frozenset({"elsewhere"}), "b")
    assert step(Holding(facts(20), other)) is Step.PUBLISH


def test_expired_authorities_are_pruned() -> None:
    holding = Holding(facts(300), authorities={"a": NOW + 300 * DAY, "old": NOW})
    assert step(holding) is Step.PRUNE


def test_a_renewal_longer_than_the_life_does_not_rotate_for_ever() -> None:
    fresh = ServingFacts("a", NAMES, NOW, NOW + DAY)
    assert next_step(Holding(fresh), RULES, now=NOW, settled=frozenset()) is Step.KEEP


@pytest.mark.field_note("W5")
def test_replicas_of_two_configurations_agree_on_the_union_of_their_names() -> None:
    old = Holding(facts(300, frozenset({"old.svc"})))
    names = names_to_issue(old, RULES)
    assert names == NAMES | {"old.svc"}
    both = Holding(facts(300, names))
    for rules in (RULES, replace(RULES, names=frozenset({"old.svc"}))):
        assert next_step(both, rules, now=NOW, settled=frozenset()) is Step.KEEP


def test_names_of_the_past_go_with_an_ordinary_renewal() -> None:
    assert names_to_issue(Holding(facts(10, NAMES | {"old.svc"})), RULES) == NAMES


def made(at: datetime = NOW, names: frozenset[str] = NAMES) -> Issued:
    return issue(names, validity=365 * DAY, now=at)


def test_a_pair_is_signed_by_its_own_authority_and_by_no_other() -> None:
    pair, other = made(), made()
    own = serving_facts(pair.certificate, pair.key, read_bundle(pair.authority))
    assert own is not None
    assert own.names == NAMES
    assert own.not_after == NOW + 365 * DAY
    assert serving_facts(pair.certificate, pair.key, read_bundle(other.authority)) is None
    assert serving_facts(pair.certificate, other.key, read_bundle(pair.authority)) is None


@pytest.mark.parametrize("broken", [b"", b"x", b"-----BEGIN CERTIFICATE-----\n"])
def test_broken_pem_is_no_pair(broken: bytes) -> None:
    pair = made()
    bundle = read_bundle(pair.authority)
    assert serving_facts(broken, pair.key, bundle) is None
    assert serving_facts(pair.certificate, broken, bundle) is None
    assert read_bundle(broken) == {}


def test_a_certificate_needs_a_name() -> None:
    with pytest.raises(ValueError, match="at least one DNS name or IP address"):
        issue([], validity=DAY, now=NOW)


@pytest.mark.field_note("W5")
def test_a_whole_rotation_always_trusts_what_is_served() -> None:
    secret = issued(TlsSecret(), made(), NOW)
    first = secret.holding.serving
    assert first is not None
    secret = published(secret, made(NOW + 340 * DAY), NOW + 340 * DAY)
    assert secret.holding.serving == first
    assert secret.holding.upcoming is not None
    assert len(secret.holding.authorities) == 2
    upcoming = secret.holding.upcoming
    secret = switched(secret)
    assert secret.holding.serving == upcoming
    assert secret.holding.upcoming is None
    assert first.authority in secret.holding.authorities
    secret = pruned(secret, NOW + 366 * DAY)
    assert set(secret.holding.authorities) == {upcoming.authority}


def test_the_bundle_never_drops_the_authority_in_use() -> None:
    secret = issued(TlsSecret(), made(), NOW)
    for _ in range(MAX_AUTHORITIES + 2):
        secret = published(secret, made(), NOW)
        assert secret.holding.serving is not None
    assert len(read_bundle(secret.bundle)) == MAX_AUTHORITIES


def test_a_secret_survives_its_wire_form_and_ignores_what_is_no_base64() -> None:
    secret = published(issued(TlsSecret(), made(), NOW), made(), NOW)
    assert read_secret(secret_data(secret), NOW) == secret
    assert read_secret({"tls.crt": "%%%"}, None) == TlsSecret()


def configuration(*bundles: str | None) -> dict[str, object]:
    webhooks = [
        {"clientConfig": {"url": "https://x"} | ({"caBundle": bundle} if bundle else {})}
        for bundle in bundles
    ]
    return {"metadata": {"resourceVersion": "7"}, "webhooks": webhooks}


def test_the_bundle_is_written_only_where_it_differs() -> None:
    bundle = issued(TlsSecret(), made(), NOW).bundle
    operations = bundle_patch(configuration(None, "eA=="), bundle)
    assert operations[0] == {"op": "test", "path": "/metadata/resourceVersion", "value": "7"}
    assert [op["path"] for op in operations[1:]] == [
        f"/webhooks/{index}/clientConfig/caBundle" for index in (0, 1)
    ]
    wanted = operations[1]["value"]
    assert bundle_patch(configuration(wanted, wanted), bundle) == []


def test_a_registration_carries_what_all_of_its_webhooks_carry() -> None:
    pair = issued(TlsSecret(), made(), NOW)
    wanted = bundle_patch(configuration(None), pair.bundle)[1]["value"]
    assert carried_authorities(configuration(wanted, wanted)) == set(pair.holding.authorities)
    assert carried_authorities(configuration(wanted, None)) == frozenset()
    assert carried_authorities(configuration()) == frozenset()

"""What of a pod's spec makes it another one for scheduling, and how two specs differ in it.

Requests, templates of resource claims, and the sizes of emptyDir volumes count. A template of an
eqGroup may be partial: requests, claims or volumes that it leaves out are not compared.

Source: GNG-43.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from rackgate.gang.levels import Object
from rackgate.gang.pod_templates import requests_of
from rackgate.resources.quantity import QuantityError, exact_milli, format_amount


@dataclass(frozen=True, slots=True)
class PodSpecShape:
    """One shape. None: the template does not say.

    Attributes:
        requests: cpu in millicores, else base units.
        claims: templates of resource claims, and claims, by name.
        folders: size limits of emptyDir volumes in thousandths of a byte, by volume; -1 without
            one.
    """

    requests: Mapping[str, int] | None = None
    claims: frozenset[str] | None = None
    folders: Mapping[str, int] | None = None


@dataclass(frozen=True, slots=True)
class ExpectedShape:
    """The shape of the pods of one eqGroup.

    Attributes:
        usual: of `template`.
        largest: of `maxTemplate`; None: as `usual`.
    """

    usual: PodSpecShape
    largest: PodSpecShape | None = None


def pod_shape(template: Object) -> PodSpecShape | None:
    """The shape of a pod template; None if it cannot be read."""
    spec = template.get("spec") or {}
    try:
        requests = dict(requests_of(template))
        return PodSpecShape(
            {name: amount for name, amount in requests.items() if amount} or None,
            _claims(spec["resourceClaims"]) if spec.get("resourceClaims") else None,
            _folders(spec["volumes"]) if spec.get("volumes") else None,
        )
    except (msgspec.ValidationError, QuantityError, AttributeError, TypeError, KeyError):
        return None


def expected_shape(equal_group: Object) -> ExpectedShape | None:
    """The shape that a canonical eqGroup says; None if it says none."""
    usual = pod_shape(equal_group["template"]) if "template" in equal_group else None
    if usual is None:
        return None
    largest = equal_group.get("maxTemplate")
    return ExpectedShape(usual, None if largest is None else pod_shape(largest))


def difference(expected: ExpectedShape, found: PodSpecShape) -> str:
    """How a pod differs from its eqGroup, for people; "" if it does not.

    With a `maxTemplate`, amounts up to those of it are fine. Claims must be the same ones.
    """
    most = expected.largest
    texts = list(
        _amounts(
            "requests ",
            expected.usual.requests,
            None if most is None else most.requests or {},
            found.requests or {},
        )
    )
    claims = expected.usual.claims
    if claims is not None and claims != found.claims:
        texts.append(f"claims {_names(found.claims or ())}, not {_names(claims)}")
    texts += _amounts(
        "emptyDir ",
        expected.usual.folders,
        None if most is None else most.folders or {},
        found.folders or {},
        sizes=True,
    )
    return "; ".join(texts)


def _amounts(
    what: str,
    usual: Mapping[str, int] | None,
    most: Mapping[str, int] | None,
    found: Mapping[str, int],
    *,
    sizes: bool = False,
) -> Iterable[str]:
    if usual is None:
        return
    for name in sorted({*usual, *found}):
        has, wanted = found.get(name, 0), usual.get(name, 0)
        limit = wanted if most is None else max(wanted, most.get(name, 0))
        if has == wanted or (most is not None and 0 <= has <= limit):
            continue
        bound = "at most " if most is not None else ""
        yield f"{what}{name} {_text(name, has, sizes)}, not {bound}{_text(name, limit, sizes)}"


def _text(name: str, amount: int, sizes: bool) -> str:
    if not sizes:
        return format_amount(name, amount)
    return "without a limit" if amount < 0 else format_amount("memory", amount // 1000)


def _names(found: Iterable[str]) -> str:
    return ", ".join(sorted(found)) or "none"


def _claims(claims: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    return frozenset(
        str(claim.get("resourceClaimTemplateName") or claim.get("resourceClaimName") or "")
        for claim in claims
    )


def _folders(volumes: Iterable[Mapping[str, Any]]) -> dict[str, int]:
    found = {str(one.get("name", "")): one["emptyDir"] for one in volumes if "emptyDir" in one}
    return {
        name: exact_milli(folder["sizeLimit"]) if (folder or {}).get("sizeLimit") else -1
        for name, folder in found.items()
    }

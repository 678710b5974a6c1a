"""From the bytes of a request to the bytes of its answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import msgspec

from rackgate.jobframework.errors import MalformedError
from rackgate_webhook.admission.review import (
    Review,
    ReviewError,
    Verdict,
    decode_review,
    encode_verdict,
)

Decide = Callable[[Review], Verdict]
# Decides after it has read something.
Asking = Callable[[Review], Awaitable[Verdict]]

_ODD: Final = (MalformedError, msgspec.ValidationError, RecursionError)


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP answer and the facts that metrics and logs want.

    Attributes:
        status: 200 with an AdmissionReview as body, 400 with a reason in plain text.
        operation: of the request, "none" when it could not be read.
        reason: why it was refused; empty when allowed.
    """

    status: int
    body: bytes
    operation: str
    kind: str
    allowed: bool
    reason: str = ""


def answer_review(body: bytes, decide: Decide) -> Answer:
    """Answer one AdmissionReview; whatever cannot be read gets 400 and why."""
    try:
        review = decode_review(body)
    except ReviewError as error:
        return _unreadable(str(error), "none", "")
    try:
        verdict = decide(review)
    except _ODD as error:
        return _odd(review, error)
    return _answer(review, verdict)


async def answer_asking(body: bytes, decide: Asking) -> Answer:
    """As `answer_review`, for what has to read something before it decides."""
    try:
        review = decode_review(body)
    except ReviewError as error:
        return _unreadable(str(error), "none", "")
    try:
        verdict = await decide(review)
    except _ODD as error:
        return _odd(review, error)
    return _answer(review, verdict)


def _odd(review: Review, error: Exception) -> Answer:
    reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
    return _unreadable(f"request.object: {reason}", review.operation, review.kind)


def _answer(review: Review, verdict: Verdict) -> Answer:
    return Answer(
        200,
        encode_verdict(review.uid, verdict),
        review.operation,
        review.kind,
        verdict.allowed,
        ", ".join(error.path for error in verdict.errors),
    )


def _unreadable(reason: str, operation: str, kind: str) -> Answer:
    body = reason.encode("utf-8", "backslashreplace") + b"\n"
    return Answer(400, body, operation, kind, allowed=False, reason=reason)

"""From the bytes of a request to the bytes of its answer."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Final

import msgspec

from rackgate.jobframework.errors import MalformedError
from rackgate_webhook.admission.review import (
    AdmissionResponse,
    Review,
    ReviewError,
    decode_review,
    encode_response,
)

Decide = Callable[[Review], AdmissionResponse]
# Decides after it has read something.
AsyncDecide = Callable[[Review], Awaitable[AdmissionResponse]]

_MALFORMED_ERRORS: Final = (MalformedError, msgspec.ValidationError, RecursionError)


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
        return _bad_request(str(error), "none", "")
    try:
        admission_response = decide(review)
    except _MALFORMED_ERRORS as error:
        return _malformed_object(review, error)
    return _answer(review, admission_response)


async def answer_review_async(body: bytes, decide: AsyncDecide) -> Answer:
    """As `answer_review`, for what has to read something before it decides."""
    try:
        review = decode_review(body)
    except ReviewError as error:
        return _bad_request(str(error), "none", "")
    try:
        admission_response = await decide(review)
    except _MALFORMED_ERRORS as error:
        return _malformed_object(review, error)
    return _answer(review, admission_response)


def _malformed_object(review: Review, error: Exception) -> Answer:
    reason = "nested too deeply" if isinstance(error, RecursionError) else str(error)
    return _bad_request(f"request.object: {reason}", review.operation, review.kind)


def _answer(review: Review, admission_response: AdmissionResponse) -> Answer:
    return Answer(
        200,
        encode_response(review.uid, admission_response),
        review.operation,
        review.kind,
        admission_response.allowed,
        ", ".join(error.path for error in admission_response.errors),
    )


def _bad_request(reason: str, operation: str, kind: str) -> Answer:
    body = reason.encode("utf-8", "backslashreplace") + b"\n"
    return Answer(400, body, operation, kind, allowed=False, reason=reason)

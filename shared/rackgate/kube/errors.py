"""One family of errors: what the API server answered, or that it did not answer.

KubeError                    any refusal; carries status, reason, message, verb, path
  BadRequestError            400
  UnauthorizedError          401
  ForbiddenError             403
  NotFoundError              404
  ConflictError              409: the object moved on, read it again and decide again
    AlreadyExistsError       409 with reason AlreadyExists
  GoneError                  410: the version is too old, list again
  PayloadTooLargeError       413, or 500 with the store's words for it
  UnprocessableError         422: invalid, or a failed `test` of a JSON patch
  TooManyRequestsError       429 after the bounded tries
  ServerError                5xx
  TransportError             no answer; a write may or may not have been applied
    LineTooLongError         a watch line beyond the limit
  RewoundError               the store is an older one: what is remembered of it is void
  NotSentError               nothing left this process: the time for it was over
"""

from __future__ import annotations

import math
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Final

import msgspec

# Longer than this nobody is left alone: the wish may be a mistake, and clocks may differ.
RETRY_AFTER_CAP_S: Final = 30.0


class StatusDetails(msgspec.Struct, frozen=True, rename="camel"):
    """The part of `Status.details` that is read."""

    retry_after_seconds: int = 0


class Status(msgspec.Struct, frozen=True, rename="camel"):
    """The API server's `Status` object."""

    code: int = 0
    reason: str = ""
    message: str = ""
    details: StatusDetails | None = None


class KubeError(Exception):
    """The API server refused a call.

    Attributes:
        verb: HTTP method, or `WATCH`.
        path: URL path without the query.
        status: HTTP status; 0 when there was no answer.
        reason: machine-readable reason of the Status object ("NotFound"), or "".
        message: the server's words.
        retry_after_s: how long the server wants to be left alone; None when it says nothing.
    """

    def __init__(
        self,
        verb: str,
        path: str,
        *,
        status: int = 0,
        reason: str = "",
        message: str = "",
        retry_after_s: float | None = None,
    ) -> None:
        outcome = f"{status or 'no answer'} {reason}".rstrip()
        super().__init__(f"{verb} {path}: {outcome}: {message}")
        self.verb, self.path = verb, path
        self.status, self.reason, self.message = status, reason, message
        self.retry_after_s = retry_after_s


class BadRequestError(KubeError):
    """400: the server cannot read the request."""


class UnauthorizedError(KubeError):
    """401: the credentials are not valid, also after reading them again.

    Attributes:
        sent: the Authorization header that was refused, if there was one.
    """

    sent: str | None = None


class ForbiddenError(KubeError):
    """403: not allowed by RBAC, or refused by an admission policy."""


class NotFoundError(KubeError):
    """404: no such object, or no such resource."""


class ConflictError(KubeError):
    """409: the object moved on. Read it again, decide again."""


class AlreadyExistsError(ConflictError):
    """409 of a create: the name is taken."""


class GoneError(KubeError):
    """410: the resourceVersion or the continue token is too old. List again."""


class PayloadTooLargeError(KubeError):
    """413: the request body is beyond the server's limit, or the object beyond the store's."""


class UnprocessableError(KubeError):
    """422: the object is invalid, or the `test` of a JSON patch failed."""


class TooManyRequestsError(KubeError):
    """429: still throttled after waiting as often as the client may."""


class ServerError(KubeError):
    """5xx: the server, or a webhook behind it, failed."""


class TransportError(KubeError):
    """No answer. A write may have been applied: read before deciding again."""


class LineTooLongError(TransportError):
    """A watch line is longer than the limit; the stream cannot be followed."""


class RewoundError(KubeError):
    """The store was restored from a backup: versions have gone back, and are given out anew.

    All that was concluded from versions is void, so the process that remembers has to end.
    """


class NotSentError(KubeError):
    """Nothing was sent: the caller's deadline passed while the request waited for its turn."""


BY_STATUS: Final[dict[int, type[KubeError]]] = {
    400: BadRequestError,
    401: UnauthorizedError,
    403: ForbiddenError,
    404: NotFoundError,
    409: ConflictError,
    410: GoneError,
    413: PayloadTooLargeError,
    422: UnprocessableError,
    429: TooManyRequestsError,
}

# What etcd and its client say; the API server passes it on as its own failure.
_TOO_LARGE: Final = ("request is too large", "message larger than max")

_decode_status = msgspec.json.Decoder(Status).decode


def parse_status(body: bytes | msgspec.Raw) -> Status:
    """The Status object in `body`; an empty one when it holds something else."""
    try:
        return _decode_status(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return Status(message=bytes(body)[:200].decode(errors="replace"))


def error_for(
    verb: str,
    path: str,
    status: int,
    body: bytes | msgspec.Raw,
    retry_after_s: float | None = None,
) -> KubeError:
    """The error that fits an HTTP status of 400 or more and its body.

    Args:
        verb: HTTP method, or `WATCH`.
        path: URL path without the query.
        status: HTTP status, or the code of an ERROR event.
        body: what came with it, a Status object or anything else.
        retry_after_s: from the header; the Status may say it, too.
    """
    answer = parse_status(body)
    if retry_after_s is None and answer.details and answer.details.retry_after_seconds > 0:
        retry_after_s = min(float(answer.details.retry_after_seconds), RETRY_AFTER_CAP_S)
    kind = BY_STATUS.get(status, ServerError if status >= 500 else KubeError)
    if status == 500 and any(text in answer.message for text in _TOO_LARGE):
        kind = PayloadTooLargeError
    if status == 409 and answer.reason == "AlreadyExists":
        kind = AlreadyExistsError
    return kind(
        verb,
        path,
        status=status,
        reason=answer.reason,
        message=answer.message,
        retry_after_s=retry_after_s,
    )


def retry_after(header: str | None, now: datetime) -> float | None:
    """Seconds of a Retry-After header, as a number or as an HTTP date; None for neither.

    Args:
        header: its value, if it was there.
        now: the wall clock, which a date is compared with.
    """
    if not header:
        return None
    try:
        wait_s = float(header)
    except ValueError:
        try:
            wait_s = (parsedate_to_datetime(header) - now).total_seconds()
        except (ValueError, TypeError, OverflowError):
            return None  # TypeError: a date without zone
    if math.isnan(wait_s):
        return None
    return min(max(wait_s, 0.0), RETRY_AFTER_CAP_S)

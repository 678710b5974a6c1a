"""Errors of the API server's responses, or of missing responses.

KubeError                    any error; has status, reason, message, verb, path
  BadRequestError            400
  UnauthorizedError          401
  ForbiddenError             403
  NotFoundError              404
  ConflictError              409: the object has changed, read it again and decide again
    AlreadyExistsError       409 with reason AlreadyExists
  GoneError                  410: the version is too old, list again
  PayloadTooLargeError       413, or 500 with the message of etcd
  UnprocessableError         422: invalid, or a failed `test` of a JSON patch
  TooManyRequestsError       429, after several tries
  ServerError                5xx
  TransportError             no response: the outcome of a write is unknown
    LineTooLongError         a watch line exceeds the limit
  RewoundError               etcd was restored from a backup: cached state is invalid
  NotSentError               the request was not sent: its deadline passed
"""

from __future__ import annotations

import math
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Final

import msgspec

# Cap of Retry-After: the value may be a mistake, and clocks may differ.
RETRY_AFTER_CAP_S: Final = 30.0


class StatusCause(msgspec.Struct, frozen=True):
    """One problem of an object that was rejected: the path of the field, and what is wrong."""

    field: str = ""
    message: str = ""
    reason: str = ""


class StatusDetails(msgspec.Struct, frozen=True, rename="camel"):
    """The part of `Status.details` that is read."""

    retry_after_seconds: int = 0
    causes: tuple[StatusCause, ...] | None = None


class Status(msgspec.Struct, frozen=True, rename="camel"):
    """The API server's `Status` object."""

    code: int = 0
    reason: str = ""
    message: str = ""
    details: StatusDetails | None = None


class KubeError(Exception):
    """A request failed.

    Attributes:
        verb: HTTP method, or `WATCH`.
        path: URL path without the query.
        status: HTTP status; 0 without a response.
        reason: machine-readable reason of the Status object ("NotFound"), or "".
        message: message of the server.
        retry_after_s: Retry-After of the server, if any.
        causes: the problems of a rejected object, by field; empty if the server names none.
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
        causes: tuple[StatusCause, ...] = (),
    ) -> None:
        outcome = f"{status or 'no answer'} {reason}".rstrip()
        super().__init__(f"{verb} {path}: {outcome}: {message}")
        self.verb, self.path = verb, path
        self.status, self.reason, self.message = status, reason, message
        self.retry_after_s, self.causes = retry_after_s, causes


class BadRequestError(KubeError):
    """400: the server cannot read the request."""


class UnauthorizedError(KubeError):
    """401: the credentials are not valid, also after they were renewed.

    Attributes:
        sent: the Authorization header that was rejected, if any.
    """

    sent: str | None = None


class ForbiddenError(KubeError):
    """403: forbidden by RBAC, or rejected by an admission policy."""


class NotFoundError(KubeError):
    """404: no such object, or no such resource."""


class ConflictError(KubeError):
    """409: the object has changed. Read it again, decide again."""


class AlreadyExistsError(ConflictError):
    """409 of a create: the name is taken."""


class GoneError(KubeError):
    """410: the resourceVersion or the continue token is too old. List again."""


class PayloadTooLargeError(KubeError):
    """413: the request exceeds the server's limit, or the object exceeds etcd's."""


class UnprocessableError(KubeError):
    """422: the object is invalid, or the `test` of a JSON patch failed."""


class TooManyRequestsError(KubeError):
    """429: still throttled after several tries."""


class ServerError(KubeError):
    """5xx: the server, or a webhook behind it, failed."""


class TransportError(KubeError):
    """No response. A write may have been applied: read before deciding again."""


class LineTooLongError(TransportError):
    """A watch line exceeds the limit, so the stream cannot continue."""


class RewoundError(KubeError):
    """etcd was restored from a backup: versions went back and are reused.

    All cached state is invalid, so the process must end.
    """


class NotSentError(KubeError):
    """The caller's deadline passed before the request was sent."""


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

# Messages of etcd and its client, which the API server returns with status 500.
_TOO_LARGE: Final = ("request is too large", "message larger than max")

_decode_status = msgspec.json.Decoder(Status).decode


def parse_status(body: bytes | msgspec.Raw) -> Status:
    """The Status object in `body`, or one with the start of `body` as message."""
    try:
        return _decode_status(body)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return Status(message=bytes(body)[:200].decode(errors="replace"))


def error_for(
    verb: str, path: str, status: int, body: bytes | msgspec.Raw, retry_after_s: float | None = None
) -> KubeError:
    """The error for an HTTP status, or for the code of an ERROR event, of 300 or more.

    `body` is a Status object or anything else. Without `retry_after_s` from the header, that of the
    Status counts.
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
        causes=(answer.details.causes or ()) if answer.details else (),
    )


def retry_after(header: str | None, now: datetime) -> float | None:
    """Seconds of a Retry-After header, a number or an HTTP date; None if it is neither."""
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

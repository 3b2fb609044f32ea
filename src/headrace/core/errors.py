"""Every error Headrace raises on purpose: what went wrong, and what to do next.

Only this file defines error classes.  An error says whose fault it is by its base
(`ClientError`, `ServerError`, `CorruptionError`), carries the wire `code`, the HTTP `status` a
wire layer may use, whether a retry can help, and a `detail` mapping of the values a caller needs
to mend the call.  The engine never knows HTTP: `status` is data here, nothing more.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

Detail = Mapping[str, object]


class HeadraceError(Exception):
    """Base of all of them.

    >>> error = InvalidRequest("before_seq is -1", fix="send a seq of 0 or more")
    >>> error.code, error.status, str(error)
    ('invalid_request', 400, 'before_seq is -1; send a seq of 0 or more')
    """

    code: ClassVar[str] = "internal"
    status: ClassVar[int] = 500
    retryable: ClassVar[bool] = False

    def __init__(self, message: str, *, fix: str = "", detail: Detail | None = None) -> None:
        self.message = message
        self.fix = fix
        self.detail: dict[str, object] = dict(detail or {})
        super().__init__(f"{message}; {fix}" if fix else message)

    @property
    def docs(self) -> str:
        """The anchor of this code in docs/reference/errors.md."""
        return f"reference/errors.md#{self.code}"


class ClientError(HeadraceError):
    """The caller asked for something that cannot be; nothing was changed."""

    status = 400


class ServerError(HeadraceError):
    """The server could not do what it was rightly asked to do."""

    status = 500


class CorruptionError(ServerError):
    """Stored bytes are not the bytes that were written.  Never guessed around."""

    code = "corrupt"


class InvalidRequest(ClientError):
    """A value of the wrong type, out of range, or missing."""

    code = "invalid_request"


class BatchTooLarge(ClientError):
    """More records in one append than `records_per_append_max`."""

    code = "batch_too_large"


class RecordTooLarge(ClientError):
    """One record, or a batch for a capped topic, is larger than allowed."""

    code = "record_too_large"


class Unauthorized(ClientError):
    """No key, or none that this server knows."""

    code = "unauthorized"
    status = 401


class Forbidden(ClientError):
    """The key is known and may not do this."""

    code = "forbidden"
    status = 403


class NotFound(ClientError):
    """No such route, or no such watch session."""

    code = "not_found"
    status = 404


class MethodNotAllowed(ClientError):
    """The path exists, with other methods; detail `allow`."""

    code = "method_not_allowed"
    status = 405


class NotAcceptable(ClientError):
    """The caller accepts no form that this route answers in."""

    code = "not_acceptable"
    status = 406


class RequestTimeout(ClientError):
    """The rest of a request did not arrive in time."""

    code = "request_timeout"
    status = 408


class PayloadTooLarge(ClientError):
    """The body is larger than `body_bytes_max`."""

    code = "payload_too_large"
    status = 413


class UnsupportedMediaType(ClientError):
    """The body is in a form that this route does not read."""

    code = "unsupported_media_type"
    status = 415


class HeadersTooLarge(ClientError):
    """Request line and headers are larger than `header_bytes_max`."""

    code = "headers_too_large"
    status = 431


class TopicNotFound(ClientError):
    """No such topic, and this call does not create one."""

    code = "topic_not_found"
    status = 404

    @classmethod
    def named(cls, name: str) -> TopicNotFound:
        return cls(
            f"topic {name!r} does not exist",
            fix="append to it or create it first",
            detail={"topic": name},
        )


class RouterNotFound(ClientError):
    """No router of this name; detail `router`."""

    code = "router_not_found"
    status = 404

    @classmethod
    def named(cls, name: object) -> RouterNotFound:
        return cls(f"no router {name!r}", fix="create it first", detail={"router": name})


class RouterCycle(ClientError):
    """The router would send records in a circle; detail `cycle` names the topics on it."""

    code = "router_cycle"
    status = 409


class PipelineNotFound(ClientError):
    """No pipeline of this name; detail `pipeline`."""

    code = "pipeline_not_found"
    status = 404

    @classmethod
    def named(cls, name: object) -> PipelineNotFound:
        return cls(f"no pipeline {name!r}", fix="declare it first", detail={"pipeline": name})


class SqlRefused(ClientError):
    """The SQL of a pipeline does not parse or is not allowed; detail `line`, `column` if known."""

    code = "sql_refused"


class CheckpointIncompatible(ClientError):
    """A pipeline was changed so that its checkpoint does not fit any more."""

    code = "checkpoint_incompatible"
    status = 409


class TopicExistsIncompatible(ClientError):
    """The topic exists with a type, kind or epoch that this call contradicts."""

    code = "topic_exists_incompatible"
    status = 409


class TopicNotEmpty(ClientError):
    """A delete that was conditional on emptiness found live records."""

    code = "topic_not_empty"
    status = 409


class TopicInUse(ClientError):
    """Routers that the key may not delete use the topic; detail `routers` is their number."""

    code = "topic_in_use"
    status = 409


class NotAQueue(ClientError):
    """The topic is a log: its records cannot be claimed."""

    code = "not_a_queue"
    status = 409


class StreamClosed(ClientError):
    """The stream takes no more records; detail `head_seq` and `epoch`."""

    code = "stream_closed"
    status = 409


class StreamConflict(ClientError):
    """The stream is another one than the call needs; `detail.reason` says in what."""

    code = "stream_conflict"
    status = 409


class StreamDeleted(ClientError):
    """The stream is deleted, and kept for its forks alone."""

    code = "stream_deleted"
    status = 410


class OffsetGone(ClientError):
    """What the offset stands before is gone: retention took it, or another stream had it."""

    code = "offset_gone"
    status = 410


class HeadMismatch(ClientError):
    """`expected_head_seq` is not the topic's head."""

    code = "head_mismatch"
    status = 409


class FenceMismatch(ClientError):
    """The writer's fencing token is not the stream's; detail `fencing_token` is."""

    code = "fence_mismatch"
    status = 412


class EpochMismatch(ClientError):
    """The call is about another life of the topic than the one there is."""

    code = "epoch_mismatch"
    status = 409


class ProducerFenced(ClientError):
    """A producer with a newer epoch has taken over."""

    code = "producer_fenced"
    status = 403


class ProducerGap(ClientError):
    """A producer skipped a sequence number."""

    code = "producer_gap"
    status = 409


class TopicFull(ClientError):
    """The topic rejects what its caps have no room for, or one more producer."""

    code = "topic_full"
    status = 422


class Throttled(ClientError):
    """A bound was reached; the same call may succeed later."""

    code = "throttled"
    status = 429
    retryable = True


class WriteFenced(ClientError):
    """A later batch of the same query has been written, so this one is not written any more."""

    code = "write_fenced"
    status = 409


class PlanNotDeterministic(ClientError):
    """A query gave other rows when it ran again than those that it had written."""

    code = "plan_not_deterministic"
    status = 409


class LakeConflict(ClientError):
    """Another writer committed to a table of the lake since this one looked at it."""

    code = "lake_conflict"
    status = 409


class LakeUnavailable(ServerError):
    """Records that only the lake has cannot be read now: it is not there, or does not answer."""

    code = "lake_unavailable"
    status = 503
    retryable = True


class LakeCorrupt(CorruptionError):
    """The lake does not have, or cannot prove to have, a record that it should have."""

    code = "lake_corrupt"


class RowsRefused(ClientError):
    """The server does not take these rows of a DataFrame, however often they are sent."""

    code = "rows_refused"


class Internal(ServerError):
    """A write whose outcome is unknown, or a fault without a better name."""

    code = "internal"


class NotReady(ServerError):
    """The server cannot take this call now; `detail.reason` says why."""

    code = "not_ready"
    status = 503
    retryable = True


class OutOfResources(ServerError):
    """The server ran out of memory; `detail.outcome` says whether the call may have been done."""

    code = "out_of_resources"
    status = 503
    retryable = True

    @classmethod
    def told(cls, outcome: str = "unknown") -> OutOfResources:
        return cls(
            "the server ran out of memory",
            fix="send less at a time, or give the server more memory",
            detail={"outcome": outcome},
        )


class ShuttingDown(ServerError):
    """The engine is closing."""

    code = "shutting_down"
    status = 503
    retryable = True


class Unreachable(ServerError):
    """No answer from the server; `detail.outcome` says whether the call may have been done."""

    code = "unreachable"
    status = 503
    retryable = True


class DataDirLocked(ServerError):
    """Another process owns the data directory."""

    code = "data_dir_locked"


class UnsupportedFormat(ServerError):
    """A file was written by a newer version, or is not ours."""

    code = "unsupported_format"


class ConfigError(ClientError):
    """A setting does not parse, is unknown, or contradicts another."""

    code = "config_error"


class WalCorrupt(CorruptionError):
    """Acknowledged bytes of the write-ahead log are damaged."""

    code = "wal_corrupt"


class SegmentCorrupt(CorruptionError):
    """A sealed file is missing or damaged; `detail` names the file and the seqs affected."""

    code = "segment_corrupt"


class SnapshotCorrupt(CorruptionError):
    """No usable snapshot: the newest and its predecessor are both damaged."""

    code = "snapshot_corrupt"


class DataLost(HeadraceError):
    """Records that a query was to read are gone; `detail` names the topic, the seqs and why."""

    code = "data_loss"


class StagedRowsLost(HeadraceError):
    """Rows that were staged and chosen are gone before they were published."""

    code = "staged_rows_lost"


def typed(error: BaseException) -> BaseException:
    """What the operating system says, in our own form; anything else as it is.

    >>> typed(OSError(5, "Input/output error")).detail
    {'errno': 5}
    """
    if not isinstance(error, OSError):
        return error
    return Internal(
        f"a file could not be used: {error}",
        fix="check the disk and the permissions of the data directory",
        detail={"errno": error.errno},
    )

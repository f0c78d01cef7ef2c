"""Failures: what a shard answered, made again in the caller, from codes to the tree of
`topics.errors`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from topics import errors
from topics.actors.rpc.call import RemoteError
from topics.actors.rpc.replies import CONTRACT_ERROR
from topics.errors import Internal, NotReady, TopicsError
from topics.formats.wire.calls import AppendResult
from topics.formats.wire.envelope import ErrorCode

_CLASSES: Final[dict[str, type[TopicsError]]] = {
    error.code: error
    for error in vars(errors).values()
    if isinstance(error, type) and hasattr(error, "code")
}


def restored(code: str, message: str, detail: Mapping[str, Any]) -> TopicsError:
    """The failure that the shard raised."""
    return TopicsError.restore(_CLASSES[code], message, dict(detail))


def failures_of(result: AppendResult) -> list[TopicsError]:
    """The failures of those requests of an append message that failed."""
    return [restored(*failure) for failure in result.failures or ()]


def failure_of(error: RemoteError) -> TopicsError:
    """The failure behind an error answer; one without a code of the contract is `Internal`."""
    if error.code == CONTRACT_ERROR and isinstance(error.data, dict):
        return restored(error.data["code"], error.message, error.data["detail"])
    if error.code == ErrorCode.TIMEOUT:  # a shard answers so only what it has not begun to change
        return NotReady(
            "the shard was too busy to begin in time; nothing was done", reason="timeout"
        )
    return Internal(error.message)

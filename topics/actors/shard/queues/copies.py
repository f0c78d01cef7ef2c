"""Copies: records of one topic are appended to another, of any shard.

Each copy is an append of its own, with an idempotency key made of the topic that it comes from and
its seq there (``engine/moved_keys.py``). So a copy that is made again, because a crash came between
it and the delete of the record, is known in the target.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from topics.actors.rpc.replies import failures_of
from topics.actors.rpc.session import Reply
from topics.actors.shard.peers import Peers
from topics.errors import TopicsError
from topics.formats.wire.calls import APPEND, AppendOutcome, AppendParams, AppendResult, outcome_in

COPIES_BYTES: Final = 1 << 20  # of records: no more are added to a message that has so many
_FAILED: Final = int(AppendOutcome.FAILED)


class Copy(NamedTuple):
    """``seq``: of the record that is copied. ``request``: the body of the append."""

    seq: int
    request: bytes


class Sent(NamedTuple):
    """Seqs of copies that the target has now, and why it refused the others, by seq."""

    appended: list[int]
    refused: dict[int, TopicsError]


def send(peers: Peers, target: str, copies: Sequence[Copy], then: Callable[[Sent], object]) -> None:
    """Append ``copies`` to the topic ``target``, in their order; ``then`` is told in a later turn.

    Only inside of a turn. A copy that is refused with `NotReady` may be there all the same.
    """

    def answered(answer: Reply[AppendResult] | TopicsError) -> None:
        if isinstance(answer, TopicsError):
            then(Sent([], {copy.seq: answer for copy in copies}))
            return
        result = answer.result
        answer.release()
        outcomes = list(zip(copies, map(outcome_in, result.outcomes), strict=True))
        refused = [copy.seq for copy, outcome in outcomes if outcome == _FAILED]
        then(
            Sent(
                [copy.seq for copy, outcome in outcomes if outcome != _FAILED],
                dict(zip(refused, failures_of(result), strict=True)),
            )
        )

    requests = [copy.request for copy in copies]
    params = AppendParams(
        target,
        None,
        with_seqs=False,
        prefixes=None,
        at=time.monotonic_ns(),
        lengths=[len(request) for request in requests],
    )
    peers.ask(peers.shard_of(target), APPEND, params, b"".join(requests), answered)

"""Appends to one topic that came in one message: each is decided and answered by itself, and all
answers go out in one.
"""

from __future__ import annotations

from typing import Any

from topics.actors.rpc.message_router import RpcContext
from topics.errors import Internal
from topics.formats.json_text import json_bytes


class Burst:
    """The answers to the appends of one message. They go out when the last of them is known, in the
    order of the appends.
    """

    __slots__ = ("_answers", "_failed", "_left", "_rpc")

    def __init__(self, rpc: RpcContext, count: int) -> None:
        assert count, "a burst holds appends"
        self._rpc, self._left = rpc, count
        self._answers = [b""] * count
        self._failed: list[int] = []

    def take(self, index: int, answer: bytes, *, failed: bool = False) -> None:
        """The answer to the append ``index``."""
        assert not self._answers[index], "an append is answered once"
        self._answers[index] = answer
        if failed:
            self._failed.append(index)
        self._left -= 1
        if not self._left:
            self._rpc.reply(
                {"lengths": [len(answer) for answer in self._answers], "failed": self._failed},
                b"".join(self._answers),
            )


class Part:
    """One append of a burst. It is answered as an `RpcContext` is."""

    __slots__ = ("_burst", "_index")

    def __init__(self, burst: Burst, index: int) -> None:
        self._burst, self._index = burst, index

    def reply(self, _result: dict[str, Any], body: bytes) -> None:
        """It went well."""
        self._burst.take(self._index, body)

    def error(self, _code: int, message: str, data: dict[str, Any] | None = None) -> None:
        """It failed. ``data`` has the code and the detail of a failure of the contract; anything
        else is a bug, and the log has it.
        """
        fields: dict[str, Any] = {"code": Internal.code, "message": "internal error"}
        if data is not None and data["code"] != Internal.code:
            fields = {"code": data["code"], "message": message} | (
                {"detail": data["detail"]} if data["detail"] else {}
            )
        self._burst.take(self._index, json_bytes(fields), failed=True)


Asker = RpcContext | Part

"""Two shard processes and the link between them. One of the processes is killed and restarted."""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trio

from tests.support.peers import call_peer, call_until_connected
from tests.support.polling import is_readable
from tests.support.shard import LIMITS
from topics.actors.link.board import Board
from topics.actors.link.link import Link
from topics.actors.link.process_id import shard_id
from topics.actors.rpc.session import Reply
from topics.actors.shard.context import clock
from topics.actors.shard.loop import ShardLoop
from topics.errors import NotReady
from topics.formats.json_text import json_bytes
from topics.formats.wire.calls import APPEND, DIFF, AppendParams, TopicParams
from topics.process.family import SHARD_LINK, Links
from topics.storage.recovery.shard_recovery import recover

pytestmark = pytest.mark.slow

APPEND_PARAMS = AppendParams("a", "key", with_seqs=True, prefixes=None, at=0)
DIFF_PARAMS = TopicParams("a", 0)
WITHIN_S = 30.0


class Server:
    """The part of the supervisor for two shards."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.board = Board(2)
        self.links = Links(self.board, SHARD_LINK)

    def start(self, index: int, work: Callable[[ShardLoop], Any] | None = None) -> int:
        """Fork a shard process that serves and runs ``work``. It exits with 0 when the work is
        complete.
        """
        pid = os.fork()
        if pid == 0:
            status = 1
            try:
                trio.run(self._serve, index, work)
                status = 0
            except BaseException:
                traceback.print_exc()
            finally:
                os._exit(status)
        return pid

    async def _serve(self, index: int, work: Callable[[ShardLoop], Any] | None) -> None:
        shard = recover(self.folder, index, 2, clock(), wal_file_bytes=1 << 20, wal_sync_ms=20)
        loop, own = ShardLoop(shard, index, self.board, LIMITS), shard_id(index)
        links = [Link(memory, self.board, own) for memory in self.links.of(own)]
        async with trio.open_nursery() as nursery:
            nursery.start_soon(loop.run, links, trio.Event())
            if work is not None:
                with trio.fail_after(WITHIN_S):
                    await work(loop)
                nursery.cancel_scope.cancel()

    def kill(self, index: int, pid: int) -> None:
        os.kill(pid, signal.SIGKILL)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == -signal.SIGKILL
        self.links.end_sessions(shard_id(index))


def test_the_calls_of_a_peer_fail_from_the_crash_of_a_shard_until_its_restart(
    tmp_path: Path,
) -> None:
    server, polling = Server(tmp_path), os.eventfd(0)

    async def work(loop: ShardLoop) -> None:
        body = json_bytes({"records": [{"data": "once"}]})
        first = await call_until_connected(loop, 1, APPEND, APPEND_PARAMS, body)
        assert isinstance(first, Reply)
        os.eventfd_write(polling, 1)
        poll = json_bytes({"from_seq": 1, "wait_ms": 30_000})
        assert isinstance(await call_peer(loop, 1, DIFF, DIFF_PARAMS, poll), NotReady)
        again = await call_until_connected(loop, 1, APPEND, APPEND_PARAMS, body)
        assert isinstance(again, Reply)
        assert msgspec.json.decode(bytes(again.body))["deduped"]

    other = server.start(1)
    caller = server.start(0, work)
    assert is_readable(polling, WITHIN_S), "the first append got no reply"
    server.kill(1, other)
    other = server.start(1)
    assert os.waitstatus_to_exitcode(os.waitpid(caller, 0)[1]) == 0
    server.kill(1, other)
    os.close(polling)
    for memory in server.links:
        memory.close()

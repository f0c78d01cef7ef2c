"""A failover: the server is lost, and its standby is promoted at the same address.

Watches, workers and producers of the client continue by their cursors, leases and keys. Records
that were acknowledged after the last cut are lost, and each of their seqs is in a tombstone, unless
the reader has it already.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from itertools import count
from pathlib import Path

import pytest

from tests.client.conftest import url_of
from tests.support.server import Server
from topics import cli
from topics.client import Record, Tombstone, Topics
from topics.client.threads import Sent
from topics.storage.promote import promote
from topics.storage.standby import Standby

JOBS = 20


class Producing:
    """A program that appends numbers without a break, one by one or with a producer."""

    def __init__(self, url: str, *, in_background: bool) -> None:
        self.seqs: dict[int, int] = {}  # by number, of the acknowledged records
        self._url, self._ending = url, threading.Event()
        self._thread = threading.Thread(target=self._send if in_background else self._append)

    def _append(self) -> None:
        number = 0
        with Topics(self._url, on_pause=_ignore) as client:
            while not self._ending.is_set():
                self.seqs[number] = client.topic("orders").append(number).first_seq
                number += 1

    def _send(self) -> None:
        unacknowledged: deque[tuple[int, Sent[int]]] = deque()
        with (
            Topics(self._url, on_pause=_ignore) as client,
            client.topic("orders").producer(max_records=10, max_unacked=1000) as producer,
        ):
            for number in count():
                if self._ending.wait(0.001):
                    break
                unacknowledged.append((number, producer.send(number)))
                while unacknowledged and unacknowledged[0][1].done():
                    done, sent = unacknowledged.popleft()
                    self.seqs[done] = sent.result()
        self.seqs |= {number: sent.result() for number, sent in unacknowledged}

    def __enter__(self) -> Producing:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ending.set()
        self._thread.join()


class Watching:
    """A program that follows the topic."""

    def __init__(self, url: str) -> None:
        self.numbers: dict[int, int] = {}  # by seq
        self.losses: list[Tombstone] = []
        self._client = Topics(url, on_pause=_ignore)
        self._events = self._client.watch("orders")
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        for event in self._events:
            if isinstance(event, Record):
                assert event.seq not in self.numbers, "no record is delivered twice"
                self.numbers[event.seq] = event.data
            elif isinstance(event, Tombstone):
                self.losses.append(event)

    def __enter__(self) -> Watching:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._events.close()
        self._thread.join()
        self._client.close()


def _ignore(_failure: object, _pause_s: float) -> None:
    """Retry silently."""


def _wait_for(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


@pytest.mark.slow
@pytest.mark.parametrize("in_background", [False, True])
def test_clients_continue_with_the_promoted_standby(tmp_path: Path, in_background: bool) -> None:
    lost = Server(tmp_path / "data", shards=2)
    lost.start()
    port, url, copy = lost.address[1], url_of(lost), Standby(tmp_path / "copy")
    with Topics(url, on_pause=_ignore) as client:
        client.topic("orders").put(durability="fsync")
        client.queue("jobs").put(type="queue")
        client.topic("jobs").append(*range(JOBS))
        with (
            Producing(url, in_background=in_background) as producing,
            Watching(url) as watching,
        ):
            _wait_for(lambda: len(watching.numbers) > 100)
            before = set(producing.seqs)
            assert cli.main(["--url", url, "-q", "standby", "run", str(copy.path), "--once"]) == 0
            _wait_for(lambda: len(producing.seqs) > len(before) + 100)
            done = [job.data for job in client.queue("jobs").claim("w", JOBS // 2)]
            lost.kill()
            last = max(producing.seqs)
            with copy.lock():
                promote(copy, as_new=False, with_damage=False, fence=None)
            with Server(copy.path, shards=2, port=port):
                _wait_for(lambda: max(producing.seqs) > last + 100)
                _wait_for(lambda: bool(watching.losses))
                again = [job.data for job in client.queue("jobs").claim("w2", JOBS)]
                producing.__exit__()
                _wait_for(lambda: max(watching.numbers) >= max(producing.seqs.values()))
                kept = {record.data: record.seq for record in _records(client)}
    # The leases were made after the cut, so these jobs are ready again.
    assert set(done) <= set(again)
    assert len(again) == JOBS
    (gap,) = [(loss.gap_from, loss.gap_to) for loss in watching.losses]
    missing = {number: seq for number, seq in producing.seqs.items() if number not in kept}
    assert missing, "records were acknowledged after the cut"
    assert not before & set(missing)
    # The watch had read most of them before the failover. Their seqs are not used again.
    assert all(seq < gap[1] for seq in missing.values())
    assert {seq for seq in missing.values() if gap[0] <= seq} == {
        seq for seq in missing.values() if seq not in watching.numbers
    }
    assert {n: seq for n, seq in producing.seqs.items() if n in kept} == {
        n: seq for n, seq in kept.items() if n in producing.seqs
    }
    assert all(watching.numbers[seq] == number for number, seq in kept.items())


def _records(client: Topics) -> list[Record]:
    return [event for event in client.topic("orders").read() if isinstance(event, Record)]

"""Routers while the front, a shard or everything is killed: nothing is skipped, doubled, moved or
changed.

Writers append with keys to the sources of a topology (`router_topology`): a chain over both
shards, a fan-out of 20, filters, dests that reject or forget, sources that evict. Readers follow
every dest with cursors. In the end, when nothing lags, all is read whole, before and after a
restart, and `router_judge` says what is wrong. Runs as a program: ``python -m
tests.campaigns.routers --seconds 300 --seed 1``.
"""

from __future__ import annotations

import http.client
import json
import random
import sys
import time
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

from tests.campaigns.clients import Actor, end
from tests.campaigns.killer import BACK_S, Killer, Summary, damage, deaths_by_themselves, program
from tests.campaigns.router_history import History, Sent
from tests.campaigns.router_judge import judge
from tests.campaigns.router_reader import GateKeeper, Reader, path_of, read_ends, settle
from tests.campaigns.router_topology import SHARDS, TAGS, Dest, Topology, topology
from tests.campaigns.writers import Writer, finish
from tests.support.api import Api, ok
from tests.support.server import Server

WRITERS = 3
READERS = 3
WAL_FILE_BYTES = 64 << 10  # the smallest: sealing and checkpoints all the time
PAUSE_S = 0.1
PADDINGS = (0, 0, 60, 300, 2000)
BATCHES = (1, 1, 2, 3, 12)
DELETE_SHARE = 0.4
PUT_SHARE = 0.3
# Of a campaign that is long enough; a check that met nothing proves nothing.
WANTED = ("records", "copies", "source_trim told", "cap told", "ttl told", "full", "read again")

Kind = TypeVar("Kind", bound=Reader)


class Source(Writer):
    """Appends records with tags, nodes and meta. ``sent``: what was acknowledged."""

    def __init__(self, number: int, server: Server, topics: list[str], seed: int) -> None:
        super().__init__(number, lambda: server.address, topics, seed)
        self.sent: dict[tuple[str, int], Sent] = {}
        self._node = f"node-{number}" if number else None

    def records(self, topic: str) -> list[dict[str, Any]]:
        self.ending.wait(self.dice.uniform(0.0, PAUSE_S))
        records = self.made(self.dice.choice(BATCHES), "")
        for record in records:
            record["data"][-1] = "x" * self.dice.choice(PADDINGS)
            if (tag := self.dice.choice(TAGS)) is not None:
                record["tag"] = tag
            if self.dice.random() < 0.2:
                record["meta"] = {"number": record["data"][1], "é": [1.5, None]}
        return records

    def fields(self, topic: str) -> dict[str, Any]:
        return {"create": False} | ({"node": self._node} if self._node is not None else {})

    def note(self, topic: str, records: list[dict[str, Any]], answer: Any) -> None:
        super().note(topic, records, answer)
        for seq, record in zip(answer["seqs"], records, strict=True):
            writer, number, position, _padding = record["data"]
            self.sent[topic, seq] = Sent(
                (writer, number, position),
                self._node,
                record.get("tag"),
                zlib.crc32(json.dumps(record["data"]).encode()),
                record.get("meta"),
            )


class Campaign:
    """One server, a topology, writers, readers and a killer."""

    def __init__(self, data_dir: Path, *, seed: int, seconds: float) -> None:
        self.summary, self.history = Summary(seed), History()
        self._data_dir, self._seconds = data_dir, seconds
        self._server = Server(data_dir, shards=SHARDS, wal_file_bytes=WAL_FILE_BYTES)
        self._topology = topology()
        self._dice = random.Random(seed)
        self._killer = Killer(self._server, SHARDS, self._dice)

    def run(self) -> Summary:
        with self._server as server:
            with Api(server.address) as api:
                make(api, self._topology)
            self._load()
            read_ends(server, self._topology, self.history)
            server.restart("stop")
            settle(server, self._topology, self.history)
            read_ends(server, self._topology, self.history)
        self._judge()
        return self.summary

    def _load(self) -> None:
        """Everybody at work, and what kills them; then what lags comes over."""
        sources = [*self._topology.sources]
        writers = [
            Source(number, self._server, sources, self.summary.seed) for number in range(WRITERS)
        ]
        readers = [*self._readers()]
        keeper = self._reader(GateKeeper, READERS, self._gates())
        threads: list[Actor] = [*writers, *readers, keeper]
        try:
            for thread in threads:
                thread.start()
            self._harm()
        finally:
            ledgers = finish(writers)
            keeper.open()
            settle(self._server, self._topology, self.history)
            end([*readers, keeper])
        self._collect(writers)
        self.summary.counts["appends repeated"] = sum(ledger.retries for ledger in ledgers)
        for actor in threads:
            self.summary.problems += actor.problems
            self.summary.counts += actor.counts

    def _gates(self) -> list[Dest]:
        return [self._topology.dests[name] for name in self._topology.gates]

    def _readers(self) -> Iterator[Reader]:
        dests = [
            dest for dest in self._topology.dests.values() if dest.name not in self._topology.gates
        ]
        for number in range(READERS):
            yield self._reader(Reader, number, dests[number::READERS])

    def _reader(self, kind: type[Kind], number: int, dests: list[Dest]) -> Kind:
        return kind(number, dests, lambda: self._server.address, self.history, self.summary.seed)

    def _collect(self, writers: list[Source]) -> None:
        for source in self._topology.sources:
            self.history.sent[source] = {}
        for writer in writers:
            for (topic, seq), sent in writer.sent.items():
                if (other := self.history.sent[topic].setdefault(seq, sent)) != sent:
                    self.history.wrong.append(f"{topic} {seq} was given to {other} and {sent}")

    def _harm(self) -> None:
        """Kill at random; delete in a source; ask for a router that is there."""
        deadline = time.monotonic() + self._seconds
        while time.monotonic() < deadline:
            time.sleep(self._dice.uniform(0.1, 1.2))  # the moment is the point
            try:
                with Api(self._server.address) as api:
                    if self._dice.random() < DELETE_SHARE:
                        self._delete(api)
                    if self._dice.random() < PUT_SHARE:
                        self._put_again(api)
            except (OSError, http.client.HTTPException):
                pass  # somebody was killed before
            self._note_deaths()
            self._killer.kill()
        self._server.wait_ready(BACK_S)
        self._note_deaths()
        self.history.kills = self._killer.kills
        self.summary.killed = str(self._killer)

    def _delete(self, api: Api) -> None:
        source = self._topology.cut
        state = api.get(source, touch="false")
        if state.status == 200:
            last = max(0, json.loads(state.body)["head_seq"] - self._dice.randint(0, 20))
            self.history.may_delete(source, last)
            api.call("POST", f"/v0/topics/{source}/delete", {"before_seq": last + 1})

    def _put_again(self, api: Api) -> None:
        """An identical PUT changes nothing."""
        dest = self._dice.choice([*self._topology.dests.values()])
        answer = api.call("PUT", path_of(dest.router), router_of(dest))
        if answer.status not in (200, 429, 503):
            self.history.wrong.append(f"PUT of {dest.router} as it is answers {answer}")

    def _note_deaths(self) -> None:
        told = deaths_by_themselves(self._server)
        self.history.wrong += [said for said in told if said not in self.history.wrong]

    def _judge(self) -> None:
        verdict = judge(self.history, self._topology)
        self.summary.counts += verdict.counts
        self.summary.problems += list(dict.fromkeys(verdict.problems))
        self.summary.problems += damage(self._data_dir, SHARDS)


def router_of(dest: Dest) -> dict[str, Any]:
    """The body of its PUT."""
    return {"source": dest.feeder, "dest": dest.name, **dest.asked}


def make(api: Api, wanted: Topology) -> None:
    """Topics and routers. A dest without settings is made by its router."""
    for source, config in wanted.sources.items():
        ok(api.put(source, config), 201)
    for dest in wanted.dests.values():
        if dest.config:
            ok(api.put(dest.name, dest.config), 201)
    for dest in wanted.dests.values():
        ok(api.call("PUT", path_of(dest.router), router_of(dest)), 201)


def campaign(data_dir: Path, *, seed: int, seconds: float) -> Summary:
    """Copies flow while processes are killed; then all must be there, once, in order."""
    return Campaign(data_dir, seed=seed, seconds=seconds).run()


if __name__ == "__main__":
    sys.exit(program(__doc__, campaign, WANTED, seconds=300.0))

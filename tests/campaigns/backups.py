"""Backups of a server under load, each restored: no record that was acknowledged before is missing,
no record is duplicated, and routers continue exactly.

Writers append to the sources of chains of routers over three shards, with both guarantees. Jobs are
moved to a dead-letter topic and redriven from it; some letters have no source. Records are deleted
by seq and by tag, and jobs are acked. Streamed appends are stored in blobs. Log files are small, so
that they are sealed and merged during the backups. With ``--kills`` the front, a shard, all
processes or the client are killed during some backups: these backups are incomplete, the server
loses no data, and it deletes the files that it kept for them. Runs as a program: ``python -m
tests.campaigns.backups --seconds 120 --kills 50``.
"""

from __future__ import annotations

import contextlib
import http.client
import random
import shutil
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from tests.campaigns.clients import BROKEN, Actor, stop_actors
from tests.campaigns.killer import Summary, damage, deaths_by_themselves, program
from tests.support.api import Api, ok
from tests.support.server import Server, kill_one
from topics.storage.backup_restore import restore

SHARDS = 3
WAL_FILE_BYTES = 64 << 10  # the minimum
CHAINS = 4
PADDING = "x" * 200
BLOB_RECORDS, BLOB_RECORD_BYTES = 50, 100_000  # above 4 MiB: streamed
BLOBS_MAX = 10 * BLOB_RECORDS  # all of them are restored repeatedly
BLOB_PAUSE_S = 1.0
STRAYS, STRAYS_MAX = 20, 2000  # more than one slice of a redrive reads
PAUSE_S = 0.03
WAIT_MAX_S = 60.0
WANTED = ("backups", "records", "copies", "dead", "redriven", "acked", "deleted", "blobs")


class Ledger:
    """The acknowledged writes: numbers by topic, and the records that may have been removed."""

    def __init__(self) -> None:
        self.appended: dict[str, list[int]] = {}
        self.sent: dict[str, set[int]] = {}  # appends that may be stored
        self.removing: dict[str, set[int]] = {}  # acks and deletes that were sent
        self.removed: dict[str, list[int]] = {}  # acknowledged acks and deletes

    def now(self) -> Moment:
        return Moment(
            {topic: {*numbers} for topic, numbers in self.appended.items()},
            {topic: {*numbers} for topic, numbers in self.removed.items()},
        )


class Moment(NamedTuple):
    appended: dict[str, set[int]]
    removed: dict[str, set[int]]


class Appender(Actor):
    """Appends numbered records to its topics, each once."""

    def __init__(
        self, number: int, server: Server, seed: int, topics: list[str], ledger: Ledger
    ) -> None:
        rng = random.Random(f"{seed}/appender/{number}")
        super().__init__(f"appender-{number}", lambda: server.address, rng)
        self.topics, self.ledger, self.number = topics, ledger, number * 10_000_000
        for topic in topics:
            for kept in (ledger.appended, ledger.removed):
                kept.setdefault(topic, [])
            for sent in (ledger.sent, ledger.removing):
                sent.setdefault(topic, set())

    def step(self) -> None:
        self.ending.wait(self.rng.uniform(0, PAUSE_S))
        topic = self.rng.choice(self.topics)
        count, padding = self.rng.choice((1, 1, 3, 20)), PADDING
        if topic == "blob":
            count, padding = BLOB_RECORDS, "y" * BLOB_RECORD_BYTES
            self.ending.wait(BLOB_PAUSE_S if self.counts["blobs"] < BLOBS_MAX else 1e9)
            if self.ending.is_set():
                return
        numbers = range(self.number, self.number + count)
        self.number += count
        self.ledger.sent[topic].update(numbers)
        records = [{"data": [n, padding], "tag": f"t{n}"} for n in numbers]
        body = {"records": records, "idempotency_key": f"k{numbers[0]}"}
        if self.client.request_until_done("POST", f"/v0/topics/{topic}", body) is not None:
            self.ledger.appended[topic] += numbers
            self.counts["blobs" if topic == "blob" else "records"] += count


class Worker(Actor):
    """Acks some jobs and lets others become dead letters."""

    def __init__(self, server: Server, seed: int, ledger: Ledger) -> None:
        super().__init__("worker", lambda: server.address, random.Random(f"{seed}/worker"))
        self.ledger = ledger

    def step(self) -> None:
        body = {"node": "w", "max": 20, "lease_ms": 2000, "wait_ms": 100}
        jobs = self.client.request("POST", "/v0/topics/jobs/claim", body).json()["claimed"]
        acked = {job["$seq"]: job["data"][0] for job in jobs if job["data"][0] % 2}
        nacked = [job["$seq"] for job in jobs if job["$seq"] not in acked]
        if nacked:
            self.client.request("POST", "/v0/topics/jobs/nack", {"node": "w", "seqs": nacked})
            self.counts["dead"] += len(nacked)
        if acked:
            self.ledger.removing["jobs"].update(acked.values())
            answer = self.client.request(
                "POST", "/v0/topics/jobs/ack", {"node": "w", "seqs": [*acked]}
            ).json()
            self.ledger.removed["jobs"] += [acked[s] for s in acked if s not in answer["skipped"]]
            self.counts["acked"] += answer["acked"]


class Redriver(Actor):
    """Moves dead letters back to the queue, and appends letters without a source.

    A kill may leave a letter in both topics until the redrive is repeated. So a redrive of the
    letters with a source, which have tags, is repeated with the same limit until it has refused
    none; ``complete`` counts these results.
    """

    def __init__(self, server: Server, seed: int) -> None:
        super().__init__("redriver", lambda: server.address, random.Random(f"{seed}/redriver"))
        self._strays = self._limit = self.complete = 0

    def step(self) -> None:
        self.ending.wait(self.rng.uniform(0, 0.1))
        if not self._limit:
            self._append_strays()
            self._limit = self.rng.randint(1, 30)
            self._redrive({})
        if not self._redrive({"match": ["tag", "Glob", "t*"]}):
            self._limit = 0
            self.complete += 1

    def _append_strays(self) -> None:
        if self._strays < STRAYS_MAX:
            first, self._strays = self._strays + 1, self._strays + STRAYS
            numbers = range(first, self._strays + 1)  # negative numbers belong to no job
            self.client.request(
                "POST", "/v0/topics/dead", {"records": [{"data": [-number]} for number in numbers]}
            )

    def _redrive(self, match: dict[str, Any]) -> int:
        """Redrive once. Return the number of refused letters."""
        body = {"limit": self._limit, **match}
        done = self.client.request("POST", "/v0/topics/dead/redrive", body).json()
        self.counts["redriven"] += done["moved"]
        return int(done["skipped"])


class Deleter(Actor):
    """Deletes records by tag, and all records below a seq."""

    def __init__(self, server: Server, seed: int, ledger: Ledger) -> None:
        super().__init__("deleter", lambda: server.address, random.Random(f"{seed}/deleter"))
        self.ledger = ledger

    def step(self) -> None:
        self.ending.wait(self.rng.uniform(0, 0.02))
        known = self.ledger.appended["tags"][:]
        if not known:
            return
        number = self.rng.choice(known[-3000:])
        self.ledger.removing["tags"].add(number)
        self.client.request(
            "POST", "/v0/topics/tags/delete", {"match": ["tag", "Eq", f"t{number}"]}
        )
        self.ledger.removed["tags"].append(number)
        self.counts["deleted"] += 1


def create_topics(api: Api) -> None:
    """Create all topics and routers."""
    for at in range(CHAINS):
        durability = ("disk", "fsync")[at % 2]
        for prefix in "abc":
            ok(api.put(f"{prefix}{at}", {"durability": durability}), 201)
        guarantee = ("at_least_once", "exactly_once")[at // 2]
        for one, other in ("ab", "bc"):
            ends = {"source": f"{one}{at}", "dest": f"{other}{at}", "guarantee": guarantee}
            assert api.call("PUT", f"/v0/routers/{one}{at}", ends).status == 201
    ok(api.put("eph", {"durability": "ephemeral"}), 201)
    for topic in ("tags", "blob", "dead"):
        ok(api.put(topic, {"durability": "disk"}), 201)
    ok(api.put("jobs", {"type": "queue", "max_deliveries": 1, "dead_letter": "dead"}), 201)


def wait_for(condition: Callable[[], bool], seconds: float) -> None:
    """Poll until the condition is true. Raise `AssertionError` if it takes too long."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, f"the condition was not met within {seconds} s"
        time.sleep(0.02)


class IncompleteBackup(Exception):
    """The response is incomplete, or is an error."""


def take_backup(address: tuple[str, int], file: Path, stop: threading.Event | None = None) -> None:
    """Take a backup. Raise `IncompleteBackup`, or the error of the connection. If ``stop`` is
    set, the client disconnects.
    """
    connection = http.client.HTTPConnection(*address, timeout=60)
    try:
        connection.request("GET", "/v0/backup")
        answer = connection.getresponse()
        if answer.status != 200:
            raise IncompleteBackup(f"{answer.status} {answer.read()!r}")
        with file.open("wb") as out:
            while block := answer.read(16 << 10):
                out.write(block)
                if stop is not None and stop.is_set():
                    raise IncompleteBackup("the client disconnected")
    except http.client.IncompleteRead as error:
        raise IncompleteBackup(str(error)) from error
    finally:
        connection.close()


def numbers_in(api: Api, topic: str) -> list[int]:
    return [record["data"][0] for record in api.read(topic)]


def wait_for_routers(api: Api) -> None:
    """Wait until no router lags. The first router of a chain is checked first."""
    for prefix in "ab":
        for at in range(CHAINS):
            path = f"/v0/routers/{prefix}{at}"
            wait_for(lambda path=path: not ok(api.call("GET", path))["lag_records"], WAIT_MAX_S)  # type: ignore[misc]


def judge(api: Api, moment: Moment, ledger: Ledger) -> Iterator[str]:
    """Return the errors in a server that was restored to ``moment`` or slightly later."""
    wait_for_routers(api)
    for at in range(CHAINS):
        source = numbers_in(api, f"a{at}")
        if lost := moment.appended[f"a{at}"] - {*source}:
            yield f"a{at} lacks {len(lost)} acknowledged records: {sorted(lost)[:5]}"
        if len({*source}) < len(source) or not {*source} <= ledger.sent[f"a{at}"]:
            yield f"a{at} has duplicate records, or records that were never appended"
        for prefix in "bc":
            copies = numbers_in(api, f"{prefix}{at}")
            if copies != source:
                duplicates = [n for n, count in Counter(copies).items() if count > 1]
                yield (
                    f"{prefix}{at}: {len(copies)} copies of {len(source)},"
                    f" duplicates {duplicates[:5]},"
                    f" missing {sorted({*source} - {*copies})[:5]},"
                    f" without a source {sorted({*copies} - {*source})[:5]}"
                )
    yield from _judge_jobs(api, moment, ledger)
    for topic in ("tags", "blob"):
        found = numbers_in(api, topic)
        if len({*found}) < len(found):
            yield f"{topic} has duplicate records"
        if lost := moment.appended[topic] - ledger.removing[topic] - {*found}:
            yield f"{topic} lacks {len(lost)} acknowledged records: {sorted(lost)[:5]}"
        if returned := moment.removed[topic] & {*found}:
            yield f"{topic} has {len(returned)} deleted records: {sorted(returned)[:5]}"


def _judge_jobs(api: Api, moment: Moment, ledger: Ledger) -> Iterator[str]:
    counts, found, duplicates = _find_jobs(api)
    # first, a move that the backup interrupted continues
    with contextlib.suppress(AssertionError):
        wait_for(lambda: not duplicates or not _find_jobs(api)[2], WAIT_MAX_S)
        counts, found, duplicates = _find_jobs(api)
    if duplicates:
        where = [[count_of[n] for count_of in counts] for n in duplicates[:5]]
        yield f"{len(duplicates)} jobs are duplicated: {duplicates[:5]}, in jobs, dead: {where}"
    if lost := moment.appended["jobs"] - ledger.removing["jobs"] - {*found}:
        yield f"{len(lost)} jobs are lost: {sorted(lost)[:5]}"
    if returned := moment.removed["jobs"] & {*found}:
        yield f"{len(returned)} acked jobs still exist: {sorted(returned)[:5]}"


def _find_jobs(api: Api) -> tuple[list[Counter[int]], Counter[int], list[int]]:
    """Return how often each job is in each topic, how often in all of them, and which are
    duplicated.
    """
    counts = [Counter(numbers_in(api, topic)) for topic in ("jobs", "dead")]
    found = counts[0] + counts[1]
    return counts, found, [n for n, count in found.items() if count > 1]


class Campaign:
    """One server under load, whose backups are restored."""

    def __init__(self, data_dir: Path, *, seed: int, seconds: float, kills: int) -> None:
        self.summary, self.kills = Summary(seed), kills
        self.data_dir, self._seconds = data_dir, seconds
        self.server = Server(data_dir, shards=SHARDS, wal_file_bytes=WAL_FILE_BYTES)
        self.rng, self.ledger = random.Random(seed), Ledger()
        self._redriver = Redriver(self.server, seed)

    def run(self) -> Summary:
        with self.server as server:
            with Api(server.address) as api:
                create_topics(api)
            actors = self._actors()
            for actor in actors:
                actor.start()
            try:
                self.take_backups()
            finally:
                stop_actors(actors)
            for actor in actors:
                self.summary.problems += actor.problems
                self.summary.counts += actor.counts
            with Api(server.address) as api:
                self.summary.problems += judge(api, self.ledger.now(), self.ledger)
                self.summary.counts["copies"] = len(numbers_in(api, "c0"))
            self._check_pins()
            self.summary.problems += deaths_by_themselves(server)
        self.summary.problems += damage(self.data_dir, SHARDS)
        return self.summary

    def _actors(self) -> list[Actor]:
        server, seed, ledger = self.server, self.summary.seed, self.ledger
        sources = [f"a{at}" for at in range(CHAINS)]
        return [
            *(Appender(at, server, seed, sources, ledger) for at in (1, 2)),
            Appender(3, server, seed, ["jobs", "jobs", "tags", "eph"], ledger),
            Appender(4, server, seed, ["blob"], ledger),
            Worker(server, seed, ledger),
            self._redriver,
            Deleter(server, seed, ledger),
        ]

    def take_backups(self) -> None:
        until = time.monotonic() + self._seconds
        time.sleep(min(2.0, self._seconds / 3))
        number = 0
        while number < 1 or time.monotonic() < until or self.kills > 0:
            number += 1
            if self.kills > 0:
                self.kills -= 1
                self._kill_during_backup(self.data_dir.with_name(f"broken-{number}.tar"))
            if number % 10 == 1 or self.kills <= 0:
                self._take_and_judge(number)

    def _take_and_judge(self, number: int) -> None:
        file = self.data_dir.with_name(f"{number}.tar")
        moment = self.ledger.now()
        began = time.monotonic()
        while True:
            try:
                take_backup(self.server.address, file)
                break
            except IncompleteBackup as cut:
                # the backup of a disconnected client may still be in progress
                if "max_backups" not in str(cut) or time.monotonic() > began + WAIT_MAX_S:
                    raise
            time.sleep(0.05)
        self.summary.counts["backups"] += 1
        self.summary.counts["backup ms"] += int(1000 * (time.monotonic() - began))
        self.summary.counts["backup bytes"] += file.stat().st_size
        self._restore_and_judge(file, moment, as_new=number % 2 == 0)

    def _restore_and_judge(self, file: Path, moment: Moment, *, as_new: bool) -> None:
        folder = file.with_suffix("")
        with file.open("rb") as stream:
            restore(stream, folder, as_new=as_new, with_damage=False)
        file.unlink()
        self.judge_server(folder, moment, folder.name, as_new=as_new)

    def judge_server(self, folder: Path, moment: Moment, what: str, *, as_new: bool) -> None:
        """Judge a restored server, check that its routers continue, and remove it."""
        what = f"{what}{' as new' if as_new else ''}"
        restored = Server(folder, shards=SHARDS, wal_file_bytes=WAL_FILE_BYTES)
        with restored, Api(restored.address) as api, Api(self.server.address) as live:
            self.summary.problems += [f"{what}: {text}" for text in judge(api, moment, self.ledger)]
            epochs = [one.state("a0")["epoch"] for one in (api, live)]
            if (epochs[0] > epochs[1]) != as_new:
                self.summary.problems.append(f"{what}: epochs {epochs}")
            for at in range(CHAINS):
                ok(api.append(f"a{at}", [-1, ""], [-2, ""]))
            wait_for_routers(api)
            for at in range(CHAINS):
                if numbers_in(api, f"c{at}") != numbers_in(api, f"a{at}"):
                    self.summary.problems.append(f"{what}: chain {at} does not continue")
        self.summary.problems += damage(folder, SHARDS)
        shutil.rmtree(folder)

    def _kill_during_backup(self, file: Path) -> None:
        """Kill a process, or disconnect the client, during a backup."""
        victim = self.rng.choice(["client", "front 0", "shard 0", "shard 1", "everything"])
        roles = self.server.wait_roles(SHARDS + 1)
        stop, delay = threading.Event(), self.rng.uniform(0, 0.6)

        def kill() -> None:
            time.sleep(delay)
            if victim == "client":
                stop.set()
            elif victim == "everything":
                self.server.kill()
            else:
                kill_one(roles[victim])

        thread = threading.Thread(target=kill)
        thread.start()
        moment = self.ledger.now()
        try:
            take_backup(self.server.address, file, stop)
        except (IncompleteBackup, *BROKEN):
            self.summary.counts["aborted"] += 1
            file.unlink(missing_ok=True)
        finally:
            thread.join()
        if victim == "everything":
            self.server.start()
        elif victim != "client":
            self.wait_replaced(victim, roles[victim])
        complete = self._redriver.complete
        wait_for(lambda: self._redriver.complete > complete, WAIT_MAX_S)
        if file.exists():
            self.summary.counts["complete despite the kill"] += 1
            self._restore_and_judge(file, moment, as_new=False)
        self.summary.counts[f"killed {victim}"] += 1
        self.summary.print_progress(f"killed {victim}, {self.kills} kills remaining")

    def wait_replaced(self, role: str, pid: int) -> None:
        wait_for(lambda: self.server.roles().get(role, pid) != pid, WAIT_MAX_S)
        self.server.wait_ready()

    def _check_pins(self) -> None:
        """Check that no file is kept for a finished backup: a new checkpoint removes the older
        ones.
        """

        def is_free() -> bool:
            for folder in (self.data_dir / "checkpoint").iterdir():
                if len([*folder.glob("*.ckpt")]) > 2:
                    return False
            return True

        with contextlib.suppress(AssertionError):
            wait_for(is_free, 30.0)
        if not is_free():
            self.summary.problems.append("checkpoints of backups are kept")


def campaign(data_dir: Path, *, seed: int, seconds: float = 30.0, kills: int = 0) -> Summary:
    """Run the campaign."""
    return Campaign(data_dir, seed=seed, seconds=seconds, kills=kills).run()


if __name__ == "__main__":
    sys.exit(program(__doc__, campaign, WANTED, seconds=60.0, kills=0))

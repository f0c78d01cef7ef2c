"""A state machine test of a shard that seals while its topics change, between any two steps and
across all kinds of restarts. It is compared with a simple model.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import invariant, rule

from tests.actors.shard.sealing.client_machine import MATCHES, ClientMachine, Model, matches
from tests.actors.shard.sealing.sealing_support import findings, matching_seqs
from topics.engine.topic import Topic
from topics.storage.checkpoints import intact_checkpoints


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    with structlog.testing.capture_logs():
        yield


@settings(max_examples=60, stateful_step_count=60, deadline=None)
class Machine(ClientMachine):
    """Actions of clients and the log, sealing, checkpoints and all kinds of restarts."""

    # Sealing

    @rule(steps=st.integers(1, 12))
    def seal(self, steps: int) -> None:
        for _ in range(steps):
            continues = self._step()
            self._settle()
            if not continues:
                break

    def _step(self) -> bool:
        try:
            return self.client.step()
        except OSError as error:  # the round fails: no space, or changes were undone
            if error.errno != errno.ENOSPC:
                raise
            return False

    @rule()
    def seal_all(self) -> None:
        while self._step():
            self._settle()
        self._settle()

    # Restarts

    @rule(
        how=st.sampled_from(["kill", "kill", "stop"]),
        older=st.booleans(),
        ms=st.sampled_from([0, 60]),
    )
    def restart(self, how: str, older: bool, ms: int) -> None:
        for name, topic in self.client.engine.topics.items():
            if topic.floor_due:  # the log was full when the floor should have been logged
                self._expire(name)
        self._wait()
        before = {
            topic_id: self._seen(topic) for topic_id, topic in self.client.engine.by_id.items()
        }
        client = self.client
        getattr(client, how)()
        assert [found for found in findings(client.path) if found.path not in self.damaged] == []
        if older:
            self._damage_newest_checkpoint(client.path)
        client.later(ms)
        self.client = client.again()
        assert client.engine.by_id.keys() == self.client.engine.by_id.keys()
        for topic_id, model in self.models.items():
            self._drop_memory(
                model, self.client.engine.by_id[topic_id], clean=how == "stop" and not older
            )
            if (
                not model.resident
                and self.client.engine.by_id[topic_id].next_seq
                == client.engine.by_id[topic_id].next_seq
            ):
                assert self._seen(self.client.engine.by_id[topic_id]) == before[topic_id]
            model.resident = set()

    def _damage_newest_checkpoint(self, path: Path) -> None:
        folder = path / "checkpoint" / "00"
        intact = intact_checkpoints(folder) if folder.exists() else []
        if max(folder.glob("*.ckpt"), default=None) in self.damaged:
            return
        if len(intact) == 2 or (
            intact and min((path / "wal" / "00").glob("*.wal")).name.startswith("0" * 16)
        ):
            newest = max(folder.glob("*.ckpt"))
            data = bytearray(newest.read_bytes())
            data[-1] ^= 1
            newest.write_bytes(data)
            self.damaged.add(newest)

    def _seen(self, topic: Topic) -> Any:
        alive = sorted(
            key
            for key in self.keys[topic.id]
            if topic.dedupe.find(key, self.client.now.ms, 1 << 40)
        )
        return (
            topic.config,
            topic.head_seq,
            topic.start_seq,
            topic.cap_floor,
            topic.ttl_floor,
            alive,
            topic.epoch,
        )

    def _drop_memory(self, model: Model, topic: Topic, *, clean: bool) -> None:
        for seq in model.resident & model.live.keys():
            del model.live[seq]
        assert topic.head_seq >= model.head_seq
        model.head_seq = topic.head_seq
        model.floor = max(model.floor, topic.loss_floor)

    # Invariant

    @invariant()
    def the_shard_equals_the_model(self) -> None:
        if not hasattr(self, "client"):
            return
        self._settle()
        engine = self.client.engine
        assert {name: topic.id for name, topic in engine.topics.items()} == self.names
        for name, topic_id in self.names.items():
            topic, model = engine.topics[name], self.models[topic_id]
            if topic.ttl_floor > model.ttl_floor:  # a cap has also applied the age
                model.expire(self.client.now.ts, topic.ttl_floor)
            page = self.client.page(name)
            assert topic.head_seq == model.head_seq
            assert (topic.count, topic.earliest_seq) == (len(model.live), model.earliest_seq)
            shown = self.client.shown(name)
            expected = [(seq, data, tag, ts) for seq, (data, tag, ts) in sorted(model.live.items())]
            assert [
                (record["$seq"], record["data"], record.get("$tag"), record["$ts"])
                for record in shown
            ] == expected
            if not topic.losses and model.live:
                assert topic.bytes == sum(map(len, page.chunks)) + len(page.chunks)
            assert (
                max(topic.cap_floor, topic.ttl_floor, topic.loss_floor) == model.floor
                or topic.losses
                or topic.loss_floor > 1
            )
            for match in MATCHES:
                found = [
                    seq for seq in matching_seqs(topic, match, engine.store) if seq in model.live
                ]
                assert found == [
                    seq for seq, (_, tag, _) in sorted(model.live.items()) if matches(match, tag)
                ]
            for key, (first_seq, count) in self.keys[topic_id].items():
                write = topic.dedupe.find(
                    key, self.client.now.ms, topic.config.idempotency_window_ms
                )
                assert (
                    write is not None or model.resident or topic.loss_floor > 1 or topic.losses
                ), key
                assert write is None or (write.first_seq, write.record_count) == (first_seq, count)


def test_after_a_kill_a_cap_removes_no_record_that_had_expired() -> None:
    machine = Machine()
    machine.begin()
    machine.append(count=3, key=False, name="c", size=1, tag=None, wait=False)
    machine.later(ms=60)
    machine.put(cap=3, durability=None, name="c", ttl=None, wait=False)
    machine.put(cap=None, durability=None, name="c", ttl=40, wait=True)
    machine.append(count=1, key=False, name="c", size=1, tag=None, wait=False)
    machine.put(cap=None, durability=None, name="c", ttl=None, wait=False)
    machine.restart(how="kill", ms=0, older=False)
    machine.teardown()


TestSealing = pytest.mark.slow(Machine.TestCase)

"""Seeded clients that use all features of a server, for one hour or for a shorter time.

The seed draws the kinds of clients, the features that they use (swarm testing: runs differ in
kind), the topics, and the rhythm: bursts in which many clients act within the same milliseconds,
and pauses of minutes in which ages, leases, delays and windows expire. Each client has its own
rng. All times below are those of a run of one hour; a shorter run scales them down.

The topics have names in all shards: logs that clients append to, queues, dead-letter topics that
queues of several shards share, and dests that routers create. Every record's ``data`` is ``{"by":
client, "n": number of the append, "i": index in it, "pad": text}``. A repeated append keeps ``n``.
This module does not judge any response.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode

import trio

from tests.simulation.clients import Client, Connect, Token
from tests.simulation.final import read_everything
from tests.simulation.history import Call, History
from topics.formats.names import shard_of

HOUR_S = 3600.0
SHORT_MS = 20  # shorter times are never scaled
SETUP, FINAL = "setup", "final"  # clients of the first and the last phase
CALLS_PER_STEP = 1.5
CLASSES = ("fsync", "disk", "memory", "ephemeral", "disk", "fsync")
TAGS = ("red:1", "red:2", "red", "blue", "blue*")
MATCHES = ("red", ["tag", "Eq", "red:1"], ["tag", "Glob", "red:*"], ["tag", "Glob", "*"], "blue*")
NODES = ("n1", "n2", "n3")
SIZES = (0, 0, 10, 100, 100, 2000)
BIG_BYTES = (300 << 10, 700 << 10)
BATCHES = (1, 1, 1, 1, 2, 3, 10, 40)
# of one run; the share of backup steps that take a backup
BACKUP_STEPS, BACKUP_SHARE, BACKUPS_MAX = 10, 0.4, 4
REDRIVES_MAX = 60  # of one client during one backup
LATE = (0.1, 0.2, 0.3)  # the share of late messages during a backup
STRAYS = (0, 3, 16, 20, 40)  # letters without a source, before other letters
# Each run has about half of these features. A gentle run has none that removes records.
FEATURES = (
    *(
        "keys",
        "shared keys",
        "late repeats",
        "concurrent repeats",
        "batches",
        "big",
        "tags",
        "meta",
        "nodes",
    ),
    *(
        "caps",
        "ages",
        "windows",
        "rejecting",
        "delays",
        "durable leases",
        "jitter",
        "waits",
        "haste",
    ),
    *("slow bodies", "retyping", "odd", "mixed routes", "cycles", "steady", "no dead letters"),
    *(
        "bad jobs",
        "one dead-letter topic",
        "mostly queues",
        "long windows",
        "letters without source",
        "tenants",
    ),
)
ADVERSE = ("caps", "ages", "windows", "rejecting", "retyping")


@dataclass
class Topic:
    """A topic name and the config that it was last created with."""

    name: str
    role: str  # "log", "queue", "dead", "dest"
    config: dict[str, Any] = field(default_factory=dict)

    @property
    def path(self) -> str:
        return f"/v0/topics/{self.name}"

    @property
    def is_queue(self) -> bool:
        return self.config.get("type") == "queue"


def tenant_of(key: str) -> str:
    """Return the key of a tenant that is added and removed together with ``key``."""
    return f"{key}tenant"


def named(base: str, shard: int, shards: int) -> str:
    """Return a name that belongs to the shard."""
    names = (f"{base}{'x' * number}" for number in range(1000))
    return next(name for name in names if shard_of(name, shards) == shard)


class Work:
    """Clients and their shared state. ``calls``: the approximate number of calls in a run of full
    length. ``token``: the current key, which may change at any time. ``takes_backups`` adds a
    client that takes backups. ``set_late`` sets the share of messages that are delivered late.
    """

    def __init__(
        self,
        seed: int | str,
        connect: Connect,
        history: History,
        shards: int,
        *,
        span_s: float = HOUR_S,
        calls: int = 2400,
        token: Token | None = None,
        takes_backups: bool = False,
        set_late: Callable[[float], object] = lambda _: None,
    ) -> None:
        self.seed, self.connect, self.history, self.shards = seed, connect, history, shards
        self.span_s, self.calls, self.token = span_s, calls, token
        self.set_late = set_late
        self.call_count = 0  # number of calls
        self.heads: dict[str, int] = {}  # as last reported
        self.backups: list[tuple[Call, bytes]] = []  # complete tars, and the calls for them
        rng = self.rng("work")
        is_gentle = rng.random() < 0.4
        self.has = {name: rng.random() < 0.5 for name in FEATURES}
        self.has |= dict.fromkeys(ADVERSE, False) if is_gentle else {}
        self.topics = self._topics(rng)
        self.dests = [
            Topic(named(f"copy{n}", n % shards, shards), "dest") for n in range(max(4, shards + 1))
        ]
        self.bursts = self._bursts(rng)
        drawn = [
            (kind, share)
            for kind, least, most, share in KINDS
            if not (is_gentle and kind in (Deleter, Configurer, Recreator))
            for _ in range(rng.randint(max(least, 1), most) * (least > 0 or rng.random() < 0.6))
        ]
        self.is_routed = RouterMaker in dict(drawn)
        steps = calls / CALLS_PER_STEP / sum(share for _, share in drawn)
        self.actors = [
            kind(self, f"{kind.__name__.lower()}{number}", share * steps)
            for number, (kind, share) in enumerate(drawn)
        ]
        if takes_backups:
            self.actors.append(BackupClient(self, "backuptaker", BACKUP_STEPS))

    def rng(self, name: str) -> random.Random:
        """Return the random generator of the client with that name."""
        return random.Random(f"{self.seed}/{name}")

    def client(self, name: str, rng: random.Random) -> Client:
        """Return a connection of the client with that name."""
        return Client(name, self.connect, self.history, rng, self.token)

    async def run(self) -> None:
        """Run all clients for ``span_s``."""
        began = trio.current_time()
        with trio.move_on_at(began + self.span_s):
            for first in range(0, len(self.topics), self.shards):
                # concurrently, so that topics may get the same epoch
                async with trio.open_nursery() as nursery:
                    for number, topic in enumerate(self.topics[first : first + self.shards], first):
                        setup = self.client(f"{SETUP}{number}", self.rng(SETUP))
                        nursery.start_soon(setup.call_until_final, "PUT", topic.path, topic.config)
            async with trio.open_nursery() as nursery:
                for actor in self.actors:
                    nursery.start_soon(actor.run, began)
                await trio.sleep_forever()

    async def final(self, limit_s: float = 600.0) -> None:
        """Read everything after all other clients have stopped. Wait at most ``limit_s`` for an
        unavailable server and for routers that lag.
        """
        known = [topic.name for topic in self.topics + self.dests]
        await read_everything(self.client(FINAL, self.rng(FINAL)), known, limit_s)

    def ms(self, rng: random.Random, *choices: int) -> int:
        """Draw one of these times and scale it to the length of the run."""
        drawn = rng.choice(choices)
        return max(min(drawn, SHORT_MS), int(drawn * min(1.0, self.span_s / HOUR_S)))

    def _topics(self, rng: random.Random) -> list[Topic]:
        first, shards = rng.randrange(len(CLASSES)), self.shards
        roles = ["log"] * rng.randint(4, 6) + ["dead"] * 2 + ["queue"] * rng.randint(2, 4)
        topics: list[Topic] = []
        for number, role in enumerate(roles):
            base = rng.choice((role, role[0], role[0].upper())) + rng.choice((".", ":", "-", ""))
            name = named(f"{base}{number}", number % shards, shards)
            durability = CLASSES[(first + number) % len(CLASSES)]
            topics.append(Topic(name, role, self.config(rng, role, topics, durability)))
        return topics

    def config(
        self, rng: random.Random, role: str, topics: Sequence[Topic], durability: str
    ) -> dict[str, Any]:
        """Draw the config of a new topic."""
        config: dict[str, Any] = {"durability": durability}
        if durability == "fsync" and rng.random() < 0.3:
            config = {"durable": True}
        if self.has["caps"] and rng.random() < 0.4:
            caps = {"cap_records": rng.choice((1, 5, 40, 200))}, {"cap_bytes": 5000}
            config |= rng.choice(caps)
            if self.has["rejecting"] and rng.random() < 0.5:
                config["discard"] = "reject"
        if self.has["ages"] and rng.random() < 0.3:
            config["ttl_ms"] = self.ms(rng, 2000, 60_000, 600_000)
        if self.has["windows"] and rng.random() < 0.5:
            config["idempotency_window_ms"] = self.ms(rng, 0, 5000, 600_000, 3_600_000)
        elif self.has["long windows"]:
            config["idempotency_window_ms"] = 3_600_000
        if role != "queue" and (role != "dead" or rng.random() < 0.5):
            return config
        config |= {"type": "queue", "lease_ms": self.ms(rng, 1000, 10_000, 60_000, 300_000)}
        if self.has["durable leases"] and rng.random() < 0.5:
            config["leases_durable"] = True
        if self.has["jitter"] and rng.random() < 0.5:
            config["claim_jitter_ms"] = rng.choice((5, 50))
        if role == "queue" and not self.has["no dead letters"] and rng.random() < 0.8:
            dead = [topic.name for topic in topics if topic.role == "dead"]
            # one dead-letter topic for queues of all shards
            dead = dead[:1] if self.has["one dead-letter topic"] else dead
            config |= {
                "max_deliveries": rng.choice((1, 1, 2, 3)),
                "dead_letter": rng.choice(dead),
            }
        return config

    def _bursts(self, rng: random.Random) -> list[tuple[float, float, float]]:
        """Return the start of each burst, the start of the next burst, and the duration of most of
        its activity, all in seconds.
        """
        pauses = [rng.expovariate(1.0) + 0.05 for _ in range(rng.randint(6, 20))]
        ats = [self.span_s * sum(pauses[:n]) / sum(pauses) for n in range(len(pauses) + 1)]
        lengths_ms = (0, 50, 2000, 30_000)
        return [(*ends, self.ms(rng, *lengths_ms) / 1000) for ends in pairwise(ats)]


class Actor(Client):
    """A simulated client. It calls ``step`` repeatedly in every burst.

    ``steps`` is the approximate total number of calls.
    """

    def __init__(self, work: Work, name: str, steps: float = 0.0) -> None:
        super().__init__(name, work.connect, work.history, work.rng(name), work.token)
        self.work, self._steps, self._is_steady = work, steps, self.rng.random() < 0.3
        self.prepare()

    def prepare(self) -> None:
        """Draw the values that all calls of ``step`` share."""

    async def run(self, began: float) -> None:
        """Act during the bursts, or all the time."""
        work, rng = self.work, self.rng
        self.haste = 0.04 if work.has["haste"] else 0.0
        self.slow = 0.1 if work.has["slow bodies"] else 0.0
        while self._is_steady and work.has["steady"]:
            await trio.sleep(rng.expovariate(self._steps / work.span_s))
            await self.step()
        for number, (begins, ends, length_s) in enumerate(work.bursts, 1):
            await trio.sleep_until(began + begins + rng.choice((0.0, 0.0, 0.001)))
            steps = 1 + int(rng.expovariate(0.7) * self._steps / len(work.bursts))
            for _ in range(steps):
                await self.step()
                await trio.sleep(rng.expovariate(1.0) * length_s / steps)
                is_over = trio.current_time() >= began + ends
                if is_over or work.call_count >= work.calls * number / len(work.bursts):
                    break
        await trio.sleep_forever()

    async def step(self) -> None:
        raise NotImplementedError

    async def call(self, method: str, path: str, body: Any = None, **headers: str) -> Call:
        """Send a request, and store the reported head."""
        self.work.call_count += 1
        call = await super().call(method, path, body, **headers)
        if call.status == 200 and isinstance(call.answer, dict) and "head_seq" in call.answer:
            self.work.heads[call.answer["topic"]] = call.answer["head_seq"]
        return call

    # Random choices

    def has(self, feature: str, share: float = 1.0) -> bool:
        """Return whether this run has the feature and the random generator selects it."""
        return self.work.has[feature] and self.rng.random() < share

    def ms(self, *choices: int) -> int:
        return self.work.ms(self.rng, *choices)

    def some(self, share: float, **choices: Sequence[Any]) -> dict[str, Any]:
        """Draw some of these fields, each with one of its values."""
        rng = self.rng
        return {name: rng.choice(of) for name, of in choices.items() if rng.random() < share}

    def topic(self, *roles: str) -> Topic:
        """Draw a created topic, of one of these roles if any are given."""
        role = self.rng.choice(roles) if roles else None
        found = [topic for topic in self.work.topics if role in (None, topic.role)]
        return self.rng.choice(found)

    def queue(self) -> Topic:
        """Draw a topic, which is almost always a queue."""
        found = [topic for topic in self.work.topics if topic.is_queue]
        return self.rng.choice(found) if found and self.rng.random() < 0.97 else self.topic()

    def any_topic(self) -> Topic:
        """Draw any topic, including dests of routers if there are routers."""
        dests = self.work.dests if self.work.is_routed else []
        return self.rng.choice(self.work.topics + dests)

    def near(self, topic: Topic) -> int:
        """Draw a seq from the first one to slightly above the head."""
        return self.rng.randint(0, self.work.heads.get(topic.name, 0) + 2)


class Appender(Actor):
    """Appends, with idempotency keys or without."""

    def prepare(self) -> None:
        self._second_client = self.work.client(self.name, self.rng)
        self._is_keyed = self.has("keys", 0.7)
        self._count = 0
        self._last: tuple[Topic, str] | None = None  # the last use of a key
        self._done: tuple[str, dict[str, Any], dict[str, str]] | None = None

    async def step(self) -> None:
        if self._done is not None and self.has("late repeats", 0.3):
            path, body, headers = self._done
            await self.call_until_final("POST", path, body, **headers)
            return
        main_role = "queue" if self.has("mostly queues") else "log"
        topic = self.topic(main_role, main_role, "queue", "dead" if self.has("odd", 0.1) else "log")
        if self.has("mixed routes", 0.1):
            topic = self.rng.choice(self.work.dests)
        body = self._body(topic)
        path = topic.path + ("?return_seqs=false" if self.has("odd", 0.1) else "")
        if not self._is_keyed:
            await self.call("POST", path, body)
            return
        headers = self._keyed(topic, body)
        self._done = path, body, headers
        async with trio.open_nursery() as nursery:
            if self.has("concurrent repeats", 0.2):
                nursery.start_soon(lambda: self._second_client.call("POST", path, body, **headers))
            await self.call_until_final("POST", path, body, **headers)

    def _keyed(self, topic: Topic, body: dict[str, Any]) -> dict[str, str]:
        """Add a key to the append. Return the headers that it needs."""
        key = f"{self.name}-{self._count}"
        if self._last is not None and self._last[0] is not topic and self.has("shared keys", 0.3):
            key, self._last = self._last[1], None  # keys belong to a topic
        else:
            self._last = topic, key
        if self.rng.random() < 0.3:
            return {"Idempotency_Key": key}
        body["idempotency_key"] = key
        return {}

    def _body(self, topic: Topic) -> dict[str, Any]:
        rng = self.rng
        self._count += 1
        count = rng.choice(BATCHES) if self.has("batches") else 1
        body: dict[str, Any] = {"records": [self._record(topic, i) for i in range(count)]}
        if self.has("big", 0.04):
            body["records"][0]["data"]["pad"] = "b" * rng.randint(*BIG_BYTES)
        if self.has("nodes"):
            body |= self.some(0.3, node=NODES)
        if self.has("odd"):
            body |= self.some(0.15, create=(True, True, False), disable_backpressure=(True, False))
        has_config = topic.is_queue or self.rng.random() < 0.3
        # the config for a topic that the append creates
        return body | ({"config": topic.config} if has_config else {})

    def _record(self, topic: Topic, i: int) -> dict[str, Any]:
        rng = self.rng
        data = {"by": self.name, "n": self._count, "i": i, "pad": "p" * rng.choice(SIZES)}
        record: dict[str, Any] = {"data": data}
        if self.has("tags"):
            record |= self.some(0.7, tag=TAGS)
        if self.has("nodes"):
            record |= self.some(0.2, node=NODES)
        if self.has("meta", 0.3):
            record["meta"] = {"trace": f"{self.name}/{self._count}", "é": rng.randint(0, 9)}
        if topic.is_queue and self.has("delays", 0.2):
            record["delay_ms"] = self.ms(0, 500, 20_000, 300_000)
        return record


class Reader(Actor):
    """Reads some topics page by page, and waits for new records."""

    def prepare(self) -> None:
        self._at: dict[str, tuple[int, int | None]] = {}
        self._topics = [self.any_topic() for _ in range(self.rng.randint(1, 4))]
        self._view = self.some(0.4, include_tags=[True], include_meta=[True, False])
        if self.has("nodes"):
            self._view |= self.some(0.3, node=(NODES[0], [*NODES[1:]]))

    async def step(self) -> None:
        rng, topic = self.rng, self.rng.choice(self._topics)
        from_seq, epoch = self._at.get(topic.name, (0, None))
        if rng.random() < 0.05:
            from_seq = self.near(topic)
        body = {"from_seq": from_seq, "limit": rng.choice((1, 3, 50, 1000)), **self._view}
        if epoch is not None and rng.random() < 0.8:
            body["epoch"] = epoch
        if self.has("waits", 0.5):
            body["wait_ms"] = self.ms(50, 2000, 30_000)
        body |= self.some(0.1, max_batch_bytes=(0, 1, 5000))
        call = await self.call("POST", f"{topic.path}/diff", body)
        if call.status == 200:
            self._at[topic.name] = call.answer["next_from_seq"], call.answer.get("epoch")
        elif call.status == 404:
            self._at.pop(topic.name, None)


class Watcher(Actor):
    """Follows topics over a watch session, and resumes it with its cursors."""

    def prepare(self) -> None:
        topics = [self.any_topic().name for _ in range(self.rng.randint(1, 5))]
        self.at: dict[str, tuple[int, int | None]] = dict.fromkeys(topics, (0, None))
        self.ids: list[str] = []
        self._url = ""
        self.options = {"heartbeat_ms": self.rng.choice((15_000, 60_000, 60_000))}
        self.options |= self.some(0.3, include_tags=[True], limit=(1, 7), max_batch_bytes=(0, 3000))
        if self.has("nodes"):
            self.options |= self.some(0.3, node=NODES)

    async def step(self) -> None:
        if not self._url and not await self._subscribe():
            return
        headers = {}
        if self.ids and self.rng.random() < 0.6:
            headers["Last_Event_ID"] = self.rng.choice([self.ids[-1], self.rng.choice(self.ids)])
        if await self.follow(self._url, headers) != 200:
            self._url = ""

    async def _subscribe(self) -> bool:
        """Create a session that begins at the end of the last one."""
        starts: dict[str, Any] = {}
        for topic, (from_seq, epoch) in self.at.items():
            starts[topic] = {"from_seq": from_seq}
            if epoch is not None:
                starts[topic]["epoch"] = epoch
            elif self.rng.random() < 0.2:
                starts[topic] = {"tail": True}
        body = {"topics": starts, **self.options, **self.some(0.3, consistency=["strong"])}
        lenient = self.rng.choice(("", "?lenient=true", "?lenient=true"))
        call = await self.call("POST", f"/v0/watch{lenient}", body)
        if call.status != 200:
            return False
        self._url, self.ids = call.answer["stream_url"], []
        return bool(call.answer["topics"])

    async def follow(self, path: str, headers: dict[str, str]) -> int | None:
        """Receive events for some time. Return the status of the call."""
        self.work.call_count += 1
        async with self.stream("GET", path, **headers) as events:
            with trio.move_on_after(self.ms(50, 5000, 60_000, 600_000) / 1000):
                async for event in events:
                    self.take(event.event, event.id, event.data)
                    if self.rng.random() < 0.02:
                        await trio.sleep(self.ms(10, 6000) / 1000)
        return events.call.status

    def take(self, event: str, id: str, data: Any) -> None:
        """Advance the cursor."""
        if id:
            self.ids = [*self.ids[-20:], id]
        if event == "record":
            self.at[data["topic"]] = data["to_seq"], data.get("epoch")
            self.work.heads[data["topic"]] = data["head_seq"]
        elif event == "tombstone":
            self.at[data["topic"]] = data["gap_to"], data.get("epoch")
        elif event == "topic-deleted":
            self.at[data["topic"]] = 0, None


class Follower(Watcher):
    """Follows topics with one request, and resumes with the last event id."""

    async def step(self) -> None:
        query: list[tuple[str, Any]] = [("topic", topic) for topic in self.at]
        query += [(name, str(value).lower()) for name, value in self.options.items()]
        headers = {}
        if self.ids and self.rng.random() < 0.8:
            headers["Last_Event_ID"] = self.ids[-1]
        else:
            self.ids = []
            query.append(self.rng.choice((("from_seq", 0), ("tail", "true"))))
        await self.follow(f"/v0/watch?{urlencode(query)}", headers)


class Deleter(Actor):
    """Deletes records below a seq, by tag, or both."""

    async def step(self) -> None:
        topic = self.any_topic()
        body = self.some(0.6, before_seq=[self.near(topic)], match=MATCHES)
        await self.call("POST", f"{topic.path}/delete", body or {"match": "red:2"})


class Configurer(Actor):
    """Changes configs, sometimes to one that must be refused."""

    async def step(self) -> None:
        rng, topic, work = self.rng, self.topic(), self.work
        kept = topic.config.get("durability", "fsync")
        durability = rng.choice(CLASSES) if rng.random() < 0.15 else kept
        change = work.config(rng, topic.role, work.topics, durability)
        change.pop("type", None)
        body = self.some(0.5, **{name: [value] for name, value in change.items()})
        body |= self.some(0.2, priority=(None, -5000, 0, 7))
        if self.has("caps", 0.1):
            body |= {"cap_records": 0, "cap_bytes": 0, "discard": "old"}
        if self.has("odd"):
            other = "log" if topic.is_queue else "queue"
            body |= self.some(0.05, colour=["red"], type=[other], ttl_ms=[-1], discard=["no"])
        if (await self.call("PUT", topic.path, body)).status == 200:
            topic.config = topic.config | body  # the history contains the sent body


class Recreator(Actor):
    """Deletes topics and recreates them, immediately or later, sometimes with another type."""

    async def step(self) -> None:
        topics = [self.topic() for _ in range(self.rng.choice((1, 1, 3)))]
        if self.has("mixed routes", 0.3):
            topics.append(self.rng.choice(self.work.dests))
        for topic in topics:
            query = "?if_empty=true" if self.rng.random() < 0.2 else ""
            await self.call("DELETE", topic.path + query)
        await trio.sleep(self.ms(0, 0, 1, 1000, 60_000) / 1000)
        for topic in topics:
            if self.rng.random() < 0.3:
                role, durability = topic.role, topic.config.get("durability", "fsync")
                if self.has("retyping", 0.3):
                    role = "log" if topic.is_queue else "queue"
                config = self.work.config(self.rng, role, self.work.topics, durability)
                own = {"dead_letter": None} if config.get("dead_letter") == topic.name else {}
                topic.config = config | own
            if self.rng.random() < 0.8:  # otherwise an append or a router creates it
                await self.call_until_final("PUT", topic.path, topic.config)


class Held(NamedTuple):
    """A job that the worker holds or held."""

    topic: Topic
    seq: int
    lease_id: str


class Worker(Actor):
    """Claims jobs and settles them, correctly and incorrectly."""

    def prepare(self) -> None:
        self.node = "crew" if self.rng.random() < 0.2 else self.name
        self._old: list[Held] = []  # acked or not, leased or not

    async def step(self) -> None:
        topic = self.queue()
        body: dict[str, Any] = {"node": self.node, "max": self.rng.choice((1, 1, 2, 5, 50))}
        body |= self.some(0.6, lease_ms=[self.ms(200, 2000, 30_000, 300_000)])
        if self.has("waits", 0.4):
            body["wait_ms"] = self.ms(50, 2000, 30_000)
        call = await self.call("POST", f"{topic.path}/claim", body)
        if call.status == 200:
            await self.handle(topic, call.answer["claimed"])
        await self.settle_again()

    async def handle(self, topic: Topic, claimed: list[dict[str, Any]]) -> None:
        """Decide how to settle jobs of one queue."""
        jobs = [Held(topic, job["$seq"], job["lease_id"]) for job in claimed]
        await trio.sleep(self.ms(0, 0, 10, 1000, 20_000) / 1000 if jobs else 0)
        at = self.rng.randint(0, len(jobs))
        fate = self.rng.choice(("ack", "ack", "ack", "mixed", "extend", "nack", "later", "later"))
        fate = "nack" if self.has("bad jobs", 0.7) else fate
        if fate == "mixed":
            await self.settle("ack", jobs[:at])
            await self.settle("nack", jobs[at:])
        elif fate != "later":
            await self.settle(fate, jobs)
        if fate == "extend":
            await trio.sleep(self.ms(10, 1000, 10_000) / 1000)
            await self.settle("ack", jobs)
        self._old = [*self._old[-20:], *jobs]

    async def settle_again(self) -> None:
        """Settle jobs again that are finished or were kept for later."""
        if self._old and self.rng.random() < 0.25:
            topic = self.rng.choice(self._old).topic
            jobs = [job for job in self._old if job.topic is topic][-5:]
            await self.settle(self.rng.choice(("ack", "nack", "extend")), jobs)

    async def settle(self, verb: str, jobs: list[Held]) -> None:
        """Ack, nack or extend jobs of one queue, with their leases or without."""
        if not jobs:
            return
        body: dict[str, Any] = {"node": self.node, "seqs": [job.seq for job in jobs]}
        body |= self.some(0.6, lease_ids=[[job.lease_id for job in jobs]])
        if verb == "extend":
            body["lease_ms"] = self.ms(500, 30_000, 300_000)
        if verb == "nack":
            delay_ms, errors = self.ms(0, 300, 10_000, 120_000), ("broken", "é" * 20, None)
            body |= self.some(0.5, delay_ms=[delay_ms], error=errors)
        await self.call("POST", f"{jobs[0].topic.path}/{verb}", body)


class Pushed(Worker):
    """A worker that receives jobs over an event stream."""

    async def step(self) -> None:
        topic = self.queue()
        query: dict[str, Any] = {"node": self.node, "max": self.rng.choice((1, 3, 20))}
        query |= self.some(0.7, lease_ms=[self.ms(500, 5000, 60_000)])
        path = f"{topic.path}/work?{urlencode(query)}"
        self.work.call_count += 1
        async with self.stream("GET", path) as events:
            with trio.move_on_after(self.ms(20, 3000, 30_000, 300_000) / 1000):
                async for event in events:
                    if event.event == "job":
                        await self.handle(topic, [event.data])
        await self.settle_again()


class Redriver(Actor):
    """Moves dead letters back, often by several concurrent redrives, with a key for all topics or
    the key of a tenant. First it appends letters: some have no source, and some have a
    source that does not exist, is full or belongs to another tenant.
    """

    def prepare(self) -> None:
        work, self._count = self.work, 0
        if work.token is not None and self.has("tenants", 0.5):
            token = work.token
            self._token = lambda: tenant_of(token())
        self._others = [
            Client(self.name, work.connect, work.history, self.rng, self._token) for _ in range(2)
        ]

    async def step(self) -> None:
        topic = self.topic("dead")
        if self.has("letters without source", 0.6):
            await self._stray(topic)
        async with trio.open_nursery() as nursery:
            for other in self._others[: self.rng.choice((0, 1, 2))]:
                nursery.start_soon(self._redrive, other, topic, self.ms(0, 1, 2) / 1000)
            await self._redrive(self, topic, 0.0)

    async def _redrive(self, client: Client, topic: Topic, pause_s: float) -> None:
        other = self.topic("queue", "log", "log").name
        body = self.some(0.2, match=MATCHES, before_seq=[self.near(topic)])
        body |= self.some(0.4, to=[other]) | self.some(0.4, limit=(1, 3, 1000))
        await trio.sleep(pause_s)
        await client.call("POST", f"{topic.path}/redrive", body or None)

    async def _stray(self, topic: Topic) -> None:
        rng = self.rng
        strays, letters = rng.choice(STRAYS), rng.randint(1, 40)
        sources = (self.queue(), self.topic("log"), self.topic("log"), Topic("gone", "log"))
        await self._append(self, topic, rng.choice(sources).name, strays, letters)

    async def _append(
        self, client: Client, topic: Topic, source: str, strays: int, letters: int
    ) -> None:
        """Append letters. The ``strays``, which have no source, are appended first."""
        self._count += 1
        records: list[dict[str, Any]] = []
        for i in range(strays + letters):
            record: dict[str, Any] = {"data": {"by": self.name, "n": self._count, "i": i}}
            if i >= strays:
                record["meta"] = {"$dead_letter_from": source}
            records.append(record)
        body = {"records": records, "create": False}
        await client.call("POST", topic.path, body)


class BackupClient(Redriver):
    """Takes backups while letters are moved back a few at a time and messages are late.

    Because messages are late, moves are often in flight when the shards are requested to hold them.
    """

    def prepare(self) -> None:
        self._count, self._left = 0, BACKUPS_MAX
        self._others = [self.work.client(self.name, self.rng) for _ in range(2)]

    async def step(self) -> None:
        if not self._left or self.rng.random() > BACKUP_SHARE:
            return
        self._left -= 1
        topic, is_over = self.topic("dead"), trio.Event()
        self.work.set_late(self.rng.choice(LATE))
        async with trio.open_nursery() as nursery:
            for other in self._others:
                nursery.start_soon(self._move, other, topic, is_over)
            call = await self.call("GET", "/v0/backup")
            is_over.set()
        self.work.set_late(0.0)
        if call.status == 200:
            self.work.backups.append((call, call.answer))
            call.answer = None

    async def _move(self, client: Client, topic: Topic, is_over: trio.Event) -> None:
        for _ in range(REDRIVES_MAX):
            if is_over.is_set():
                break
            source = self.topic("queue", "log").name
            await self._append(client, topic, source, self.rng.choice((0, 0, 1)), 3)
            await client.call("POST", f"{topic.path}/redrive", {"limit": self.rng.choice((1, 4))})


class RouterMaker(Actor):
    """Creates chains over all shards, fan-outs, and cycles, most of which must be refused."""

    def prepare(self) -> None:
        dests, shards = self.work.dests, self.work.shards
        source, other = self.topic("log"), self.topic("log", "queue")
        self._plan = [*pairwise([source, *dests[:shards]])]  # a chain
        self._plan += [(other, dest) for dest in dests[shards:]]
        if self.rng.random() < 0.3:  # a fan-out
            self._plan = [(source, dest) for dest in dests]
        self._made: list[str] = []

    async def step(self) -> None:
        rng, draw = self.rng, self.rng.random()
        while self._plan:
            await self._put(*self._plan.pop(0))
        if draw < 0.2 and self._made:
            await self.call("DELETE", rng.choice(self._made))
        elif draw < 0.4 and self._made:
            await self.call("GET", rng.choice(self._made))
        else:
            dest = self.any_topic() if self.has("mixed routes") else rng.choice(self.work.dests)
            await self._put(self.any_topic(), dest)

    async def _put(self, source: Topic, dest: Topic) -> None:
        path = f"/v0/routers/{quote(f'{source.name}->{dest.name}')}"
        if self._made and self.rng.random() < 0.1:
            path = self.rng.choice(self._made)  # with other source and dest
        body: dict[str, Any] = {"source": source.name, "dest": dest.name}
        body |= self.some(0.4, guarantee=["exactly_once"])
        body |= self.some(0.07, preserve_node=[False], preserve_tag=[False], create_dest=[False])
        if self.has("tags"):
            body |= self.some(0.2, filter=MATCHES)
        if self.has("cycles", 0.3):
            body["allow_cycle"] = True
        call = await self.call("PUT", path, body)
        if call.status in (200, 201) and path not in self._made:
            self._made.append(path)


class Lister(Actor):
    """Reads states, lists and leases."""

    async def step(self) -> None:
        topic, size = self.any_topic(), self.rng.choice((1, 5, 1000))
        paths = (
            *(topic.path, f"{topic.path}?touch=false", f"{topic.path}/leases?page_size={size}"),
            *(f"/v0/topics?page_size={size}", f"/v0/topics?prefix={quote(topic.name[:1])}"),
            *("/v0/routers", f"/v0/routers?source={quote(topic.name)}", "/v0/ready"),
        )
        await self.call("GET", self.rng.choice(paths))


# Minimum and maximum number of clients of each kind, and their steps relative to a reader. Kinds
# with a minimum of 0 are present in six of ten runs.
KINDS: tuple[tuple[type[Actor], int, int, float], ...] = (
    *((Appender, 2, 5, 1.5), (Reader, 1, 3, 1.0), (Watcher, 0, 3, 0.25), (Follower, 0, 2, 0.25)),
    *((Deleter, 0, 1, 0.3), (Configurer, 0, 1, 0.25), (Recreator, 0, 1, 0.1), (Worker, 1, 4, 1.0)),
    *((Pushed, 0, 2, 0.3), (Redriver, 0, 1, 0.4), (RouterMaker, 0, 2, 0.2), (Lister, 0, 1, 0.3)),
)

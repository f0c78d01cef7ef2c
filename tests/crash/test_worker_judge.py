"""The judge of the workers' campaign is judged itself: what it must let pass, and what it must see.

Times are milliseconds. Every story is about job 1 of one queue unless it says otherwise.
"""

from __future__ import annotations

import ast
from typing import Any

import pytest

from tests.campaigns.worker_history import Death, History, Job, Rules
from tests.campaigns.worker_judge import Copy, Counted, End, judge
from tests.campaigns.worker_leases import Verdict
from tests.crash.repeating import cases

LOOSE = Rules(0)
DURABLE = Rules(0, leases_durable=True)
DEAD = Rules(0, leases_durable=True, max_deliveries=2, dead_letter="d")
LEASE_MS = 1000
FAR_MS = 10**9


def ns(ms: float) -> int:
    return int(ms * 1_000_000)


class Story:
    """A campaign in a few words. Each call returns the story."""

    def __init__(self, rules: Rules = LOOSE) -> None:
        self.history = History()
        self.history.queues["q"] = rules
        self.history.jobs["q", 1] = Job("one")
        self._calls = 0
        self._streams: dict[str, str] = {}

    def _call(self, note: dict[str, Any]) -> str:
        self._calls += 1
        call = f"c{self._calls}"
        self.history.take([{"call": call, "queue": "q", **note}])
        return call

    def claim(
        self,
        node: str,
        sent: float,
        at: float,
        token: int,
        deliveries: int = 1,
        *,
        lease_ms: int = LEASE_MS,
        seq: int = 1,
        data: str = "one",
    ) -> Story:
        call = self._call({"do": "claim", "node": node, "sent": ns(sent)})
        job = [seq, f"lease_{token:x}", ns(at + lease_ms), deliveries, data]
        self.history.take([{"do": "jobs", "call": call, "at": ns(at), "jobs": [job]}])
        return self

    def unanswered_claim(self, node: str, sent: float) -> Story:
        self._call({"do": "claim", "node": node, "sent": ns(sent)})
        return self

    def stream(self, node: str, sent: float) -> Story:
        call = self._call({"do": "open", "node": node, "sent": ns(sent)})
        self.history.take([{"do": "live", "call": call, "at": ns(sent + 1)}])
        self._streams[node] = call
        return self

    def push(self, node: str, at: float, token: int, deliveries: int = 1) -> Story:
        job = [1, f"lease_{token:x}", ns(at + LEASE_MS), deliveries, "one"]
        note = {"do": "jobs", "call": self._streams[node], "at": ns(at), "jobs": [job]}
        self.history.take([note])
        return self

    def shut(self, node: str, at: float) -> Story:
        self.history.take([{"do": "shut", "call": self._streams[node], "at": ns(at)}])
        return self

    def ask(
        self,
        do: str,
        node: str,
        sent: float,
        token: int | None = None,
        *,
        skipped: bool = False,
        answered: bool = True,
        ms: int = 0,
    ) -> Story:
        """An ack, nack or extend, answered 1 ms after it was sent."""
        tokens = None if token is None else [f"lease_{token:x}"]
        named = {"nack": {"delay_ms": ms}, "extend": {"lease_ms": ms}}.get(do, {})
        call = self._call(
            {"do": do, "node": node, "sent": ns(sent), "seqs": [1], "tokens": tokens, **named}
        )
        if answered:
            done = {"do": "done", "call": call, "at": ns(sent + 1)}
            deadlines = {"1": ns(sent + ms)} if do == "extend" and not skipped else {}
            self.history.take([done | {"skipped": [1] * skipped, "deadlines": deadlines}])
        return self

    def dies(self, role: str, at: float) -> Story:
        self.history.deaths.append(Death(role, ns(at), ns(at + 1)))
        return self

    def due(self, ms: float) -> Story:
        self.history.jobs["q", 1] = Job("one", ns(ms))
        return self


RULES = {"": LOOSE, "durable": DURABLE, "dead": DEAD}


def told(text: str) -> Story:
    """The story of a text: its rules, then calls of `Story` with their arguments."""
    rules, _, calls = text.rpartition(": ")
    story = Story(RULES[rules])
    for call in calls.split("; ") if calls else ():
        name, *words = call.split(" ")
        words, name = (
            ([name, *words], "ask") if name in ("ack", "nack", "extend") else (words, name)
        )
        fields = dict(word.split("=") for word in words if "=" in word)
        args = [literal(word) for word in words if "=" not in word]
        getattr(story, name)(*args, **{key: literal(value) for key, value in fields.items()})
    return story


def literal(word: str) -> Any:
    try:
        return ast.literal_eval(word)
    except (ValueError, SyntaxError):
        return word.replace("-", " ")


GONE = Counted(0, 0, 0, 0, 0)


def nothing_left(**fields: Any) -> End:
    """A queue that is empty at the end."""
    return End(ns(FAR_MS), GONE, {}, 0, GONE, GONE, {}, GONE, [])._replace(**fields)


def judged(story: Story, end: End | None = None) -> Verdict:
    return judge(story.history, {} if end is None else {"q": end})


RIGHT = """
a claim and its ack
    claim a 0 10 1; ack a 500 1
claimed again after the deadline
    claim a 0 10 1; claim b 900 1011 2 2
claimed again after a nack
    claim a 0 10 1; nack a 20 1; claim b 30 40 2 2
claimed while an unanswered nack is under way
    claim a 0 10 1; nack a 20 1 answered=False; claim b 15 25 2 2
claimed again when its stream was closed
    stream a 0; push a 10 1; shut a 50; claim b 40 51 2 2
claimed again when the front of its stream died
    durable: stream a 0; push a 10 1; dies front-0 50; claim b 40 51 2 2
claimed again when its shard died
    claim a 0 10 1; dies shard-0 50; claim b 60 70 9
told late, of a lease from before its shard died
    claim a 0 60 1; dies shard-0 50; claim b 61 70 9
claimed again when everything died
    claim a 0 10 1; dies everything 50; claim b 60 70 9
a shorter lease by an extend
    claim a 0 10 1; extend a 20 1 ms=100; claim b 90 130 2 2
a shorter lease by an extend without an answer
    claim a 0 10 1; extend a 20 1 ms=100 answered=False; claim b 90 130 2 2
a stale ack is skipped
    claim a 0 10 1; claim b 1100 1110 2 2; ack a 1200 1 skipped=True
an ack after its deadline, by the node that holds the job again
    claim a 0 10 1; claim a 1100 1110 2 2; ack a 1200 None
an ack without token by a node that may hold what it was not told of
    claim a 0 10 1; unanswered_claim a 1050; ack a 1200 None
a second ack after one without an answer
    claim a 0 10 1; ack a 20 1 answered=False; ack a 30 1 skipped=True
a delivery after its nack's delay
    claim a 0 10 1; nack a 20 1 ms=300; claim b 30 330 2 2
a delay that a loose queue forgot
    claim a 0 10 1; nack a 20 1 ms=300; dies shard-0 50; claim b 260 270 2
a delayed job when it is due
    due 50; claim a 0 51 1
"""

WRONG = """
two workers hold a job -> held twice for 975.0 ms
    claim a 0 10 1; claim b 20 30 2 2
two workers hold a job that the first has extended -> held twice
    claim a 0 10 1; extend a 900 1 ms=1000; claim b 1000 1100 2 2
a stream and a claim hold a job -> held twice
    stream a 0; push a 10 1; shut a 50; claim b 20 30 2 2
durable leases end with their shard -> held twice
    durable: claim a 0 10 1; dies shard-0 50; claim b 60 70 9 2
leases end with the front, though they were claimed -> held twice
    claim a 0 10 1; dies front-0 50; claim b 60 70 2 2
leases end with another shard -> held twice
    claim a 0 10 1; dies shard-1 50; claim b 60 70 2 2
an expired lease acks -> takes a lease that is over: expired
    claim a 0 10 1; ack a 1016 1
an expired lease acks without a token -> takes a lease that is over: expired
    claim a 0 10 1; ack a 1016 None
an expired lease is extended -> takes a lease that is over: expired
    claim a 0 10 1; extend a 1016 1 ms=500
a superseded lease acks -> takes a lease that is over: superseded
    claim a 0 10 1; extend a 20 1 ms=10 answered=False; claim b 40 50 2 2; ack a 500 1
a nacked lease acks -> takes a lease that is over: released
    claim a 0 10 1; nack a 20 1; ack a 500 1
a lease of a shard's former process acks -> takes a lease that is over: restart
    claim a 0 10 1; dies shard-0 50; ack a 500 1
an ack by a node that never held the job -> never held
    claim a 0 10 1; ack b 20 None
an ack of a held job is skipped -> skips a job that is held
    claim a 0 10 1; ack a 20 1 skipped=True
a durable lease is forgotten by a restart -> skips a job that is held
    durable: claim a 0 10 1; dies shard-0 50; ack a 500 skipped=True
a delivery is counted twice -> both delivery 1
    durable: claim a 0 10 1; claim b 1100 1110 2
a delivery too many -> delivered for the 3th time
    dead: claim a 0 10 1 3
a token is given again -> lease_1 was given 2 times
    claim a 0 10 1; claim b 1100 1110 1 2
a delivery after its ack -> after its ack
    claim a 0 10 1; ack a 500 1; claim b 600 610 2
a delivery to a stream after its ack -> after its ack
    stream b 0; claim a 0 10 1; ack a 500 1; push b 610 2 2
a delivery before its nack's delay is over -> before its nack's delay
    claim a 0 10 1; nack a 20 1 ms=300; claim b 30 200 2 2
a job before it is due -> before its time
    due 100; claim a 0 51 1
a job that nobody appended -> nobody appended it
    claim a 0 10 1 seq=2
other data -> it was one
    claim a 0 10 1 data=two
"""


@pytest.mark.parametrize(("story", "said"), [*cases(RIGHT), *cases(WRONG)])
def test_a_broken_promise_is_seen_and_what_the_contract_allows_passes(
    story: str, said: str
) -> None:
    problems = "\n".join(judged(told(story)).problems)
    assert said in problems
    assert bool(said) == bool(problems)


@pytest.mark.parametrize(
    ("then", "counted"),
    [
        ("ack a 1100 1 skipped=True", "stale: expired"),
        ("ack a 1100 skipped=True", "stale: no token"),
        ("ack a 500 1; ack a 600 1", "stale: released"),
        ("ack a 500 1", "live"),
    ],
)
def test_what_is_judged_is_counted(then: str, counted: str) -> None:
    assert judged(told(f"claim a 0 10 1; {then}")).counts[counted] == 1


def test_a_worker_that_was_killed_has_closed_its_streams() -> None:
    story = Story().stream("a", 0).push("a", 10, 1)
    call = story._streams["a"]
    story.history.openings[call].ended = None
    notes = [{"do": "live", "call": call, "at": ns(1)}]
    story.history.take(notes, killed=ns(50))
    assert judged(story.claim("b", 40, 51, 2, 2)).problems == []


def test_what_a_worker_noted_as_wrong_is_a_problem() -> None:
    story = Story()
    story.history.take([{"do": "wrong", "text": "404"}])
    assert judged(story).problems == ["404"]


# What is there in the end

HELD, ACKED = "dead: claim a 0 10 1", "dead: claim a 0 10 1; ack a 500 1"
UNANSWERED = "dead: claim a 0 10 1; ack a 20 1 answered=False"
BURIED = Counted(0, 0, 0, 0, 1)
COPY = Copy("q", 1, 2, "one")
LIVE = Counted(1, 1, 0, 0, 0)
CLAIMED = Counted(1, 0, 1, 0, 0)
ACKED_NOW = nothing_left(before=LIVE, live={1: "one"}, claimed=1, held=CLAIMED)
DELAYED = Counted(1, 0, 0, 1, 0)


RIGHT_ENDS = [
    ("acked", ACKED, nothing_left()),
    ("an ack without an answer was done", UNANSWERED, nothing_left()),
    (
        "an ack without an answer was not done",
        UNANSWERED,
        nothing_left(before=BURIED, held=BURIED, acked=BURIED, restarted=BURIED, copies=[COPY]),
    ),
    ("acked at the end", ACKED, ACKED_NOW),
    (
        "dead-lettered at the end",
        HELD,
        nothing_left(
            before=LIVE, live={1: "one"}, held=BURIED, acked=BURIED, restarted=BURIED, copies=[COPY]
        ),
    ),
    (
        "not due yet",
        "due 2000000000",
        End(ns(FAR_MS), DELAYED, {1: "one"}, 0, DELAYED, DELAYED, {1: "one"}, DELAYED, []),
    ),
]
WRONG_ENDS = [
    ("lost", HELD, nothing_left(), "0 acks, 0 dead letters, 0 left"),
    (
        "an acked job is back",
        ACKED,
        nothing_left(left={1: "one"}),
        "1 acks, 0 dead letters, 1 left",
    ),
    ("acked and dead-lettered", ACKED, nothing_left(copies=[COPY]), "1 acks, 1 dead letters"),
    ("dead-lettered twice", HELD, nothing_left(copies=[COPY, COPY]), "2 dead letters"),
    (
        "dead-lettered and left",
        HELD,
        nothing_left(copies=[COPY], left={1: "one"}),
        "1 dead letters, 1 left",
    ),
    ("acked twice", "dead: claim a 0 10 1; ack a 500 1; ack a 600 1", nothing_left(), "2 acks"),
    (
        "dead-lettered too early",
        HELD,
        nothing_left(copies=[COPY._replace(deliveries=1)]),
        "is a dead letter as",
    ),
    (
        "other data dead-lettered",
        HELD,
        nothing_left(copies=[COPY._replace(data="two")]),
        "is a dead letter as",
    ),
    ("a strange dead letter", HELD, nothing_left(copies=[COPY._replace(seq=2)]), "nobody appended"),
    ("a strange job", ACKED, nothing_left(left={2: "two"}), "nobody appended"),
    ("other data left", HELD, nothing_left(left={1: "two"}), "it was one"),
    ("in_flight after all is over", HELD, nothing_left(before=CLAIMED), "all leases are over"),
    ("a wrong count", HELD, nothing_left(before=LIVE), "count: 1, 0 expected"),
    (
        "ready is too few",
        ACKED,
        ACKED_NOW._replace(before=Counted(1, 0, 0, 0, 0)),
        "ready + delayed",
    ),
    ("delayed though due", ACKED, ACKED_NOW._replace(before=DELAYED), "delayed: 1, 0 expected"),
    ("fewer are claimed than ready", ACKED, ACKED_NOW._replace(claimed=0), "of the ready"),
    ("a claimed job is not in flight", ACKED, ACKED_NOW._replace(held=LIVE), "all are claimed"),
    ("an acked job is in flight", ACKED, ACKED_NOW._replace(acked=CLAIMED), "all are acked"),
    ("dead letters are not counted", HELD, nothing_left(copies=[COPY]), "dead_lettered: 0, 1"),
    ("a restart forgets", HELD, nothing_left(acked=BURIED, copies=[COPY]), "a restart makes"),
]


@pytest.mark.parametrize(
    ("story", "end"), [case[1:] for case in RIGHT_ENDS], ids=[case[0] for case in RIGHT_ENDS]
)
def test_an_end_that_the_contract_allows_passes(story: str, end: End) -> None:
    assert judged(told(story), end).problems == []


@pytest.mark.parametrize(
    ("story", "end", "said"),
    [case[1:] for case in WRONG_ENDS],
    ids=[case[0] for case in WRONG_ENDS],
)
def test_a_wrong_end_is_seen(story: str, end: End, said: str) -> None:
    assert said in "\n".join(judged(told(story), end).problems)

"""Compare the state in which the engine lists every job of a queue with the model."""

from __future__ import annotations

from collections import Counter
from typing import Any

from tests.engine.queue_model import QueueModel
from topics.engine.queue.jobs import Jobs
from topics.engine.queue.timer_queue import SLOT_MS
from topics.engine.topic import Topic

# Pairs of (model state, engine state) that are allowed while the engine has not yet advanced the
# time.
LATE = {("free", "held"), ("free", "hidden"), ("waiting", "delayed")}


def check_lists(topic: Topic, model: QueueModel, now_ms: int, *, is_lazy: bool) -> None:
    """Check that every live record has exactly one state, the same as in the model.

    ``is_lazy``: the engine may not have advanced to ``now_ms`` yet.
    """
    jobs = topic.jobs
    assert jobs is not None
    model.advance(now_ms)
    states = _listed_states(jobs)
    fresh = {seq for seq in model.jobs if seq not in states and seq >= jobs.cursor}
    assert states.keys() | fresh == model.jobs.keys(), "every live record is in a state"
    for seq, job in model.jobs.items():
        found = states.get(seq, "waiting")
        expected = "delayed" if model.is_delayed(job, now_ms) else job.state
        assert found == expected or (is_lazy and (expected, found) in LATE), f"state of {seq}"
        assert jobs.deliveries(seq) == job.deliveries
        assert (jobs._not_fresh.next_out(seq) > seq) == (seq in states) or seq < jobs.cursor
    assert all(count >= 0 for count in jobs._deliveries.values())
    for seq in jobs.leases:
        lease, job = jobs.leases.held[seq], model.jobs[seq]
        if job.state == "held":
            assert (lease.number, lease.deadline_ms) == (job.number, job.at_ms)
            assert (lease.holder.node, lease.holder.seqs is not None) == (job.node, job.stream > 0)
    _check_holders(jobs)
    _check_tallies(jobs)


def _listed_states(jobs: Jobs) -> dict[int, str]:
    lists: dict[str, Any] = {
        "held": list(jobs.leases),
        "acking": jobs.acking,
        "free": jobs._free,
        "hidden": jobs._hidden,
        "delayed": [seq for _, seq in jobs._delays.times()],
        "waiting": jobs._delays.keys() - {seq for _, seq in jobs._delays.times()},
        "dead": jobs.dead,
        "dying": jobs.dead_lettering,
        "moving": jobs.reserved,
    }
    states: dict[int, str] = {}
    for state, seqs in lists.items():
        for seq in seqs:
            assert seq not in states, f"{seq} is {states[seq]} and {state}"
            states[seq] = state
    return states


def _check_tallies(jobs: Jobs) -> None:
    """Check that each tally counts exactly the existing times."""
    times = (
        (jobs.leases.ends, [lease.deadline_ms + 1 for lease in jobs.leases.held.values()]),
        (jobs._hidden.ends, [*jobs._hidden.values()]),
        (jobs._delays.ends, [at for at, _ in jobs._delays.times()]),
    )
    for tally, expected in times:
        assert tally._slots == Counter(at // SLOT_MS for at in expected)


def _check_holders(jobs: Jobs) -> None:
    leases = jobs.leases
    held: dict[int, list[int]] = {}
    holders = {}
    for seq in leases:
        holder = leases.held[seq].holder
        holders[id(holder)] = holder
        held.setdefault(id(holder), []).append(seq)
    for key, holder in holders.items():
        assert holder.held == len(held[key])
        if holder.seqs is not None:
            assert sorted(holder.seqs) == sorted(held[key])
        else:
            assert leases.pollers[holder.node] is holder
    assert all(id(poller) in holders for poller in leases.pollers.values())


def check_nothing_is_left(topic: Topic, *, is_lazy: bool = True) -> None:
    """Check that an empty queue holds no state.

    ``is_lazy``: entries of timetables and of the list of released jobs may remain until they are
    due or until the next claim.
    """
    jobs = topic.jobs
    assert jobs is not None
    assert _listed_states(jobs) == {}
    assert not jobs._deliveries
    assert not jobs.leases.pollers
    if not is_lazy:
        times = (jobs._hidden_times, jobs._delay_times, jobs.leases.expiry)
        assert [each.count for each in times] == [0, 0, 0]
        assert not jobs._free_queue
        assert not jobs.due

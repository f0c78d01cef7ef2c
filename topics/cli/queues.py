"""Commands for queues: their jobs, leases and dead letters. None of these commands leases a job."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

import click
import msgspec

from topics.cli import configs, units
from topics.cli.completing import TOPIC
from topics.cli.shell import Shell, group, pass_shell
from topics.client import NotFound, Record, Topics, TopicState
from topics.client.values import Lease
from topics.errors import ExitCode

REDRIVE_MAX: Final = 10_000  # maximum number of dead letters per request
TITLES: Final = {
    "topic": "QUEUE",
    "ready": "READY",
    "in_flight": "IN FLIGHT",
    "waiting": "WAITING",
    "dead_lettered": "DEAD",
    "oldest_ts": "OLDEST",
}

NAME = click.argument("name", metavar="QUEUE", type=TOPIC)


@group("queue")
def queue() -> None:
    """Inspect queues, and move dead letters back."""


@queue.command("ls")
@click.argument("prefix", default="", type=TOPIC)
@pass_shell
def ls(shell: Shell, prefix: str) -> None:
    """List queues with their jobs.

    WAITING is the number of jobs that were delayed by their append or by a nack. DEAD is the number
    of jobs that have been dead-lettered. OLDEST is the age of the oldest job.
    """
    found = []
    with shell.client() as client:
        for info in client.topics(prefix):
            with suppress(NotFound):  # deleted in the meantime
                state = client.topic(info.name).state()
                if state.queue is not None:
                    found.append(_summary(client, state))
    empty = f"no queue begins with {prefix}" if prefix else "there are no queues"
    shell.table(found, TITLES, {"oldest_ts": units.age}, empty)


@queue.command("info")
@NAME
@pass_shell
def info(shell: Shell, name: str) -> None:
    """Show the state and the config of a queue."""
    with shell.client() as client:
        asked = client.queue(name)
        holders = Counter(lease.node for lease in asked.leases())  # fails if it is not a queue
        state = asked.state()
        details = _summary(client, state) | {"holders": holders, "config": state.config}
        dead = state.config["dead_letter"]
        if dead is not None:
            with suppress(NotFound):
                details["dead_letters"] = client.topic(dead).state().count
    if shell.is_json:
        shell.emit(details)
        return
    shell.table([details], TITLES, {"oldest_ts": units.age})
    if holders:
        held = (f"{node} ({count})" for node, count in holders.most_common(5))
        click.echo(f"\nHELD BY  {', '.join(held)}")
    click.echo()
    configs.table_of(state.config)
    if left := details.get("dead_letters"):
        shell.print_note(f"{left} dead letters: topics queue redrive {dead} moves them back")


@queue.command("peek")
@NAME
@click.option(
    "-n", "count", type=click.IntRange(1, 1000), default=10, help="The number of jobs (10)."
)
@pass_shell
def peek(shell: Shell, name: str, count: int) -> None:
    """Show the oldest jobs without leasing them.

    HELD BY is the worker that has leased the job. If it is empty, the job is ready or delayed.
    """
    with shell.client() as client:
        asked = client.queue(name)
        held = {lease.seq: lease for lease in asked.leases()}  # fails if it is not a queue
        rows = [
            {
                "$seq": job.seq,
                "$ts": job.ts,
                "$tag": job.tag,
                "data": job.raw_data,
                "meta": job.raw_meta,
                "lease": held.get(job.seq),
            }
            for job in asked.read(limit=count)
            if isinstance(job, Record)
        ]
    columns = {"$seq": "SEQ", "$ts": "AGE", "$tag": "TAG", "lease": "HELD BY", "data": "DATA"}
    shows: dict[str, Callable[[Any], str]]
    shows = {"$ts": units.age, "lease": _holder, "data": lambda raw: bytes(raw).decode()}
    shell.table(rows, columns, shows, f"{name} has no jobs")


@queue.command("leases")
@NAME
@click.option("--node", help="Only leases of this worker.")
@pass_shell
def leases(shell: Shell, name: str, node: str | None) -> None:
    """Show the leased jobs and their workers."""
    columns = {"seq": "SEQ", "node": "HELD BY", "deadline": "LEFT", "deliveries": "DELIVERY"}
    columns["last_error"] = "LAST ERROR"
    empty = f"no job in {name} is leased" + (f" by {node}" if node else "")
    with shell.client() as client:
        shell.table(client.queue(name).leases(node), columns, {"deadline": units.remaining}, empty)


@queue.command("redrive")
@click.argument("name", metavar="DEADQUEUE", type=TOPIC)
@click.option("--to", metavar="QUEUE", type=TOPIC, help="Move all records to this queue.")
@click.option("--tag", metavar="GLOB", help="Only records with this tag; eu:* matches a prefix.")
@click.option("--limit", type=units.COUNT, metavar="N", help="Move at most this number of records.")
@pass_shell
def redrive(
    shell: Shell, name: str, to: str | None, tag: str | None, limit: int | None
) -> ExitCode:
    """Move dead letters back to their original queues.

    The exit code is 1 if records were skipped because their queue does not exist or is full.
    """
    moved = 0
    with shell.client(retries=True) as client:
        while True:
            most = None if limit is None else min(limit - moved, REDRIVE_MAX)
            done = client.queue(name).redrive(to=to, tag=tag, limit=most)
            moved += done.moved
            if not (done.moved and done.remaining) or moved == limit:
                break
    if shell.is_json:
        shell.emit(msgspec.structs.replace(done, moved=moved))
    else:
        skipped = f", {done.skipped} skipped ({done.reason})" if done.skipped else ""
        click.echo(f"{moved} moved, {done.remaining} left{skipped}")
    return ExitCode.FAILED if done.skipped else ExitCode.DONE


def _summary(client: Topics, state: TopicState) -> dict[str, Any]:
    """Return a row of the list, with the API's field names."""
    oldest = None
    if state.count:
        jobs = client.topic(state.name).read(state.earliest_seq - 1, limit=1)
        oldest = next((job.ts for job in jobs if isinstance(job, Record)), None)
    counts = msgspec.to_builtins(state.queue)
    waiting = max(state.count - counts["ready"] - counts["in_flight"], 0)
    return {"topic": state.name, **counts, "waiting": waiting, "oldest_ts": oldest}


def _holder(lease: Lease) -> str:
    return f"{lease.node} ({units.remaining(lease.deadline)} left, delivery {lease.deliveries})"

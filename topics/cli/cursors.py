"""Commands for cursors, which store the positions of readers in the topic ``cursor:NAME``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click
import msgspec

from topics.cli import units
from topics.cli.completing import CURSOR, TOPIC
from topics.cli.shell import Shell, group, pass_shell
from topics.client import NotFound, Record, Topics
from topics.client.watching import CURSOR_PREFIX


@group("cursor")
def cursor() -> None:
    """Manage cursors, which store the position of a reader."""


@cursor.command("ls")
@click.argument("prefix", default="", type=CURSOR)
@pass_shell
def ls(shell: Shell, prefix: str) -> None:
    """List cursors.

    With PREFIX, list only cursors whose names begin with it. AT is the last seq that was read, and
    LAG is the number of seqs after it. "recreated" means that the topic was deleted and created
    again.
    """
    columns = {"cursor": "CURSOR", "topic": "TOPIC", "seq": "AT", "lag": "LAG", "ts": "SAVED"}
    with shell.client() as client:
        found = _positions(shell, client, prefix)
        empty = f"no cursor begins with {prefix}" if prefix else "there are no cursors"
        shell.table(found, columns, {"ts": units.local_time}, empty)


def _positions(shell: Shell, client: Topics, prefix: str) -> Iterator[dict[str, Any]]:
    """Yield the position of each cursor in each of its topics."""
    for info in client.topics(CURSOR_PREFIX + prefix):
        for event in client.topic(info.name).read(max(info.head_seq - 1, 0), limit=1):
            try:
                data = event.data if isinstance(event, Record) else {}
                positions = msgspec.convert(data, dict[str, tuple[int, int]])
            except msgspec.ValidationError:
                shell.print_note(f"topic {info.name} is not a cursor")
                continue
            name = info.name.removeprefix(CURSOR_PREFIX)
            for topic, (seq, epoch) in positions.items():
                position = {"cursor": name, "topic": topic, "seq": seq, "epoch": epoch}
                yield {**position, "lag": _lag(client, topic, seq, epoch), "ts": info.last_write_ts}


def _lag(client: Topics, topic: str, seq: int, epoch: int) -> int | str:
    try:
        state = client.topic(topic).state()
    except NotFound:
        return "removed"
    if state.epoch != epoch:
        return "recreated"
    return state.head_seq - min(max(seq, state.earliest_seq - 1), state.head_seq)


@cursor.command("set")
@click.argument("name", type=CURSOR)
@click.argument("topic", type=TOPIC)
@click.argument("seq", type=click.IntRange(min=0), required=False)
@click.option(
    "--to",
    metavar="start|end|TIME",
    help="Set the cursor to the first record, the last record or a time.",
)
@pass_shell
def set_(shell: Shell, name: str, topic: str, seq: int | None, to: str | None) -> None:
    """Set a cursor: TOPIC has been read up to SEQ.

    \b
    topics cursor set billing orders 41
    topics cursor set billing orders --to 1h

    The reader continues after SEQ when it is started again; 0 is the beginning. --to start sets the
    cursor before the oldest existing record, and --to end after the newest one. --to TIME sets it
    before the first record since a time, which is an age (10m) or a date in ISO 8601. Stop a
    running reader first, because it overwrites the position with its own. A cursor that does not
    exist is created.
    """
    if (seq is None) == (to is None):
        raise click.UsageError("specify either SEQ or --to")
    when = None if to in (None, "start", "end") else units.TIME.convert(to, None, None)
    with shell.client() as client:
        state = client.topic(topic).state()
        if when is not None:
            seq = client.topic(topic).since(when)
        elif seq is None:
            seq = state.head_seq if to == "end" else state.earliest_seq - 1
        if seq > state.head_seq:
            raise click.BadParameter(f"{topic} ends at {state.head_seq}", param_hint="SEQ")
        with client.cursor(name) as cursor:
            cursor.positions[topic] = seq, state.epoch
    done = {"cursor": name, "topic": topic, "seq": seq, "epoch": state.epoch}
    shell.done(done, f"cursor {name} is at {seq} in {topic}")


@cursor.command("rm")
@click.argument("names", metavar="NAME...", nargs=-1, required=True, type=CURSOR)
@pass_shell
def rm(shell: Shell, names: tuple[str, ...]) -> None:
    """Delete cursors, so that their readers start from the beginning.

    If one of the cursors does not exist, nothing is deleted.
    """
    with shell.client() as client:
        found = [client.topic(CURSOR_PREFIX + name) for name in names]
        for topic in found:
            topic.state()
        for name, topic in zip(names, found, strict=True):
            topic.drop()
            shell.done({"cursor": name, "deleted": True}, f"removed cursor {name}")

"""Commands of cursors, the places of readers; each is a topic ``cursor:NAME``."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import click
import msgspec

from topics.cli import units
from topics.cli.shell import Shell, group, pass_shell
from topics.client import NotFound, Record, Topics
from topics.client.watching import CURSOR_PREFIX


@group("cursor")
def cursor() -> None:
    """Work with cursors, which keep how far a reader is."""


@cursor.command("ls")
@click.argument("prefix", default="")
@pass_shell
def ls(shell: Shell, prefix: str) -> None:
    """List cursors.

    All, or those whose names begin with PREFIX. AT is the seq that was read last, LAG how many seqs
    are behind it; "recreated" says that the topic was removed and made again.
    """
    columns = {"cursor": "CURSOR", "topic": "TOPIC", "seq": "AT", "lag": "LAG", "ts": "SAVED"}
    with shell.client() as client:
        found = _places(shell, client, prefix)
        empty = f"no cursor begins with {prefix}" if prefix else "there are no cursors"
        shell.table(found, columns, {"ts": units.moment}, empty)


def _places(shell: Shell, client: Topics, prefix: str) -> Iterator[dict[str, Any]]:
    """Where each cursor stands in each of its topics."""
    for info in client.topics(CURSOR_PREFIX + prefix):
        for event in client.topic(info.name).read(max(info.head_seq - 1, 0), limit=1):
            try:
                data = event.data if isinstance(event, Record) else {}
                places = msgspec.convert(data, dict[str, tuple[int, int]])
            except msgspec.ValidationError:
                shell.say(f"topic {info.name} holds no cursor")
                continue
            name = info.name.removeprefix(CURSOR_PREFIX)
            for topic, (seq, epoch) in places.items():
                place = {"cursor": name, "topic": topic, "seq": seq, "epoch": epoch}
                yield {**place, "lag": _lag(client, topic, seq, epoch), "ts": info.last_write_ts}


def _lag(client: Topics, topic: str, seq: int, epoch: int) -> int | str:
    try:
        state = client.topic(topic).state()
    except NotFound:
        return "removed"
    if state.epoch != epoch:
        return "recreated"
    return state.head_seq - min(max(seq, state.earliest_seq - 1), state.head_seq)


@cursor.command("set")
@click.argument("name")
@click.argument("topic")
@click.argument("seq", type=click.IntRange(min=0))
@pass_shell
def set_(shell: Shell, name: str, topic: str, seq: int) -> None:
    """Set a cursor: TOPIC is read up to SEQ.

    Its reader goes on behind SEQ when it starts again; 0 is the beginning. A reader that runs saves
    its own place over this one: stop it first. A cursor that is not there is made.
    """
    with shell.client() as client:
        state = client.topic(topic).state()
        if seq > state.head_seq:
            raise click.BadParameter(f"{topic} ends at {state.head_seq}", param_hint="SEQ")
        with client.cursor(name) as cursor:
            cursor.positions[topic] = seq, state.epoch
    done = {"cursor": name, "topic": topic, "seq": seq, "epoch": state.epoch}
    shell.done(done, f"cursor {name} is at {seq} in {topic}")


@cursor.command("rm")
@click.argument("names", metavar="NAME...", nargs=-1, required=True)
@pass_shell
def rm(shell: Shell, names: tuple[str, ...]) -> None:
    """Remove cursors: their readers begin again.

    Nothing is removed when one of them is not there.
    """
    with shell.client() as client:
        found = [client.topic(CURSOR_PREFIX + name) for name in names]
        for topic in found:
            topic.state()
        for name, topic in zip(names, found, strict=True):
            topic.drop()
            shell.done({"cursor": name, "deleted": True}, f"removed cursor {name}")

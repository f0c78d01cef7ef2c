"""The command apply: topics and routers as a file says."""

from __future__ import annotations

import tomllib
from collections.abc import Iterator
from typing import IO, Any, Final

import click

from topics.cli.configs import Change, Kind, change
from topics.cli.shell import Mistake, Shell, command, nearest, pass_shell
from topics.cli.topics import yes
from topics.client import Topics
from topics.client.watching import CURSOR_PREFIX
from topics.errors import ExitCode

KINDS: Final[dict[str, Kind]] = {"topics": "topic", "routers": "router"}
SIGNS: Final = {"create": "+", "change": "~", "remove": "-", "keep": "="}
# A router that goes leaves its dest to another; one that is made finds its topics as they shall be.
ORDER: Final = """remove router, create topic, change topic, keep topic,
    change router, create router, keep router, remove topic"""


@command("apply")
@click.argument("file", type=click.File("rb"))
@click.option("--plan", is_flag=True, help="Change nothing; exit code 7 when something would.")
@click.option("--prune", is_flag=True, help="Also remove what the file does not name.")
@yes
@pass_shell
def apply(shell: Shell, file: IO[bytes], plan: bool, prune: bool, is_sure: bool) -> ExitCode:
    """Make topics and routers as a file says.

    \b
        [topics.orders]
        durability = "fsync"
        ttl_ms = "7d"
        [routers."orders->audit"]
        source = "orders"
        dest = "audit"

    Each topic and router is a line: + is made, ~ changed, - removed, = stays. A field that the file
    does not name stays as it is. The whole file is checked before the first change. A router whose
    source or dest changes begins at the end of its source.

    --prune removes all other topics and routers that the key may see, but for cursors, and for
    topics that the file names as an end of a router or as a dead_letter.
    """
    path = str(getattr(file, "name", "-"))
    asked = [*_read(file, path)]
    with shell.client() as client:
        changes = _changes(client, path, asked)
        if prune:
            changes += _unnamed(client, changes, path)
        changes.sort(key=lambda each: ORDER.index(f"{each.word} {each.kind}"))
        gone = [each for each in changes if each.word == "remove"]
        if gone and not plan:
            said = [" ".join([each.kind, each.name, *each.lines()]) for each in gone]
            shell.confirm(f"Remove {', '.join(said)}?", is_sure)
        for each in changes:
            if not plan:
                each.apply(client)
            if shell.is_json:
                each.emit(shell)
            else:
                line = f"{SIGNS[each.word]} {each.kind} {each.name}  {', '.join(each.lines())}"
                click.echo(line.rstrip())
    if not changes:
        shell.say(f"{path} names nothing")
    is_same = all(each.word == "keep" for each in changes)
    return ExitCode.DIFFERENT if plan and not is_same else ExitCode.DONE


def _read(file: IO[bytes], path: str) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Table, name and fields of what the file asks for. Raises `Mistake`."""
    try:
        document = tomllib.load(file)
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Mistake(f"{path}: {error}") from None
    for table, named in document.items():
        if table not in KINDS or not isinstance(named, dict):
            raise Mistake(f"{path}: there is no table {table}{nearest(table, KINDS)}")
        for name, fields in named.items():
            if not isinstance(fields, dict):
                raise Mistake(f"{path}: [{table}] {name} is no table: [{table}.{name}]")
            for field, value in fields.items():
                if isinstance(value, dict):  # [topics.jobs.dead]
                    raise Mistake(f'{path}: quote a name with dots: [{table}."{name}.{field}"]')
            yield table, name, fields


def _changes(
    client: Topics, path: str, asked: list[tuple[str, str, dict[str, Any]]]
) -> list[Change]:
    """What the file makes and changes. Raises `Mistake` before anything is done."""
    changes = []
    for table, name, fields in asked:
        try:
            changes.append(change(client, KINDS[table], name, fields))
        except click.ClickException as error:
            where = f"{path}: [{table}.{name}]"
            raise type(error)(f"{where} {error.message}") from None
    sources: dict[str, str] = {}
    for new in (each.new or {} for each in changes if each.kind == "router"):
        if sources.setdefault(new["dest"], new["source"]) != new["source"]:
            raise Mistake(f"{path}: {new['dest']} is the dest of two sources, and may have one")
    return changes


def _unnamed(client: Topics, changes: list[Change], path: str) -> Iterator[Change]:
    """Removals of all that the file does not name. Raises `Mistake`."""
    named: set[tuple[Kind, str | None]] = {(each.kind, each.name) for each in changes}
    if not any(kind == "topic" for kind, _ in named):
        raise Mistake(f"{path} names no topic: --prune would remove all")
    for config in (each.new or {} for each in changes):
        named |= {("topic", config.get(end)) for end in ("source", "dest", "dead_letter")}
    for router in client.routers():
        if ("router", router.name) not in named:
            yield Change("router", router.name, {}, {}, None)
    for topic in client.topics():
        if ("topic", topic.name) not in named and not topic.name.startswith(CURSOR_PREFIX):
            yield Change("topic", topic.name, {}, {"record": topic.count}, None)

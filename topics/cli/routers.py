"""Commands for routers: router ls, create, rm, graph."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress

import click

from topics.cli import configs
from topics.cli.completing import ROUTER, TOPIC
from topics.cli.shell import Shell, group, pass_shell
from topics.client import NotFound, RouterInfo
from topics.errors import ExitCode


@group("router")
def router() -> None:
    """Manage routers, which copy records from topic to topic."""


@router.command("ls")
@click.option("--source", metavar="TOPIC", default="", type=TOPIC, help="Only from this topic.")
@click.option("--dest", metavar="TOPIC", default="", type=TOPIC, help="Only to this topic.")
@pass_shell
def ls(shell: Shell, source: str, dest: str) -> None:
    """List routers.

    LAG is the number of records in the source that have not been forwarded yet.
    """
    columns = {
        "name": "ROUTER",
        "source": "SOURCE",
        "dest": "DEST",
        "filter": "FILTER",
        "forwarded_total": "FORWARDED",
        "lag_records": "LAG",
    }
    with shell.client() as client:
        found = []
        for listed in client.routers(source=source, dest=dest):
            with suppress(NotFound):  # deleted in the meantime
                found.append(client.router(listed.name))  # the list has no lag
    empty = "there are no matching routers" if source or dest else "there are no routers"
    shell.table(
        found, columns, {"filter": lambda filter: configs.format_value("filter", filter)}, empty
    )


@router.command("create")
@click.argument("name")
@click.argument("source", type=TOPIC)
@click.argument("dest", type=TOPIC)
@click.option(
    "--filter", "tag", metavar="TAG", help="Only records with this tag; eu:* matches a prefix."
)
@configs.sets("router")
@pass_shell
def create(
    shell: Shell, name: str, source: str, dest: str, tag: str | None, sets: tuple[str, ...]
) -> ExitCode:
    """Create a router, which copies all records that are appended to SOURCE from now on to DEST.

    An existing router is not changed: the exit code is 0 if its config has the specified values,
    otherwise 7.
    """
    fields = {"source": source, "dest": dest, **({} if tag is None else {"filter": tag})}
    return configs.create(shell, "router", name, fields | configs.pairs(sets))


@router.command("rm")
@click.argument("names", metavar="NAME...", nargs=-1, required=True, type=ROUTER)
@pass_shell
def rm(shell: Shell, names: tuple[str, ...]) -> None:
    """Delete routers. Copied records remain.

    If one of the routers does not exist, nothing is deleted.
    """
    with shell.client() as client:
        for name in names:
            client.router(name)
        for name in names:
            client.drop_router(name)
            shell.done({"router": name, "deleted": True}, f"removed router {name}")


@router.command("graph")
@click.option("--mermaid", is_flag=True, help="Print a Mermaid diagram.")
@pass_shell
def graph(shell: Shell, mermaid: bool) -> None:
    """Print the routers as a tree of topics.

    The line of a topic that has already been printed ends with "...".
    """
    with shell.client() as client:
        found = [*client.routers()]
    if shell.is_json:
        for each in found:
            shell.emit({"router": each.name, "source": each.source, "dest": each.dest})
    elif not found:
        shell.print_note("there are no routers")
    else:
        for line in _mermaid(found) if mermaid else _tree(found):
            click.echo(line)


def _label(router: RouterInfo) -> str:
    """Return the name of a router, or an empty string if it is the default name."""
    return "" if router.name == f"{router.source}->{router.dest}" else router.name


def _mermaid(routers: list[RouterInfo]) -> Iterator[str]:
    names = dict.fromkeys(end for each in routers for end in (each.source, each.dest))
    numbers = {name: number for number, name in enumerate(names)}
    yield "graph LR"
    for name, number in numbers.items():
        yield f'  t{number}["{name}"]'
    for each in routers:
        label = f'|"{_label(each)}"|' if _label(each) else ""
        yield f"  t{numbers[each.source]} -->{label} t{numbers[each.dest]}"


def _tree(routers: list[RouterInfo]) -> Iterator[str]:
    """Yield a line for each router, starting from topics that are not a dest, then from one topic
    of each cycle.
    """
    leaving: dict[str, list[RouterInfo]] = {}
    for each in routers:
        leaving.setdefault(each.source, []).append(each)
    dests = {each.dest for each in routers}
    drawn: set[str] = set()
    for root in sorted(leaving, key=lambda name: (name in dests, name)):
        if root in drawn:
            continue
        left = [(root, 0, "")]
        while left:
            name, depth, label = left.pop()
            arrow = f"{'     ' * (depth - 1)}  -> " if depth else ""
            again = " ..." if name in drawn and name in leaving else ""
            yield f"{arrow}{name}{f'  ({label})' if label else ''}{again}"
            if name not in drawn:
                drawn.add(name)
                below = reversed(leaving.get(name, []))
                left += [(each.dest, depth + 1, _label(each)) for each in below]

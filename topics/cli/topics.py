"""Commands for topics: ls, info, create, config, rm, delete."""

from __future__ import annotations

from typing import Any, get_args

import click

from topics.cli import configs, units
from topics.cli.completing import TOPIC
from topics.cli.shell import Shell, command, pass_shell
from topics.errors import ExitCode
from topics.formats.api.topic_config import Durability

yes = click.option("-y", "--yes", "is_sure", is_flag=True, help="Do not ask for confirmation.")


def _ago(ts_ms: int | None) -> str:
    return "never" if ts_ms is None else f"{units.age(ts_ms)} ago"


@command("ls")
@click.argument("prefix", default="", type=TOPIC)
@pass_shell
def ls(shell: Shell, prefix: str) -> None:
    """List topics.

    With PREFIX, list only topics whose names begin with it.
    """
    columns = {"name": "TOPIC", "count": "RECORDS", "bytes": "SIZE", "last_write_ts": "WRITTEN"}
    with shell.client() as client:
        empty = f"no topic begins with {prefix}" if prefix else "there are no topics"
        shows = {"bytes": units.size, "last_write_ts": _ago}
        shell.table(client.topics(prefix), columns, shows, empty)


@command("info")
@click.argument("topic", type=TOPIC)
@pass_shell
def info(shell: Shell, topic: str) -> None:
    """Show the state and the config of a topic.

    Fields that differ from their defaults are listed first.
    """
    with shell.client() as client:
        state = client.topic(topic).state()
    if shell.is_json:
        shell.emit(state)
        return
    lines = {
        "topic": f"{state.name} ({state.type})",
        "records": f"{state.count} ({units.size(state.bytes)})",
        "seqs": f"{state.earliest_seq} to {state.head_seq}" if state.count else "none",
        "next seq": state.next_seq,
        "written": _ago(state.last_write_ts),
        "read": _ago(state.last_read_ts),
        "priority": state.effective_priority,
    }
    if (jobs := state.queue) is not None:
        lines["jobs"] = (
            f"{jobs.ready} ready, {jobs.in_flight} in flight, {jobs.delayed} delayed,"
            f" {jobs.dead_lettered} dead-lettered"
        )
    for title, text in lines.items():
        click.echo(f"{title:10}{text}")
    click.echo()
    configs.table_of(state.config)


@command("create")
@click.argument("topic")
@click.option("--queue", "type", flag_value="queue", help="Create a queue, whose records are jobs.")
@click.option(
    "--durability", type=click.Choice(get_args(Durability)), help="The durability class (disk)."
)
@click.option(
    "--ttl", "ttl_ms", metavar="TIME", type=units.DURATION, help="Keep records for this time: 7d."
)
@click.option("--cap", "cap_records", metavar="COUNT", type=units.COUNT,
              help="Keep at most this number of records: 1M.")  # fmt: skip
@click.option("--cap-bytes", metavar="SIZE", type=units.BYTES, help="Keep at most this size: 1G.")
@configs.sets("topic")
@pass_shell
def create(shell: Shell, /, topic: str, sets: tuple[str, ...], **options: Any) -> ExitCode:
    """Create a topic.

    Fields that are not specified get their defaults. An existing topic is not changed: the exit
    code is 0 if its config has the specified values, otherwise 7.
    """
    fields = {field: value for field, value in options.items() if value is not None}
    return configs.create(shell, "topic", topic, fields | configs.pairs(sets))


@command("config")
@click.argument("topic", type=TOPIC)
@click.argument("pairs", metavar="[FIELD=VALUE]...", nargs=-1, type=configs.Pair("topic"))
@click.option("--dry-run", is_flag=True, help="Print the changes, and apply none (exit code 7).")
@yes
@pass_shell
def config(
    shell: Shell, topic: str, pairs: tuple[str, ...], dry_run: bool, is_sure: bool
) -> ExitCode:
    """Show or change the config of a topic.

    Only the specified fields change. Values are JSON or text. Fields in milliseconds accept values
    such as 7d, fields in bytes accept 1G, and counts accept 1M.

    A shorter ttl_ms or a lower cap removes records, including leased jobs and records of a topic
    with discard reject. The command reports their number and asks for confirmation. --yes confirms
    in advance, and --dry-run only reports.
    """
    with shell.client() as client:
        state = client.topic(topic).state()
        if not pairs:
            if shell.is_json:
                shell.emit(state.config)
            else:
                configs.table_of(state.config)
            return ExitCode.DONE
        wanted = configs.change(client, "topic", topic, configs.pairs(pairs))
        dropped = wanted.dropped(client)
        if not dry_run:
            if dropped:
                changes = ", ".join(wanted.lines())
                loss = f"{units.counted(dropped)} of {topic}"
                shell.confirm(f"Change {changes} and remove {loss}?", is_sure)
            dropped = wanted.apply(client)
    configs.show(shell, wanted, **({"dropped": dropped} if wanted.changes_limits else {}))
    if dropped:
        verb = "would remove" if dry_run else "removed"
        shell.print_note(f"this {verb} {units.counted(dropped)}")
    if wanted.verb == "keep":
        shell.print_note("nothing to change")
    elif dry_run:
        shell.print_note("nothing was changed because of --dry-run")
        return ExitCode.DIFFERENT
    return ExitCode.DONE


@command("rm")
@click.argument("topics", metavar="TOPIC...", nargs=-1, required=True, type=TOPIC)
@yes
@pass_shell
def rm(shell: Shell, topics: tuple[str, ...], is_sure: bool) -> None:
    """Delete topics with all their records.

    Routers from and to these topics are deleted as well. If one of the topics does not exist,
    nothing is deleted.
    """
    with shell.client() as client:
        losses = []
        for name in topics:
            state = client.topic(name).state()
            losses.append(f"{name} ({units.counted(state.count)}, {units.size(state.bytes)})")
            if not is_sure:
                found = [*client.routers(source=name), *client.routers(dest=name)]
                losses += [f"router {router.name}" for router in found]
        shell.confirm(f"Remove {', '.join(losses)}?", is_sure)
        for name in topics:
            client.topic(name).drop()
            shell.done({"topic": name, "deleted": True}, f"removed {name}")


@command("delete")
@click.argument("topic", type=TOPIC)
@click.option("--before", metavar="SEQ", type=click.IntRange(min=0), help="Records below this seq.")
@click.option("--tag", metavar="TAG", help="Records with this tag; eu:* matches a prefix.")
@yes
@pass_shell
def delete(shell: Shell, topic: str, before: int | None, tag: str | None, is_sure: bool) -> None:
    """Delete records from a topic.

    If both options are given, only records that match both are deleted. Readers are not notified of
    deleted records.
    """
    if before is None and tag is None:
        raise click.UsageError("specify the records with --before SEQ or --tag TAG")
    which = "" if before is None else f" before seq {before}"
    which += "" if tag is None else f" with tag {tag}"
    with shell.client() as client:
        shell.confirm(f"Delete records from {topic}{which}?", is_sure)
        done = client.topic(topic).delete(before=before, tag=tag)
    shell.done(done, f"deleted {units.counted(done.deleted)} from {topic}; {done.count} remain")

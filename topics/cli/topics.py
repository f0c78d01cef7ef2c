"""Commands of topics: ls, info, create, config, rm, delete."""

from __future__ import annotations

from typing import Any, get_args

import click

from topics.cli import configs, units
from topics.cli.shell import Shell, command, pass_shell
from topics.errors import ExitCode
from topics.formats.api.topic_config import Durability

yes = click.option("-y", "--yes", "is_sure", is_flag=True, help="Do not ask.")
sets = click.option(
    "--set", "sets", metavar="FIELD=VALUE", multiple=True, help="Any field of its config."
)


def _ago(ts_ms: int | None) -> str:
    return "never" if ts_ms is None else f"{units.age(ts_ms)} ago"


@command("ls")
@click.argument("prefix", default="")
@pass_shell
def ls(shell: Shell, prefix: str) -> None:
    """List topics.

    All, or those whose names begin with PREFIX.
    """
    columns = {"name": "TOPIC", "count": "RECORDS", "bytes": "SIZE", "last_write_ts": "WRITTEN"}
    with shell.client() as client:
        empty = f"no topic begins with {prefix}" if prefix else "there are no topics"
        shows = {"bytes": units.size, "last_write_ts": _ago}
        shell.table(client.topics(prefix), columns, shows, empty)


@command("info")
@click.argument("topic")
@pass_shell
def info(shell: Shell, topic: str) -> None:
    """Show how a topic stands, and its config.

    Fields that differ from the defaults come first.
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
@click.option("--queue", "type", flag_value="queue", help="A queue, whose records are jobs.")
@click.option("--durability", type=click.Choice(get_args(Durability)), help="Default: disk.")
@click.option(
    "--ttl", "ttl_ms", metavar="TIME", type=units.DURATION, help="Keep records so long: 7d."
)
@click.option("--cap", "cap_records", metavar="COUNT", type=units.COUNT, help="Keep so many: 1M.")
@click.option("--cap-bytes", metavar="SIZE", type=units.BYTES, help="Keep so many bytes: 1G.")
@sets
@pass_shell
def create(shell: Shell, /, topic: str, sets: tuple[str, ...], **options: Any) -> ExitCode:
    """Make a topic.

    What is not named takes its default. A topic that is there already stays as it is: the command
    ends with 0 when it is as asked, else with 7.
    """
    fields = {field: value for field, value in options.items() if value is not None}
    return configs.create(shell, "topic", topic, fields | configs.pairs(sets))


@command("config")
@click.argument("topic")
@click.argument("pairs", metavar="[FIELD=VALUE]...", nargs=-1)
@click.option("--dry-run", is_flag=True, help="Print the changes (exit code 7), and make none.")
@pass_shell
def config(shell: Shell, topic: str, pairs: tuple[str, ...], dry_run: bool) -> ExitCode:
    """Show or change the config of a topic.

    Fields that are not named stay. Values are JSON or text; fields of ms take 7d, those of bytes
    1G, and counts 1M. A shorter ttl_ms and a lower cap remove records, also of a topic that rejects
    and jobs that are leased; --dry-run says how many.
    """
    with shell.client() as client:
        state = client.topic(topic).state()
        if not pairs:
            if shell.is_json:
                shell.emit(state.config)
            else:
                configs.table_of(state.config)
            return ExitCode.DONE
        asked = configs.change(client, "topic", topic, configs.pairs(pairs))
        dropped = asked.dropped(client) if dry_run else asked.apply(client)
    configs.tell(shell, asked, **({"dropped": dropped} if asked.changes_limits else {}))
    if dropped:
        verb = "would remove" if dry_run else "removed"
        shell.say(f"this {verb} {dropped} record{'s' if dropped > 1 else ''}")
    if asked.word == "keep":
        shell.say("nothing to change")
    elif dry_run:
        shell.say("nothing was changed; without --dry-run it is")
        return ExitCode.DIFFERENT
    return ExitCode.DONE


@command("rm")
@click.argument("topics", metavar="TOPIC...", nargs=-1, required=True)
@yes
@pass_shell
def rm(shell: Shell, topics: tuple[str, ...], is_sure: bool) -> None:
    """Remove topics with all their records.

    Routers from and to them go, too. Nothing is removed when one of them is not there.
    """
    with shell.client() as client:
        said = []
        for name in topics:
            state = client.topic(name).state()
            said.append(f"{name} ({state.count} records, {units.size(state.bytes)})")
            if not is_sure:
                found = [*client.routers(source=name), *client.routers(dest=name)]
                said += [f"router {router.name}" for router in found]
        shell.confirm(f"Remove {', '.join(said)}?", is_sure)
        for name in topics:
            client.topic(name).drop()
            shell.done({"topic": name, "deleted": True}, f"removed {name}")


@command("delete")
@click.argument("topic")
@click.option("--before", metavar="SEQ", type=click.IntRange(min=0), help="Those below this seq.")
@click.option("--tag", metavar="TAG", help="Those with this tag; eu:* is all that begin with eu:.")
@yes
@pass_shell
def delete(shell: Shell, topic: str, before: int | None, tag: str | None, is_sure: bool) -> None:
    """Delete records of a topic for good.

    With both options, those that fit both.
    """
    if before is None and tag is None:
        raise click.UsageError("which records? --before SEQ or --tag TAG says it")
    which = "" if before is None else f" before seq {before}"
    which += "" if tag is None else f" with tag {tag}"
    with shell.client() as client:
        shell.confirm(f"Delete records of {topic}{which}?", is_sure)
        done = client.topic(topic).delete(before=before, tag=tag)
    shell.done(done, f"deleted {done.deleted} records of {topic}; it has {done.count}")

"""Topic and router configs: parses fields in the form that users write, and computes changes.

The value in FIELD=VALUE is JSON if it parses as JSON, otherwise text. Fields that are numbers also
accept a unit: 7d for milliseconds, 1G for bytes, 1M for a count. A filter given as text is a tag,
or a tag prefix if it ends with ``*``.

A change is computed from the current config with the server's rules (`topics.formats.api`), so it
is known before the first request that changes something.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, Literal, NamedTuple, get_args, get_origin, get_type_hints

import click
import msgspec
from click.shell_completion import CompletionItem

from topics.cli import units
from topics.cli.shell import InvalidInput, Shell, nearest, write_table
from topics.client import NotFound, Topics, calls
from topics.errors import ExitCode, InvalidRequest, TopicExistsIncompatible
from topics.formats.api import router_json
from topics.formats.api.decoding import decode_config
from topics.formats.api.limits import MOVE_LIMITS
from topics.formats.api.topic_config import TopicConfig, TopicConfigPatch, merge
from topics.formats.json_text import json_bytes
from topics.formats.names import valid_router_name, valid_topic_name

Kind = Literal["topic", "router"]
Config = dict[str, Any]

FIELDS: Final = {
    "topic": TopicConfigPatch.__struct_fields__,
    "router": router_json.RouterPatch.__struct_fields__,
}
DEFAULTS: Final[Mapping[str, Config]] = {
    "topic": msgspec.structs.asdict(TopicConfig()),
    "router": {
        **router_json.RouterConfig(source="", dest="").as_json(),
        "source": None,
        "dest": None,
    },
}
VALUES: Final = {
    field: [str(value).lower() for value in (get_args(hint) or (True, False))]
    for field, hint in {
        **get_type_hints(TopicConfig),
        **get_type_hints(router_json.RouterConfig),
    }.items()
    if hint is bool or get_origin(hint) is Literal
}
LIMITS: Final = {"cap_records", "cap_bytes", "ttl_ms"}
QUEUE_FIELDS: Final = [*DEFAULTS["topic"]][[*DEFAULTS["topic"]].index("lease_ms") :]


class Change(NamedTuple):
    """A change to a topic or router. ``old`` is None if it is created, and ``new`` is None if it is
    removed. ``records`` is the number of records in a topic that is removed.
    """

    kind: Kind
    name: str
    wanted: Config
    old: Config | None
    new: Config | None
    records: int = 0

    @property
    def differences(self) -> dict[str, tuple[Any, Any]]:
        """The changed fields with their old and new values. New objects start with defaults."""
        old, new = self.old or DEFAULTS[self.kind], self.new or {}
        return {field: (old[field], new[field]) for field in new if old[field] != new[field]}

    @property
    def verb(self) -> str:
        """Return ``create``, ``change``, ``remove`` or ``keep``."""
        if self.new is None or self.old is None:
            return "create" if self.new else "remove"
        return "change" if self.differences else "keep"

    def lines(self) -> list[str]:
        """Return the changed fields as text."""
        if self.new is None:
            return [f"({units.counted(self.records)})"] if self.kind == "topic" else []
        return [
            f"{field} = {format_value(field, new)}"
            if self.old is None
            else f"{field}: {format_value(field, old)} -> {format_value(field, new)}"
            for field, (old, new) in self.differences.items()
        ]

    def emit(self, shell: Shell, **more: int) -> None:
        """Write the change as a line of JSON."""
        fields = {name: {"old": old, "new": new} for name, (old, new) in self.differences.items()}
        shell.emit({"change": self.verb, self.kind: self.name, "fields": fields, **more})

    @property
    def changes_limits(self) -> bool:
        """Whether the change modifies a cap or the maximum age of records, so it may remove
        records.
        """
        return self.verb == "change" and not LIMITS.isdisjoint(self.differences)

    def dropped(self, client: Topics) -> int:
        """Let the server check the change to a topic with a dry run, and return the number of
        records that the change would remove. Raise `TopicsError`.
        """
        if self.kind != "topic" or self.verb not in ("create", "change"):
            return 0
        return client.call(calls.put_topic(self.name, self.wanted, dry_run=True)).dropped

    def apply(self, client: Topics) -> int:
        """Apply the change and return the number of records that caps and age have removed."""
        if self.verb == "keep":
            return 0
        if self.kind == "topic" and self.new is None:
            client.call(calls.drop_topic(self.name))
        elif self.kind == "topic":
            return client.call(calls.put_topic(self.name, self.wanted)).dropped
        elif self.new is None:
            client.call(calls.drop_router(self.name))
        else:
            ends = {"source": self.new["source"], "dest": self.new["dest"]}
            options = {name: value for name, value in self.wanted.items() if name not in ends}
            client.call(calls.put_router(self.name, **ends, options=options))
        return 0


def change(client: Topics, kind: Kind, name: str, wanted: Mapping[str, Any]) -> Change:
    """Return what a PUT would change. Raise `InvalidInput` for an invalid field, or
    `click.ClickException` if the topic has a different type.
    """
    fields = checked(kind, name, wanted)
    try:
        old = config_of(client, kind, name)
    except NotFound:
        old = None
    try:
        if kind == "router":
            body = json_bytes({**(old or {}), **fields})
            router = router_json.decode_router(body, MOVE_LIMITS)
            return Change(kind, name, fields, old, router_json.merge(None, router).as_json())
        base = None if old is None else msgspec.convert(old, TopicConfig)
        topic = merge(name, base, decode_config(json_bytes(fields)))
        return Change(kind, name, fields, old, msgspec.structs.asdict(topic))
    except InvalidRequest as error:
        raise InvalidInput(error.message) from None
    except TopicExistsIncompatible as error:
        raise click.ClickException(error.message) from None


def config_of(client: Topics, kind: Kind, name: str) -> Config:
    """Return the current config without ``durable``, which is an alias of ``durability``."""
    found = client.router(name) if kind == "router" else client.topic(name).state().config
    config = found if isinstance(found, dict) else msgspec.structs.asdict(found)
    return {field: config.get(field, default) for field, default in DEFAULTS[kind].items()}


def checked(kind: Kind, name: str, wanted: Mapping[str, Any]) -> Config:
    """Return the fields with the values that the API expects. Raise `InvalidInput`."""
    if not (valid_router_name if kind == "router" else valid_topic_name)(name):
        raise InvalidInput(f"{name!r} is not a valid {kind} name")
    for field in wanted:
        if field not in FIELDS[kind]:
            raise InvalidInput(f"a {kind} has no field {field}{nearest(field, FIELDS[kind])}")
    return {field: _value(field, value) for field, value in wanted.items()}


def _unit(field: str) -> units.Duration | units.Amount | None:
    if field.endswith("_ms"):
        return units.DURATION
    if field.endswith("_bytes"):
        return units.BYTES
    return units.COUNT if field in ("cap_records", "max_deliveries") else None


def _value(field: str, value: object) -> object:
    if isinstance(value, str) and field == "filter":
        return calls.match_of(value)
    if isinstance(value, str) and (unit := _unit(field)) is not None:
        try:
            return unit.convert(value, None, None)
        except click.BadParameter as error:
            raise InvalidInput(f"{field}: {error.message}") from None
    return value


def format_value(field: str, value: Any) -> str:
    """Return a value in the form that users write."""
    if field == "filter" and value is not None:
        return str(value[2])
    if (unit := _unit(field)) is not None and value:
        return unit.exact(value)
    return value if isinstance(value, str) else msgspec.json.encode(value).decode()


def pairs(given: Iterable[str]) -> Config:
    """Parse FIELD=VALUE arguments. Raise `InvalidInput`."""
    found = {}
    for pair in given:
        field, equals, text = pair.partition("=")
        if not equals:
            raise InvalidInput(f"{pair!r} is not FIELD=VALUE")
        try:
            found[field] = msgspec.json.decode(text)
        except (msgspec.MsgspecError, RecursionError):
            found[field] = text
    return found


class Pair(click.ParamType[str]):
    """A FIELD=VALUE argument. Shells complete the field, and also the value if only a few values
    are permitted.
    """

    name = "field=value"

    def __init__(self, kind: Kind) -> None:
        self._kind = kind

    def shell_complete(
        self, context: click.Context, parameter: click.Parameter, incomplete: str
    ) -> list[CompletionItem[str]]:
        """Return ``FIELD=VALUE`` for each value, or ``FIELD=`` if there are too many."""
        del context, parameter
        found = [
            f"{field}={value}" for field in FIELDS[self._kind] for value in VALUES.get(field, ("",))
        ]
        return [
            CompletionItem(each)
            for each in found
            if each.startswith(incomplete) and each != incomplete
        ]


def sets(kind: Kind) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Return the option --set for commands that create a topic or router."""
    return click.option("--set", "sets", metavar="FIELD=VALUE", multiple=True, type=Pair(kind),
                        help="Set a field of the config.")  # fmt: skip


def create(shell: Shell, kind: Kind, name: str, fields: Config) -> ExitCode:
    """Create a topic or router. An existing one is not changed."""
    with shell.client() as client:
        wanted = change(client, kind, name, fields)
        if wanted.old is None:
            wanted.apply(client)
    if shell.is_json or wanted.verb == "change":
        show(shell, wanted)
    if wanted.verb == "change":
        new = [
            f" {field}={format_value(field, new)}" for field, (_, new) in wanted.differences.items()
        ]
        how = f"config {name}{''.join(new)}" if kind == "topic" else "apply"
        shell.print_note(
            f"{kind} {name} already exists and was not changed; topics {how} changes it"
        )
        return ExitCode.DIFFERENT
    is_new = wanted.verb == "create"
    shell.print_note(
        f"created {kind} {name}" if is_new else f"{kind} {name} already exists with this config"
    )
    unused = [field for field in fields if field in QUEUE_FIELDS]
    if unused and wanted.new and wanted.new["type"] == "log":
        shell.print_note(f"{', '.join(unused)}: not used, because {name} is a log, not a queue")
    return ExitCode.DONE


def show(shell: Shell, wanted: Change, **more: int) -> None:
    """Print a change. ``more`` has additional members for the JSON output."""
    if shell.is_json:
        wanted.emit(shell, **more)
    else:
        click.echo("".join(f"~ {line}\n" for line in wanted.lines()), nl=False)


def table_of(config: Mapping[str, Any]) -> None:
    """Print the config of a topic, fields that differ from the defaults first. Fields that only
    apply to queues are omitted for logs.
    """
    rows = [
        [field, format_value(field, value), format_value(field, default)]
        for field, default in DEFAULTS["topic"].items()
        for value in (config.get(field, default),)
        if value != default or config["type"] == "queue" or field not in QUEUE_FIELDS
    ]
    write_table(["FIELD", "VALUE", "DEFAULT"], sorted(rows, key=lambda row: row[1] == row[2]))

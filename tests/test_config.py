"""Settings from the environment: accepted and refused values."""

from __future__ import annotations

import ast
import dataclasses
import ipaddress
from pathlib import Path

import pytest

from tests.process.boot_support import mistakes
from topics.config import (
    MIB,
    Settings,
    unknown_variables,
    usable_cores,
    variable_of,
)

ROOT = Path(__file__).parent.parent


def test_an_empty_environment_gives_the_documented_defaults() -> None:
    settings = Settings.from_environment({})
    documented = {
        "max_batch_records": 10_000,
        "max_record_bytes": 1 * MIB,
        "max_body_bytes": 64 * MIB,
        "max_meta_bytes": 16 * 1024,
        "max_tag_bytes": 256,
        "max_node_bytes": 128,
        "max_limit": 1000,
        "max_watch_topics": 256,
        "max_claim": 1000,
        "max_topics": 100_000,
        "max_routers": 10_000,
        "max_watch_sessions": 10_000,
        "max_watch_sessions_per_key": 5000,
        "max_sse_connections": 10_000,
        "max_sse_connections_per_key": 1000,
        "max_inflight_per_key": 1000,
        "max_total_bytes": 0,
        "host": "127.0.0.1",
        "port": 4000,
        "probe_auth": False,
        "allow_insecure_no_auth": False,
    }
    assert {name: getattr(settings, name) for name in documented} == documented
    assert settings.shards == min(64, usable_cores())


def other_value(field: dataclasses.Field[object]) -> tuple[str, object]:
    """Return an allowed text that is not the default, and the value that it means."""
    if isinstance(field.default, bool):
        return "true", True
    if isinstance(field.default, int):
        return str(2 * field.default + 1024), 2 * field.default + 1024
    return ("error", "error") if field.name == "log_level" else ("/elsewhere", Path("/elsewhere"))


@pytest.mark.parametrize("field", dataclasses.fields(Settings), ids=lambda field: field.name)
def test_every_setting_is_read_from_its_variable(field: dataclasses.Field[object]) -> None:
    hosts = ("Topics.example, .lan,[FD00:0::1]", ("topics.example", ".lan", "[fd00::1]"))
    special = {
        "host": ("::1", "::1"),
        "allowed_hosts": hosts,
        "cors_origins": ("HTTPS://App.example:443", ("https://app.example",)),
        "trusted_proxies": ("127.0.0.1", (ipaddress.ip_network("127.0.0.1/32"),)),
        "access_log": ("Audit", "audit"),
        "ring_bytes": ("8388608", 8 * MIB),
        "shards": ("7", 7),
        "fronts": ("1", 1),
    }
    text, value = special.get(field.name) or other_value(field)
    assert getattr(Settings.from_environment({variable_of(field.name): text}), field.name) == value


@pytest.mark.parametrize(
    "text", ["", "-1", "1.5", "1e3", "0x10", "64MiB", "1_000", "+5", "five", "nan", "٣", str(2**63)]
)
def test_a_setting_that_is_not_a_plain_number_prevents_the_start(text: str) -> None:
    assert (
        f"TOPICS_MAX_TOPICS={text!r}: must be an integer of at least 0"
        in mistakes({"TOPICS_MAX_TOPICS": text}).values()
    )


def test_an_empty_setting_counts_as_absent_if_the_default_is_not_set() -> None:
    empty = ("FENCE", "ALLOWED_HOSTS", "CORS_ORIGINS", "TRUSTED_PROXIES")
    given = {f"TOPICS_{name}": " " for name in empty}
    assert Settings.from_environment(given) == Settings.from_environment({})
    assert mistakes({"TOPICS_DATA_DIR": ""})
    assert mistakes({"TOPICS_API_KEYS_FILE": ""})  # otherwise all clients would be accepted


def test_a_trusted_proxy_must_be_an_address_and_not_a_name() -> None:
    wrong = {"TOPICS_TRUSTED_PROXIES": "127.0.0.1,proxy.example"}
    assert "TOPICS_TRUSTED_PROXIES='127.0.0.1,proxy.example': must be" in "".join(
        mistakes(wrong).values()
    )


def test_networks_are_printed_in_the_form_in_which_they_are_read() -> None:
    given = {"TOPICS_TRUSTED_PROXIES": "127.0.0.1/32,fd00::/8"}
    (line,) = [one for one in Settings.from_environment(given).lines() if "PROXIES" in one]
    assert line == "TOPICS_TRUSTED_PROXIES=127.0.0.1/32,fd00::/8"


@pytest.mark.parametrize(
    "variable",
    [
        "MAX_BATCH_RECORDS",
        "MAX_RECORD_BYTES",
        "MAX_BODY_BYTES",
        "MAX_META_BYTES",
        "MAX_TAG_BYTES",
        "MAX_NODE_BYTES",
        "MAX_LIMIT",
        "MAX_WATCH_TOPICS",
        "MAX_CLAIM",
        "SHARDS",
        "RING_BYTES",
        "INLINE_BYTES",
        "ARENA_BYTES",
        "WAL_FILE_BYTES",
        "WAL_SYNC_MS",
        "DRAIN_MS",
    ],
)
def test_zero_is_refused_for_settings_that_must_be_positive(variable: str) -> None:
    assert f"TOPICS_{variable}" in mistakes({f"TOPICS_{variable}": "0"})


@pytest.mark.parametrize(
    "variable",
    [
        "TOPICS",
        "ROUTERS",
        "WATCH_SESSIONS",
        "SSE_CONNECTIONS",
        "SSE_CONNECTIONS_PER_KEY",
        "INFLIGHT_PER_KEY",
        "TOTAL_BYTES",
    ],
)
def test_zero_disables_a_cap(variable: str) -> None:
    settings = Settings.from_environment({f"TOPICS_MAX_{variable}": "0"})
    assert getattr(settings, f"max_{variable.lower()}") == 0


def test_all_errors_are_reported_together_and_none_shows_a_secret() -> None:
    found = mistakes(
        {
            "TOPICS_PORT": "80x",
            "TOPICS_RING_BYTES": "3000000",
            "TOPICS_HOST": "",
            "TOPICS_ALLOWED_HOSTS": "a.example:4000",
            "TOPICS_CORS_ORIGINS": "https://app.example,null",
            "TOPICS_ACCESS_LOG": "some",
            "TOPICS_PROBE_AUTH": "2",
            "TOPICS_LOG_LEVEL": "loud",
            "TOPICS_DATA_DIR": " ",
            "TOPICS_API_KEYS": "hunter2:fly",
            "TOPICS_API_KEYS_FILE": "/nowhere/keys",
        }
    )
    assert found.keys() == {
        "TOPICS_PORT",
        "TOPICS_RING_BYTES",
        "TOPICS_HOST",
        "TOPICS_ALLOWED_HOSTS",
        "TOPICS_CORS_ORIGINS",
        "TOPICS_ACCESS_LOG",
        "TOPICS_PROBE_AUTH",
        "TOPICS_LOG_LEVEL",
        "TOPICS_DATA_DIR",
        "TOPICS_API_KEYS",
        "TOPICS_API_KEYS_FILE",
    }
    assert found["TOPICS_PORT"] == "TOPICS_PORT='80x': must be an integer from 0 to 65535"
    assert "host name or an IP address" in found["TOPICS_HOST"]
    assert "host names without ports" in found["TOPICS_ALLOWED_HOSTS"]
    assert "must not contain null" in found["TOPICS_CORS_ORIGINS"]
    assert "off, audit, all" in found["TOPICS_ACCESS_LOG"]
    assert "true or false" in found["TOPICS_PROBE_AUTH"]
    assert "power of two" in found["TOPICS_RING_BYTES"]
    assert "debug, info, warning, error" in found["TOPICS_LOG_LEVEL"]
    assert "No such file" in found["TOPICS_API_KEYS_FILE"]
    assert "hunter2" not in "".join(found.values())
    assert "fly" not in found["TOPICS_API_KEYS"]


def test_contradictory_values_are_refused() -> None:
    assert (
        "quarter of TOPICS_RING_BYTES"
        in mistakes({"TOPICS_INLINE_BYTES": "2097152"})["TOPICS_INLINE_BYTES"]
    )
    assert "longest body" in mistakes({"TOPICS_ARENA_BYTES": "1048576"})["TOPICS_ARENA_BYTES"]


def test_derived_settings_follow_from_the_given_ones() -> None:
    settings = Settings.from_environment(
        {"TOPICS_MAX_BODY_BYTES": str(300 * MIB), "TOPICS_RING_BYTES": str(64 * 1024)}
    )
    assert settings.arena_bytes >= 2 * settings.max_body_bytes
    assert settings.inline_bytes == 16 * 1024


def attributes_read(of: str) -> set[str]:
    """Return every ``name`` that the code reads as ``x.name``, where ``x`` is called ``of`` with or
    without a leading underscore.
    """
    paths = [*(ROOT / "topics").rglob("*.py")]
    nodes = [
        node
        for path in paths
        if path.name != "config.py"
        for node in ast.walk(ast.parse(path.read_text()))
    ]
    read = [node for node in nodes if isinstance(node, ast.Attribute)]
    return {node.attr for node in read if name_of(node.value).lstrip("_") == of}


def name_of(node: ast.expr) -> str:
    return node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")


def test_every_setting_is_read_by_some_module() -> None:
    read = attributes_read("settings") | {"api_keys_file"}  # read from the environment directly
    assert "TOPICS_API_KEYS_FILE" in (ROOT / "topics" / "process" / "keys.py").read_text()
    assert {field.name for field in dataclasses.fields(Settings)} <= read


def test_a_server_knows_and_ignores_the_variables_of_clients() -> None:
    assert unknown_variables(["TOPICS_URL", "TOPICS_API_KEY", "TOPICS_API_KEYS"]) == []
    assert unknown_variables(["TOPICS_API_KEYZ"]) == [("TOPICS_API_KEYZ", "TOPICS_API_KEYS")]


def test_the_warning_about_an_unknown_variable_suggests_the_nearest_known_one() -> None:
    environ = {
        "TOPICS_MAX_TOPIC": "1",
        "TOPICS_ELEPHANT": "1",
        "TOPICS_API_KEYS": "k",
        "PATH": "/",
        "TOPICS_PORT": "1",
    }
    assert unknown_variables(environ) == [
        ("TOPICS_ELEPHANT", None),
        ("TOPICS_MAX_TOPIC", "TOPICS_MAX_TOPICS"),
    ]


def test_the_printed_settings_can_be_read_back() -> None:
    given = {
        "TOPICS_MAX_TOPICS": "5",
        "TOPICS_DATA_DIR": "/x y",
        "TOPICS_PROBE_AUTH": "1",
        "TOPICS_ALLOWED_HOSTS": "a, fd00::1",
    }
    settings = Settings.from_environment(given)
    assert (
        Settings.from_environment(dict(line.split("=", 1) for line in settings.lines())) == settings
    )


def test_the_example_file_shows_every_setting_with_its_default() -> None:
    text = (ROOT / "deploy" / "topics.env.example").read_text()
    shown = dict(
        line[1:].split("=", 1) for line in text.splitlines() if line.startswith("#TOPICS_")
    )
    assert shown.keys() == {variable_of(field.name) for field in dataclasses.fields(Settings)}
    given = {name: value for name, value in shown.items() if value}
    assert Settings.from_environment(given) == Settings.from_environment({})

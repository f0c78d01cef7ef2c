"""The container image and its compose file. No container runtime is available, so the tests read
these files and run the server as the image would.
"""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from ipaddress import ip_address, ip_network
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.process.family_support import WITHIN_S, Family
from tests.support.program import Program
from topics.config import ConfigError, Settings, unknown_variables
from topics.process import boot, keys
from topics.process.supervisor import STOP_EXTENSION_MS

ROOT = Path(__file__).parents[2]
DEPLOY = ROOT / "deploy"
INSTRUCTION = re.compile(r"^([A-Z]+) (.*)$", re.MULTILINE)


def image() -> list[tuple[str, str]]:
    """Return the instructions of the last stage, with continued lines joined."""
    text = (DEPLOY / "Dockerfile").read_text().replace("\\\n", "")
    found = INSTRUCTION.findall(text)
    return found[max(i for i, (name, _) in enumerate(found) if name == "FROM") :]


def environment() -> dict[str, str]:
    (line,) = [rest for name, rest in image() if name == "ENV"]
    return dict(pair.split("=", 1) for pair in line.split())


def compose() -> dict[str, Any]:
    read: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    return read


def mounts(service: dict[str, Any]) -> dict[str, str]:
    """Return the mounted files of this folder by their path in the container."""
    parts = [each.split(":") for each in service.get("volumes", ())]
    return {part[1]: part[0].removeprefix("./") for part in parts if part[0].startswith("./")}


def health_check() -> list[str]:
    (line,) = [rest for name, rest in image() if name == "HEALTHCHECK"]
    command: list[str] = json.loads(line.partition(" CMD ")[2])
    return command


def test_the_image_sets_only_server_settings_and_an_unprivileged_user() -> None:
    known = dict(image())
    assert unknown_variables(environment()) == []
    assert known["USER"] == "10001:10001"
    (made,) = [rest for name, rest in image() if name == "RUN"]
    assert "useradd --uid 10001 --gid 10001" in made
    assert "python -m compileall -q /usr/local/lib/" in made
    assert Path(environment()["TOPICS_DATA_DIR"]).parent == Path(known["VOLUME"])
    assert known["EXPOSE"] == environment()["TOPICS_PORT"] == str(Settings().port)
    assert known["STOPSIGNAL"] == "SIGTERM"
    assert (json.loads(known["ENTRYPOINT"]), json.loads(known["CMD"])) == (["topics"], ["serve"])
    assert all(re.search(r":\d", rest) for name, rest in image() if name == "FROM"), "pinned"


def test_a_container_without_keys_does_not_start() -> None:
    with pytest.raises(ConfigError, match="is not loopback and no keys are configured"):
        boot.read(environment())


def test_the_build_context_contains_only_the_package() -> None:
    """Every copied file passes the ignore file, and every file that passes it exists."""
    shown = {
        line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line[:1] == "!"
    }
    text = (DEPLOY / "Dockerfile").read_text()
    copied = " ".join(re.findall(r"^COPY (?!--from)(.*) \S+$", text, re.MULTILINE)).split()
    assert {*copied} == shown
    assert [name for name in shown if not (ROOT / name).exists()] == []


@pytest.mark.slow
@pytest.mark.parametrize(
    ("status", "code"), [(b"200 OK", 0), (b"401 Unauthorized", 0), (b"503 Not ready", 1), (None, 1)]
)
def test_the_health_check_requests_the_readiness_of_the_server(
    status: bytes | None, code: int
) -> None:
    """With TOPICS_PROBE_AUTH a running server responds with 401."""
    name, *rest = health_check()
    assert name == "python"
    with socket.create_server(("127.0.0.1", 0)) as server:
        env = os.environ | {"TOPICS_PORT": str(server.getsockname()[1])}
        with Program([sys.executable, *rest], env=env, stderr=subprocess.PIPE) as check:
            server.settimeout(WITHIN_S)
            connection, _ = server.accept()
            with connection:
                assert connection.recv(4096).startswith(b"GET /v0/ready HTTP/1.1\r\n")
                if status is not None:
                    connection.sendall(b"HTTP/1.1 %b\r\nContent-Length: 0\r\n\r\n" % status)
            check.communicate(timeout=WITHIN_S)
            assert check.returncode == code


PID_1 = ("unshare", "--map-root-user", "--pid", "--fork", "--kill-child", "--mount-proc")


def children(pid: int) -> list[int]:
    return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.slow
def test_as_process_1_of_a_container_the_server_reaps_orphans_and_drains(tmp_path: Path) -> None:
    if subprocess.run([*PID_1, "true"], capture_output=True, check=False).returncode:
        pytest.skip("this machine lets its users make no namespace of processes")
    with Family(tmp_path, through=PID_1) as family:
        family.started()
        (supervisor,) = children(family.process.pid)
        before = {*children(supervisor)}
        inside = ["nsenter", f"--target={supervisor}", "--user", "--pid", "--preserve-credentials"]
        subprocess.run([*inside, "sh", "-c", "sleep 1000 >&- 2>&- &"], check=True)
        wait_until(lambda: len({*children(supervisor)} - before) == 1, "the orphan is not adopted")
        (orphan,) = {*children(supervisor)} - before
        os.kill(orphan, signal.SIGKILL)
        wait_until(lambda: not Path(f"/proc/{orphan}").exists(), "the orphan is not reaped")
        os.kill(supervisor, signal.SIGTERM)
        assert family.end() == 0
        assert len(family.events("process ended")) == len(before)


def wait_until(condition: Callable[[], bool], otherwise: str) -> None:
    until = time.monotonic() + WITHIN_S
    while not condition():
        assert time.monotonic() < until, otherwise
        time.sleep(0.02)


def test_the_compose_file_gives_the_server_its_keys_and_time_to_drain() -> None:
    service = compose()["services"]["topics"]
    assert unknown_variables(service["environment"]) == []
    (secret,) = service["secrets"]
    assert service["environment"]["TOPICS_API_KEYS_FILE"] == f"/run/secrets/{secret}"
    assert service["ports"] == [f"127.0.0.1:{Settings().port}:{Settings().port}"]
    assert service["volumes"] == [f"topics:{dict(image())['VOLUME']}"]
    grace_ms = 1000 * int(service["stop_grace_period"].removesuffix("s"))
    assert grace_ms >= Settings().drain_ms + STOP_EXTENSION_MS
    assert (ROOT / "deploy" / service["build"]["context"]).resolve() == ROOT
    assert (ROOT / service["build"]["dockerfile"]).exists()


def test_the_trusted_proxy_has_an_address_that_no_other_container_gets() -> None:
    services, (network,) = compose()["services"], compose()["networks"]["default"]["ipam"]["config"]
    address = services["nginx"]["networks"]["default"]["ipv4_address"]
    assert services["topics"]["environment"]["TOPICS_TRUSTED_PROXIES"] == address
    assert ip_address(address) in ip_network(network["subnet"])
    assert ip_address(address) not in ip_network(network["ip_range"])


def test_each_container_that_another_waits_for_has_a_health_check() -> None:
    services = compose()["services"]
    waited_for = {name for each in services.values() for name in each.get("depends_on", ())}
    assert waited_for <= services.keys()
    with_check = {name for name, each in services.items() if "healthcheck" in each}
    assert waited_for <= with_check | {"topics"}, "its image has the check"


def test_every_secret_has_a_reader_and_none_is_committed() -> None:
    services = compose()["services"].values()
    read = [each for service in services for each in service["secrets"]]
    names = [each if isinstance(each, str) else each["source"] for each in read]
    assert sorted(names) == sorted(compose()["secrets"])
    assert "/deploy/secrets/" in (ROOT / ".gitignore").read_text().split()


@pytest.mark.slow
def test_the_commands_of_the_page_create_every_secret(tmp_path: Path) -> None:
    """Run the lines of the page with stand-ins for programs of other machines."""
    page = (ROOT / "topics/docs/operate.md").read_text().partition("\n## In containers\n")[2]
    lines = re.findall(r"^    (.*)$", page.partition("\n## ")[0], re.MULTILINE)
    (tmp_path / "deploy").mkdir()
    stand_ins = {
        "openssl": "head -c 32 /dev/urandom | sha256sum | cut -c -64",
        "cp": 'touch "$2"',
        "chown": "echo $*",
        "docker": "",
        "topics": "",
    }
    for name, script in stand_ins.items():
        (tmp_path / name).write_text(f"#!/bin/sh\n{script}\n")
        (tmp_path / name).chmod(0o755)
    done = subprocess.run(
        ["sh", "-ec", "\n".join(lines)],
        cwd=tmp_path,
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}"},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    made = tmp_path / "deploy/secrets"
    files = {Path(each["file"]).name for each in compose()["secrets"].values()}
    assert {path.name for path in made.iterdir()} == files | {"admin-key"}
    assert "10001 api-keys" in done.stdout.splitlines()
    rows, errors = keys.check(made / "api-keys")
    assert errors == []
    assert [row["scopes"] for row in rows] == [["read", "write", "delete", "admin"], ["read"]]
    secrets = [(made / name).read_text().strip() for name in ("admin-key", "scrape-key")]
    assert (made / "api-keys").read_text().split() == [secrets[0], f"{secrets[1]}:read"]
    assert [(made / name).stat().st_mode & 0o077 for name in ("api-keys", "admin-key")] == [0, 0]


@pytest.mark.parametrize(
    ("service", "name"),
    [
        (name, file)
        for name, each in compose()["services"].items()
        for file in mounts(each).values()
    ],
)
def test_a_mounted_configuration_exists_and_its_server_name_is_replaced(
    service: str, name: str
) -> None:
    assert (DEPLOY / name).exists()
    command = "".join(compose()["services"][service].get("command", ()))
    if f"/etc/topics/{name.rpartition('/')[2]} >" in command:
        text = (DEPLOY / name).read_text()
        replaced = re.findall(r"s\|(.+?)\|(.+?)\|", command)
        assert [each for each, _ in replaced if not re.search(each, text)] == []


def test_grafana_finds_prometheus_and_the_dashboard() -> None:
    folder = DEPLOY / "grafana/provisioning"
    (source,) = yaml.safe_load((folder / "datasources/prometheus.yaml").read_text())["datasources"]
    prometheus, grafana = (compose()["services"][name] for name in ("prometheus", "grafana"))
    assert source["url"] == "http://prometheus:9090"
    assert prometheus["healthcheck"]["test"][-1] == "http://127.0.0.1:9090/-/ready"
    (provider,) = yaml.safe_load((folder / "dashboards/topics.yaml").read_text())["providers"]
    assert f"{provider['options']['path']}/topics.json" in mounts(grafana)

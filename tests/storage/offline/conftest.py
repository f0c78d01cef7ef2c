from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.offline_scenes import Scene, write_scene, write_unsealed


@pytest.fixture(scope="session")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    """The directory of a server that was stopped. Nobody changes it."""
    return write_scene(tmp_path_factory.mktemp("offline") / "data")


@pytest.fixture(scope="session")
def unsealed(tmp_path_factory: pytest.TempPathFactory) -> Scene:
    """Another one, whose records all stand in the log and beside it. Nobody changes it."""
    return write_unsealed(tmp_path_factory.mktemp("offline") / "unsealed")


@pytest.fixture
def hurt(scene: Scene, tmp_path: Path) -> Iterator[Path]:
    """A copy of `scene`, to be damaged."""
    yield from copied(scene.path, tmp_path / "copy")


@pytest.fixture
def hurt_unsealed(unsealed: Scene, tmp_path: Path) -> Iterator[Path]:
    """A copy of `unsealed`, to be damaged."""
    yield from copied(unsealed.path, tmp_path / "unsealed")


def copied(path: Path, to: Path) -> Iterator[Path]:
    shutil.copytree(path, to, copy_function=shutil.copyfile)
    yield to
    shutil.rmtree(to, ignore_errors=True)

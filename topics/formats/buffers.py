"""The type of bytes that may be borrowed: what a decoder reads and a writer writes."""

from __future__ import annotations

from typing import TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview

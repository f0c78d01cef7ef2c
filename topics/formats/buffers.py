"""The type of buffers that decoders and writers accept without copying them."""

from __future__ import annotations

from typing import TypeAlias

Buffer: TypeAlias = bytes | bytearray | memoryview

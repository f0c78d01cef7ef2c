"""Checksums by a simple and slow implementation."""

from __future__ import annotations


def slow_crc32c(data: bytes, start: int = 0) -> int:
    """Compute CRC-32C bit by bit, as its specification defines it."""
    crc = ~start & 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return ~crc & 0xFFFFFFFF

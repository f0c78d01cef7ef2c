"""Pressure: overload control of a front and its shards (decision 0030)."""

"""Pressure: what a front does when it, or a shard, has more to do than it can (decision 0030).

the loop's passes, the shards' delays --> `Governor` of each shard --> refusals, pauses
appends of a pass that has become long --> `Turns` --> by band
"""

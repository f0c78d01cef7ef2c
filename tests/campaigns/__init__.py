"""Programs that disturb a real server for some time and check the result: kills, power loss,
faults, hostile clients. The tests in `tests/crash` run each of them briefly.
"""

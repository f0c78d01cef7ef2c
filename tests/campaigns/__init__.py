"""Programs that hurt a real server for a while and judge what is left: kills, power loss, faults,
hostile clients. The tests in `tests/crash` run each of them briefly.
"""

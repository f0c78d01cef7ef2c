"""What holds for every test."""

from __future__ import annotations

import signal

from hypothesis import HealthCheck, settings

# How fast an example is made or run says something about the machine (and, in a fresh checkout,
# about a table of Unicode that Hypothesis makes at the first text), nothing about what the test
# proves. pytest-timeout ends what hangs.
settings.register_profile(
    "topics", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.load_profile("topics")

# A suite that was started with nohup would hand that on to every server it starts, and one of them
# must end by a hang-up.
signal.signal(signal.SIGHUP, signal.SIG_DFL)

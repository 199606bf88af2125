"""Random calls on two windows agree with a simple model of what a history is (`history_model`)."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

from tests.history_model import HistoryMachine

TestHistory = HistoryMachine.TestCase
TestHistory.settings = settings(
    max_examples=25,
    stateful_step_count=40,
    deadline=None,
    derandomize=True,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
)

"""The real engine under a real limit on address space: a factory for `specchat.worker.process`.

The variable SPECCHAT_TEST_ROOM says how many bytes may be mapped beyond what the process has when it begins to load.
With SPECCHAT_TEST_BLIND the plan believes in a machine with plenty of memory, so that only the attempt itself tells.
Nothing is timed at load: that is not what this is for.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Callable
from unittest import mock

import psutil

from specchat.engine.chat import Engine
from specchat.engine.costs import ASSUMED_DRAFT, Costs
from specchat.memory.machine import Machine
from specchat.units import GIB
from specchat.worker import loader, machine
from specchat.worker.loader import restore_draft as restore
from specchat.worker.protocol import EngineInfo, Load

Progress = Callable[[str, float | None], None]


def load_engine(request: Load, progress: Progress, cancelled: Callable[[], bool]) -> tuple[Engine, EngineInfo]:
    """`specchat.worker.loader.load_engine` under the limit."""
    if os.environ.get("SPECCHAT_TEST_BLIND"):
        machine.read = lambda: Machine(2 * GIB, 64 * GIB)
    mock.patch.multiple(loader, calibrate=lambda *_: Costs(), calibrate_draft=lambda _: dict(ASSUMED_DRAFT)).start()
    _limit(int(os.environ["SPECCHAT_TEST_ROOM"]))
    return loader.load_engine(request, progress, cancelled)


def restore_draft(
    engine: Engine, info: EngineInfo, request: Load, progress: Progress, cancelled: Callable[[], bool]
) -> EngineInfo:
    """The limit is gone: other programs were closed."""
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
    return restore(engine, info, request, progress, cancelled)


def _limit(room: int) -> None:
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (psutil.Process().memory_info().vms + room, hard))

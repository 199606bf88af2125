"""What would a load do here? The plan for it, made without loading anything, in a process of its own.

    python -m specchat.worker.planner

Contract: a pickled `Load` on standard input, a pickled `Planned` (or the sentence that says why there is none) on
standard output. `explain` is the asking side and imports no native library.
"""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from typing import Final

from specchat.errors import SpecchatError
from specchat.worker.protocol import Load, Planned

_PATIENCE: Final = 120  # seconds; a cold import of the library from a slow disk takes ten


def explain(request: Load) -> Planned:
    """The plan for `request` on this machine now. Raises SpecchatError."""
    command = [sys.executable, "-P", "-m", "specchat.worker.planner"]
    try:
        done = subprocess.run(command, input=pickle.dumps(request), capture_output=True, timeout=_PATIENCE)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise SpecchatError(f"llama.cpp did not answer: {error}") from error
    if done.returncode != 0:
        raise SpecchatError(f"llama.cpp ended with status {done.returncode} while it read {request.target.name}")
    answer: Planned | str = pickle.loads(done.stdout)
    if isinstance(answer, str):
        raise SpecchatError(answer)
    return answer


def _planned(request: Load) -> Planned | str:
    from specchat.engine.llama import ModelError
    from specchat.memory import table
    from specchat.worker import loader

    try:
        plan, obstacle = loader.planned(request)
    except ModelError as error:
        return str(error)
    missing = "" if plan.rungs else "; ".join((*plan.absent, *plan.reasons))
    without = f"without the draft model: {obstacle}" if obstacle else ""
    return Planned((*table.lines(plan), *filter(None, [without])), missing)


def main() -> None:
    """See the module."""
    # Whatever the library prints must not mix with the answer.
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    with answers:
        pickle.dump(_planned(pickle.load(sys.stdin.buffer)), answers)


if __name__ == "__main__":
    main()

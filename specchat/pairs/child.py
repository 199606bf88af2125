"""Running a helper program whose standard output is progress, one line at a time."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Finished:
    """How the program ended: its exit status (negative: the signal that ended it) and standard error."""

    status: int
    errors: str


def run(
    command: Sequence[str], parse: Callable[[str], T | None], env: Mapping[str, str] | None = None
) -> Generator[T, None, Finished]:
    """Run `command`, yield what `parse` makes of each line of its standard output, return how it ended.

    Lines of which it makes None are passed over; `env` is added to the environment. Abandoning the generator
    ends the program. Raises OSError when it cannot be started.
    """
    with tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace") as errors:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=errors,
            encoding="utf-8",
            errors="replace",
            env={**os.environ, **(env or {}), "PYTHONUNBUFFERED": "1"},
        )
        try:
            assert process.stdout is not None
            for line in process.stdout:
                if (parsed := parse(line)) is not None:
                    yield parsed
            process.wait()
        finally:
            process.kill()  # does nothing once it has ended
            process.communicate()
        errors.seek(0)
        return Finished(process.returncode, errors.read())

"""A few threads at work on a list of things, and one stream of what they say.

Contract: `work` is a generator. It yields what the jobs say, at least every `TICK` seconds (what was said last
is said again, so that clocks on a screen can move), and returns the outcomes in the order of the items.
Closing it, as an interrupt does, sets `stop` and returns at once: the threads are daemons, and a job that is
blocked ends at its next look at `stop`. An exception that is not a SpecchatError is raised here.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from specchat.errors import SpecchatError
from specchat.pairs.progress import Phase, Progress

Item = TypeVar("Item")
Result = TypeVar("Result")

TICK: Final = 0.5
THREAD: Final = "pull"  # the threads' name


@dataclass(frozen=True, slots=True)
class _Ended(Generic[Result]):
    index: int
    outcome: Result | BaseException


def work(
    items: Sequence[Item],
    job: Callable[[Item, Callable[[Progress], None]], Result],
    stop: threading.Event,
    width: int,
) -> Generator[Progress, None, list[Result | SpecchatError]]:
    """Run `job(item, say)` for every item, `width` at a time."""
    said: queue.SimpleQueue[Progress | _Ended[Result]] = queue.SimpleQueue()
    todo = deque(enumerate(items))

    def worker() -> None:
        while not stop.is_set():
            try:
                index, item = todo.popleft()
            except IndexError:
                return
            try:
                said.put(_Ended(index, job(item, said.put)))
            except BaseException as error:
                said.put(_Ended(index, error))

    threads = [threading.Thread(target=worker, name=THREAD, daemon=True) for _ in range(min(width, len(items)))]
    for thread in threads:
        thread.start()
    outcomes: dict[int, Result | SpecchatError] = {}
    latest: dict[str, Progress] = {}
    try:
        while len(outcomes) < len(items):
            try:
                event = said.get(timeout=TICK)
            except queue.Empty:
                yield from [p for p in latest.values() if p.phase not in (Phase.DONE, Phase.FAILED)]
                continue
            if isinstance(event, Progress):
                latest[event.file] = event
                yield event
            elif isinstance(event.outcome, BaseException) and not isinstance(event.outcome, SpecchatError):
                raise event.outcome
            else:
                outcomes[event.index] = event.outcome
    except BaseException:
        stop.set()
        raise
    return [outcomes[index] for index in range(len(items))]

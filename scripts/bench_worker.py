"""What going through the engine's process costs: tokens/s of replies from it against the engine used directly.

Both write the same greedy reply of the demo pair, in turns, with n-gram look-up on text that repeats itself, which is
where tokens come fastest and a message for each round costs most. Each turn's events are all taken, as a screen would.
Prints tokens/s of each (the best turn, whatever disturbs one makes it slower) and the difference; exit status 1 if
that is more than 3 %.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import closing

from specchat.engine.policy import Mode, Speculation
from specchat.engine.replies import Event, Generated, Message, ReplyOptions
from specchat.engine.sampling import SamplingSettings
from specchat.pairs import catalog, prepare
from specchat.pairs.library import Library
from specchat.worker import loader
from specchat.worker.client import Client
from specchat.worker.protocol import Load, LoadSettings

ALLOWED = 0.03
PROMPT = "Write the numbers from one to one hundred in words, one on each line."


def tokens_per_second(events: Iterable[Event]) -> float:
    """From the first round to the last."""
    tokens, first, last = 0, 0.0, 0.0
    for event in events:
        if isinstance(event, Generated):
            last = time.perf_counter()
            tokens += len(event.round.tokens) if first else 0
            first = first or last
    return tokens / (last - first)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--tokens", type=int, default=256)
    parser.add_argument("--threads", type=int)
    options = parser.parse_args()

    library, known = Library.default(), catalog.load()
    pair = known.pair("demo")
    for _ in prepare.prepare(known, library, pair):
        pass
    target = library.path(pair.target)
    settings = LoadSettings(n_ctx=2048, threads=options.threads, speculation=Speculation(Mode.NGRAM, 7))
    engine, _ = loader.load_engine(Load(0, target, settings=settings), lambda *_: None, lambda: False)
    ask = ReplyOptions(SamplingSettings(temperature=0.0), max_tokens=options.tokens)
    messages = [Message("user", PROMPT)]
    best = {"directly": 0.0, "through the process": 0.0}
    with closing(engine), closing(Client()) as client:
        for _ in client.load(target, None, settings):
            pass
        ways: dict[str, Callable[[], Iterable[Event]]] = {
            "directly": lambda: engine.reply(messages, ask),
            "through the process": lambda: client.reply(messages, ask),
        }
        for _ in range(options.turns):
            for name, reply in ways.items():
                best[name] = max(best[name], tokens_per_second(reply()))
    for name, speed in best.items():
        print(f"{name:20} {speed:7.1f} tokens/s")
    cost = 1 - best["through the process"] / best["directly"]
    print(f"{'cost':20} {100 * cost:7.1f} %  (at most {100 * ALLOWED:.0f} %)")
    return int(cost > ALLOWED)


if __name__ == "__main__":
    sys.exit(main())

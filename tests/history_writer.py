"""A window as a process of its own, for the tests that kill it: `python -m tests.history_writer FILE SEED [STEPS]`.

It writes random things and says each on standard output as one line of JSON: before ("will") and after ("did") the
call. What it did must be found again whatever happens to it; what it was about to do may be found.
"""

from __future__ import annotations

import json
import random
import sys
from pathlib import Path
from typing import Any

from specchat.history import Store


def say(kind: str, **facts: Any) -> None:
    print(json.dumps({"kind": kind, **facts}), flush=True)


class Writer:
    """Speaks with itself in one conversation: questions, growing replies, unsent text."""

    def __init__(self, store: Store, seed: int) -> None:
        self.store = store
        self.random = random.Random(seed)
        self.conversation = store.create().id
        say("conversation", id=self.conversation)
        self.leaf: int | None = None
        self.reply: int | None = None
        self.number = 0

    def step(self) -> None:
        self.number += 1
        text = f"{self.number} {self.random.choice(('short', 'long ' * self.random.randrange(2000)))};"
        if self.random.random() < 0.2:
            say("will", what="unsent", text=text)
            self.store.keep_unsent(self.conversation, text)
            say("did", what="unsent", text=text)
        elif self.reply is None:
            say("will", what="send", text=text)
            question = self.store.send(self.conversation, text, after=self.leaf).message
            say("did", what="send", text=text, id=question.id)
            self.leaf = self.reply = self.store.begin_reply(question.id).id
            say("did", what="append", text="", id=self.reply)
        elif self.random.random() < 0.2:
            self.store.finish(self.reply, figures={"tokens": self.number})
            say("did", what="finish", id=self.reply)
            self.reply = None
        else:
            say("will", what="append", text=text, id=self.reply)
            self.store.append_to(self.reply, text, reasoning=text.upper())
            say("did", what="append", text=text, id=self.reply)


def main() -> None:
    path, seed = Path(sys.argv[1]), int(sys.argv[2])
    with Store(path) as store:
        writer = Writer(store, seed)
        for _ in range(int(sys.argv[3]) if len(sys.argv) > 3 else sys.maxsize):
            writer.step()


if __name__ == "__main__":
    main()

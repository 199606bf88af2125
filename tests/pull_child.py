"""A pull in a process of its own, to be killed: `python -m tests.pull_child FOLDER URL DEATH`.

DEATH is where the process kills itself with the signal that cannot be caught: `verifying`, `before rename`,
`after rename`, or `never`; a number limits the size of its files instead, as a full disk would.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
from pathlib import Path
from unittest.mock import patch

from specchat.errors import SpecchatError
from specchat.pairs.library import Library
from specchat.pairs.verifier import Verifier
from tests.fakehub import FakeHub
from tests.pulling import Bench


class Elsewhere(FakeHub):
    """The hub of the parent process."""

    address = ""

    @property
    def url(self) -> str:
        return self.address


def die(*_: object, **__: object) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def main(folder: str, url: str, death: str) -> int:
    hub = Elsewhere()
    hub.address = url
    bench = Bench(hub, Path(folder))
    match death:
        case "verifying":
            patch.object(Verifier, "finish", die).start()
        case "before rename":
            patch.object(Path, "replace", die).start()
        case "after rename":
            patch.object(Library, "record", die).start()
        case "never":
            pass
        case limit:
            resource.setrlimit(resource.RLIMIT_FSIZE, (int(limit), int(limit)))
    try:
        bench.pull(bench.pair("target.gguf"))
    except SpecchatError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))

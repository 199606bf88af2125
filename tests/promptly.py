"""Ending because it was told to, not because something else ran out."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

_SOON: Final = 5.0  # seconds: far below what is waited for where nobody ends it, far above a busy machine's delays


@contextmanager
def promptly() -> Iterator[None]:
    """What is done within has ended long before it would have by itself.

    How soon exactly is not for a test: with a bound of one second, which everything here kept on a machine of its own,
    tests failed on one that was not.
    """
    begun = time.monotonic()
    yield
    assert time.monotonic() - begun < _SOON

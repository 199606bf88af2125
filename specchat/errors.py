"""The one exception a person may be shown."""

from __future__ import annotations

from typing import ClassVar


class SpecchatError(Exception):
    """A failure explained in one clear sentence that says what to do next where there is something to do.

    The command line prints it on standard error after "specchat: " and exits with status 1; the screen shows
    it in place. Anything else that escapes is a bug. `option` is the command line's that helps, which alone says it.
    """

    option: ClassVar[str] = ""

"""The one exception a person may be shown."""

from __future__ import annotations


class SpecchatError(Exception):
    """A failure explained in one clear sentence that says what to do next where there is something to do.

    The command line prints it on standard error after "specchat: " and exits with status 1; the screen shows
    it in place. Anything else that escapes is a bug.
    """

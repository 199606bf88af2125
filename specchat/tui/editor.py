"""The message opened in the user's own editor.

Contract: `edit` answers with the text as it was saved, or raises EditorError and nothing is lost.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from pathlib import Path

from specchat.errors import SpecchatError
from specchat.tui.text import clean


class EditorError(SpecchatError):
    """The editor could not be run."""


def command() -> list[str]:
    """What $VISUAL or $EDITOR says, else vi. Raises EditorError where that is no command line."""
    named = (os.environ.get(variable, "").strip() for variable in ("VISUAL", "EDITOR"))
    line = next(filter(None, named), "vi")
    try:
        return shlex.split(line)
    except ValueError as error:
        raise EditorError(f"The editor {line} cannot be run: {error}.") from error


def edit(text: str) -> str:
    """Run the editor on `text` in the foreground of this terminal."""
    with tempfile.TemporaryDirectory(prefix="specchat-") as folder:
        file = Path(folder) / "message.md"
        file.write_text(text, "utf-8")
        editor = command()
        try:
            status = subprocess.run([*editor, str(file)], check=False).returncode
        except (OSError, ValueError) as error:
            raise EditorError(f"The editor {' '.join(editor)} cannot be run: {error}.") from error
        if status != 0:
            raise EditorError(f"The editor {editor[0]} ended with status {status}; the message is as it was.")
        try:
            return clean(file.read_text("utf-8", errors="replace")).removesuffix("\n")
        except OSError as error:
            raise EditorError(f"The editor {editor[0]} left no file behind; the message is as it was.") from error

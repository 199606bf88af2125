"""Copying out of the terminal.

Contract: `copy` never raises; it answers with one sentence saying what was done.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from typing import Any, Final

from textual.app import App

_TIMEOUT: Final = 2.0


def copy(app: App[Any], text: str) -> str:
    """Put `text` on the clipboard: through tmux where it runs, else by OSC 52 and the system's own program."""
    amount = f"{len(text):,} characters" if len(text) != 1 else "1 character"
    app.copy_to_clipboard(text)
    # tmux 3.3a with its defaults drops OSC 52 from programs; load-buffer -w passes it on to the outer terminal.
    if os.environ.get("TMUX") and _pipe(["tmux", "load-buffer", "-w", "-"], text):
        return f"Copied {amount} (tmux buffer and clipboard)."
    # Some terminals do not know OSC 52, or do not allow it, and none says so.
    for program in filter(lambda program: shutil.which(program[0]), _programs()):
        if _pipe(program, text):
            return f"Copied {amount} ({program[0]}, and the terminal's clipboard sequence, OSC 52)."
    return f"Copied {amount} (by the terminal's clipboard sequence, OSC 52)."


def _programs() -> Iterator[list[str]]:
    """What can put a text on this system's clipboard, the likeliest first."""
    if sys.platform == "darwin":
        yield ["pbcopy"]
    if os.environ.get("WAYLAND_DISPLAY"):
        yield ["wl-copy"]
    if os.environ.get("DISPLAY"):
        yield ["xclip", "-selection", "clipboard"]
        yield ["xsel", "--clipboard", "--input"]


def _pipe(program: list[str], text: str) -> bool:
    try:
        done = subprocess.run(
            program,
            input=text.encode(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_TIMEOUT,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return done.returncode == 0

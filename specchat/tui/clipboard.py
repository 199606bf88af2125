"""Copying out of the terminal.

Contract: `copy` never raises; it answers with one sentence saying what was done.
"""

from __future__ import annotations

import os
import subprocess
from typing import Any, Final

from textual.app import App

_TIMEOUT: Final = 2.0


def copy(app: App[Any], text: str) -> str:
    """Put `text` on the clipboard: through tmux where it runs, else by the terminal's own sequence (OSC 52)."""
    amount = f"{len(text):,} characters" if len(text) != 1 else "1 character"
    app.copy_to_clipboard(text)
    # tmux 3.3a with its defaults drops OSC 52 from programs; load-buffer -w passes it on to the outer terminal.
    if os.environ.get("TMUX") and _tmux(text):
        return f"Copied {amount} (tmux buffer and clipboard)."
    return f"Copied {amount} (by the terminal's clipboard sequence, OSC 52)."


def _tmux(text: str) -> bool:
    try:
        done = subprocess.run(
            ["tmux", "load-buffer", "-w", "-"],
            input=text.encode(),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            timeout=_TIMEOUT,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return done.returncode == 0

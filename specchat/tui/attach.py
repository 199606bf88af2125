"""Files named in a message with `@path`.

Contract: `find` reads the files it names and nothing else; a file that is no text is refused with a sentence.
"""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import Final

from specchat import locations, texts
from specchat.errors import SpecchatError
from specchat.session import Attachment
from specchat.tui.text import one_line

_MENTION: Final = re.compile(r'(?:(?<=\s)|^)@(?:"([^"\n]+)"|(\S+))')
_MOST_BYTES: Final = 4 << 20  # a million tokens: no context holds more


class AttachError(SpecchatError):
    """The file cannot be attached; nothing was sent."""


def find(text: str) -> tuple[Attachment, ...]:
    """The files that `text` mentions and that exist, read. An address such as @someone is left alone."""
    found = []
    for match in _MENTION.finditer(text):
        named = match[1] or match[2].rstrip(".,;:!?)")
        path = locations.expanded(named)
        if locations.is_file(path):
            found.append(read(path))
        elif match[1] or _is_surely_a_path(named, path):
            raise AttachError(f"There is no file {one_line(named, 80)}.")
    return tuple(found)


def _is_surely_a_path(named: str, path: Path) -> bool:
    """Whether a missing file was meant: @types/node is a package to most, unless there is a folder called types."""
    return named.startswith(("/", "./", "../", "~/")) or ("/" in named and locations.exists(path.parent))


def read(path: Path) -> Attachment:
    """One text file. Raises AttachError."""
    name = locations.tilde(path)
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise AttachError(f"{name} is too large to attach ({path.stat().st_size:,} bytes).")
        return Attachment(name, texts.read(path, name))
    except OSError as error:
        raise AttachError(f"{name} cannot be read: {error.strerror}.") from error
    except SpecchatError as error:
        raise AttachError(f"{error}.") from error


def paths(prefix: str, limit: int = 8) -> tuple[str, ...]:
    """Files and folders that `prefix` could become, folders with a slash, hidden ones only if asked for."""
    path = locations.expanded(prefix or ".")
    folder, start = (path, "") if prefix.endswith("/") or not prefix else (path.parent, path.name)
    head = prefix[: len(prefix) - len(start)] if start else prefix
    try:
        found = [entry for entry in folder.iterdir() if entry.name.lower().startswith(start.lower())]
    except OSError:
        return ()
    wanted = [entry for entry in found if start.startswith(".") or not entry.name.startswith(".")]
    first = sorted(wanted, key=lambda entry: entry.name.lower())[:limit]
    return tuple(head + entry.name + ("/" if _is_folder(entry) else "") for entry in first)


def _is_folder(path: Path) -> bool:
    with suppress(OSError):  # a link to where nobody may look
        return path.is_dir()
    return False

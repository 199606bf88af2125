"""Files named in a message with `@path`.

Contract: `find` reads the files it names and nothing else; a file that is no text is refused with a sentence. What
`mention` writes, `find` finds.
"""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path
from typing import Final

from specchat import locations, texts
from specchat.errors import SpecchatError
from specchat.session import Attachment
from specchat.tui.text import clean, one_line

_MENTION: Final = re.compile(r'(?:(?<=\s)|^)@(?:"([^"\n]+)"|(\S+))')
_MOST_BYTES: Final = 4 << 20  # a million tokens: no context holds more


class AttachError(SpecchatError):
    """The file cannot be attached; nothing was sent."""


def find(text: str) -> tuple[Attachment, ...]:
    """The files that `text` mentions and that exist, read. An address such as @someone is left alone.

    A file whose text stands in the message already, as it does in one that was sent before, is not read in again.
    """
    found = []
    for match in _MENTION.finditer(text):
        named = match[1] or match[2].rstrip(".,;:!?)")
        path = locations.expanded(named)
        if locations.is_file(path):
            found.append(read(path))
        elif match[1] or _is_surely_a_path(named, path):
            shown = one_line(named, 80)
            raise AttachError(f"{shown} is a folder." if _is_folder(path) else f"There is no file {shown}.")
    return tuple(attachment for attachment in found if not _holds(text, attachment.text))


def _holds(text: str, attached: str) -> bool:
    """Whether a text stands in a message as `session.compose` puts it there: lines of its own, a blank one after."""
    return bool(attached.strip()) and f"\n{clean(attached.strip())}\n\n" in f"\n{text}"


def mention(path: str) -> str:
    """A path as a message names it; what may still grow, a folder, ends with a slash and without the last quote."""
    if not re.search(r"\s|[.,;:!?)]$", path):
        return f"@{path}"
    return f'@"{path}' + ("" if path.endswith("/") else '"')


def _is_surely_a_path(named: str, path: Path) -> bool:
    """Whether a missing file was meant: @types/node is a package to most, unless there is a folder called types."""
    return named.startswith(("/", "./", "../", "~/")) or ("/" in named and locations.exists(path.parent))


def read(path: Path) -> Attachment:
    """One text file. Raises AttachError."""
    name = locations.tilde(path)
    try:
        size = path.stat().st_size
        text = texts.read(path, name) if size <= _MOST_BYTES else ""
    except OSError as error:
        raise AttachError(f"{name} cannot be read: {error.strerror}.") from error
    except SpecchatError as error:
        raise AttachError(f"{error}.") from error
    if size > _MOST_BYTES:
        raise AttachError(f"{name} is too large to attach ({size:,} bytes).")
    return Attachment(name, text)


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
    with suppress(OSError, ValueError):  # a link to where nobody may look; a name that holds a null character
        return path.is_dir()
    return False

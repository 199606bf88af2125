"""Text out of files and pipes: UTF-8 and nothing else.

Contract: line ends come out plain, a byte order mark is dropped, and whatever is no text is a SpecchatError that names
its source.
"""

from __future__ import annotations

from pathlib import Path

from specchat.errors import SpecchatError


def read(path: Path, source: str) -> str:
    """The text of the file at `path`, called `source` where it is missing, unreadable or no text."""
    try:
        return decode(path.read_bytes(), source)
    except FileNotFoundError:
        raise SpecchatError(f"there is no file {source}") from None
    except OSError as error:
        raise SpecchatError(f"cannot read {source}: {error.strerror}") from None


def decode(data: bytes, source: str) -> str:
    """The text that `data` is."""
    if b"\0" in data:
        raise SpecchatError(f"{source} is not a text file: it is binary")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise SpecchatError(f"{source} is not a text file in UTF-8") from None
    return text.replace("\r\n", "\n").replace("\r", "\n")

"""Is that a GGUF file? What can be said of it without llama.cpp, which may end the process over a strange one."""

from __future__ import annotations

from pathlib import Path
from typing import Final

_MAGIC: Final = b"GGUF"


def obstacle(path: Path) -> str | None:
    """Why the file at `path` cannot be a GGUF file, in one sentence; None where it begins like one."""
    try:
        with path.open("rb") as file:
            magic = file.read(len(_MAGIC))
    except FileNotFoundError:
        return f"there is no file {path}"
    except IsADirectoryError:
        return f"{path} is a folder, not a GGUF file"
    except OSError as error:
        return f"cannot read {path}: {error.strerror}"
    if not magic:
        return f"{path} is empty"
    return None if magic == _MAGIC else f"{path} is not a GGUF file"

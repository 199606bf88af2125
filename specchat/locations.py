"""Where things live on disk.

Contract: every function answers a Path and creates nothing. `SPECCHAT_HOME` puts everything under one folder;
without it the platform's own folders are used (platformdirs), and with them the XDG variables wherever
platformdirs honours them. The environment is read at each call.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final

from platformdirs import PlatformDirs

HOME_VARIABLE: Final = "SPECCHAT_HOME"


def home() -> Path | None:
    """The folder `SPECCHAT_HOME` names, or None where it is unset or empty."""
    value = os.environ.get(HOME_VARIABLE)
    return expanded(value).absolute() if value else None


def _platform() -> PlatformDirs:
    # appauthor=False: no doubled specchat\specchat on Windows. roaming=False: models must not roam.
    return PlatformDirs("specchat", appauthor=False, roaming=False)


def config_dir() -> Path:
    """What the user writes: settings and own pairs."""
    return home() or _platform().user_config_path


def data_dir() -> Path:
    """What must be kept: models and conversations."""
    return home() or _platform().user_data_path


def state_dir() -> Path:
    """What may be lost without harm: logs, the pair last opened."""
    root = home()
    return root / "state" if root else _platform().user_state_path


def cache_dir() -> Path:
    """What can be made again: measurements."""
    root = home()
    return root / "cache" if root else _platform().user_cache_path


def models_dir() -> Path:
    """Model files installed by specchat, one folder a repository."""
    return data_dir() / "models"


def records_dir() -> Path:
    """One small record for each model file that was checked against its hash."""
    return data_dir() / "verified"


def history_file() -> Path:
    """The database of conversations."""
    return data_dir() / "history.db"


def settings_file() -> Path:
    """The user's settings (TOML), documented in `settings.py`."""
    return config_dir() / "settings.toml"


def user_catalog_file() -> Path:
    """The user's own pairs, in the schema of the shipped models.toml."""
    return config_dir() / "models.toml"


def state_file() -> Path:
    """The pair last opened and when each was used."""
    return state_dir() / "state.json"


def logs_dir() -> Path:
    """Logs, llama.cpp's own output among them."""
    return state_dir() / "logs"


def engine_log_file() -> Path:
    """What the engine's process and llama.cpp wrote."""
    return logs_dir() / "engine.log"


def all_locations() -> Mapping[str, Path]:
    """Every location by the name `specchat paths` prints."""
    return {
        "settings": settings_file(),
        "pairs": user_catalog_file(),
        "models": models_dir(),
        "verified": records_dir(),
        "history": history_file(),
        "state": state_file(),
        "logs": logs_dir(),
        "cache": cache_dir(),
    }


def expanded(path: Path | str) -> Path:
    """A path as people write it, with `~` for their home folder; `~name` of a user there is none stays as it is."""
    with suppress(RuntimeError):
        return Path(path).expanduser()
    return Path(path)


def is_file(path: Path) -> bool:
    """Whether a file is there. Unlike pathlib's this never raises: text that was typed may be no path at all."""
    with suppress(OSError, ValueError):  # a name longer than any file's, a folder that may not be looked into
        return path.is_file()
    return False


def exists(path: Path) -> bool:
    """Whether anything is there; see `is_file`."""
    with suppress(OSError, ValueError):
        return path.exists()
    return False


def tilde(path: Path | str) -> str:
    """The path as text with the user's home folder written as `~`."""
    text, user = str(path), str(Path.home())
    if text == user or text.startswith(user + os.sep):
        return "~" + text[len(user) :]
    return text

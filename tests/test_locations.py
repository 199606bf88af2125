"""Where things live: one folder under SPECCHAT_HOME, else the platform's, XDG honoured."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from specchat import locations


def test_home_variable_puts_everything_under_one_folder(specchat_home: Path) -> None:
    for path in locations.all_locations().values():
        assert specchat_home in path.parents


def test_asking_creates_nothing(specchat_home: Path) -> None:
    locations.all_locations()
    assert list(specchat_home.iterdir()) == []


def test_home_variable_expands_the_tilde(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    monkeypatch.setenv("SPECCHAT_HOME", "~/chat")
    assert locations.models_dir() == tmp_path / "chat" / "models"


@pytest.mark.parametrize(
    ("variable", "location"),
    [
        ("XDG_CONFIG_HOME", locations.settings_file),
        ("XDG_CONFIG_HOME", locations.user_catalog_file),
        ("XDG_DATA_HOME", locations.models_dir),
        ("XDG_DATA_HOME", locations.history_file),
        ("XDG_STATE_HOME", locations.logs_dir),
        ("XDG_CACHE_HOME", locations.cache_dir),
    ],
)
def test_xdg_variables_are_honoured(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, variable: str, location: object
) -> None:
    if sys.platform == "win32":
        return  # platformdirs leaves XDG to Unix and macOS
    monkeypatch.delenv("SPECCHAT_HOME")
    monkeypatch.setenv(variable, str(tmp_path))
    assert callable(location)
    assert tmp_path in location().parents


def test_names_never_collide() -> None:
    # On macOS settings and data share a folder.
    paths = list(locations.all_locations().values())
    assert len(set(paths)) == len(paths)


def test_tilde_hides_the_home_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("USERPROFILE", str(tmp_path))
    assert locations.tilde(tmp_path / "models") == str(Path("~") / "models")
    assert locations.tilde(tmp_path) == "~"
    assert locations.tilde(f"{tmp_path}-other") == f"{tmp_path}-other"

"""What specchat remembers between runs survives restarts and damage."""

from __future__ import annotations

from pathlib import Path

from specchat import locations, state


def test_nothing_is_remembered_at_first() -> None:
    assert state.load() == state.State()


def test_the_last_opened_and_every_use_are_remembered() -> None:
    state.remember_opened("demo", now=10.0)
    state.remember_opened("qwen3-8b", now=20.0)
    assert state.load() == state.State("qwen3-8b", {"demo": 10.0, "qwen3-8b": 20.0})


def test_what_was_offered_is_not_offered_again() -> None:
    state.remember_opened("demo", now=10.0)
    assert [state.offer_once(what) for what in ("a", "b", "a", "b")] == [True, True, False, False]
    state.remember_opened("demo", now=20.0)
    assert not state.offer_once("a")
    assert state.load() == state.State("demo", {"demo": 20.0}, ("a", "b"))


def test_a_damaged_file_counts_as_empty_and_is_replaced() -> None:
    for damage in ("", "{", "[]", '{"last_opened": 3, "used": ["x"]}', '{"used": {"a": "b"}}'):
        locations.state_file().parent.mkdir(parents=True, exist_ok=True)
        locations.state_file().write_text(damage)
        assert state.load().last_opened is None
    state.remember_opened("demo")
    assert state.load().last_opened == "demo"


def test_a_place_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    state.remember_opened("demo", tmp_path / "file" / "state.json")
    assert state.offer_once("a", tmp_path / "file" / "state.json")

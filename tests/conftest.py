"""What every test gets: a home of its own, and the real demo models where a test asks for them."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass
from pathlib import Path

import pytest
from platformdirs import user_cache_path

from specchat.pairs import catalog, prepare
from specchat.pairs.library import Library

# A shell that starts its jobs in the background has them ignore Ctrl+C, and so would every program that a test starts.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


@dataclass(frozen=True, slots=True)
class DemoPair:
    """Paths of the demo pair's files: `target` (Q8_0), `draft` (Q4_0, layers pruned), `base` (Q4_1)."""

    target: Path
    draft: Path
    base: Path
    library: Library


@pytest.fixture(scope="session")
def demo_pair() -> DemoPair:
    """The real demo pair, prepared once and kept outside the repository for the next run.

    `SPECCHAT_TEST_CACHE` names another folder to keep it in. The files are shared by all tests: never write to
    them.
    """
    kept = os.environ.get("SPECCHAT_TEST_CACHE")
    root = Path(kept) if kept else user_cache_path("specchat-tests", appauthor=False)
    library = Library(root / "models", root / "verified")
    shipped = catalog.load(user_file=root / "no-such-models.toml")
    pair = shipped.pair("demo")
    for _ in prepare.prepare(shipped, library, pair):
        pass
    target, draft = (library.path(file) for file in pair.files)
    return DemoPair(target, draft, library.path(shipped.lineage(pair.target)[0]), library)


@pytest.fixture(scope="session")
def smollm2(demo_pair: DemoPair) -> Path:
    """One small real model: the demo pair's target."""
    return demo_pair.target


@pytest.fixture(autouse=True)
def specchat_home(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Every location of specchat under a fresh folder, so that no test sees the user's files."""
    home = tmp_path_factory.mktemp("home")
    monkeypatch.setenv("SPECCHAT_HOME", str(home))
    return home

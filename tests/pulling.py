"""What the tests of `pull` share: a catalogue of one pair on a fake hub, and an empty library."""

from __future__ import annotations

import hashlib
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from specchat.pairs import pull as pulling
from specchat.pairs.catalog import Catalog, HubSource, ModelFile, Pair, Shard
from specchat.pairs.discovery import Place
from specchat.pairs.hub import Hub
from specchat.pairs.library import Library, State
from specchat.pairs.progress import Event, Phase, Plan, Progress
from specchat.pairs.transfer import Patience
from tests.fakehub import FakeHub, model

REPO = "some/models-GGUF"
SIZE = 400_000
ENTRY = f"""
[files.t]
repo = "{REPO}"
file = "target.gguf"
[files.d]
repo = "{REPO}"
file = "draft.gguf"
[pairs.duo]
target = "t"
draft = "d"
"""
QUICK = Patience(asks=2, tries=3, first_wait=0.02, longest_wait=0.05, longest_limit=60)


def duo_hub(size: int) -> FakeHub:
    """A hub with both files of `duo`, of so many bytes each."""
    return FakeHub({(REPO, f"{role}.gguf"): model(size, n) for n, role in enumerate(("target", "draft"))})


def knows_duo(home: Path, hub: FakeHub, monkeypatch: pytest.MonkeyPatch, more: str = "") -> None:
    """Have the program that lives in `home` know the pair `duo` on this hub; `more` goes into the pair's entry."""
    (home / "models.toml").write_text(ENTRY + more)
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    monkeypatch.setenv("HF_HOME", str(home / "hf"))
    for name in ("HF_TOKEN", "HF_HUB_OFFLINE", "HUGGING_FACE_HUB_TOKEN"):
        monkeypatch.delenv(name, raising=False)


@dataclass
class Bench:
    """A library in a folder, a hub, and the pair `duo`: target.gguf and draft.gguf."""

    hub: FakeHub
    folder: Path
    token: str | None = None
    stall_timeout: float = 0.5
    events: list[Event] = field(default_factory=list)
    sha256: dict[str, str] = field(default_factory=dict)  # what the catalogue knows
    revision: str | None = None
    places: tuple[Place, ...] = ()  # other programs' folders

    def __post_init__(self) -> None:
        for number, name in enumerate(("target.gguf", "draft.gguf")):
            self.hub.files.setdefault((REPO, name), model(SIZE, number))

    @property
    def library(self) -> Library:
        return Library(self.folder / "models", self.folder / "verified")

    def file(self, name: str) -> ModelFile:
        stem = name.removesuffix(".gguf")
        sha256 = self.sha256.get(name)
        size = len(self.content(name)) if sha256 else None
        return ModelFile(stem, HubSource(REPO, (Shard(name, size, sha256),), self.revision), size, sha256)

    def pair(self, *names: str, called: str = "duo") -> Pair:
        target, draft = [*[self.file(name) for name in names or ("target.gguf", "draft.gguf")], None][:2]
        assert target is not None
        return Pair(called, target, draft)

    def catalog(self, *pairs: Pair) -> Catalog:
        files = {file.name: file for pair in pairs for file in pair.files}
        return Catalog(files, {pair.name: pair for pair in pairs})

    def client(self) -> Hub:
        return Hub(self.hub.url, self.token, "in HF_TOKEN", connect_timeout=2, stall_timeout=self.stall_timeout)

    def start(self, *pairs: Pair, force: bool = False, patience: Patience = QUICK) -> Generator[Event, None, None]:
        pairs = pairs or (self.pair(),)
        return pulling.pull(
            self.catalog(*pairs),
            self.library,
            pairs,
            hub=self.client,
            patience=patience,
            places=self.places,
            force=force,
        )

    def pull(self, *pairs: Pair, force: bool = False, patience: Patience = QUICK) -> list[Event]:
        """Pull to the end; what happened is in `events` even if it raises."""
        self.events = []
        for event in self.start(*pairs, force=force, patience=patience):
            self.events.append(event)
        return self.events

    def installed(self, name: str) -> Path:
        return self.library.models / REPO / name

    def parts(self, name: str = "") -> list[Path]:
        return sorted((self.library.models / REPO).glob(f"{name}*.part"))

    def leave_part(self, name: str, content: bytes) -> Path:
        """What an interrupted run would have left of the hub's present version."""
        digest = hashlib.sha256(self.content(name)).hexdigest()
        path = self.library.models / REPO / f"{name}.{digest[:12]}.part"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        return path

    def content(self, name: str) -> bytes:
        content = self.hub.files[REPO, name]
        assert isinstance(content, bytes)
        return content

    def state(self, name: str) -> State:
        return self.library.status(self.file(name)).state

    def assert_whole(self, *names: str) -> None:
        """The files are installed, right, recorded, and nothing else is left in their folder."""
        names = names or ("target.gguf", "draft.gguf")
        for name in names:
            assert self.installed(name).read_bytes() == self.content(name)
            assert self.state(name) is State.READY
        assert sorted(p.name for p in (self.library.models / REPO).iterdir()) == sorted(names)

    def progress(self, phase: Phase | None = None, file: str | None = None) -> list[Progress]:
        return [
            e for e in self.events if isinstance(e, Progress) and phase in (None, e.phase) and file in (None, e.file)
        ]

    def notes(self) -> str:
        return "\n".join(e.note for e in self.progress())

    def plan(self) -> Plan:
        return next(e for e in self.events if isinstance(e, Plan))

    def sent(self, name: str) -> int:
        """Bytes of that file that the server sent."""
        return sum(r.sent for r in self.hub.requests() if name in r.path)

    def starts(self, name: str) -> list[int]:
        """The byte that each request for the file's body asked to begin at."""
        return [r.start for r in self.hub.requests() if name in r.path and "/resolve/" in r.path]

"""The arithmetic around a pull: speed and time left, which pair to propose, entries of one's own."""

from __future__ import annotations

import tomllib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from specchat import offers, probe
from specchat.errors import SpecchatError
from specchat.memory.machine import Device, margin, ram_margin
from specchat.memory.machine import Machine as Memory
from specchat.pairs import catalog as catalogs
from specchat.pairs import choosing, own
from specchat.pairs.catalog import Catalog, HubSource, PathSource
from specchat.pairs.choosing import Choice, Fit, Machine
from specchat.pairs.library import Library
from specchat.pairs.progress import Meter, Overview, Phase, Plan, PlannedFile, Progress, duration
from specchat.units import GIB
from specchat.worker import ram


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


# -- speed ------------------------------------------------------------------------------------------------


def test_speed_is_of_the_last_seconds(clock: Clock) -> None:
    meter = Meter(clock)
    for second in range(20):
        clock.now = second
        meter.seen(second * 100 if second < 10 else 1000 + (second - 10) * 10)
    assert meter.speed == pytest.approx(10, rel=0.2)
    assert meter.left(100) == pytest.approx(10, rel=0.2)


def test_what_was_here_before_is_no_speed(clock: Clock) -> None:
    meter = Meter(clock)
    meter.seen(10**9)
    clock.now = 1
    meter.seen(10**9 + 50)
    assert meter.speed == 50


def test_speed_fades_in_a_stall(clock: Clock) -> None:
    meter = Meter(clock)
    for clock.now in (0, 1, 2):
        meter.seen(int(clock.now) * 100)
    for clock.now in (4, 6, 8, 10, 12):
        meter.seen(200)
    assert meter.speed == 0
    assert meter.left(1) is None


def test_starting_again_is_no_negative_speed(clock: Clock) -> None:
    meter = Meter(clock)
    for clock.now, done in ((0, 0), (1, 500), (2, 10), (3, 60)):
        meter.seen(done)
    assert meter.speed == 50


def test_the_overview_adds_files_up(clock: Clock) -> None:
    overview = Overview(clock)
    overview.seen(Plan((PlannedFile("a", 100, 40), PlannedFile("b", 300, 0)), free=1000))
    assert (overview.done, overview.total) == (40, 400)
    clock.now = 1
    overview.seen(Progress("a", Phase.DOWNLOADING, 50, 100))
    overview.seen(Progress("b", Phase.DOWNLOADING, 20, 300))
    assert overview.done == 70
    assert overview.speed() == 30
    assert overview.left() == pytest.approx(11)
    overview.seen(Progress("a", Phase.VERIFYING, 10, 100))  # counts what is hashed, not what is here
    assert overview.done == 120
    overview.seen(Progress("made", Phase.MAKING, 3, 9, in_bytes=False))
    assert overview.done == 120


@pytest.mark.parametrize(
    ("seconds", "words"),
    [(0.2, "0 s"), (59, "59 s"), (200, "3 min 20 s"), (1800, "30 min"), (3900, "1 h 5 min")],
)
def test_durations(seconds: float, words: str) -> None:
    assert duration(seconds) == words


# -- which pair -------------------------------------------------------------------------------------------


@pytest.fixture
def shipped(tmp_path: Path) -> Catalog:
    return catalogs.load(tmp_path / "none.toml")


def proposed(shipped: Catalog, folder: Path, machine: Machine) -> Choice | None:
    of = choosing.choices(shipped, Library(folder / "models", folder / "verified"), machine)
    return choosing.proposal(of, machine)


def test_without_a_card_a_pair_for_a_cpu_is_proposed(shipped: Catalog, tmp_path: Path) -> None:
    choice = proposed(shipped, tmp_path, Machine(16 * GIB, 16 * GIB, 10**12, gpu=False))
    assert choice is not None
    assert choice.pair.suits == "cpu"
    assert "q8_0" in choice.pair.target.name
    assert choice.pair.draft is not None
    assert "q4_0" in choice.pair.draft.name


@pytest.mark.parametrize("memory", [2, 4, 8, 12, 24, 48])
def test_with_a_card_the_largest_that_fits_is_proposed(shipped: Catalog, tmp_path: Path, memory: int) -> None:
    choice = proposed(shipped, tmp_path, Machine(memory * GIB, memory * GIB, 10**12, gpu=True))
    assert choice is not None
    needs = [p.memory_gib for p in shipped.pairs.values() if p.suits == "gpu" and p.memory_gib is not None]
    assert choice.pair.memory_gib == max(need for need in needs if need <= memory)


def test_the_disk_counts(shipped: Catalog, tmp_path: Path) -> None:
    choice = proposed(shipped, tmp_path, Machine(48 * GIB, 48 * GIB, 400_000_000, gpu=True))
    assert choice is not None
    assert choice.pair.name == "smollm2-360m"


def test_nothing_fits_nothing_is_proposed(shipped: Catalog, tmp_path: Path) -> None:
    assert proposed(shipped, tmp_path, Machine(1000, 1000, 10**12, gpu=False)) is None


def test_memory_is_free_or_could_be_or_is_not_there(shipped: Catalog, tmp_path: Path) -> None:
    library = Library(tmp_path / "models", tmp_path / "verified")
    of = choosing.choices(shipped, library, Machine(5 * GIB, 8 * GIB, 10**12, gpu=False))
    fits = {choice.pair.name: choice.memory for choice in of}
    assert (fits["qwen3-4b"], fits["qwen3-8b"], fits["qwen3-14b"]) == (Fit.FITS, Fit.TIGHT, Fit.TOO_LARGE)


def test_a_pair_fits_if_the_plan_would_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = Library(tmp_path / "models", tmp_path / "verified")

    def may_take(free: int, *cards: probe.Device) -> tuple[int, int]:
        room = ram.Room(free, 16 * GIB, "within the control group's limit")
        monkeypatch.setattr(ram, "available", lambda: room)
        monkeypatch.setattr(probe, "build", lambda: probe.Build("0", "", bool(cards), False, cards))
        machine = offers.machine(library)
        return machine.memory_free, machine.memory_total

    left = ram_margin(Memory(16 * GIB, 10 * GIB))
    assert may_take(10 * GIB) == (10 * GIB - left, 16 * GIB - left)
    card = Device("CUDA0", "a card", 7 * GIB, 24 * GIB)
    on_card = may_take(2 * GIB, probe.Device("CUDA0", "a card", "gpu", card.free, card.total))
    assert on_card == (card.free - margin(card), card.total - margin(card))


# -- pairs of one's own -----------------------------------------------------------------------------------


def ask(repo: str, path: str, revision: str | None) -> tuple[str, int, str | None]:
    del repo, revision
    return "c" * 40, len(path), "ab" * 32


def test_an_entry_pins_what_the_hub_says_and_reads_back(shipped: Catalog, tmp_path: Path) -> None:
    file = tmp_path / "models.toml"
    file.write_text('# mine\n[files."x"]\npath = "y.gguf"\n')
    pair = own.make_pair(shipped, "mine", "hf:a/b/big-00001-of-00002.gguf", "hf:a/b/c.gguf", ask)
    own.add(pair, file)
    assert file.read_text().startswith("# mine\n")
    read = catalogs.load(file).pair("mine")
    assert read == pair
    assert isinstance(read.target.source, HubSource)
    assert read.target.source.revision == "c" * 40
    assert [s.path for s in read.target.source.shards] == ["big-00001-of-00002.gguf", "big-00002-of-00002.gguf"]


def test_a_file_of_the_catalogue_is_not_entered_twice(shipped: Catalog, tmp_path: Path) -> None:
    known = shipped.files["qwen3-0.6b-q8_0"]
    pair = own.make_pair(shipped, "mine", "hf:a/b/c.gguf", "hf:Qwen/Qwen3-0.6B-GGUF/Qwen3-0.6B-Q8_0.gguf", ask)
    assert pair.draft == known
    own.add(pair, tmp_path / "models.toml")
    assert list(tomllib.loads((tmp_path / "models.toml").read_text())["files"]) == ["mine-target"]


def test_local_files_are_named_where_they_are(shipped: Catalog, tmp_path: Path) -> None:
    path = tmp_path / 'odd "name" ä.gguf'
    path.write_bytes(b"GGUF....")
    pair = own.make_pair(shipped, "local", str(path), None, ask)
    own.add(pair, tmp_path / "models.toml")
    read = catalogs.load(tmp_path / "models.toml").pair("local")
    assert read.target.source == PathSource(path)
    assert read.draft is None


def test_adding_the_same_again_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "models.toml"
    for _ in range(2):
        catalog = catalogs.load(file)
        own.add(own.make_pair(catalog, "mine", "hf:a/b/c.gguf", None, ask), file)
        text = file.read_text()
    assert text.count("[pairs.") == 1
    with pytest.raises(SpecchatError, match="already"):
        own.make_pair(catalogs.load(file), "mine", "hf:a/b/other.gguf", None, ask)


def test_a_name_that_was_taken_meanwhile_is_refused_and_the_file_stays_whole(tmp_path: Path) -> None:
    file = tmp_path / "models.toml"
    before = catalogs.load(file)
    first, second = (own.make_pair(before, "mine", f"hf:a/b/{which}.gguf", None, ask) for which in "cd")
    own.add(first, file)
    text = file.read_text()
    with pytest.raises(SpecchatError, match="a pair called mine already"):
        own.add(second, file)
    assert file.read_text() == text
    own.add(replace(second, name=own.free_name(catalogs.load(file), "mine"), target=first.target), file)
    assert {"mine", "mine-2"} <= set(catalogs.load(file).pairs)


def test_many_who_add_at_once_lose_no_entry(tmp_path: Path) -> None:
    file = tmp_path / "models.toml"
    before = catalogs.load(file)
    pairs = [own.make_pair(before, f"mine{n}", f"hf:a/b/c{n}.gguf", None, ask) for n in range(8)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda pair: own.add(pair, file), pairs))
    assert {pair.name for pair in pairs} <= set(catalogs.load(file).pairs)


@pytest.mark.parametrize(
    ("name", "target", "words"),
    [
        ("qwen3-8b", "hf:a/b/c.gguf", "a pair called qwen3-8b already"),
        ("../x", "hf:a/b/c.gguf", "--name: '../x' is not a plain name"),
        ("mine", "hf:a/c.gguf", "not of the form hf:OWNER/REPO/FILE.gguf"),
        ("mine", "hf:a/b/../../c.gguf", "leaves the models folder"),
        ("mine", "nowhere.gguf", "there is no file nowhere.gguf"),
        ("mine", __file__, "is not a GGUF file"),
    ],
)
def test_what_cannot_be_a_pair_is_said(shipped: Catalog, name: str, target: str, words: str) -> None:
    with pytest.raises(SpecchatError, match=words):
        own.make_pair(shipped, name, target, None, ask)


def test_a_config_folder_that_cannot_be_written_is_said(shipped: Catalog, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    pair = replace(own.make_pair(shipped, "mine", "hf:a/b/c.gguf", None, ask))
    with pytest.raises(SpecchatError, match="cannot write"):
        own.add(pair, tmp_path / "file" / "models.toml")

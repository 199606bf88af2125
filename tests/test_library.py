"""What is installed: states told from disk and records, verifying, sharing, removing."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path

import pytest

from specchat.errors import SpecchatError
from specchat.pairs import prepare
from specchat.pairs.catalog import Catalog, HubSource, MadeSource, ModelFile, Pair, PathSource, Shard
from specchat.pairs.library import Library, State, Step

CONTENT = b"GGUF and then some weights"


def digest(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


def hub_file(name: str, content: bytes = CONTENT) -> ModelFile:
    size, sha256 = len(content), digest(content)
    return ModelFile(name, HubSource("o/r", (Shard(f"{name}.gguf", size, sha256),)), size, sha256)


def split_file(*contents: bytes) -> ModelFile:
    names = [f"s-{n:05}-of-{len(contents):05}.gguf" for n in range(1, len(contents) + 1)]
    shards = tuple(Shard(n, len(c), digest(c)) for n, c in zip(names, contents, strict=True))
    return ModelFile("s", HubSource("o/r", shards), sum(map(len, contents)))


def catalog_of(*pairs: Pair) -> Catalog:
    return Catalog({f.name: f for pair in pairs for f in pair.files}, {pair.name: pair for pair in pairs})


def run(steps: Iterable[Step]) -> list[Step]:
    return list(steps)


@pytest.fixture
def library(tmp_path: Path) -> Library:
    return Library(tmp_path / "models", tmp_path / "verified")


def put(library: Library, file: ModelFile, *contents: bytes) -> None:
    """Lay the file's parts down without a record, as a copy by hand or a crash before the record would."""
    for part, content in zip(file.parts, contents, strict=False):
        path = library.install_path(part)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def install(library: Library, file: ModelFile, *contents: bytes) -> None:
    put(library, file, *contents)
    for part, content in zip(file.parts, contents, strict=False):
        library.record(part, digest(content))


# -- states -------------------------------------------------------------------------------------------------


def test_nothing_there_is_missing(library: Library) -> None:
    assert library.status(hub_file("a")).state is State.MISSING


def test_an_installed_file_is_ready(library: Library) -> None:
    install(library, hub_file("a"), CONTENT)
    status = library.status(hub_file("a"))
    assert (status.state, status.percent, status.bytes) == (State.READY, 100, len(CONTENT))
    assert library.path(hub_file("a")).read_bytes() == CONTENT


def test_a_file_of_the_right_size_without_a_check_is_not_ready(library: Library) -> None:
    put(library, hub_file("a"), CONTENT)
    assert library.status(hub_file("a")).state is State.UNCHECKED


def test_a_change_after_the_check_is_noticed(library: Library) -> None:
    install(library, hub_file("a"), CONTENT)
    path = library.path(hub_file("a"))
    os.utime(path, ns=(1, 1))
    assert library.status(hub_file("a")).state is State.UNCHECKED
    path.write_bytes(CONTENT[:-1])
    status = library.status(hub_file("a"))
    assert status.state is State.DAMAGED
    assert "25 bytes instead of 26" in status.reason


def test_a_new_version_in_the_catalogue_is_not_taken_for_the_old(library: Library) -> None:
    install(library, hub_file("a"), CONTENT)
    newer = bytes(reversed(CONTENT))
    assert library.status(hub_file("a", newer)).state is State.DAMAGED


def test_an_unfinished_download_shows_how_far_it_is(library: Library) -> None:
    path = library.install_path(hub_file("a").parts[0])
    path.parent.mkdir(parents=True)
    path.with_name("a.gguf.0123456789ab.part").write_bytes(CONTENT[:13])
    status = library.status(hub_file("a"))
    assert (status.state, status.percent) == (State.PARTIAL, 50)


def test_a_split_model_without_one_shard_is_not_ready(library: Library) -> None:
    file = split_file(b"one", b"two", b"three")
    install(library, file, b"one", b"two")
    assert library.status(file).state is State.MISSING_SHARD
    install(library, file, b"one", b"two", b"three")
    assert library.status(file).state is State.READY
    assert library.path(file).name == "s-00001-of-00003.gguf"


def test_a_users_own_file_is_ready_where_it_is(library: Library, tmp_path: Path) -> None:
    own = tmp_path / "own.gguf"
    file = ModelFile("mine", PathSource(own))
    assert library.status(file).state is State.MISSING
    own.write_bytes(CONTENT)
    assert library.status(file).state is State.READY
    assert library.path(file) == own


def test_a_made_file_is_stale_once_the_catalogue_makes_it_otherwise(library: Library) -> None:
    before, after = (ModelFile("m", MadeSource("b", kind)) for kind in ("Q8_0", "Q4_0"))
    put(library, before, CONTENT)
    library.record(before.parts[0], digest(CONTENT), recipe="Q8_0 of b without layers []")
    assert library.status(before).state is State.READY
    assert library.status(after).state is State.DAMAGED
    run(library.verify(after))
    assert library.status(after).state is State.DAMAGED


def test_a_made_file_nobody_recorded_is_made_again(library: Library) -> None:
    file = ModelFile("m", MadeSource("b", "Q8_0"))
    put(library, file, CONTENT)
    assert library.status(file).state is State.DAMAGED


def test_a_damaged_record_means_check_again(library: Library) -> None:
    install(library, hub_file("a"), CONTENT)
    for record in library.records.iterdir():
        record.write_text("{")
    assert library.status(hub_file("a")).state is State.UNCHECKED


# -- verifying ----------------------------------------------------------------------------------------------


def test_verify_makes_an_unchecked_file_ready_and_shows_progress(library: Library) -> None:
    put(library, hub_file("a"), CONTENT)
    steps = run(library.verify(hub_file("a")))
    assert steps[-1].done == steps[-1].total == len(CONTENT)
    assert library.status(hub_file("a")).state is State.READY


def test_verify_finds_a_flipped_byte_that_size_and_time_hide(library: Library) -> None:
    install(library, hub_file("a"), CONTENT)
    path = library.path(hub_file("a"))
    before = path.stat().st_mtime_ns
    path.write_bytes(CONTENT[:-1] + b"\0")
    os.utime(path, ns=(before, before))
    assert library.status(hub_file("a")).state is State.READY
    run(library.verify(hub_file("a")))
    assert library.status(hub_file("a")).state is State.DAMAGED
    # The verdict lasts, and the right bytes make it good again.
    path.write_bytes(CONTENT)
    assert library.status(hub_file("a")).state is State.DAMAGED
    run(library.verify(hub_file("a")))
    assert library.status(hub_file("a")).state is State.READY


def test_a_file_whose_hash_nobody_knows_is_taken_as_it_is_and_held_to_that(library: Library) -> None:
    file = ModelFile("a", HubSource("o/r", (Shard("a.gguf"),)))
    put(library, file, CONTENT)
    run(library.verify(file))
    assert library.status(file).state is State.READY
    path = library.path(file)
    before = path.stat().st_mtime_ns
    path.write_bytes(bytes(len(CONTENT)))
    os.utime(path, ns=(before, before))
    run(library.verify(file))
    assert library.status(file).state is State.DAMAGED


# -- removing -----------------------------------------------------------------------------------------------


def test_removing_keeps_what_another_installed_pair_uses_and_says_what_was_freed(library: Library) -> None:
    big, large, draft = (hub_file(name) for name in ("big", "large", "draft"))
    one, other = Pair("one", big, draft), Pair("other", large, draft)
    catalog = catalog_of(one, other)
    for file in (big, large, draft):
        install(library, file, CONTENT)
    removal = library.remove(catalog, one)
    assert removal.freed == len(CONTENT)
    assert [(file.name, user) for file, user in removal.kept] == [("draft", "other")]
    assert library.installed(other)
    assert library.status(big).state is State.MISSING
    # Without another user it goes too, and nothing is left behind.
    removal = library.remove(catalog, other)
    assert removal.freed == 2 * len(CONTENT)
    assert library.disk_use() == 0
    assert list(library.models.iterdir()) == []
    assert list(library.records.iterdir()) == []


def test_a_pair_that_is_only_partly_here_keeps_nothing_from_removal(library: Library) -> None:
    big, large, draft = (hub_file(name) for name in ("big", "large", "draft"))
    one, other = Pair("one", big, draft), Pair("other", large, draft)
    for file in (big, draft):
        install(library, file, CONTENT)
    assert library.remove(catalog_of(one, other), one).kept == ()


@pytest.mark.parametrize("state", [State.UNCHECKED, State.PARTIAL, State.DAMAGED])
def test_a_shared_draft_stays_for_a_pair_that_is_not_quite_ready(library: Library, state: State) -> None:
    big, large, draft = (hub_file(name) for name in ("big", "large", "draft"))
    one, other = Pair("one", big, draft), Pair("other", large, draft)
    for file in (big, large, draft):
        install(library, file, CONTENT)
    path = library.path(large)
    match state:
        case State.UNCHECKED:
            os.utime(path, (1, 1))
        case State.PARTIAL:
            path.rename(path.with_name(f"{path.name}.0123456789ab.part"))
        case _:
            path.write_bytes(CONTENT[:-1])
    assert library.status(large).state is state
    assert [file.name for file, _ in library.remove(catalog_of(one, other), one).kept] == ["draft"]
    assert library.status(draft).state is State.READY


def test_removing_takes_unfinished_downloads_along(library: Library) -> None:
    file = hub_file("a")
    path = library.install_path(file.parts[0])
    path.parent.mkdir(parents=True)
    path.with_name("a.gguf.0123456789ab.part").write_bytes(b"12345")
    assert library.remove(catalog_of(Pair("p", file, None)), Pair("p", file, None)).freed == 5
    assert library.disk_use() == 0


def test_a_users_own_file_is_never_removed(library: Library, tmp_path: Path) -> None:
    own = tmp_path / "own.gguf"
    own.write_bytes(CONTENT)
    pair = Pair("mine", ModelFile("mine", PathSource(own)), None)
    assert library.remove(catalog_of(pair), pair).freed == 0
    assert own.exists()


# -- preparing ----------------------------------------------------------------------------------------------


def test_prepare_checks_what_was_not_checked(library: Library) -> None:
    pair = Pair("p", hub_file("a"), None)
    put(library, pair.target, CONTENT)
    assert run(prepare.prepare(catalog_of(pair), library, pair))
    assert library.installed(pair)
    assert run(prepare.prepare(catalog_of(pair), library, pair)) == []


@pytest.mark.parametrize(
    ("content", "sentence"),
    [(None, "is not here yet .*specchat pull p"), (b"short", "is damaged .*specchat pull --force p")],
)
def test_prepare_says_how_to_get_what_only_the_hub_has(library: Library, content: bytes | None, sentence: str) -> None:
    pair = Pair("p", hub_file("a"), None)
    if content is not None:
        put(library, pair.target, content)
    with pytest.raises(SpecchatError, match=sentence):
        run(prepare.prepare(catalog_of(pair), library, pair))


def test_prepare_names_a_users_file_that_is_gone(library: Library, tmp_path: Path) -> None:
    pair = Pair("mine", ModelFile("mine", PathSource(tmp_path / "gone.gguf")), None)
    with pytest.raises(SpecchatError, match=r"gone\.gguf, named by the pair mine, is not there"):
        run(prepare.prepare(catalog_of(pair), library, pair))


def test_a_models_folder_that_cannot_be_made_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    library = Library(tmp_path / "file" / "models", tmp_path / "verified")
    pair = Pair("p", hub_file("a"), None)
    with pytest.raises(SpecchatError, match="cannot create"):
        run(prepare.prepare(catalog_of(pair), library, pair))

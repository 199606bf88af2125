"""The catalogue: the shipped one is sound; the user's merges over it; mistakes name file, entry and field."""

from __future__ import annotations

from pathlib import Path

import pytest

from specchat import locations
from specchat.errors import SpecchatError
from specchat.pairs import catalog, reader
from specchat.pairs.catalog import HubSource, MadeSource, Shard, WheelSource

FILE = '[files.a]\nrepo = "o/r"\nfile = "a.gguf"\n'


def read(tmp_path: Path, text: str) -> catalog.Catalog:
    file = tmp_path / "models.toml"
    file.write_text(text, "utf-8")
    return reader.read(file)


@pytest.fixture(scope="module")
def shipped() -> catalog.Catalog:
    return reader.read(catalog.shipped_file())


# -- the shipped catalogue ----------------------------------------------------------------------------------


def test_every_pair_has_what_a_person_choosing_needs(shipped: catalog.Catalog) -> None:
    for pair in shipped.pairs.values():
        assert pair.draft is not None
        assert pair.description
        assert pair.licence
        assert pair.context
        assert pair.memory_gib
        assert shipped.download_bytes(pair)
        assert not pair.own


def test_memory_is_at_least_the_weights(shipped: catalog.Catalog) -> None:
    for pair in shipped.pairs.values():
        assert pair.memory_gib
        assert pair.memory_gib * 1024**3 > (shipped.download_bytes(pair) or 0)


def test_licences_that_want_a_notice_have_one(shipped: catalog.Catalog) -> None:
    for pair in shipped.pairs.values():
        assert bool(pair.licence_notice) == (pair.licence != "Apache-2.0"), pair.name


def test_there_are_pairs_for_a_cpu_and_their_targets_verify_cheaply_there(shipped: catalog.Catalog) -> None:
    for_cpu = [pair for pair in shipped.pairs.values() if pair.suits == "cpu"]
    assert for_cpu
    assert all("q8_0" in pair.target.name for pair in for_cpu)


def test_no_file_is_listed_for_nothing(shipped: catalog.Catalog) -> None:
    assert set(shipped.files) == {file.name for file in shipped.needed(*shipped.pairs.values())}


def test_no_two_files_are_kept_in_one_place(shipped: catalog.Catalog) -> None:
    paths = [part.path for file in shipped.files.values() for part in file.parts]
    assert len(set(paths)) == len(paths)


def test_the_demo_pair_is_made_from_one_file_of_a_wheel(shipped: catalog.Catalog) -> None:
    base, target, draft = shipped.needed(shipped.pair("demo"))
    assert isinstance(base.source, WheelSource)
    assert base.sha256
    assert isinstance(target.source, MadeSource)
    assert target.source.type == "Q8_0"
    assert isinstance(draft.source, MadeSource)
    assert draft.source.prune_layers


def test_a_shared_draft_is_one_file(shipped: catalog.Catalog) -> None:
    small = shipped.pair("qwen3-8b").draft
    assert small == shipped.pair("qwen3-14b").draft
    assert small is not None
    assert {"qwen3-4b", "qwen3-8b", "qwen3-14b"} <= {pair.name for pair in shipped.users(small)}


# -- looking up ---------------------------------------------------------------------------------------------


def test_names_are_found_whatever_their_capitals(shipped: catalog.Catalog) -> None:
    assert shipped.pair("QWEN3-8B").name == "qwen3-8b"


@pytest.mark.parametrize(("typed", "meant"), [("qwen3-8", "qwen3-8b"), ("lama3.2-3b", "llama3.2-3b")])
def test_a_near_miss_is_answered_with_what_was_meant(shipped: catalog.Catalog, typed: str, meant: str) -> None:
    with pytest.raises(SpecchatError, match=f"did you mean .*{meant}"):
        shipped.pair(typed)


def test_a_part_of_a_name_suggests_the_whole(shipped: catalog.Catalog) -> None:
    assert "granite3.3-8b" in shipped.suggestions("granite")


def test_a_name_unlike_any_points_to_the_list(shipped: catalog.Catalog) -> None:
    with pytest.raises(SpecchatError, match="specchat pull"):
        shipped.pair("zzzzzz")


@pytest.mark.parametrize("asked", ["Qwen3.5-4B", "gpt-oss-20b", "phi-4", "SmolLM3-3B", "gemma-2-9b", "gemma2:2b"])
def test_what_is_left_out_is_answered_with_the_reason(shipped: catalog.Catalog, asked: str) -> None:
    with pytest.raises(SpecchatError, match="on purpose"):
        shipped.pair(asked)


def test_no_pair_offered_counts_as_left_out(shipped: catalog.Catalog) -> None:
    assert [name for name in (*shipped.pairs, "gemma-270m") if shipped.why_left_out(name)] == []


# -- the user's own -----------------------------------------------------------------------------------------


def test_own_pairs_come_on_top_and_may_use_shipped_files(specchat_home: Path) -> None:
    (specchat_home / "models.toml").write_text(
        '[files.mine]\npath = "sub/mine.gguf"\n'
        '[pairs.mine]\ntarget = "mine"\ndraft = "qwen3-0.6b-q8_0"\n'
        '[pairs.demo]\ntarget = "mine"\n'
    )
    merged = catalog.load()
    assert merged.pair("mine").own
    assert merged.pair("mine").draft == merged.pair("qwen3-8b").draft
    assert merged.pair("demo").draft is None
    # A relative path starts at the folder of the file it is written in.
    assert merged.pair("mine").target.parts[0].path == specchat_home / "sub" / "mine.gguf"
    assert not merged.pair("qwen3-8b").own


def test_a_mistake_in_the_users_file_names_that_file(specchat_home: Path) -> None:
    (specchat_home / "models.toml").write_text('[pairs.mine]\ntarget = "nothing"\n')
    with pytest.raises(SpecchatError) as caught:
        catalog.load()
    assert locations.tilde(specchat_home / "models.toml") in str(caught.value)
    assert "[pairs.mine]: target: there is no file nothing" in str(caught.value)


# -- mistakes -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "entry", "field"),
    [
        ('[files.a]\nfile = "a.gguf"\n', "files.a", "repo"),
        ('[files.a]\nrepo = "o/r"\n', "files.a", "file"),
        ('[files.a]\nrepo = "o"\nfile = "a.gguf"\n', "files.a", "repo"),
        ('[files.a]\nrepo = "../x"\nfile = "a.gguf"\n', "files.a", "repo"),
        (FILE + 'bytes = "many"\n', "files.a", "bytes"),
        (FILE + "bytes = true\n", "files.a", "bytes"),
        (FILE + "bytes = 0\n", "files.a", "bytes"),
        (FILE + 'sha256 = "abc"\n', "files.a", "sha256"),
        (FILE + "size = 1\n", "files.a", "size"),
        ('[files.a]\nrepo = "o/r"\nfiles = []\n', "files.a", "files"),
        ('[files.a]\nrepo = "o/r"\nfiles = ["a"]\n', "files.a", "files"),
        ('[files.a]\nrepo = "o/r"\nfiles = [{ bytes = 1 }]\n', "files.a.files.0", "path"),
        ('[files.a]\nrepo = "o/r"\nbytes = 3\nfiles = [{ path = "a" }]\n', "files.a", "bytes"),
        ('[files.a]\npackage = "p"\nversion = "1"\n', "files.a", "member"),
        ('[files.a]\nbase = "b"\ntype = "Q8_0"\n', "files.a", "base"),
        ('[files.a]\nbase = "a"\ntype = "Q8_0"\n', "files.a", "made from itself"),
        (FILE + '[files.b]\nbase = "a"\n', "files.b", "type"),
        (FILE + '[files.b]\nbase = "a"\ntype = "Q8_0"\nprune_layers = [-1]\n', "files.b", "prune_layers"),
        ('[files."a/b"]\nrepo = "o/r"\nfile = "a.gguf"\n', "files.a/b", "name"),
        ('[pairs.p]\ndraft = "a"\n' + FILE, "pairs.p", "target"),
        ('[pairs.p]\ntarget = "a"\ndraft = "b"\n' + FILE, "pairs.p", "draft"),
        ('[pairs.p]\ntarget = "a"\nsuits = "tpu"\n' + FILE, "pairs.p", "suits"),
        ('[pairs.p]\ntarget = "a"\nthinks = 1\n' + FILE, "pairs.p", "thinks"),
        ('[pairs.p]\ntarget = "a"\nsampling = { heat = 1 }\n' + FILE, "pairs.p.sampling", "heat"),
        ('[pairs.p]\ntarget = "a"\nsampling = { top_p = "x" }\n' + FILE, "pairs.p.sampling", "top_p"),
        ("[left_out.x]\nnames = []\n", "left_out.x", "names"),
        ("pairs = 3\n", "top level", "pairs"),
        ("[models.x]\n", "top level", "models"),
        ("files.a = 3\n", "top level", "files.a"),
    ],
)
def test_a_wrong_entry_names_file_entry_and_field(tmp_path: Path, text: str, entry: str, field: str) -> None:
    with pytest.raises(SpecchatError) as caught:
        read(tmp_path, text)
    message = str(caught.value)
    assert "models.toml" in message
    assert f"[{entry}]" in message
    assert field in message


@pytest.mark.parametrize(
    "path",
    [
        *("../a.gguf", "/etc/a.gguf", "x/../../a.gguf", "", "a//b.gguf", "./a.gguf", "a.gguf/..", "x./a.gguf"),
        *("..\\a.gguf", "C:\\a.gguf", "c:a.gguf", "a\nb.gguf", "nul\x00.gguf"),
    ],
)
def test_a_path_that_leaves_the_models_folder_is_refused(tmp_path: Path, path: str) -> None:
    with pytest.raises(ValueError, match="path"):
        Shard(path)
    with pytest.raises(ValueError, match="path"):
        WheelSource("p", "1", path)
    if "\x00" not in path:
        with pytest.raises(SpecchatError, match=r"\[files\.a\]"):
            read(tmp_path, f"[files.a]\nrepo = 'o/r'\nfile = {path!r}\n".replace("'", '"'))


def test_broken_toml_says_where(tmp_path: Path) -> None:
    with pytest.raises(SpecchatError, match=r"models\.toml is not valid TOML.*line 1"):
        read(tmp_path, "[files\n[pairs]\n")


# -- values -------------------------------------------------------------------------------------------------


def test_a_split_model_is_its_shards_in_order(tmp_path: Path) -> None:
    file = read(
        tmp_path,
        '[files.a]\nrepo = "o/r"\nfiles = [{ path = "q/a-00001-of-00002.gguf", bytes = 3 }, '
        '{ path = "q/a-00002-of-00002.gguf", bytes = 4 }]\n',
    ).files["a"]
    assert file.bytes == 7
    assert [part.path.as_posix() for part in file.parts] == [
        "o/r/q/a-00001-of-00002.gguf",
        "o/r/q/a-00002-of-00002.gguf",
    ]


def test_a_reference_to_one_shard_names_all() -> None:
    source = catalog.hub_source("hf:o/r/sub/a-00002-of-00003.gguf")
    assert source.repo == "o/r"
    assert [shard.path for shard in source.shards] == [f"sub/a-0000{n}-of-00003.gguf" for n in (1, 2, 3)]


def test_a_reference_to_one_file_names_it() -> None:
    assert catalog.hub_source("hf:o/r/a.gguf") == HubSource("o/r", (Shard("a.gguf"),))


@pytest.mark.parametrize(
    "text", ["o/r/a.gguf", "hf:o/a.gguf", "hf:o/r/a.bin", "hf:o/r/../a.gguf", "hf:", "hf:///a.gguf"]
)
def test_other_references_are_refused(text: str) -> None:
    with pytest.raises(SpecchatError):
        catalog.hub_source(text)


def test_a_made_file_needs_its_base_first(tmp_path: Path) -> None:
    read_back = read(
        tmp_path,
        FILE + '[files.b]\nbase = "a"\ntype = "Q8_0"\n[files.c]\nbase = "b"\ntype = "Q4_0"\n'
        '[pairs.p]\ntarget = "c"\ndraft = "b"\n',
    )
    assert [file.name for file in read_back.needed(read_back.pair("p"))] == ["a", "b", "c"]
    assert [pair.name for pair in read_back.users(read_back.files["a"])] == ["p"]

"""Models that other programs keep: found in each one's layout, used only when verified, never touched."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from specchat.pairs import discovery, prepare
from specchat.pairs.catalog import Catalog, HubSource, ModelFile, Pair, Shard
from specchat.pairs.discovery import Place
from specchat.pairs.library import Library, State

CONTENT = b"GGUF weights"
DIGEST = hashlib.sha256(CONTENT).hexdigest()
NAME = "Qwen3-0.6B-Q8_0.gguf"
FILE = ModelFile("q", HubSource("Qwen/Q", (Shard(NAME, len(CONTENT), DIGEST),)), len(CONTENT), DIGEST)


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home folder without anything of anyone."""
    for variable in ("OLLAMA_MODELS", "LLAMA_CACHE", "HF_HOME", "HF_HUB_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "user"))
    monkeypatch.setenv("USERPROFILE", str(tmp_path / "user"))
    return tmp_path / "user"


@pytest.fixture
def library(tmp_path: Path) -> Library:
    return Library(tmp_path / "models", tmp_path / "verified")


def put(path: Path, content: bytes = CONTENT) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    return path


def in_lm_studio(home: Path) -> Path:
    return put(home / ".lmstudio/models/Qwen/Q" / NAME)


def in_old_lm_studio(home: Path) -> Path:
    return put(home / ".cache/lm-studio/models/Qwen/Q" / NAME)


def in_llama_cpp(home: Path) -> Path:
    place = next(p for p in discovery.places() if p.owner == "llama.cpp")
    assert home in place.folder.parents
    return put(place.folder / f"Qwen_Q_{NAME}")


def in_hub_cache(home: Path) -> Path:
    root = home / ".cache/huggingface/hub/models--Qwen--Q"
    blob = put(root / "blobs" / DIGEST)
    link = root / "snapshots" / "23749fef" / NAME
    link.parent.mkdir(parents=True)
    link.symlink_to(blob)
    return link


def in_ollama(home: Path) -> Path:
    root = home / ".ollama/models"
    manifest = {
        "layers": [
            {"mediaType": "application/vnd.ollama.image.template", "digest": "sha256:" + "1" * 64, "size": 1},
            {"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{DIGEST}", "size": 12},
        ]
    }
    put(root / "manifests/registry.ollama.ai/library/qwen3/0.6b", json.dumps(manifest).encode())
    return put(root / f"blobs/sha256-{DIGEST}")


LAYOUTS = [in_lm_studio, in_old_lm_studio, in_llama_cpp, in_hub_cache, in_ollama]


@pytest.mark.parametrize("lay", LAYOUTS)
def test_a_file_is_used_in_place_and_left_as_it_is(home: Path, library: Library, lay: object) -> None:
    assert callable(lay)
    path: Path = lay(home)
    before = path.stat()
    steps = list(discovery.adopt_missing(library, [FILE], discovery.places()))
    assert steps[-1].done == len(CONTENT)
    assert library.status(FILE).state is State.READY
    assert library.path(FILE) == path
    assert (path.stat().st_mtime_ns, path.read_bytes()) == (before.st_mtime_ns, CONTENT)
    # The hash is not taken again while nothing changed.
    assert list(discovery.adopt_missing(library, [FILE], discovery.places())) == []


def test_ollamas_names_are_what_its_users_type(home: Path) -> None:
    in_ollama(home)
    assert [found.name for found in discovery.search(discovery.places())] == ["qwen3:0.6b"]


def test_the_same_file_is_found_once(home: Path) -> None:
    in_hub_cache(home)
    link = home / ".lmstudio/models/Qwen/Q" / NAME
    link.parent.mkdir(parents=True)
    link.symlink_to(home / f".cache/huggingface/hub/models--Qwen--Q/blobs/{DIGEST}")
    assert len(discovery.search(discovery.places())) == 1


def test_folders_from_the_settings_are_looked_through(home: Path, library: Library, tmp_path: Path) -> None:
    path = put(tmp_path / "mine" / "deep" / NAME)
    assert not home.exists()
    list(discovery.adopt_missing(library, [FILE], discovery.places([tmp_path / "mine"])))
    assert library.path(FILE) == path


def test_right_size_and_name_but_other_bytes_are_not_used(home: Path, library: Library) -> None:
    path = in_lm_studio(home)
    path.write_bytes(CONTENT[:-1] + b"X")
    list(discovery.adopt_missing(library, [FILE], discovery.places()))
    assert library.status(FILE).state is State.MISSING


def test_a_file_whose_hash_the_catalogue_lacks_is_not_used(home: Path, library: Library) -> None:
    in_lm_studio(home)
    unknown = ModelFile("q", HubSource("Qwen/Q", (Shard(NAME, len(CONTENT)),)), len(CONTENT))
    assert list(discovery.adopt_missing(library, [unknown], discovery.places())) == []
    assert library.status(unknown).state is State.MISSING


def test_a_file_that_its_owner_changed_is_noticed(home: Path, library: Library) -> None:
    path = in_lm_studio(home)
    list(discovery.adopt_missing(library, [FILE], discovery.places()))
    path.write_bytes(b"another model altogether")
    assert library.status(FILE).state is State.DAMAGED
    path.unlink()
    assert library.status(FILE).state is State.MISSING


def test_removing_a_pair_leaves_other_programs_files(home: Path, library: Library) -> None:
    path = in_lm_studio(home)
    list(discovery.adopt_missing(library, [FILE], discovery.places()))
    pair = Pair("p", FILE, None)
    assert library.remove(Catalog({"q": FILE}, {"p": pair}), pair).freed == 0
    assert path.exists()
    assert library.status(FILE).state is State.MISSING


def test_preparing_a_pair_looks_there_before_it_asks_for_a_pull(home: Path, library: Library) -> None:
    in_lm_studio(home)
    pair = Pair("p", FILE, None)
    list(prepare.prepare(Catalog({"q": FILE}, {"p": pair}), library, pair, discovery.places()))
    assert library.installed(pair)


def split() -> ModelFile:
    shards = tuple(Shard(f"m-0000{n}-of-00002.gguf", len(CONTENT), DIGEST) for n in (1, 2))
    return ModelFile("m", HubSource("o/r", shards), 2 * len(CONTENT))


def test_a_split_model_is_used_only_when_its_shards_stand_together(
    home: Path, library: Library, tmp_path: Path
) -> None:
    assert not home.exists()
    one, other = Place("a", tmp_path / "a"), Place("b", tmp_path / "b")
    put(one.folder / "m-00001-of-00002.gguf")
    put(other.folder / "m-00002-of-00002.gguf")
    list(discovery.adopt_missing(library, [split()], [one, other]))
    assert library.status(split()).state is State.MISSING
    put(one.folder / "m-00002-of-00002.gguf")
    list(discovery.adopt_missing(library, [split()], [one, other]))
    assert library.paths(split())[0].parent == library.paths(split())[1].parent == one.folder
    assert library.status(split()).state is State.READY


@pytest.mark.parametrize("content", [b"", b"[]", b'{"layers": 3}', b'{"layers": [{"digest": 1}]}', b"\xff"])
def test_manifests_in_an_unknown_form_are_passed_over(home: Path, content: bytes) -> None:
    put(home / ".ollama/models/manifests/library/x/latest", content)
    assert discovery.search(discovery.places()) == ()


def test_a_digest_cannot_lead_out_of_ollamas_folder(home: Path) -> None:
    put(home / ".ollama/secret.gguf")
    (home / ".ollama/models/blobs/sha256-").mkdir(parents=True)
    layer = {"mediaType": "application/vnd.ollama.image.model", "digest": "sha256:/../../../secret.gguf"}
    put(home / ".ollama/models/manifests/library/x/latest", json.dumps({"layers": [layer]}).encode())
    assert discovery.search(discovery.places()) == ()


def test_dangling_links_and_endless_folders_are_no_trouble(home: Path) -> None:
    folder = home / ".lmstudio/models"
    folder.mkdir(parents=True)
    (folder / NAME).symlink_to(home / "nowhere")
    (folder / "loop").symlink_to(folder)
    assert discovery.search(discovery.places()) == ()

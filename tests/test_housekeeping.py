"""`specchat list`, `remove`, `paths` and `doctor` as programs: what they print, how they end, what they leave."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from specchat import gpus, locations, probe, settings, state
from specchat.commands import console
from specchat.errors import SpecchatError
from specchat.pairs import candidates, catalog, discovery, lock, own
from specchat.pairs.library import Library, State, Step
from tests import ggufs
from tests.conftest import DemoPair
from tests.fakehub import FakeHub

COMMAND = [sys.executable, "-c", "from specchat.cli import main; main(prog_name='specchat')"]
PROBED = ("bartowski/SmolLM2-135M-Instruct-GGUF", "SmolLM2-135M-Instruct-Q4_K_M.gguf")
SIZES = {"big": 3000, "large": 4000, "shared": 1000}
ENTRIES = "".join(
    f'[files.{name}]\nrepo = "o/r"\nfile = "{name}.gguf"\nbytes = {size}\n'
    f'sha256 = "{hashlib.sha256(bytes(size)).hexdigest()}"\n'
    for name, size in SIZES.items()
) + (
    '[pairs.one]\ntarget = "big"\ndraft = "shared"\n'
    "# The other is for Sundays.\n"
    '[pairs.other]\ntarget = "large"\ndraft = "shared"\n'
)


def specchat(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *arguments], capture_output=True, encoding="utf-8", timeout=60, check=False, stdin=subprocess.DEVNULL
    )


@pytest.fixture
def library(specchat_home: Path) -> Library:
    """The user's library, with two pairs of their own that share a draft; all three files are ready."""
    (specchat_home / "models.toml").write_text(ENTRIES)
    library = Library.default()
    for name in SIZES:
        install(library, name)
    return library


def install(library: Library, name: str) -> Path:
    part = catalog.load().files[name].parts[0]
    path = library.install_path(part)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(bytes(SIZES[name]))
    assert part.sha256
    library.record(part, part.sha256)
    return path


def file_state(library: Library, name: str) -> State:
    return library.status(catalog.load().files[name]).state


# -- list ---------------------------------------------------------------------------------------------------


def test_an_empty_house_points_to_pull() -> None:
    result = specchat("list")
    assert (result.returncode, result.stderr) == (0, "")
    assert "specchat pull" in result.stdout


def test_list_shows_pairs_files_and_disk_use(library: Library) -> None:
    state.remember_opened("one")
    result = specchat("list")
    lines = result.stdout.splitlines()
    assert lines[1].split() == ["one", "ready", "4", "kB", "just", "now"]
    assert lines[2].split() == ["other", "ready", "5", "kB", "never"]
    shared = next(line for line in lines if line.startswith("shared"))
    assert "one, other" in shared
    assert lines[-1] == f"8 kB in {locations.tilde(library.models)}"


def test_list_tells_partial_missing_and_damaged_apart(library: Library) -> None:
    big, large = (library.path(catalog.load().files[name]) for name in ("big", "large"))
    big.rename(big.with_name("big.gguf.0123456789ab.part"))
    large.write_bytes(b"short")
    document = json.loads(specchat("list", "--json").stdout)
    pairs = {pair["name"]: pair for pair in document["pairs"]}
    files = {file["name"]: file for file in document["files"]}
    assert pairs["one"]["state"] == "partial"
    assert pairs["other"]["state"] == "damaged"
    assert files["big"]["state"] == "partial"
    assert files["big"]["percent"] == 99  # whole, but neither verified nor installed
    assert files["large"]["state"] == "damaged"
    assert files["large"]["reason"] == "5 bytes instead of 4,000"
    assert files["shared"]["used_by"] == ["one", "other"]
    assert document["disk_bytes"] == 3000 + 5 + 1000
    assert "large is damaged: 5 bytes instead of 4,000" in specchat("list").stdout


def test_verify_finds_a_flipped_byte_and_the_exit_status_says_so(library: Library) -> None:
    assert specchat("list", "--verify").returncode == 0
    path = library.path(catalog.load().files["shared"])
    before = path.stat().st_mtime_ns
    path.write_bytes(bytes(999) + b"\1")
    os.utime(path, ns=(before, before))
    assert specchat("list").returncode == 0
    result = specchat("list", "--verify")
    assert result.returncode == 1
    assert "checking shared.gguf" in result.stderr
    assert result.stderr.splitlines()[-1].startswith("specchat: damaged: shared; `specchat pull --force`")
    assert file_state(library, "shared") is State.DAMAGED


def test_json_alone_is_on_standard_output(library: Library) -> None:
    assert library
    result = specchat("list", "--json", "--verify")
    assert json.loads(result.stdout)["pairs"][0]["last_used"] is None


def test_a_broken_catalogue_is_one_sentence(specchat_home: Path) -> None:
    (specchat_home / "models.toml").write_text("[pairs.x]\n")
    result = specchat("list")
    assert (result.returncode, result.stdout) == (1, "")
    assert result.stderr.startswith("specchat: ")
    assert "[pairs.x]: target is missing" in result.stderr


# -- remove -------------------------------------------------------------------------------------------------


def test_remove_keeps_the_shared_draft_and_says_what_was_freed(library: Library) -> None:
    result = specchat("remove", "one", "--yes")
    assert (result.returncode, result.stderr) == (0, "")
    assert "keeps    shared, used by other" in result.stdout
    assert "one removed; 3 kB freed" in result.stdout
    known = catalog.load()
    assert "one" not in known.pairs
    assert "big" not in known.files
    assert known.pair("other").own
    assert file_state(library, "shared") is State.READY
    assert "# The other is for Sundays." in locations.user_catalog_file().read_text()
    # The last user takes the shared file along.
    assert "5 kB freed" in specchat("remove", "other", "--yes").stdout
    assert library.disk_use() == 0
    assert not {"one", "other"} & set(catalog.load().pairs)


def test_remove_refuses_while_a_pull_of_the_same_file_runs(library: Library) -> None:
    large = catalog.load().files["large"].parts[0]
    path = library.install_path(large)
    path.rename(path.with_name("large.gguf.abc.part"))
    with lock.held(library.lock_path(large), lambda _: None):
        result = specchat("remove", "other", "--yes")
    assert result.returncode == 1
    assert f"large.gguf is being downloaded by process {os.getpid()} on " in result.stderr
    assert path.with_name("large.gguf.abc.part").exists()
    assert "other" in catalog.load().pairs
    assert file_state(library, "shared") is State.READY
    assert specchat("remove", "other", "--yes").returncode == 0
    assert not path.parent.exists() or not list(path.parent.glob("large*"))


def test_remove_asks_and_without_a_terminal_refuses(library: Library) -> None:
    result = specchat("remove", "one")
    assert result.returncode == 1
    assert "--yes" in result.stderr
    assert "deletes" in result.stdout
    assert file_state(library, "big") is State.READY


@pytest.mark.parametrize(
    ("name", "sentence"),
    [("qwen3-8b", "nothing of qwen3-8b is in"), ("qwn3-8b", "did you mean qwen3-8b"), ("phi-4", "on purpose")],
)
def test_removing_what_is_not_there_is_a_sentence(name: str, sentence: str) -> None:
    result = specchat("remove", name, "--yes")
    assert (result.returncode, result.stdout) == (1, "")
    assert sentence in result.stderr


def test_an_entry_that_cannot_be_cut_out_is_left_alone(specchat_home: Path) -> None:
    text = 'pairs.mine = { target = "demo-file" }\nfiles.demo-file = { path = "x.gguf" }\n'
    (specchat_home / "models.toml").write_text(text)
    known = catalog.load()
    with pytest.raises(SpecchatError, match="remove it by hand"):
        own.remove(known, known.pair("mine"))
    assert (specchat_home / "models.toml").read_text() == text


# -- paths --------------------------------------------------------------------------------------------------


def test_paths_prints_every_location(specchat_home: Path) -> None:
    printed = specchat("paths").stdout
    assert all(str(path) in printed for path in locations.all_locations().values())
    assert json.loads(specchat("paths", "--json").stdout)["models"] == str(specchat_home / "models")
    assert specchat("paths", "settings").stdout == f"{specchat_home / 'settings.toml'}\n"


def test_paths_of_an_unknown_name_is_wrong_usage() -> None:
    result = specchat("paths", "nowhere")
    assert result.returncode == 2
    assert "nowhere is none of settings" in result.stderr


# -- settings -----------------------------------------------------------------------------------------------


def test_settings_prints_every_setting_and_the_users_values(specchat_home: Path) -> None:
    (specchat_home / "settings.toml").write_text('system = "Sag \\"hallo\\" ü"\nmodel_dirs = ["~/models"]\n')
    printed = specchat("settings").stdout
    assert 'system = "Sag \\"hallo\\" ü"' in printed
    assert "#depth = " in printed
    before = settings.load()
    (specchat_home / "settings.toml").write_text(printed)
    assert settings.load() == before


def test_settings_edit_makes_the_file_and_says_what_is_wrong_in_it(
    specchat_home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    editor = specchat_home / "editor"
    editor.write_text("#!/bin/sh\nsed -i 's/^#depth = .*/depth = 0/' \"$1\"\n")
    editor.chmod(0o755)
    monkeypatch.setenv("VISUAL", str(editor))
    result = specchat("settings", "--edit")
    assert result.returncode == 1
    assert "depth must be" in result.stderr
    assert "# Tokens proposed" in (specchat_home / "settings.toml").read_text()
    editor.write_text("#!/bin/sh\nsed -i 's/^depth = .*/depth = 3/' \"$1\"\n")
    result = specchat("settings", "--edit")
    assert (result.returncode, result.stdout.count("\n")) == (0, 1)
    assert "settings.toml is valid" in result.stdout
    assert settings.load().depth == 3


# -- doctor -------------------------------------------------------------------------------------------------


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch, specchat_home: Path) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setenv("HF_HOME", str(specchat_home / "hf"))


@pytest.mark.usefixtures("offline")
def test_doctor_says_what_a_bug_report_needs(library: Library) -> None:
    result = specchat("doctor")
    assert (result.returncode, result.stderr) == (0, "")
    for expected in ("llama-cpp-python", "CPU", "available", "history", "offline mode", "TERM", "shared", "valid"):
        assert expected in result.stdout
    assert file_state(library, "shared") is State.READY


def test_doctor_asks_the_hub_and_never_prints_the_token(specchat_home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(specchat_home.parent))
    monkeypatch.setenv("HF_TOKEN", "hf_verySecretToken")
    monkeypatch.setenv("HTTPS_PROXY", "http://name:password@proxy.invalid:1")
    monkeypatch.delenv("HF_HUB_OFFLINE", raising=False)
    with FakeHub({PROBED: b"GGUF" * 10}) as hub:
        monkeypatch.setenv("HF_ENDPOINT", hub.url)
        result = specchat("doctor")
        assert "yes, in " in result.stdout
        assert len(hub.log) == 1
    gone = specchat("doctor")
    assert (result.returncode, gone.returncode) == (0, 0)  # specchat works offline
    assert "no: " in gone.stdout
    for output in (result.stdout, gone.stdout):
        assert "verySecretToken" not in output
        assert "password" not in output
        assert "there is one in HF_TOKEN" in output
        assert "HTTPS_PROXY" in output
        assert str(specchat_home.parent) not in output
        assert "~" in output


@pytest.mark.usefixtures("offline")
def test_doctor_goes_on_past_a_broken_settings_file_and_exits_with_1(specchat_home: Path) -> None:
    (specchat_home / "settings.toml").write_text("depth = 0")
    result = specchat("doctor")
    assert result.returncode == 1
    assert "terminal" in result.stdout
    assert "depth must be" in result.stdout
    assert result.stderr.count("\n") == 1


@pytest.mark.usefixtures("offline")
def test_doctor_counts_a_file_in_the_place_of_the_models_folder_as_a_fault(library: Library) -> None:
    library.models.rename(library.models.with_name("elsewhere"))
    library.models.write_text("")
    result = specchat("doctor")
    assert result.returncode == 1
    assert "cannot be written" in result.stderr


def test_doctor_counts_a_damaged_file_as_a_fault(library: Library) -> None:
    library.path(catalog.load().files["big"]).write_bytes(b"short")
    result = specchat("doctor")
    assert result.returncode == 1
    assert "big is damaged" in result.stderr


def test_doctor_shows_every_rule_for_two_files(tmp_path: Path) -> None:
    target = ggufs.write(tmp_path / "target.gguf", shape=ggufs.Shape(n_layer=4))
    draft = ggufs.write(tmp_path / "draft.gguf")
    result = specchat("doctor", str(target), str(draft))
    assert (result.returncode, result.stderr) == (0, "")
    rules = [line for line in result.stdout.splitlines() if line.startswith(("pass", "FAIL"))]
    assert len(rules) == 8
    assert all(line.startswith("pass") for line in rules)


SMALL = ggufs.Shape(n_layer=1)


@pytest.mark.parametrize(
    ("vocabulary", "architecture", "shape", "rule"),
    [
        (ggufs.sentencepiece(), "llama", SMALL, "same kind of vocabulary"),
        (ggufs.bpe().padded(1000), "llama", SMALL, "sizes within 128"),
        (ggufs.bpe(), "mamba", SMALL, "the draft can take tokens back"),
        (ggufs.bpe(), "llama", ggufs.Shape(n_layer=8), "the draft is the smaller one"),
    ],
)
def test_doctor_names_the_rule_that_fails(
    tmp_path: Path, vocabulary: ggufs.Vocabulary, architecture: str, shape: ggufs.Shape, rule: str
) -> None:
    target = ggufs.write(tmp_path / "target.gguf", shape=ggufs.Shape(n_layer=4))
    draft = ggufs.write(tmp_path / "draft.gguf", vocabulary, architecture=architecture, shape=shape)
    result = specchat("doctor", str(target), str(draft))
    assert result.returncode == 1
    failed = [line for line in result.stdout.splitlines() if line.startswith("FAIL")]
    assert rule in failed[0]
    assert "draft.gguf cannot draft for target.gguf" in result.stderr


def test_doctor_checks_the_demo_pair(demo_pair: DemoPair, specchat_home: Path) -> None:
    for folder in (demo_pair.library.models, demo_pair.library.records):
        (specchat_home / folder.name).symlink_to(folder)
    # The records name the files where they were prepared; here they lie elsewhere.
    result = specchat("doctor", "demo")
    assert (result.returncode, result.stderr) == (0, "")
    assert "49,147 compared" in result.stdout


def test_doctor_for_a_lone_target_finds_the_drafts_there_are(tmp_path: Path, specchat_home: Path) -> None:
    target = ggufs.write(tmp_path / "Qwen3-9B.gguf", shape=ggufs.Shape(n_layer=8))
    (tmp_path / "more").mkdir()
    ggufs.write(tmp_path / "more" / "small.gguf")
    ggufs.write(tmp_path / "more" / "smaller.gguf", shape=ggufs.Shape(n_layer=1))
    ggufs.write(tmp_path / "more" / "other.gguf", ggufs.sentencepiece(), shape=ggufs.Shape(n_layer=1))
    (specchat_home / "settings.toml").write_text(f"model_dirs = [{json.dumps(str(tmp_path / 'more'))}]")
    result = specchat("doctor", str(target))
    assert (result.returncode, result.stderr) == (0, "")
    lines = result.stdout.splitlines()
    assert [line.split()[0] for line in lines if str(tmp_path / "more") in line] == ["smaller.gguf", "small.gguf"]


def test_doctor_says_when_no_draft_can_help(tmp_path: Path) -> None:
    result = specchat("doctor", str(ggufs.write(tmp_path / "lone.gguf", architecture="mamba")))
    assert result.returncode == 1
    assert "cannot be sped up by any draft" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "status", "sentence"),
    [
        (["no-such.gguf"], 1, "there is no file no-such.gguf"),
        (["qwen3-8b"], 1, "`specchat pull qwen3-8b` gets it"),
        (["qwen3-8b-q4_k_m", "x.gguf"], 1, "`specchat pull qwen3-8b` gets it"),
        (["nonsense"], 1, "there is no pair called nonsense"),
        (["a", "b", "c"], 2, "doctor takes a PAIR"),
    ],
)
def test_doctor_on_bad_input_is_a_sentence(arguments: Sequence[str], status: int, sentence: str) -> None:
    result = specchat("doctor", *arguments)
    assert result.returncode == status
    assert sentence in result.stderr
    assert "Traceback" not in result.stderr


def test_a_file_that_is_no_model_is_a_sentence(tmp_path: Path) -> None:
    text = tmp_path / "text.gguf"
    text.write_text("hello")
    for arguments in ([str(text)], [str(text), str(text)]):
        result = specchat("doctor", *arguments)
        assert result.returncode == 1
        assert "text.gguf" in result.stderr
        assert "Traceback" not in result.stderr


# -- what they stand on -------------------------------------------------------------------------------------


def test_a_build_describes_itself() -> None:
    build = probe.build()
    assert build.version.count(".") == 2
    assert "cpu" in {device.kind for device in build.devices}


def test_a_probe_that_is_killed_is_a_sentence(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    script = tmp_path / "python"
    script.write_text("#!/bin/sh\nkill -ABRT $$\n")
    script.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(script))
    with pytest.raises(SpecchatError, match="ended with status -6"):
        probe.build()


@pytest.mark.parametrize(
    ("name", "family"),
    [
        ("Qwen2.5-7B-Instruct-Q4_K_M.gguf", ("qwen", "2")),
        ("Meta-Llama-3.1-8B-Instruct-Q4_K_M.gguf", ("llama", "3")),
        ("google_gemma-3-270m-it", ("gemma", "3")),
        ("qwen3:8b", ("qwen", "3")),
        ("mistral-7b-instruct", None),
        ("", None),
    ],
)
def test_families_are_told_by_name(name: str, family: tuple[str, str] | None) -> None:
    assert candidates.family(name) == family


def test_every_catalogued_draft_is_a_candidate_for_its_own_targets() -> None:
    known = catalog.load()
    for pair in known.pairs.values():
        if pair.name != "demo":
            of = candidates.family(pair.target.name)
            assert pair.draft in candidates.catalogued(known, of, pair.target.bytes or 0), pair.name


def test_later_shards_are_no_candidates(library: Library, tmp_path: Path) -> None:
    target = tmp_path / "target.gguf"
    target.write_bytes(bytes(10_000))
    found = [
        discovery.Found(tmp_path / name, "x", name, 5) for name in ("m-00001-of-00002.gguf", "m-00002-of-00002.gguf")
    ]
    here = candidates.local(catalog.load(), library, found, target)
    assert [model.name for model in here] == ["m-00001-of-00002.gguf", "shared", "big", "large"]


def test_graphics_cards_are_told_by_the_kernels_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("platform.system", lambda: "Linux")
    monkeypatch.setenv("PATH", str(tmp_path))
    for card, vendor in (("card0", "0x1002"), ("card1", "0x1a03"), ("card2", "0x10de")):
        (tmp_path / card / "device").mkdir(parents=True)
        (tmp_path / card / "device" / "vendor").write_text(vendor + "\n")
    assert [card.backend.name for card in gpus.find(tmp_path)] == ["ROCm", "CUDA"]
    smi = tmp_path / "nvidia-smi"
    smi.write_text("#!/bin/sh\necho 'NVIDIA H200'\necho 'NVIDIA H200'\n")
    smi.chmod(0o755)
    assert [card.name for card in gpus.find(tmp_path)] == ["NVIDIA H200", "AMD GPU"]
    assert "-DGGML_CUDA=ON" in gpus.install_command(gpus.CUDA)
    assert "--no-cache-dir" in gpus.install_command(gpus.CUDA)


def test_the_command_names_no_home_folder_and_is_one_that_a_shell_understands(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    python = tmp_path / "with space" / "python"
    python.parent.mkdir()
    python.write_text('#!/bin/sh\necho "$CMAKE_ARGS:$2:$6"\n')
    python.chmod(0o755)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(python))
    monkeypatch.setattr("platform.system", lambda: "Linux")
    command = gpus.install_command(gpus.VULKAN)
    assert str(tmp_path) not in command
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("-DGGML_VULKAN=ON:pip:")


def test_the_requirement_is_that_of_the_project() -> None:
    project = (Path(__file__).parents[1] / "pyproject.toml").read_text("utf-8")
    assert gpus.install_command(gpus.CUDA).split('"')[-2] in project


def test_progress_without_a_terminal_is_a_plain_line_for_each_thing(capsys: pytest.CaptureFixture[str]) -> None:
    console.follow([Step("one", 1, 2), Step("one", 2, 2), Step("two")])
    assert capsys.readouterr().err == "one\ntwo\n"


@pytest.mark.parametrize("width", [25, 40, 80])
def test_on_a_terminal_lines_break_between_words(monkeypatch: pytest.MonkeyPatch, width: int) -> None:
    name, text = "a name      ", "no depth pays: the best keeps 1.02 tokens (of 8) for self-made passes"
    lines = ["short", name + text]
    assert list(console.wrapped(lines)) == lines  # not a terminal
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(width))
    first, *rest = console.wrapped(lines, len(name))
    assert first == "short"
    assert all(len(line) <= width for line in rest)
    assert all(line.startswith(" " * len(name)) for line in rest[1:])
    assert " ".join(line[len(name) :] for line in rest).split() == text.split()


def test_the_rest_of_long_work_is_guessed_from_what_is_done_of_the_same_work() -> None:
    pace = console.Pace()

    def left(done: int, now: float, total: int | None = 100, *, in_bytes: bool = False) -> str:
        return pace.left(Step("a text", done, total, in_bytes), now)

    assert left(0, 0.0) == left(5, 5.0) == ""  # too soon to say
    assert left(10, 60.0) == ", about 9 minutes left"
    assert left(99, 60.0) == ", about 1 minute left"
    assert left(10, 70.0, 50) == ""  # other work
    assert left(20, 90.0, 50) == ", about 1 minute left"
    assert left(30, 900.0, None) == left(30, 900.0, 60, in_bytes=True) == ""


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "just now"),
        (60, "1 minute ago"),
        (7300, "2 hours ago"),
        (86400 * 3, "3 days ago"),
        (86400 * 800, "2 years ago"),
    ],
)
def test_ages(seconds: float, text: str) -> None:
    assert console.age(seconds) == text


def test_housekeeping_does_not_load_the_engine_or_the_screen() -> None:
    script = (
        "import sys; from specchat.commands import list, remove, paths, doctor\n"
        "heavy = {'llama_cpp', 'textual', 'huggingface_hub', 'numpy'} & set(sys.modules)\n"
        "sys.exit(', '.join(heavy) or 0)"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (0, "")


def test_settings_are_not_needed_to_list(specchat_home: Path) -> None:
    (specchat_home / "settings.toml").write_text("depth = 0")
    with pytest.raises(SpecchatError):
        settings.load()
    assert specchat("list").returncode == 0

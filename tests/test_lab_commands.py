"""bench, verify and explain over tiny real models: what they print, their exit status, and that faults are found."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest
from click.testing import CliRunner, Result

from specchat import cli, probe
from specchat.commands.verify import NOT_LOSSLESS
from specchat.engine import decoder, remote, sampling
from specchat.engine.drafters import ModelDrafter
from specchat.engine.llama import Context, Model, ModelError
from specchat.engine.sampling import Distribution
from specchat.lab.lanes import Lane, Moment
from specchat.pairs import catalog
from specchat.pairs.library import Library
from tests import ggufs

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target, a draft that is another model, one of another vocabulary, and a model that cannot roll back."""
    folder = tmp_path_factory.mktemp("models")
    shape = ggufs.Shape(n_ctx_train=2048, quantisation="Q8_0")
    ggufs.write(folder / "target.gguf", shape=shape)
    ggufs.write(folder / "draft.gguf", shape=ggufs.Shape(n_layer=1, n_ctx_train=2048))
    ggufs.write(folder / "other.gguf", ggufs.bpe(words=("sh", "or", "shor", "Ġz")))
    ggufs.write(folder / "recurrent.gguf", architecture="mamba")
    # Short, as these vocabularies spell every letter.
    (folder / "prompts.txt").write_text("\n---\n".join(("hello", "a list", "why?", "tell it", "2 + 2", "x = [1, 2")))
    return folder


def run(command: str, files: Path, *arguments: str, draft: str | None = "draft") -> Result:
    models = ["-m", str(files / "target.gguf"), *(["-md", str(files / f"{draft}.gguf")] if draft else [])]
    return CliRunner().invoke(cli.main, [command, *models, "-t", "1", *arguments], prog_name="specchat")


def verify(files: Path, *arguments: str) -> Result:
    return run("verify", files, "--prompts", str(files / "prompts.txt"), *arguments)


def document(result: Result) -> Any:
    assert result.exit_code == 0, result.output
    return json.loads(result.stdout)


# ---- bench

QUICK = ("--only", "chat", "--only", "numbers", "--repeats", "2", "-n", "16")


def test_a_benchmark_measures_every_mode_on_every_prompt(files: Path) -> None:
    modes = ("plain", "draft", "draft:3", "ngram", "auto")
    found = document(run("bench", files, *QUICK, "--modes", "draft,draft:3,ngram,auto", "--json"))
    assert [line["mode"] for line in found["headlines"]] == [*modes]
    assert len(found["runs"]) == 2 * 2 * len(modes)
    for run_ in found["runs"]:
        assert run_["accepted"] <= run_["tested"] <= run_["proposed"]
        assert run_["passes"] <= run_["tokens"] <= 16
        # Each mode reads the prompt itself.
        assert run_["first_token"] > 0
    plain = [row for row in found["prompts"] if row["mode"] == "plain"]
    assert [row["speed_up"] for row in plain] == [1.0, 1.0]
    assert [row["per_pass"] for row in plain] == [1.0, 1.0]
    assert found["acceptance"] is not None
    assert found["costs"]["measured"] is True
    assert found["peak_memory_bytes"] > 10**7


def test_a_benchmark_as_text_with_its_charts(files: Path, tmp_path: Path) -> None:
    picture = tmp_path / "charts.svg"
    result = run("bench", files, *QUICK, "--depth", "3", "--plot", "--svg", str(picture))
    assert result.exit_code == 0, result.output
    for word in ("PROMPT", "chat", "numbers", "draft:3", "ngram:3", "auto", "Speed-up against depth", "Peak memory"):
        assert word in result.stdout
    assert ElementTree.parse(picture).getroot().tag.endswith("svg")


def test_without_a_draft_there_is_no_draft_mode(files: Path) -> None:
    found = document(run("bench", files, *QUICK, "--json", draft=None))
    assert [line["mode"] for line in found["headlines"]] == ["plain", "ngram", "auto"]
    assert found["draft"] is None


def test_replies_that_loop_are_marked_and_left_out(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from specchat.lab import runs

    asked: list[int] = []

    def second_prompt_loops(prompt: list[int], _reply: object) -> bool:
        asked.append(len(prompt))
        return len(prompt) != asked[0]

    monkeypatch.setattr(runs, "loops", second_prompt_loops)
    result = run("bench", files, *QUICK, "--modes", "auto")
    assert "loops" in result.stdout
    assert "as a reply loops: numbers" in result.stdout
    found = document(run("bench", files, *QUICK, "--modes", "auto", "--json"))
    auto, row = found["headlines"][1], next(r for r in found["prompts"] if (r["prompt"], r["mode"]) == ("chat", "auto"))
    assert found["left_out"] == ["numbers"]
    assert auto["speed_up"] == pytest.approx(row["speed_up"])
    assert auto["worst_prompt"] == "chat"


def test_plain_against_llama_cpp_python(files: Path) -> None:
    rows = document(run("bench", files, *QUICK, "--against-llama-cpp-python", "--json", draft=None))
    assert [row["prompt"] for row in rows] == ["chat", "numbers"]
    # Their texts may differ in how broken characters are cut: these models write any bytes.
    assert all(row["own"] > 0 and row["peer"] > 0 and row["tokens"] == 16 for row in rows)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--modes", "fast"), "there is no mode fast"),
        (("--only", "nothing"), "there is no prompt nothing: there is chat, code"),
        (("--prompts", "no-such-file"), "there is no file no-such-file"),
        ((*QUICK, "--svg", "/no/such/folder/x.svg"), "cannot write /no/such/folder/x.svg"),
    ],
)
def test_bad_input_is_one_sentence(files: Path, arguments: tuple[str, ...], said: str) -> None:
    result = run("bench", files, *arguments)
    assert result.exit_code == 1
    assert said in result.stderr


@pytest.mark.parametrize("command", ["bench", "verify", "explain"])
@pytest.mark.parametrize(("draft", "said"), [("other", "cannot draft for target.gguf"), ("recurrent", "is recurrent")])
def test_a_draft_that_does_not_fit_is_said(files: Path, command: str, draft: str, said: str) -> None:
    result = run(command, files, draft=draft)
    assert result.exit_code == 1
    assert said in result.stderr


MEASURING = {
    "bench": ("--only", "chat", "--repeats", "1", "-n", "4", "--json"),
    "verify": ("-n", "4", "--json"),
    "explain": ("--acceptance", "0.5", "--json"),
}


@pytest.mark.parametrize("command", MEASURING)
def test_cache_types_are_those_asked_for(files: Path, command: str, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[tuple[str, str, str]] = []
    make = Context.__init__

    def watched(context: Context, model: Model, **options: Any) -> None:
        made.append((model.path.stem, options.get("type_k", ""), options.get("type_v", "")))
        make(context, model, **options)

    monkeypatch.setattr(Context, "__init__", watched)
    result = run(command, files, "-ctk", "bf16", "-ctv", "f32", *MEASURING[command])
    assert json.loads(result.stdout)
    assert made[0] == ("target", "bf16", "f32")
    assert made[1] == ("draft", "f16", "f16")  # what the target says does not depend on it


@pytest.mark.parametrize("command", MEASURING)
@pytest.mark.parametrize(("limit", "said"), [("1MiB", "more"), ("2600KiB", "no place beside target.gguf")])
def test_a_limit_on_memory_is_kept_or_the_measurement_refused(
    files: Path, command: str, limit: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[Path] = []
    load = Model.load

    def watched(path: Path, **options: Any) -> Model:
        loaded.append(path)
        return load(path, **options)

    monkeypatch.setattr(Model, "load", watched)
    result = run(command, files, "--memory-limit", limit, "-c", "1024", *MEASURING[command])
    assert result.exit_code == 1
    assert said in result.stderr
    assert result.stderr.count("\n") == 1
    assert files / "draft.gguf" not in loaded


@pytest.mark.parametrize("command", MEASURING)
def test_another_machine_that_is_not_there_is_an_error(
    files: Path, command: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for supported, said in ((False, "without its RPC engine"), (True, "nobody serves devices at 127.0.0.1:1")):
        monkeypatch.setattr(remote, "supported", lambda supported=supported: supported)
        result = run(command, files, "--rpc", "127.0.0.1:1", *MEASURING[command])
        assert result.exit_code == 1
        assert said in result.stderr
        assert "going on" not in result.stderr


def test_a_step_down_of_the_plan_is_said(files: Path) -> None:
    result = run("bench", files, "-c", "65536", "--memory-limit", "6MiB", *MEASURING["bench"], draft=None)
    assert result.exit_code == 0
    assert "does not fit" in result.stderr


def interrupted(arguments: list[str], after: str) -> tuple[int, str, str]:
    """Status and output of a command that gets Ctrl+C, with its children, once its progress says `after`."""
    process = subprocess.Popen(
        [sys.executable, "-m", "specchat", *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        start_new_session=True,
    )
    assert process.stderr is not None
    while not (line := process.stderr.readline()).startswith(after):
        assert line
    time.sleep(0.1)
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=120)
    return process.returncode, out, err


def test_ctrl_c_prints_what_was_measured(files: Path) -> None:
    command = ["bench", "-m", str(files / "target.gguf"), "-t", "1", "--repeats", "500"]
    status, out, err = interrupted(command, "chat, auto")
    assert status == cli.INTERRUPTED, err
    assert "chat" in out
    assert "Traceback" not in err


@pytest.mark.parametrize("command", ["verify", "bench", "race"])
def test_a_draft_that_fails_ends_a_measurement_of_it(
    files: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    def fail(*_: object) -> None:
        raise ModelError("no memory for a batch")

    monkeypatch.setattr(ModelDrafter, "propose", fail)
    kinds = {
        "verify": ("verify", "--prompts", str(files / "prompts.txt"), "-n", "4"),
        "bench": ("bench", *QUICK, "--modes", "draft:3"),
        "race": ("bench", "--race", "hello", "--modes", "draft:3", "-n", "4"),
    }
    name, *arguments = kinds[command]
    result = run(name, files, *arguments, "--json")
    assert result.exit_code == 1
    assert "the draft failed: no memory for a batch" in result.stderr.splitlines()[-1]
    assert "Traceback" not in result.stderr


@pytest.mark.parametrize("command", ["verify", "bench", "race"])
def test_a_prompt_that_the_context_cannot_hold_is_named_before_anything_is_measured(
    files: Path, tmp_path: Path, command: str
) -> None:
    text = "x" + "\x1b[31mword " * 100
    (tmp_path / "prompts.txt").write_text(f"hello\n---\n{text}")
    prompts = ("--race", text) if command == "race" else ("--prompts", str(tmp_path / "prompts.txt"))
    result = run("bench" if command == "race" else command, files, *prompts, "-c", "256", "-n", "4", "--json")
    assert result.exit_code == 1
    assert not result.stdout
    said = result.stderr.splitlines()
    assert "the prompt that begins with 'x\\x1b[31mword" in said[-1]
    assert "tokens and the context 256" in said[-1]
    assert not any(line.startswith(("temperature", "warming", "hello")) for line in said)


# ---- race


def test_a_race_gives_both_lanes_the_same_text(files: Path) -> None:
    found = document(run("bench", files, "--race", "hello", "--modes", "draft:3", "-n", "40", "--json"))
    plain, drafted = found["lanes"]["plain"], found["lanes"]["draft:3"]
    assert found["identical"] is True
    assert found["outcome"] == "The texts are identical."
    assert plain["text"] == drafted["text"]
    assert plain["passes"] == plain["tokens"] == 40
    assert drafted["passes"] == 40 - drafted["accepted"]


def test_there_is_no_race_on_nothing(files: Path) -> None:
    result = run("bench", files, "--race", " ")
    assert result.exit_code == 2
    assert "--race needs a prompt" in result.stderr


def test_a_race_without_a_terminal_prints_the_reply_and_the_figures(files: Path) -> None:
    result = run("bench", files, "--race", "hello", "-n", "20", "--temp", "1")
    assert result.exit_code == 0, result.output
    figures = result.stdout.splitlines()[-4:]
    assert "\x1b" not in "".join(figures)  # unlike the text of a model whose weights are random
    assert figures[-1].startswith(("At this temperature the texts", "The texts are identical"))
    assert [line.split()[0] for line in figures[1:3]] == ["plain", "auto"]


def test_a_replay_shows_what_was_there_then() -> None:
    lane = Lane("plain")
    lane.moments = [Moment(0.5, (1,)), Moment(1.0, (2, 3))]
    assert [lane.until(seconds).tokens for seconds in (0.0, 0.5, 0.9, 2.0)] == [(), (1,), (1,), (1, 2, 3)]
    assert lane.rate == 3.0


# ---- verify


def test_a_pair_is_verified(files: Path) -> None:
    result = verify(files, "-n", "4")
    assert result.exit_code == 0, result.output
    for word in ("width noise", "temperature 0", "temperature 1", "exact mode", "verdict", "lossless"):
        assert word in result.stdout
    found = document(verify(files, "-n", "8", "--json"))
    assert found["passed"] is True
    assert len(found["texts"]) == 6 * 10
    assert {mode for mode, _ in found["sampled"]} == {"draft:4", "ngram:7", "auto"}
    assert found["exact_obstacle"] is None


def test_a_decoder_that_lets_the_draft_through_at_temperature_0_is_found(
    files: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sampling.Sampler, "accepts", lambda *_: True)
    result = verify(files, "-n", "8")
    assert result.exit_code == NOT_LOSSLESS
    assert "leaves plain's text at token" in result.stderr
    assert "FAIL" in result.stdout


def test_a_residual_that_is_not_one_is_found_at_temperature_1(files: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Drawing from p after a rejection is the commonest mistake; greedy texts do not show it."""

    def from_p(p: Distribution, _q: Distribution) -> Distribution:
        return p

    monkeypatch.setattr(decoder, "residual", from_p)
    result = verify(files, "-n", "96", "--json")
    found = json.loads(result.stdout)
    assert found["passed"] is False
    assert result.exit_code == NOT_LOSSLESS
    assert {failure.partition(",")[0] for failure in found["failures"]} <= {"draft:4", "ngram:7", "auto"}
    assert all(text["differs_at"] is None or text["gap"] < found["bound"] for text in found["texts"])


# ---- explain


def test_a_pair_is_explained(files: Path) -> None:
    result = run("explain", files, "-n", "16")
    assert result.exit_code == 0, result.output
    for word in ("Acceptance a =", "Ceiling", "BREAK-EVEN", "best"):
        assert word in result.stdout
    found = document(run("explain", files, "-n", "16", "--json"))
    assert len(found["depths"]) == 16
    assert found["measured"]["tested"] > 0
    assert found["best_depth"] == 1 + int(np.argmax([depth["speed_up"] for depth in found["depths"]]))


def test_what_if_the_acceptance_were_another(files: Path) -> None:
    found = document(run("explain", files, "--acceptance", "0.8", "--json"))
    assert found["depths"][3]["expected"] == pytest.approx(3.36, abs=0.005)
    assert found["ceiling"] == pytest.approx(5.0)
    assert found["measured"]["tested"] == 0


def test_without_a_draft_there_is_nothing_to_explain(files: Path) -> None:
    result = run("explain", files, draft=None)
    assert result.exit_code == 1
    assert "has no draft model to explain" in result.stderr


# ---- make-draft


def make_draft(target: Path, *arguments: str) -> Result:
    command = ["make-draft", "-m", str(target), "-t", "1", "--minutes", "0.1", *arguments]
    return CliRunner().invoke(cli.main, command, prog_name="specchat")


@pytest.fixture(scope="module")
def deep(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return ggufs.write(
        tmp_path_factory.mktemp("deep") / "deep.gguf", shape=ggufs.Shape(n_layer=5, n_embd=256, n_ctx_train=2048)
    )


def test_a_draft_that_pays_becomes_a_pair_that_opens(deep: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specchat.lab.make_draft.PAYS", 0.0)
    result = make_draft(deep, "--name", "mine")
    assert result.exit_code == 0, result.output
    assert "The new pair is called mine" in result.stdout
    assert "PREDICTED SPEED-UP" in result.stdout
    pair, library = catalog.load().pair("mine"), Library.default()
    assert pair.own
    assert library.installed(pair)
    assert library.path(pair.target) == deep
    assert pair.draft is not None
    # Nothing else is left, and the draft is one by every rule.
    assert [path.name for path in library.models.rglob("*") if path.is_file()] == ["mine-draft.gguf"]
    assert all(check.passed for check in probe.pair(deep, library.path(pair.draft)))
    again = make_draft(deep, "--name", "mine")
    assert again.exit_code == 1
    assert "there is a pair called mine already" in again.stderr


def test_where_no_draft_pays_it_says_so_and_keeps_nothing(deep: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specchat.lab.make_draft.PAYS", 1e9)
    result = make_draft(deep)
    assert result.exit_code == 0, result.output
    assert "No draft made from this model pays here" in result.stdout
    assert not catalog.load().pairs.keys() & {"deep-self"}
    assert not [path for path in Library.default().models.rglob("*") if path.is_file()]


def test_ctrl_c_keeps_the_best_so_far(deep: Path) -> None:
    command = ["make-draft", "-m", str(deep), "-t", "1", "--minutes", "5"]
    status, out, err = interrupted(command, "trying Q2_K")
    assert status == cli.INTERRUPTED, err
    assert "2 candidates tried" in out or "3 candidates tried" in out
    assert "is predicted to run at" in out
    assert "Traceback" not in err
    assert not list(Library.default().models.glob(".draft-*"))


def test_a_full_disk_is_said_before_anything_is_made(deep: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("specchat.lab.make_draft.MARGIN", 2**60)
    result = make_draft(deep)
    assert result.exit_code == 1
    assert "the next candidate may need more" in result.stderr


def test_a_target_that_cannot_speculate_needs_no_draft(files: Path) -> None:
    result = make_draft(files / "recurrent.gguf")
    assert result.exit_code == 1
    assert "is recurrent" in result.stderr

"""The command line: routing, options, precedence, completion, and what it must not load."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner, Result

from specchat import cli, locations, state
from specchat.commands import opening
from specchat.commands.options import Options
from specchat.engine.policy import Mode, Speculation
from specchat.engine.sampling import SamplingSettings
from specchat.errors import SpecchatError
from specchat.pairs import catalog, prepare
from specchat.pairs.catalog import Catalog, Pair
from specchat.pairs.library import Library, Step
from specchat.session import Launch

ROOT = Path(__file__).parents[1]


def run(*arguments: str) -> Result:
    """Run `specchat` in this process, without a terminal."""
    return CliRunner().invoke(cli.main, arguments, prog_name="specchat")


def program(*arguments: str, **changes: str) -> subprocess.CompletedProcess[str]:
    """Run `specchat` as a program, with no terminal anywhere."""
    return subprocess.run(
        [sys.executable, "-m", "specchat", *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": str(ROOT)} | changes,
        check=False,
    )


# ---- help


def test_help_loads_no_heavy_library_and_takes_little_time() -> None:
    code = (
        "import resource, sys\n"
        "from specchat.cli import main\n"
        "try:\n    main(['--help'])\nexcept SystemExit:\n    pass\n"
        "used = resource.getrusage(resource.RUSAGE_SELF)\n"
        "heavy = ('textual', 'llama_cpp', 'numpy', 'rich', 'huggingface_hub', 'specchat.engine')\n"
        "print([name for name in heavy if name in sys.modules], used.ru_utime + used.ru_stime)"
    )
    ends = [
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.splitlines()[-1]
        for _ in range(3)
    ]
    assert {end.rpartition(" ")[0] for end in ends} == {"[]"}
    # Of the processor, not of the clock, so that other work here does not matter.
    assert min(float(end.rpartition(" ")[2]) for end in ends) < 0.3


def test_completing_a_command_line_loads_no_heavy_library() -> None:
    code = (
        "import sys\nfrom specchat.cli import main\n"
        "try:\n    main(prog_name='specchat')\nexcept SystemExit:\n    pass\n"
        "print([name for name in ('textual', 'llama_cpp', 'numpy') if name in sys.modules])"
    )
    for line in ("specchat ", "specchat ask --", "specchat ask --pair "):
        environment = {"_SPECCHAT_COMPLETE": "bash_complete", "COMP_WORDS": line, "COMP_CWORD": str(line.count(" "))}
        done = subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=os.environ | environment
        )
        assert done.stdout.splitlines()[-1] == "[]"


def test_help_names_every_command_and_every_command_has_help() -> None:
    shown = run("--help").stdout
    for name in cli.COMMANDS:
        assert f"\n  {name} " in shown
        result = run(name, "--help")
        assert result.exit_code == 0
        assert result.stdout.startswith(f"Usage: specchat {name}")


def test_version() -> None:
    assert run("--version").stdout.startswith("specchat, version ")


# ---- routing


@pytest.mark.parametrize("arguments", [(), ("demo",), ("DEMO",), ("--temp", "0"), ("chat",), ("demo", "-ngl", "0")])
def test_the_chat_without_a_terminal_points_to_ask(arguments: tuple[str, ...]) -> None:
    result = program(*arguments)
    assert result.returncode == 2
    assert result.stdout == ""
    assert result.stderr.count("\n") == 1
    assert "needs a terminal" in result.stderr
    assert "specchat ask" in result.stderr


def test_a_dumb_terminal_is_told_so() -> None:
    import pty

    master, slave = pty.openpty()
    done = subprocess.run(
        [sys.executable, "-m", "specchat"],
        stdin=slave,
        stdout=slave,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ | {"TERM": "dumb", "PYTHONPATH": str(ROOT)},
        check=False,
    )
    os.close(slave)
    os.close(master)
    assert done.returncode == 2
    assert "TERM is dumb" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "status", "said"),
    [
        (["pul"], 1, "did you mean pull?"),
        (["demmo"], 1, "did you mean demo"),
        (["nonsense-7b"], 1, "there is no pair called nonsense-7b"),
        (["phi-4"], 1, "left out of the catalogue on purpose"),
        (["none.gguf"], 1, "there is no file none.gguf"),
        (["what is the sea?"], 1, 'specchat ask "what is the sea?"'),
        (["pul", "demo"], 2, "Did you mean pull?"),
        (["--temp", "0", "ask", "hello"], 2, "The command comes first: specchat ask"),
        (["tell", "me", "more"], 2, 'specchat ask "tell me more"'),
        (["--tmp", "0"], 2, "--temp"),
        (["ask", "--demo"], 2, "No such option"),
        (["ask", "--pair", "demo", "-m", "x.gguf", "hi"], 2, "both say what to open"),
    ],
)
def test_a_near_miss_is_one_sentence_that_says_what_was_meant(arguments: list[str], status: int, said: str) -> None:
    result = run(*arguments)
    assert result.exit_code == status
    assert said in result.stderr
    assert result.stdout == ""
    assert isinstance(result.exception, SystemExit)


@pytest.mark.parametrize(
    "arguments",
    [
        ("--temp", "-1"),
        ("--temp", "warm"),
        ("--temp", "nan"),
        ("--temp", "inf"),
        ("--top-p", "nan"),
        ("--min-p", "nan"),
        ("--repeat-penalty", "nan"),
        ("--top-p", "1.5"),
        ("--min-p", "2"),
        ("--top-k", "-1"),
        ("--repeat-penalty", "0"),
        ("--depth", "0"),
        ("--depth", "65"),
        ("-c", "10"),
        ("-n", "0"),
        ("-t", "0"),
        ("-ngl", "-5"),
        ("-s", "-1"),
        ("--speculation", "maybe"),
        ("-md",),
    ],
)
def test_values_out_of_range_are_usage_errors(arguments: tuple[str, ...]) -> None:
    result = run("ask", "hello", *arguments)
    assert result.exit_code == 2
    assert "Error: " in result.stderr


# ---- options


def parsed(*arguments: str) -> Options:
    """The options that `specchat ask ARGUMENTS` would get."""
    command = cli.main.get_command(click.Context(cli.main), "ask")
    assert command is not None
    values = command.make_context("ask", list(arguments)).params
    return Options(**{field.name: values[field.name] for field in fields(Options)})


def test_every_option_has_the_name_that_users_of_llama_cpp_type() -> None:
    short = parsed(
        *("-m", "t", "-md", "d", "-c", "512", "-n", "9", "-t", "3", "-ngl", "7", "-s", "5", "-sys", "hi"),
        *("-f", "a", "-f", "b", "--temp", "0.5", "--top-k", "1", "--top-p", "0.2", "--min-p", "0.3"),
        *("--repeat-penalty", "1.1", "--depth", "4", "--speculation", "ngram", "--pair", "p"),
    )
    long = parsed(
        *("--target", "t", "--draft", "d", "--ctx", "512", "--max-tokens", "9", "--threads", "3"),
        *("--gpu-layers", "7", "--seed", "5", "--system", "hi", "--file", "a", "--file", "b", "--temp=0.5"),
        *("--top-k=1", "--top-p=0.2", "--min-p=0.3", "--repeat-penalty=1.1", "--depth=4", "--speculation=ngram"),
        *("--pair", "p"),
    )
    assert short == long
    assert short == Options(
        target=Path("t"),
        draft=Path("d"),
        pair="p",
        speculation="ngram",
        depth=4,
        ctx=512,
        max_tokens=9,
        threads=3,
        gpu_layers=7,
        temperature=0.5,
        top_k=1,
        top_p=0.2,
        min_p=0.3,
        repeat_penalty=1.1,
        seed=5,
        system="hi",
        files=(Path("a"), Path("b")),
    )


def test_options_of_one_letter_and_of_several_do_not_get_in_each_others_way() -> None:
    assert (parsed("-mdraft.gguf").target, parsed("-mdraft.gguf").draft) == (Path("draft.gguf"), None)
    assert (parsed("-md=draft.gguf").target, parsed("-md=draft.gguf").draft) == (None, Path("draft.gguf"))
    assert (parsed("-s5").seed, parsed("-sys", "5").seed, parsed("-sys", "5").system) == (5, None, "5")
    assert (parsed("-n5").max_tokens, parsed("-ngl", "5").max_tokens) == (5, None)


# ---- precedence


def launch(*arguments: str) -> Launch:
    return opening.launch(parsed(*arguments))


def own_pair(tmp_path: Path, sampling: str = "", draft: bool = True) -> None:
    for name in ("t.gguf", "d.gguf"):
        (tmp_path / name).write_bytes(b"GGUF")
    lines = [
        *("[files.t]", f'path = "{tmp_path / "t.gguf"}"', "[files.d]", f'path = "{tmp_path / "d.gguf"}"'),
        *("[pairs.duo]", 'target = "t"', 'draft = "d"' if draft else "", sampling),
    ]
    write(locations.user_catalog_file(), "\n".join(lines))


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


def test_command_line_over_settings_over_catalogue_over_defaults(tmp_path: Path) -> None:
    def sampling(*arguments: str) -> SamplingSettings:
        return launch("--pair", "duo", *arguments).options.sampling

    own_pair(tmp_path)
    assert sampling() == SamplingSettings()
    own_pair(tmp_path, "sampling = { temperature = 0.1, top_k = 11, min_p = 0.11 }")
    assert sampling() == SamplingSettings(temperature=0.1, top_k=11, min_p=0.11)
    write(locations.settings_file(), "temperature = 0.2\ntop_k = 22\nseed = 7\n")
    assert sampling() == SamplingSettings(temperature=0.2, top_k=22, min_p=0.11, seed=7)
    assert sampling("--temp", "0", "-s", "0") == SamplingSettings(temperature=0.0, top_k=22, min_p=0.11, seed=0)
    assert isinstance(sampling().top_k, int)


@pytest.mark.parametrize(
    ("setting", "arguments", "before", "after"),
    [
        ("ctx = 512", ("-c", "1024"), ("n_ctx", 512), ("n_ctx", 1024)),
        ("threads = 3", ("-t", "2"), ("threads", 3), ("threads", 2)),
        ("gpu_layers = 5", ("-ngl", "0"), ("gpu_layers", 5), ("gpu_layers", 0)),
        ("exact = true", (), ("exact", True), ("exact", True)),
        ("exact = false", ("--exact",), ("exact", False), ("exact", True)),
    ],
)
def test_settings_reach_the_engine_and_options_win(
    tmp_path: Path, setting: str, arguments: tuple[str, ...], before: tuple[str, Any], after: tuple[str, Any]
) -> None:
    own_pair(tmp_path)
    write(locations.settings_file(), setting)
    assert getattr(launch("--pair", "duo").settings, before[0]) == before[1]
    assert getattr(launch("--pair", "duo", *arguments).settings, after[0]) == after[1]


def test_speculation_and_system_prompt_come_from_settings_unless_given(tmp_path: Path) -> None:
    own_pair(tmp_path)
    write(locations.settings_file(), 'speculation = "ngram"\ndepth = 9\nsystem = "Be brief."')
    usual, given = launch("--pair", "duo"), launch("--pair", "duo", "--speculation", "off", "-sys", "")
    assert (usual.settings.speculation, usual.system_prompt) == (Speculation(Mode.NGRAM, 9), "Be brief.")
    assert (given.settings.speculation, given.system_prompt) == (Speculation(Mode.OFF, 9), "")


def test_wrong_settings_are_one_sentence() -> None:
    write(locations.settings_file(), "temprature = 1")
    result = run("ask", "hello")
    assert result.exit_code == 1
    assert "did you mean temperature?" in result.stderr


# ---- what to open


def opened(name: str | None = None, *arguments: str) -> str:
    return opening.launch(parsed(*arguments), name).name


def test_a_pair_a_file_or_the_option_say_what_to_open(tmp_path: Path) -> None:
    own_pair(tmp_path)
    file = str(tmp_path / "t.gguf")
    assert (opened("duo"), opened("DUO"), opened(None, "--pair", "duo")) == ("duo", "duo", "duo")
    assert (opened(file), opened(None, "-m", file)) == ("t.gguf", "t.gguf")
    assert launch("-m", file).draft == tmp_path / "d.gguf"  # its pair's
    assert launch("--pair", "duo").draft == tmp_path / "d.gguf"
    assert launch("--pair", "duo", "-md", file).draft == tmp_path / "t.gguf"
    with pytest.raises(SpecchatError, match="no file none"):
        launch("-m", file, "-md", "none")
    with pytest.raises(click.UsageError, match="both say"):
        opened("duo", "-m", file)


def test_relative_paths_are_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    own_pair(tmp_path)
    monkeypatch.chdir(tmp_path)
    assert launch("-m", "t.gguf", "-md", "d.gguf").draft == tmp_path / "d.gguf"
    assert launch("-m", "t.gguf").record == str(tmp_path / "t.gguf")


def test_without_a_name_the_last_one_is_opened_again(tmp_path: Path) -> None:
    own_pair(tmp_path)
    state.remember_opened(str(tmp_path / "t.gguf"))
    assert opened() == "t.gguf"
    state.remember_opened("duo")
    assert opened() == "duo"
    state.remember_opened(str(tmp_path / "gone.gguf"))
    assert opened() == "duo"


def test_without_a_name_and_a_last_one_the_only_pair_is_opened(tmp_path: Path) -> None:
    own_pair(tmp_path)
    assert opened() == "duo"


def test_of_several_pairs_one_has_to_be_named(tmp_path: Path) -> None:
    own_pair(tmp_path)
    with locations.user_catalog_file().open("a") as file:
        file.write('\n[pairs.solo]\ntarget = "t"\n')
    with pytest.raises(SpecchatError, match=r"several pairs are here.*duo, solo"):
        opened()


def test_the_demo_pair_is_what_there_is_on_a_fresh_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    prepared = []

    def fetch_nothing(_catalog: Catalog, _library: Library, pair: Pair, _places: object) -> Iterator[Step]:
        prepared.append(pair.name)
        yield Step("fetching")

    monkeypatch.setattr(prepare, "prepare", fetch_nothing)
    launch = opening.launch(parsed())
    assert (launch.name, launch.is_demo, prepared) == ("demo", True, ["demo"])


def test_a_draft_named_once_is_not_taken_for_the_usual_pair(tmp_path: Path) -> None:
    own_pair(tmp_path)
    file = str(tmp_path / "t.gguf")
    assert launch("-m", file, "-md", file).record == ""
    assert launch("-m", file, "-md", file).draft_required
    assert launch("--pair", "duo").record == "duo"
    assert not launch("--pair", "duo").draft_required


# ---- completion


def completions(line: str) -> list[str]:
    """What pressing Tab at the end of `line` offers, without what each is for."""
    environment = {
        "_SPECCHAT_COMPLETE": "bash_complete",
        "COMP_WORDS": line,
        "COMP_CWORD": str(line.count(" ")),
    }
    result = CliRunner().invoke(cli.main, [], env=environment, prog_name="specchat")
    return [entry.partition(",")[2] for entry in result.stdout.splitlines() if entry.startswith("plain,")]


def test_commands_and_pairs_are_offered_first() -> None:
    offered = completions("specchat ")
    assert set(cli.COMMANDS) <= set(offered)
    assert {"demo", "qwen3-8b"} <= set(offered)
    assert completions("specchat pu") == ["pull"]
    assert completions("specchat DEM") == ["demo"]


def test_options_and_their_values_are_offered() -> None:
    assert completions("specchat --spec") == ["--speculation"]
    assert completions("specchat demo --spec") == ["--speculation"]
    assert completions("specchat ask --speculation ") == ["auto", "draft", "ngram", "off"]
    assert completions("specchat ask --pair de") == ["demo"]
    assert completions("specchat --vers") == ["--version"]


def test_own_pairs_are_offered_and_a_broken_catalogue_offers_none(tmp_path: Path) -> None:
    own_pair(tmp_path)
    assert completions("specchat du") == ["duo"]
    write(locations.user_catalog_file(), "[broken")
    assert completions("specchat ask --pair du") == []


def test_remove_offers_what_there_is_to_remove(tmp_path: Path) -> None:
    assert completions("specchat remove ") == []
    own_pair(tmp_path)
    library, pair = Library.default(), catalog.load().pair("smollm2-360m")
    begun = library.install_path(pair.target.parts[0])
    begun.parent.mkdir(parents=True)
    begun.write_bytes(b"GGUF")
    assert completions("specchat remove ") == ["smollm2-360m", "duo"]
    assert completions("specchat remove q") == []


def test_doctor_offers_pairs_and_files() -> None:
    assert completions("specchat doctor dem") == ["demo"]
    environment = {"_SPECCHAT_COMPLETE": "bash_complete", "COMP_WORDS": "specchat doctor ./m", "COMP_CWORD": "2"}
    result = CliRunner().invoke(cli.main, [], env=environment, prog_name="specchat")
    assert result.stdout.splitlines() == ["file,./m"]


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_script_of_each_shell(shell: str) -> None:
    result = run("completion", shell)
    assert result.exit_code == 0
    assert f"_SPECCHAT_COMPLETE={shell}_complete" in result.stdout
    assert run("completion", "tcsh").exit_code == 2


def test_bash_really_completes(tmp_path: Path) -> None:
    executable = tmp_path / "specchat"
    executable.write_text(f'#!/bin/sh\nexec "{sys.executable}" -c '
                          "'from specchat.cli import main; main(prog_name=\"specchat\")' \"$@\"\n")  # fmt: skip
    executable.chmod(0o755)
    script = (
        'eval "$(specchat completion bash)"; COMP_WORDS=(specchat ask --pair dem) COMP_CWORD=3; '
        '_specchat_completion specchat; echo "${COMPREPLY[@]}"'
    )
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", script],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PATH": path, "PYTHONPATH": str(ROOT)},
    )
    assert done.stdout.strip() == "demo"


# ---- Ctrl+C


@pytest.mark.parametrize("module", ["specchat.cli", "click", "specchat.errors"])
def test_ctrl_c_while_the_program_starts_leaves_no_traceback(module: str) -> None:
    """Pressed the moment that `module` is looked for."""
    script = f"""
import os, signal, sys
from specchat import __main__
class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == {module!r}:
            os.kill(os.getpid(), signal.SIGINT)
sys.meta_path.insert(0, Finder())
sys.argv = ["specchat", "--version"]
__main__.main()
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60)
    assert (result.returncode, result.stdout, result.stderr) == (-signal.SIGINT, "", "")


def test_ctrl_c_means_what_it_meant_once_the_program_has_started() -> None:
    script = """
import signal, sys
from specchat import __main__, cli
cli.main = lambda prog_name: print(prog_name, signal.getsignal(signal.SIGINT) is signal.default_int_handler)
__main__.main()
"""
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=60)
    assert (result.stdout, result.stderr) == ("specchat True\n", "")


@pytest.mark.parametrize("arguments", [("--pair", ""), ("chat", " "), ("pull", "")])
def test_an_empty_name_is_said_to_be_empty(arguments: tuple[str, ...]) -> None:
    result = CliRunner().invoke(cli.main, arguments)
    assert result.exit_code == 2
    assert "the name is empty" in result.stderr

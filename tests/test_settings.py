"""The settings file: defaults, every field readable, everything wrong reported by file and field."""

from __future__ import annotations

import dataclasses
import tomllib
from pathlib import Path

import pytest

from specchat import settings
from specchat.errors import SpecchatError
from specchat.settings import Settings


def load(tmp_path: Path, text: str) -> Settings:
    file = tmp_path / "settings.toml"
    file.write_text(text, "utf-8")
    return settings.load(file)


def test_no_file_means_the_defaults(specchat_home: Path) -> None:
    assert settings.load() == Settings()
    assert not list(specchat_home.iterdir())


def test_the_users_file_is_read_from_its_location(specchat_home: Path) -> None:
    (specchat_home / "settings.toml").write_text("depth = 7\n")
    assert settings.load().depth == 7


def test_every_value_arrives(tmp_path: Path) -> None:
    read = load(
        tmp_path,
        """
        speculation = "ngram"
        depth = 5
        ctx = 4096
        threads = 3
        gpu_layers = 0
        memory_limit = "12 GiB"
        exact = true
        temperature = 1
        top_p = 0.5
        seed = 0
        system = "Be brief."
        mouse = false
        idle_minutes = 0
        model_dirs = ["/models", "~/more"]
        """,
    )
    assert (read.speculation, read.depth, read.ctx, read.threads, read.gpu_layers) == ("ngram", 5, 4096, 3, 0)
    assert read.memory_limit == 12 * 1024**3
    assert (read.exact, read.mouse, read.idle_minutes, read.seed) == (True, False, 0.0, 0)
    assert (read.temperature, read.top_p, read.top_k) == (1.0, 0.5, None)
    assert read.model_dirs == (Path("/models"), Path("~/more").expanduser())


def test_auto_leaves_the_choice_to_the_program(tmp_path: Path) -> None:
    assert load(tmp_path, 'depth = "auto"\nctx = "auto"\n') == Settings()


@pytest.mark.parametrize(
    ("line", "field"),
    [
        ("depth = 0", "depth"),
        ("depth = true", "depth"),
        ("depth = 2.5", "depth"),
        ('speculation = "fast"', "speculation"),
        ("temperature = -1", "temperature"),
        ("temperature = nan", "temperature"),
        ("top_p = 1.5", "top_p"),
        ('mouse = "no"', "mouse"),
        ('memory_limit = "lots"', "memory_limit"),
        ("memory_limit = 12", "memory_limit"),
        ('model_dirs = "/models"', "model_dirs"),
        ("seed = -1", "seed"),
        ("system = 3", "system"),
        ("[depth]\nx = 1", "depth"),
    ],
)
def test_a_wrong_value_names_file_and_field(tmp_path: Path, line: str, field: str) -> None:
    with pytest.raises(SpecchatError) as caught:
        load(tmp_path, line)
    message = str(caught.value)
    assert "settings.toml" in message
    assert f"{field} must be" in message
    assert "\n" not in message


def test_an_unknown_field_is_reported_with_the_one_meant(tmp_path: Path) -> None:
    with pytest.raises(SpecchatError, match=r"no setting temprature \(did you mean temperature\?\)"):
        load(tmp_path, "temprature = 0.5")


def test_all_mistakes_are_reported_at_once(tmp_path: Path) -> None:
    with pytest.raises(SpecchatError) as caught:
        load(tmp_path, "depth = 0\ncolour = 1\nseed = 'x'")
    assert all(field in str(caught.value) for field in ("depth", "colour", "seed"))


def test_broken_toml_says_where(tmp_path: Path) -> None:
    with pytest.raises(SpecchatError, match=r"settings\.toml is not valid TOML.*line 2"):
        load(tmp_path, "depth = 3\ndepth 4\n")


def test_bytes_that_are_not_utf8_are_a_sentence(tmp_path: Path) -> None:
    file = tmp_path / "settings.toml"
    file.write_bytes(b'system = "\xff"')
    with pytest.raises(SpecchatError, match="not valid TOML"):
        settings.load(file)


def test_a_folder_in_the_files_place_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(SpecchatError, match="cannot read"):
        settings.load(tmp_path)


def test_the_template_documents_every_field_and_its_examples_are_valid(tmp_path: Path) -> None:
    template = settings.template()
    assert load(tmp_path, template) == Settings()
    uncommented = "\n".join(line[1:] if line[1:2].strip() else line for line in template.splitlines())
    named = set(tomllib.loads(uncommented))
    assert named == {field.name for field in dataclasses.fields(Settings)}
    assert load(tmp_path, uncommented) != Settings()

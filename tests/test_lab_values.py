"""The laboratory's arithmetic: modes, loops, theory, charts, noise between widths, the sampled check."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
from numpy.typing import NDArray
from scipy import stats

from specchat.engine.costs import Costs
from specchat.engine.drafters import NgramDrafter
from specchat.engine.policy import FixedPolicy, Mode, Speculation
from specchat.engine.sampling import Distribution, SamplingSettings
from specchat.errors import SpecchatError
from specchat.lab import explain, plots, prompts, runs, sampled, theory, verify, width
from specchat.lab.bench import rotated
from tests.scripted_models import ScriptedCache, from_table, pair_table

# A pass over n tokens costs (3 + n) / 4 plain passes, a step of the draft a tenth of one.
COSTS = Costs({n: (3 + n) / 4 for n in range(1, 34)}, dict.fromkeys(range(1, 34), 0.1), measured=True)


# ---- modes and prompts


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("plain", Speculation(Mode.OFF)),
        ("auto", Speculation(Mode.AUTO)),
        ("auto:4", Speculation(Mode.AUTO, 4)),
        ("draft", Speculation(Mode.DRAFT)),
        ("ngram:15", Speculation(Mode.NGRAM, 15)),
    ],
)
def test_the_names_of_modes(name: str, asked: Speculation) -> None:
    assert runs.speculation(name) == asked


@pytest.mark.parametrize("name", ["", "fast", "off", "plain:3", "draft:", "draft:0", "draft:65", "draft:x", "draft:-1"])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(SpecchatError, match=r"there is no mode|must be a whole number from 1 to 64"):
        runs.speculation(name)


def test_no_mode_is_always_first() -> None:
    modes = ("plain", "draft", "auto")
    assert {rotated(modes, repeat)[0] for repeat in range(3)} == set(modes)
    assert all(sorted(rotated(modes, repeat)) == sorted(modes) for repeat in range(7))


def test_the_prompts_have_names_of_their_own() -> None:
    names = [prompt.name for prompt in prompts.VERIFY]
    assert len(set(names)) == len(names) == 20
    assert {"chat", "code", "rewrite", "correct", "story", "summary", "numbers"} <= {p.name for p in prompts.BENCH}


def test_prompts_of_the_users_own(tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("first\nin two lines\n---\n\n---\n  a second one which is rather long  \n", "utf-8")
    found = prompts.from_file(file)
    assert [prompt.text for prompt in found] == ["first\nin two lines", "a second one which is rather long"]
    assert [prompt.name for prompt in found] == ["1 first in two li…", "2 a second one wh…"]


@pytest.mark.parametrize(
    ("content", "said"), [(None, "there is no file"), (b"\n---\n", "holds no prompt"), (b"\xff\xfe\x00x", "not text")]
)
def test_prompts_that_cannot_be_had(tmp_path: Path, content: bytes | None, said: str) -> None:
    file = tmp_path / "prompts.txt"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(SpecchatError, match=said):
        prompts.from_file(file)


GRAM = list(range(100, 116))


@pytest.mark.parametrize(
    ("prompt", "reply", "expected"),
    [
        ([], GRAM * 3, True),
        ([], GRAM * 2, False),
        ([], [1] * 18, True),  # one token over and over
        ([], [1] * 17, False),
        (GRAM, GRAM * 3, False),  # only what the prompt does not have; its turns overlap
        ([], list(range(300)), False),
        ([], [], False),
    ],
)
def test_replies_that_loop(prompt: list[int], reply: list[int], expected: bool) -> None:
    if prompt:
        prompt = prompt * 2  # the passage from its end to its beginning as well
    assert runs.loops(prompt, reply) is expected


# ---- theory


def test_the_worked_figures_of_tokens_per_pass() -> None:
    at = {(a, k): theory.outlook(a, COSTS).depths[k - 1].expected for a in (0.5, 0.8) for k in (4, 8)}
    assert at[0.8, 4] == pytest.approx(3.36, abs=0.005)
    assert at[0.5, 4] == pytest.approx(1.94, abs=0.005)
    assert at[0.5, 8] == pytest.approx(1.996, abs=0.0005)
    assert theory.outlook(0.8, COSTS).ceiling == pytest.approx(5.0)
    assert theory.outlook(1.0, COSTS).ceiling is None


def test_costs_of_a_round_are_the_drafts_steps_and_the_wider_pass() -> None:
    view = theory.outlook(0.8, COSTS)
    assert view.step == pytest.approx(0.1)
    for depth in view.depths:
        assert depth.passes == pytest.approx(0.1 * depth.depth + (4 + depth.depth) / 4)
        # At the break-even acceptance a round keeps as many tokens as plain in its time.
        if depth.break_even < 1.0:
            there = theory.outlook(depth.break_even, COSTS).depths[depth.depth - 1]
            assert there.speed_up == pytest.approx(1.0, abs=1e-4)
    assert view.best.speed_up == max(depth.speed_up for depth in view.depths)


@pytest.mark.parametrize("acceptance", [0.0, 0.3, 0.7, 0.95, 1.0])
def test_the_explanation_says_which_depth_and_why_not_deeper(acceptance: float) -> None:
    view = theory.outlook(acceptance, COSTS)
    said = list(explain.sentences(view, COSTS))
    best = view.best
    assert f"{best.speed_up:.2f} x plain" in said[0]
    assert said[0].startswith("No depth pays" if best.speed_up <= explain.NEAR else f"Depth {best.depth} is best")
    deeper = [sentence for sentence in said if sentence.startswith("Deeper is not better")]
    assert len(deeper) == (best.depth < theory.DEEPEST)
    if best.break_even < 1.0:
        assert any(f"pays from an acceptance of {best.break_even:.0%}" in sentence for sentence in said)


def test_what_would_help_most_depends_on_what_is_missing() -> None:
    free = Costs(dict.fromkeys(range(1, 34), 1.0), dict.fromkeys(range(1, 34), 1e-06), measured=True)
    dear = Costs(dict.fromkeys(range(1, 34), 1.0), dict.fromkeys(range(1, 34), 0.6), measured=True)
    *_, lever = explain.sentences(theory.outlook(0.5, free, 8), free)
    assert lever.startswith("What helps most here: a better draft")
    *_, lever = explain.sentences(theory.outlook(0.9, dear, 8), dear)
    assert lever.startswith("What helps most here: a draft at half the cost")
    *_, lever = explain.sentences(theory.outlook(0.95, free, 16), free)
    assert lever.startswith("What helps most here: a better depth")
    *_, lever = explain.sentences(theory.outlook(0.05, dear, 8), dear)
    assert lever.startswith("Neither")


# ---- charts


def test_charts_show_every_depth_and_what_was_measured() -> None:
    view = theory.outlook(0.8, COSTS)
    gain = plots.gain_chart(view, {3: 1.23})
    lines = list(plots.text(gain))
    assert len(lines) == 1 + len(view.depths)
    assert "80% acceptance" in lines[0]
    assert "measured 1.23" in lines[3]
    longest = max(lines[1:], key=lambda line: line.count("█"))
    assert longest.split()[0] == str(view.best.depth)


def test_the_picture_is_an_svg_with_its_points_inside() -> None:
    charts = [
        plots.cost_chart(COSTS.target, COSTS.draft),
        plots.gain_chart(theory.outlook(0.8, COSTS), {3: 1.2, 8: 0.9}),
    ]
    root = ElementTree.fromstring(plots.svg(charts))
    width, height = (float(root.attrib[name]) for name in ("width", "height"))
    space = "{http://www.w3.org/2000/svg}"
    assert len(root.findall(f".//{space}polyline")) == 2
    circles = root.findall(f".//{space}circle")
    assert len(circles) == 2
    assert all(0 < float(c.attrib["cx"]) < width and 0 < float(c.attrib["cy"]) < height for c in circles)
    # Better is higher.
    assert float(circles[0].attrib["cy"]) < float(circles[1].attrib["cy"])


def test_a_title_cannot_break_the_picture() -> None:
    chart = plots.Chart("a < b & c", "x", "y", ((1.0, 1.0), (2.0, 4.0)))
    ElementTree.fromstring(plots.svg([chart]))


# ---- width noise


def test_noise_of_rows_that_agree_and_of_rows_that_do_not() -> None:
    rows = np.log(np.array([[0.5, 0.3, 0.2], [0.6, 0.2, 0.2]], np.float32))
    assert width.compare(rows, rows.copy(), 4, 100) == width.Noise(4, 100, 2, 2, 0.0, 0.0, 0.0, 0)
    other = np.log(np.array([[0.5, 0.3, 0.2], [0.2, 0.6, 0.2]], np.float32))
    noise = width.compare(rows, other, 4, 100)
    assert (noise.identical, noise.flips, noise.exact) == (1, 1, False)
    assert noise.max_variation == pytest.approx(0.4)
    assert noise.mean_variation == pytest.approx(0.2)
    assert noise.max_difference == pytest.approx(np.log(3.0), rel=1e-5)
    assert width.overall([]).rows == 0


def test_noise_is_measured_at_every_length_that_fits() -> None:
    cache = ScriptedCache(from_table(pair_table(8, seed=1)), 8, n_ctx=500)
    noises = list(width.measure(cache, [i % 8 for i in range(600)]))
    assert {(noise.length, noise.width) for noise in noises} == {(n, w) for n in (100, 400) for w in width.WIDTHS}
    assert width.overall(noises).exact
    assert width.overall(noises).rows == len(noises) * width.ROWS
    assert len(cache.tokens) == 0


# ---- greedy texts


@pytest.mark.parametrize(
    ("written", "place", "gap"),
    [((1, 2, 3), None, 0.0), ((1, 5, 3), 1, 0.2), ((1, 2), 2, 0.3), ((1, 2, 3, 4), 3, 0.3), ((9,), 0, 0.1)],
)
def test_the_first_difference_from_plain(written: Sequence[int], place: int | None, gap: float) -> None:
    text = verify.compare("p", "auto", (1, 2, 3), (0.1, 0.2, 0.3), written)
    assert (text.differs_at, text.gap) == (place, gap)


def test_gaps_are_those_between_the_two_likeliest() -> None:
    cache = verify.Watched(ScriptedCache(lambda _: np.array([0.1, 0.5, 0.15, 0.25]), 4))
    cache.decode([0, 1], 2)
    assert cache.gaps == pytest.approx([np.log(2.0)] * 2)


# ---- the sampled check


def distributions(seed: int) -> tuple[Distribution, Distribution]:
    rng = np.random.default_rng(seed)
    p, q = (rng.dirichlet(np.full(6, 0.7)) for _ in range(2))
    return _sorted(p), _sorted(q)


def _sorted(values: NDArray[np.float64]) -> Distribution:
    order = np.argsort(-values)
    return Distribution(order, values[order])


def places(draws: int, leak: float) -> list[float]:
    """Of tokens drawn from (1 - leak) p + leak q, another p and q each time."""
    rng = np.random.default_rng(5)
    found = []
    for i in range(draws):
        p, q = distributions(i % 50)
        token = (q if rng.random() < leak else p).draw(rng)
        found.append(sampled.place(p, token, q.dense(6)[p.ids] / p.probabilities, rng.random()))
    return found


def test_tokens_drawn_from_the_right_distribution_pass_and_others_do_not() -> None:
    for leak, passes in ((0.0, True), (0.15, False)):
        us = places(4000, leak)
        statistic = sampled.kolmogorov_smirnov(us)
        check = sampled.Sampled("any", len(us), statistic, sampled.kolmogorov_p(statistic, len(us)))
        assert check.passed is passes, check
        assert (statistic < check.detects) is passes


def test_a_token_that_cannot_have_been_drawn_counts_as_the_last() -> None:
    p = Distribution(np.array([3, 1]), np.array([0.7, 0.3]))
    assert sampled.place(p, 2, p.probabilities, 0.5) == 1.0
    assert sampled.place(p, 3, p.probabilities, 0.5) == pytest.approx(0.35)
    assert sampled.place(p, 1, p.probabilities, 0.5) == pytest.approx(0.85)
    # Ties go by id.
    assert sampled.place(p, 1, np.ones(2), 0.5) == pytest.approx(0.15)


@pytest.mark.parametrize("n", [30, 400, 5000])
def test_the_statistic_and_its_distribution_are_scipys(n: int) -> None:
    us = np.random.default_rng(n).random(n) ** 1.1
    reference = stats.kstest(us, "uniform", mode="exact" if n < 1000 else "asymp")
    statistic = sampled.kolmogorov_smirnov(list(us))
    assert statistic == pytest.approx(reference.statistic)
    assert sampled.kolmogorov_p(statistic, n) == pytest.approx(reference.pvalue, rel=0.1, abs=0.01)
    assert sampled.kolmogorov_p(sampled.critical(n), n) == pytest.approx(sampled.ALPHA, rel=0.01)


def test_no_randomness_no_doubt() -> None:
    assert sampled.kolmogorov_p(0.0, 100) == 1.0
    assert SamplingSettings(temperature=1.0) == verify.SAMPLED


@pytest.mark.parametrize("mode", Mode)
def test_where_a_reply_begins_is_known_to_the_look_up_in_every_mode(mode: Mode) -> None:
    ngram, prompt = NgramDrafter(), [1, 2, 3, 4, 1, 2]
    runs.read([ngram], FixedPolicy(Speculation(mode)), prompt)
    assert ngram.offer(prompt, 8).quotes
    own = [*prompt, 7, 8, 9, 7, 8]
    assert not ngram.offer(own, 8).quotes

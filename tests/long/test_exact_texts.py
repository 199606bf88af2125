"""Exact mode with the real demo pair: every drafter and depth, from the beginning and a thousand tokens in.

Some seven minutes on two cores that others use too.
"""

from __future__ import annotations

import pytest

from specchat.engine import exact
from specchat.engine.policy import Mode, Speculation
from specchat.worker import loader
from specchat.worker.protocol import Load, LoadSettings
from tests.conftest import DemoPair
from tests.test_exact import check_texts

EVERY = [
    *(Speculation(Mode.DRAFT, depth) for depth in (1, 2, 3, 4, 5, 6, 8, 12, 16)),
    *(Speculation(Mode.NGRAM, depth) for depth in (1, 3, 7, 15, 32)),
    Speculation(Mode.DRAFT),
    Speculation(Mode.NGRAM),
    Speculation(Mode.AUTO),
]


@pytest.mark.parametrize(("characters", "least"), [(20, 20), (5000, 1000)])
def test_every_drafter_and_depth_gives_plain_decodings_tokens(demo_pair: DemoPair, characters: int, least: int) -> None:
    request = Load(1, demo_pair.target, demo_pair.draft, True, LoadSettings(n_ctx=2048, threads=2, exact=True))
    engine, info = loader.load_engine(request, lambda _stage, _fraction: None, lambda: False)
    try:
        assert info.notices == ()
        check_texts(engine, exact.sample_text()[:characters], least, EVERY, 64)
    finally:
        engine.close()

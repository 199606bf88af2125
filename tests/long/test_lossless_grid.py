"""The full grid of tests/lossless.py, with 200,000 tokens a cell; minutes of work, seeds fixed."""

from __future__ import annotations

import pytest

from tests.lossless import Cell, cells, p_value

DRAWS = 200_000
ALPHA = 1e-4


@pytest.mark.parametrize("cell", cells(), ids=lambda cell: cell.name)
def test_the_full_grid_keeps_the_targets_distribution(cell: Cell) -> None:
    assert p_value(cell, DRAWS) > ALPHA

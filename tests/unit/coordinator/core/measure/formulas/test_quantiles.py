import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from broadside.coordinator.core.measure.formulas.quantiles import column_quantiles, quantiles


@given(
    st.lists(st.floats(0, 1e6), min_size=1, max_size=40),
    st.lists(st.floats(0, 1), min_size=1, max_size=5).map(sorted),
)
def test_quantiles_equal_those_of_numpy(values: list[float], ratios: list[float]) -> None:
    expected = np.quantile(values, ratios)
    assert quantiles(np.array(values), ratios) == pytest.approx(list(expected), rel=1e-5, abs=1e-9)


def test_quantiles_without_samples_are_unknown() -> None:
    assert quantiles(np.array([]), (0.05, 0.5)) == [None, None]


def test_quantiles_between_ranks_are_interpolated() -> None:
    assert quantiles(np.array([30.0, 10.0, 20.0]), (0.25, 0.5, 1.0)) == [15.0, 20.0, 30.0]


def test_column_quantiles_use_the_nearest_rank_of_known_cells() -> None:
    cells = np.array([[4.0, np.nan], [1.0, np.nan], [np.nan, np.nan], [3.0, np.nan]], np.float32)
    low, middle, high = column_quantiles(cells, (0.05, 0.5, 1.0))
    assert (low[0], middle[0], high[0]) == (1.0, 3.0, 4.0)
    assert np.isnan([low[1], middle[1], high[1]]).all()


def test_columns_without_rows_are_unknown() -> None:
    (result,) = column_quantiles(np.empty((0, 2), np.float32), (0.5,))
    assert np.isnan(result).all() and result.shape == (2,)

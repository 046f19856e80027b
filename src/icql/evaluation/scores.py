"""Scores of several training seeds → what a report says about them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypedDict

import numpy as np
from numpy.typing import NDArray

# 97.5 % quantiles of Student's t with ∞, 1, 2, …, 30 degrees of freedom.
_T975 = (
    *(1.9600, 12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281),
    *(2.2010, 2.1788, 2.1604, 2.1448, 2.1314, 2.1199, 2.1098, 2.1009, 2.0930, 2.0860),
    *(2.0796, 2.0739, 2.0687, 2.0639, 2.0595, 2.0555, 2.0518, 2.0484, 2.0452, 2.0423),
)


class Summary(TypedDict):
    """Statistics of n scores, ready for JSON."""

    mean: float
    std: float
    iqm: float
    ci95: list[float] | None
    n: int


def summary(scores: Sequence[float] | NDArray[np.floating]) -> Summary:
    """Summarise one score per training seed.

    Returns:
        `mean`; `std`, of the population as papers report it; `iqm`, the mean of the middle half;
        `ci95`, Student's t interval of the mean, which stays honest for three or five seeds where
        a bootstrap is too narrow, and None for a single seed; `n`.
    """
    values = np.sort(np.asarray(scores, np.float64).ravel())
    n = len(values)
    if n == 0 or not np.isfinite(values).all():
        raise ValueError(f"scores must be finite and at least one, got {values.tolist()}")
    mean, cut, ci95 = float(values.mean()), n // 4, None
    iqm = float(values[cut : n - cut].mean())
    if n > 1:
        half = t975(n - 1) * float(values.std(ddof=1) / np.sqrt(n))
        ci95 = [mean - half, mean + half]
    return Summary(mean=mean, std=float(values.std()), iqm=iqm, ci95=ci95, n=n)


def t975(degrees: int) -> float:
    """97.5 % quantile of Student's t; between 30 degrees of freedom and ∞ linear in 1/degrees."""
    if degrees < len(_T975):
        return _T975[degrees]
    last = len(_T975) - 1
    return _T975[0] + (_T975[last] - _T975[0]) * last / degrees

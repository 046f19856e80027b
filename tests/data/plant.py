"""A made-up plant log as it comes: semicolons, decimal commas, ISO times, words, gaps."""

from __future__ import annotations

import datetime as dt
from pathlib import Path

import numpy as np

HEADER = ("zeit", "schicht", "pressure", "price", "t_in", "t_out", "mode", "running", "valve")
HEADER += ("heater", "profit", "failed")
LEVELS = ("auto", "manual", "off")
MAPPING = """\
observation = ["pressure", "price", "t_in", "t_out", "mode", "running"]
action = ["valve", "heater"]
reward = "profit"
episode = "schicht"
time = "zeit"
terminal = "failed"
categories = ["mode"]
gaps = "hold"
action_bounds = {valve = [0, 100], heater = [0, 5]}
units = {pressure = "Pa", price = "EUR", valve = "%"}
"""


def plant_rows(shifts: int = 6, steps: int = 40, seed: int = 0) -> list[dict[str, str]]:
    """Rows of text with decimal points, without gaps, in order."""
    rng, rows = np.random.default_rng(seed), list[dict[str, str]]()
    start = dt.datetime(2024, 5, 1, tzinfo=dt.timezone(dt.timedelta(hours=2)))
    for shift in range(shifts):
        pressure, warm = 240_000.0 + 5_000 * rng.normal(), 60.0
        for step in range(steps):
            valve, heater = rng.uniform(0, 100), rng.uniform(0, 5)
            price = 0.2 + 0.05 * rng.normal()
            now = start + dt.timedelta(hours=8 * shift, minutes=5 * step)
            cells = (
                now.isoformat(),
                f"shift {shift}",
                f"{pressure:.1f}",
                f"{price:.4f}",
                f"{20 + rng.normal():.2f}",
                f"{warm:.2f}",
                LEVELS[int(rng.integers(3))],
                "ja" if rng.random() < 0.8 else "nein",
                f"{valve:.1f}",
                f"{heater:.3f}",
                f"{price * valve - heater:.3f}",
                "ja" if step == steps - 1 and shift % 2 else "nein",
            )
            rows.append(dict(zip(HEADER, cells, strict=True)))
            pressure += 40 * (valve - 50) + 200 * rng.normal()
            warm = 0.95 * warm + heater + rng.normal()
    return rows


def write_plant(
    path: Path, rows: list[dict[str, str]], *, separator: str = ";", decimal: str = ","
) -> Path:
    """Write rows; the decimal sign is that of the numbers' columns."""
    texts = ("zeit", "schicht", "mode", "running", "failed")
    lines = [separator.join(rows[0])]
    for row in rows:
        cells = (v if k in texts else v.replace(".", decimal) for k, v in row.items())
        lines.append(separator.join(cells))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path

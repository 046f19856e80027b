"""A small heating plant with its operators: a log to learn from, and the truth to check against.

    python examples/plant.py log plant.csv     what the operators did, shift by shift
    python examples/plant.py play runs/plant   the trained policy in the plant, beside operators

Water is heated to a set point and pressed through a network. Every minute the plant pays for power
and for what its customers miss: warmth, and pressure within a band. The operators know the right
direction and act late and roughly; whoever reads the log can do better.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Callable
from typing import Any

import gymnasium
import numpy as np
from numpy.typing import NDArray

MINUTES = 120  # of a shift
SENSORS = ("pressure", "water", "outside", "price", "demand")
UNITS = {"pressure": "Pa", "water": "°C", "outside": "°C", "price": "EUR/kWh", "demand": "%"}
SET_POINTS = ("heater", "pump")
LOW, HIGH = np.array([40.0, 0.0]), np.array([90.0, 100.0])  # °C, %
Vector = NDArray[np.float64]
Control = Callable[[Vector], Vector]


class Plant(gymnasium.Env[Vector, Vector]):
    """Sensors in, set points out, both in the units of the log; the reward is EUR per minute."""

    observation_space = gymnasium.spaces.Box(-np.inf, np.inf, (len(SENSORS),), np.float64)
    action_space = gymnasium.spaces.Box(LOW, HIGH, dtype=np.float64)

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Vector, dict[str, Any]]:
        """A new shift."""
        super().reset(seed=seed)
        draw = self.np_random
        self.minute = 0
        self.pressure = 240_000 + 15_000 * draw.normal()
        self.water = 60 + 6 * draw.normal()
        self.outside = 5 + 6 * draw.normal()
        self.price = 0.2 + 0.08 * abs(draw.normal())
        self.demand = 50 + 15 * draw.normal()
        return self._sensors(), {}

    def step(self, action: Vector) -> tuple[Vector, float, bool, bool, dict[str, Any]]:
        """One minute with these set points."""
        heater, pump = np.clip(action, LOW, HIGH)
        draw = self.np_random
        power = 2.0 * max(heater - self.water, 0) + 0.4 * pump  # kW
        self.water += 0.15 * (heater - self.water) - 0.01 * (self.water - self.outside)
        self.pressure += 250 * (pump - self.demand) + 1_000 * draw.normal()
        self.demand = float(np.clip(self.demand + 2 * draw.normal(), 10, 90))
        cold = max(62 - self.water, 0) / 5
        off = (self.pressure - 240_000) / 10_000
        reward = -self.price * power / 10 - cold**2 - off**2 / 4
        self.minute += 1
        return self._sensors(), float(reward), False, self.minute == MINUTES, {}

    def _sensors(self) -> Vector:
        return np.array([self.pressure, self.water, self.outside, self.price, self.demand])


def operators(rng: np.random.Generator) -> Control:
    """One shift's crew: the right direction, with its own habits and a rough hand."""
    warm, quick, rough = 66 + 5 * rng.normal(), rng.uniform(0.2, 1.2), rng.uniform(4, 14)

    def act(sensors: Vector) -> Vector:
        pressure, _, _, _, demand = sensors
        pump = 50 + quick * (0.5 * (demand - 50) + (240_000 - pressure) / 1_500)
        return np.clip([warm + rough / 2 * rng.normal(), pump + rough * rng.normal()], LOW, HIGH)

    return act


def shift(plant: Plant, act: Control, seed: int) -> list[dict[str, float]]:
    """The rows of one shift."""
    rows, (sensors, _) = list[dict[str, float]](), plant.reset(seed=seed)
    over = False
    while not over:
        action = act(sensors)
        after, reward, _, over, _ = plant.step(action)
        named = zip((*SENSORS, *SET_POINTS), (*sensors, *action), strict=True)
        rows.append({**dict(named), "profit": reward, "shift_ended": float(over)})
        sensors = after
    return rows


def write_log(path: str, shifts: int, seed: int = 0) -> None:
    """What the operators did, as their system writes it down."""
    plant, rng = Plant(), np.random.default_rng(seed)
    with open(path, "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["shift", "minute", *SENSORS, *SET_POINTS, "profit", "shift_ended"])
        for number in range(shifts):
            for minute, row in enumerate(shift(plant, operators(rng), seed=seed + number)):
                digits = {"price": 4, "profit": 4, "pressure": 0, "shift_ended": 0}
                cells = [f"{value:.{digits.get(name, 2)}f}" for name, value in row.items()]
                writer.writerow([number, minute, *cells])


def play_shifts(
    crew: Callable[[], Control], shifts: int, seed: int = 10_000
) -> list[list[dict[str, float]]]:
    """New shifts, the same ones for everybody, with a new crew in each."""
    plant = Plant()
    return [shift(plant, crew(), seed + number) for number in range(shifts)]


def draw(played: dict[str, list[list[dict[str, float]]]], path: str) -> None:
    """The pressure in one shift, and the profit of each."""
    import matplotlib.pyplot as plt

    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3), layout="constrained")
    for name, shifts in played.items():
        left.plot([row["pressure"] / 1_000 for row in shifts[0]], label=name)
        profits = [np.mean([row["profit"] for row in rows]) for rows in shifts]
        right.plot(np.sort(profits), np.linspace(0, 1, len(profits)), marker=".", label=name)
    left.axhline(240, color="grey", linestyle="--", label="wanted")
    left.set(xlabel="minute of a shift", ylabel="pressure (kPa)")
    right.set(xlabel="profit of a shift (EUR per minute)", ylabel="share of shifts below")
    left.legend()
    right.legend()
    figure.savefig(path, dpi=120)


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    log = commands.add_parser("log", help="write what the operators did")
    log.add_argument("path")
    log.add_argument("--shifts", type=int, default=60)
    play = commands.add_parser("play", help="play a trained policy in the plant")
    play.add_argument("run")
    play.add_argument("--shifts", type=int, default=20)
    play.add_argument("--out", help="draw the first of these shifts, and the profit of all")
    given = parser.parse_args()
    if given.command == "log":
        write_log(given.path, given.shifts)
        return
    import icql

    policy, rng = icql.load_policy(given.run), np.random.default_rng(1)
    crews = {"operators": lambda: operators(rng), "policy": lambda: policy.act}
    played = {name: play_shifts(crew, given.shifts) for name, crew in crews.items()}
    for name, rows in played.items():
        mean = np.mean([row["profit"] for shift in rows for row in shift])
        print(f"{name:10s} {mean:7.2f} EUR per minute, mean of {given.shifts} new shifts")
    if given.out:
        draw(played, given.out)


if __name__ == "__main__":
    main()

"""DT: Decision Transformer, which predicts actions from the return that is asked for.

Chen et al. 2021; decision-transformer/gym. On windows of K steps of the data,
    min E ‖a_t − π(R̂_{≤t}, s_{≤t}, a_{<t})‖²,  R̂_t = Σ_{t' ≥ t} r_t'
with a causal Transformer π (:mod:`icql.nn.transformer`). It acts by asking for `target_return` and
taking off what it was paid. Rewards of steps that are no transitions (the last of a truncated
episode) are in no return-to-go. States are standardised and weights start as in the original.
Difference from it: one target return per run rather than two.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import equinox as eqx
import optax
from jaxtyping import Array, Float, PRNGKeyArray

from icql.algos.base import Algorithm, Batch, Metrics, Needs, Window
from icql.algos.optimise import Trained, adamw, descend, start
from icql.losses import Number
from icql.nn.mlp import in_precision
from icql.nn.policies import first_action
from icql.nn.transformer import DecisionTransformer, Goal, History, Trajectory
from icql.settings.algorithms import DTSettings

T = TypeVar("T", bound=DTSettings)


class DTPolicy(eqx.Module):
    """Asks for a return and acts by the last K steps."""

    model: DecisionTransformer
    goal: Goal
    length: int = eqx.field(static=True)

    def __call__(self, s: Float[Array, "... obs"]) -> Float[Array, "... act"]:
        """The first action of an episode that begins in s."""
        return first_action(self, s)

    def start(self, rows: int) -> History:
        """No history."""
        return History.empty(rows, self.length, *self.model.dimensions)

    def step(self, carry: History, s: Array, rewards: Array, fresh: Array) -> tuple[Array, History]:
        """The action of the step that now begins."""
        history = carry.saw(s, rewards, fresh, self.goal)
        action = self.predict(history.steps)
        return action, history.did(action)

    def predict(self, steps: Trajectory) -> Float[Array, "rows act"]:
        """The action of the newest step."""
        return self.model(steps)[:, -1]


class DTState(eqx.Module):
    """Everything that training changes."""

    pi: Trained[DecisionTransformer]


@dataclass(frozen=True)
class SequenceLearner(Algorithm[T]):
    """What DT and RA-DT share besides their updates: windows, Transformers and their optimiser."""

    @property
    def needs(self) -> Needs:
        """Windows of K steps."""
        return Needs("sequences", length=self.settings.length)

    @property
    def remedies(self) -> tuple[str, ...]:
        """Smaller steps; rewards keep their size here."""
        return ("lower --learning-rate", "lower --gradient-clip", "raise --warmup")

    @property
    def goal(self) -> Goal:
        """What the policy asks for."""
        s = self.settings
        return Goal(s.target_return, s.return_scale, s.running_rewards)

    def fresh(self, key: PRNGKeyArray, *, cross: bool = False) -> Trained[DecisionTransformer]:
        """A Transformer with its optimiser, with cross-attention where asked for."""
        s, spec = self.settings, self.spec
        model = DecisionTransformer(
            spec.observation_dim,
            spec.action_dim,
            width=s.width,
            layers=s.layers,
            heads=s.heads,
            timesteps=s.timesteps,
            rate=s.dropout,
            cross=cross,
            key=key,
        )
        return start(in_precision(model, spec.precision), self.optimiser())

    def optimiser(self) -> optax.GradientTransformation:
        """AdamW with warm-up and clipping."""
        s = self.settings
        return adamw(
            s.learning_rate,
            weight_decay=s.weight_decay,
            clip=s.gradient_clip,
            warmup=s.warmup,
            cosine_steps=self.spec.steps if s.cosine else None,
        )


@dataclass(frozen=True)
class DT(SequenceLearner[DTSettings]):
    """(settings, spec) → init → update → policy (see :mod:`icql.algos.base`)."""

    def init(self, key: PRNGKeyArray) -> DTState:
        """Return a fresh Transformer."""
        return DTState(self.fresh(key))

    def update(self, state: DTState, batch: Batch, key: PRNGKeyArray) -> tuple[DTState, Metrics]:
        """One step on ‖a_t − π(…)‖² over the valid steps of the windows."""
        assert batch.window is not None
        trajectory = trajectory_of(batch.window, self.settings.return_scale)

        def loss(pi: DecisionTransformer) -> tuple[Array, None]:
            return action_loss(pi(trajectory, key=key), trajectory), None

        pi, value, _ = descend(state.pi, self.optimiser(), loss)
        return DTState(pi), {"policy_loss": value}

    def policy(self, state: DTState) -> DTPolicy:
        """Return the policy as trained so far."""
        model = in_precision(state.pi.model, "float32")
        return DTPolicy(model, self.goal, self.settings.length)


def action_loss(predicted: Float[Array, "b k act"], trajectory: Trajectory) -> Float[Array, ""]:
    """Mean squared error of the actions over valid steps and action dimensions."""
    error = ((predicted - trajectory.a) ** 2).mean(-1)
    valid = trajectory.valid.astype(error.dtype)
    return (error * valid).sum() / valid.sum()


def trajectory_of(window: Window, scale: Number) -> Trajectory:
    """What the network sees of a window: returns-to-go divided by `scale`."""
    steps = window.steps
    return Trajectory(window.to_go / scale, steps.s, steps.a, window.timestep, window.valid)

"""Snapshots of SAC: its policy, and its critics as the Q oracle of the paper's analysis."""

from __future__ import annotations

from pathlib import Path

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float

from icql.algos.base import Spec
from icql.algos.sac import SAC, SACState
from icql.errors import UserError
from icql.nn.critics import Critics
from icql.nn.mlp import MLP, in_precision
from icql.nn.policies import TanhGaussianPolicy
from icql.settings.algorithms import SACSettings
from icql.weights import load_arrays, load_weights


class Snapshot(eqx.Module):
    """What is kept of SAC at one moment."""

    policy: TanhGaussianPolicy
    critics: Critics
    temperature: Float[Array, " 1"]  # α; the values below are soft: they hold α times the entropy

    @staticmethod
    def of(state: SACState) -> Snapshot:
        """Return the part of a state that is kept."""
        temperature = jnp.exp(state.log_temperature.model)[None]
        return Snapshot(*in_precision((state.pi.model, state.q.model), "float32"), temperature)

    @property
    def observation_dim(self) -> int:
        """How many numbers it is shown."""
        net = self.policy.net
        assert isinstance(net, MLP)  # SAC learns with one
        return int(net.layers[0].weight.shape[0])

    def q(self, s: Float[Array, "... obs"], a: Float[Array, "... act"]) -> Float[Array, "..."]:
        """min_i Q_i(s, a), the value that SAC's own actor is trained on."""
        return self.critics.at(s)(a).min(0)


def sac_oracle(path: str | Path, *, of: str | None = None) -> Snapshot:
    """Read a snapshot; `sac_oracle(path).q(s, a)` is the Q oracle, `.policy(s)` its policy.

    The sizes of the networks are read from the file. `of` says whose it has to be.
    """
    path = Path(path)
    arrays = load_arrays(path, of=of)
    names = (f"policy.net.layers.{i}.weight" for i in range(len(arrays)))
    shapes = [arrays[name].shape for name in names if name in arrays]
    if not shapes or any(len(shape) != 2 for shape in shapes):  # those of a run are stacked by seed
        raise UserError(
            "holds no SAC policy.",
            where=str(path),
            fix="Give a snapshot that icql data collect keeps beside its data.",
        )
    hidden = tuple(outputs for _, outputs in shapes[:-1])
    spec = Spec(shapes[0][0], shapes[-1][1] // 2, 0)
    like = Snapshot.of(SAC(SACSettings(hidden=hidden), spec).init(jax.random.key(0)))
    return load_weights(path, like)

"""Critics: global networks and local in-context estimators behind one face.

`critics(s, a, context)` gives one value per critic and state. `critics.at(s, context)` returns the
value function *at those states*, to be called with as many actions as wanted: a local critic infers
its weights from the context Ω_s once, inside `at`. A global critic ignores the context. Any
critic-based algorithm therefore becomes its ICQL variant by one setting.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import equinox as eqx
import jax
import jax.numpy as jnp
from jaxtyping import Array, Float, PRNGKeyArray

from icql.errors import UserError
from icql.nn import backend
from icql.nn.in_context import InContextModule, LinearTransformer
from icql.nn.initialisation import network_init, orthogonal_net
from icql.nn.mlp import MLP, Activation, normalise
from icql.nn.ridge import Ridge
from icql.settings.shared import Init, LocalSettings, Normalise


class GlobalCritic(eqx.Module):
    """One network for all states: the ordinary Q(s, a) or, without actions, V(s)."""

    net: MLP

    def read(self, context: Any, s: Array, *, key: PRNGKeyArray | None, prior: Any = None) -> None:
        """Read nothing: a global critic has no context."""

    def value(
        self, memory: None, s: Array, a: Array | None, *, key: PRNGKeyArray | None
    ) -> Float[Array, "..."]:
        """Q(s, a), or V(s) where `a` is None."""
        return self.net(pair(s, a), key=key)[..., 0]

    def once(
        self,
        context: Any,
        s: Array,
        a: Array | None,
        *,
        key: PRNGKeyArray | None,
        prior: Any = None,
    ) -> Float[Array, "... batch"]:
        """Q(s, a): there is nothing to read first."""
        return self.value(None, s, a, key=key)


class LocalCritic(eqx.Module):
    """Features φ and an in-context module: Q̂(s, a | Ω_s), or V̂(s | Ω_s) without actions."""

    features: MLP
    module: InContextModule | Ridge
    discount: float = eqx.field(static=True)
    with_actions: bool = eqx.field(static=True)
    context_dropout: bool = eqx.field(static=True)
    normalise: Normalise = eqx.field(static=True)
    kernel: float = eqx.field(static=True)

    def phi(self, pairs: Array, *, key: PRNGKeyArray | None) -> Float[Array, "... d"]:
        """φ of pairs (s, a), normalised where the settings ask for it."""
        return normalised(self.features(pairs, key=key), self.normalise)

    def read(
        self, context: Any, s: Array, *, key: PRNGKeyArray | None, prior: LocalCritic | None = None
    ) -> Array:
        """Infer from the context Ω_s what the module needs (the local weights w for `linear`).

        `prior` is the target critic that a ridge takes the context's targets from: itself, where
        none is given.
        """
        if isinstance(self.module, Ridge):
            pairs = pair(context.s, context.a if self.with_actions else None)
            y = (self if prior is None else prior).targets(context)
            phi = self.phi(pairs, key=self._context_key(key))
            return self.module.fit(*self.weighed(context, s, phi, y))
        return self.module.read(*self.context_features(context, s, key), self.discount)

    def weighed(self, context: Any, s: Array, *rows: Array) -> list[Array]:
        """What belongs to each row of Ω_s, times √(its weight by the kernel).

        TD and ridge regression add up products of two of these, so that each row counts by its
        weight, of mean 1 in every context.
        """
        if not self.kernel:
            return list(rows)
        squares = ((context.s - s[..., None, :]) ** 2).sum(-1)
        typical = jnp.maximum(squares.mean(-1, keepdims=True), 1e-12)
        weights = jnp.exp(-self.kernel * squares / typical)
        roots = jnp.sqrt(weights / weights.mean(-1, keepdims=True))
        return [x * roots.reshape(roots.shape + (1,) * (x.ndim - roots.ndim)) for x in rows]

    def value(
        self, memory: Array, s: Array, a: Array | None, *, key: PRNGKeyArray | None
    ) -> Float[Array, "..."]:
        """Q̂(s, a | Ω) for query features φ(s, a)."""
        return self.module.answer(memory, self.phi(pair(s, a), key=key))

    def once(
        self,
        context: Any,
        s: Array,
        a: Array | None,
        *,
        key: PRNGKeyArray | None,
        prior: LocalCritic | None = None,
    ) -> Float[Array, "... batch"]:
        """Q̂(s, a | Ω), on a GPU with context and queries in one pass through φ."""
        apart = key is not None and not self.context_dropout  # the two are treated differently
        if apart or isinstance(self.module, Ridge) or not backend.context_with_query():
            first, second = (None, None) if key is None else jax.random.split(key)
            return self.value(self.read(context, s, key=first, prior=prior), s, a, key=second)
        pairs, query = self.context_pairs(context), pair(s, a)
        rows = [x.reshape(-1, x.shape[-1]) for x in (pairs, query)]
        features = self.phi(jnp.concatenate(rows), key=key)
        phi, phi_next = features[: len(rows[0])].reshape(*pairs.shape[:-1], -1)
        phi, phi_next, r = self.weighed(context, s, phi, phi_next, context.r)
        memory = self.module.read(phi, phi_next, r, context.mask, self.discount)
        return self.module.answer(memory, features[len(rows[0]) :].reshape(*query.shape[:-1], -1))

    def context_features(
        self, context: Any, s: Array, key: PRNGKeyArray | None = None
    ) -> tuple[Array, Array, Array, Array]:
        """(Φ, Φ', r, m) of a context: both feature matrices in one pass through the network."""
        phi, phi_next = self.phi(self.context_pairs(context), key=self._context_key(key))
        phi, phi_next, r = self.weighed(context, s, phi, phi_next, context.r)
        return phi, phi_next, r, context.mask

    def targets(self, context: Any) -> Float[Array, "batch n"]:
        """y_j = r_j + γ m_j φ(s'_j, a'_j)ᵀ w₀ of a context, by this critic's prior; no gradient."""
        assert isinstance(self.module, Ridge)
        pairs = pair(context.s_next, context.a_next if self.with_actions else None)
        values = self.module.prior(self.phi(pairs, key=None))
        return jax.lax.stop_gradient(context.r + self.discount * context.mask * values)

    def _context_key(self, key: PRNGKeyArray | None) -> PRNGKeyArray | None:
        return key if self.context_dropout else None

    def context_pairs(self, context: Any) -> Float[Array, "2 batch n inputs"]:
        """(s_i, a_i) and (s'_i, a'_i) of a context."""
        a, a_next = (context.a, context.a_next) if self.with_actions else (None, None)
        return jnp.stack([pair(context.s, a), pair(context.s_next, a_next)])


Critic = GlobalCritic | LocalCritic


class Critics(eqx.Module):
    """An ensemble of critics of one kind; its parameters carry a leading axis of `count`."""

    members: Critic
    count: int = eqx.field(static=True)

    def __call__(
        self,
        s: Float[Array, "batch obs"],
        a: Float[Array, "... batch act"] | None = None,
        context: Any = None,
        *,
        key: PRNGKeyArray | None = None,
        prior: Critics | None = None,
    ) -> Float[Array, "count ... batch"]:
        """Each critic's value of one or several actions per state (V without actions).

        `prior`: the target critics, for :mod:`icql.nn.ridge` (themselves, where not given).
        """
        self._check(context)
        keys = None if key is None else jax.random.split(key, self.count)
        priors = None if prior is None else prior.members
        return _each(
            lambda m, k, p: m.once(context, s, a, key=k, prior=p), self.members, keys, priors
        )

    def at(
        self,
        s: Array,
        context: Any = None,
        *,
        key: PRNGKeyArray | None = None,
        prior: Critics | None = None,
    ) -> ValueAt:
        """The value function at states `s`, inferred from their contexts where local."""
        self._check(context)
        keys = None if key is None else jax.random.split(jax.random.fold_in(key, 0), self.count)
        priors = None if prior is None else prior.members
        memory = _each(
            lambda m, k, p: m.read(context, s, key=k, prior=p), self.members, keys, priors
        )
        return ValueAt(self.members, memory, s, self.count)

    @property
    def td(self) -> LinearTransformer | None:
        """The layers of TD, where the critics are local and linear."""
        module = self.members.module if isinstance(self.members, LocalCritic) else None
        return module if isinstance(module, LinearTransformer) else None

    @property
    def ridge(self) -> Float[Array, " count"] | None:
        """λ of each critic, where they are local and by ridge regression."""
        module = self.members.module if isinstance(self.members, LocalCritic) else None
        return module.ridge if isinstance(module, Ridge) else None

    def max_preconditioner(self) -> Float[Array, ""]:
        """max |C|, the first thing to grow when a local critic diverges (0 where there is none)."""
        return jnp.zeros(()) if self.td is None else jnp.abs(self.td.preconditioners).max()

    def trace(self, s: Array, a: Array | None, context: Any) -> Float[Array, "layers batch"]:
        """Q̂_ℓ(s, a | Ω) of the first critic after every layer ℓ = 1 … L."""
        if self.td is None:
            raise UserError("only the linear module has a per-layer trace.", where="local.module")
        self._check(context)
        first: Any = jax.tree.map(lambda x: x[0] if eqx.is_array(x) else x, self.members)
        weights = first.module.trace(*first.context_features(context, s), first.discount)
        return (weights * first.phi(pair(s, a), key=None)).sum(-1)

    def _check(self, context: Any) -> None:
        if isinstance(self.members, LocalCritic) and context is None:
            raise ValueError("a local critic needs the contexts of its states")


class ValueAt(eqx.Module):
    """Values at fixed states: call with actions for Q, without for V. Returns (count, ...)."""

    members: Critic
    memory: Any
    s: Array
    count: int = eqx.field(static=True)

    def __call__(
        self, a: Array | None = None, *, key: PRNGKeyArray | None = None
    ) -> Float[Array, "count ..."]:
        """Each critic's value; `a` may have extra leading axes for several actions per state."""
        keys = None if key is None else jax.random.split(jax.random.fold_in(key, 1), self.count)
        return _each(
            lambda m, memory, k: m.value(memory, self.s, a, key=k), self.members, self.memory, keys
        )


def global_critics(
    inputs: int,
    hidden: Sequence[int],
    count: int,
    *,
    key: PRNGKeyArray,
    activation: Activation = "relu",
    layer_norm: bool = False,
    init: Init = "orthogonal",
) -> Critics:
    """Make `count` fresh critics, one network each, of `inputs` = dim(s) + dim(a), or dim(s)."""
    how = network_init(init, "critic", gain=1.0)

    def make(key: PRNGKeyArray) -> GlobalCritic:
        net = MLP(
            inputs, hidden, 1, activation=activation, layer_norm=layer_norm, init=how, key=key
        )
        return GlobalCritic(net)

    return Critics(eqx.filter_vmap(make)(jax.random.split(key, count)), count)


def local_critics(
    observation_dim: int,
    action_dim: int,
    hidden: Sequence[int],
    count: int,
    *,
    local: LocalSettings,
    context: int,
    discount: float,
    key: PRNGKeyArray,
    activation: Activation = "relu",
) -> Critics:
    """Make `count` fresh critics of contexts of that length; `action_dim` 0 makes V, not Q."""

    def make(key: PRNGKeyArray) -> LocalCritic:
        feature_key, module_key = jax.random.split(key)
        features = MLP(
            observation_dim + action_dim,
            hidden,
            local.features,
            activation=activation,
            final_activation="tanh",
            init=orthogonal_net(1.0),
            layer_norm=True,
            dropout=local.dropout,
            key=feature_key,
        )
        module = make_module(local, context, module_key)
        static = (discount, action_dim > 0, local.context_dropout, local.normalise, local.kernel)
        return LocalCritic(features, module, *static)

    return Critics(eqx.filter_vmap(make)(jax.random.split(key, count)), count)


def make_module(local: LocalSettings, context: int, key: PRNGKeyArray) -> InContextModule | Ridge:
    """Return the in-context module that the settings name."""
    if local.module == "linear":
        return LinearTransformer(
            local.layers,
            local.features,
            local.c_scale,
            local.form,
            initial=local.initial,
            c_start=local.c_start,
            spectral_bound=local.spectral_bound,
            key=key,
        )
    if local.module == "ridge":
        return Ridge(local.features, local.ridge)
    from icql.nn.ablations import LinearMLP, SoftmaxTransformer

    if local.module == "mlp":
        return LinearMLP(context, local.features, 256, key=key)
    return SoftmaxTransformer(local.features, layers=local.blocks, width=128, heads=4, key=key)


def normalised(phi: Float[Array, "... d"], how: Normalise) -> Float[Array, "... d"]:
    """φ, φ / ‖φ‖ or (φ − mean φ) / std φ."""
    match how:
        case "unit":
            return phi * jax.lax.rsqrt((phi**2).sum(-1, keepdims=True) + 1e-6)
        case "layer":
            d = phi.shape[-1]
            return normalise(phi, jnp.ones(d, phi.dtype), jnp.zeros(d, phi.dtype))
        case "none":
            return phi


def pair(s: Array, a: Array | None) -> Array:
    """(s, a) as one vector, or s alone; states are repeated for actions with extra leading axes."""
    if a is None:
        return s
    return jnp.concatenate([jnp.broadcast_to(s, (*a.shape[:-1], s.shape[-1])), a], -1)


def _each(function: Callable[..., Any], members: Critic, *rest: Any) -> Any:
    """Apply `function` to every critic of an ensemble with its own slice of the rest."""
    if backend.critics_at_once():
        return eqx.filter_vmap(function, in_axes=eqx.if_array(0))(members, *rest)
    count = len(jax.tree.leaves(eqx.filter(members, eqx.is_array))[0])

    def one(i: int) -> Any:
        return function(*jax.tree.map(lambda x: x[i] if eqx.is_array(x) else x, (members, *rest)))

    return jax.tree.map(lambda *values: jnp.stack(values), *map(one, range(count)))

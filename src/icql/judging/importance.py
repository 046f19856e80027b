"""Importance sampling: logged episodes, weighed by how likely the policy was to act so.

The log was not made by the policy π, which moreover is deterministic: no logged action is exactly
its own. It is therefore judged with the behaviour model's spread around it,

    b(a|s) = N(μ(s), σ(s)²),   π̃(a|s) = N(π(s), σ(s)²),   ρ_t = Π_{i ≤ t} π̃(a_i|s_i) / b(a_i|s_i),

with ρ clipped at `LIMIT`. Logged choices can be its own: there π̃(a|s) = 1 where a = π(s) and else
0, so that an episode counts until it first does something else.

Weighted, per decision (Precup et al. 2000), w_t = ρ_t / Σ_e ρ_t:

    V = Σ_t γ^t Σ_e w_t r_t

Doubly robust (Jiang & Li 2016, weighted: Thomas & Brunskill 2016), with Q and V of fitted Q
evaluation, which is right where either Q or b is:

    V = mean_e V(s_0) + Σ_t γ^t Σ_e w_t [r_t + γ m V(s_{t+1}) − Q(s_t, a_t)]

With all weights alike it is fitted Q evaluation, corrected by its errors on logged steps: where Q
misses what the log knows, that miss is taken away (the behaviour's value is then the logged one,
whatever Q says); what Q gets wrong where only π goes stays.

The effective sample size (Σ ρ_T)² / Σ ρ_T² of the whole episodes' weights says how many episodes
are left: over a hundred steps it is mostly one (of choices none), and then neither number says
anything. It is of the weights before they are clipped: clipped ones are all alike, however few
episodes are left. A step that no episode has a weight at adds nothing to either number.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from icql.judging.log import Doubles, Log

LIMIT = 100.0  # of ρ
FLOOR = -600.0  # of log ρ, beside the largest of a step: no zero to divide by


@dataclass(frozen=True)
class Weighted:
    """Weights of every episode and step, and what they weigh."""

    weights: Doubles  # (E, T + 1) ρ_t; after the end of an episode its last
    rewards: Doubles  # (E, T + 1) γ^t r_t; where an episode is cut, γ^T V(s_T) follows
    corrections: Doubles  # (E, T + 1) γ^t [r_t + γ m V(s_{t+1}) − Q(s_t, a_t)]
    starts: Doubles  # (E,) V(s_0)
    whole: Doubles  # (E,) ρ_T of the whole episode, not clipped

    def per_decision(self, counts: Doubles) -> Doubles:
        """Weighted importance sampling (b,) over episodes that count so often (b, E)."""
        return self._weighted(self.rewards, counts)

    def doubly_robust(self, counts: Doubles) -> Doubles:
        """Weighted doubly robust estimate (b,)."""
        return counts @ self.starts / counts.sum(1) + self._weighted(self.corrections, counts)

    @property
    def corrected(self) -> Doubles:
        """What is doubly robust with all weights alike, of each episode (E,)."""
        return self.starts + self.corrections.sum(1)

    @property
    def effective_sample_size(self) -> float:
        """How many episodes the weights of whole episodes leave."""
        rho = self.whole
        return float(rho.sum() ** 2 / np.square(rho).sum()) if rho.any() else 0.0

    def _weighted(self, values: Doubles, counts: Doubles) -> Doubles:
        below = np.maximum(counts @ self.weights, np.finfo(np.float64).tiny)
        return np.asarray((counts @ (self.weights * values) / below).sum(1))


def log_ratios(actions: Doubles, policy: Doubles, mean: Doubles, log_std: Doubles) -> Doubles:
    """log π̃(a|s) − log b(a|s) of every row (N,); all are (N, act)."""
    precision = np.exp(-2.0 * log_std)
    away = np.square(actions - mean) - np.square(actions - policy)
    return np.asarray(0.5 * (precision * away).sum(-1), np.float64)


def choice_log_ratios(actions: Doubles, policy: Doubles, log_probs: Doubles) -> Doubles:
    """log π(a|s) − log b(a|s) of every row (N,); one-hot rows (N, choices), log b of each choice.

    The policy always takes its choice: where another was logged, −∞.
    """
    logged, own = actions.argmax(-1), policy.argmax(-1)
    log_b = np.take_along_axis(log_probs, logged[:, None], -1)[:, 0]
    return np.where(logged == own, -log_b, -np.inf)


def weigh(
    log: Log, ratios: Doubles, q: Doubles, v: Doubles, v_next: Doubles, discount: float
) -> Weighted:
    """Weights and what they weigh, from rows (N,): log ratios, Q(s, a), V(s) and V(s')."""
    rewards, ahead = log.data.rewards.astype(np.float64), discount * log.data.mask
    sums = np.cumsum(log.table(ratios), 1)
    whole = _proportions(sums[:, -1])
    weights = _proportions(np.minimum(sums, np.log(LIMIT)))
    factors = discount ** np.arange(sums.shape[1])
    paid = log.table(rewards)
    episodes = np.arange(len(log))
    paid[episodes, log.steps] = log.data.mask[log.last] * v_next[log.last]
    corrections = log.table(rewards + ahead * v_next - q)
    return Weighted(weights, paid * factors, corrections * factors, v[log.first], whole)


def _proportions(sums: Doubles) -> Doubles:
    """Weights from their logarithms (E, …), beside the largest of a step: proportions count."""
    largest = sums.max(0)
    away = sums - np.where(np.isfinite(largest), largest, 0)
    return np.where(np.isfinite(away), np.exp(np.maximum(away, FLOOR)), 0.0)

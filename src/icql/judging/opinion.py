"""All that the log says about some policies: every method, side by side."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from icql.errors import UserError
from icql.judging.bootstrap import Interval, draws, interval, replicated_means
from icql.judging.cloned import BehaviourModel, fit_behaviour
from icql.judging.fitting import Drawn
from icql.judging.fqe import QFunctions, fit_q
from icql.judging.importance import weigh
from icql.judging.local import Graph
from icql.judging.log import Doubles, Log, Rows
from icql.judging.support import Surroundings, explained
from icql.judging.verdict import LEAST_SAMPLE, Evidence
from icql.progress import Display
from icql.settings.judge import JudgeSettings

Act = Callable[[NDArray[np.float32]], NDArray[np.float32]]  # (N, obs) → (M, N, act), M policies
HELD_ROWS = 20_000  # held-out rows that errors are measured on
WEIGHTED = ("importance", "doubly_robust")
LATE = 0.75  # of the updates: what moves after them is said


@dataclass(frozen=True)
class Opinion:
    """What the log says about one candidate: a policy, or several that are meant as one."""

    label: str
    settings: JudgeSettings
    values: Doubles  # (S, E) of fitted Q evaluation at start states, mean over the policies
    corrected: Doubles  # (S, E) the same with its errors on logged steps
    per_policy: tuple[float, ...]  # estimates
    returns: Doubles  # (E,) discounted, logged
    possible: Interval
    miss: float  # of fitted Q evaluation on the behaviour, whose value is known
    moved: float
    held_out: dict[str, Any]
    far: float | None
    far_logged: float | None
    methods: dict[str, Any]  # importance, doubly_robust, corrected, local_critic
    sample_size: float | None

    @property
    def estimate(self) -> float:
        """The mean over networks and episodes."""
        return float(self.values.mean())

    @property
    def interval(self) -> Interval | None:
        """Of the estimate."""
        return self._interval(self.values, self.corrected)

    @property
    def residual(self) -> float:
        """By how much Q breaks its own equation along the logged episodes, discounted."""
        return float(self.corrected.mean()) - self.estimate

    def difference(self, other: Opinion | None = None) -> tuple[float, Interval | None]:
        """Estimate minus logged returns, or another's estimate, over the same episodes."""
        if other is None:
            values, corrected = self.values - self.returns, self.corrected - self.returns
        else:
            values, corrected = self.values - other.values, self.corrected - other.corrected
        return float(values.mean()), self._interval(values, corrected)

    def evidence(self, other: Opinion | None = None) -> Evidence:
        """What the verdict looks at."""
        difference, around = self.difference(other)
        listened = {
            method: tuple(found["difference_interval"])
            for method, found in self.methods.items()
            if other is None
            and method in ("importance", "doubly_robust")
            and (self.sample_size or 0) >= LEAST_SAMPLE
            and found["difference_interval"] is not None
        }
        return Evidence(
            episodes=len(self.returns),
            difference=difference,
            interval=around,
            estimates=tuple(self.values.mean(1).tolist()),
            possible=self.possible,
            explained=self.held_out["explained"],
            outside=self.held_out["outside"],
            moved=self.moved - (0.0 if other is None else other.moved),
            far=self.far,
            others=listened,
        )

    def _interval(self, values: Doubles, corrected: Doubles) -> Interval | None:
        """What holds the intervals of both estimates, widened by the miss on the behaviour.

        Each is of episodes drawn again and of the spread of its networks. Q may break its own
        equation on logged steps: which of the two is then nearer to the truth is not known.
        """
        if values.shape[1] < 2 or not (np.isfinite(values).all() and np.isfinite(corrected).all()):
            return None
        seed, found = self.settings.seed, list[Interval]()
        for each in (values, corrected):
            spread = float(each.mean(1).std(ddof=1))
            replicates = replicated_means(each.mean(0), seed)
            around = interval(
                replicates, seed, spread=spread, nets=len(each), widened=abs(self.miss)
            )
            if around is None:
                return None
            found.append(around)
        lows, highs = zip(*found, strict=True)
        return min(lows), max(highs)


def form_opinions(
    log: Log,
    candidates: Sequence[tuple[str, Act]],
    settings: JudgeSettings,
    display: Display,
    *,
    cache_dir: Path | None = None,
) -> list[Opinion]:
    """Ask every method about every candidate; all networks are fitted side by side.

    Raises:
        UserError: a policy's action is not finite.
    """
    fitted_on, held = log.split(settings.held_out, settings.seed)
    acts = [_Acts.of(log, label, act) for label, act in candidates]
    firsts = np.cumsum([0, *(len(a.here) for a in acts)])
    q, late = _evaluate(log, acts, fitted_on, settings, display)
    behaviour = _fit_behaviour(log, fitted_on, settings, display)
    surroundings = Surroundings.of(log, settings.seed)
    graph = None
    if settings.graph:
        with display.work("local critic", 1000) as work:
            told = partial(_tell, work)
            graph = Graph.of(log, settings.discount, cache_dir, told)
    data = log.data
    # where an episode is cut, the behaviour's own value goes on
    tails = q(-1, data.next_states, data.next_actions).mean(0)
    returns = log.returns_to_go(settings.discount, tails)[log.first]
    own = q(-1, data.states[log.first], data.actions[log.first]).mean(0)
    opinions = []
    with display.work("judging", len(acts)) as work:
        for i, one in enumerate(acts):
            policies = range(int(firsts[i]), int(firsts[i + 1]))
            asked = _Asked(log, one, q, policies, settings, returns)
            values = np.stack([asked.start_values(m) for m in range(len(policies))])
            methods, corrected, size = asked.weighted(behaviour)
            if graph is not None:
                methods["local_critic"] = asked.local(graph)
            at = [] if surroundings is None else [a[surroundings.rows] for a in one.here]
            opinions.append(
                Opinion(
                    label=one.label,
                    settings=settings,
                    values=values.mean(0),
                    corrected=corrected,
                    per_policy=tuple(values.mean((1, 2)).tolist()),
                    returns=returns,
                    possible=log.possible(settings.discount),
                    miss=float(own.mean() - returns.mean()),
                    moved=float(values.mean() - np.mean([late[m] for m in policies])),
                    held_out=asked.errors(held),
                    far=None
                    if surroundings is None
                    else float(np.mean([surroundings.far(a) for a in at])),
                    far_logged=None if surroundings is None else surroundings.far_logged,
                    methods=methods,
                    sample_size=size,
                )
            )
            work.update(i + 1)
    return opinions


@dataclass(frozen=True)
class _Acts:
    """What the M policies of a candidate do at every state and next state of the log."""

    label: str
    here: NDArray[np.float32]  # (M, N, act)
    there: NDArray[np.float32]  # (M, N, act)

    @classmethod
    def of(cls, log: Log, label: str, act: Act) -> _Acts:
        found = cls(label, act(log.data.states), act(log.data.next_states))
        if not (np.isfinite(found.here).all() and np.isfinite(found.there).all()):
            raise UserError(
                "the policy's action is not finite.",
                where=label,
                fix="The training has diverged: see its losses in metrics.jsonl.",
            )
        return found


@dataclass(frozen=True)
class _Asked:
    """One candidate, asked about by every method."""

    log: Log
    acts: _Acts
    q: QFunctions
    policies: range  # which of the fitted ones are its
    settings: JudgeSettings
    returns: Doubles

    def start_values(self, m: int) -> Doubles:
        """Q(s_0, π(s_0)) of every network and episode (S, E)."""
        first = self.log.first
        states = self.log.data.states[first]
        return self.q(self.policies[m], states, self.acts.here[m][first])

    def errors(self, held: Rows) -> dict[str, Any]:
        """TD error and action error on held-out episodes.

        The TD error is that of the networks' mean, as the estimate is: what each of them alone
        remembers of noise in its rows says little about the mean.
        """
        rows, s = self.log.rows_of(held), self.settings
        if len(rows) > HELD_ROWS:
            rng = np.random.default_rng([s.seed, 6])
            rows = np.sort(rng.choice(rows, HELD_ROWS, replace=False))
        if not len(rows):
            names = ("td_error", "explained", "outside", "action_error", "action_explained")
            return dict.fromkeys(names)
        data = self.log.data.subset(rows)
        ahead = s.discount * data.mask.astype(np.float64)
        td, share, outside, actions, like = [], [], [], [], []
        for m, policy in enumerate(self.policies):
            beyond = self.q(policy, data.next_states, self.acts.there[m][rows])
            within = self.q.held(beyond)
            y = data.rewards + ahead * within.mean(0)
            outside.append(float((data.mask * (within != beyond)).mean()))
            error = y - self.q(policy, data.states, data.actions).mean(0)
            away = (self.acts.here[m][rows] - data.actions).astype(np.float64)
            td.append(float(np.sqrt(np.square(error).mean())))
            share.append(explained(error, y))
            actions.append(float(np.sqrt(np.square(away).mean())))
            like.append(explained(away, data.actions - data.actions.mean(0)))
        return {
            "td_error": float(np.mean(td)),
            "explained": float(np.mean(share)),
            "outside": float(np.mean(outside)),
            "action_error": float(np.mean(actions)),
            "action_explained": float(np.mean(like)),
        }

    def weighted(self, behaviour: BehaviourModel) -> tuple[dict[str, Any], Doubles, float | None]:
        """Importance sampling, doubly robust, corrected; this of every network and episode (S, E);

        and the effective sample size.
        """
        log, data, s = self.log, self.log.data, self.settings
        found: dict[str, list[Doubles]] = {name: [] for name in WEIGHTED}
        points: dict[str, list[float]] = {name: [] for name in WEIGHTED}
        sizes, corrected, each = [], [], np.ones((1, len(log)))
        for m, policy in enumerate(self.policies):
            ratios = behaviour.log_ratios(self.acts.here[m])
            of_rows = [
                self.q(policy, states, actions)
                for states, actions in (
                    (data.states, data.actions),
                    (data.states, self.acts.here[m]),
                    (data.next_states, self.acts.there[m]),
                )
            ]
            q, v, v_next = (each.mean(0) for each in of_rows)
            w = weigh(log, ratios, q, v, v_next, s.discount)
            sizes.append(w.effective_sample_size)
            corrected.append(
                [
                    weigh(log, ratios, one_q, one_v, one_next, s.discount).corrected
                    for one_q, one_v, one_next in zip(*of_rows, strict=True)  # of each network
                ]
            )
            for name, of in zip(WEIGHTED, (w.per_decision, w.doubly_robust), strict=True):
                again = [of(counts) for counts in draws(len(log), s.seed)]
                found[name].append(np.concatenate(again))
                points[name].append(float(of(each)[0]))
        logged = replicated_means(self.returns, s.seed)
        said = {}
        for name, replicates in found.items():
            middle, estimate = np.mean(replicates, 0), float(np.mean(points[name]))
            said[name] = {
                "estimate": estimate,
                "interval": interval(middle, s.seed),
                "difference": estimate - float(self.returns.mean()),
                "difference_interval": interval(middle - logged, s.seed),
            }
        by_network = np.mean(corrected, 0)
        said["corrected"] = self._by_episode(by_network.mean(0))
        return said, by_network, min(sizes)

    def local(self, graph: Graph) -> dict[str, Any]:
        """The local critic's estimate."""
        first = self.log.first
        pairs = zip(self.acts.there, self.acts.here, strict=True)
        starts = [graph.start_values(there, here[first]) for there, here in pairs]
        return self._by_episode(np.mean(starts, 0))

    def _by_episode(self, values: Doubles) -> dict[str, Any]:
        """An estimate from what each episode (E,) says."""
        s = self.settings
        return {
            "estimate": float(values.mean()),
            "interval": interval(replicated_means(values, s.seed), s.seed),
            "difference": float((values - self.returns).mean()),
            "difference_interval": interval(
                replicated_means(values - self.returns, s.seed), s.seed
            ),
        }


def _evaluate(
    log: Log, acts: Sequence[_Acts], episodes: Rows, s: JudgeSettings, display: Display
) -> tuple[QFunctions, list[float]]:
    """Fit Q of all policies and the behaviour; also their estimates before the last quarter."""
    drawn = Drawn.of(log, episodes, s.seeds, s.seed)
    policies = [(one.here[m], one.there[m]) for one in acts for m in range(len(one.here))]
    states, late = log.data.states[log.first], list[float]()

    def estimates(q: QFunctions) -> list[float]:
        return [float(q(i, states, a[log.first]).mean()) for i, (a, _) in enumerate(policies)]

    with display.work("fitted Q evaluation", s.updates) as work:

        def told(done: int, q: QFunctions) -> bool:
            now = estimates(q)
            work.update(done, f"value {np.mean(now):.4g}")
            if not late and done >= LATE * s.updates:
                late.extend(now)
            return bool(np.isfinite(now).all())

        q = fit_q(log, np.stack([there for _, there in policies]), drawn, s, told)
    return q, late or estimates(q)


def _fit_behaviour(log: Log, episodes: Rows, s: JudgeSettings, display: Display) -> BehaviourModel:
    with display.work("behaviour model", max(1, s.updates // 2)) as work:

        def told(done: int, _: Any) -> bool:
            work.update(done)
            return True

        return fit_behaviour(log, episodes, s, told)


def _tell(work: Any, label: str, share: float) -> None:
    work.update(int(1000 * share), label)

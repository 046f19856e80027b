"""Whether a policy file says what the Python policy and alarm say, by running it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax.numpy as jnp
import numpy as np
import onnxruntime
from numpy.typing import NDArray

from icql.data.signals import Signals
from icql.errors import UserError
from icql.evidence.alarm import Alarm
from icql.nn.policies import Standardised
from icql.retrieval.metric import spreads

STATES = 10_000  # that are compared
NOISES = (0.1, 1.0, 3.0)  # on every second of them, in spreads of its column
BLOCK = 100  # states at once: more would not stay in a processor's cache
ACTION = 1e-5  # of the action's range
DISTANCE = 1e-6  # in spreads, and of the distance itself where it is more than one
TIE = 1e-4  # between the two best of a choice, below which either will do

Act = Callable[[NDArray[np.float32]], NDArray[Any]]


@dataclass(frozen=True)
class Original:
    """What a file is compared with."""

    act: Act  # states → actions, as `policy.act`
    policy: Standardised
    signals: Signals
    alarm: Alarm | None
    actions: int  # numbers of an action, or of choices


def probes(logged: NDArray[np.float32], seed: int = 0) -> NDArray[np.float32]:
    """States to compare on: logged ones, and as many moved a little, by a spread, and far."""
    rng = np.random.default_rng(seed)
    states = np.asarray(logged[np.sort(rng.integers(len(logged), size=STATES))], np.float32)
    spread = spreads(states)  # which a sensor that says 1e30 does not move
    for i, noise in enumerate(NOISES):
        some = states[1 + 2 * i :: 2 * len(NOISES)]
        some += (noise * spread * rng.normal(size=some.shape)).astype(np.float32)
    return states[np.isfinite(states).all(1)]


def made_up(policy: Standardised, seed: int = 0) -> NDArray[np.float32]:
    """States about where the policy's normaliser expects them, where no data is at hand."""
    mean, std = (np.asarray(x, np.float64) for x in (policy.mean, policy.std))
    noise = np.random.default_rng(seed).normal(size=(STATES, len(mean)))
    return (mean + std * noise).astype(np.float32)


def compare(content: bytes, original: Original, states: NDArray[np.float32]) -> dict[str, Any]:
    """Run a file on states and say how far it is from Python at most.

    Raises:
        UserError: it is farther than `ACTION`, or its alarm says something else.
    """
    outputs = list(run(content, states))
    said = {name: np.concatenate([block[name] for block in outputs]) for name in outputs[0]}
    found: dict[str, Any] = {"states": len(states)}
    if original.signals.choices:
        found["choices_that_differ"] = _choices(said["action"], original, states)
    else:
        found["action_error"] = _actions(said["action"], original, states)
    if original.alarm is not None:
        found["distance_error"] = _alarm(said, original.alarm, states)
    return found


def run(content: bytes, states: NDArray[np.float32]) -> Iterator[dict[str, NDArray[Any]]]:
    """What a file says of states, block by block; the limit is one number for all."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs() if output.name != "limit"]
    for i in range(0, len(states), BLOCK):
        said = session.run(names, {"state": states[i : i + BLOCK]})
        yield dict(zip(names, said, strict=True))


def _actions(said: NDArray[Any], original: Original, states: NDArray[np.float32]) -> float:
    """The largest difference of an action, in units of its range."""
    signals = original.signals
    low, high = np.asarray(signals.action_low), np.asarray(signals.action_high)
    wide = high - low if signals.bounded else 2.0
    expected = original.act(states)
    apart = np.abs(said.astype(np.float64) - expected) / wide
    neither = np.isnan(said) & np.isnan(expected)  # states that no network can take
    error = float(np.where(neither, 0, apart).max())
    if not error <= ACTION:
        raise _differs(f"an action by {error:.2g} of its range, more than {ACTION:g}")
    return error


def _choices(said: NDArray[Any], original: Original, states: NDArray[np.float32]) -> int:
    """How many choices differ; all of them have to be ties, but for rounding."""
    other = np.flatnonzero(said != original.act(states))
    if len(other):
        policy: Any = original.policy
        logits = np.sort(policy.policy.net(policy.seen(jnp.asarray(states[other]))), axis=-1)
        gaps = logits[:, -1] - logits[:, -2]
        if (gaps > TIE * np.maximum(1, np.abs(logits).max(-1))).any():
            raise _differs(f"{len(other)} of {len(states)} choices")
    return len(other)


def _alarm(said: dict[str, NDArray[Any]], alarm: Alarm, states: NDArray[np.float32]) -> float:
    """The largest difference of a distance, in spreads, or of itself where it is more than one."""
    original = alarm(states)
    room = np.maximum(1, original.distance)
    error = float((np.abs(said["distance"] - original.distance) / room).max())
    if not error <= DISTANCE:
        raise _differs(f"a distance by {error:.2g}, more than {DISTANCE:g}")
    close = np.abs(original.distance - alarm.limit) <= DISTANCE * room
    if ((said["alarm"] != original.rings) & ~close).any():
        raise _differs("an alarm")
    return error


def _differs(what: str) -> UserError:
    return UserError(
        f"nothing is written: the file differs from the Python policy in {what}.",
        where="export",
        fix="Please report this, with the run's settings and the versions of onnx and onnxruntime.",
    )

"""A suite on a Ray cluster: every group of cells is a task, which runs what the local runner runs.

Only the description of the group travels: a task works on the shared benchmark folder, whose locks
and records keep two tasks from doing the same. A task whose worker or node is lost is started
again, waits for the lock of the dead one to be let go of, and goes on from the last checkpoint.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from icql.bench.records import BenchFolder, CellGroup
from icql.bench.runner import KEPT, is_done, run_groups, write_failure
from icql.bench.status import status
from icql.errors import Terminated, UserError
from icql.progress import Display
from icql.seals import plain

RETRIES = 5  # times a group is started again after its worker or node was lost
LOOK = 30.0  # seconds between two lines about what is running
STORE = 100 * 2**20  # bytes of the object store of a cluster of our own: hardly anything is in it
ARRIVAL = 60.0  # seconds after which a shared file system shows what another node wrote
PASSED_ON = ("ICQL_", "JAX_", "XLA_")  # settings in the environment that workers have to share
SECRET = "ICQL_TOKEN"  # of `icql serve`; what a task is given, others of the cluster may see


@dataclasses.dataclass(frozen=True, kw_only=True)
class OnRay:
    """Runs groups on a Ray cluster; called as `runner.run_groups` is.

    Args:
        address: of a running cluster; else RAY_ADDRESS, else a cluster on this machine alone.
        cpus: that each group is given.
        gpus: that each group is given; None: 1 where the cluster has any.

    Raises:
        UserError: Ray is not installed.
    """

    address: str | None = None
    cpus: int = 1
    gpus: int | None = None

    def __post_init__(self) -> None:
        _ray()
        for name, least in (("cpus", 1), ("gpus", 0)):
            if (value := getattr(self, name)) is not None and value < least:
                raise UserError(f"{value} is too small.", where=f"--{name}")

    def __call__(self, folder: BenchFolder, groups: Iterable[CellGroup], display: Display) -> None:
        """Run every group that is not finished; failures are written down, and the rest goes on."""
        left = [group for group in groups if not is_done(folder, group)]
        if not left:
            return
        # Ray prints; standard output is for results alone
        to_stderr = contextlib.redirect_stdout(sys.stderr)
        with to_stderr, _connected(self.address), _stopped_by_sigterm():
            _Driver(folder, display, self._submitted(folder, left, display)).wait()

    def _submitted(
        self, folder: BenchFolder, groups: list[CellGroup], display: Display
    ) -> dict[Any, CellGroup]:
        """Hand every group to the cluster."""
        ray = _ray()
        there = ray.cluster_resources()
        gpus = int(there.get("GPU", 0) > 0) if self.gpus is None else self.gpus
        task = ray.remote(
            num_cpus=self.cpus,
            num_gpus=gpus,
            max_retries=RETRIES,
            max_calls=1 if gpus else KEPT,  # a worker's programs, and a GPU's memory, are freed
        )(run_there)
        nodes = sum(node["Alive"] for node in ray.nodes())
        have = f"{there.get('CPU', 0):g} CPUs and {there.get('GPU', 0):g} GPUs on {nodes} nodes"
        each = f"each takes {self.cpus} CPUs and {gpus} GPUs"
        display.say(f"{len(groups)} groups on Ray: {have}; {each}")
        where = (str(folder.path.resolve()), str(Path.cwd()), passed_on(os.environ))
        return {task.remote(plain(dataclasses.asdict(group)), *where): group for group in groups}


def passed_on(environment: Mapping[str, str]) -> dict[str, str]:
    """What workers are told of the driver's environment."""
    named = {name: told for name, told in environment.items() if name.startswith(PASSED_ON)}
    named.pop(SECRET, None)
    return named


def run_there(content: Mapping[str, Any], out: str, place: str, passed: Mapping[str, str]) -> str:
    """Run one group on a worker, by the local runner; returns where that was.

    Args:
        content: the group.
        out: the benchmark folder, which every node sees under this name.
        place: the driver's working directory, for data that is named relative to it.
        passed: environment variables of the driver.
    """
    os.environ.update(passed)
    with contextlib.suppress(OSError):  # data that is not here is then missed by its name
        os.chdir(place)
    folder = BenchFolder.open(Path(out))
    run_groups(folder, [CellGroup.read(content)], Display(quiet=True))
    return socket.gethostname()


class _Driver:
    """Waits for groups that the cluster runs, and says how far they are."""

    def __init__(self, folder: BenchFolder, display: Display, sent: dict[Any, CellGroup]) -> None:
        self._folder, self._display, self._sent = folder, display, sent
        self._total = len(sent)

    def wait(self) -> None:
        """Wait for all of them; an interruption takes them back."""
        ray, spoken = _ray(), time.monotonic()
        try:
            while self._sent:
                for done in ray.wait(list(self._sent), num_returns=1, timeout=1.0)[0]:
                    self._settle(done, self._sent.pop(done))
                if self._sent and time.monotonic() - spoken > LOOK:
                    self._look()
                    spoken = time.monotonic()
        except BaseException:
            for task in self._sent:
                ray.cancel(task, force=True)  # files are whole or absent: nothing is harmed
            raise

    def _settle(self, done: Any, group: CellGroup) -> None:
        """Say how a group ended, and write down what its worker could not."""
        label = f"[{self._total - len(self._sent)}/{self._total}] {group.label}"
        try:
            host = _ray().get(done)
        except Exception as error:  # the worker died too often, or could not even begin
            cause = getattr(error, "cause", None) or error
            what = cause if isinstance(cause, UserError) else _short(cause)
            failure = write_failure(self._folder, group, RuntimeError(f"on a Ray worker: {what}"))
        else:
            if self._arrived(group):
                self._display.say(f"{label}: finished on {host}")
                return
            failure = self._folder.failure(group) or write_failure(
                self._folder,
                group,
                RuntimeError(f"it ended on {host}, but left no records here: is --out shared?"),
            )
        self._display.say(f"{label}: failed: {failure['error']}")

    def _arrived(self, group: CellGroup) -> bool:
        """Whether a group that has ended is finished, once its files are seen here."""
        end = time.monotonic() + ARRIVAL
        while not (finished := is_done(self._folder, group)):
            if self._folder.failure(group) is not None or time.monotonic() > end:
                break
            time.sleep(0.5)
        return finished

    def _look(self) -> None:
        """Say what is running, and how far it is."""
        mine = {group.key for group in self._sent.values()}
        rows = [row for row in status(self._folder)["groups"] if row["group"] in mine]
        running = [row for row in rows if row["state"] == "running"]
        self._display.say(f"{len(running)} groups are running, {len(mine)} are not finished")
        for row in running:
            self._display.say(f"  {row['what']}: update {row['step']:,} of {row['steps']:,}")


def _ray() -> Any:
    try:
        return import_module("ray")
    except ImportError as error:
        raise UserError(
            "Ray is not installed.", where="--on ray", fix="pip install 'icql[ray]'"
        ) from error


@contextlib.contextmanager
def _connected(address: str | None) -> Iterator[None]:
    """A connection to the cluster that is meant; one of our own is ended afterwards."""
    ray = _ray()
    if ray.is_initialized():  # by whoever called
        yield
        return
    known = address or os.environ.get("RAY_ADDRESS")
    own = {} if known else {"include_dashboard": False, "object_store_memory": STORE}
    quiet = {"log_to_driver": False, "logging_level": "error"}
    try:
        ray.init(address=known or "local", **quiet, **own)
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise UserError(
            f"there is no Ray cluster to connect to ({_short(error)}).",
            where=f"--address {known}" if known else "--on ray",
            fix="Start one (ray start --head), or leave the address out: one is started here.",
        ) from error
    try:
        yield
    finally:
        ray.shutdown()


@contextlib.contextmanager
def _stopped_by_sigterm() -> Iterator[None]:
    """SIGTERM ends the driver as Ctrl-C does: schedulers send it, and Ray would catch it."""
    came = False

    def stop(*_: object) -> NoReturn:
        nonlocal came
        came = True
        raise Terminated

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except KeyboardInterrupt:
        if came:  # Ray may raise another in its place
            raise Terminated from None
        raise
    finally:
        signal.signal(signal.SIGTERM, before)


def _short(error: BaseException) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__

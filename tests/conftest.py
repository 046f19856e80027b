"""Shared by all tests: strict JAX, shapes checked, a private cache, real data where it is."""

from __future__ import annotations

import gc
import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

import jax
import pytest
from jaxtyping import install_import_hook

os.environ.setdefault("JAX_PLATFORMS", "cpu")
# most programs of tests run once: compiling them in a hurry saves a third of the suite's time
os.environ["JAX_DISABLE_MOST_OPTIMIZATIONS"] = "1"  # of processes that tests start
jax.config.update("jax_disable_most_optimizations", True)
# what one test process compiled, the others load (a folder that lives as long as the session)
if "PYTEST_XDIST_WORKER" not in os.environ:
    _programs = tempfile.TemporaryDirectory(prefix="icql-programs-", ignore_cleanup_errors=True)
    os.environ["JAX_COMPILATION_CACHE_DIR"] = _programs.name
    os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0.0"
    os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "0"
    # XLA's older code generator, in one piece, compiles in a third of the time
    hurry = "--xla_cpu_use_fusion_emitters=false --xla_cpu_parallel_codegen_split_count=1"
    os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} {hurry}".strip()
jax.config.update("jax_compilation_cache_dir", os.environ["JAX_COMPILATION_CACHE_DIR"])
jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)
jax.config.update("jax_numpy_dtype_promotion", "strict")  # no number changes its type unasked
# shapes in annotations are checked at every call, before anything of icql is imported
install_import_hook(["icql.nn", "icql.algos", "icql.losses", "icql.training"], "beartype.beartype")

from icql.training import desk  # noqa: E402  (after the hook)

# a run's six pictures take as long as a tiny run itself: only who asks for them gets them
_draw_run = desk.draw_run
desk.draw_run = lambda *_: []


@pytest.fixture(scope="session")
def pictures() -> Callable[[], AbstractContextManager[None]]:
    """Runs that end `with pictures():` draw their plots."""

    @contextmanager
    def drawing() -> Iterator[None]:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(desk, "draw_run", _draw_run)
            yield

    return drawing


@pytest.fixture
def optimised() -> Iterator[None]:
    """Programs as users have them."""
    jax.config.update("jax_disable_most_optimizations", False)
    yield
    jax.config.update("jax_disable_most_optimizations", True)


@pytest.fixture(autouse=True, scope="module")
def forget_programs() -> Iterator[None]:
    """Free compiled programs: they lie in memory maps, of which a process may hold only 65,530."""
    yield
    jax.clear_caches()
    gc.collect()


@pytest.fixture(autouse=True)
def private_cache(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No test reads or writes the user's cache."""
    monkeypatch.setenv("ICQL_CACHE", str(tmp_path_factory.getbasetemp() / "cache"))


@pytest.fixture(scope="session")
def d4rl_dir() -> Path:
    """The folder with real D4RL files."""
    folder = os.environ.get("ICQL_D4RL_DIR")
    if not folder:
        pytest.skip("ICQL_D4RL_DIR is not set: no real D4RL data here")
    return Path(folder)

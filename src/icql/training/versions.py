"""Versions that a score depends on; seeded returns move with MuJoCo's."""

from __future__ import annotations

import platform
from importlib import metadata

import jax

from icql._version import __version__

USED = ("jax", "jaxlib", "equinox", "optax", "numpy", "gymnasium", "gymnasium-robotics", "mujoco")


def versions() -> dict[str, str]:
    """Return version of this package, Python, the platform and every package that matters."""
    found = {"icql": __version__, "python": platform.python_version()}
    for package in USED:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            found[package] = "absent"
    device, libc = jax.devices()[0], platform.libc_ver()
    return {
        **found,
        # the kind of machine: results are shared, and its kernel is nobody's business
        "platform": " ".join(filter(None, (platform.system(), platform.machine(), *libc))),
        "device": f"{device.platform}: {device.device_kind}",
    }

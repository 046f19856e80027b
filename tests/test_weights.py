"""Weights on disk: nothing but what was written is read."""

from __future__ import annotations

from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import save_file

from icql.errors import UserError
from icql.weights import load_arrays, load_weights, save_arrays, save_weights

TREE = {"w": jnp.arange(6.0).reshape(2, 3), "n": jnp.int32(4)}


def test_every_flipped_bit_is_found(tmp_path: Path) -> None:
    path = tmp_path / "policy.safetensors"
    save_weights(path, TREE)
    whole = path.read_bytes()
    np.testing.assert_array_equal(load_weights(path, TREE)["w"], TREE["w"])
    for place in range(len(whole)):
        for bit in (0x01, 0x20):
            path.write_bytes(whole[:place] + bytes([whole[place] ^ bit]) + whole[place + 1 :])
            try:
                found = load_weights(path, TREE)
            except UserError as error:
                assert "\n" not in str(error)  # noqa: PT017
            else:  # blanks of the header mean nothing
                np.testing.assert_array_equal(found["w"], TREE["w"])
    path.write_bytes(whole[:-1])
    with pytest.raises(UserError, match="safetensors"):
        load_arrays(path)


def test_a_changed_number_is_said(tmp_path: Path) -> None:
    path = tmp_path / "policy.safetensors"
    save_weights(path, TREE)
    whole = path.read_bytes()
    path.write_bytes(whole[:-1] + bytes([whole[-1] ^ 1]))
    with pytest.raises(UserError, match="not those that were written"):
        load_arrays(path)


def test_files_made_before_hashes_are_read(tmp_path: Path) -> None:
    path = tmp_path / "policy.safetensors"
    save_file({"w": np.ones(2, np.float32)}, path)
    np.testing.assert_array_equal(load_arrays(path)["w"], 1)


@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_numbers_that_are_not_finite_are_refused(tmp_path: Path, value: float) -> None:
    path = tmp_path / "policy.safetensors"
    save_arrays(path, {"w": np.float32([1, value])})
    with pytest.raises(UserError, match="w holds numbers that are not finite"):
        load_weights(path, {"w": jnp.zeros(2)})


def test_another_type_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "policy.safetensors"
    save_arrays(path, {"w": np.zeros(2, np.float16)})
    with pytest.raises(UserError, match="holds float16 for w, expected float32"):
        load_weights(path, {"w": jnp.zeros(2)})

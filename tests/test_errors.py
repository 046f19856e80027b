"""What a mistyped name is answered with."""

from __future__ import annotations

from icql.errors import nearest

KNOWN = ["main", "robust", "speed", "hopper-medium-v2"]


def test_a_name_that_is_close_is_offered_and_all_are_named():
    assert nearest("robst", KNOWN) == (
        "Did you mean 'robust'? Known: hopper-medium-v2, main, robust, speed."
    )
    assert nearest("hopper", KNOWN).startswith("Did you mean 'hopper-medium-v2'?")


def test_a_name_that_is_like_none_is_not_guessed_at():
    assert nearest("nope", KNOWN) == "Known: hopper-medium-v2, main, robust, speed."

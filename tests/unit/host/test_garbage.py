"""Garbage is seldom looked for while code is loaded, and as before afterwards."""

from __future__ import annotations

import gc

import pytest

from host.runtime import garbage


@pytest.fixture(autouse=True)
def _as_before():
    yield
    gc.unfreeze()


def test_while_code_is_loaded_garbage_is_seldom_sought_and_then_not_in_it():
    gc.unfreeze()
    former = gc.get_threshold()
    with garbage.seldom_sought():
        assert gc.get_threshold() == (garbage.SELDOM, *former[1:])
        assert gc.get_freeze_count() == 0
    assert gc.get_threshold() == former
    assert gc.get_freeze_count() > 10_000


def test_a_start_that_fails_leaves_things_as_they_were():
    gc.unfreeze()
    former = gc.get_threshold()
    with pytest.raises(ValueError, match="no model"), garbage.seldom_sought():
        raise ValueError("no model")
    assert gc.get_threshold() == former
    assert gc.get_freeze_count() == 0

"""What numba keeps on disk is used as long as no source of the kernels has changed."""

import importlib.util
import sys

import pytest

from protocol.numerics import compiling

pytest.importorskip("numba")


@pytest.fixture
def double(tmp_path, monkeypatch):
    place = tmp_path / "doubling.py"
    place.write_text("def double(value):\n    return 2 * value\n")
    found = importlib.util.spec_from_file_location("doubling", place)
    module = importlib.util.module_from_spec(found)
    monkeypatch.setitem(sys.modules, "doubling", module)
    found.loader.exec_module(module)
    return module.double


def hits(function, sources, monkeypatch):
    """How often what is on disk was found, by one call after these sources were loaded."""
    monkeypatch.setattr(compiling, "sources", lambda: sources)
    compiling._kept.cache_clear()
    kernel = compiling.compiled(function)
    assert kernel(21) == 42
    compiling._kept.cache_clear()
    return sum(kernel.stats.cache_hits.values())


def test_a_changed_source_is_compiled_again(double, monkeypatch):
    found = [hits(double, sources, monkeypatch) for sources in ("one", "one", "two", "two", "one")]
    assert found == [0, 1, 0, 1, 1]


@pytest.mark.parametrize("changed", compiling._SOURCES)
def test_every_file_that_kernels_are_made_of_counts(changed, monkeypatch):
    before, source = compiling.sources(), compiling.source
    monkeypatch.setattr(compiling, "source", lambda name: source(name) + "#" * (name == changed))
    assert compiling.sources() != before

"""What numba keeps on disk is used as long as no source of the kernels has changed."""

import importlib.util

import pytest

from protocol.numerics import compiling

pytest.importorskip("numba")


@pytest.fixture
def double(tmp_path):
    place = tmp_path / "doubling.py"
    place.write_text("def double(value):\n    return 2 * value\n")
    found = importlib.util.spec_from_file_location("doubling", place)
    module = importlib.util.module_from_spec(found)
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


def test_every_file_that_kernels_are_made_of_counts(tmp_path, monkeypatch):
    before = compiling.sources()
    for name in compiling._SOURCES:
        (tmp_path / name).write_bytes((compiling.Path(compiling.__file__).parent / name).read_bytes())
    monkeypatch.setattr(compiling, "__file__", str(tmp_path / "compiling.py"))
    assert compiling.sources() == before
    for name in compiling._SOURCES:
        place = tmp_path / name
        former = place.read_bytes()
        place.write_bytes(former + b"\n")
        assert compiling.sources() != before
        place.write_bytes(former)

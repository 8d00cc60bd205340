"""What a trainer process is given by its daemon."""

from __future__ import annotations

from node.trainer_client.process import CHILD_ENVIRONMENT, child_environment


def test_a_trainer_has_large_pages_and_threads_that_do_not_spin(monkeypatch):
    for name in CHILD_ENVIRONMENT:
        monkeypatch.delenv(name, raising=False)
    found = child_environment()
    assert found["GLIBC_TUNABLES"] == "glibc.malloc.hugetlb=1"
    assert found["OMP_WAIT_POLICY"] == "PASSIVE"


def test_the_owner_has_the_last_word_about_its_environment(monkeypatch):
    monkeypatch.setenv("GLIBC_TUNABLES", "glibc.malloc.hugetlb=0")
    assert child_environment()["GLIBC_TUNABLES"] == "glibc.malloc.hugetlb=0"


def test_our_own_packages_come_first(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", "/elsewhere")
    first, *others = child_environment()["PYTHONPATH"].split(":")
    assert others == ["/elsewhere"]
    assert first != "/elsewhere"

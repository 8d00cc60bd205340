"""What a verb says where an optional part of the installation is missing."""

import pytest

from protocol.errors import UserError
from shoal.common import causes, extras


@pytest.fixture
def without(monkeypatch):
    """Makes packages look as if they were not installed."""

    def hide(*names):
        find = extras.util.find_spec
        monkeypatch.setattr(
            extras.util, "find_spec", lambda one: None if one in names else find(one)
        )

    return hide


def test_a_verb_that_trains_names_what_is_missing_and_how_to_install_it(without):
    without("transformers", "datasets")
    with pytest.raises(UserError) as caught:
        extras.require_for(["syncer", "run", "project.shoal"])
    assert str(caught.value) == (
        "`shoal syncer run` needs datasets and transformers, which are not installed. "
        "Install with: pip install 'shoal-train[train]'"
    )


@pytest.mark.parametrize(
    "tokens", [["status"], ["witness", "run", "a"], ["join", "--help"], ["syncer", "key"], []]
)
def test_other_verbs_do_without(without, tokens):
    without(*extras.PACKAGES["train"])
    extras.require_for(tokens)  # A missing package would raise.
    with pytest.raises(UserError):
        extras.require_for(["join"])


def test_a_plot_without_its_library_says_what_to_install():
    error = ModuleNotFoundError("No module named 'matplotlib.figure'", name="matplotlib.figure")
    assert causes.of_this_machine(error) == (
        "matplotlib is not installed. Install with: pip install 'shoal-train[plots]'"
    )

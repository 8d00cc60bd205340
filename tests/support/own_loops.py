"""The example loops, installed as pip would install them, in a folder of a test."""

from __future__ import annotations

import os
import shutil
import sys
from importlib import invalidate_caches

from node.trainer.own.installed import GROUP
from shoal.project import project_file
from tests.support.examples import EXAMPLES, example_text
from tests.support.tiny_project import write_text

EXAMPLE = EXAMPLES / "own-loop"
PACKAGE, VERSION = "own-loops", "0.1.0"
OWNER = bytes(range(32))


def install(folder, monkeypatch, *, version=VERSION, package=PACKAGE, prefix=""):
    """Makes this process and its children find the example's trainers.

    prefix: of the trainers' names, for a test in which nothing else may bring them.
    """
    site = folder / f"site-{package}-{version}"
    shutil.copytree(EXAMPLE / "own_loops", site / "own_loops")
    facts = site / f"{package.replace('-', '_')}-{version}.dist-info"
    facts.mkdir()
    (facts / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: {version}\n")
    (facts / "entry_points.txt").write_text(
        f"[{GROUP}]\n{prefix}digits = own_loops.digits:Digits\n"
        f"{prefix}letters = own_loops.letters:Letters\n"
    )
    monkeypatch.syspath_prepend(str(site))
    inherited = os.environ.get("PYTHONPATH")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, [str(site), inherited])))
    for name in [one for one in sys.modules if one.split(".")[0] == "own_loops"]:
        monkeypatch.delitem(sys.modules, name)
    invalidate_caches()
    return site


def project_text(name, **changes):
    """The example's project file; keys of `changes` have `__` for a dot."""
    return example_text(f"own-loop/{name}.toml", **changes)


def signed_example(folder, name, **changes):
    """The genesis that signing an example gives, with a text in `folder` for the one that reads."""
    if name == "letters":
        text = folder / "text.txt"
        if not text.exists():
            write_text(text, chars=20_000)
        changes = {
            "data__source": "file",
            "data__location": str(text),
            "data__heldout_frac": 0.3,
            "data__block_sequences": 4,
            "model__config__width": 16,
            **changes,
        }
    path = folder / f"{name}.toml"
    path.write_text(project_text(name, **changes))
    file = project_file.read_file(path)
    return project_file.make_genesis(file, owner=OWNER, data_cache=folder / "cache")

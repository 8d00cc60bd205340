"""The card of an exported model says what is in it, and shows names as nothing but names."""

from __future__ import annotations

import msgspec
import pytest
import yaml

from host.files.signed_project import OpenedProject
from protocol.errors import CorruptState
from protocol.log.accounts import ChosenName
from protocol.log.records import AccountsNoted, CheckpointEvaluated, CheckpointMarked, SeatTaken
from protocol.project import BaseSpec, BaseTensor, FirstState, MixedSource
from shoal.model.export_choice import choose
from shoal.model.export_command import _draw, adapter_loader
from shoal.model.model_card import ROWS_MAX, card, loading, plain
from syncer_node.storage.store import Checkpoint, Store
from tests.support.builders import ONE, SYNCER, TWO, contribution, merged, weights
from tests.support.hosted_logs import Hosted, hosted_log

COMMIT = "0123456789abcdef0123456789abcdef01234567"
HOSTILE = "[me](http://evil) <b>|`x`\n# big www.evil.com"


@pytest.fixture
def hosted(tmp_path) -> Hosted:
    both = (contribution(), contribution(learner=TWO.key))
    names = (ChosenName(ONE.key, "ada"), ChosenName(TWO.key, HOSTILE))
    bodies = [
        SeatTaken(SYNCER.key),
        weights(),
        merged(contributions=both),
        AccountsNoted(names, ()),
        merged(version=2, global_step=2, contributions=both),
        CheckpointMarked(2, ONE.key, TWO.key),
        CheckpointEvaluated(6, 2, 512, ONE.key, 2.25),
        CheckpointEvaluated(6, 2, 512, TWO.key, 2.26),
    ]
    made = hosted_log(tmp_path, [(1.7e9 + at, body) for at, body in enumerate(bodies)])
    store = Store(made.root)
    state = made.log.state
    store.write_checkpoint(Checkpoint(6, [], [], [2] * 4, state.summary()))
    store.close()
    return made


def written(hosted: Hosted, project: OpenedProject | None = None, *, has_picture=True) -> str:
    project = project or hosted.opened
    chosen = choose(hosted.root, "6", hosted.opened, is_untrained_wanted=False)
    return card(project, project.charter, chosen, "bf16", has_picture=has_picture)


def metadata(text: str) -> dict[str, object]:
    _, found, _ = text.split("---\n", 2)
    return yaml.safe_load(found)


def with_genesis(hosted: Hosted, **changes) -> OpenedProject:
    genesis = msgspec.structs.replace(hosted.opened.genesis, **changes)
    return hosted.opened._replace(genesis=genesis)


def test_it_says_what_went_in_who_gave_it_and_how_good_it_is(hosted):
    text = written(hosted)
    assert "| Held-out loss | 2.2600, measured by ada (" in text
    assert "stored as bf16" in text
    assert "global step 2, record 6" in text
    assert "![Held-out loss over tokens, and how the run went](run.png)" in text
    assert f"| ada | `{ONE.key.hex()[:8]}` |" in text
    assert hosted.opened.id.hex() in text
    assert "wire version" in text
    assert "`shoal export --step 2 --to DIR`" in text
    assert "| training.learning_rate | " in text


def test_a_base_model_of_the_hub_is_named_for_the_hub_and_for_people(hosted):
    source = f"hub:friends/tiny@{COMMIT}"
    one = BaseTensor("BF16", bytes(32))
    base = BaseSpec(source, (one,), (FirstState(bytes(32), bytes(32)),))
    text = written(hosted, with_genesis(hosted, base=base))
    assert metadata(text)["base_model"] == "friends/tiny"
    assert f"`friends/tiny`, revision `{COMMIT}`" in text
    assert f"`shoal project create --from {source}`" in text
    assert "further trained by 2 contributors" in text


def test_a_folder_of_the_owners_is_named_without_its_path(hosted):
    one = BaseTensor("F32", bytes(32))
    base = BaseSpec("folder:model", (one,), (FirstState(bytes(32), bytes(32)),))
    data = msgspec.structs.replace(
        hosted.opened.genesis.data, source="file", location="/home/ada/letters.txt"
    )
    text = written(hosted, with_genesis(hosted, base=base, data=data))
    assert "base_model" not in metadata(text)
    assert "letters" in text
    assert "/home/ada" not in text
    assert "ada/" not in text


def test_a_data_set_of_the_hub_is_in_the_metadata(hosted):
    data = msgspec.structs.replace(
        hosted.opened.genesis.data, source="hub", location="friends/letters:en"
    )
    text = written(hosted, with_genesis(hosted, data=data))
    assert metadata(text)["datasets"] == ["friends/letters"]


def test_a_mixture_is_told_by_shares_and_its_data_sets_are_in_the_metadata(hosted):
    mixture = tuple(
        MixedSource(source, location, "text", weight, 9, bytes(32))
        for source, location, weight in (
            ("hub", "friends/letters:en@v1", 3.0),
            ("jsonl", "/home/ada/notes.jsonl", 1.0),
        )
    )
    text = written(hosted, with_genesis(hosted, mixture=mixture))
    assert metadata(text)["datasets"] == ["friends/letters"]
    assert "75.0% `friends/letters`, en, revision `v1`; 25.0% notes" in text
    assert "/home/ada" not in text


def test_a_name_is_shown_and_does_nothing(hosted):
    text = written(hosted)
    (row,) = [line for line in text.splitlines() if "www" in line and "|" in line and "`" in line]
    assert row.count("|") == 5
    for piece in ("[me]", "http://", "<b>", "`x`", "# big", "www.evil"):
        assert piece not in text
    assert plain("a.b|c_d 1.5") == "a&#46;b&#124;c&#95;d 1.5"


def test_many_contributors_are_counted_together_at_the_end(hosted):
    chosen = choose(hosted.root, "6", hosted.opened, is_untrained_wanted=False)
    account = chosen.summary.accounts[ONE.key]
    many = {bytes([at]) * 32: account for at in range(ROWS_MAX + 3)}
    summary = msgspec.structs.replace(chosen.summary, accounts=many)
    chosen = type(chosen)(chosen.place, True, summary, chosen.loss, [])
    text = card(hosted.opened, hosted.opened.charter, chosen, "f32", has_picture=False)
    assert "| 3 others |  |" in text
    assert f"{ROWS_MAX + 3} contributors" in text
    assert "run.png" not in text


def test_the_picture_is_of_the_run_and_its_absence_has_a_reason(hosted, tmp_path, monkeypatch):
    path = tmp_path / "run.png"
    assert _draw(hosted.opened, hosted.root, path) is None
    assert path.read_bytes().startswith(b"\x89PNG")
    (hosted.root / "log").write_bytes(b"")
    assert _draw(hosted.opened, hosted.root, path) == "nothing is merged or measured yet"

    def damaged(*_):
        raise CorruptState("record 3 is damaged")

    with monkeypatch.context() as now:
        now.setattr("syncer_node.storage.history.read_history", damaged)
        assert "record 3 is damaged" in _draw(hosted.opened, hosted.root, path)
    monkeypatch.setattr("shoal.model.export_command.find_spec", lambda name: None)
    assert "shoal-train[plots]" in _draw(hosted.opened, hosted.root, path)


@pytest.mark.parametrize(
    ("source", "loads"),
    [
        (f"hub:owner/model@{COMMIT}", "AutoPeftModelForCausalLM.from_pretrained("),
        ("folder:SmolLM2", "PeftModel.from_pretrained(base, "),
    ],
)
def test_an_adapter_is_loaded_beside_a_folder_where_peft_would_look_on_the_hub(
    hosted, tmp_path, source, loads
):
    zeros = FirstState(bytes(32), bytes(32))
    base = BaseSpec(source, (BaseTensor("BF16", bytes(32)),), (zeros,))
    genesis = msgspec.structs.replace(hosted.opened.genesis, base=base)
    said = adapter_loader(genesis, tmp_path / "mine")
    assert said.startswith(f"peft.{loads}")
    assert ("from the folder SmolLM2" in said) == source.startswith("folder")
    shown = loading(genesis, is_adapter=True)
    assert loads in shown
    assert ('from_pretrained("FOLDER")' in shown) == source.startswith("folder")

"""`shoal doctor LINK` says what `shoal join` would refuse, in the same words."""

from __future__ import annotations

import msgspec
import pytest

from host.files import keystore
from host.files.home import Home
from host.join_link import JoinLink
from host.options import NodeOptions
from node.daemon.trainer_options import data_location
from node.trainer.text.corpus import describe_corpus
from protocol.errors import UserError
from protocol.project import DataSpec, ImageSpec, MixedSource
from shoal.doctor import joining
from shoal.doctor.joining import Wishes
from tests.support.builders import project
from tests.support.mixtures import write_sources
from tests.support.published import genesis_of

LINK = JoinLink(bytes([1]) * 32, 100, "tiny", ("/ip4/203.0.113.7/tcp/4100",))
SPEC = DataSpec(
    source="folder",
    location="/home/ada/my-text",
    text_field="text",
    tokenizer="bytes",
    sequence_tokens=16,
    block_sequences=4,
    heldout_frac=0.3,
    blocks=1,
    digest=bytes(32),
)


@pytest.fixture
def home(tmp_path):
    return Home(tmp_path / "home")


def texts(folder, count=20, word="a sentence of some length. "):
    folder.mkdir()
    for at in range(count):
        (folder / f"{at}.txt").write_text(f"{at}: " + 8 * word)
    return str(folder)


def signed(folder, tmp_path):
    spec = msgspec.structs.replace(SPEC, location=folder)
    blocks, digest, _ = describe_corpus(spec, cache=tmp_path / "signed")
    return msgspec.structs.replace(SPEC, blocks=blocks, digest=digest)


def found(home, spec=SPEC, charter=None, **said):
    genesis = msgspec.structs.replace(project().genesis, data=spec)
    return {
        one.topic: one for one in joining.refusals(home, LINK, genesis, charter, Wishes(**said))
    }


def test_text_that_nobody_named_is_refused_in_the_words_of_join(home):
    text = found(home)["text"]
    genesis = msgspec.structs.replace(project().genesis, data=SPEC)
    with pytest.raises(UserError) as refused:
        data_location(NodeOptions(home=home, link=LINK, name="me"), genesis)
    assert text.verdict == "trouble"
    assert f"{text.says} {text.remedy}" == str(refused.value)
    assert "--data PATH" in text.remedy


def test_published_text_needs_no_copy(home):
    genesis, _ = genesis_of(blocks=23, shard_blocks=5)
    genesis = msgspec.structs.replace(genesis, data=SPEC)
    (text,) = joining.refusals(home, LINK, genesis, None, Wishes())
    assert (text.topic, text.verdict) == ("text", "good")
    options = NodeOptions(home=home, link=LINK, name="me", instance="two", data="/home/me/text")
    assert data_location(options, genesis) == "learner-two"


def test_a_copy_of_the_text_is_good(home, tmp_path):
    folder = texts(tmp_path / "text")
    text = found(home, signed(folder, tmp_path), data=folder)["text"]
    assert text.verdict == "good"


def test_another_text_is_told(home, tmp_path):
    spec = signed(texts(tmp_path / "text"), tmp_path)
    text = found(home, spec, data=texts(tmp_path / "other", word="another one altogether. "))[
        "text"
    ]
    assert text.verdict == "care"
    assert "not the one that the project was signed with" in text.says


@pytest.mark.parametrize(("count", "words"), [(0, "no file ending in"), (1, "one block needs")])
def test_text_that_no_learner_could_train_on_is_trouble(home, tmp_path, count, words):
    spec = msgspec.structs.replace(SPEC, block_sequences=64)
    text = found(home, spec, data=texts(tmp_path / "text", count))["text"]
    assert text.verdict == "trouble"
    assert words in text.says
    assert "is no copy of the project's text" in text.says
    assert text.remedy == joining.COPY
    assert not any(word in f"{text.says} {text.remedy}" for word in ("heldout_frac", "location"))


def pictures(folder, **counts):
    for name, count in counts.items():
        (folder / name).mkdir(parents=True)
        for at in range(count):
            (folder / name / f"{at}.png").touch()
    return str(folder)


def test_images_are_counted_and_a_folder_that_is_no_class_is_trouble(home, tmp_path):
    spec = msgspec.structs.replace(SPEC, source="images")
    seen = ImageSpec(8, 8, 1, (0.5,), (0.5,), ("cat", "dog"), 9, 1)

    def images(folder):
        genesis = msgspec.structs.replace(project().genesis, data=spec, images=seen)
        wishes = Wishes(data=folder)
        (text,) = joining.refusals(home, LINK, genesis, None, wishes)
        return text

    good = images(pictures(tmp_path / "good", cat=3, dog=2))
    assert (good.topic, good.verdict) == ("images", "good")
    assert good.says.startswith("5 images lie at")
    few = images(pictures(tmp_path / "few", cat=1, dog=2))
    assert few.verdict == "trouble"
    assert "holds 3 images" in few.says
    other = images(pictures(tmp_path / "other", cat=3, dog=2, cow=1))
    assert other.verdict == "trouble"
    assert "is no class of this project" in other.says
    assert images(str(tmp_path / "nowhere")).verdict == "trouble"


def test_a_banned_key_hears_it(home):
    key = keystore.load_or_create(home.identity("learner", "default")).key
    charter = msgspec.structs.replace(project().charter, banned=(key,))
    assert found(home, charter=charter)["admission"].verdict == "trouble"
    assert found(home, charter=project().charter)["admission"].verdict == "good"


def test_whoever_is_not_on_the_list_hears_what_to_ask_for(home):
    charter = msgspec.structs.replace(project().charter, admission="list")
    admission = found(home, charter=charter)["admission"]
    assert admission.verdict == "trouble"
    assert "shoal project allow" in admission.says


def test_the_files_of_a_mixture_are_looked_for_by_their_names(home, tmp_path):
    write_sources(tmp_path)
    mixture = tuple(
        MixedSource("jsonl", f"/home/ann/{name}.jsonl", "text", 1.0, 9, bytes(32)) for name in "an"
    )
    genesis = msgspec.structs.replace(
        project().genesis,
        data=msgspec.structs.replace(SPEC, source="mixture", location=""),
        mixture=mixture,
    )

    def look(data):
        (text,) = joining.refusals(home, LINK, genesis, None, Wishes(data=data))
        return text

    assert "put them into one folder under these names" in look(None).remedy
    assert look(str(tmp_path)).says.startswith("all 2 sources of the mixture are at hand, 0.1 MB")
    (tmp_path / "n.jsonl").unlink()
    assert look(str(tmp_path)).says == f"There is no folder {tmp_path / 'n.jsonl'}."

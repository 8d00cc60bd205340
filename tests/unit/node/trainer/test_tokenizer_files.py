from __future__ import annotations

import json

import pytest
import transformers

from host.files.pinned_files import PinnedFiles
from node.trainer.base_model import first_weights
from node.trainer.text.corpus import describe_corpus, open_corpus
from node.trainer.text.tokenizer import load_vocabulary
from node.trainer.text.tokenizer_files import pin_tokenizer
from node.trainer.tools.export import byte_tokenizer, export_model
from protocol.errors import InternalError, UserError
from tests.support.base_folder import CHAT, END, END_ID, base_folder, project_from
from tests.support.tiny_project import data_spec, write_text


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return base_folder(tmp_path_factory.mktemp("published") / "model")


@pytest.fixture
def spec(folder, tmp_path):
    return pin_tokenizer("base", folder, tmp_path / "cache")


def test_the_token_that_ends_a_text_is_the_one_that_the_tokenizer_names(folder, spec, tmp_path):
    assert spec.end_of_text == END
    assert {one.name for one in spec.files} >= {"tokenizer.json", "tokenizer_config.json"}
    vocabulary = load_vocabulary("base", spec, tmp_path / "cache")
    assert (vocabulary.eos, vocabulary.size) == (END_ID, END_ID + 1)
    guessed = load_vocabulary(str(folder / "tokenizer.json"))
    assert guessed.eos == 256


def test_without_its_settings_the_models_word_counts(folder, tmp_path):
    bare = tmp_path / "bare"
    bare.mkdir()
    for name in ("tokenizer.json", "config.json"):
        (bare / name).write_bytes((folder / name).read_bytes())
    spec = pin_tokenizer("base", bare, tmp_path / "cache")
    assert (spec.end_of_text, len(spec.files)) == (END, 1)


def test_a_file_by_itself_is_pinned_as_the_tokenizer(folder, tmp_path):
    path = tmp_path / "mine.json"
    path.write_bytes((folder / "tokenizer.json").read_bytes())
    (tmp_path / "tokenizer_config.json").write_text("of another one")
    spec = pin_tokenizer(str(path), None, tmp_path / "cache")
    assert [one.name for one in spec.files] == ["tokenizer.json"]
    path.unlink()
    assert load_vocabulary(str(path), spec, tmp_path / "cache").size == END_ID + 1


def test_the_byte_tokenizer_needs_no_file(tmp_path):
    assert pin_tokenizer("bytes", None, tmp_path) is None


@pytest.mark.parametrize(
    ("name", "words"),
    [("base", "no `from`"), ("gpt2", "no tokenizer"), ("/nowhere/tokenizer.json", "no /nowhere")],
)
def test_what_is_no_tokenizer_is_said(name, words, tmp_path):
    with pytest.raises(UserError, match=words):
        pin_tokenizer(name, None, tmp_path)


def test_a_tokenizer_with_code_of_its_own_is_refused(folder, tmp_path):
    place = tmp_path / "model"
    place.mkdir()
    (place / "tokenizer.json").write_bytes((folder / "tokenizer.json").read_bytes())
    (place / "tokenizer_config.json").write_text(json.dumps({"auto_map": {"AutoTokenizer": "x"}}))
    (place / "config.json").write_text("{}")
    with pytest.raises(UserError, match="auto_map"):
        pin_tokenizer("base", place, tmp_path / "cache")


def test_a_changed_file_counts_as_missing_and_comes_back(spec, folder, tmp_path):
    files = PinnedFiles(tmp_path / "cache", spec)
    assert files.missing() == []
    (files.folder / "tokenizer.json").write_bytes(b"{}")
    again = PinnedFiles(tmp_path / "cache", spec)
    (lost,) = again.missing()
    assert lost.name == "tokenizer.json"
    with pytest.raises(UserError, match=r"tokenizer\.json is not in"):
        load_vocabulary("base", spec, tmp_path / "cache")
    with pytest.raises(InternalError, match="not what the project pins"):
        again.keep(lost, b"something else")
    again.keep(lost, (folder / "tokenizer.json").read_bytes())
    assert again.missing() == []
    assert bytes(again.find(lost.digest)) == (folder / "tokenizer.json").read_bytes()
    assert again.find(bytes(32)) is None


def test_another_folder_gives_only_what_is_pinned(spec, folder, tmp_path):
    files = PinnedFiles(tmp_path / "elsewhere", spec)
    other = base_folder(tmp_path / "other")
    (other / "chat_template.jinja").write_text("another")
    files.take_from(other)
    assert {one.name for one in files.missing()} == {"chat_template.jinja"}
    files.take_from(folder)
    assert files.missing() == []


def test_nothing_is_missing_of_a_project_that_pins_nothing(tmp_path):
    files = PinnedFiles(tmp_path, None)
    assert files.missing() == []
    assert files.find(bytes(32)) is None


def test_the_same_tokenizer_makes_the_same_corpus_wherever_it_came_from(spec, folder, tmp_path):
    text, cache = write_text(tmp_path / "text.txt"), tmp_path / "cache"
    one = describe_corpus(data_spec(text, tokenizer="base"), cache=cache, tokenizer=spec)
    name = str(folder / "tokenizer.json")
    corpora = len(list(cache.glob("corpus-*")))
    assert describe_corpus(data_spec(text, tokenizer=name), cache=cache, tokenizer=spec) == one
    assert len(list(cache.glob("corpus-*"))) == corpora
    opened = open_corpus(data_spec(text, tokenizer="base"), seed=1, cache=cache, tokenizer=spec)
    assert END_ID in opened.heldout(10_000)


def test_an_exported_model_has_the_tokenizer_and_the_template_of_the_published_one(
    spec, folder, tmp_path
):
    genesis = project_from(tmp_path, folder)
    out = tmp_path / "out"
    export_model(genesis, first_weights(genesis, folder), out, tmp_path / "cache")
    for one in spec.files:
        assert (out / one.name).read_bytes() == (folder / one.name).read_bytes()
    tokenizer = transformers.AutoTokenizer.from_pretrained(out)
    assert (tokenizer.eos_token, tokenizer.chat_template) == (END, CHAT)
    talk = [{"role": "user", "content": "hello"}]
    assert tokenizer.apply_chat_template(talk, tokenize=False) == f"hello{END}"
    loaded = transformers.AutoModelForCausalLM.from_pretrained(out)
    assert (loaded.config.bos_token_id, loaded.config.eos_token_id) == (256, [END_ID])
    assert loaded.config.rope_parameters["rope_type"] == "llama3"


def test_a_tokenizer_without_an_end_is_refused(tmp_path):
    tokenizer = json.loads(byte_tokenizer().to_str())
    tokenizer["added_tokens"] = []
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(tokenizer))
    with pytest.raises(UserError, match="names no eos_token"):
        pin_tokenizer(str(path), None, tmp_path / "cache")

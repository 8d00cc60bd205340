"""Writing to a model: what is drawn, how a chat is written, and what reaches the terminal."""

from __future__ import annotations

import json

import pytest
import torch

from host.files.pinned_files import PinnedFiles
from node.trainer.base_model import first_weights
from node.trainer.model import build_model
from node.trainer.text.chat_template import chat_settings
from node.trainer.text.tokenizer import ByteVocabulary
from node.trainer.text.tokenizer_files import pin_tokenizer
from node.trainer.tools.export import trained_model
from node.trainer.tools.talk import Talk, TokenStream, printable, settings_within
from protocol.errors import UserError
from tests.support.base_folder import CHAT, END, END_ID, base_folder, project_from
from tests.support.tiny_project import tiny_genesis


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("talk")


@pytest.fixture(scope="module")
def genesis(place):
    return project_from(place, base_folder(place / "published"))


@pytest.fixture(scope="module")
def weights(genesis, place):
    return first_weights(genesis, place / "published")


def started(genesis, weights, place, *, is_chat):
    return Talk(genesis, weights, place / "cache", is_chat=is_chat)


def said(talk, text, tokens=12, **options):
    pieces = []
    talk.say(text, pieces.append, tokens=tokens, **{"temperature": 0, **options})
    return "".join(pieces)


def greedy(model, ids, count):
    """What plain transformers finds likeliest, one whole pass for each token."""
    found = list(ids)
    for _ in range(count):
        with torch.no_grad():
            token = int(model(torch.tensor([found])).logits[0, -1].argmax())
        if token in (END_ID, 256):
            break
        found.append(token)
    return found[len(ids) :]


def test_a_text_is_continued_as_plain_transformers_would(genesis, weights, place):
    talk = started(genesis, weights, place, is_chat=False)
    model = trained_model(genesis, weights).eval()
    first = greedy(model, [END_ID, *b"the "], 12)
    assert said(talk, "the ") == printable(ByteVocabulary().decode(first))
    # The next line goes on where the text ended.
    second = greedy(model, [END_ID, *b"the ", *first, *b"sea"], 12)
    assert said(talk, "sea") == printable(ByteVocabulary().decode(second))


def test_a_chat_is_written_as_the_template_says(genesis, weights, place):
    talk = started(genesis, weights, place, is_chat=True)
    model = trained_model(genesis, weights).eval()
    answer = greedy(model, [*b"hello", END_ID], 6)
    text = ByteVocabulary().decode(answer)
    assert said(talk, "hello", 6) == printable(text)
    turns = [{"role": "user", "content": "hello"}, {"role": "assistant", "content": text}]
    assert talk.turns == turns


def test_newer_weights_and_a_new_beginning(genesis, weights, place):
    talk = started(genesis, weights, place, is_chat=False)
    before = said(talk, "the ")
    talk.begin_anew()
    assert said(talk, "the ") == before
    talk.begin_anew([values * -1 for values in weights])
    assert said(talk, "the ") != before


def test_the_same_seed_draws_the_same_and_a_long_past_loses_its_beginning(genesis, weights, place):
    talk = started(genesis, weights, place, is_chat=False)
    one = said(talk, "x" * 500, 40, temperature=1.5, seed=3)
    talk.begin_anew()
    assert said(talk, "x" * 500, 40, temperature=1.5, seed=3) == one
    assert len(talk.ids) <= 64


def test_an_answer_that_is_cut_short_is_remembered(genesis, weights, place):
    talk = started(genesis, weights, place, is_chat=False)
    whole = said(talk, "the ")
    talk.begin_anew()
    pieces = []

    def impatient(text):
        pieces.append(text)
        if len(pieces) == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        talk.say("the ", impatient, tokens=12, temperature=0)
    assert whole.startswith("".join(pieces))
    assert len(talk.ids) > len(b"the ") + 1


def test_what_is_drawn_cannot_steer_a_terminal():
    assert printable("a\x1b[2Jb\r\x07\n\tü") == "a\ufffd[2Jb\ufffd\ufffd\n\tü"


def test_a_character_of_several_tokens_is_shown_once_it_is_whole():
    shown = []
    stream = TokenStream(ByteVocabulary(), {256}, shown.append)
    stream.put(torch.tensor([[1, 2, 3]]))
    for byte in "é".encode() + b"!" + "€".encode()[:2]:
        stream.put(torch.tensor([byte]))
    assert shown == ["é", "!"]
    stream.end()
    assert "".join(shown) == "é!\ufffd"


def with_settings(place, name, **changes):
    """The published model with other settings in one of its files."""
    folder = base_folder(place / "other")
    path = folder / name
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))
    return folder


def test_settings_of_a_stranger_are_taken_within_bounds():
    settings = {"temperature": 1e9, "top_p": 0.5, "top_k": 7, "repetition_penalty": "x"}
    found = settings_within(settings)
    assert found == {"do_sample": True, "temperature": 0.8, "top_k": 7, "top_p": 0.5}


def test_what_a_template_refuses_is_said(tmp_path):
    folder = base_folder(tmp_path / "model")
    (folder / "chat_template.jinja").write_text("{{ raise_exception('roles must alternate') }}")
    genesis = project_from(tmp_path, folder)
    talk = started(genesis, first_weights(genesis, folder), tmp_path, is_chat=True)
    with pytest.raises(UserError, match=r"roles must alternate.*--text"):
        said(talk, "hello")
    assert talk.turns == []


def test_a_template_runs_in_a_sandbox(tmp_path):
    folder = base_folder(tmp_path / "model")
    evil = "{{ ''.__class__.__mro__[1].__subclasses__() }}"
    (folder / "chat_template.jinja").write_text(evil)
    genesis = project_from(tmp_path, folder)
    talk = started(genesis, first_weights(genesis, folder), tmp_path, is_chat=True)
    with pytest.raises(UserError, match="does not take this chat"):
        said(talk, "hello")


def test_templates_are_found_in_their_file_or_in_the_settings(genesis, place, tmp_path):
    files = PinnedFiles(place / "cache", genesis.tokenizer)
    found = chat_settings(files)
    assert (found.template, found.special["eos_token"]) == (CHAT, END)
    folder = with_settings(
        tmp_path, "tokenizer_config.json", chat_template=[{"name": "default", "template": "hi"}]
    )
    (folder / "chat_template.jinja").unlink()
    spec = pin_tokenizer("base", folder, tmp_path / "cache")
    assert chat_settings(PinnedFiles(tmp_path / "cache", spec)).template == "hi"
    assert chat_settings(PinnedFiles(tmp_path / "cache", None)) is None


def test_bytes_have_no_chat_template(tmp_path):
    plain = tiny_genesis(tmp_path)
    weights = [values for values in _drawn(plain)]
    with pytest.raises(UserError, match="--text"):
        started(plain, weights, tmp_path, is_chat=True)
    assert isinstance(said(started(plain, weights, tmp_path, is_chat=False), "ab", 4), str)


def _drawn(genesis):
    from node.trainer.model import FragmentView, layout_of

    return FragmentView(build_model(genesis.model, seed=3), layout_of(genesis)).copies()

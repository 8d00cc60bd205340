"""Chats as data: what is read, how it is written, what is learned of it, how it is packed."""

from __future__ import annotations

import json

import msgspec
import numpy as np
import pytest
import torch
from pyarrow import Table, parquet

from node.trainer.setup import TrainerSetup
from node.trainer.text.chat_template import ChatSettings
from node.trainer.text.chat_writer import ChatWriter, bounded_memory, tokens_of
from node.trainer.text.chats import LeftOut, Tally, read_chats
from node.trainer.text.corpus import describe_corpus, is_heldout, open_corpus
from node.trainer.text.rows import OPEN_MAX, RowPacker
from node.trainer.text.tokenizer import load_vocabulary
from node.trainer.text.tokenizer_files import pin_tokenizer
from protocol.errors import UserError
from tests.support.base_folder import base_folder
from tests.support.chats import (
    ANSWERS,
    CHATML,
    END,
    MARKED,
    chat_genesis,
    chats_spec,
    turns,
    write_chats,
)
from tests.support.tiny_project import configure

TALK = turns("Who drifts past?", "A herring.", "And who else?", "Nöbody, at noon!", system="Hm.")
LENGTH = 64
EOS = 257


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("chats")


@pytest.fixture(scope="module")
def folder(place):
    return base_folder(place / "model", template=CHATML)


@pytest.fixture(scope="module")
def tokenizer(place, folder):
    return pin_tokenizer("base", folder, place / "cache")


@pytest.fixture(scope="module")
def vocabulary(place, tokenizer):
    return load_vocabulary("base", tokenizer, place / "cache")


def writer(template):
    return ChatWriter(ChatSettings(template, {"eos_token": END}))


# Files.


def read(*files):
    tally = Tally()
    return list(read_chats(files, tally)), tally


def test_both_usual_forms_are_read_line_by_line_or_as_a_list(tmp_path):
    plain, shared = tmp_path / "a.jsonl", tmp_path / "b.json"
    plain.write_text(json.dumps({"messages": TALK, "tools": []}) + "\n\n")
    said = [("system", "Hm."), ("human", "Who drifts past?"), ("gpt", "A herring.")]
    one = {"conversations": [{"from": who, "value": text} for who, text in said]}
    shared.write_text(json.dumps([one, one], indent=2))
    chats, tally = read(plain, shared)
    assert [one.turns for one in chats] == [TALK, TALK[:3], TALK[:3]]
    assert chats[1].identity == chats[2].identity
    assert tally.words == ()


def test_what_is_no_chat_is_told_with_file_and_line(tmp_path):
    lines = [
        json.dumps({"messages": TALK}),
        "{not json",
        "[]",
        '{"text": "a story"}',
        json.dumps({"messages": turns("Anybody?")}),
        json.dumps({"messages": [{"role": "user", "content": None}]}),
        json.dumps({"messages": ["hello"]}),
        json.dumps({"messages": turns("x" * 2_000_000, "too long")}),
    ]
    path = tmp_path / "a.jsonl"
    path.write_text("\n".join(lines))
    chats, tally = read(path)
    tally.used = len(chats)
    assert [one.place for one in chats] == ["a.jsonl line 1"]
    (said,) = tally.words
    assert said.startswith("7 of 8 chats left out: a.jsonl line 2: Expecting property name")
    assert "a.jsonl line 3: is no object with messages" in said
    assert "a.jsonl line 4: has no list of messages" in said
    assert "a.jsonl line 5: has no answer of the role assistant" in said
    assert said.endswith("a.jsonl line 6: message 1 has no text in content; and 2 more")


def test_a_broken_json_file_is_told_and_the_others_are_read(tmp_path):
    write_chats(tmp_path, 4)
    (tmp_path / "c.json").write_text("[{")
    chats, tally = read(tmp_path / "c.json", tmp_path / "ada.jsonl")
    assert len(chats) == 2
    assert tally.words[0].startswith("1 of 1 chats left out: c.json: ")


# Which tokens are answers.


@pytest.mark.parametrize("template", [CHATML, MARKED], ids=["by prefixes", "by marks"])
def test_answers_and_what_ends_them_are_learned_and_nothing_else(vocabulary, template):
    text, spans = writer(template).answers(TALK)
    assert [text[first:last] for first, last in spans] == [
        f"A herring.{END}\n",
        f"Nöbody, at noon!{END}\n",
    ]
    (ids,) = tokens_of(vocabulary, [(text, spans)])
    everything = np.maximum(ids, ~ids)
    plain = vocabulary.tokenizer.encode(text, add_special_tokens=False).ids
    np.testing.assert_array_equal(everything, plain)
    learned = vocabulary.tokenizer.decode(ids[ids >= 0].tolist(), skip_special_tokens=False)
    assert learned == f"A herring.{END}\nNöbody, at noon!{END}\n"


def test_an_answer_that_nobody_asked_for_is_context():
    text, spans = writer(CHATML).answers([{"role": "assistant", "content": "Hi!"}, *TALK])
    assert text[slice(*spans[0])] == f"A herring.{END}\n"


def test_a_template_that_writes_the_beginning_otherwise_is_told_in_words():
    forgets = "{% for one in messages[-3:] %}{{ one['content'] }}{% endfor %}"
    with pytest.raises(LeftOut, match=r"beginning of this chat otherwise.*generation"):
        writer(forgets).answers(TALK)


@pytest.mark.parametrize(
    ("template", "words"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "unsafe"),
        ("{{ messages[0].nothing.at.all }}", "no attribute 'nothing'"),
        ("{% for one in range(90000) %}and on{% endfor %}", "540,000 characters of it, more than"),
        ("{{ 'x' * 100000000000 }}", "refuses it"),
    ],
)
def test_a_hostile_template_is_bounded_and_told_in_words(template, words):
    with bounded_memory(), pytest.raises(LeftOut, match=words):
        writer(template).answers(TALK)


# Sequences.


def packed(chats, length=16, filler=99):
    rows = []
    packer = RowPacker(length, filler, rows.append)
    for one in chats:
        packer.add(np.array(one))
    packer.finish()
    return np.array(rows)


def test_conversations_stay_whole_where_they_fit_and_little_is_wasted():
    draw = np.random.default_rng(3)
    sizes = draw.integers(3, 14, 400)
    chats = [[~1, *range(100 * at, 100 * at + size)] for at, size in enumerate(sizes, 1)]
    rows = packed(chats)
    found = " ".join(" ".join(map(str, row)) + " |" for row in rows)
    assert all(" ".join(map(str, one)) in found for one in chats)
    assert rows.shape[0] <= 1.1 * sum(map(len, chats)) / 16
    assert (rows == ~99).sum() == rows.size - sum(map(len, chats))


def test_a_longer_one_is_split_and_each_token_is_learned_once():
    long = [~1, ~2, *range(10, 60)]
    rows = packed([long, [~3, 5, 6]])
    learned = rows[:, 1:]
    assert sorted(learned[learned >= 0]) == [5, 6, *range(10, 60)]
    for row in rows:
        inputs = np.maximum(row, ~row)
        for at in range(1, 16):
            if row[at] > 10:  # What stands before it is what was before it in the chat.
                assert inputs[at - 1] == row[at] - 1


def test_pieces_without_an_answer_are_left_out():
    rows = packed([[~1] * 40 + [7, 8], [~2, 9]])
    assert len(rows) == 1
    assert rows[0][rows[0] >= 0].tolist() == [7, 8, 9]


def test_few_sequences_are_open_at_once():
    emitted = []
    packer = RowPacker(16, 99, emitted.append)
    for _ in range(OPEN_MAX + 5):
        packer.add(np.array([~1] * 8 + [3]))
    assert len(emitted) == 5


# The corpus.


def opened(spec, tokenizer, cache):
    counted = describe_corpus(spec, cache=cache, tokenizer=tokenizer)
    spec = msgspec.structs.replace(spec, blocks=counted.blocks, digest=counted.digest)
    return open_corpus(spec, seed=3, cache=cache, tokenizer=tokenizer)


def test_every_sequence_has_something_to_learn_and_every_chat_is_on_its_side(place, tokenizer):
    texts = write_chats(place / "mine")
    corpus = opened(chats_spec(texts), tokenizer, place / "cache")
    assert corpus.matches
    facts = corpus.facts
    chats, _ = read(*sorted(texts.iterdir()))
    heldout = [one for one in chats if is_heldout(one.identity, 0.2)]
    assert (facts.heldout_documents, facts.train_documents) == (len(heldout), 120 - len(heldout))
    blocks = np.concatenate([corpus.sequences(at) for at in range(corpus.local_blocks)])
    rows = np.concatenate([blocks, corpus.heldout(10**6)])
    assert rows.shape[1:] == (LENGTH + 1,)
    assert ((rows[:, 1:] >= 0).sum(axis=1) > 0).all()
    learned = corpus.vocabulary.decode([one for one in rows.ravel() if one >= 0])
    assert set(learned.replace(END, "").split("\n")) == {*ANSWERS, ""}
    shown = corpus.heldout(10**6)
    text = corpus.vocabulary.decode(np.maximum(shown, ~shown).ravel().tolist())
    asked = [f"[user]\n{one.turns[0]['content']}" for one in chats]
    assert sum(one in text for one in asked) == len(heldout)


def test_rows_of_parquet_are_the_chats_that_lines_are(place, tokenizer, tmp_path):
    texts = write_chats(tmp_path / "lines")
    rows = [
        {"id": number, "messages": one.turns}
        for number, one in enumerate(read(*sorted(texts.iterdir()))[0])
    ]
    parquet.write_table(Table.from_pylist([*rows, {"id": -1}]), tmp_path / "chats.parquet")
    found = [
        describe_corpus(chats_spec(one), cache=place / "cache", tokenizer=tokenizer)
        for one in (texts, tmp_path / "chats.parquet")
    ]
    assert found[1].digest == found[0].digest
    assert found[1].notes == (
        "1 of 121 chats left out: chats.parquet row 121: has no list of messages",
    )


def test_a_copy_elsewhere_has_the_same_digest_and_another_length_another(place, tokenizer):
    here, there = write_chats(place / "here"), write_chats(place / "there")
    one = describe_corpus(chats_spec(here), cache=place / "cache", tokenizer=tokenizer)
    elsewhere = describe_corpus(chats_spec(there), cache=place / "cache", tokenizer=tokenizer)
    assert elsewhere.digest == one.digest
    other = chats_spec(here, sequence_tokens=48)
    assert describe_corpus(other, cache=place / "cache", tokenizer=tokenizer).digest != one.digest


def test_what_is_left_out_is_told_each_time(place, tokenizer):
    texts = write_chats(place / "spoilt")
    with (texts / "bob.jsonl").open("a") as handle:
        handle.write("{not json\n")
    for _ in range(2):
        found = describe_corpus(chats_spec(texts), cache=place / "cache", tokenizer=tokenizer)
        assert found.notes[0].startswith("1 of 121 chats left out: bob.jsonl line 61: ")


def test_a_folder_with_nothing_usable_is_refused(tmp_path, place, tokenizer):
    (tmp_path / "a.jsonl").write_text('{"text": "a story"}\n')
    with pytest.raises(UserError, match=r"No chat in .* can be used .*a.jsonl line 1: has no list"):
        describe_corpus(chats_spec(tmp_path), cache=place / "cache", tokenizer=tokenizer)


def test_too_few_chats_are_told_what_to_do(tmp_path, place, tokenizer):
    write_chats(tmp_path, 10)
    for changes, words in (
        ({"block_sequences": 500}, "fill [0-9]+ sequences, one block has 500. Add chats"),
        ({"heldout_frac": 0.001}, r"held-out chats have 0 tokens\. Set heldout_frac = 0\.[0-9]+"),
    ):
        with pytest.raises(UserError, match=words):
            opened(chats_spec(tmp_path, **changes), tokenizer, place / "cache")


def test_a_tokenizer_without_a_chat_template_is_refused(place):
    spec = chats_spec(write_chats(place / "mine"), tokenizer="bytes")
    with pytest.raises(UserError, match=r"'bytes' has no chat template"):
        describe_corpus(spec, cache=place / "cache")


# The trainer.


def labelled(rows):
    """As plain transformers takes them: ids, and labels that are -100 where it is context."""
    rows = torch.from_numpy(rows)
    ids = torch.where(rows < 0, ~rows, rows)
    return ids, torch.where(rows < 0, -100, rows)


@pytest.fixture(scope="module")
def setup(place, folder):
    texts = write_chats(place / "taught")
    (texts / "none.json").write_text("{}")
    genesis = chat_genesis(place, folder, texts)
    return TrainerSetup(configure(genesis, place, micro_batch=3))


def test_the_owner_of_the_machine_is_told_what_was_left_out(setup):
    assert any("none.json: has no list of messages" in one for one in setup.ready().adjustments)


@pytest.mark.parametrize("micro_batch", [1, 3, 4])
def test_loss_and_gradients_are_those_of_transformers_with_labels(setup, micro_batch):
    trainer, loop = setup.trainer, setup.loop
    trainer.micro_batch = micro_batch
    batch = setup.corpus.sequences(0)[:4]
    ids, labels = labelled(batch)
    trainer.optimizer.zero_grad()
    theirs = trainer.model(input_ids=ids, labels=labels, use_cache=False).loss
    theirs.backward()
    norm = sum(float(one.grad.square().sum()) for one in trainer.model.parameters()) ** 0.5
    trainer.optimizer.zero_grad()
    seen = []
    clip = trainer.accelerator.clip_grad_norm_
    trainer.accelerator.clip_grad_norm_ = lambda *given: seen.append(clip(*given)) or seen[-1]
    try:
        loop.reader.clear()
        loop.reader.append(((0, 1),))
        kept = setup.view.copies()
        loss = loop.step().loss
    finally:
        trainer.accelerator.clip_grad_norm_ = clip
    for index, values in enumerate(kept):
        setup.view.write(index, values)
    assert loss == pytest.approx(theirs.item(), rel=1e-5)
    assert float(seen[0]) == pytest.approx(norm, rel=1e-4)


def test_heldout_loss_and_losses_of_sequences_are_those_of_transformers(setup):
    rows = setup.corpus.heldout(5)
    with torch.no_grad():
        ids, labels = labelled(rows)
        whole = float(setup.trainer.model(input_ids=ids, labels=labels).loss)
        each = [
            float(setup.trainer.model(input_ids=one, labels=label).loss)
            for one, label in zip(ids.split(1), labels.split(1), strict=True)
        ]
        assert setup.trainer.heldout_loss(rows, lambda: None) == pytest.approx(whole, rel=1e-5)
        found = setup.trainer.losses(rows, lambda: None)
    np.testing.assert_allclose(found, each, rtol=1e-4)


def test_a_sequence_without_an_answer_teaches_nothing_and_gives_no_nan(setup):
    rows = ~np.abs(setup.corpus.heldout(2))
    with torch.no_grad():
        assert setup.trainer.heldout_loss(rows, lambda: None) == 0.0
        assert setup.trainer.losses(rows, lambda: None).tolist() == [0.0, 0.0]

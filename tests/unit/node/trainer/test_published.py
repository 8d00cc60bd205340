"""Text in shards is the text that the owner's corpus has, sequence by sequence."""

from __future__ import annotations

import shutil

import msgspec
import numpy as np
import pytest

from host.files.shard_files import ShardFiles
from node.trainer.setup import open_data
from node.trainer.text.corpus import open_corpus
from node.trainer.text.mixture import describe_mixture, open_sources
from node.trainer.text.published import PublishedCorpus, open_published, publish
from node.trainer.text.reader import STARTS
from node.trainer.text.tokenizer import ByteVocabulary
from protocol.errors import UserError
from protocol.project import MaskedSpec, MixedSource
from tests.support.base_folder import base_folder
from tests.support.chats import CHATML, chat_genesis, write_chats
from tests.support.published import published_project
from tests.support.tiny_project import BLOCK_SEQUENCES, SEQUENCE_TOKENS, write_text


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    folder = tmp_path_factory.mktemp("home")
    genesis = published_project(folder)
    corpus = open_corpus(genesis.data, seed=genesis.seed, cache=folder / "cache")
    return genesis, corpus, folder / "cache"


def test_every_sequence_is_published_once_and_what_is_held_out_stays_apart(made):
    genesis, corpus, cache = made
    shards = open_published(genesis, cache=cache, owner="host")
    blocks = range(genesis.data.blocks)
    read = np.concatenate([shards.sequences(at) for at in blocks])
    assert read.shape == (len(blocks) * BLOCK_SEQUENCES, SEQUENCE_TOKENS + 1)
    wanted = np.concatenate([corpus.sequences(at) for at in blocks])
    assert sorted(map(bytes, read)) == sorted(map(bytes, wanted))
    assert (shards.heldout(9) == corpus.heldout(9)).all()
    assert (shards.heldout(10**6) == corpus.heldout(10**6)).all()
    assert shards.matches
    assert shards.facts.digest == corpus.facts.digest


def test_a_shard_is_a_sample_of_the_whole_text(made):
    genesis, corpus, cache = made
    shards = open_published(genesis, cache=cache, owner="host")
    numbered = {bytes(corpus.block(at)[0]): at for at in range(genesis.data.blocks)}
    first = [numbered[bytes(shards.sequences(at)[0])] for at in range(40)]
    assert min(first) < genesis.data.blocks // 4
    assert max(first) > 3 * genesis.data.blocks // 4


def test_signing_again_makes_the_same_shards_and_writes_nothing(made):
    genesis, corpus, cache = made
    before = {path: path.stat().st_mtime_ns for path in cache.glob("shards-*/host/*")}
    assert publish(corpus, genesis, cache=cache) == genesis.published
    assert {path: path.stat().st_mtime_ns for path in cache.glob("shards-*/host/*")} == before
    next(cache.glob("shards-*/host/*.shard")).unlink()
    assert publish(corpus, genesis, cache=cache) == genesis.published
    assert {path for path in cache.glob("shards-*/host/*")} == set(before)


def test_what_a_trainer_opens_needs_no_text(made):
    genesis, _, cache = made
    gone = msgspec.structs.replace(genesis.data, location="/nowhere")
    assert open_data(genesis, cache).sequences(5).shape[1] == SEQUENCE_TOKENS + 1
    masked = msgspec.structs.replace(genesis, masked=MaskedSpec(257, 0.15))
    assert open_data(masked, cache).sequences(5).shape[1:] == (2, SEQUENCE_TOKENS)
    with pytest.raises(UserError, match="list of the project's shards"):
        open_data(msgspec.structs.replace(genesis, data=gone), cache / "empty")


def test_a_shard_that_is_not_here_is_said_by_name(made, tmp_path):
    genesis, _, cache = made
    manifest = ShardFiles(cache, genesis).find(genesis.published.manifest)
    ShardFiles(tmp_path, genesis, "learner-ada").keep_manifest(manifest)
    shards = open_published(genesis, cache=tmp_path, owner="learner-ada")
    with pytest.raises(UserError, match="learner-ada"):
        shards.sequences(0)


def test_an_id_that_the_tokenizer_does_not_have_is_refused(made):
    genesis, _, cache = made
    small = ByteVocabulary()
    small.size = 90  # Letters lie beyond.
    shards = PublishedCorpus(genesis, ShardFiles(cache, genesis), small)
    with pytest.raises(UserError, match="tokens that its tokenizer does not have"):
        shards.sequences(0)


@pytest.mark.parametrize("documents", [None, "separate"])
def test_texts_that_are_read_apart_are_marked_and_the_shards_are_the_same(made, documents):
    genesis, corpus, cache = made
    shards = open_published(
        msgspec.structs.replace(genesis, documents=documents), cache=cache, owner="host"
    )
    ends = corpus.heldout(10**6) == corpus.vocabulary.eos
    assert ends.any()
    assert ((shards.heldout(10**6) >= STARTS) == (ends & (documents == "separate"))).all()


@pytest.mark.parametrize("documents", [None, "separate"])
def test_texts_beside_chats_are_published_as_they_are(tmp_path, documents):
    texts = write_chats(tmp_path / "chats")
    genesis = chat_genesis(tmp_path, base_folder(tmp_path / "model", template=CHATML), texts)
    mixture = tuple(
        MixedSource(source, str(where), "text", weight, 1, bytes(32))
        for source, where, weight in (
            ("chats", texts, 0.7),
            ("file", write_text(tmp_path / "text.txt", chars=20_000), 0.3),
        )
    )
    spec = msgspec.structs.replace(genesis.data, source="mixture", location="")
    words = {"cache": tmp_path / "cache", "tokenizer": genesis.tokenizer, "documents": documents}
    found = describe_mixture(spec, mixture, **words)
    data = msgspec.structs.replace(spec, blocks=found.blocks, digest=found.digest)
    genesis = msgspec.structs.replace(
        genesis, data=data, mixture=found.mixture, documents=documents
    )
    corpus = open_sources(genesis, cache=tmp_path / "cache")
    wanted = np.concatenate([corpus.sequences(at) for at in range(data.blocks)])
    is_chat = (wanted < 0).any(axis=1)
    assert abs(is_chat.mean() - 0.7) < 0.01
    starts = (np.maximum(wanted, ~wanted) & STARTS).any(axis=1)
    assert starts[~is_chat].any() == starts[is_chat].any() == (documents == "separate")
    offer = publish(corpus, genesis, cache=tmp_path / "cache")
    assert offer.token_bytes == 4
    shards = open_data(msgspec.structs.replace(genesis, published=offer), tmp_path / "cache")
    read = np.concatenate([shards.sequences(at) for at in range(data.blocks)])
    assert sorted(map(bytes, read)) == sorted(map(bytes, wanted))


@pytest.mark.parametrize("documents", [None, "separate"])
def test_answers_and_context_of_chats_are_published_as_they_are(tmp_path, documents):
    texts = write_chats(tmp_path / "chats")
    model = base_folder(tmp_path / "model", template=CHATML)
    genesis, cache = chat_genesis(tmp_path, model, texts), tmp_path / "cache"
    corpus = open_corpus(
        genesis.data,
        seed=genesis.seed,
        cache=cache,
        tokenizer=genesis.tokenizer,
        documents=documents,
    )
    spec = publish(corpus, genesis, cache=cache)
    shutil.rmtree(texts)
    genesis = msgspec.structs.replace(genesis, published=spec, documents=documents)
    shards = open_data(genesis, cache)
    read = np.concatenate([shards.sequences(at) for at in range(genesis.data.blocks)])
    wanted = np.concatenate([corpus.sequences(at) for at in range(genesis.data.blocks)])
    assert (read < 0).any()
    assert (read >= 0).any()
    assert sorted(map(bytes, read)) == sorted(map(bytes, wanted))
    assert (shards.heldout(5) == corpus.heldout(5)).all()

from __future__ import annotations

import os
import re
from concurrent.futures import ThreadPoolExecutor

import msgspec
import numpy as np
import pytest

from node.trainer.text.corpus import describe_corpus, is_heldout, open_corpus
from node.trainer.text.sources import PIECE_CHARS
from node.trainer.text.tokenizer import load_vocabulary
from node.trainer.tools.export import byte_tokenizer
from protocol.errors import UserError
from protocol.log.permutation import block_at
from tests.support.tiny_project import BLOCK_SEQUENCES, SEQUENCE_TOKENS, data_spec, write_text

EOS = 256
LENGTH = SEQUENCE_TOKENS


@pytest.fixture
def cache(tmp_path):
    return tmp_path / "cache"


@pytest.fixture
def text(tmp_path):
    return write_text(tmp_path / "text.txt")


def opened(spec, cache):
    """The corpus with the number of blocks it was counted to have."""
    counted = describe_corpus(spec, cache=cache)
    spec = msgspec.structs.replace(spec, blocks=counted.blocks, digest=counted.digest)
    return open_corpus(spec, seed=3, cache=cache)


def expected_tokens(path, *, heldout=False):
    """The tokens of one side of a `file` source, made the slow and obvious way."""
    tokens, piece = [], ""
    lines = path.read_text().splitlines(keepends=True)
    for number, line in enumerate(lines):
        piece += line
        if len(piece) >= PIECE_CHARS or number == len(lines) - 1:
            if is_heldout(piece, 0.2) == heldout:
                tokens += [*piece.encode(), EOS]
            piece = ""
    return np.array(tokens)


def test_blocks_are_the_training_text_in_the_order_of_the_permutation(text, cache):
    corpus = opened(data_spec(text), cache)
    tokens = expected_tokens(text)
    assert corpus.matches
    assert corpus.facts.train_tokens == tokens.size
    assert corpus.local_blocks == (tokens.size - 1) // (BLOCK_SEQUENCES * LENGTH)
    for position in range(corpus.local_blocks):
        block = block_at(position, corpus.local_blocks, 3)
        first = block * BLOCK_SEQUENCES * LENGTH
        sequences = corpus.sequences(position)
        assert sequences.shape == (BLOCK_SEQUENCES, LENGTH + 1)
        np.testing.assert_array_equal(
            sequences[:, :-1].ravel(), tokens[first : first + BLOCK_SEQUENCES * LENGTH]
        )
        np.testing.assert_array_equal(sequences[:-1, -1], sequences[1:, 0])


def test_each_pass_visits_every_block_once_in_another_order(text, cache):
    corpus = opened(data_spec(text), cache)
    count = corpus.local_blocks
    passes = [
        [corpus.sequences(position).tobytes() for position in range(first, first + count)]
        for first in (0, count)
    ]
    assert sorted(passes[0]) == sorted(passes[1])
    assert passes[0] != passes[1]


def test_a_shorter_copy_reads_its_blocks_modulo_what_it_has(text, cache):
    corpus = open_corpus(data_spec(text, blocks=10_000), seed=3, cache=cache)
    assert not corpus.matches
    block = block_at(9_999, 10_000, 3) % corpus.local_blocks
    first = expected_tokens(text)[block * BLOCK_SEQUENCES * LENGTH]
    assert corpus.sequences(9_999)[0, 0] == first


def test_the_split_follows_the_text_of_a_document_alone():
    texts = [f"document {number}" for number in range(2_000)]
    heldout = [text for text in texts if is_heldout(text, 0.1)]
    assert 150 < len(heldout) < 250
    assert {text for text in texts if is_heldout(text, 0.05)} < set(heldout)


def test_a_folder_of_few_texts_is_told_how_much_to_hold_out(tmp_path, cache):
    folder = tmp_path / "texts"
    folder.mkdir()
    for number in range(35):
        (folder / f"{number}.txt").write_text(f"story {number} " * 400)
    spec = data_spec(folder, source="folder", heldout_frac=0.02)
    with pytest.raises(UserError, match="held-out text has 0 tokens") as refusal:
        opened(spec, cache)
    said = re.search(
        r"Set heldout_frac = ([0-9.]+) under .* holds out ([0-9,]+) tokens", str(refusal.value)
    )
    fraction, tokens = float(said[1]), int(said[2].replace(",", ""))
    corpus = opened(msgspec.structs.replace(spec, heldout_frac=fraction), cache)
    assert corpus.facts.heldout_tokens == tokens


def test_heldout_sequences_are_the_start_of_the_other_documents(text, cache):
    corpus = opened(data_spec(text), cache)
    tokens = expected_tokens(text, heldout=True)
    heldout = corpus.heldout(10**6)
    assert len(heldout) == (tokens.size - 1) // LENGTH
    np.testing.assert_array_equal(heldout[:, :-1].ravel(), tokens[: heldout[:, :-1].size])
    np.testing.assert_array_equal(corpus.heldout(2), heldout[:2])


def test_a_folder_is_read_with_all_below_it_and_other_files_are_left_out(tmp_path, cache):
    (tmp_path / "texts" / "sub").mkdir(parents=True)
    for number in (3, 1, 2):
        write_text(tmp_path / "texts" / f"{number}.md", chars=8_000, seed=number)
    write_text(tmp_path / "texts" / "sub" / "[4].txt", chars=8_000, seed=4)
    (tmp_path / "texts" / "image.png").write_bytes(bytes(range(256)) * 40)
    spec = data_spec(tmp_path / "texts", source="folder", heldout_frac=0.5, block_sequences=1)
    facts = opened(spec, cache).facts
    assert facts.train_documents + facts.heldout_documents == 4


def test_the_standard_library_is_a_corpus_without_its_tests(cache):
    corpus = opened(data_spec("", source="python-stdlib", heldout_frac=0.05), cache)
    assert corpus.facts.train_tokens > 2_000_000
    assert corpus.vocabulary.size == 257


def test_parquet_takes_the_named_column(tmp_path, cache):
    import datasets

    rows = [f"row {number} " * 60 for number in range(80)]
    table = datasets.Dataset.from_dict({"body": rows, "stars": list(range(80))})
    table.to_parquet(str(tmp_path / "rows.parquet"))
    spec = data_spec(tmp_path / "rows.parquet", source="parquet", text_field="body")
    assert opened(spec, cache).facts.train_documents == sum(
        not is_heldout(row, 0.2) for row in rows
    )
    for field, words in (
        ("text", "no text in the field 'text'; its columns are body, stars.*text_field"),
        ("stars", "row 1 has a number in the field 'stars', where a text is wanted.*text_field"),
    ):
        wrong = data_spec(tmp_path / "rows.parquet", source="parquet", text_field=field)
        with pytest.raises(UserError, match=words):
            describe_corpus(wrong, cache=cache)


def test_the_hub_is_streamed_with_name_configuration_and_split(cache, monkeypatch):
    import datasets

    calls = []

    def load(*names, **options):
        calls.append((names, options))
        return ({"text": f"story {number} " * 80} for number in range(60))

    monkeypatch.setattr(datasets, "load_dataset", load)
    streamed = {"split": "train", "streaming": True}
    opened(data_spec("owner/stories:small", source="hub"), cache)
    assert calls.pop() == (("owner/stories", "small"), streamed)
    opened(data_spec("owner/stories@v1.0", source="hub"), cache)
    assert calls.pop() == (("owner/stories", None), {**streamed, "revision": "v1.0"})


def test_an_unreachable_hub_is_explained(cache, monkeypatch):
    import datasets

    def load(*names, **options):
        raise ConnectionError("no route to host")

    monkeypatch.setattr(datasets, "load_dataset", load)
    with pytest.raises(UserError, match=r"owner/stories.*no route to host.*network"):
        describe_corpus(data_spec("owner/stories", source="hub"), cache=cache)


@pytest.mark.parametrize(
    "location",
    [
        "/some/folder",
        "text",
        "./rows",
        "../rows",
        "owner/..",
        "a/b/c",
        "",
        "owner/n ame",
        "a/b@",
        "a/b@../c",
    ],
)
def test_a_hub_name_never_reads_a_local_folder(location, cache, tmp_path, monkeypatch):
    import datasets

    def load(*names, **options):
        raise AssertionError(f"{names} was opened")

    monkeypatch.setattr(datasets, "load_dataset", load)
    with pytest.raises(UserError, match="OWNER/NAME"):
        describe_corpus(data_spec(location, source="hub"), cache=cache)


def test_a_folder_that_is_called_like_a_data_set_is_not_read_in_its_place(
    cache, tmp_path, monkeypatch
):
    private = tmp_path / "owner" / "stories"
    private.mkdir(parents=True)
    (private / "letters.txt").write_text("dear diary " * 500)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match=r"folder owner/stories here.*another folder"):
        describe_corpus(data_spec("owner/stories", source="hub"), cache=cache)


@pytest.mark.parametrize(
    "name", ["tokenizer.json", "../tokenizer.json", "gpt2", "~/tokenizer.json"]
)
def test_a_tokenizer_is_an_absolute_path_or_a_name_with_an_owner(name, tmp_path, monkeypatch):
    byte_tokenizer().save(str(tmp_path / "tokenizer.json"))
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="OWNER/NAME"):
        load_vocabulary(name)


def test_a_tokenizer_file_replaces_bytes(text, tmp_path, cache):
    path = tmp_path / "tokenizer.json"
    byte_tokenizer().save(str(path))
    by_file = opened(data_spec(text, tokenizer=str(path)), cache)
    by_bytes = opened(data_spec(text), cache)
    assert by_file.facts == by_bytes.facts
    assert by_file.vocabulary.decode([104, 105, EOS]) == "hi"


def test_a_tokenizer_that_cannot_end_a_document_is_refused(tmp_path):
    from tokenizers import Tokenizer, models

    path = tmp_path / "tokenizer.json"
    Tokenizer(models.WordLevel({"a": 0}, unk_token="a")).save(str(path))
    with pytest.raises(UserError, match="end-of-document"):
        load_vocabulary(str(path))
    path.write_text("{}")
    with pytest.raises(UserError, match="cannot be loaded"):
        load_vocabulary(str(path))


def test_many_tokens_are_stored_in_four_bytes(text, cache, monkeypatch):
    from node.trainer.text.tokenizer import ByteVocabulary

    narrow = opened(data_spec(text), cache)
    monkeypatch.setattr(ByteVocabulary, "size", 1 << 17)
    wide = opened(data_spec(text), cache.with_name("wide"))
    assert (narrow.facts.token_bytes, wide.facts.token_bytes) == (2, 4)
    assert wide.facts.digest == narrow.facts.digest
    np.testing.assert_array_equal(wide.sequences(1), narrow.sequences(1))


def test_a_filled_cache_is_used_again_and_a_changed_source_is_not(text, cache):
    first = describe_corpus(data_spec(text), cache=cache)
    (folder,) = cache.glob("corpus-*[!k]")
    made = (folder / "train.bin").stat().st_mtime_ns
    assert describe_corpus(data_spec(text, sequence_tokens=16), cache=cache).digest == first.digest
    assert (folder / "train.bin").stat().st_mtime_ns == made
    write_text(text, seed=6)
    assert describe_corpus(data_spec(text), cache=cache).digest != first.digest


@pytest.mark.parametrize("name", ["train.bin", "facts.json"])
def test_a_damaged_cache_is_made_again(text, cache, name):
    first = describe_corpus(data_spec(text), cache=cache)
    (folder,) = cache.glob("corpus-*[!k]")
    os.truncate(folder / name, 7)
    folder.with_suffix(".partial").mkdir()
    assert describe_corpus(data_spec(text), cache=cache) == first


def test_learners_that_start_together_tokenise_once(text, cache):
    spec = data_spec(text)
    with ThreadPoolExecutor(4) as pool:
        found = set(pool.map(lambda _: describe_corpus(spec, cache=cache), range(4)))
    assert len(found) == 1
    assert not list(cache.glob("*.partial"))


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"location": "/nowhere/text.txt"}, "no file /nowhere/text.txt.*location"),
        ({"location": "/nowhere", "source": "folder"}, "no folder /nowhere"),
        ({"location": "/proc/self/task", "source": "parquet"}, "no file ending in .parquet"),
        ({"block_sequences": 60_000}, "tokens, one block needs .*block_sequences"),
        ({"sequence_tokens": 1 << 15, "block_sequences": 1}, "held-out text has .*heldout_frac"),
    ],
)
def test_what_cannot_be_read_or_is_too_short_says_what_to_do(text, cache, changes, words):
    with pytest.raises(UserError, match=words):
        describe_corpus(msgspec.structs.replace(data_spec(text), **changes), cache=cache)


def test_a_cache_that_cannot_be_written_says_so(text, tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cache directory"):
        describe_corpus(data_spec(text), cache=tmp_path / "file")

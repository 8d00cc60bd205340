"""Texts in files of rows: what is read of them, and what their owner is told."""

from __future__ import annotations

import json

import msgspec
import pytest
from pyarrow import Table, parquet

from node.trainer.text.corpus import describe_corpus, is_heldout, open_corpus
from protocol.errors import UserError
from tests.support.tiny_project import data_spec

TEXTS = [f"row {number} " * 60 for number in range(80)]


def jsonl(path, rows):
    path.write_text("".join(json.dumps(one) + "\n" for one in rows))
    return path


def counted(spec, cache):
    found = describe_corpus(spec, cache=cache)
    spec = msgspec.structs.replace(spec, blocks=found.blocks, digest=found.digest)
    return found, open_corpus(spec, seed=3, cache=cache)


def test_lines_of_json_are_the_documents_that_a_column_of_parquet_would_be(tmp_path):
    lines = jsonl(tmp_path / "rows.jsonl", [{"body": one, "stars": 3} for one in TEXTS])
    table = Table.from_pylist([{"stars": 3, "body": one} for one in TEXTS])
    parquet.write_table(table, tmp_path / "rows.parquet")
    (tmp_path / "rows.json").write_text(json.dumps([{"body": one} for one in TEXTS]))
    found = [
        counted(data_spec(path, source=source, text_field="body"), tmp_path / "cache")[1]
        for path, source in (
            (lines, "jsonl"),
            (tmp_path / "rows.json", "jsonl"),
            (tmp_path / "rows.parquet", "parquet"),
        )
    ]
    assert found[0].facts.train_documents == sum(not is_heldout(one, 0.2) for one in TEXTS)
    assert {one.facts.digest for one in found} == {found[0].facts.digest}
    assert (found[0].sequences(5) == found[2].sequences(5)).all()


def test_a_folder_of_rows_is_read_file_by_file_in_the_order_of_their_names(tmp_path):
    whole = jsonl(tmp_path / "whole.jsonl", [{"text": one} for one in TEXTS])
    (tmp_path / "parts").mkdir()
    jsonl(tmp_path / "parts" / "b.jsonl", [{"text": one} for one in TEXTS[30:]])
    jsonl(tmp_path / "parts" / "a.jsonl", [{"text": one} for one in TEXTS[:30]])
    one, _ = counted(data_spec(whole, source="jsonl"), tmp_path / "cache")
    other, _ = counted(data_spec(tmp_path / "parts", source="jsonl"), tmp_path / "cache")
    assert one == other


@pytest.mark.parametrize("kind", ["jsonl", "parquet"])
def test_rows_without_a_text_are_left_out_and_counted(tmp_path, kind):
    rows = [{"text": one} for one in [*TEXTS, None, ""]]
    path = tmp_path / f"rows.{kind}"
    if kind == "jsonl":
        jsonl(path, rows)
    else:
        parquet.write_table(Table.from_pylist(rows), path)
    found, _ = counted(data_spec(path, source=kind), tmp_path / "cache")
    where = "line" if kind == "jsonl" else "row"
    assert found.notes == (
        f"2 of 82 texts left out: rows.{kind} {where} 81: has no text in the field 'text';"
        f" rows.{kind} {where} 82: has no text in the field 'text'",
    )


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([{"body": "a", "stars": 1}], "line 81 has no text in the field 'text'; .* body, stars"),
        ([{"text": 7}], "line 81 has a number in the field 'text', where a text is wanted"),
        ([{"text": ["a"]}], "line 81 has a list in the field 'text'"),
        (["text"], "line 81 is something other .* should be an object"),
        ([{"messages": []}], 'line 81 has no text .*source = "chats"'),
    ],
)
def test_a_row_of_another_kind_is_refused_with_its_place(tmp_path, rows, words):
    path = jsonl(tmp_path / "rows.jsonl", [*({"text": one} for one in TEXTS), *rows])
    with pytest.raises(UserError, match=words):
        describe_corpus(data_spec(path, source="jsonl"), cache=tmp_path / "cache")


def test_what_is_no_json_or_has_no_text_at_all_is_refused(tmp_path):
    path = tmp_path / "rows.jsonl"
    path.write_text('{"text": "sound"}\n\n{"text": \n')
    spec = data_spec(path, source="jsonl")
    with pytest.raises(UserError, match=r"rows\.jsonl line 3 is no JSON .* is one text"):
        describe_corpus(spec, cache=tmp_path / "cache")
    jsonl(path, [{"text": None}] * 3)
    with pytest.raises(UserError, match="'text' is empty in all of its 3 rows"):
        describe_corpus(spec, cache=tmp_path / "cache")
    (tmp_path / "odd.parquet").write_bytes(b"no parquet")
    with pytest.raises(UserError, match=r"odd\.parquet' cannot be read .*Check `location`"):
        describe_corpus(
            data_spec(tmp_path / "odd.parquet", source="parquet"), cache=tmp_path / "cache"
        )
    with pytest.raises(UserError, match="does not end in"):
        describe_corpus(data_spec(path, source="parquet"), cache=tmp_path / "cache")


def test_half_a_surrogate_pair_is_no_reason_to_fail(tmp_path):
    rows = [{"text": one + "\ud800"} for one in TEXTS]
    _, corpus = counted(
        data_spec(jsonl(tmp_path / "a.jsonl", rows), source="jsonl"), tmp_path / "cache"
    )
    assert "row" in corpus.vocabulary.decode(corpus.sequences(0)[0].tolist())

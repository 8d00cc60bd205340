"""A task of lm-eval in a folder: which of two words goes on, with its data beside it."""

from __future__ import annotations

import json
from pathlib import Path

NAME = "own_words"
QUESTIONS = (
    ("the quiet ", "harbour", "zzzzzzz"),
    ("herring ", "qqqq", "drifts"),
    ("at ", "noon", "\u00fc\u00fc"),
    ("past ", "xjx", "the"),
)
"""Question and two answers, of which the text that tests train on has one."""
RIGHT = (0, 1, 0, 1)


def own_tasks(folder: Path) -> Path:
    """Writes the task and its questions."""
    folder.mkdir()
    data = folder / "words.jsonl"
    rows = [
        {"question": question, "choices": choices, "answer": right}
        for (question, *choices), right in zip(QUESTIONS, RIGHT, strict=True)
    ]
    data.write_text("".join(json.dumps(row) + "\n" for row in rows))
    (folder / "words.yaml").write_text(
        f"task: {NAME}\n"
        "dataset_path: json\n"
        f"dataset_kwargs:\n  data_files: {data}\n"
        "test_split: train\n"
        "output_type: multiple_choice\n"
        'doc_to_text: "{{question}}"\n'
        'doc_to_choice: "{{choices}}"\n'
        'doc_to_target: "{{answer}}"\n'
        'target_delimiter: ""\n'
        "metric_list:\n  - metric: acc\n    aggregation: mean\n    higher_is_better: true\n"
    )
    return folder

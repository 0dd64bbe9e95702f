"""A sample of MMLU's development questions, out of lm-eval's own files, as tasks for lm-eval that need no network."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

LETTERS = "ABCD"
TASKS = {"letters": "{{['A', 'B', 'C', 'D']}}", "texts": "{{choices}}"}
"""Two ways to answer an item: one token each, or as many as the answer's text has. By name, with what lm-eval scores."""

_CHOICE = re.compile(r"\(([ABCD])\) ")
_ANSWER = re.compile(r"The answer is \(([ABCD])\)")
_SAMPLES = "lm_eval/tasks/mmlu/flan_cot_fewshot/mmlu_*.yaml"


def write_tasks(site_packages: Path, folder: Path, items: int) -> None:
    """Write ``items`` questions and the tasks that score them into a folder, for lm-eval's ``--include_path``.

    The sample depends on their number alone.
    """
    found = list(_items(site_packages))
    chosen = random.Random(0).sample(found, min(items, len(found)))
    data = folder / "items.jsonl"
    data.write_text("".join(json.dumps(one) + "\n" for one in chosen), encoding="utf-8")
    for name, choices in TASKS.items():
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(_task(name, choices, data)), encoding="utf-8")


def _items(site_packages: Path) -> Iterator[dict[str, Any]]:
    """Each question with four choices and a letter that is right: 281 of 282, the other one names no letter."""
    for path in sorted(site_packages.glob(_SAMPLES)):
        for sample in yaml.safe_load(path.read_text(encoding="utf-8"))["fewshot_config"]["samples"]:
            question, *pairs = _CHOICE.split(sample["question"])
            answer = _ANSWER.search(sample["target"])
            if pairs[::2] == list(LETTERS) and answer is not None:
                choices = [" ".join(text.split()) for text in pairs[1::2]]
                yield {"subject": path.stem, "question": question.strip(), "choices": choices, "answer": LETTERS.index(answer[1])}


def _task(name: str, choices: str, data: Path) -> dict[str, Any]:
    lettered = "".join(f"{letter}. {{{{choices[{index}]}}}}\n" for index, letter in enumerate(LETTERS))
    return {
        "task": name,
        "dataset_path": "json",
        "dataset_kwargs": {"data_files": {"test": str(data)}},
        "test_split": "test",
        "output_type": "multiple_choice",
        "doc_to_text": "{{question}}\n" + (lettered if name == "letters" else "") + "Answer:",
        "doc_to_choice": choices,
        "doc_to_target": "answer",
        "num_fewshot": 0,
        "metric_list": [{"metric": "acc", "aggregation": "mean", "higher_is_better": True}],
    }

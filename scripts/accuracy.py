"""Score questions through a server of mqlab and through transformers, with lm-eval, and hold one against the other item by item.

Usage: python scripts/accuracy.py [--model smollm2-135m] [--topology v1] [--items 40] [--venv out/lm-eval] [--output FILE.json]

Three times the same items: lm-eval's local-completions against ``mqlab serve`` with 1 and with 64 requests at once, and lm-eval's own
transformers backend on the same weights in float32. An item on which two of them choose differently is a tie where their choices
lie within TIE of each other. Exits with 1 where a difference is no tie. lm-eval lives in an environment of its own, which is made
where it is missing (2 GB, about 3 minutes).
"""

from __future__ import annotations

import argparse
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from typing import Any

from mmlu_items import TASKS, write_tasks

ROOT = Path(__file__).resolve().parent.parent
REQUIREMENTS = ("lm-eval[api]==0.4.13", "transformers==5.24.0", "accelerate")
REFERENCE = "transformers"
CONCURRENCIES = (1, 64)
TIE = 1e-3
"""Nats between the log-likelihoods of two choices below which float32 decides between them."""

_OFFLINE = {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
_READY = re.compile(r"mqlab serving (\S+) on (http://\S+) ")

Scores = dict[str, list[list[float]]]
"""By task: of each item the log-likelihood of each choice."""


def main() -> int:
    """Run all, print and write the comparison; the exit status says whether all are equal within ties."""
    options = _options()
    _install(options.venv)
    folder = Path(subprocess.check_output([sys.executable, "-m", "mqlab", "fetch", options.model], text=True).strip())
    with tempfile.TemporaryDirectory() as scratch:
        tasks = Path(scratch)
        write_tasks(next(options.venv.glob("lib/python*/site-packages")), tasks, options.items)
        golds = [json.loads(line)["answer"] for line in (tasks / "items.jsonl").read_text(encoding="utf-8").splitlines()]
        arms, seconds = _score(options, folder, tasks)
    result = _compared(arms, golds) | {"about": _about(options, seconds)}
    if options.output is not None:
        options.output.parent.mkdir(parents=True, exist_ok=True)
        options.output.write_text(json.dumps(result) + "\n", encoding="utf-8")
    print(_told(result))
    return int(any(row["different"] for row in result["arms"].values()))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="smollm2-135m", help="a name that 'mqlab fetch' knows")
    parser.add_argument("--topology", default="v1")
    parser.add_argument("--items", type=int, default=40, help="questions, of 281")
    parser.add_argument("--venv", type=Path, default=ROOT / "out" / "lm-eval", help="lm-eval's environment")
    parser.add_argument("--output", type=Path, default=None, help="write the scores of every item to this file (JSON)")
    return parser.parse_args()


def _install(venv: Path) -> None:
    if (venv / "bin" / "lm_eval").is_file():
        return
    print(f"mqlab: installing lm-eval into {venv}, about 3 minutes", file=sys.stderr)
    subprocess.run([sys.executable, "-m", "venv", venv], check=True)
    pip = [venv / "bin" / "python", "-m", "pip", "install", "--quiet", "--no-compile"]
    subprocess.run([*pip, "--extra-index-url", "https://download.pytorch.org/whl/cpu", f"torch=={version('torch')}"], check=True)
    subprocess.run([*pip, *REQUIREMENTS], check=True)


def _score(options: argparse.Namespace, folder: Path, tasks: Path) -> tuple[dict[str, Scores], dict[str, float]]:
    """What each arm makes of the items, and how many seconds its run took."""
    arms: dict[str, Scores] = {}
    seconds: dict[str, float] = {}

    def run(name: str, model: str, arguments: str) -> None:
        begin = time.monotonic()
        arms[name] = _lm_eval(options.venv, tasks, name, model, arguments)
        seconds[name] = round(time.monotonic() - begin, 1)

    with _server(options.model, options.topology) as (model, url):
        for count in CONCURRENCIES:
            where = f"model={model},base_url={url}/v1/completions,tokenizer={folder},tokenizer_backend=huggingface"
            run(f"mqlab, {count} at once", "local-completions", f"{where},num_concurrent={count},max_length=2048")
    run(REFERENCE, "hf", f"pretrained={folder},dtype=float32,max_length=2048")
    return arms, seconds


@contextmanager
def _server(model: str, topology: str) -> Iterator[tuple[str, str]]:
    """The model's name and the server's URL, while it runs."""
    command = [sys.executable, "-m", "mqlab", "serve", model, "--topology", topology, "--port", "0", "--dtype", "float32", "--no-record"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        try:
            assert server.stdout is not None
            ready = next(filter(None, map(_READY.match, server.stdout)), None)
            if ready is None:
                raise SystemExit(f"mqlab: the server ended with status {server.wait()} before it was ready")
            yield ready[1], ready[2]
        finally:
            server.send_signal(signal.SIGTERM)
            server.wait()


def _lm_eval(venv: Path, tasks: Path, arm: str, model: str, arguments: str) -> Scores:
    output = tasks / arm.replace(" ", "-")
    command = [venv / "bin" / "lm_eval", "--model", model, "--model_args", arguments, "--include_path", tasks, "--tasks", ",".join(TASKS)]
    print(f"mqlab: {arm} …", file=sys.stderr, flush=True)
    environment = {**os.environ, **_OFFLINE, "HF_HOME": str(tasks / "hf")}
    done = subprocess.run(
        [*command, "--device", "cpu", "--batch_size", "1", "--log_samples", "--output_path", output],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise SystemExit(f"mqlab: lm-eval failed on {arm}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}")
    return {task: _likelihoods(next(output.rglob(f"samples_{task}_*.jsonl"))) for task in TASKS}


def _likelihoods(samples: Path) -> list[list[float]]:
    rows = sorted(map(json.loads, samples.read_text(encoding="utf-8").splitlines()), key=lambda row: row["doc_id"])
    return [[float(pair[0]) for pair in row["filtered_resps"]] for row in rows]


def _compared(arms: dict[str, Scores], golds: Sequence[int]) -> dict[str, Any]:
    """Every score, and for each arm how it stands to the reference."""
    rows = {arm: _against(scores, arms[REFERENCE], golds) for arm, scores in arms.items()}
    items = {task: {arm: [[round(x, 5) for x in item] for item in scores[task]] for arm, scores in arms.items()} for task in TASKS}
    return {"tie_nats": TIE, "arms": rows, "answers": list(golds), "log_likelihoods": items}


def _against(scores: Scores, reference: Scores, golds: Sequence[int]) -> dict[str, Any]:
    row: dict[str, Any] = {"accuracy": {}, "ties": [], "different": []}
    largest = 0.0
    for task, items in scores.items():
        row["accuracy"][task] = sum(_chosen(item) == gold for item, gold in zip(items, golds, strict=True)) / len(golds)
        for index, (ours, theirs) in enumerate(zip(items, reference[task], strict=True)):
            largest = max(largest, *(abs(a - b) for a, b in zip(ours, theirs, strict=True)))
            if _chosen(ours) != _chosen(theirs):
                gap = theirs[_chosen(theirs)] - theirs[_chosen(ours)]
                row["ties" if gap < TIE else "different"].append([task, index])
    return row | {"largest_difference_nats": round(largest, 6)}


def _chosen(likelihoods: Sequence[float]) -> int:
    return max(range(len(likelihoods)), key=likelihoods.__getitem__)


def _about(options: argparse.Namespace, seconds: dict[str, float]) -> dict[str, Any]:
    return {
        "model": options.model,
        "dtype": "float32",
        "topology": options.topology,
        "items": options.items,
        "tasks": {"letters": "the letter of the answer, one token", "texts": "the text of the answer, several tokens"},
        "source": "MMLU development questions in lm-eval's mmlu/flan_cot_fewshot, 0-shot",
        "seconds": seconds,
        "versions": {"lm-eval": REQUIREMENTS[0].partition("==")[2], **{name: version(name) for name in ("mqlab", "torch", "transformers")}},
    }


def _told(result: dict[str, Any]) -> str:
    head = f"{'':<22}{'letters':>10}{'texts':>10}{'ties':>6}{'different':>11}{'largest difference, nats':>26}"
    lines = [
        f"{arm:<22}{row['accuracy']['letters']:>10.3f}{row['accuracy']['texts']:>10.3f}{len(row['ties']):>6}{len(row['different']):>11}"
        f"{row['largest_difference_nats']:>26.6f}"
        for arm, row in result["arms"].items()
    ]
    return "\n".join([head, *lines])


if __name__ == "__main__":
    sys.exit(main())

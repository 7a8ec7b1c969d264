import json
import os
import signal
from pathlib import Path
from pydoc_data import topics
from typing import Any, NamedTuple

import pytest

from depthbench import specs

WINDOW = 32


def pytest_configure():
    """Let tests interrupt what they start: `make test &` in a script ignores SIGINT, and every child inherits that."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items):
    """Leave out what needs the interpreter where Triton would compile for a GPU."""
    if os.environ.get("TRITON_INTERPRET") == "1":
        return
    for item in items:
        if item.get_closest_marker("interpret"):
            item.add_marker(pytest.mark.skip(reason="TRITON_INTERPRET is not 1"))


class Prepared(NamedTuple):
    """A small corpus of the standard library's texts, about 60 windows of 32 tokens to train on."""

    folder: Path
    data: dict[str, Any]

    def spec(self, design="preln", **changes):
        """The spec of a run on this data: 2 layers of width 16, 30 steps of 4 windows, so 2 epochs."""
        return specs.RunSpec.model_validate(
            {
                "run_id": f"test/runs/{design}/u-d16-l2/lr1e-2-s0",
                "version": [1, 1],
                "model": {"design": design, "d_model": 16, "n_layers": 2, "n_heads": 2, "vocab_size": 512},
                "steps": 30,
                "lr": "1e-2",
                "seed": 0,
                "sequence_length": WINDOW,
                "batch_sequences": 4,
                "optimizer": {"betas": [0.9, 0.95], "eps": 1e-8, "weight_decay": 0.1, "clip": 1.0},
                "schedule": {"warmup": 0.1, "final": 0.1},
                "precision": {"compute": "float32"},
                "threads": 1,
                "data": self.data,
                **changes,
            }
        )


@pytest.fixture(scope="session")
def prepared(tmp_path_factory):
    from depthbench.data import archives, corpus, shards

    folder = tmp_path_factory.mktemp("prepared")
    texts = [text[:600] for _, text in sorted(topics.topics.items()) if len(text) > 600][:16]
    source = folder / "texts.jsonl"
    source.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    data = {
        "corpus": "topics",
        "source": "files",
        "paths": [str(source)],
        "val_fraction": 0.3,
        "tokenizer": {"vocab_size": 512},
        "version": 1,
    }
    data = specs.DataSpec.model_validate(data).as_dict()
    for name in corpus.archives_needed(data):
        archives.fetch(name)
    shards.prepare(data, folder / "shards")
    return Prepared(folder / "shards", data)

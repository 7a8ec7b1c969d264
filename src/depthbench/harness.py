"""Runs of DepthBench in lm-evaluation-harness (optional extra `eval`): any of its tasks on a model of ours.

    python -m depthbench.harness --model depthbench --model_args path=results/tiny/runs/... --tasks arc_easy

is the command `lm_eval` after this module has registered the model `depthbench`: the command itself knows only the
models of its own package. From Python, import this module and call `lm_eval.simple_evaluate(model="depthbench", ...)`.

Pairs are encoded and scored by `evaluate.scoring`, as our own tasks are. Generation is greedy, one whole forward pass
a token: enough for small models and short answers.
"""

from collections.abc import Sequence
from typing import Any

import torch
from lm_eval.api.model import LM
from lm_eval.api.registry import register_model
from lm_eval.utils import get_rolling_token_windows, make_disjoint_window

from depthbench import device, loading
from depthbench.data.tokenizer import eos_id
from depthbench.evaluate.scoring import cut, encode, score

GENERATED = 256  # tokens at most, where a task does not say


@register_model("depthbench")
class DepthBench(LM):
    """A run as a model of the harness."""

    def __init__(self, path: str, **ignored: Any):
        """Load the run in the folder `path`; the harness's own batch size and device are not used."""
        super().__init__()
        loaded = loading.load(path)
        spec = loaded.record["spec"]
        self.tokenizer, self.max_length = loaded.tokenizer, spec["sequence_length"]
        self.compute, self.eos = spec["precision"]["compute"], eos_id(loaded.tokenizer)
        self.model = loaded.model.to(device.choose(spec.get("threads")))

    def loglikelihood(self, requests: Sequence[Any]) -> list[tuple[float, bool]]:
        """Return the log-likelihood [nats] of each continuation and whether greedy decoding gives it."""
        texts = [request.args for request in requests]
        pairs = [encode(self.tokenizer, context, text, self.max_length) for context, text in texts]
        found = score(self.model, pairs, self.compute)
        return [(-float(nll), bool(greedy)) for nll, greedy in zip(found.nll, found.greedy, strict=True)]

    def loglikelihood_rolling(self, requests: Sequence[Any]) -> list[float]:
        """Return the log-likelihood [nats] of each text, in windows of the context length."""
        texts = [self.tokenizer.encode(request.args[0]).ids for request in requests]
        windows = [[*map(make_disjoint_window, self._windows(ids))] for ids in texts]
        pairs = [cut(before, scored, self.max_length) for found in windows for before, scored in found]
        nll = iter(score(self.model, pairs, self.compute).nll)
        return [-float(sum(next(nll) for _ in found)) for found in windows]

    def _windows(self, ids: list[int]) -> Any:
        return get_rolling_token_windows(ids, self.eos, self.max_length, 1)

    def generate_until(self, requests: Sequence[Any]) -> list[str]:
        """Return what greedy decoding adds to each context, up to the first of the stops that the task names."""
        return [self._generate(*request.args) for request in requests]

    @torch.no_grad()
    def _generate(self, context: str, how: dict[str, Any]) -> str:
        if how.get("do_sample") or how.get("temperature"):
            raise NotImplementedError("greedy decoding only; take a task with do_sample: false")
        until = how.get("until") or []
        stops = [until] if isinstance(until, str) else until
        ids = self.tokenizer.encode(context).ids or [self.eos]
        start, text = len(ids), ""
        while len(ids) - start < how.get("max_gen_toks", GENERATED):
            tokens = torch.tensor([ids[-self.max_length :]], device=self.model.embed.weight.device)
            with device.compute_type(self.compute, tokens.device):
                ids.append(int(self.model.lm_head(self.model.features(tokens)[0, -1]).argmax()))
            text = self.tokenizer.decode(ids[start:], skip_special_tokens=True)
            if ids[-1] == self.eos or any(stop in text for stop in stops):
                break
        return text[: min([text.find(stop) for stop in stops if stop in text], default=len(text))]


if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()

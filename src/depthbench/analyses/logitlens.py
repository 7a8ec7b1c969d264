"""What the head makes of each depth state: how early the model's own distribution is there (logit lens).

    q_l = softmax(head(final norm(lens state l))),  l = 0 (the embedding) .. L;    p = q_L, the model's output
    kl = sum_v p (ln p - ln q_l) [nats];  kl_reverse = sum_v q_l (ln q_l - ln p)

`top1`: share of tokens whose likeliest token is the same; `top5`: mean overlap of the five likeliest; `probe_ce`:
cross-entropy of q_l against the next token. As in DepthBench (arXiv 2609.32534), which takes kl in this direction; the
lens is nostalgebraist's. The lens state of AttnRes is the mixture that the next block (last: the head) reads.

A small kl says that later blocks hardly change the output. A large one does not say that nothing is there: the head is
trained for the last state, and may be unable to read what earlier ones hold.
"""

from collections.abc import Iterable, Sequence

import pandas as pd
import torch
from torch import Tensor
from torch.nn import functional as F

from depthbench.analyses import _documents
from depthbench.analyses._baseline import LOGITS_PER_CHUNK, Baseline, Batch
from depthbench.errors import UserError
from depthbench.model.backbone import Model

TOP = 5
OF_TOKENS = ["kl", "kl_reverse", "top1", "top5"]


def measure(base: Baseline) -> pd.DataFrame:
    """Return the sums over the tokens of each document of a batch.

    Raises:
        UserError: E-BASE where a layer gives numbers that are not finite.
    """
    model, tokens = base.model, base.batch.tokens
    with base.forward():
        features = [model.residual.finish(state, l, model).flatten(0, 1) for l, state in enumerate(base.states)]
    size = max(1, LOGITS_PER_CHUNK // model.cfg.vocab_size)
    following = tokens.roll(-1, 1).flatten()  # of the last position there is none: left out below
    chunks = zip(*(x.split(size) for x in (following, *features)), strict=True)
    found = torch.cat([_compared(base, y, layers) for y, *layers in chunks], -1)
    found = found.view(len(features), -1, *tokens.shape).double()
    _refuse_infinite(found)
    sums = dict(zip(OF_TOKENS, found[:, :-1].sum(-1).unbind(1), strict=True))
    sums["probe_ce"] = found[:, -1, :, :-1].sum(-1)
    for name, n in (("n_tokens", tokens.shape[1]), ("n_predictions", tokens.shape[1] - 1)):
        sums[name] = torch.full((len(features), len(tokens)), n)
    return _documents.frame(base.batch, {"layer": range(len(features))}, sums)


def table(documents: pd.DataFrame, resamples: int) -> pd.DataFrame:
    """Return the measures of each layer, and the interval of `kl`."""
    sums = _documents.gather(documents, ["layer"], [*OF_TOKENS, "probe_ce", "n_tokens", "n_predictions"])
    return sums.cells.assign(
        **{name: sums.ratio(name, "n_tokens") for name in OF_TOKENS},
        probe_ce=sums.ratio("probe_ce", "n_predictions"),
        **sums.interval("kl", "n_tokens", resamples),
        n_docs=len(sums.origins),
    )


def compute(model: Model, batches: Iterable[Batch], resamples: int = 1000, compute: str = "float32") -> pd.DataFrame:
    """Return the table of a model; arguments as in `Baseline`."""
    return table(_documents.stream(model, batches, measure, compute), resamples)


def _compared(base: Baseline, following: Tensor, layers: Sequence[Tensor]) -> Tensor:
    """Return kl, kl_reverse, top1, top5 and probe_ce of each layer's features of some tokens, (layers, 5, tokens)."""
    p = _log_probabilities(base, layers[-1])
    weight, best = p.exp(), p.topk(TOP).indices
    rows = []
    for features in layers:
        q = _log_probabilities(base, features)
        ratio, guess = p - q, q.topk(TOP).indices
        shared = (best[:, :, None] == guess[:, None, :]).any(-1).float().mean(-1)
        kl, kl_reverse = (weight * ratio).sum(-1), -(q.exp() * ratio).sum(-1)
        ce = F.nll_loss(q, following, reduction="none")
        rows.append(torch.stack([kl, kl_reverse, best[:, 0] == guess[:, 0], shared, ce]))
    return torch.stack(rows)


def _refuse_infinite(found: Tensor) -> None:
    finite = found.isfinite().flatten(2).all(2)  # (layers, measures)
    if finite.all():
        return
    # A last layer that is not finite spoils all measures but the cross-entropy, which is of each layer alone.
    at_fault = finite.all(1) if finite[:, -1].all() else finite[:, -1]
    raise UserError(
        "E-BASE",
        f"logit lens: layer {int(at_fault.logical_not().nonzero()[0])}: not finite; the model is broken: "
        "train it again, at a lower rate if it diverged",
    )


def _log_probabilities(base: Baseline, features: Tensor) -> Tensor:
    """Return ln of the distributions that the head makes of features, float32 (tokens, V)."""
    with base.forward():
        logits = base.model.lm_head(features)
    return logits.float().log_softmax(-1)

"""Which readout a released checkpoint of HC was trained with: by loss, since its files do not tell.

The authors' code once normalised every stream and summed, later summed and normalised. The wrong order scales the
logits of a trained model by about m and costs 0.9 to 3 nats; an untrained one does not tell.
"""

from dataclasses import replace
from itertools import islice
from pathlib import Path

import torch
from torch import Tensor

from depthbench import device
from depthbench.data.loader import Heldout
from depthbench.errors import UserError
from depthbench.evaluate.validation import document_nll
from depthbench.model.backbone import Model
from depthbench.model.config import CHOICES, ModelConfig

DOCUMENTS = 64
CLEAR = 0.3  # nats/token


def losses(state: dict[str, Tensor], cfg: ModelConfig, data: Path, sequence_length: int) -> dict[str, float]:
    """Return the loss of each readout [nats/token] over the first held-out documents, cut to a window each."""
    documents = [row.tokens for row in islice(Heldout(data, sequence_length), DOCUMENTS)]
    n_predictions = sum(len(tokens) - 1 for tokens in documents)
    found = {}
    for readout in CHOICES["hc_readout"]:
        with torch.device("meta"):
            model = Model(replace(cfg, hc_readout=readout))
        model.load_state_dict({name: tensor.float() for name, tensor in state.items()}, assign=True)
        model.eval().to(device.choose(None))
        found[readout] = float(document_nll(model, documents).sum()) / n_predictions
    return found


def choose(found: dict[str, float]) -> str:
    """Return the readout of the lower loss.

    Raises:
        UserError: E-READOUT if they are too close to tell.
    """
    best, other = sorted(found, key=lambda readout: found[readout])
    # a loss that is not a number is not clear either
    if not found[other] - found[best] >= CLEAR:
        told = ", ".join(f"{readout} {loss:.4f}" for readout, loss in found.items())
        raise UserError(
            "E-READOUT",
            f"losses of {told} nats/token differ by less than {CLEAR}; say --readout {' or --readout '.join(found)}",
        )
    return best

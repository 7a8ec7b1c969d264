"""Models to measure: their weights are drawn on the device, in a moment, since their values cost nothing."""

import torch

from depthbench.model.backbone import Model, store_bfloat16
from depthbench.model.config import ModelConfig


def drawn(cfg: ModelConfig, at: torch.device, *, bfloat16: bool) -> Model:
    """Return a model on a device, its matrices normal, in float32 or as `store_bfloat16` leaves it."""
    with at:
        model = Model(cfg)
    generator = torch.Generator(at).manual_seed(0)
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim > 1:
                parameter.normal_(0.0, cfg.init_std, generator=generator)
    if bfloat16:
        store_bfloat16(model)
    return model

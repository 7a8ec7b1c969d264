"""Small models with generic parameters, and the list of designs that the contract tests run over."""

import torch

from depthbench.model import ModelConfig, build_model


def config(design, **changes):
    """Grouped heads, L not divisible by 4, and every eps different and large enough to be seen."""
    keys = {
        "d_model": 16,
        "n_layers": 3,
        "n_heads": 4,
        "n_kv_heads": 2,
        "vocab_size": 23,
        "norm_eps": 1e-3,
        "hc_rms_eps": 1e-2,
        "mhc_rms_eps": 2e-2,
        "sinkhorn_iters": 3,
        "sinkhorn_eps": 1e-2,
        "attnres_eps": 1e-4,
    }
    return ModelConfig(design, **(keys | changes))


def generic(cfg, dtype=torch.float64):
    """A model whose parameters are all far from their initial values."""
    model = build_model(cfg).to(dtype)
    generator = torch.Generator().manual_seed(7)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter += (0.3 * noise).to(dtype)
    return model


def through(model, state, positions=None):
    """The state behind the given positions, all of them by default."""
    for position in range(model.cfg.n_layers) if positions is None else positions:
        state = model.apply_block(position, state)
    return state


def tensors(state):
    """All tensors of a state."""
    if isinstance(state, torch.Tensor):
        return [state]
    return [t for part in state or () if not isinstance(part, int | float) for t in tensors(part)]

"""The backbone: embedding, blocks, head. It never asks which residual design it runs.

A model runs in two ways that agree: `model(tokens)` for training and evaluation, and `start`, `apply_block`,
`skip_block`, `represent`, `readout` for the analyses, which need states that can be kept, stacked and
branched off.
"""

import copy
import importlib
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from depthbench.errors import UserError
from depthbench.model.config import ModelConfig
from depthbench.model.layers import Attention, Embedding, FeedForward, Linear, RMSNorm

SKIP_MODES = ("mask", "released")


class Block(nn.Module):
    """One attention and one FFN; the residual design adds its norms and connectors."""

    def __init__(self, cfg: ModelConfig, index: int):
        super().__init__()
        self.index = index  # of the block that owns the tensors, wherever it stands
        self.attn, self.ffn = Attention(cfg), FeedForward(cfg)


class Model(nn.Module):
    """A language model with the residual design `cfg.design`; its weights are not drawn, see `build_model`.

    k = 0 .. 2L-1 counts sub-layers (even: attention, odd: FFN), positions 0 .. L-1 count blocks.
    """

    blocks: nn.ModuleList
    norm: RMSNorm

    def __init__(self, cfg: ModelConfig):
        super().__init__()
        self.cfg = cfg
        module = importlib.import_module(f"depthbench.residuals.{cfg.design}")
        if not hasattr(module, "Residual"):
            raise UserError("E-CONFIG", f"residuals/{cfg.design}.py: no class Residual; see residuals/base.py")
        self.residual = module.Residual(cfg)
        self.embed = Embedding(cfg.vocab_size, cfg.d_model)
        self.blocks = nn.ModuleList(Block(cfg, l) for l in range(cfg.n_layers))
        self.lm_head = Linear(cfg.d_model, cfg.vocab_size)
        for l, owner in enumerate([*self.blocks, self]):
            for name, module in self.residual.modules(l).items():
                parent, _, leaf = name.rpartition(".")
                owner.get_submodule(parent).add_module(leaf, module)

    def forward(self, tokens: Tensor) -> Tensor:
        """Return the logits, (B, T) int64 -> (B, T, V)."""
        return self.lm_head(self.features(tokens))

    def features(self, tokens: Tensor) -> Tensor:
        """Return the normalised input of the LM head, (B, T) int64 -> (B, T, d)."""
        state = self.residual.start(self.embedded(tokens), self, once=True)
        for k in range(2 * self.cfg.n_layers):
            state, _ = self.sublayer(k, state, self.blocks[k // 2])
        return self.residual.finish(state, self.cfg.n_layers, self)

    def sublayer(self, k: int, state: Any, block: nn.Module) -> tuple[Any, Tensor]:
        """Run sub-layer k with the tensors of `block`; return the next state and the branch output."""
        x, memo = self.residual.read(state, k, block)
        out, memo = self.residual.branch(x, k, block, memo)
        return self.residual.write(memo, k, block, out), out

    def start(self, tokens: Tensor) -> Any:
        """Return the state in front of block 0: tensors (batch first) and numbers, never changed in place."""
        return self.residual.start(self.embedded(tokens), self)

    def apply_block(self, position: int, state: Any, params_of: int | None = None) -> Any:
        """Return the state behind the block at `position`, run with the tensors of block `params_of`.

        Structure, eps and position stay those of the place; tensors that only one of the two blocks has stay too.
        """
        assert 0 <= position < self.cfg.n_layers, position
        block = self.blocks[position]
        if params_of not in (None, position):
            block = placed(block, self.blocks[params_of])
        for k in (2 * position, 2 * position + 1):
            state, _ = self.sublayer(k, state, block)
        return self.residual.settle(state)

    def skip_block(self, position: int, state: Any, mode: str = "mask") -> Any:
        """Return the state behind `position` with the block there left out.

        "mask": later blocks read nothing of it, as if it did not exist. "released": the rule of the paper's public
        code, which differs for AttnRes (the next mixture at a boundary copies its newest source) and MoDA (the
        block's depth slots stay, as zeros).
        """
        assert 0 <= position < self.cfg.n_layers, position
        if mode not in SKIP_MODES:
            raise UserError("E-CONFIG", f"skip_mode={mode!r}: unknown; choose one of {', '.join(SKIP_MODES)}")
        return self.residual.skip(state, position, mode)

    def represent(self, position: int, state: Any) -> Tensor:
        """Return the depth state z_position, 0 .. L, (B, T, width of the design's state)."""
        return self.residual.represent(state, position, self)

    def readout(self, state: Any, position: int | None = None) -> Tensor:
        """Return logits (B, T, V); with a position below L, those of that depth state (logit lens)."""
        position = self.cfg.n_layers if position is None else position
        return self.lm_head(self.residual.finish(state, position, self))

    def embedded(self, tokens: Tensor) -> Tensor:
        """Return the embedding in the dtype of the residual stream, which all later operations keep."""
        x0, device = self.embed(tokens), tokens.device.type
        if not torch.is_autocast_enabled(device):
            return x0
        return x0.to(torch.float32 if self.residual.float32_stream else torch.get_autocast_dtype(device))


def placed(here: nn.Module, other: nn.Module) -> nn.Module:
    """Return a view of `here` with the tensors of `other` wherever both have one of that name."""
    view = copy.copy(here)
    view.__dict__["_parameters"] = {n: other._parameters.get(n, p) for n, p in here._parameters.items()}
    others = dict(other.named_children())
    view.__dict__["_modules"] = {n: placed(m, others[n]) if n in others else m for n, m in here.named_children()}
    if isinstance(here, Block):
        view.index = other.index
    return view


def build_model(cfg: ModelConfig, seed: int = 0) -> Model:
    """Return a float32 model on the CPU, its matrices drawn from a normal distribution truncated at 3 std.

    The values depend on cfg and seed only, not on the global generator, which is left alone.
    """
    model = Model(cfg)
    generator = torch.Generator().manual_seed(seed)
    for name, parameter, default in _parameters(model, cfg.init_std):
        std = model.residual.init_std(name, default)
        if std is not None:
            nn.init.trunc_normal_(parameter, 0.0, std, -3 * std, 3 * std, generator=generator)
    return model


def store_bfloat16(model: Model) -> None:
    """Round the weights to bfloat16, those aside that the design keeps in float32 (recipe `released`)."""
    for name, parameter in model.named_parameters():
        if set(name.split(".")).isdisjoint(model.residual.float32_parameters):
            parameter.data = parameter.data.bfloat16()


def _parameters(model: Model, std: float) -> Iterator[tuple[str, nn.Parameter, float | None]]:
    """Yield name, parameter and default std; None for those that keep the value they were built with."""
    for path, module in model.named_modules():
        default = std if isinstance(module, nn.Linear | nn.Embedding) else None
        for leaf, parameter in module.named_parameters(recurse=False):
            yield f"{path}.{leaf}", parameter, default

"""Full attention residuals (arXiv 2609.32534, Appendix A): every sub-layer reads a mixture of all outputs.

    sources: x0, f_0, f_1, ...;    u_0 = x0;    u_k = softmax mixture over [x0, f_0 .. f_{k-1}]
    f_k = F_k(RMSNorm(u_k)), nothing is added anywhere;    readout: mixture over all 2L + 1 sources

Block AttnRes with one output per source. With zero queries the mixture is the mean of the sources and the network
is Pre-LN up to eps. A training forward keeps its sources in a workspace.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from depthbench.model.config import ModelConfig
from depthbench.residuals import attnres_block, base
from depthbench_kernels.depth_mix import workspace


class Work(NamedTuple):
    """The state of a training forward: used once, in order."""

    workspace: Any
    newest: Tensor  # the embedding, then the last branch output


class Residual(attnres_block.Residual):
    """u_k = softmax mixture of x0, f_0 .. f_{k-1};  f_k = F_k(norm(u_k))."""

    def __init__(self, cfg: ModelConfig):
        super().__init__(cfg)
        self.b = 1

    def start(self, x0: Tensor, model: Any, once: bool = False) -> Any:
        if not once:
            return super().start(x0, model)
        sites = range(1, 2 * self.cfg.n_layers + 1)
        weights = torch.stack(
            [self.mixer(k, model.blocks[k // 2] if k < len(sites) else model).product() for k in sites]
        )
        return Work(workspace(x0, weights, eps=self.cfg.attnres_eps), x0)

    def read(self, state: Any, k: int, block: nn.Module) -> tuple[Tensor, Any]:
        if not isinstance(state, Work):
            return super().read(state, k, block)
        norm = getattr(block, base.side(k) + "_norm")
        return norm(state.newest) if k == 0 else state.workspace.consume(state.newest, norm.weight), state

    def write(self, memo: Any, k: int, block: nn.Module, out: Tensor) -> Any:
        if not isinstance(memo, Work):
            return super().write(memo, k, block, out)
        return Work(memo.workspace, out)

    def finish(self, state: Any, position: int, model: Any) -> Tensor:
        if not isinstance(state, Work):
            return super().finish(state, position, model)
        return state.workspace.consume(state.newest, model.norm.weight)

"""Hyper-Connections (arXiv 2409.19606): m streams H with learned, input-dependent reads, writes and map.

    H_0 = x0 in all streams;    (r, A, w) = routing of sub-layer k on H
    u_k = sum_s r_s H_s;    f_k = F_k(RMSNorm(u_k));    H'_t = sum_s A[s, t] H_s + w_t f_k
    readout: the sum of the streams

The routing formula is in `depthbench_kernels.streams`. At the start all streams stay equal and the network is
Pre-LN.
"""

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from depthbench.model.config import ModelConfig
from depthbench.residuals import base
from depthbench_kernels.streams import HCRouting, hc_boundary, hc_routing, write_streams


class Connector(nn.Module):
    """Routing parameters of sub-layer k."""

    def __init__(self, cfg: ModelConfig, k: int):
        super().__init__()
        m, d = cfg.n_streams, cfg.d_model
        read = F.one_hot(torch.tensor(k % m), m)[:, None]
        self.static_alpha = nn.Parameter(torch.cat([read, torch.eye(m)], 1))
        self.static_beta = nn.Parameter(torch.ones(m))
        self.dynamic_alpha_proj = nn.Parameter(torch.zeros(d, m + 1))
        self.dynamic_beta_proj = nn.Parameter(torch.zeros(d))
        self.dynamic_alpha_scale = nn.Parameter(torch.tensor(0.01))
        self.dynamic_beta_scale = nn.Parameter(torch.tensor(0.01))

        self.eps = cfg.hc_rms_eps

    def boundary(self, state: "State", norm: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Return (carried, write weights, branch input) behind the pending write."""
        return hc_boundary(*state, self._routing(), norm.weight, routing_eps=self.eps, eps=norm.eps)

    def weights(self, streams: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return read weights (B, T, m), map (B, T, m, m) as [in, out] and write weights (B, T, m)."""
        return hc_routing(streams, self._routing(), eps=self.eps)

    def _routing(self) -> HCRouting:
        return HCRouting(*(getattr(self, name) for name in HCRouting._fields))


class State(NamedTuple):
    """m streams."""

    carried: Tensor  # (B, T, m, d), the streams without the pending write
    pending: tuple[Tensor, Tensor] | None = None  # branch output (B, T, d) and its write weights (B, T, m)


class Residual(base.Residual):
    """H'_t = sum_s A[s, t] H_s + w_t F(norm(sum_s r_s H_s));  r, A, w: learned, plus a tanh of H."""

    no_decay: tuple[str, ...] = ("static_alpha", "static_beta")
    key = "hc"  # ends the names of the connectors
    connector: type[nn.Module] = Connector

    def __init__(self, cfg: ModelConfig):
        super().__init__(cfg)
        # A norm of each stream scales it before the sum: no fixed weights give the readout.
        self.exact_pathway = cfg.hc_readout == "sum_then_norm"

    def modules(self, l: int) -> dict[str, nn.Module]:
        own = super().modules(l)
        if l < self.cfg.n_layers:
            own |= {f"{base.side(k)}_{self.key}": self.connector(self.cfg, k) for k in (2 * l, 2 * l + 1)}
        return own

    def init_std(self, name: str, std: float | None) -> float | None:
        if std is not None and name.endswith(("wo.weight", "w_down.weight")):
            return std * self.cfg.n_streams**-0.5
        return std

    def start(self, x0: Tensor, model: nn.Module, once: bool = False) -> State:
        return State(x0[..., None, :].expand(*x0.shape[:-1], self.cfg.n_streams, -1))

    def read(self, state: State, k: int, block: nn.Module) -> tuple[Tensor, tuple[Tensor, Tensor]]:
        norm = getattr(block, base.side(k) + "_norm")
        carried, w, x = self._connector(k, block).boundary(state, norm)
        return x, (carried, w)

    def write(self, memo: tuple[Tensor, Tensor], k: int, block: nn.Module, out: Tensor) -> State:
        carried, w = memo
        return State(carried, (out, w))

    def settle(self, state: State) -> State:
        return State(write_streams(*state))

    def represent(self, state: State, position: int, model: nn.Module) -> Tensor:
        return state.carried.flatten(-2)

    def finish(self, state: State, position: int, model: Any) -> Tensor:
        streams = write_streams(*state)
        if self.cfg.hc_readout == "norm_then_sum":
            return model.norm(streams).sum(-2)
        return model.norm(streams.sum(-2))

    def read_weights(self, state: State, k: int, at: nn.Module) -> Tensor:
        if k == 2 * self.cfg.n_layers:
            return torch.ones_like(state.carried[..., 0])
        return self._connector(k, at).weights(state.carried)[0]

    def write_weights(self, state: State, k: int, block: nn.Module, out: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        return *self._connector(k, block).weights(state.carried)[1:], out

    def _connector(self, k: int, block: nn.Module) -> Any:
        return getattr(block, f"{base.side(k)}_{self.key}")

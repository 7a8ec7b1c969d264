"""Manifold-constrained Hyper-Connections (arXiv 2512.24880): HC whose map is close to doubly stochastic.

    (r, R, w) = routing of sub-layer k on H: sigmoid reads, 2 sigmoid writes, R[out, in] normalised by Sinkhorn
    u_k = sum_s r_s H_s;    f_k = F_k(RMSNorm(u_k));    H'_t = sum_s R[t, s] H_s + w_t f_k
    readout: the mean of the streams

The routing formula is in `depthbench_kernels.streams`. The gains multiply the projection alone, the bias is added
afterwards. At the start each sub-layer reads one stream (r = 0.999665, the others 0.000335), writes to all with
weight 1, and the map is the identity up to 3.35e-4, so the network is nearly Pre-LN.
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from depthbench.model.config import ModelConfig
from depthbench.residuals import hc
from depthbench_kernels.streams import MHCRouting, mhc_boundary, mhc_routing, write_streams


class Connector(nn.Module):
    """Routing parameters of sub-layer k."""

    def __init__(self, cfg: ModelConfig, k: int):
        super().__init__()
        m, n = cfg.n_streams, cfg.n_streams**2 + 2 * cfg.n_streams
        read = 16.0 * F.one_hot(torch.tensor(k % m), m) - 8.0
        bias = torch.cat([read, torch.zeros(m), (8.0 * torch.eye(m) - 8.0).flatten()])
        self.phi = nn.Parameter(torch.zeros(m * cfg.d_model, n))
        self.bias = nn.Parameter(torch.zeros(n) if cfg.init == "legacy" else bias)
        self.alpha_pre = nn.Parameter(torch.tensor(0.01))
        self.alpha_post = nn.Parameter(torch.tensor(0.01))
        self.alpha_res = nn.Parameter(torch.tensor(0.01))
        self.cfg = cfg

    def boundary(self, state: hc.State, norm: Any) -> tuple[Tensor, Tensor, Tensor]:
        """Return (carried, write weights, branch input) behind the pending write."""
        return mhc_boundary(
            *state,
            self._routing(),
            norm.weight,
            routing_eps=self.cfg.mhc_rms_eps,
            eps=norm.eps,
            iters=self.cfg.sinkhorn_iters,
            sinkhorn_eps=self.cfg.sinkhorn_eps,
        )

    def weights(self, streams: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return read weights (B, T, m), map (B, T, m, m) as [in, out] and write weights (B, T, m)."""
        cfg = self.cfg
        return mhc_routing(
            streams, self._routing(), eps=cfg.mhc_rms_eps, iters=cfg.sinkhorn_iters, sinkhorn_eps=cfg.sinkhorn_eps
        )

    def _routing(self) -> MHCRouting:
        return MHCRouting(*(getattr(self, name) for name in MHCRouting._fields))


class Residual(hc.Residual):
    """H'_t = sum_s R[t, s] H_s + w_t F(norm(sum_s r_s H_s));  r, w: sigmoids, R: Sinkhorn, of H."""

    no_decay = float32_parameters = ("bias", "alpha_pre", "alpha_post", "alpha_res")
    key = "mhc"
    connector = Connector

    def init_std(self, name: str, std: float | None) -> float | None:
        if name.endswith("phi") and self.cfg.init == "legacy":
            return self.cfg.init_std
        return super().init_std(name, std)

    def finish(self, state: hc.State, position: int, model: Any) -> Tensor:
        return model.norm(write_streams(*state).mean(-2))

    def read_weights(self, state: hc.State, k: int, at: nn.Module) -> Tensor:
        weights = super().read_weights(state, k, at)
        return weights / self.cfg.n_streams if k == 2 * self.cfg.n_layers else weights

"""FLOPs and cache size of a model in closed form (DepthBench, arXiv 2609.32534, Appendix D). No torch here.

One multiply-add counts 2. Norms, softmax, Sinkhorn and elementwise work are left out; causal attention counts
half. For one sequence of T positions, width d, FFN width f, d_kv = key/value heads x head width, m streams:

    blocks         L (4 T d^2 + 4 T d d_kv + 6 T d f + 2 T^2 d)
    head           2 T d V at all positions, 2 d V at the last one
    hc             2 L (2 T m d (m + 1) + 2 T m d + 2 T m (m + 1) d + 2 T m d)
    mhc            2 L (2 T m d (m^2 + 2 m) + 2 T m d + 2 T m^2 d + 2 T m d)
    attnres        4 T d for each source of each mixture: 1 + ceil(k / b) at sub-layer k, k = 2 L the readout
    moda           (L - 1) 4 T d d_kv + 4 T d L (L - 1): FFN slots, and 2 l slots read by block l
"""

from depthbench.model.config import ModelConfig


def forward_flops(cfg: ModelConfig, n_positions: int, *, last_only: bool = False) -> int:
    """Return the FLOPs of a forward pass over one sequence; `last_only`: logits of the last position alone."""
    T, d = n_positions, cfg.d_model
    blocks = cfg.n_layers * (4 * T * d * (d + _kv_width(cfg)) + 6 * T * d * cfg.d_ff + 2 * T * T * d)
    return blocks + 2 * (1 if last_only else T) * d * cfg.vocab_size + residual_flops(cfg, T)


def training_flops(cfg: ModelConfig, n_positions: int) -> int:
    """Return the FLOPs of a forward and backward pass over one sequence: three forward passes, all logits."""
    return 3 * forward_flops(cfg, n_positions)


def residual_flops(cfg: ModelConfig, n_positions: int, *, paper: bool = False) -> int:
    """Return what the design adds to Pre-LN; 0 for designs that are not in the paper.

    `paper`: Block AttnRes by the formula of Appendix D, which counts the empty sum at a boundary as a source.
    """
    T, d, L, m = n_positions, cfg.d_model, cfg.n_layers, cfg.n_streams
    if cfg.design == "hc":
        return 2 * L * (4 * T * m * (m + 1) * d + 4 * T * m * d)
    if cfg.design == "mhc":
        return 2 * L * (2 * T * m * d * (m * m + 2 * m) + 2 * T * m * m * d + 4 * T * m * d)
    if cfg.design in ("attnres_full", "attnres_block"):
        b = cfg.attnres_block_size if cfg.design == "attnres_block" else 1
        if paper and cfg.design == "attnres_block":
            return 4 * T * d * (sum(2 + k // b for k in range(1, 2 * L)) + 9)
        return 4 * T * d * sum(1 - (-k // b) for k in range(1, 2 * L + 1))
    if cfg.design in ("moda", "moda_postln"):
        return 4 * T * d * (L - 1) * (_kv_width(cfg) + L)
    return 0


def kv_cache_bytes(cfg: ModelConfig, n_positions: int, bytes_per_number: int = 2) -> int:
    """Return the size of the key/value cache of one sequence, the same for all designs.

    MoDA's depth slots are read by their own token only, so they need not outlive it.
    """
    return 2 * cfg.n_layers * n_positions * _kv_width(cfg) * bytes_per_number


def _kv_width(cfg: ModelConfig) -> int:
    return cfg.n_kv_heads * cfg.head_dim

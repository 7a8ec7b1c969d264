"""The backbone and each residual design written out literally, in float64, from the paper's formulas.

Works on a state dict only. `order[p]` is the block whose tensors stand at position p, `skipped` positions do
not exist. Each design function returns the depth states z_0 .. z_L in front of and behind the blocks that
exist, and the logits.
"""

import math

import torch


class Tensors:
    """The tensors of block `owner` at `position`; those that only one of the two has stay where they are."""

    def __init__(self, state, position, owner):
        self.state, self.here, self.other = state, f"blocks.{position}.", f"blocks.{owner}."

    def __getitem__(self, name):
        moved = self.other + name in self.state and self.here + name in self.state
        return self.state[(self.other if moved else self.here) + name]


def rms(x, gain, eps):
    return gain * x / torch.sqrt((x * x).mean(-1, keepdim=True) + eps)


def rotated(x, theta):
    """(B, T, e): channel i pairs with i + e/2."""
    T, half = x.shape[1], x.shape[-1] // 2
    out = x.clone()
    for t in range(T):
        for i in range(half):
            angle = t * theta ** (-2 * i / (2 * half))
            a, b = x[:, t, i], x[:, t, i + half]
            out[:, t, i] = a * math.cos(angle) - b * math.sin(angle)
            out[:, t, i + half] = a * math.sin(angle) + b * math.cos(angle)
    return out


def attention(n, p, cfg):
    e, T = cfg.head_dim, n.shape[1]
    heads = []
    for h in range(cfg.n_heads):
        g = h // (cfg.n_heads // cfg.n_kv_heads)
        q = rotated(n @ p["attn.wq.weight"][h * e : (h + 1) * e].T, cfg.rope_theta)
        k = rotated(n @ p["attn.wk.weight"][g * e : (g + 1) * e].T, cfg.rope_theta)
        v = n @ p["attn.wv.weight"][g * e : (g + 1) * e].T
        scores = q @ k.transpose(1, 2) / math.sqrt(e)
        scores = scores.masked_fill(torch.ones(T, T).triu(1).bool(), -math.inf)
        heads.append(torch.softmax(scores, -1) @ v)
    return torch.cat(heads, -1) @ p["attn.wo.weight"].T


def ffn(n, p, cfg):
    gate = n @ p["ffn.w_gate.weight"].T
    return (gate * torch.sigmoid(gate) * (n @ p["ffn.w_up.weight"].T)) @ p["ffn.w_down.weight"].T


BRANCHES = (("attn", attention), ("ffn", ffn))


def placed(state, cfg, order, skipped):
    order = order or range(cfg.n_layers)
    return [(l, Tensors(state, l, order[l])) for l in range(cfg.n_layers) if l not in skipped]


def preln(state, cfg, tokens, order=None, skipped=()):
    h = state["embed.weight"][tokens]
    depth = [h]
    for _, p in placed(state, cfg, order, skipped):
        for name, branch in BRANCHES:
            h = h + branch(rms(h, p[name + "_norm.weight"], cfg.norm_eps), p, cfg)
        depth.append(h)
    return depth, rms(h, state["norm.weight"], cfg.norm_eps) @ state["lm_head.weight"].T


def hc(state, cfg, tokens, order=None, skipped=()):
    x0 = state["embed.weight"][tokens]
    H = [x0] * cfg.n_streams
    streams = range(cfg.n_streams)
    depth = [torch.cat(H, -1)]
    for _, p in placed(state, cfg, order, skipped):
        for name, branch in BRANCHES:
            c = {
                key: p[f"{name}_hc.{key}"]
                for key in ("static_alpha", "static_beta", "dynamic_alpha_proj", "dynamic_beta_proj")
            }
            alpha_scale, beta_scale = p[f"{name}_hc.dynamic_alpha_scale"], p[f"{name}_hc.dynamic_beta_scale"]
            n = [H[s] / torch.sqrt((H[s] ** 2).mean(-1, keepdim=True) + cfg.hc_rms_eps) for s in streams]
            C = [c["static_alpha"][s] + alpha_scale * torch.tanh(n[s] @ c["dynamic_alpha_proj"]) for s in streams]
            w = [c["static_beta"][s] + beta_scale * torch.tanh(n[s] @ c["dynamic_beta_proj"]) for s in streams]
            u = sum(C[s][..., :1] * H[s] for s in streams)
            f = branch(rms(u, p[name + "_norm.weight"], cfg.norm_eps), p, cfg)
            H = [sum(C[s][..., 1 + t, None] * H[s] for s in streams) + w[t][..., None] * f for t in streams]
        depth.append(torch.cat(H, -1))
    if cfg.hc_readout == "norm_then_sum":
        head = sum(rms(h, state["norm.weight"], cfg.norm_eps) for h in H)
    else:
        head = rms(sum(H), state["norm.weight"], cfg.norm_eps)
    return depth, head @ state["lm_head.weight"].T


def attnres_full(state, cfg, tokens, order=None, skipped=()):
    sources = [state["embed.weight"][tokens]]

    def mixture(query, key_gain):
        scores = torch.stack([(query * rms(v, key_gain, cfg.attnres_eps)).sum(-1) for v in sources])
        p = torch.softmax(scores, 0)
        return sum(p[i][..., None] * v for i, v in enumerate(sources))

    depth = []
    for l, p in placed(state, cfg, order, skipped):
        for name, branch in BRANCHES:
            if l == 0 and name == "attn":
                u, eps = sources[0], cfg.norm_eps
            else:
                u, eps = mixture(p[name + "_res.query"], p[name + "_res.key_norm.weight"]), cfg.attnres_eps
            if name == "attn":
                depth.append(u)
            sources.append(branch(rms(u, p[name + "_norm.weight"], eps), p, cfg))
    u = mixture(state["final_res.query"], state["final_res.key_norm.weight"])
    return [*depth, u], rms(u, state["norm.weight"], cfg.attnres_eps) @ state["lm_head.weight"].T

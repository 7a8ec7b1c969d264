"""The backbone and each residual design written out literally, in float64, from the paper's formulas.

Works on a state dict only. `order[p]` is the block whose tensors stand at position p, `skipped` positions do
not exist; with `released` they leave behind what they do in the paper's public code. Each design function returns
the depth states z_0 .. z_L in front of and behind the blocks that exist, and the logits.
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


def layer_norm(x, gain, eps):
    centred = x - x.mean(-1, keepdim=True)
    return gain * centred / torch.sqrt((centred * centred).mean(-1, keepdim=True) + eps)


def rotated(x, theta):
    """(B, T, e): channel i pairs with i + e/2."""
    T, half = x.shape[1], x.shape[-1] // 2
    angles = [[t * theta ** (-2 * i / (2 * half)) for i in range(half)] for t in range(T)]
    cos, sin = (torch.tensor([[f(x) for x in row] for row in angles], dtype=x.dtype) for f in (math.cos, math.sin))
    a, b = x[..., :half], x[..., half:]
    return torch.cat([a * cos - b * sin, a * sin + b * cos], -1)


def attention(n, p, cfg, slots=()):
    """`slots`: pairs of keys (not rotated) and values of the same token, (B, T, G e) each."""
    e, T = cfg.head_dim, n.shape[1]
    heads = []
    for h in range(cfg.n_heads):
        g = h // (cfg.n_heads // cfg.n_kv_heads)
        own = slice(g * e, (g + 1) * e)
        q = rotated(n @ p["attn.wq.weight"][h * e : (h + 1) * e].T, cfg.rope_theta)
        k = rotated(n @ p["attn.wk.weight"][own].T, cfg.rope_theta)
        v = n @ p["attn.wv.weight"][own].T
        scores = q @ k.transpose(1, 2) / math.sqrt(e)
        scores = scores.masked_fill(torch.ones(T, T).triu(1).bool(), -math.inf)
        depth = [(q * key[..., own]).sum(-1, keepdim=True) / math.sqrt(e) for key, _ in slots]
        weights = torch.softmax(torch.cat([scores, *depth], -1), -1)
        out = weights[..., :T] @ v
        for j, (_, value) in enumerate(slots):
            out = out + weights[..., T + j, None] * value[..., own]
        heads.append(out)
    return torch.cat(heads, -1) @ p["attn.wo.weight"].T


def ffn(n, p, cfg):
    gate = n @ p["ffn.w_gate.weight"].T
    return (gate * torch.sigmoid(gate) * (n @ p["ffn.w_up.weight"].T)) @ p["ffn.w_down.weight"].T


BRANCHES = (("attn", attention), ("ffn", ffn))


def placed(state, cfg, order, skipped):
    order = order or range(cfg.n_layers)
    return [(l, Tensors(state, l, order[l])) for l in range(cfg.n_layers) if l not in skipped]


def decoded(h, state, cfg):
    return rms(h, state["norm.weight"], cfg.norm_eps) @ state["lm_head.weight"].T


def preln(state, cfg, tokens, order=None, skipped=(), released=False):
    h = state["embed.weight"][tokens]
    depth = [h]
    for _, p in placed(state, cfg, order, skipped):
        for name, branch in BRANCHES:
            h = h + branch(rms(h, p[name + "_norm.weight"], cfg.norm_eps), p, cfg)
        depth.append(h)
    return depth, decoded(h, state, cfg)


def sandwich(state, cfg, tokens, order=None, skipped=(), released=False):
    h = state["embed.weight"][tokens]
    depth = [h]
    for _, p in placed(state, cfg, order, skipped):
        for name, branch in BRANCHES:
            f = branch(rms(h, p[name + "_norm.weight"], cfg.norm_eps), p, cfg)
            h = h + rms(f, p[name + "_post_norm.weight"], cfg.norm_eps)
        depth.append(h)
    return depth, decoded(h, state, cfg)


def lns(state, cfg, tokens, order=None, skipped=(), released=False):
    h = state["embed.weight"][tokens]
    depth = [h]
    for l, p in placed(state, cfg, order, skipped):
        number = (order[l] if order else l) + 1  # travels with the block
        for name, branch in BRANCHES:
            h = h + branch(rms(h, p[name + "_norm.weight"], cfg.norm_eps) / math.sqrt(number), p, cfg)
        depth.append(h)
    return depth, decoded(h, state, cfg)


def deepnorm(state, cfg, tokens, order=None, skipped=(), released=False):
    h = state["embed.weight"][tokens]
    depth = [h]
    for _, p in placed(state, cfg, order, skipped):
        for name, branch in BRANCHES:
            total = (2 * cfg.n_layers) ** 0.25 * h + branch(h, p, cfg)
            h = layer_norm(total, p[name + "_post_norm.weight"], cfg.norm_eps)
        depth.append(h)
    return depth, decoded(h, state, cfg)


def keel(state, cfg, tokens, order=None, skipped=(), released=False):
    h = state["embed.weight"][tokens]
    depth = [h]
    for l, p in placed(state, cfg, order, skipped):
        for name, branch in BRANCHES:
            f = branch(rms(h, p[name + "_norm.weight"], cfg.norm_eps), p, cfg)
            if l == 0 and name == "attn":
                h = h + f
            elif l == 0:
                h = rms(h + f, p["ffn_post_norm.weight"], cfg.norm_eps)
            else:
                h = rms(2 * cfg.n_layers * h + f, p[name + "_post_norm.weight"], cfg.norm_eps)
        depth.append(h)
    return depth, decoded(h, state, cfg)


def denseformer(state, cfg, tokens, order=None, skipped=(), released=False):
    y = state["embed.weight"][tokens]
    depth, outputs = [y], {0: y}  # X_0, and X_{l+1} of each block that exists
    for l, p in placed(state, cfg, order, skipped):
        x = y
        for name, branch in BRANCHES:
            x = x + branch(rms(x, p[name + "_norm.weight"], cfg.norm_eps), p, cfg)
        outputs[l + 1] = x
        y = sum(p[f"average_{l}.weights"][j] * output for j, output in outputs.items())
        depth.append(y)
    return depth, decoded(y, state, cfg)


def hc(state, cfg, tokens, order=None, skipped=(), released=False):
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


def sinkhorn(logits, iters, eps):
    """R[t][s] of the logits [t][s], a list of lists: over s first, over t last."""
    m = range(len(logits))
    P = [[logits[t][s].exp() / sum(logits[t][i].exp() for i in m) + eps for s in m] for t in m]
    for i in range(iters):
        if i:
            P = [[P[t][s] / (sum(P[t][j] for j in m) + eps) for s in m] for t in m]
        P = [[P[t][s] / (sum(P[j][s] for j in m) + eps) for s in m] for t in m]
    return P


def mhc(state, cfg, tokens, order=None, skipped=(), released=False):
    x0, m = state["embed.weight"][tokens], cfg.n_streams
    H, streams = [x0] * m, range(m)
    depth = [torch.cat(H, -1)]
    for _, p in placed(state, cfg, order, skipped):
        for name, branch in BRANCHES:
            vec = torch.cat(H, -1)
            z = vec / torch.sqrt((vec * vec).mean(-1, keepdim=True) + cfg.mhc_rms_eps) @ p[f"{name}_mhc.phi"]
            bias = p[f"{name}_mhc.bias"]
            r = [torch.sigmoid(p[f"{name}_mhc.alpha_pre"] * z[..., s] + bias[s]) for s in streams]
            w = [2 * torch.sigmoid(p[f"{name}_mhc.alpha_post"] * z[..., m + s] + bias[m + s]) for s in streams]
            at = [[2 * m + t * m + s for s in streams] for t in streams]
            logits = [[p[f"{name}_mhc.alpha_res"] * z[..., i] + bias[i] for i in row] for row in at]
            R = sinkhorn(logits, cfg.sinkhorn_iters, cfg.sinkhorn_eps)
            u = sum(r[s][..., None] * H[s] for s in streams)
            f = branch(rms(u, p[name + "_norm.weight"], cfg.norm_eps), p, cfg)
            H = [sum(R[t][s][..., None] * H[s] for s in streams) + w[t][..., None] * f for t in streams]
        depth.append(torch.cat(H, -1))
    return depth, decoded(sum(H) / m, state, cfg)


def mixture(sources, query, key_gain, eps):
    scores = torch.stack([(query * rms(v, key_gain, eps)).sum(-1) for v in sources])
    p = torch.softmax(scores, 0)
    return sum(p[i][..., None] * v for i, v in enumerate(sources))


def attnres_full(state, cfg, tokens, order=None, skipped=(), released=False):
    if released and skipped:
        return attnres_block(state, cfg, tokens, order, skipped, released, b=1)
    sources = [state["embed.weight"][tokens]]
    depth = []
    for l, p in placed(state, cfg, order, skipped):
        for name, branch in BRANCHES:
            if l == 0 and name == "attn":
                u, eps = sources[0], cfg.norm_eps
            else:
                u = mixture(sources, p[name + "_res.query"], p[name + "_res.key_norm.weight"], cfg.attnres_eps)
                eps = cfg.attnres_eps
            if name == "attn":
                depth.append(u)
            sources.append(branch(rms(u, p[name + "_norm.weight"], eps), p, cfg))
    u = mixture(sources, state["final_res.query"], state["final_res.key_norm.weight"], cfg.attnres_eps)
    return [*depth, u], rms(u, state["norm.weight"], cfg.attnres_eps) @ state["lm_head.weight"].T


def attnres_block(state, cfg, tokens, order=None, skipped=(), released=False, b=None):
    b = b or cfg.attnres_block_size
    frozen, running, copies = [state["embed.weight"][tokens]], None, False
    order = order or range(cfg.n_layers)
    depth = []
    for l in range(cfg.n_layers + 1):
        p = Tensors(state, l, order[l]) if l < cfg.n_layers else None
        if l in skipped and released:
            if l == 0:
                running = frozen[0]
            copies = True
            continue
        for name, branch in BRANCHES if p else (("final", None),):
            k = 2 * l + (name == "ffn")
            if 1 <= k < 2 * cfg.n_layers and k % b == 0 and running is not None:
                frozen.append(running)
                running = None
            if l in skipped:
                continue
            sources = [*frozen, running] if running is not None else frozen
            eps = cfg.attnres_eps
            if k == 0:
                u, eps = frozen[0], cfg.norm_eps
            elif copies and (k % b == 0 or k == 2 * cfg.n_layers):
                u = sources[-1]
            else:
                site = (p, name + "_res") if p else (state, "final_res")
                query, gain = (site[0][f"{site[1]}.{part}"] for part in ("query", "key_norm.weight"))
                u = mixture(sources, query, gain, eps)
            copies = False
            if name != "ffn":
                depth.append(u)
            if p:
                f = branch(rms(u, p[name + "_norm.weight"], eps), p, cfg)
                running = f if running is None else running + f
    return depth, rms(u, state["norm.weight"], cfg.attnres_eps) @ state["lm_head.weight"].T


def moda(state, cfg, tokens, order=None, skipped=(), released=False):
    return with_depth_slots(state, cfg, tokens, order, skipped, released, post=False)


def moda_postln(state, cfg, tokens, order=None, skipped=(), released=False):
    return with_depth_slots(state, cfg, tokens, order, skipped, released, post=True)


def with_depth_slots(state, cfg, tokens, order, skipped, released, post):
    h = state["embed.weight"][tokens]
    zero = torch.zeros(*tokens.shape, cfg.n_kv_heads * cfg.head_dim, dtype=h.dtype)
    depth, slots = [h], []
    for l, p in placed(state, cfg, order, () if released else skipped):
        if l in skipped:
            slots += [(zero, zero)] * 2
            continue
        for name in ("attn", "ffn"):
            n = h if post else rms(h, p[name + "_norm.weight"], cfg.norm_eps)
            if name == "attn":
                f = attention(n, p, cfg, slots)
                slots.append((n @ p["attn.wk.weight"].T, n @ p["attn.wv.weight"].T))
            else:
                f = ffn(n, p, cfg)
                if l < cfg.n_layers - 1:
                    slots.append((n @ p["ffn.w_kv.weight"].T).chunk(2, -1))
            h = rms(h + f, p[name + "_post_norm.weight"], cfg.norm_eps) if post else h + f
        depth.append(h)
    return depth, decoded(h, state, cfg)

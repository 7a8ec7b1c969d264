import pytest
import torch
from models import config, generic
from toy import batch, documents

from depthbench import residuals
from depthbench.analyses import pathway
from depthbench.designs import DESIGNS
from depthbench.errors import UserError
from depthbench.model import build_model
from depthbench.model.backbone import Model
from depthbench.residuals import attnres_block, hc, preln

APPROXIMATE = ["deepnorm", "keel", "moda_postln"]
EXACT = [design for design in DESIGNS if design not in APPROXIMATE]


def weights(model, tokens=None):
    tokens = documents() if tokens is None else tokens
    found = pathway.compute(model.eval(), [batch(tokens)], 20)
    return found.set_index(["source", "target"])


def small(design, **changes):
    return generic(config(design, **changes), torch.float32)


def trained(cfg, steps=5):
    model, tokens = build_model(cfg), documents(8, 12)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.02)
    for _ in range(steps):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(tokens)[:, :-1].flatten(0, 1), tokens[:, 1:].flatten()).backward()
        optimizer.step()
    return model


def test_a_sum_has_weights_of_one_and_no_spread():
    found = weights(small("sandwich"))
    assert found.index.tolist() == [(source, target) for target in range(7) for source in range(-1, target)]
    assert (found[["weight", "weight_abs", "lo", "hi"]] == 1).all(axis=None)


def test_hyper_connections_at_the_start_by_hand():
    """Each sub-layer reads one of four equal streams, writes to all with 1, and the readout is their sum."""
    found = weights(build_model(config("hc", n_layers=1)))
    expected = {(-1, 0): 1, (-1, 1): 1, (0, 1): 1, (-1, 2): 4, (0, 2): 4, (1, 2): 4}
    assert found["weight"].to_dict() == pytest.approx(expected, rel=1e-6)


def test_hyper_connections_of_one_block_by_hand():
    """Static weights alone: w_0 r_1, 1 A_0 r_1, and 1 A_0 A_1 1 at the readout."""
    model = small("hc", n_layers=1)
    connectors = [model.blocks[0].attn_hc, model.blocks[0].ffn_hc]
    with torch.no_grad():
        for connector in connectors:
            connector.dynamic_alpha_scale.zero_()
            connector.dynamic_beta_scale.zero_()
        connectors[0].static_beta.neg_()
    (r0, A0, w0), (r1, A1, w1) = ((c.static_alpha[:, 0], c.static_alpha[:, 1:], c.static_beta) for c in connectors)
    ones = torch.ones(4)
    expected = {
        (-1, 0): ones @ r0,
        (-1, 1): ones @ A0 @ r1,
        (0, 1): w0 @ r1,
        (-1, 2): ones @ A0 @ A1 @ ones,
        (0, 2): w0 @ A1 @ ones,
        (1, 2): w1 @ ones,
    }
    found = weights(model)
    for pair, value in expected.items():
        assert found["weight"][pair] == pytest.approx(value.item(), rel=1e-5, abs=1e-6), pair
    assert found["weight_abs"].tolist() == pytest.approx(found["weight"].abs().tolist())
    assert found["weight"][0, 1] < 0


def test_mhc_at_the_start_by_hand():
    """It reads one stream with sigmoid(8), the others with sigmoid(-8); maps keep sums; the readout is the mean."""
    found = weights(build_model(config("mhc", n_layers=1, sinkhorn_iters=20, sinkhorn_eps=1e-6)))
    reads = torch.sigmoid(torch.tensor([8.0, -8, -8, -8])).sum().item()
    expected = {(-1, 0): reads, (-1, 1): reads, (0, 1): reads, (-1, 2): 1, (0, 2): 1, (1, 2): 1}
    assert found["weight"].to_dict() == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(("design", "b"), [("attnres_full", 1), ("attnres_block", 2), ("attnres_block", 3)])
def test_a_mixture_has_weights_that_sum_to_one(design, b):
    """Over sources; the members of a block share its weight, so each sum counts once."""
    found = weights(small(design, attnres_block_size=b))["weight"]
    for target in range(1, 7):
        firsts = [source for source in range(target) if source % b == 0]
        assert found[-1, target] + sum(found[s, target] for s in firsts) == pytest.approx(1, abs=1e-6)
        assert all(found[s, target] == found[s - s % b, target] for s in range(target))


def test_full_attention_residuals_against_their_softmax():
    """At the readout: softmax of query . key gain . v / rms(v), in float64."""
    model, tokens = small("attnres_full"), documents()
    with torch.no_grad():
        state, sources = model.start(tokens), [model.embed(tokens)]
        for k in range(6):
            state, out = model.sublayer(k, state, model.blocks[k // 2])
            sources.append(out)
        v = torch.stack(sources, -2).double()
        unit = v / (v.square().mean(-1, keepdim=True) + model.cfg.attnres_eps).sqrt()
        product = (model.final_res.query * model.final_res.key_norm.weight).double()
        expected = (unit @ product).softmax(-1).mean((0, 1))
    found = weights(model, tokens)["weight"]
    assert [found[source, 6] for source in range(-1, 6)] == pytest.approx(expected.tolist(), abs=1e-6)


def test_which_designs_are_approximate():
    found = [design for design in DESIGNS if not Model(config(design)).residual.exact_pathway]
    assert found == APPROXIMATE
    assert not Model(config("hc", hc_readout="norm_then_sum")).residual.exact_pathway


@pytest.mark.parametrize("design", EXACT)
def test_weights_of_trained_models_rebuild_what_branches_read(design):
    pathway.check(trained(config(design, attnres_block_size=2)), documents(1))


@pytest.mark.parametrize("n_layers", [1, 32])
@pytest.mark.parametrize("design", EXACT)
def test_weights_of_any_parameters_rebuild_what_branches_read(design, n_layers):
    """Deep ones of HC cancel streams until u_k has lost three digits: that is no fault of the weights."""
    pathway.check(small(design, n_layers=n_layers), documents(1))


class Stale(hc.Residual):
    """The map is turned round."""

    def write_weights(self, state, k, block, out):
        carry, write, f = super().write_weights(state, k, block, out)
        return carry.mT, write, f


class Doubled(preln.Residual):
    """It writes twice the output, and does not say so."""

    def pending(self, k, block, out):
        return super().pending(k, block, 2 * out)


class Shifted(attnres_block.Residual):
    """Weights of the wrong sources."""

    def read_weights(self, state, k, at):
        return super().read_weights(state, k, at).roll(1, -1)


class Broken(preln.Residual):
    """Weights that are no numbers."""

    def read_weights(self, state, k, at):
        return super().read_weights(state, k, at) * torch.nan


@pytest.mark.parametrize(
    ("design", "wrong", "k"),
    [("hc", Stale, 1), ("preln", Doubled, 1), ("attnres_block", Shifted, 1), ("preln", Broken, 0)],
)
def test_a_design_whose_weights_are_wrong_is_refused(design, wrong, k, monkeypatch):
    """As it is measured, without being asked for; the first sub-layer that differs is named."""
    monkeypatch.setattr(getattr(residuals, design), "Residual", wrong)
    model = small(design, attnres_block_size=2)
    with pytest.raises(UserError, match=rf"^E-PATH {design}: sub-layer {k}: .* mend read_weights or write_weights"):
        weights(model)
    model.residual.exact_pathway = False
    assert len(weights(model)) == 28


def test_a_readout_that_norms_before_it_sums_has_no_exact_weights():
    model = small("hc", hc_readout="norm_then_sum")
    assert len(weights(model)) == 28
    model.residual.exact_pathway = True
    with pytest.raises(UserError, match="E-PATH hc: sub-layer 6"):
        weights(model)


def test_carry_without_and_write_with_a_weight_for_each_token(monkeypatch):
    """A design may return either; h <- h + g f with a gate g of the token's own."""

    class Gated(preln.Residual):
        def gate(self, state):
            return state.h[..., :1].sigmoid()

        def write(self, memo, k, block, out):
            return super().write(memo, k, block, self.gate(memo) * out)

        def write_weights(self, state, k, block, out):
            return torch.ones(1, 1), self.gate(state), out

    monkeypatch.setattr(preln, "Residual", Gated)
    model, tokens = small("preln", n_layers=1), documents()
    found = weights(model, tokens)
    gate = model.embed(tokens)[..., 0].double().sigmoid().mean().item()
    assert found["weight"][0, 1] == pytest.approx(gate, rel=1e-6)
    assert found["weight"][-1, 2] == 1

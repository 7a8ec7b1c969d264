import pandas as pd
from layer_tables import tables

from depthbench import figures
from depthbench.figures import _one_model
from depthbench.readers import COLUMNS


def test_one_model_has_its_own_figures(tmp_path):
    rows = tables("attnres_block", 4) | {"logitlens": "not_requested"}
    frames = {}
    for name in ("angular", "causal", "block_mix", "block_mix_summary", "logitlens", "transport"):
        types, none = COLUMNS[f"analysis/{name}.csv"], isinstance(rows[name], str)
        made = pd.DataFrame([{}] if none else rows[name], columns=list(types))
        made = made.assign(run_id="imported/model", status=rows[name] if none else "ok").astype(types)
        frames[name] = made.assign(design="attnres_block", n_layers=4, d_model=8, seed=0)  # as `analyze` returns them
    drawn = figures.of_one(frames, tmp_path / "figures")
    assert drawn == ["angular_distance", "causal_maps", "block_mixing"]
    names = sorted(file.name for file in (tmp_path / "figures").iterdir())
    assert names == sorted(f"{name}{suffix}" for name in drawn for suffix in (".png", ".svg"))
    svg = (tmp_path / "figures" / "causal_maps.svg").read_text()
    assert [word in svg for word in ("model L4", "model* L4", "threshold")] == [True] * 3
    assert _one_model.spec_of({"transport": frames["causal"]}).depths.one == 4
    assert figures.of_one({"causal": frames["causal"].assign(status="diverged")}, tmp_path / "none") == []
    assert not (tmp_path / "none").exists()

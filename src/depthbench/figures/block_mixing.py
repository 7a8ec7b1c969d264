"""What the sub-layers of Block AttnRes read (paper Fig. 9): the running sum, or what stands before the block.

Share of the running sum (at a border: of the sum frozen there) in the input of each sub-layer; the grey rest is
earlier blocks and the embedding. Dashed lines are the borders of blocks. A ring is about where the paper's dead
segment ends, where the study shows published values (`reference`).
"""

import pandas as pd
import plotnine as p9

from depthbench import reference
from depthbench.artifacts import ArtifactSpec
from depthbench.figures import _layers, _maps, _theme

FILES = ("analysis/block_mix.csv", "analysis/block_mix_summary.csv")
COLUMNS = ["panel", *_layers.RUN, "sublayer", "is_border", "n_sources", "alpha", "beta", "published"]
PARTS = {"alpha": "Running sum", "beta": "Earlier blocks and embedding"}
COLOURS = {"alpha": "#8e6bbf", "beta": "#d4d4d4"}
HEIGHT = 1.9  # inch, of a panel


def draw(frames: dict[str, pd.DataFrame], spec: ArtifactSpec) -> tuple[p9.ggplot, pd.DataFrame]:
    """Return the plot and its frame: a row per run and sub-layer, one for a run without values (`status`)."""
    table = _layers.joined(frames["block_mix"], spec)
    table = table[table["n_layers"].isin(spec.depths.three)]
    frame = table.assign(
        panel=_layers.labels(table) + " " + _layers.shapes(table),
        published=reference.beside(table, frames, "dead_segment_layers", "main"),
    )
    sentences = ["Dashed: borders of blocks.", dead(frame, frames["block_mix_summary"])]
    if frame["published"].notna().any():
        sentences.append(f"Ring: about the end of the sub-layers without it, {reference.PAPER}.")
    note = _layers.note(spec, frame, *sentences)
    return plot(frame.dropna(subset=["sublayer"]), note), frame[COLUMNS]


def plot(frame: pd.DataFrame, note: str) -> p9.ggplot:
    """Return a panel per run; the frame has its heading in `panel`."""
    if frame.empty:
        return _theme.nothing(note)
    panels = list(frame["panel"].unique())
    height = HEIGHT * -(-len(panels) // 3) + 0.3 + _theme.LINE * (note.count("\n") + 1)
    return (
        p9.ggplot()
        + layers(frame.assign(panel=pd.Categorical(frame["panel"], panels)))
        + p9.facet_wrap("panel", scales="free_x", ncol=min(3, len(panels)))
        + p9.scale_fill_manual(COLOURS, breaks=list(PARTS), labels=list(PARTS.values()))
        + p9.scale_x_continuous(breaks=_maps.ticks, labels=_maps.whole, expand=(0, 0))
        + p9.scale_y_continuous(expand=(0, 0))
        + p9.labs(x="Sub-layer", y="Share of the input", caption=note or None)
        + _theme.theme(height)
        + p9.theme(legend_position="bottom", panel_grid=p9.element_blank(), panel_spacing_x=0.02)
    )


def layers(frame: pd.DataFrame) -> list:
    """Return stacked bars and the borders."""
    frame = frame.astype({"sublayer": "float64"})
    parts = frame.melt(["panel", "sublayer"], list(PARTS), "part", "share").dropna(subset=["share"])
    parts["part"] = pd.Categorical(parts["part"], list(PARTS)[::-1])  # the running sum stands below
    borders = frame[frame["is_border"].fillna(False) & (frame["sublayer"] > 0)]
    borders = borders.assign(at=borders["sublayer"] - 0.5)
    ends = frame.dropna(subset=["published"]).drop_duplicates("panel")
    # two sub-layers a layer; whether the first, which reads the embedding alone, is counted is not told
    ends = ends.assign(at=2 * ends["published"], height=0.5)
    return [
        p9.geom_col(p9.aes("sublayer", "share", fill="part"), parts, width=1),
        p9.geom_vline(p9.aes(xintercept="at"), borders, linetype="dashed", size=0.4, color=_theme.INK),
        p9.geom_point(p9.aes("at", "height"), ends, shape="o", size=2.2, stroke=0.6, fill="none", color=_theme.INK),
    ]


def dead(frame: pd.DataFrame, summary: pd.DataFrame) -> str:
    """Return a sentence that tells how many leading sub-layers of each run leave the running sum out."""
    runs = frame.drop_duplicates("run_id").merge(summary.drop(columns="status"), on="run_id")
    runs = runs.dropna(subset=["dead_sublayers", "dead_layers"])
    named = [
        f"{panel}: {count} (layers: {layers})"
        for panel, count, layers in zip(runs["panel"], runs["dead_sublayers"], runs["dead_layers"], strict=True)
    ]
    return f"Sub-layers from 1 on with a running sum below 0.05: {'; '.join(named)}." if named else ""

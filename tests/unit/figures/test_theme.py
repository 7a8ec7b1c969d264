import colorsys
import itertools

import pytest
from matplotlib.colors import to_rgb
from synthetic import LABELS, TINY, Study, path

from depthbench.artifacts import ORDER, ArtifactSpec
from depthbench.figures._theme import STYLES, styles

FAMILY = {design: family for design, (_, family) in LABELS.items()}
FAMILY |= {"mhc_legacy": "multi-stream", "moda_postln": "cross-layer"}
# Hues in degrees.
HUES = {"norm": (90, 230), "multi-stream": (15, 45), "cross-layer": (255, 325)}


def spec(tmp_path, labels):
    study = Study(tmp_path)
    study.runs = {path(design, TINY[0]): ["main"] for design in labels}
    return ArtifactSpec.from_json(study.json(labels=labels))


def test_every_design_has_its_own_colour_and_marker():
    assert set(STYLES) == set(ORDER)
    assert len({style.colour for style in STYLES.values()}) == len(STYLES)
    assert len({style.marker for style in STYLES.values()}) == len(STYLES)


@pytest.mark.parametrize("design", ORDER)
def test_colour_is_that_of_the_family(design):
    hue, _, saturation = colorsys.rgb_to_hls(*to_rgb(STYLES[design].colour))
    if design == "preln":
        assert saturation == 0
    else:
        low, high = HUES[FAMILY[design]]
        assert low <= 360 * hue <= high


@pytest.mark.parametrize("family", HUES)
def test_neighbours_of_a_family_differ_in_grey(family):
    """Relative luminance of one design and the next in the legend."""
    grey = [
        sum(w * c for w, c in zip((0.2126, 0.7152, 0.0722), to_rgb(STYLES[design].colour), strict=True))
        for design in ORDER
        if FAMILY[design] == family
    ]
    assert min(abs(a - b) for a, b in itertools.pairwise(grey)) > 0.08


def test_own_designs_get_free_styles_and_change_no_other(tmp_path):
    own = {"a_stream": ["A", "multi-stream"], "b_stream": ["B", "multi-stream"], "c_norm": ["C", "norm"]}
    found = styles(spec(tmp_path, {design: LABELS[design] for design in ("preln", "hc", "mhc")} | own))
    assert [found[design] for design in ("preln", "hc", "mhc")] == [STYLES[d] for d in ("preln", "hc", "mhc")]
    assert len({style.colour for style in found.values()} | {s.colour for s in STYLES.values()}) == len(STYLES) + 3
    assert len(set(found.values())) == 6
    assert list(found) == ["preln", "c_norm", "hc", "mhc", "a_stream", "b_stream"]

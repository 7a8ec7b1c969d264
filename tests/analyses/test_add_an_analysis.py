"""docs/add-an-analysis.md shows code that runs."""

from models import config, generic
from pages import added
from toy import batch, documents

from depthbench import analyses


def test_the_analysis_of_the_page_passes_its_test(tmp_path, monkeypatch):
    module, [test] = added(monkeypatch, tmp_path, "add-an-analysis.md", analyses)
    test()
    found = module.compute(generic(config("hc")).float().eval(), [batch(documents())], 20)
    # the columns that the page names; those of the run and the status come later
    assert list(found) == ["layer", "rms", "lo", "hi"]
    assert (found["lo"] <= found["rms"]).all()
    assert (found["rms"] <= found["hi"]).all()

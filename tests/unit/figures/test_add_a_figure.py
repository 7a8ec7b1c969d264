"""docs/add-a-figure.md shows code that runs."""

from pages import added

from depthbench import figures, format_page


def test_the_figure_of_the_page_passes_its_test(tmp_path, monkeypatch):
    module, [test] = added(monkeypatch, tmp_path, "add-a-figure.md", figures)
    test(tmp_path)
    for name in module.COLUMNS:
        assert format_page.meaning("figures/loss_over_flops.csv", name)

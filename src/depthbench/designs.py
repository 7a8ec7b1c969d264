"""Which residual designs there are: the files of `residuals/`, one each. No torch here."""

from pathlib import Path

DESIGNS = sorted(path.stem for path in (Path(__file__).parent / "residuals").glob("[a-z]*.py") if path.stem != "base")

"""Which residual designs there are, and what their files say of them: `residuals/<name>.py`. No torch here."""

import ast
import re
from pathlib import Path
from typing import NamedTuple

from depthbench.errors import UserError

# Designs are shown in the paper's order, a user's own after those of its family.
ORDER = (
    *("preln", "sandwich", "lns", "deepnorm", "keel", "hc", "mhc", "mhc_legacy"),
    *("attnres_full", "attnres_block", "moda", "moda_postln"),
)
FOLDER = Path(__file__).parent / "residuals"
DESIGNS = sorted(path.stem for path in FOLDER.glob("[a-z]*.py") if path.stem != "base")


class Words(NamedTuple):
    """A design in words; empty where its file says nothing."""

    rule: str  # first paragraph of the docstring of `Residual`
    readout: str  # behind `readout:` in the docstring of the file, to the end of the line
    source: str  # the first parentheses of its first line


def words(design: str) -> Words:
    """Return what the file of a design says of it, without running the file.

    Raises:
        UserError: E-CONFIG if the file cannot be read.
    """
    path = FOLDER / f"{design}.py"
    try:
        module = ast.parse(path.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError) as error:
        raise UserError("E-CONFIG", f"residuals/{path.name}: cannot be read ({error}); mend it") from None
    about = ast.get_docstring(module) or ""
    # The class itself is asked: what a base class says is the rule of another design.
    own = (node for node in module.body if isinstance(node, ast.ClassDef) and node.name == "Residual")
    rule = " ".join(ast.get_docstring(node) or "" for node in own).partition("\n\n")[0]
    readout = re.search(r"\breadout: (.+)", about)
    source = re.search(r"\((.+?)\)", about.partition("\n")[0])
    return Words(
        " ".join(rule.split()).rstrip("."), readout[1].rstrip(".") if readout else "", source[1] if source else ""
    )

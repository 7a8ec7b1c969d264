"""The commands `import` and `export`: models of others as runs, and runs as folders for others."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from depthbench.errors import UserError

Readout = Literal["auto", "sum_then_norm", "norm_then_sum"]


def import_(
    out: Annotated[Path, typer.Option(help="Folder of the run to make.")],
    folder: Annotated[Path | None, typer.Argument(help="Folder of the checkpoint, or of its steps.")] = None,
    data: Annotated[Path | None, typer.Option(help="Prepared data to measure it on; default: said then.")] = None,
    readout: Annotated[Readout, typer.Option(help="Of HC; auto: the one with the lower loss on --data.")] = "auto",
    spec: Annotated[str | None, typer.Option(help="FOLDER and all that is asked for, JSON; the workflow's.")] = None,
) -> None:
    """Make a run of a released checkpoint of the paper's authors, for `evaluate` and `analyze`.

    Example: depthbench import preln-lr2e-3-llama-400M-L24-pretrain --out results/paper/released/preln-l24
    --data results/data/fineweb_edu-v50280
    """
    from depthbench import runs
    from depthbench.released import import_checkpoint
    from depthbench.specs import ImportSpec

    if (folder is None) == (spec is None):
        raise UserError("E-SPEC", "give the folder of a checkpoint, or --spec")
    if spec is not None and readout != "auto":
        raise UserError("E-SPEC", f"--readout {readout}: --spec says it under model.hc_readout; leave out one of them")
    if spec is not None:
        parsed = ImportSpec.read(spec)
    else:
        whole, results = out.resolve(), Path("results").resolve()
        name = whole.relative_to(results) if results in whole.parents else whole.name
        asked = {} if readout == "auto" else {"hc_readout": readout}
        parsed = ImportSpec(run_id=str(name), version=runs.VERSION["import"], source=str(folder), model=asked)
    record = import_checkpoint(parsed, out, data)
    model, step = record["spec"]["model"], record["step"]
    print(
        f"{record['run_id']}: {model['design']}, {model['n_layers']} layers, width {model['d_model']}, "
        f"{record['n_params']:,} parameters, step {'not told' if step is None else step}"
    )


def export(
    run: Annotated[Path, typer.Argument(help="Folder of a finished run.")],
    out: Annotated[Path, typer.Option(help="Folder to write.")],
    data: Annotated[Path | None, typer.Option(help="Prepared data; default: what the run was trained on.")] = None,
) -> None:
    """Write a run as a folder in the style of Hugging Face: weights, config, tokenizer, model card.

    Pre-LN is in the format of Llama, which transformers loads; `depthbench.load` loads every design.

    Example: depthbench export results/tiny/runs/preln/t-d28-l16/lr1e-2-s0 --out preln-l16
    """
    from depthbench import export as writer

    print(f"{out}: {writer.export(run, out, data)}")

"""What each layer of a trained model does: one module per measure.

A module has `measure(base) -> DataFrame`, the sums of one batch for each document; `table(documents, resamples)`, the
measure with 95 % intervals over documents; and `compute(model, batches, resamples)`, both for a stream of batches.
`prune` reads items of a task instead: `items(model, tokenizer, asked, ...)`, `table(items, resamples)`, `compute`.
"""

from depthbench.analyses._baseline import Batch, batches

__all__ = ["Batch", "batches"]

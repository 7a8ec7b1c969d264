"""From text to training windows: archives, corpora, evaluation items, tokenizer, token files, readers."""

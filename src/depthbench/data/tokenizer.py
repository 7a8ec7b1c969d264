"""The GPT-NeoX tokenizer of the paper, whole (50,280 entries) or cut to its first V.

Cut to V: the entries with id < V - 1 that are not added tokens, the merges whose parts and result are all
kept, padding = 1, end of text = V - 1. The vocabulary is byte level and the single bytes come first, so
every text can still be encoded, shared ids are unchanged and decoding is lossless (up to the NFC
normalisation of the full tokenizer).

Text that looks like a control token is ordinary text, and nothing is added on encoding. The library does not
save the first of these in its JSON: use `load`, not `Tokenizer.from_file`.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from depthbench.data.archives import OLMO, read_member
from depthbench.errors import UserError

MEMBER = "olmo_eval/tokenizers/allenai_gpt-neox-olmo-dolma-v1_5.json"
FULL_SIZE, FULL_EOS_ID, PAD_ID = 50_280, 50_279, 1
SMALLEST_SIZE = 512
EOS, PAD = "<|endoftext|>", "<|padding|>"


def definition(vocab_size: int) -> str:
    """Return the JSON text of the tokenizer with `vocab_size` ids; 50,280 gives the file unchanged.

    Raises:
        UserError: E-TOK if the size is outside 512...50280, or the archive holds another tokenizer.
    """
    if isinstance(vocab_size, bool) or not isinstance(vocab_size, int):
        raise UserError("E-TOK", f"vocab_size {vocab_size!r} is not a whole number; choose 512 to 50280")
    if not SMALLEST_SIZE <= vocab_size <= FULL_SIZE:
        raise UserError("E-TOK", f"vocab_size {vocab_size} is outside 512 to 50280; choose one in this range")
    text = read_member(OLMO, MEMBER).decode()
    full = json.loads(text)
    vocab = full["model"]["vocab"]
    found = (len(vocab), vocab.get(EOS), vocab.get(PAD))
    if found != (FULL_SIZE, FULL_EOS_ID, PAD_ID):
        raise UserError(
            "E-TOK",
            f"{MEMBER}: entries, {EOS}, {PAD} are {found}, expected {(FULL_SIZE, FULL_EOS_ID, PAD_ID)}; "
            "this archive cannot be used",
        )
    return text if vocab_size == FULL_SIZE else json.dumps(_cut(full, vocab_size), ensure_ascii=False)


def build(vocab_size: int) -> Tokenizer:
    """Return the tokenizer with `vocab_size` ids.

    Raises:
        UserError: E-TOK as `definition`.
    """
    return _from_text(definition(vocab_size))


def load(path: Path) -> Tokenizer:
    """Return the tokenizer of a `tokenizer.json`.

    Raises:
        UserError: E-TOK if the file cannot be read as one.
    """
    try:
        return _from_text(path.read_text(encoding="utf-8"))
    except Exception as error:  # the library raises bare Exception
        raise UserError("E-TOK", f"{path}: not a tokenizer ({error}); prepare the data again") from error


def eos_id(tokenizer: Tokenizer) -> int:
    """Return the id of the end of text.

    Raises:
        UserError: E-TOK if there is none of that name.
    """
    found = tokenizer.token_to_id(EOS)
    if found is None:
        raise UserError("E-TOK", f"no {EOS} among {tokenizer.get_vocab_size()} entries; use another tokenizer")
    return found


def check(tokenizer: Tokenizer, vocab_size: int, name: object) -> None:
    """Make sure that a tokenizer is that of a model with `vocab_size` entries.

    Raises:
        UserError: E-TOK with what was found and expected.
    """
    found, expected = tuple(map(tokenizer.token_to_id, (EOS, PAD))), (vocab_size - 1, PAD_ID)
    if found != expected:
        raise UserError(
            "E-TOK",
            f"{name}: {EOS}, {PAD} are {found}, the model of {vocab_size} entries has {expected}; "
            "name data that was prepared with its tokenizer",
        )


def byte_lengths(tokenizer: Tokenizer) -> np.ndarray:
    """Return how many bytes each id stands for: int64, (largest id + 1,); control and unused ids have 0."""
    vocab = tokenizer.get_vocab()
    added = tokenizer.get_added_tokens_decoder()
    lengths = np.zeros(max(vocab.values()) + 1, dtype=np.int64)
    for token, i in vocab.items():
        # in the byte-level vocabulary one character spells one byte; added tokens are spelled as they are
        lengths[i] = len(token.encode()) if i in added else len(token)
    lengths[[i for i, token in added.items() if token.special]] = 0
    return lengths


def _from_text(text: str) -> Tokenizer:
    tokenizer = Tokenizer.from_str(text)
    tokenizer.encode_special_tokens = True
    return tokenizer


def _cut(full: dict[str, Any], vocab_size: int) -> dict[str, Any]:
    control = {PAD: PAD_ID, EOS: vocab_size - 1}
    added = {token["content"] for token in full["added_tokens"]}
    kept = {t: i for t, i in full["model"]["vocab"].items() if i < vocab_size - 1 and t not in added}
    pairs = (merge.split(" ") for merge in full["model"]["merges"])
    merges = [[a, b] for a, b in pairs if a in kept and b in kept and a + b in kept]
    return {
        **full,
        "model": {**full["model"], "vocab": {**kept, **control}, "merges": merges},
        "added_tokens": [
            {**token, "id": control[token["content"]]} for token in full["added_tokens"] if token["content"] in control
        ],
    }

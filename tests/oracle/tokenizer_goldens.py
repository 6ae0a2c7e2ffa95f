#!/usr/bin/env python3
"""Goldens of the tokenizer: tests/golden/tokenizer/<family>/{tokenizer.json,cases.json}.

Oracle: the `tokenizers` library. Each family has the structure of a public one (normaliser, pre-tokeniser, model
options, post-processor, decoder, added tokens), with a small vocabulary trained here on the texts below, so that the
files stay small. Run:

    python3 -m venv VENV && VENV/bin/pip install tokenizers==0.22.1
    VENV/bin/python tests/oracle/tokenizer_goldens.py

cases.json: {"cases": [{"text", "special", "ids", "decoded", "decoded_plain"}], "decode": [...], "long_runs":
[...]}: ids with or without the post-processor's special tokens; decoded with special tokens kept, decoded_plain with them skipped.
"literal": ids when special tokens are encoded as text (the whole text is a user's content).
"""
import json
import os
import random

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

HERE = os.path.dirname(os.path.abspath(__file__))
OUT = os.path.join(HERE, "..", "golden", "tokenizer")
META = "\u2581"

WORDS = """the of and to in a is that for it as was with be by on not he his but at are this have from or had an they
which one you were all her she there would their we him been has when who will no more if out so up said what its about
than into them can only other time new some could these two may first then do any like my now over such our man me even
most made after also did many off before must well back through years where much your way down should because long each
just state those people too mr how little good world make very year still see own work men day get here old between
both life being under three never know same last another while us might great go come since against right came take
used himself few house american use place during high without again home around small however found mrs part school
thought went say general once upon whole function return value string number struct static const int char void size
length buffer token model layer kernel memory cache thread server request response message error status""".split()

SENTENCES = """Hello, world! It's a fine day, isn't it? We'll see what they've done; I'm sure you'd agree.
The quick brown fox jumps over the lazy dog. 1234567890 3.14159 2,718 0x1F 1e-9 1/2
def fibonacci(n):\n    if n < 2:\n        return n\n    return fibonacci(n - 1) + fibonacci(n - 2)\n
static inline size_t length(const char *s)\n{\n\tsize_t n = 0;\n\twhile (s && s[n]) n++;\n\treturn n;\n}\n
Crème brûlée № 42 — ½ 🙂 naïve café Über größer Straße çà élève
Die Katze läuft über die Straße, und der Hund schläft.
Быстрая коричневая лиса прыгает через ленивую собаку. Ёлка.
私は昨日、東京で寿司を食べました。カタカナとひらがな。
敏捷的棕色狐狸跳过懒狗。我们今天学习汉字。
빠른 갈색 여우가 게으른 개를 뛰어넘는다.
धन्यवाद, नमस्ते दुनिया। कলম বাংলা ভাষা
مرحبا بالعالم، كيف حالك؟ שלום עולם
Γειά σου Κόσμε. Xin chào thế giới. สวัสดีชาวโลก
{"key": [1, 2.5, null, true], "text": "a\\\\nb"}""".split("\n")


def corpus():
    rng = random.Random(7)
    lines = []
    for _ in range(400):
        n = rng.randint(3, 14)
        lines.append(" ".join(rng.choice(WORDS) for _ in range(n)).capitalize() + rng.choice([".", "!", "?", ",", ""]))
    for s in SENTENCES:
        lines += [s] * 4
    return lines


def texts():
    """Ugly texts, the same for all families."""
    t = [
        "", " ", "  ", "\n", "\r", "\r\n", "\t\t", "a", " a", "a ", "  a  b   c    ",
        "Hello, world! It's 3 o'clock; we'll SEE what they've done. I'M sure you'D agree.",
        "don't DON'T can't 'S 's 'll 'LL \u2019s \u017f '\u017f x'RE",
        "The year 2024, 12345678901234567890 digits, 3.14159 and 1,000,000. x1y2z3 4\u00bd \u0663\u0664\u0665 \u2167 \u00b2",
        "def f(n):\n    if n < 2:\n        return n\n\n\n    return f(n - 1) + f(n-2)  \n",
        "\tif (x != NULL && *x++ == '\\0') { return -1; } // done\r\n\r\n",
        "Cr\u00e8me br\u00fbl\u00e9e \u2116 42 \u2014 \u00bd \U0001f642", "Cre\u0300me bru\u0302le\u0301e \u2116 42 \u2014 \u00bd \U0001f642",
        "\u0927\u0928\u094d\u092f\u0935\u093e\u0926", "\u0995\u09b2\u09ae", "e\u0301", "\u0301", "a\u0301\u0323b \u0323\u0301",
        "\u1e9b\u0323 \u212b \u03a9\u2126 \ufb01 \uff21\uff22 \u3392 \uff76\uff9e \u0958 \u2f81a \U0002f81a",
        "\u1100\u1161\u11a8 \uac00\u11a8 \uac01 \u1161",
        "\u0130stanbul I\u0131 \u01c5 \u00df \u1e9e \u03a3\u03a3 \u0391\u03a3",
        "\u79c1\u306f\u6628\u65e5\u3001\u6771\u4eac\u3067\u5bff\u53f8\u3092\u98df\u3079\u307e\u3057\u305f\u3002\u6211\u4eec\u5b66\u4e60\u6c49\u5b57",
        "\ube60\ub978 \uac08\uc0c9 \uc5ec\uc6b0", "\u0645\u0631\u062d\u0628\u0627 \u05e9\u05dc\u05d5\u05dd", "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35\u0e0a\u0e32\u0e27\u0e42\u0e25\u0e01",
        "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466 \U0001f3f3\ufe0f\u200d\U0001f308 \U0001f1e9\U0001f1ea 1\ufe0f\u20e3 \U0001f44d\U0001f3fd",
        "a\x00b\x01\x02\x1f\x7f\x80\x85\x9f", "x\u00a0y\u2003z\u3000w\u2028v\u200bu\ufeff\u180et\u00ad",
        "\ufffd \U0010ffff \ue000 \uffff", "zero\u200cwidth\u200djoin", "under_score __init__ a_b \u203f \u2040",
        "end of line \n next\n\n  indented \n \t mixed \r\n", "trailing spaces   ", "   leading", "a\n b\n  c\n   d",
        "\u2581a\u2581b \u2581 \u2581\u2581c", "<0x41><0xE2>", "\u0120the \u010a", "&&&--- [[x]] {{y}} ((z)) ^^ ~~ ``",
        "hello\u3002world\uff01 \u300c\u5f15\u7528\u300d \u2026", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa",
        "Z" * 300, " " * 300 + "x", "\n" * 100, "7" * 100, "ab" * 150, "e\u0301" * 100, " \n" * 60, "\u0927\u0928" * 50,
        "a\\nb", "CamelCaseWORDSandMORE XMLHttpRequest iPhone14Pro", "https://example.org/path?q=1&r=%20#frag user@host",
    ]
    rng = random.Random(11)
    pool = list("abc ABC 019 .,'\"\n\t  ") + ["\u00e9", "\u0301", "\u0928", "\u094d", "\u4e2d", "\u3042", "\uac00", "\U0001f642", "\u00a0", "\u2581",
        "the", " the", "ing", "'s", "\u0645", "\u0416", "\u00bd", "\u200d", "\r"]
    for _ in range(25):
        t.append("".join(rng.choice(pool) for _ in range(rng.randint(5, 60))))
    return t


def added_texts(tok):
    """Texts around the family's own added tokens."""
    names = [t.content for t in tok.get_added_tokens_decoder().values()]
    names = names[:4] + [n for n in names[4:] if not n.startswith("<unused")][-10:]
    out = []
    for n in names:
        out += [n, f"a{n}b", f"a {n} b", f"a  {n}  b", f"{n}{n}", f"{n} Go", f"{n}Go", f"x_{n}1", f"\n{n}\n", f"({n})"]
        out += [f"{n[:-1]}", f"{n[:-1]}{n}", f"{n.upper()} {n.lower()}"]
    out.append("".join(names))
    out.append("bye<|im_end|>\n<|im_start|>system\nsay OK")
    return out


def b005_texts():
    return ["<s>Go", "<s> Go", "</s>  Go", " Go", "Go"]


def decoded(tok, ids):
    """Texts of ids; "differs": why mlx-bun's text is another one on purpose (src/tokenizer/decode.c)."""
    c = {"ids": ids, "decoded": tok.decode(ids, skip_special_tokens=False),
         "decoded_plain": tok.decode(ids, skip_special_tokens=True)}
    added = tok.get_added_tokens_decoder()
    byte_level = '"ByteLevel"' in json.dumps(json.loads(tok.to_str())["decoder"])
    if byte_level and any(i in added and not added[i].content.isascii() for i in ids):
        c["differs"] = "B-004"
    elif not byte_level and "\ufffd" in c["decoded"] and any(tok.id_to_token(i).startswith("<0x") for i in ids):
        c["differs"] = "B-040"
    return c


def case(tok, text, special):
    ids = tok.encode(text, add_special_tokens=special).ids
    c = {"text": text, "special": special, **decoded(tok, ids)}
    tok.encode_special_tokens = True
    literal = tok.encode(text, add_special_tokens=False).ids
    tok.encode_special_tokens = False
    if literal != (ids if not special else tok.encode(text, add_special_tokens=False).ids):
        c["literal"] = literal
    return c


RUNS = [("Z", 200000), (" ", 200000), ("\n", 200000), ("7", 200000), ("ab", 100000), ("e\u0301", 200000)]


def long_run(tok, unit, count):
    """B-001: a long run, as the number of ids and a hash of them: h = (h ^ id) * 1099511628211 mod 2^64."""
    ids = tok.encode(unit * count, add_special_tokens=False).ids
    h = 14695981039346656037
    for i in ids:
        h = ((h ^ i) * 1099511628211) & (2**64 - 1)
    return {"unit": unit, "count": count, "n_ids": len(ids), "hash": f"{h:016x}"}


def write(name, tok, extra=()):
    folder = os.path.join(OUT, name)
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, "tokenizer.json")
    tok.save(path, pretty=False)
    tok = Tokenizer.from_file(path)
    cases = [case(tok, t, False) for t in texts() + list(extra)]
    cases += [case(tok, t, True) for t in added_texts(tok) + ["", "Hello there", " x"]]
    rng = random.Random(5)
    n = tok.get_vocab_size()
    runs = []
    for _ in range(30):
        ids = [rng.randrange(n) for _ in range(rng.randint(1, 12))]
        runs.append(decoded(tok, ids))
    with open(os.path.join(folder, "cases.json"), "w", encoding="utf-8") as f:
        long_runs = [long_run(tok, *r) for r in RUNS]
        json.dump({"cases": cases, "decode": runs, "long_runs": long_runs}, f, ensure_ascii=True, separators=(",", ":"))
        f.write("\n")
    print(name, n, os.path.getsize(path), len(cases))


def train(model, normalizer, pre, vocab_size, specials=(), byte_level=False, fallback=False, **kw):
    tok = Tokenizer(model)
    if normalizer:
        tok.normalizer = normalizer
    if pre:
        tok.pre_tokenizer = pre
    specials = list(specials)
    if fallback:
        specials += [f"<0x{i:02X}>" for i in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=vocab_size, special_tokens=specials, show_progress=False,
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet() if byte_level else [], **kw)
    tok.train_from_iterator(corpus(), trainer)
    return tok


def edit(tok, fn):
    """Change the JSON form: for what the Python classes do not offer."""
    j = json.loads(tok.to_str())
    fn(j)
    return Tokenizer.from_str(json.dumps(j))


def drop_byte_specials(j):
    j["added_tokens"] = [t for t in j["added_tokens"] if not t["content"].startswith("<0x")]


def chatml(tok):
    tok.add_special_tokens(["<|endoftext|>", "<|im_start|>", "<|im_end|>"])


def all_flags(tok):
    """Added tokens with every flag."""
    tok.add_tokens([
        AddedToken("wordy", single_word=True, normalized=False), AddedToken("[L]", lstrip=True, normalized=False),
        AddedToken("[R]", rstrip=True, normalized=False), AddedToken("[LR]", lstrip=True, rstrip=True, normalized=False),
        AddedToken("Normal Token", normalized=True), AddedToken("Caf\u00e9X", normalized=True),
        AddedToken("<|tool|>", special=False, normalized=False), AddedToken("wordnorm", single_word=True, normalized=True),
    ])
    tok.add_special_tokens([AddedToken("<mask>", lstrip=True, special=True), AddedToken("<|tool|>x", special=True, normalized=False)])


def smollm2():
    tok = train(models.BPE(), None, pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                pre_tokenizers.ByteLevel(add_prefix_space=False)]), 900, ["<|endoftext|>", "<|im_start|>", "<|im_end|>"], True)
    tok.decoder = decoders.ByteLevel()
    all_flags(tok)
    write("smollm2", tok)



GPT4 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
        r"|\s+(?!\S)|\s+")
MARKS = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*"
         r"|\s*[\r\n]+|\s+(?!\S)|\s+")
O200K = "|".join([
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
    r"\p{N}{1,3}", r" ?[^\s\p{L}\p{N}]+[\r\n/]*", r"\s*[\r\n]+", r"\s+(?!\S)", r"\s+"])


def split_then_bytes(pattern):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), "isolated"),
                                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def byte_level(name, pre, normalizer=None, vocab_size=900, **model):
    tok = train(models.BPE(**model), normalizer, pre, vocab_size, byte_level=True)
    tok.decoder = decoders.ByteLevel()
    chatml(tok)
    return tok


def gpt2():
    tok = byte_level("gpt2", pre_tokenizers.ByteLevel(add_prefix_space=True))
    tok.post_processor = processors.ByteLevel(trim_offsets=False)
    all_flags(tok)
    write("gpt2", tok)


def llama3():
    tok = byte_level("llama3", split_then_bytes(GPT4 % "{1,3}"))
    # words that merges cannot make, for ignore_merges
    def words(j):
        for w in ("\u0120zebra", "quux", "\u0120\u0120\u0120\u0120x"):
            j["model"]["vocab"][w] = len(j["model"]["vocab"])
        for i, t in enumerate(j["added_tokens"]):
            t["id"] = len(j["model"]["vocab"]) + i
        j["model"]["ignore_merges"] = True
        j["model"]["merges"] = [m if isinstance(m, str) else " ".join(m) for m in j["model"]["merges"]]
    tok = edit(tok, words)
    bos = tok.token_to_id("<|endoftext|>")
    tok.post_processor = processors.Sequence([processors.ByteLevel(trim_offsets=False), processors.TemplateProcessing(
        single="<|endoftext|> $A", pair="<|endoftext|> $A $B", special_tokens=[("<|endoftext|>", bos)])])
    write("llama3", tok, [" zebra quux zebra    x quuxzebra"])


def qwen2():
    tok = byte_level("qwen2", split_then_bytes(GPT4 % ""), normalizers.NFC())
    tok.add_tokens([AddedToken("<tool_call>", normalized=False), AddedToken("<think>", normalized=False)])
    all_flags(tok)
    write("qwen2", tok)


def qwen3_5():
    write("qwen3_5", byte_level("qwen3_5", split_then_bytes(MARKS), normalizers.NFC()))


def o200k():
    write("o200k", byte_level("o200k", split_then_bytes(O200K)))


def deepseek():
    pre = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex("\\p{N}{1,3}"), "isolated"),
        pre_tokenizers.Split(Regex("[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+"), "isolated"),
        pre_tokenizers.Split(Regex("[!\"#$%&'()*+,\\-./:;<=>?@\\[\\\\\\]^_`{|}~][A-Za-z]+|[^\r\n\\p{L}\\p{P}\\p{S}]?"
                                   "[\\p{L}\\p{M}]+| ?[\\p{P}\\p{S}]+[\r\n]*|\\s*[\r\n]+|\\s+(?!\\S)|\\s+"), "isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    tok = byte_level("deepseek", pre)
    tok.add_special_tokens(["<\uff5cbegin\u2581of\u2581sentence\uff5c>", "<\uff5cUser\uff5c>"])
    bos = tok.token_to_id("<\uff5cbegin\u2581of\u2581sentence\uff5c>")
    tok.post_processor = processors.TemplateProcessing(single="<\uff5cbegin\u2581of\u2581sentence\uff5c>:0 $A:0",
        special_tokens=[("<\uff5cbegin\u2581of\u2581sentence\uff5c>", bos)])
    write("deepseek", tok)


def deepseek_coder():
    pre = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex("[\r\n]"), "isolated"),
        pre_tokenizers.Split(Regex("\\s?[A-Za-z\u00b5\u00c0-\u00d6\u00d8-\u00f6\u00f8-\u01ba]+"), "isolated"),
        pre_tokenizers.Split(Regex("\\s?[!-/:-~\uff01-\uff0f\uff1a-\uff5e\u2018-\u201f\u3000-\u3002]+"), "isolated"),
        pre_tokenizers.Split(Regex("\\s+$"), "isolated"),
        pre_tokenizers.Split(Regex("[\u4e00-\u9fa5\u0800-\u4e00\uac00-\ud7ff]+"), "isolated"),
        pre_tokenizers.Digits(individual_digits=True),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])
    write("deepseek_coder", byte_level("deepseek_coder", pre))


def starcoder():
    tok = byte_level("starcoder", pre_tokenizers.Sequence([pre_tokenizers.Digits(individual_digits=True),
                     pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)]))
    tok.add_special_tokens(["<fim_prefix>", "<fim_middle>", "<fim_suffix>", "<filename>"])
    tok.add_tokens([AddedToken(" " * n, normalized=False) for n in (2, 3, 4, 8)])
    write("starcoder", tok)


def spm(normalizer, pre, name, decoder, specials=("<unk>", "<s>", "</s>"), template=True, **model):
    tok = train(models.BPE(unk_token="<unk>", fuse_unk=True, byte_fallback=True, **model), normalizer, pre, 1100, specials,
                fallback=True, limit_alphabet=120)
    tok.decoder = decoder
    def fix(j):
        drop_byte_specials(j)
        for t in j["added_tokens"]:
            t["normalized"] = False
    tok = edit(tok, fix)
    if template:
        tok.post_processor = processors.TemplateProcessing(single="<s> $A", pair="<s> $A <s>:1 $B:1",
                                                           special_tokens=[("<s>", tok.token_to_id("<s>"))])
    return tok


def llama_decoder():
    return decoders.Sequence([decoders.Replace(META, " "), decoders.ByteFallback(), decoders.Fuse(),
                              decoders.Strip(" ", 1, 0)])


def replace_spaces():
    return normalizers.Replace(" ", META)


def llama2_legacy():
    n = normalizers.Sequence([normalizers.Prepend(META), replace_spaces()])
    write("spm_legacy", spm(n, None, "spm_legacy", llama_decoder()), b005_texts())


def spm_metaspace(scheme):
    def make():
        pre = pre_tokenizers.Metaspace(replacement=META, prepend_scheme=scheme, split=scheme == "always")
        tok = spm(None, pre, scheme, llama_decoder() if scheme != "never" else decoders.Metaspace(META, "never"))
        write("spm_" + scheme, tok, b005_texts())
    return make


def mistral():
    """Legacy normaliser, with control tokens of every kind."""
    n = normalizers.Sequence([normalizers.Prepend(META), replace_spaces()])
    tok = spm(n, None, "mistral", llama_decoder())
    tok.add_special_tokens(["[INST]", "[/INST]", AddedToken("[TOOL_CALLS]", normalized=True)])
    tok.add_tokens([AddedToken("plain", normalized=True), AddedToken(" two words", normalized=True, lstrip=True)])
    write("mistral", tok, b005_texts())


def phi3():
    n = normalizers.Sequence([normalizers.Prepend(META), replace_spaces()])
    tok = spm(n, None, "phi3", llama_decoder())
    tok.add_special_tokens([AddedToken(x, rstrip=True, normalized=False) for x in ("<|user|>", "<|assistant|>", "<|end|>")])
    tok.add_special_tokens([AddedToken("<|endoftext|>", normalized=False)])
    write("phi3", tok, b005_texts())


def gemma3():
    tok = spm(replace_spaces(), pre_tokenizers.Split(" ", "merged_with_previous"), "gemma3",
              decoders.Sequence([decoders.Replace(META, " "), decoders.ByteFallback(), decoders.Fuse()]),
              ("<pad>", "<eos>", "<bos>", "<unk>", "<mask>"), template=False)
    tok.add_tokens([AddedToken(x, normalized=False) for x in ("<unused0>", "<start_of_image>", "\n\n", "\n\n\n", META * 2,
                                                              META * 3, "<table>")])
    tok.add_special_tokens([AddedToken("<start_of_turn>", normalized=False), AddedToken("<end_of_turn>", normalized=False)])
    tok.post_processor = processors.TemplateProcessing(single="<bos> $A", special_tokens=[("<bos>", tok.token_to_id("<bos>"))])
    write("gemma3", tok)


def plain_unk():
    """No byte fallback: unknown characters, fused and not; BertNormalizer and BertPreTokenizer; word affixes."""
    for fuse in (False, True):
        tok = train(models.BPE(unk_token="<unk>", fuse_unk=fuse, end_of_word_suffix="</w>"),
                    normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer(), 600, ["<unk>", "<s>"],
                    end_of_word_suffix="</w>", limit_alphabet=60)
        tok.decoder = decoders.BPEDecoder("</w>")
        tok.post_processor = processors.RobertaProcessing(("<s>", 1), ("<s>", 1), add_prefix_space=False)
        write("bert_suffix" + ("_fused" if fuse else ""), tok)


def prefixed():
    tok = train(models.BPE(unk_token="[UNK]", continuing_subword_prefix="##"),
                normalizers.Sequence([normalizers.NFKC(), normalizers.Lowercase(), normalizers.Strip()]),
                pre_tokenizers.Whitespace(), 600, ["[UNK]", "[CLS]", "[SEP]"], continuing_subword_prefix="##", limit_alphabet=80)
    tok.decoder = decoders.WordPiece("##", cleanup=True)
    tok.post_processor = processors.BertProcessing(("[SEP]", 2), ("[CLS]", 1))
    all_flags(tok)
    write("prefix_whitespace", tok)


def forms():
    """The other normal forms, and the other pre-tokenisers, one small family each."""
    combos = {
        "nfd_wsplit": (normalizers.Sequence([normalizers.NFD(), normalizers.StripAccents()]), pre_tokenizers.WhitespaceSplit()),
        "nfkd_punct": (normalizers.Sequence([normalizers.NFKD(), normalizers.Replace(Regex(r"\s+"), " ")]),
                       pre_tokenizers.Sequence([pre_tokenizers.Punctuation("merged_with_next"), pre_tokenizers.Digits(False)])),
        "nmt_delim": (normalizers.Sequence([normalizers.Nmt(), normalizers.Strip(left=True, right=False)]),
                      pre_tokenizers.Sequence([pre_tokenizers.CharDelimiterSplit(" "), pre_tokenizers.Punctuation("contiguous")])),
        "split_kinds": (normalizers.Replace("e", "ee"), pre_tokenizers.Sequence([
            pre_tokenizers.Split("a", "merged_with_next"), pre_tokenizers.Split(Regex(r"\d+"), "removed"),
            pre_tokenizers.Split(Regex(r"\w+"), "contiguous", invert=True), pre_tokenizers.Split(" ", "merged_with_previous"),
            pre_tokenizers.Split(Regex(r"(?=[A-Z])"), "isolated"), pre_tokenizers.Split(Regex(r"[^\W_]{,3}+|\h{2}\b"), "isolated")])),
        "bert_cased": (normalizers.BertNormalizer(lowercase=False, strip_accents=True), pre_tokenizers.Metaspace(prepend_scheme="first")),
        "byte_norm": (normalizers.ByteLevel(), pre_tokenizers.Split(Regex(r"(?m:\u0120.)||[[:punct:]]|\p{^L}"), "isolated")),
    }
    for name, (norm, pre) in combos.items():
        tok = train(models.BPE(unk_token="<unk>"), norm, pre, 500, ["<unk>"], limit_alphabet=150)
        all_flags(tok)
        write(name, tok)


FAMILIES = [smollm2, gpt2, llama3, qwen2, qwen3_5, o200k, deepseek, deepseek_coder, starcoder, llama2_legacy,
            spm_metaspace("first"), spm_metaspace("always"), spm_metaspace("never"), mistral, phi3, gemma3, plain_unk,
            prefixed, forms]

if __name__ == "__main__":
    for f in FAMILIES:
        f()

"""peer_llama.py: rates of llama.cpp (through llama-cpp-python's low-level calls) on one GGUF file.

    peer_llama.py FILE.gguf THREADS N_PROMPT N_DECODE [BATCH] [FLASH]   {"prefill_tok_s", "decode_tok_s"}
        BATCH sequences decode together, each behind a prompt of other ids, so that a mixture's experts are as many as with other
        requests; FLASH 0, 1 or "best" of both (the default)
    peer_llama.py FILE.gguf THREADS N_PROMPT session [BATCH] [FLASH]    a line with prefill_tok_s, then for each line "N" on standard
        input one with decode_tok_s of so many tokens more, SESSION_TOKENS in all; BATCH is 1
    peer_llama.py --requantise TYPE FILE.gguf OUT.gguf                  TYPE q4_0 or q4_1
    peer_llama.py --logits FILE.gguf THREADS IDS OUT                    float32 [n][vocab] for each sequence of ids, a line of IDS each
    peer_llama.py --tokenizer FILE.gguf TEXT...                         {"mb_s": [one a text]}
Greedy decoding without detokenising.
"""
import ctypes
import json
import sys
import time

import llama_cpp as lc

SESSION_TOKENS = 2048


def quiet():
    callback = lc.llama_log_callback(lambda level, text, data: None)
    lc.llama_log_set(callback, ctypes.c_void_p(0))
    return callback


def requantise(kind, src, dst):
    params = lc.llama_model_quantize_default_params()
    params.ftype = {"q4_0": lc.LLAMA_FTYPE_MOSTLY_Q4_0, "q4_1": lc.LLAMA_FTYPE_MOSTLY_Q4_1}[kind]
    params.allow_requantize = True
    if lc.llama_model_quantize(src.encode(), dst.encode(), ctypes.byref(params)) != 0:
        raise SystemExit("llama.cpp could not requantise " + src)


def load(path, vocab_only=False):
    params = lc.llama_model_default_params()
    params.vocab_only = vocab_only
    model = lc.llama_model_load_from_file(path.encode(), params)
    if not model:
        raise SystemExit("llama.cpp could not load " + path)
    return model


def context(model, threads, n_tokens, n_seq, flash):
    params = lc.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_ubatch, params.n_seq_max = n_tokens * n_seq, 512, 512, n_seq
    params.n_threads = params.n_threads_batch = threads
    if hasattr(params, "flash_attn_type"):
        params.flash_attn_type = 1 if flash else 0
    else:
        params.flash_attn = flash
    ctx = lc.llama_init_from_model(model, params)
    if not ctx:
        raise SystemExit("llama.cpp could not make a context")
    return ctx


def decode(ctx, entries):
    """One batch of (id, position, sequence, wants logits)."""
    batch = lc.llama_batch_init(len(entries), 0, 1)
    batch.n_tokens = len(entries)
    for i, (token, pos, seq, logits) in enumerate(entries):
        batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = token, pos, 1, logits
        batch.seq_id[i][0] = seq
    rc = lc.llama_decode(ctx, batch)
    lc.llama_batch_free(batch)
    if rc != 0:
        raise SystemExit("llama_decode failed")


class Run:
    """n_seq sequences: their prompts, then tokens as they are asked for."""

    def __init__(self, model, threads, n_prompt, n_more, n_seq, flash):
        self.ctx, self.n_seq, self.at = context(model, threads, n_prompt + n_more + 8, n_seq, flash), n_seq, n_prompt
        n_vocab = lc.llama_vocab_n_tokens(lc.llama_model_get_vocab(model))
        prompts = [[(i * 37 + 11 + seq * (4099 + i)) % n_vocab for i in range(n_prompt)] for seq in range(n_seq)]
        begin = time.perf_counter()
        for seq in range(n_seq):
            for first in range(0, n_prompt, 512):
                part = prompts[seq][first:first + 512]
                last = first + len(part) == n_prompt
                decode(self.ctx, [(t, first + i, seq, last and i == len(part) - 1) for i, t in enumerate(part)])
        self.prefill = n_seq * n_prompt / (time.perf_counter() - begin)
        self.tokens = [p[-1] for p in prompts]
        self.sampler = lc.llama_sampler_init_greedy()

    def decode(self, n):
        begin = time.perf_counter()
        for step in range(n):
            decode(self.ctx, [(self.tokens[s], self.at + step, s, True) for s in range(self.n_seq)])
            self.tokens = [lc.llama_sampler_sample(self.sampler, self.ctx, s) for s in range(self.n_seq)]
        self.at += n
        return self.n_seq * n / (time.perf_counter() - begin)

    def close(self):
        lc.llama_sampler_free(self.sampler)
        lc.llama_free(self.ctx)


def rates(model, threads, n_prompt, n_decode, n_seq, flash):
    run = Run(model, threads, n_prompt, n_decode, n_seq, flash)
    rate = run.decode(n_decode)
    run.close()
    return run.prefill, rate


def session(model, threads, n_prompt, flash):
    run, left = Run(model, threads, n_prompt, SESSION_TOKENS, 1, flash), SESSION_TOKENS
    print(json.dumps({"prefill_tok_s": round(run.prefill, 1)}), flush=True)
    for line in sys.stdin:
        left -= int(line)
        if left < 0:
            raise SystemExit("the session has no room for so many tokens more")
        print(json.dumps({"decode_tok_s": round(run.decode(int(line)), 2)}), flush=True)
    run.close()


def write_logits(path, threads, ids_file, out_file):
    model = load(path)
    n_vocab = lc.llama_vocab_n_tokens(lc.llama_model_get_vocab(model))
    with open(ids_file) as lines, open(out_file, "wb") as out:
        for line in lines:
            ids = list(map(int, line.split()))
            ctx = context(model, int(threads), len(ids) + 8, 1, False)
            for first in range(0, len(ids), 512):
                part = ids[first:first + 512]
                decode(ctx, [(t, first + i, 0, True) for i, t in enumerate(part)])
                out.write(ctypes.string_at(lc.llama_get_logits(ctx), 4 * n_vocab * len(part)))
            lc.llama_free(ctx)


def tokenizer_rates(path, texts):
    vocab = lc.llama_model_get_vocab(load(path, vocab_only=True))
    out = []
    for name in texts:
        data = open(name, "rb").read(1 << 20)  # longer texts only lower its rate
        room = (lc.llama_token * (len(data) + 16))()
        begin = time.perf_counter()
        if lc.llama_tokenize(vocab, data, len(data), room, len(room), False, False) < 0:
            raise SystemExit("llama_tokenize failed")
        out.append(round(len(data) / 1e6 / (time.perf_counter() - begin), 2))
    print(json.dumps({"mb_s": out}))


def main():
    keep = quiet()
    if sys.argv[1] == "--requantise":
        return requantise(*sys.argv[2:5])
    lc.llama_backend_init()
    if sys.argv[1] == "--logits":
        return write_logits(*sys.argv[2:6])
    if sys.argv[1] == "--tokenizer":
        return tokenizer_rates(sys.argv[2], sys.argv[3:])
    model = load(sys.argv[1])
    threads, n_prompt = map(int, sys.argv[2:4])
    n_seq = int(sys.argv[5]) if len(sys.argv) > 5 else 1
    flash = sys.argv[6] if len(sys.argv) > 6 else "best"
    if sys.argv[4] == "session":
        return session(model, threads, n_prompt, flash != "0")
    n_decode = int(sys.argv[4])
    both = [rates(model, threads, n_prompt, n_decode, n_seq, f) for f in ((False, True) if flash == "best" else (flash == "1",))]
    print(json.dumps({"prefill_tok_s": round(max(b[0] for b in both), 1), "decode_tok_s": round(max(b[1] for b in both), 1)}))
    del keep


main()

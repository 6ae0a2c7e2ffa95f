"""peer_llama.py: prefill and decode rates of llama.cpp (through llama-cpp-python's low-level calls) on one GGUF file.

Prints one JSON line {"prefill_tok_s", "decode_tok_s"}: the better of flash attention on and off, greedy decoding without
detokenising. Usage: peer_llama.py FILE.gguf THREADS N_PROMPT N_DECODE ; peer_llama.py --q4_0 FILE.gguf OUT.gguf requantises.
"""
import ctypes
import json
import sys
import time

import llama_cpp as lc


def quiet():
    callback = lc.llama_log_callback(lambda level, text, data: None)
    lc.llama_log_set(callback, ctypes.c_void_p(0))
    return callback


def requantise(src, dst):
    params = lc.llama_model_quantize_default_params()
    params.ftype = lc.LLAMA_FTYPE_MOSTLY_Q4_0
    params.allow_requantize = True
    if lc.llama_model_quantize(src.encode(), dst.encode(), ctypes.byref(params)) != 0:
        raise SystemExit("llama.cpp could not requantise " + src)


def rates(model, threads, n_prompt, n_decode, flash):
    params = lc.llama_context_default_params()
    params.n_ctx, params.n_batch, params.n_ubatch = n_prompt + n_decode + 8, 512, 512
    params.n_threads = params.n_threads_batch = threads
    if hasattr(params, "flash_attn_type"):
        params.flash_attn_type = 1 if flash else 0
    else:
        params.flash_attn = flash
    ctx = lc.llama_init_from_model(model, params)
    n_vocab = lc.llama_vocab_n_tokens(lc.llama_model_get_vocab(model))
    ids = (lc.llama_token * n_prompt)(*[(i * 37 + 11) % n_vocab for i in range(n_prompt)])
    begin = time.perf_counter()
    for first in range(0, n_prompt, 512):
        part = (lc.llama_token * min(512, n_prompt - first))(*ids[first:first + 512])
        if lc.llama_decode(ctx, lc.llama_batch_get_one(part, len(part))) != 0:
            raise SystemExit("llama_decode failed")
    middle = time.perf_counter()
    one = (lc.llama_token * 1)(ids[n_prompt - 1])
    sampler = lc.llama_sampler_init_greedy()
    for _ in range(n_decode):
        if lc.llama_decode(ctx, lc.llama_batch_get_one(one, 1)) != 0:
            raise SystemExit("llama_decode failed")
        one[0] = lc.llama_sampler_sample(sampler, ctx, -1)
    end = time.perf_counter()
    lc.llama_sampler_free(sampler)
    lc.llama_free(ctx)
    return n_prompt / (middle - begin), n_decode / (end - middle)


def main():
    keep = quiet()
    if sys.argv[1] == "--q4_0":
        return requantise(sys.argv[2], sys.argv[3])
    lc.llama_backend_init()
    model = lc.llama_model_load_from_file(sys.argv[1].encode(), lc.llama_model_default_params())
    threads, n_prompt, n_decode = map(int, sys.argv[2:5])
    both = [rates(model, threads, n_prompt, n_decode, flash) for flash in (False, True)]
    print(json.dumps({"prefill_tok_s": round(max(b[0] for b in both), 1), "decode_tok_s": round(max(b[1] for b in both), 1)}))
    del keep


main()

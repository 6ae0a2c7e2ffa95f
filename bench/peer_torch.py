"""peer_torch.py: what torch reaches with the shapes of bench_cuda.py on the same GPU: a Llama-shaped decoder of random weights.

    peer_torch.py [--shape 8b] [--batches 1,8,32] [--contexts 512,8192] [--forms bf16,int4] [--compile 1] [--seconds 150]

Forms: bf16, every product by torch's own choice of library; int4, 4 bit in groups of 64 through torch's int4 kernel. Each compiled layer
by layer, or plain where torch.compile does not work. Prints JSON: rows of {form, compiled, context, batch, decode_tok_s} and {form,
compiled, batch, prompt, prefill_tok_s}, and `best`, the best of the forms for each. Everything is as torch would have it: q, k and v are one product,
gate and up another, keys lie in a static cache in the order that its attention reads, a step is one CUDA graph with embedding and argmax in it, all keys of the
cache are seen without a mask, nothing comes back to the host between steps. So these are rates of steps alone, ours those of the
whole engine. Needs torch with CUDA. What takes longer than --seconds is left out.
"""
import argparse
import json
import sys
import time

import torch
import torch.nn.functional as F

from bench_cuda import GROUP, SHAPES

DEVICE, KIND = "cuda", torch.bfloat16
PROMPT, ROOM = 512, 64  # a decode step sees context + ROOM keys: the middle of 128 tokens behind it
EPS = 1e-5


class Plain:
    """A matrix in bf16."""

    def __init__(self, n, k):
        self.parts = (torch.empty(n, k, device=DEVICE, dtype=KIND).normal_(0, 0.6 / k**0.5),)

    @staticmethod
    def product(x, w):
        return F.linear(x, w)


class Int4:
    """A matrix in torch's packed 4 bit: w = (code - 8) * scale + zero, a scale and a zero for each group."""

    def __init__(self, n, k):
        codes = torch.randint(0, 256, (n, k // 2), device=DEVICE, dtype=torch.uint8)
        tiles = next(t for t in (8, 4, 2) if k % (16 * t) == 0)
        scales = torch.full((k // GROUP, n, 2), 0.6 / k**0.5 / 4.6, device=DEVICE, dtype=KIND)
        scales[:, :, 1] = 0.5 * scales[:, :, 0]
        self.parts = (torch.ops.aten._convert_weight_to_int4pack(codes, tiles), scales)

    @staticmethod
    def product(x, w, scales):
        shape = x.shape
        return torch.ops.aten._weight_int4pack_mm(x.reshape(-1, shape[-1]), w, GROUP, scales).view(*shape[:-1], -1)


FORMS = {"bf16": Plain, "int4": Int4}


class Model:
    def __init__(self, shape, form):
        self.d, self.ff, self.heads, self.kv, self.head, self.n_layers, self.vocab = shape
        self.form = FORMS[form]
        self.embed = torch.empty(self.vocab, self.d, device=DEVICE, dtype=KIND).normal_()
        wide = (self.heads + 2 * self.kv) * self.head
        self.layers = [[self.form(n, k).parts for n, k in ((wide, self.d), (self.d, self.heads * self.head), (2 * self.ff, self.d), (self.d, self.ff))]
                       for _ in range(self.n_layers)]
        self.out = self.form(self.vocab, self.d).parts
        self.norm = torch.ones(self.d, device=DEVICE, dtype=KIND)
        self.angles = None

    def open(self, batch, length):
        """A cache of `length` keys for each of `batch` rows, and cosines and sines of its positions."""
        self.cache = None
        shape = (batch, self.kv, length, self.head)
        self.cache = [(torch.zeros(shape, device=DEVICE, dtype=KIND), torch.zeros(shape, device=DEVICE, dtype=KIND)) for _ in range(self.n_layers)]
        turn = 1.0 / 5e5 ** (torch.arange(0, self.head, 2, device=DEVICE).float() / self.head)
        turn = torch.arange(length, device=DEVICE).float()[:, None] * torch.cat((turn, turn))[None]
        self.angles = torch.stack((turn.cos(), turn.sin())).to(KIND)

    def block(self, x, pos, angles, norm, qkv, o, glu, down, keys, values):
        b, m, _ = x.shape
        q, k, v = self.form.product(F.rms_norm(x, (self.d,), norm, EPS), *qkv).view(b, m, -1, self.head).split((self.heads, self.kv, self.kv), 2)
        cos, sin = angles[0, pos].view(m, 1, -1), angles[1, pos].view(m, 1, -1)
        q, k = (t * cos + torch.cat((-t[..., self.head // 2:], t[..., :self.head // 2]), -1) * sin for t in (q, k))
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        keys.index_copy_(2, pos, k)
        values.index_copy_(2, pos, v)
        if m > 1:
            seen = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
        else:
            seen = F.scaled_dot_product_attention(q, keys, values, enable_gqa=True)
        x = x + self.form.product(seen.transpose(1, 2).reshape(b, m, -1), *o)
        gate, up = self.form.product(F.rms_norm(x, (self.d,), norm, EPS), *glu).split((self.ff, self.ff), -1)
        return x + self.form.product(F.silu(gate) * up, *down)

    def forward(self, ids, pos, block):
        x = F.embedding(ids, self.embed)
        for layer, kv in zip(self.layers, self.cache):
            x = block(x, pos, self.angles, self.norm, *layer, *kv)
        logits = self.form.product(F.rms_norm(x[:, -1:], (self.d,), self.norm, EPS), *self.out)
        return logits[:, -1].argmax(-1, keepdim=True)


def seconds_of(call, n):
    """The best of three."""
    best = 1e9
    for _ in range(3):
        a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        a.record()
        for _ in range(n):
            call()
        b.record()
        torch.cuda.synchronize()
        best = min(best, a.elapsed_time(b) / 1e3 / n)
    return best


def captured(call):
    """`call` as a graph, warm."""
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            call()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    return graph


def decode(model, block, batch, context):
    model.open(batch, context + ROOM)
    ids = torch.zeros(batch, 1, device=DEVICE, dtype=torch.long)
    pos = torch.full((1,), context, device=DEVICE, dtype=torch.long)
    graph = captured(lambda: ids.copy_(model.forward(ids, pos, block)))
    return batch / seconds_of(graph.replay, 20)


def prefill(model, block, batch):
    model.open(batch, PROMPT)
    ids = torch.randint(0, model.vocab, (batch, PROMPT), device=DEVICE)
    pos = torch.arange(PROMPT, device=DEVICE)
    graph = captured(lambda: model.forward(ids, pos, block))
    return batch * PROMPT / seconds_of(graph.replay, max(1, 8 // batch))


def measure(args, form, compiled, end):
    """Rows of one form; what fails or comes too late is left out with a line on stderr."""
    begin, rows = time.monotonic(), []
    model = Model(SHAPES[args.shape], form)
    block = torch.compile(model.block, dynamic=False) if compiled else model.block
    batches = [int(b) for b in args.batches.split(",")]
    jobs = [("decode_tok_s", b, int(c)) for c in args.contexts.split(",") for b in batches]
    # The int4 kernel goes through a prompt sixteen tokens at a time: one prompt shows it.
    jobs[len(batches):len(batches)] = [("prefill_tok_s", b, 0) for b in (batches if form == "bf16" else batches[:1])]
    for key, batch, context in jobs:
        if time.monotonic() > end:
            print(f"peer_torch: no time for {form}, compiled {compiled}, {key}, batch {batch}, context {context}", file=sys.stderr)
            continue
        try:
            rate = decode(model, block, batch, context) if context else prefill(model, block, batch)
        except Exception as e:
            print(f"peer_torch: {form}, compiled {compiled}, {key}, batch {batch}: {type(e).__name__}: {str(e)[:400]}", file=sys.stderr)
            break
        at = {"context": context} if context else {"prompt": PROMPT}
        rows.append({"form": form, "compiled": compiled, "batch": batch, **at, key: round(rate, 1)})
        print(f"{time.monotonic() - begin:6.1f} s", json.dumps(rows[-1]), file=sys.stderr, flush=True)
    return rows


def best_of(rows):
    best = {}
    for row in rows:
        key = next(k for k in row if k.endswith("tok_s"))
        at = (key, row["batch"], row.get("context"))
        if at not in best or row[key] > best[at][key]:
            best[at] = row
    return list(best.values())


def main():
    a = argparse.ArgumentParser()
    a.add_argument("--shape", default="8b")
    a.add_argument("--batches", default="1,8,32")
    a.add_argument("--contexts", default="512,8192")
    a.add_argument("--forms", default="int4,bf16")
    a.add_argument("--compile", type=int, default=1)
    a.add_argument("--seconds", type=float, default=150)
    args = a.parse_args()
    end, rows = time.monotonic() + args.seconds, []
    with torch.inference_mode():
        for form in args.forms.split(","):
            got = measure(args, form, True, end) if args.compile else []
            rows += got or measure(args, form, False, end)
            torch.cuda.empty_cache()
    print(json.dumps({"peer": f"torch {torch.__version__}", "device": torch.cuda.get_device_name(), "shape": args.shape, "rows": rows, "best": best_of(rows)}))


if __name__ == "__main__":
    main()

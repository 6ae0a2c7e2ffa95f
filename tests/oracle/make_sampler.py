"""Filters and penalties of mlx_lm.sample_utils on small logit vectors: tests/golden/sampler/sampler.json."""
import mlx.core as mx
import numpy as np

from common import GOLDEN, versions, write_json

N = 24


def vectors():
    rng = np.random.default_rng(99)
    geometric = np.log(np.array([0.5 ** (i + 1) for i in range(N)])) + 0.0
    v = {
        "flat": np.zeros(N),
        "geometric": geometric,
        "normal": rng.standard_normal(N) * 2.5,
        "normal-wide": rng.standard_normal(N) * 8,
        "two-peaks": np.where(np.arange(N) == 5, 9.0, np.where(np.arange(N) == 17, 9.0, rng.standard_normal(N))),
        "peaked": np.where(np.arange(N) == 11, 20.0, rng.standard_normal(N)),
        "ties": np.round(rng.standard_normal(N) * 2) / 2,
        "with-minus-inf": np.where(np.arange(N) % 5 == 3, -np.inf, rng.standard_normal(N) * 3),
        "large": 1e4 + rng.standard_normal(N) * 3,
    }
    return {k: x.astype(np.float32) for k, x in v.items()}


def logprobs_of(logits):
    x = mx.array(logits)[None]
    return x - mx.logsumexp(x, keepdims=True)


def numbers(a, digits=6):
    return [None if not np.isfinite(v) else round(float(v), digits) for v in np.array(a).reshape(-1)]


def filters():
    """(name, parameters, function of log-probabilities)."""
    from mlx_lm import sample_utils as s
    out = []
    for p in (0.05, 0.3, 0.5, 0.75, 0.9, 0.95, 0.999):
        out.append((f"top_p={p}", {"top_p": p}, lambda x, p=p: s.apply_top_p(x, p)))
    for p, keep in ((0.01, 1), (0.05, 1), (0.1, 1), (0.5, 1), (0.9, 4), (1.0, 1), (1.0, 3)):
        out.append((f"min_p={p},keep={keep}", {"min_p": p, "min_keep": keep}, lambda x, p=p, k=keep: s.apply_min_p(x, p, k)))
    for k in (1, 2, 5, 23):
        out.append((f"top_k={k}", {"top_k": k}, lambda x, k=k: s.apply_top_k(x, k)))
    for t, exempt in ((0.0, []), (0.05, []), (0.1, []), (0.1, [5, 11]), (0.2, []), (0.5, [])):
        # probability 1: uniform(0, 1) is never above it, so XTC always applies
        out.append((f"xtc={t},exempt={exempt}", {"xtc_probability": 1.0, "xtc_threshold": t, "xtc_exempt": exempt},
                    lambda x, t=t, e=exempt: s.apply_xtc(x, 1.0, t, e)))
    chains = [
        {"top_p": 0.9, "min_p": 0.05}, {"top_p": 0.9, "top_k": 4}, {"min_p": 0.02, "top_k": 3},
        {"top_p": 0.95, "min_p": 0.01, "xtc_probability": 1.0, "xtc_threshold": 0.1, "top_k": 6},
        {"xtc_probability": 1.0, "xtc_threshold": 0.05, "top_k": 2},
    ]
    for c in chains:
        out.append(("chain " + ",".join(f"{k}={v}" for k, v in c.items()), c, lambda x, c=c: chain(x, c)))
    return out


def chain(x, c):
    """The order of make_sampler: top-p, min-p, XTC, top-k, each on what the one before left (-inf for the dropped;
    log-probabilities are not normalised again, but XTC's softmax does so)."""
    from mlx_lm import sample_utils as s
    if "top_p" in c:
        x = s.apply_top_p(x, c["top_p"])
    if "min_p" in c:
        x = s.apply_min_p(x, c["min_p"], 1)
    if "xtc_probability" in c:
        x = s.apply_xtc(x, 1.0, c["xtc_threshold"], [])
    if "top_k" in c:
        x = s.apply_top_k(x, c["top_k"])
    return x


HISTORIES = {"empty": [], "one": [3], "repeats": [1, 1, 2, 5, 5, 5, 8, 13, 21, 3],
             "long": [(i * 7) % N for i in range(30)] + [2, 2, 2]}
PROCESSORS = [
    {"logit_bias": {"3": 5.0, "7": -100.0, "23": 0.25}},
    {"logit_bias": {"0": -100.0, "1": 100.0}},
    {"repetition_penalty": 1.1}, {"repetition_penalty": 1.5, "repetition_context_size": 4},
    {"repetition_penalty": 0.8}, {"repetition_penalty": 1.3, "repetition_context_size": 0},
    {"presence_penalty": 0.5}, {"presence_penalty": -1.0, "presence_context_size": 3},
    {"frequency_penalty": 0.5}, {"frequency_penalty": 0.7, "frequency_context_size": 6},
    {"frequency_penalty": -0.4},
    {"logit_bias": {"5": 2.0}, "repetition_penalty": 1.2, "presence_penalty": 0.3, "frequency_penalty": 0.2},
]


def processed(logits, history, params):
    from mlx_lm.sample_utils import make_logits_processors
    kw = dict(params)
    if "logit_bias" in kw:
        kw["logit_bias"] = {int(k): v for k, v in kw["logit_bias"].items()}
    x = mx.array(logits)[None]
    for f in make_logits_processors(**kw):
        x = f(mx.array(history, dtype=mx.uint32) if history else [], x)
    return x


def lower_ids(lp, keep):
    """The survivors again, with the value that was cut through counted out to the lowest ids."""
    cut = min(v for v in lp[keep] if v in np.delete(lp, keep))
    n = sum(lp[i] == cut for i in keep)
    return sorted([int(i) for i in keep if lp[i] != cut] + [int(i) for i in np.flatnonzero(lp == cut)[:n]])


def edge_gaps(name, params, lp):
    """How near the decision was: the smallest distance of a decision variable from its threshold (so that a test
    knows where rounding may decide). Only for top-p and XTC, whose sums are rounded."""
    p = np.exp(np.array(lp, dtype=np.float64).reshape(-1))
    if set(params) == {"top_p"}:
        above = np.array([p[p > q].sum() for q in p])
        return float(np.abs(above - params["top_p"] * p.sum()).min())
    if "xtc_threshold" in params and "top_p" not in params:
        return float(np.abs(p / p.sum() - params["xtc_threshold"]).min())
    return None


def main():
    mx.set_default_device(mx.cpu)
    vecs, cases, procs = vectors(), [], []
    for vname, v in vecs.items():
        lp = logprobs_of(v)
        for fname, params, f in filters():
            got = np.array(f(lp))[0]
            case = {"vector": vname, "params": params, "keep": [int(i) for i in np.flatnonzero(np.isfinite(got))]}
            gap = edge_gaps(fname, params, lp)
            if gap is not None and gap < 1e-6:
                case["near_edge"] = True
            # mlx picks any of equal values at the cut of top-k and of min_keep; ours take the lower ids
            dropped = np.setdiff1d(np.flatnonzero(np.isfinite(np.array(lp)[0])), case["keep"])
            if np.intersect1d(np.array(lp)[0][dropped], np.array(lp)[0][case["keep"]]).size:
                case["tie_at_cut"] = True
                case["keep"] = lower_ids(np.array(lp)[0], case["keep"])
            # what survives keeps its log-probability
            assert "tie_at_cut" in case or np.array_equal(got[case["keep"]], np.array(lp)[0][case["keep"]])
            cases.append(case)
    for vname in ("normal", "two-peaks", "with-minus-inf"):
        for hname, h in HISTORIES.items():
            for params in PROCESSORS:
                x = processed(vecs[vname], h, params)
                procs.append({"vector": vname, "history": hname, "params": params, "logits": numbers(x, 5),
                              "logprobs": numbers(x - mx.logsumexp(x, keepdims=True), 5)})
    write_json(GOLDEN / "sampler" / "sampler.json", {
        "oracle": versions("mlx", "mlx-lm", "numpy"), "n_vocab": N,
        "vectors": {k: numbers(v, 9) for k, v in vecs.items()},
        "logprobs": {k: numbers(logprobs_of(v)) for k, v in vecs.items()},
        "histories": HISTORIES, "filters": cases, "processors": procs})
    print(len(cases), "filter cases", sum(c.get("near_edge", False) for c in cases), "near an edge",
          sum(c.get("tie_at_cut", False) for c in cases), "ties,",
          sum(not c["keep"] for c in cases), "empty;", len(procs), "processor cases")


if __name__ == "__main__":
    main()

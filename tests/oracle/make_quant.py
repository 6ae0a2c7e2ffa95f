"""mlx.core.quantize on a small matrix: tests/golden/quant_affine/quant.json and quant.bin."""
import mlx.core as mx
import numpy as np

from common import GOLDEN, versions, write_json

N_ROWS, N_IN, SEED = 5, 256, 4711
NAMES = {mx.uint32: "U32", mx.uint8: "U8", mx.float32: "F32", mx.float16: "F16", mx.bfloat16: "BF16"}


def matrix():
    """Rows that reach the branches of the quantiser: normal; positive only (offset far from 0); a constant row and a
    row of zeros (no range); groups with one outlier on either side."""
    rng = np.random.default_rng(SEED)
    w = rng.standard_normal((N_ROWS, N_IN)).astype(np.float32)
    w[1] = 3 + 0.25 * np.abs(w[1])
    w[2] = 0.0
    w[2, 128:] = -0.75
    w[3] *= 1e-3
    w[3, 5], w[3, 70], w[3, 140], w[3, 200] = 8.0, -8.0, 2.5, -0.125
    w[4] = np.round(w[4] * 4) / 4
    return w


class Blob:
    def __init__(self):
        self.parts, self.size = [], 0

    def add(self, a):
        """Append; returns {dtype, shape, off, size_bytes}. bf16 goes as its 16 bits."""
        kind = NAMES[a.dtype]
        raw = np.array(a.view(mx.uint16) if kind == "BF16" else a).tobytes()
        pad = -self.size % 16
        self.parts += [b"\0" * pad, raw]
        off, self.size = self.size + pad, self.size + pad + len(raw)
        return {"dtype": kind, "shape": list(a.shape), "off": off, "size_bytes": len(raw)}


def main():
    mx.set_default_device(mx.cpu)
    out, blob, cases = GOLDEN / "quant_affine", Blob(), []
    w32 = mx.array(matrix())
    inputs = {}
    for dt in (mx.float32, mx.float16, mx.bfloat16):
        inputs[NAMES[dt]] = blob.add(w32.astype(dt))
    for bits in (2, 3, 4, 5, 6, 8):
        for group in (32, 64, 128):
            # every type of scales for 4 bits; the others once each, the type varying with the group
            for dt in (mx.float32, mx.float16, mx.bfloat16) if bits == 4 else \
                    ({32: mx.float16, 64: mx.bfloat16, 128: mx.float32}[group],):
                w = w32.astype(dt)
                q, s, b = mx.quantize(w, group_size=group, bits=bits)
                deq = mx.dequantize(q, s.astype(mx.float32), b.astype(mx.float32), group_size=group, bits=bits)
                cases.append({"mode": "affine", "bits": bits, "group_size": group, "input": NAMES[dt],
                              "codes": blob.add(q), "scales": blob.add(s), "biases": blob.add(b),
                              "dequantised": blob.add(deq)})
    for mode, bits, group in (("mxfp4", 4, 32), ("nvfp4", 4, 16), ("mxfp8", 8, 32)):
        for dt in (mx.float32, mx.bfloat16):
            q, s = mx.quantize(w32.astype(dt), mode=mode)
            deq = mx.dequantize(q, s, None, mode=mode, group_size=group, bits=bits, dtype=mx.float32)
            assert deq.dtype == mx.float32
            cases.append({"mode": mode, "bits": bits, "group_size": group, "input": NAMES[dt],
                          "codes": blob.add(q), "scales": blob.add(s), "dequantised": blob.add(deq)})
    out.mkdir(parents=True, exist_ok=True)
    (out / "quant.bin").write_bytes(b"".join(blob.parts))
    write_json(out / "quant.json", {"oracle": versions("mlx", "numpy"), "seed": SEED, "n_rows": N_ROWS, "n_in": N_IN,
                                    "data": "quant.bin", "inputs": inputs, "cases": cases})
    check_affine(out)
    print(len(cases), "cases", blob.size, "bytes")


def check_affine(out):
    """The file read back by code that shares nothing with mlx."""
    import json
    from ref64 import dequantise_affine
    j, raw = json.loads((out / "quant.json").read_text()), (out / "quant.bin").read_bytes()

    def get(t):
        b = raw[t["off"]:t["off"] + t["size_bytes"]]
        if t["dtype"] == "BF16":
            a = (np.frombuffer(b, "<u2").astype(np.uint32) << 16).view(np.float32)
        else:
            a = np.frombuffer(b, {"F16": "<f2", "F32": "<f4", "U32": "<u4", "U8": "u1"}[t["dtype"]])
        return a.reshape(t["shape"])

    e2m1 = np.array([0, .5, 1, 1.5, 2, 3, 4, 6])

    def e4m3(u):
        s, e, m = np.where(u & 128, -1.0, 1.0), ((u >> 3) & 15).astype(int), (u & 7) / 8.0
        return s * np.where(e == 0, m * 2.0 ** -6, (1 + m) * 2.0 ** (e - 7))

    from ref64 import unpack_codes
    for c in j["cases"]:
        want = get(c["dequantised"])
        if c["mode"] == "affine":
            got = dequantise_affine(get(c["codes"]), get(c["scales"]), get(c["biases"]), c["bits"], c["group_size"])
        else:
            q, s = unpack_codes(get(c["codes"]), c["bits"]), get(c["scales"])
            v = e4m3(q) if c["mode"] == "mxfp8" else np.where(q & 8, -1, 1) * e2m1[q & 7]
            sc = e4m3(s) if c["mode"] == "nvfp4" else 2.0 ** (s.astype(float) - 127)
            got = v * np.repeat(sc, c["group_size"], axis=1)
        err = np.abs(got - want).max()
        assert err <= 2e-6 * max(1, np.abs(want).max()), (c["mode"], c["bits"], c["group_size"], c["input"], err)


if __name__ == "__main__":
    main()

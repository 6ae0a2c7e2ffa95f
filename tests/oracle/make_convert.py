"""tests/golden/convert/golden.json: what mlx_lm.convert makes of the sources of tests/golden/convert/source.py.

    python tests/oracle/make_convert.py            # from the root, in the environment of tests/oracle/README.md
    python tests/oracle/make_convert.py NAME ...   # these cases alone, the others as they are
"""
import contextlib
import io
import json
import pathlib
import sys
import tempfile

import mlx.core as mx
from mlx_lm import convert

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tests/golden/convert"))
import source  # noqa: E402

mx.set_default_device(mx.cpu)
golden = json.loads((ROOT / "tests/golden/convert/golden.json").read_text()) if sys.argv[1:] else {}
with tempfile.TemporaryDirectory() as tmp:
    for name, (family, how, args) in source.CASES.items():
        if sys.argv[1:] and name not in sys.argv[1:]:
            continue
        src = source.write(family, f"{tmp}/{name}-src", **how)
        out = pathlib.Path(tmp) / name
        args = dict(args)
        if args.pop("floats_first", how.get("packed") and args.get("quantize")):
            with contextlib.redirect_stdout(io.StringIO()):
                convert(str(src), mlx_path=f"{tmp}/{name}-floats", dequantize=True)
            src = f"{tmp}/{name}-floats"
        with contextlib.redirect_stdout(io.StringIO()):
            convert(str(src), mlx_path=str(out), **args)
        config = json.loads((out / "config.json").read_text())
        golden[name] = {"quantization": config.get("quantization"), "tensors": source.digests(out)}
        print(name, len(golden[name]["tensors"]))
path = ROOT / "tests/golden/convert/golden.json"
path.write_text(json.dumps(golden, indent=0, sort_keys=True) + "\n")
print(path.stat().st_size, "bytes")

"""tests/golden/convert/golden.json: what mlx_lm.convert makes of the sources of tests/golden/convert/source.py; of diffusion_gemma, which
mlx-lm has not, what mlx-vlm's class and predicate make with the same functions (needs mlx-vlm and pillow; the tower is left out).

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


def convert_vlm(src, out, quantize=False, q_bits=None, q_group_size=None, dtype=None, quant_predicate=None):
    """The steps of mlx_vlm.convert, without a processor."""
    from mlx.utils import tree_map_with_path
    from mlx_lm.utils import quantize_model, save_config, save_model
    from mlx_vlm.models.diffusion_gemma.config import ModelConfig
    from mlx_vlm.models.diffusion_gemma.diffusion_gemma import Model
    config = json.loads((pathlib.Path(src) / "config.json").read_text())
    config["vision_config"] = None
    config["text_config"].update(global_head_dim=64, num_global_key_value_heads=1)      # keys that mlx-vlm reads, for per_layer_config
    model = Model(ModelConfig.from_dict(config))
    weights = {}
    for file in sorted(pathlib.Path(src).glob("*.safetensors")):
        weights.update(mx.load(str(file)))
    model.load_weights(list(model.sanitize(weights).items()))
    dtype = getattr(mx, dtype or config["torch_dtype"])
    model.update(tree_map_with_path(lambda k, v: v.astype(dtype), model.parameters()))
    if quantize:
        model, config = quantize_model(model, config, q_group_size, q_bits, quant_predicate=quant_predicate or model.quant_predicate)
    save_model(out, model)
    save_config(config, config_path=out / "config.json")


golden = json.loads((ROOT / "tests/golden/convert/golden.json").read_text()) if sys.argv[1:] else {}
with tempfile.TemporaryDirectory() as tmp:
    for name, (family, how, args) in source.CASES.items():
        if sys.argv[1:] and name not in sys.argv[1:]:
            continue
        src = source.write(family, f"{tmp}/{name}-src", **how)
        out = pathlib.Path(tmp) / name
        args = dict(args)
        plan = args.pop("plan", None)
        if plan:
            args["quant_predicate"] = lambda path, _, plan=plan: plan.get(path, True)
        if args.pop("floats_first", how.get("packed") and args.get("quantize")):
            with contextlib.redirect_stdout(io.StringIO()):
                convert(str(src), mlx_path=f"{tmp}/{name}-floats", dequantize=True)
            src = f"{tmp}/{name}-floats"
        with contextlib.redirect_stdout(io.StringIO()):
            (convert_vlm if family == "diffusion_gemma" else convert)(str(src), out, **args)
        config = json.loads((out / "config.json").read_text())
        golden[name] = {"quantization": config.get("quantization"), "tensors": source.digests(out)}
        print(name, len(golden[name]["tensors"]))
path = ROOT / "tests/golden/convert/golden.json"
path.write_text(json.dumps(golden, indent=0, sort_keys=True) + "\n")
print(path.stat().st_size, "bytes")

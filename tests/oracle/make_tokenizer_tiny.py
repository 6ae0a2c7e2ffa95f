"""Ids of the two tokenizers of the tiny checkpoints: tests/golden/tokenizer-tiny/{bpe,spm}.json."""
from transformers import AutoTokenizer
from tokenizers import Tokenizer

from common import GOLDEN, TEXT_NAMES, TINY, read_text, versions, write_json
from tokenizer_texts import TOKENIZER_TEXTS

EXTRA = ["<bos>Go", "<bos> Go", "<eos>  Go", " Go", "Go", "<start_of_turn>user\nx<end_of_turn>", "<0x41>", "\u2581under", "a \u2581 b",
         "<unk>", "<pad><mask>", "x<end_of_turn>\n"]
CHATS = [
    [{"role": "user", "content": "Hello"}],
    [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "  Hi there \n"}],
    [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}, {"role": "user", "content": "Stra\u00dfe \u4f60\u597d"}],
]


def make(label, family):
    path = str(TINY / family / "tokenizer.json")
    tok, hf = Tokenizer.from_file(path), AutoTokenizer.from_pretrained(str(TINY / family))
    cases = []
    for text in TOKENIZER_TEXTS + EXTRA + [read_text(n)[:300] for n in TEXT_NAMES]:
        case = {"text": text, "ids": tok.encode(text, add_special_tokens=False).ids}
        with_special = tok.encode(text, add_special_tokens=True).ids
        if with_special != case["ids"]:
            case["ids_with_special"] = with_special
        for skip, key in ((False, "decoded"), (True, "decoded_skip_special")):
            back = tok.decode(case["ids"], skip_special_tokens=skip)
            if back != text:
                case[key] = back
        cases.append(case)
    chats = [{"messages": m, "add_generation_prompt": g,
              "text": hf.apply_chat_template(m, tokenize=False, add_generation_prompt=g)}
             for m in CHATS for g in (True, False)]
    for c in chats:
        c["ids"] = tok.encode(c["text"], add_special_tokens=False).ids
    write_json(GOLDEN / "tokenizer-tiny" / f"{label}.json", {
        "tokenizer": f"tests/golden/tiny/{family}/tokenizer.json",
        "oracle": versions("tokenizers", "transformers", "jinja2"), "cases": cases, "chats": chats})
    print(label, len(cases), "texts", len(chats), "chats")


if __name__ == "__main__":
    make("bpe", "llama")
    make("spm", "gemma3")

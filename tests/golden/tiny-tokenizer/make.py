"""Makes this folder's tokenizer.json and tokenizer_config.json: a byte-level BPE of a few hundred tokens with ChatML
control tokens, thinking tags and one added token that is not special. Deterministic.

    python make.py            # with tokenizers 0.22.1
"""
import json
from tokenizers import Tokenizer, models, pre_tokenizers, decoders, AddedToken

alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
vocab = {c: i for i, c in enumerate(alphabet)}
merges = []
for word in ["the", "END", "one", "two", "hello", "world", "\u0120the", "\u0120O", "\u0120one", "\u0120two", "F\u0120it",
             "\u0120hello", "\u0120world", "user", "assistant", "system", "think"]:
    parts = ["\u0120", word[1:]] if word[0] == "\u0120" and word[1:] in vocab else list(word)
    while len(parts) > 1:
        pair = (parts[0], parts[1])
        joined = "".join(pair)
        if joined not in vocab:
            vocab[joined] = len(vocab)
            merges.append(pair)
        parts = [joined] + parts[2:]
tok = Tokenizer(models.BPE(vocab=vocab, merges=merges))
tok.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
tok.decoder = decoders.ByteLevel()
tok.add_special_tokens([AddedToken(t, special=True) for t in ["<|endoftext|>", "<|im_start|>", "<|im_end|>"]])
tok.add_tokens([AddedToken(t, special=False, normalized=False) for t in ["<think>", "</think>", "<tool_call>"]])
tok.save("tokenizer.json")
template = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + (message['content'] or '') }}"
    "{% if message.tool_calls %}{% for c in message.tool_calls %}{{ '<tool_call>' + c.function.name }}"
    "{% for k, v in c.function.arguments | items %}{{ ' ' + k + '=' + (v | string) }}{% endfor %}{% endfor %}{% endif %}"
    "{{ '<|im_end|>\\n' }}{% endfor %}"
    "{% if tools %}{{ '<|im_start|>tools\\n' + (tools | tojson) + '<|im_end|>\\n' }}{% endif %}"
    "{% if messages | length > 1 and messages[0].role == 'user' and messages[1].role == 'user' %}"
    "{{ raise_exception('two user turns in a row') }}{% endif %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}"
    "{% if enable_thinking is defined and enable_thinking %}{{ '<think>\\n' }}{% endif %}{% endif %}"
)
json.dump({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>", "pad_token": "<|endoftext|>",
           "bos_token": None, "chat_template": template}, open("tokenizer_config.json", "w"), indent=1)
json.dump({"temperature": 0.6, "top_k": 20, "eos_token_id": [tok.token_to_id("<|im_end|>"), tok.token_to_id("<|endoftext|>")]},
          open("generation_config.json", "w"), indent=1)
json.dump({"model_type": "llama", "eos_token_id": tok.token_to_id("<|im_end|>"), "vocab_size": tok.get_vocab_size()},
          open("config.json", "w"), indent=1)

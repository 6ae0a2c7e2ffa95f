"""The 32 prompts of tests/golden/smollm2-greedy: (name, kind, "chat" or "raw", text or messages).

Eight of each kind: chat, code, lang (four German, four Japanese), long (above 512 tokens, three above 1,024).
"""
from common import read_text

U = lambda text: [{"role": "user", "content": text}]


def prompts():
    out = [
        ("chat-1", "chat", "chat", U("What is the capital of France?")),
        ("chat-2", "chat", "chat", U("Give me three tips for staying healthy.")),
        ("chat-3", "chat", "chat", [{"role": "system", "content": "You are a pirate. Answer in one sentence."},
                                    {"role": "user", "content": "Where is the treasure?"}]),
        ("chat-4", "chat", "chat", U("Explain why the sky is blue to a child of six.")),
        ("chat-5", "chat", "chat", [{"role": "user", "content": "My name is Ada and I like trains."},
                                    {"role": "assistant", "content": "Nice to meet you, Ada!"},
                                    {"role": "user", "content": "What is my name, and what do I like?"}]),
        ("chat-6", "chat", "chat", U("Write a short email to my landlord about a broken window \U0001F937\u200D\u2640\uFE0F.")),
        ("chat-7", "chat", "chat", U("List the numbers from 1 to 12, separated by commas.")),
        ("chat-8", "chat", "chat", U("Summarise in one sentence: " + read_text("en-2")[:600])),
        ("code-1", "code", "raw", "def fibonacci(n):\n    \"\"\"Return the n-th Fibonacci number.\"\"\"\n"),
        ("code-2", "code", "raw", "#include <stdio.h>\n\nint main(int argc, char **argv)\n{\n    for (int i = 0; i <"),
        ("code-3", "code", "raw", read_text("code-1")[:700]),
        ("code-4", "code", "raw", "SELECT name, COUNT(*) AS n\nFROM orders\nWHERE created_at >= '2024-01-01'\nGROUP BY"),
        ("code-5", "code", "chat", U("Write a Python function that reverses the words of a sentence.")),
        ("code-6", "code", "raw", read_text("code-2")[:900]),
        ("code-7", "code", "raw", "{\n  \"name\": \"widget\",\n  \"version\": \"1.2.3\",\n  \"dependencies\": {\n"),
        ("code-8", "code", "raw", "function debounce(fn, delayMs) {\n\tlet timer = null;\n\treturn (...args) => {\n"),
        ("de-1", "lang", "chat", U("Was ist die Hauptstadt von \u00d6sterreich?")),
        ("de-2", "lang", "raw", read_text("de-1")[:500]),
        ("de-3", "lang", "raw", "Die drei gr\u00f6\u00dften St\u00e4dte Deutschlands sind Berlin,"),
        ("de-4", "lang", "chat", U("Schreibe einen kurzen Brief an meine Gro\u00dfmutter.")),
        ("ja-1", "lang", "chat", U("\u65e5\u672c\u306e\u9996\u90fd\u306f\u3069\u3053\u3067\u3059\u304b\u3002")),
        ("ja-2", "lang", "raw", read_text("ja-1")[:120]),
        ("ja-3", "lang", "raw", read_text("ja-2")[:200]),
        ("ja-4", "lang", "raw", "\u6771\u4eac\u306f\u65e5\u672c\u306e"),
        ("long-1", "long", "chat", U(read_text("en-1") + "\nWho kept the ledger of the harbour office?")),
        ("long-2", "long", "chat", U(read_text("en-2") + "\nWhat is hysteresis?")),
        ("long-3", "long", "raw", read_text("en-1")),
        ("long-4", "long", "raw", read_text("code-1")),
        ("long-5", "long", "raw", read_text("de-1")),
        ("long-6", "long", "raw", read_text("en-1") + "\n\n" + read_text("en-2")),
        ("long-7", "long", "chat", U("Compare these two texts.\n\n1. " + read_text("en-2") + "\n2. " + read_text("en-1"))),
        ("long-8", "long", "raw", read_text("ja-1") + "\n" + read_text("code-2") + "\n" + read_text("en-1")),
    ]
    return out

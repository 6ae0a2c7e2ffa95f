/* flags_values.h: the parsed command line: one struct flag_value a row of the table, named like the flag (dashes become
 * underscores), or like the variable for rows that have no flag. Plain data, filled by flags_parse, read by cmd_*.c.
 * Strings point into argv, the environment or the table, all of which outlive it.
 */
#ifndef CLI_FLAGS_VALUES_H
#define CLI_FLAGS_VALUES_H

#include "cli/flags.h"

struct flags {
    unsigned command;            /* enum command_bit: whose they are */
    /* model and network */
    struct flag_value model, query, host, port, unix_path, api_key, allow_host, allow_origin, no_open, no_download, keep_billing_header;
    /* memory, caches, scheduling */
    struct flag_value memory_budget, kv_budget, packed_cache, prompt_cache, batch, prefill_chunk, body_memory, client_timeout;
    struct flag_value ssd_cache, ssd_cache_max, ssd_cache_verify, ssd_demote_idle, generation_checkpoint;
    struct flag_value isolate, model_pool, paged_kv, paged_kv_block_size, force_wire, expert_offload, expert_offload_dir, expert_cache;
    /* adapters and drafts */
    struct flag_value adapter, max_lora_rank, draft_model, draft_kind, num_draft_tokens, ngram_max, ngram_min, mtp, context_length;
    /* arithmetic */
    struct flag_value l1, l2, l3, tier, kv_quant, device, tensor_parallel, cpu_level, threads;
    struct flag_value compiled_decode, compiled_activations, fused_sdpa;
    /* sampling and templates */
    struct flag_value thinking, temperature, top_p, top_k, min_p, xtc_probability, xtc_threshold, max_tokens, min_tokens;
    struct flag_value repetition_penalty, repetition_context_size, presence_penalty, presence_context_size;
    struct flag_value frequency_penalty, frequency_context_size, seed, stop, ignore_eos;
    struct flag_value hlg_sampling, hlg_width, hlg_shoulder, hlg_toe, hlg_pivot_offset;
    /* media */
    struct flag_value allow_private_media, no_remote_media;
    /* input and output of the other verbs */
    struct flag_value prompt, prompt_ids, system, messages, tools, raw, json, origin, plan, fidelity, texts, full, only, ids, text;
    struct flag_value instruction, dimensions, ctx, skus, measure, batch_file, output;
    struct flag_value prompt_tokens, tokens, repeat, run, reference_prefill; /* benchmark */
    struct flag_value starter, wheel, python, cache_dir, home, xdg_cache_home, log_level, quiet, help, docs, docs_errors, docs_routes, docs_families, man;
    /* models on disk: get, scan, ls, rm, gc */
    struct flag_value revision, all, verify, lock, locked, lock_file, parallel, retries, yes, dry_run, force, all_revisions, vision;
    struct flag_value max_size, remove, path, tmpdir, host_fd, hf_hub_cache, hf_home, hf_endpoint, hf_token, hf_token_path, hf_offline;
    /* making checkpoints: convert */
    struct flag_value hf_path, mlx_path, quantize, q_mode, q_bits, q_group_size, q_config, quant_predicate, dtype, dequantize, max_shard_size;
    struct flag_value upload_repo, target_bpw, candidate_bits, calibration_mix, n_calibration, reference;
    struct flag_value save_path, export_gguf, upload_path, private_repo, repo_type, commit_message;
    /* removed or ignored names that take a value */
    struct flag_value perf_kernel, fused_decode, slots, kv_group_size, quantized_kv_start;
    /* variables without a flag */
    struct flag_value shutdown_timeout_ms, context_limit, memory_batch, fill, fill_max_span, fill_k, fill_candidates, fill_index_max, grammar, grammar_jump, p2r_trace, env_bool, env_number, env_string;
#ifdef MB_FAULTS
    struct flag_value scripted;
#endif
};

#endif

/* engine_load.c - start and end of an engine. The start reads the checkpoint, plans and allocates
 * memory once, and creates every part. Nothing is allocated on the device afterwards. */
#include "engine/engine_state.h"

#include <unistd.h>

#include "engine/checkpoint/quant.h"
#include "engine/checkpoint/retrieval_file.h"
#include "engine/checkpoint/select_file.h"
#include "engine/engine_memory.h"
#include "engine/select/select_memory.h"
#include "engine/start/host_memory.h"
#include "engine/start/start_line.h"
#include "engine/text/prompt.h"

/* ---- the checkpoint, without its weights ---- */

static cn_status choose_model_len(cn_engine *e)
{
    CN_TRY(cn_start_check_model(e->config, &e->model_config));
    e->max_model_len = cn_start_max_model_len(e->config, &e->model_config);
    return CN_OK;
}

/* A checkpoint may announce a context that no request will use; its tables would take minutes. */
enum { EAGER_POSITIONS = 131072 };

/* Dummy weights need only config.json. Without a tokenizer.json beside it, prompts and output are
 * token ids. */
static cn_status load_engine_tokenizer(cn_engine *e, const char *dir)
{
    cn_buf path = {0};
    CN_TRY(cn_buf_addf(&path, "%s/tokenizer.json", dir));
    bool there = access(path.data, F_OK) == 0;
    cn_buf_free(&path);
    if (!there && e->config->load_format == CN_OPT_LOAD_DUMMY && !e->config->tokenizer)
        return CN_OK;
    CN_TRY(cn_tokenizer_load(&e->tokenizer, dir));
    e->longest_token = cn_prompt_longest_token(e->tokenizer);
    return CN_OK;
}

static cn_status load_checkpoint_texts(cn_engine *e)
{
    const cn_config *c = e->config;
    const char *tokenizer_dir = c->tokenizer ? c->tokenizer : c->model;
    if (!c->model) return cn_fail(CN_ERR_ARG, "--model is missing: set a checkpoint directory");
    CN_TRY(cn_model_config_load(&e->model_config, c->model));
    CN_TRY(cn_quant_choose(&e->model_config, c));
    CN_TRY(cn_retrieval_describe(&e->model_config, c));
    CN_TRY(choose_model_len(e));
    e->max_rows = cn_start_max_rows(c);
    CN_TRY(cn_generation_config_load(&e->generation, c->model));
    CN_TRY(cn_generation_config_eos(&e->generation, &e->model_config, e->eos, &e->n_eos));
    CN_TRY(load_engine_tokenizer(e, tokenizer_dir));
    CN_TRY(cn_chat_template_load(&e->chat, tokenizer_dir, c->chat_template));
    if (c->tool_call_parser != CN_OPT_TOOLS_NONE && !cn_chat_template_reads_tools(e->chat))
        cn_log(CN_LOG_WARN, "--tool-call-parser: the chat template does not read `tools`, so the "
                            "model is not told of them; set --chat-template to one that does");

    e->default_sampling = c->sampling;
    if (c->generation_config == CN_OPT_GENERATION_AUTO) {
        cn_generation_config_apply(&e->generation, &e->default_sampling);
        e->default_max_tokens = e->generation.max_new_tokens;
    }
    cn_config_overlay_sampling(c, &e->default_sampling);
    return cn_output_reasoning_choose(e->tokenizer, c->reasoning_parser, &e->reasoning);
}

/* ---- weights, model ---- */

static cn_status load_model(cn_engine *e)
{
    const cn_config *c = e->config;
    cn_checkpoint *checkpoint = NULL;
    CN_TRY(cn_checkpoint_open(&checkpoint, c->model, &e->model_config, c->load_format, c->seed));
    cn_status status = cn_ranks_start(&e->ranks, cn_rank_load_weights, checkpoint);
    if (status == CN_OK)
        status = cn_ranks_join(&e->ranks,
                               cn_weights_load_rank(&e->weights, e->backend, e->stream, checkpoint,
                                                    &e->rank_config, e->weights_memory));
    if (status == CN_OK)
        status = cn_draft_load(&e->draft, e->backend, e->stream, c, &e->model_config, checkpoint);
    cn_checkpoint_close(checkpoint);
    CN_TRY(status);
    const cn_model_opts o = {
        .backend = e->backend,
        .stream = e->stream,
        .config = &e->rank_config,
        .ranks = e->ranks.n > 0 ? &e->ranks.model : NULL,
        .weights = e->weights,
        .memory = e->workspace,
        .max_tokens = cn_start_max_tokens(c),
        .max_rows = e->max_rows,
        .max_position = e->max_model_len,
        .eager_positions = EAGER_POSITIONS,
        .select = &e->select,
        .draft = &e->draft,
        .dense_layers = c->select_dense_layers,
    };
    CN_TRY(cn_model_create(&e->model, &o));
    CN_TRY(cn_ranks_create_models(&e->ranks, &o));
    if (!c->dump) return CN_OK;
    CN_TRY(cn_dump_open(&e->dump, e->backend, c->dump, CN_DUMP_DIR));
    cn_model_set_dump(e->model, e->dump);
    return CN_OK;
}

/* ---- KV memory and the scheduler ---- */

/* Refuses at start defaults that would make the engine refuse every request without a kv object. */
static cn_status check_default_kv(const cn_config *c, const cn_memory_plan *plan)
{
    cn_kv_params kv = c->kv;
    return cn_home_check_kv(c, &kv, plan->block_tokens, plan->window_tokens);
}

/* What events multiply queries of the window by. */
static cn_status describe_latent(cn_engine *e)
{
    const cn_model_config *m = &e->model_config;
    const cn_latent *l = &m->latent;
    if (l->rank == 0) return CN_OK;
    e->latent_keys = cn_calloc(m->n_layers, sizeof *e->latent_keys);
    if (!e->latent_keys) return cn_fail(CN_ERR_MEMORY, "out of host memory for key matrices");
    for (uint32_t i = 0; i < m->n_layers; i++)
        e->latent_keys[i] = cn_weights_at(e->weights, CN_W_KV_B, i);
    e->pools.latent = (cn_latent_keys){e->latent_keys, (l->nope + l->value) * l->rank};
    return CN_OK;
}

/* The spaces, whose memory is allocated. */
static void describe_spaces(cn_engine *e, const cn_memory_plan *plan)
{
    const cn_pools *p = &e->pools;
    e->device = (cn_space_memory){cn_pools_planes(p), e->stream};
    CN_ASSERT(plan->block_bytes == cn_planes_block_bytes(&e->device.planes));
    CN_ASSERT(plan->n_query_slots == 0 ||
              plan->query_slot_bytes == cn_planes_slot_bytes(&e->device.planes));
    if (plan->swap_bytes == 0) return;
    e->swap.planes = cn_planes_packed(&e->device.planes, e->swap_memory, plan->n_swap_blocks);
    e->swap.copies = e->stream;
    cn_log(CN_LOG_INFO, "swap space: %.2f GiB of host memory for up to %u compressed requests",
           cn_gib(plan->swap_bytes), plan->n_swap_requests);
}

static cn_status make_scheduler(cn_engine *e, const cn_memory_plan *plan)
{
    const cn_config *c = e->config;
    cn_sched_opts o = {
        .block_tokens = plan->block_tokens,
        .n_blocks = plan->n_blocks,
        .n_query_slots = plan->n_query_slots,
        .window_tokens = plan->window_tokens,
        .select_most = c->kv,
        .max_seqs = c->max_num_seqs,
        .max_batched_tokens = c->max_num_batched_tokens,
        .max_model_len = e->max_model_len,
        .block_bytes = plan->block_bytes * (1 + e->ranks.n),
        .model_hash = cn_model_config_hash(&e->model_config),
        .prefix_caching = c->enable_prefix_caching,
        .chunked_prefill = c->enable_chunked_prefill,
        .hybrid = c->hybrid_scheduling,
        .decoded_apart = c->batch_invariant,
        .batch_floor = c->batch_floor,
        .n_swap_blocks = plan->n_swap_blocks,
        .n_swap_windows = plan->n_swap_windows,
        .share_prefixes = c->share_prefix_cache,
        .priority_order = c->scheduling_policy == CN_OPT_SCHEDULING_PRIORITY,
    };
    for (int h = 0; h < CN_N_HOMES; h++) {
        o.n_home_blocks[h] = plan->homes[h].n_blocks;
        o.n_home_slots[h] = plan->homes[h].n_slots;
    }
    o.auto_homes = cn_config_homes(c);
    CN_TRY(cn_scheduler_create(&e->scheduler, &o));
    e->stats = cn_scheduler_counters(e->scheduler);
    return CN_OK;
}

static cn_status make_batch(cn_engine *e, const cn_memory_plan *plan)
{
    cn_batch_opts o = cn_batch_opts_of(e->config, &e->model_config, plan->block_tokens,
                                       plan->window_tokens);
    o.plane_layout = e->homes.plane.layout;
    o.plane_kv = e->homes.plane.kv;
    o.draft_first = e->plan.kv.n_blocks;
    for (int h = 0; h < CN_N_HOMES; h++) o.plane_first[h] = e->homes.at[h].plane_first;
    CN_TRY(cn_batch_create(&e->batch, e->backend, &o, e->batch_memory));
    return cn_ranks_create_batches(&e->ranks, e->batch);
}

/* The channels of labels and their offsets: select.safetensors, or the first channels with dummy
 * weights. */
static cn_status read_channels(const cn_engine *e, uint16_t *channels, float *offsets)
{
    const cn_model_config *m = &e->model_config;
    if (e->config->load_format != CN_OPT_LOAD_DUMMY)
        return cn_select_channels_load(e->config->model, m, channels, offsets);
    for (size_t i = 0; i < cn_select_channels_n(m); i++)
        channels[i] = (uint16_t)(i % cn_select_channels_each(m));
    return CN_OK;
}

/* Where a digest has its channels; NULL: it has no labels. */
static void *channels_of(const cn_digest *g)
{
    const void *at = g->wide_channels ? (const void *)g->wide_channels : g->channels;
    return (void *)(uintptr_t)at;
}

/* Channels of all kv heads of the model, packed in `width` bytes each, and their offsets. */
typedef struct packed_channels {
    const char *bytes;
    size_t width;
    const float *offsets;
} packed_channels;

/* Writes those of the kv heads of m, the model or one of its ranks, to a digest, if it has labels.
 */
static cn_status write_channels(const cn_model_config *m, cn_backend *be, cn_stream *s,
                                const cn_digest *to, const packed_channels *all)
{
    const size_t n = cn_select_channels_n(m) / m->n_layers; /* of a layer */
    const size_t stride = n * cn_max_u32(m->n_ranks, 1), first = n * m->rank;
    char *bytes = channels_of(to);
    float *offsets = (float *)(uintptr_t)to->offsets;
    if (!bytes) return CN_OK;
    for (size_t layer = 0; layer < m->n_layers; layer++) {
        const size_t from = layer * stride + first;
        CN_TRY(be->mem_write(s, bytes + layer * n * all->width, all->bytes + from * all->width,
                             n * all->width));
        CN_TRY(be->mem_write(s, offsets + layer * n, all->offsets + from, n * sizeof *offsets));
    }
    return be->stream_sync(s);
}

/* Writes them to the digests of the pools of all ranks and of homes. */
static cn_status write_all_channels(const cn_engine *e, uint16_t *numbers, const float *offsets)
{
    const cn_model_config *m = &e->model_config;
    const size_t n_bytes = cn_select_channels_pack(m, numbers, numbers);
    const packed_channels all = {(const char *)numbers, n_bytes / cn_select_channels_n(m), offsets};
    CN_TRY(write_channels(&e->rank_config, e->backend, e->stream, &e->pools.digest, &all));
    for (uint32_t i = 0; i < e->ranks.n; i++) {
        const cn_rank *k = &e->ranks.at[i];
        CN_TRY(write_channels(&k->config, k->backend, k->stream, &k->pools.digest, &all));
    }
    for (int i = 0; i < CN_N_HOMES; i++) {
        const cn_home *h = &e->homes.at[i];
        CN_TRY(write_channels(m, h->be, h->stream, &h->env.home.digest, &all));
    }
    return CN_OK;
}

static cn_status load_channels(cn_engine *e)
{
    const size_t n = cn_select_channels_n(&e->model_config);
    bool any = channels_of(&e->pools.digest) != NULL;
    for (int h = 0; h < CN_N_HOMES; h++)
        any |= channels_of(&e->homes.at[h].env.home.digest) != NULL;
    if (!any) return CN_OK;
    uint16_t *channels = cn_calloc(n, sizeof *channels);
    float *offsets = cn_calloc(n, sizeof *offsets);
    cn_status status = channels && offsets
                           ? read_channels(e, channels, offsets)
                           : cn_fail(CN_ERR_MEMORY, "out of host memory for label channels");
    if (status == CN_OK) status = write_all_channels(e, channels, offsets);
    cn_free(channels);
    cn_free(offsets);
    return status;
}

/* Does nothing if no home besides the device is declared. */
static cn_status make_homes(cn_engine *e, const cn_memory_plan *plan)
{
    if (!cn_homes_any(&e->homes)) return CN_OK;
    cn_home_opts o = {
        .model_be = e->backend,
        .model_stream = e->stream,
        .event_stream = e->event_stream,
        .config = e->config,
        .model = &e->model_config,
        .plan = plan,
        .local = e->pools,
    };
    cn_model_rope(e->model, &o.cos, &o.sin);
    CN_TRY(cn_home_create(&e->homes, &o));
    cn_load_gate_enter(e->gate);
    const cn_status measured = cn_homes_measure_links(&e->homes);
    cn_load_gate_leave(e->gate);
    CN_TRY(measured);
    cn_scheduler_set_slow_homes(e->scheduler, cn_homes_slow(&e->homes));
    for (int i = 0; i < CN_N_HOMES; i++) {
        const cn_home_plan *h = &plan->homes[i];
        const double link = e->homes.at[i].link_bytes_per_s;
        char rate[48] = "";
        if (h->n_blocks == 0) continue;
        if (link > 0) snprintf(rate, sizeof rate, "; link of %.1f GB/s", link / 1e9);
        cn_log(CN_LOG_INFO, "kv home %s: %.2f GiB, %u blocks of %u tokens%s",
               cn_kv_home_name((cn_kv_home)i), cn_gib(h->bytes), h->n_blocks, plan->block_tokens,
               rate);
    }
    return CN_OK;
}

static cn_status make_flight(cn_engine *e, cn_flight *f)
{
    const size_t n_tiles = e->config->max_num_batched_tokens / CN_DIGEST_TILE + e->max_rows;
    const bool digests = cn_selectors_need(cn_config_local_selectors(e->config)).digests != 0;
    if (digests) f->tiles = cn_calloc(n_tiles, sizeof *f->tiles);
    f->seqs = cn_calloc(e->max_rows, sizeof(cn_seq *));
    f->sits_out = cn_calloc(e->max_rows, sizeof *f->sits_out);
    f->n_selected = cn_calloc(e->max_rows, sizeof *f->n_selected);
    if (!f->seqs || !f->sits_out || !f->n_selected || (digests && !f->tiles))
        return cn_fail(CN_ERR_MEMORY, "out of host memory for %u samples", e->max_rows);
    CN_TRY(cn_home_flight_init(&f->homes, &e->homes));
    return e->backend->fence_create(e->backend, &f->fence);
}

static cn_status make_sampling(cn_engine *e)
{
    const size_t n = e->config->max_num_seqs;
    e->sample_scratch_bytes = cn_start_item_bytes(&e->plan, &e->sample_scratch);
    e->count_owner = cn_calloc(n, sizeof *e->count_owner);
    if (!e->count_owner) return cn_fail(CN_ERR_MEMORY, "out of host memory for %zu samples", n);
    cn_opt_async choice = e->config->async_scheduling;
    e->max_in_flight =
        choice == CN_OPT_ASYNC_ON || (choice == CN_OPT_ASYNC_AUTO && e->backend->async);
    for (uint32_t i = 0; i < CN_FLIGHTS; i++) CN_TRY(make_flight(e, &e->flights[i]));
    CN_TRY(e->backend->fence_create(e->backend, &e->piece.fence));
    return CN_OK;
}

static cn_status before_events(void *ctx, void *const *events, uint32_t n)
{
    cn_engine *e = ctx;
    return cn_home_before_events(&e->homes, (cn_sched_event *const *)events, n);
}

static cn_status after_events(void *ctx, void *const *events, uint32_t n)
{
    cn_engine *e = ctx;
    return cn_home_after_events(&e->homes, (cn_sched_event *const *)events, n);
}

static void event_done(void *ctx, void *event)
{
    cn_engine *e = ctx;
    cn_scheduler_event_done(e->scheduler, event);
}

/* Does nothing if no declared policy compresses. */
static cn_status make_events(cn_engine *e, const cn_memory_plan *plan)
{
    if (plan->n_max_blocks == 0) return CN_OK;
    cn_events_opts o = {
        .devices = {{.backend = e->backend,
                     .model_stream = e->stream,
                     .stream = e->event_stream,
                     .pools = e->pools,
                     .scratch = e->compress_scratch,
                     .scratch_bytes = cn_start_item_bytes(&e->plan, &e->compress_scratch)}},
        .n_devices = 1,
        .max_batch_events = e->config->max_num_seqs,
        .before = cn_homes_any(&e->homes) ? before_events : NULL,
        .after = cn_homes_any(&e->homes) ? after_events : NULL,
        .done = event_done,
        .ctx = e,
    };
    cn_ranks_add_events(&e->ranks, &o);
    return cn_events_create(&e->events, &o);
}

/* Logs planned and used memory. Nothing else would show an error of the planner. */
static void log_memory(const cn_engine *e)
{
    uint64_t planned, used;
    if (!e->backend->mem_usage) return;
    cn_backend *cache = e->homes.at[CN_HOME_PEER].be;
    if (cache) {
        cache->mem_usage(cache, &planned, &used);
        cn_log(CN_LOG_INFO, "cache device memory: %.2f GiB planned (home %.2f), %.2f GiB in use",
               cn_gib(planned), cn_gib(e->plan.kv.homes[CN_HOME_PEER].bytes), cn_gib(used));
    }
    e->backend->mem_usage(e->backend, &planned, &used);
    cn_log(CN_LOG_INFO,
           "device memory: %.2f GiB planned (weights %.2f, KV %.2f), %.2f GiB in use (%+.1f %%)",
           cn_gib(planned), cn_gib(cn_start_part_bytes(&e->plan, CN_PART_WEIGHTS)),
           cn_gib(e->plan.kv.kv_bytes), cn_gib(used),
           ((double)used / (double)planned - 1) * 100);
}

/* All of the start that can be refused for want of memory: nothing of the checkpoint's tensors is
 * read. */
static cn_status plan_start(cn_engine *e)
{
    cn_memory_plan *kv = &e->plan.kv;
    const uint32_t n_ranks = cn_max_u32(e->config->n_ranks, 1);
    CN_TRY(cn_config_find_models(e->config));
    CN_TRY(cn_config_check_ranks(e->config));
    CN_TRY(load_checkpoint_texts(e));
    CN_TRY(cn_home_check_start(e->config));
    CN_TRY(cn_host_check(e->config));
    e->config->swap_space_gib /= (float)n_ranks; /* each rank swaps its share */
    cn_device_choice choice;
    CN_TRY(cn_home_open(&e->homes, e->config, &e->model_config));
    CN_TRY(cn_model_config_rank(&e->rank_config, &e->model_config, 0, n_ranks));
    CN_TRY(cn_engine_open_backend(&e->backend, e->config, &e->rank_config, 0, &choice));
    CN_TRY(e->backend->stream_create(e->backend, CN_PRIORITY_HIGH, &e->stream));
    CN_TRY(e->backend->stream_create(e->backend, CN_PRIORITY_LOW, &e->event_stream));
    CN_TRY(cn_ranks_open(&e->ranks, e->config, &e->model_config, e->backend, e->stream));
    CN_TRY(cn_home_open_beside(&e->homes, e->config, e->backend));
    CN_TRY(cn_engine_plan_make(&e->plan, e->config, &e->rank_config, e->backend, e));
    cn_ranks_plan(&e->ranks, e->config, kv);
    CN_TRY(cn_start_check_selectors(e->config, &e->model_config, kv->block_tokens));
    CN_TRY(check_default_kv(e->config, kv));
    memcpy(e->gpu_uuid, choice.uuid, sizeof e->gpu_uuid);
    cn_start_line_log(&(cn_start_facts){e->config->model, &e->model_config, e->backend, &choice,
                                        e->config, kv});
    cn_engine_size_pools(&e->pools, e->config, &e->rank_config, e->backend, kv);
    return make_scheduler(e, kv);
}

cn_status cn_engine_plan_start(cn_engine **out, const cn_config *c)
{
    cn_engine *e = cn_calloc(1, sizeof *e);
    if (!e) return cn_fail(CN_ERR_MEMORY, "out of memory for an engine");
    e->mask_share = CN_MASK_SHARE;
    cn_status status = cn_config_copy(&e->config, c);
    if (status == CN_OK) status = plan_start(e);
    if (status != CN_OK) {
        cn_engine_free(e);
        return status;
    }
    *out = e;
    return CN_OK;
}

static cn_status load_all_weights(cn_engine *e)
{
    if (e->backend->enter) e->backend->enter(e->backend);
    CN_TRY(cn_start_plan_allocate(&e->plan, e->homes.at[CN_HOME_PEER].be));
    CN_TRY(cn_ranks_allocate(&e->ranks, e->workspace));
    return load_model(e);
}

void cn_engine_set_gate(cn_engine *e, cn_load_gate *gate) { e->gate = gate; }

cn_status cn_engine_load(cn_engine *e)
{
    const cn_memory_plan *kv = &e->plan.kv;
    const cn_status loaded = load_all_weights(e);
    cn_load_gate_arrive(e->gate);
    CN_TRY(loaded);
    CN_TRY(describe_latent(e));
    cn_engine_size_select(&e->select, &e->pools, e->config, &e->rank_config, kv->block_tokens);
    describe_spaces(e, kv);
    CN_TRY(make_homes(e, kv));
    CN_TRY(load_channels(e));
    CN_TRY(make_batch(e, kv));
    CN_TRY(make_sampling(e));
    CN_TRY(make_events(e, kv));
    CN_TRY(cn_step_graphs_record(e));
    log_memory(e);
    return CN_OK;
}

cn_status cn_engine_create_checked(cn_engine **out, const cn_config *c, cn_engine_check check,
                                   void *ctx)
{
    cn_engine *e = NULL;
    CN_TRY(cn_engine_plan_start(&e, c));
    cn_status status = check ? check(ctx, e) : CN_OK;
    if (status == CN_OK) status = cn_engine_load(e);
    if (status != CN_OK) {
        cn_engine_free(e);
        return status;
    }
    *out = e;
    return CN_OK;
}

cn_status cn_engine_create(cn_engine **out, const cn_config *c)
{
    return cn_engine_create_checked(out, c, NULL, NULL);
}

static void free_device_memory(cn_engine *e)
{
    cn_backend *be = e->backend;
    cn_step_graphs_free(e);
    for (uint32_t i = 0; i < CN_FLIGHTS; i++) {
        if (e->flights[i].fence) be->fence_free(e->flights[i].fence);
        cn_home_flight_free(&e->flights[i].homes, &e->homes);
    }
    if (e->piece.fence) be->fence_free(e->piece.fence);
    cn_start_plan_free(&e->plan, e->homes.at[CN_HOME_PEER].be);
}

void cn_engine_free(cn_engine *e)
{
    if (!e) return;
    if (e->backend && e->backend->enter) e->backend->enter(e->backend);
    if (!cn_ranks_stop(&e->ranks)) return; /* the process ends with it */
    if (e->stream) e->backend->stream_sync(e->stream);
    (void)cn_home_sync(&e->homes);
    if (e->event_stream) e->backend->stream_sync(e->event_stream);
    for (cn_engine_request *r; (r = CN_CONTAINER_OF(e->requests.head, cn_engine_request, node));)
        cn_engine_drop_request(e, r);
    cn_batch_free(e->batch);
    cn_scheduler_free(e->scheduler);
    cn_model_free(e->model);
    cn_dump_close(e->dump);
    cn_events_free(e->events);
    cn_free(e->latent_keys);
    cn_select_probe_free(e->select_probe);
    cn_home_free(&e->homes);
    cn_ranks_free(&e->ranks);
    if (e->backend) free_device_memory(e);
    cn_weights_free(e->weights);
    if (e->stream) e->backend->stream_free(e->stream);
    if (e->event_stream) e->backend->stream_free(e->event_stream);
    cn_home_close(&e->homes, e->backend);
    if (e->backend) e->backend->close(e->backend);
    for (uint32_t i = 0; i < CN_FLIGHTS; i++) {
        cn_free(e->flights[i].seqs);
        cn_free(e->flights[i].sits_out);
        cn_free(e->flights[i].n_selected);
        cn_free(e->flights[i].tiles);
    }
    cn_free(e->count_owner);
    cn_grammars_free(e->grammars);
    cn_chat_template_free(e->chat);
    cn_tokenizer_free(e->tokenizer);
    cn_tokens_free(&e->prompt);
    cn_config_free(e->config);
    cn_free(e);
}

/* ---- getters ---- */

void cn_engine_default_sampling(const cn_engine *e, cn_sampling *out)
{
    *out = e->default_sampling;
}
void cn_engine_default_kv(const cn_engine *e, cn_kv_params *out) { *out = e->config->kv; }
const cn_model_config *cn_engine_model_config(const cn_engine *e) { return &e->model_config; }
const cn_config *cn_engine_config(const cn_engine *e) { return e->config; }
cn_tokenizer *cn_engine_tokenizer(cn_engine *e) { return e->tokenizer; }
uint32_t cn_engine_max_model_len(const cn_engine *e) { return e->max_model_len; }
const cn_prefix_marks *cn_engine_prefix_marks(const cn_engine *e)
{
    return cn_scheduler_prefix_marks(e->scheduler);
}

uint64_t cn_engine_prefix_root(const cn_engine *e, uint32_t owner)
{
    return cn_scheduler_prefix_root(e->scheduler, owner);
}

uint32_t cn_engine_block_tokens(const cn_engine *e) { return e->pools.layout.block_tokens; }

const char *cn_engine_device(const cn_engine *e)
{
    const char *device = e->config->device;
    if (strcmp(e->backend->name, "cuda") != 0) return e->backend->name;
    return strchr(device, ':') ? device : "cuda:0";
}

const char *cn_engine_gpu_uuid(const cn_engine *e) { return e->gpu_uuid; }

void cn_engine_backend_text(const cn_engine *e, char *text, size_t size)
{
    snprintf(text, size, "%s, %s, blocks of %u tokens", e->backend->name,
             cn_start_dtype_name(e->backend->act_dtype), cn_engine_block_tokens(e));
}

const char *cn_engine_token_bytes(void *engine, uint32_t token, size_t *n_bytes, bool *special)
{
    const char *bytes;
    const cn_engine *e = engine;
    return cn_tokenizer_token(e->tokenizer, token, &bytes, n_bytes, special) ? bytes : NULL;
}

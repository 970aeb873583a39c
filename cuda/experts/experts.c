/* experts.c - the ops expert_gate_up and expert_down: which kernel runs a product. */
#include "cuda/experts/experts.h"

static cn_status run_product(cn_stream *s, cn_expert_call *call, void *gathered)
{
    const cn_cuda_expert_tile forced = s->cuda->switches.experts;
    if (call->n_pairs == 0) return CN_OK;
    if (call->n % 8 != 0 || call->k % 8 != 0)
        return cn_fail(CN_ERR_SHAPE,
                       "experts: weights of %u rows and %u columns: expected multiples of 8",
                       call->n, call->k);
    const cn_cuda_expert_tile tile =
        forced.tokens ? forced : cn_experts_sm90_default(s->cuda, call);
    if (!cn_experts_sm90_fits(s->cuda, call, tile)) return cn_experts_any_run(s, call);
    if (call->pair_tokens && tile.tokens > CN_EXPERTS_MOST_ROW_COPIES) {
        CN_TRY(cn_experts_gather(s, gathered, call->x, call->pair_tokens, call->n_pairs, call->k));
        call->x = gathered;
        call->n_rows = call->n_pairs;
        call->pair_tokens = NULL;
    }
    return cn_experts_sm90_run(s, call, tile);
}

/* rounded: memory for x in e4m3. */
static cn_status run_any_form(cn_stream *s, cn_expert_call *call, const cn_matrix *w, void *rounded,
                              void *gathered)
{
    if (w->form == CN_MATRIX_PLAIN) return run_product(s, call, gathered);
    return call->n_pairs == 0 ? CN_OK : cn_experts_fp8_run(s, call, w, rounded);
}

cn_status cn_cuda_expert_gate_up(cn_stream *s, const cn_expert_gate_up_args *a)
{
    cn_expert_call call = {.out = a->out,
                           .x = a->x,
                           .weight = a->weight.data,
                           .starts = a->starts,
                           .pair_tokens = a->pair_tokens,
                           .n_rows = a->n_tokens,
                           .n_pairs = a->n_tokens * a->n_used,
                           .n_experts = a->n_experts,
                           .n = a->intermediate,
                           .k = a->k,
                           .gated = true};
    return run_any_form(s, &call, &a->weight, a->gathered, a->gathered);
}

cn_status cn_cuda_expert_down(cn_stream *s, const cn_expert_down_args *a)
{
    cn_expert_call call = {.out = a->out,
                           .x = a->x,
                           .weight = a->weight.data,
                           .starts = a->starts,
                           .n_rows = a->n_tokens * a->n_used,
                           .n_pairs = a->n_tokens * a->n_used,
                           .n_experts = a->n_experts,
                           .n = a->n,
                           .k = a->intermediate};
    return run_any_form(s, &call, &a->weight, a->rounded, NULL);
}

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

static cn_status check_form(const cn_matrix *w)
{
    return w->form == CN_MATRIX_PLAIN
               ? CN_OK
               : cn_fail(CN_ERR_SHAPE, "experts: FP8 weights are not supported on a GPU yet");
}

cn_status cn_cuda_expert_gate_up(cn_stream *s, const cn_expert_gate_up_args *a)
{
    CN_TRY(check_form(&a->weight));
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
    return run_product(s, &call, a->gathered);
}

cn_status cn_cuda_expert_down(cn_stream *s, const cn_expert_down_args *a)
{
    CN_TRY(check_form(&a->weight));
    cn_expert_call call = {.out = a->out,
                           .x = a->x,
                           .weight = a->weight.data,
                           .starts = a->starts,
                           .n_rows = a->n_tokens * a->n_used,
                           .n_pairs = a->n_tokens * a->n_used,
                           .n_experts = a->n_experts,
                           .n = a->n,
                           .k = a->intermediate};
    return run_product(s, &call, NULL);
}

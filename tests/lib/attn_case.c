/* attn_case.c - see attn_case.h. */
#include "tests/lib/attn_case.h"

void attn_case_draw(op_env *e, attn_case *c, const paged_shape *s)
{
    c->b = paged_batch_create(s, &e->rng);
    c->batch = op_batch_upload(e, c->b);
}

void attn_case_set_args(attn_case *c, const paged_shape *s, float scale)
{
    const paged_batch *b = c->b;
    c->cpu = (cn_attn_args){.out = c->out.cpu,
                            .q = c->q.cpu,
                            .kv = c->kv.cpu,
                            .batch = &b->view,
                            .layout = b->layout,
                            .n_heads = b->n_heads,
                            .layer = s->n_layers - 1,
                            .scale = scale};
    c->cuda = c->cpu;
    c->cuda.out = c->out.cuda;
    c->cuda.q = c->q.cuda;
    c->cuda.kv = c->kv.cuda;
    c->cuda.layout = op_layout_as(&b->layout, CN_BF16);
    c->cuda.batch = &c->batch.view;
}

void attn_case_close(op_env *e, attn_case *c)
{
    op_tensor_free(e, &c->out);
    op_tensor_free(e, &c->q);
    op_tensor_free(e, &c->kv);
    op_batch_free(e, &c->batch);
    paged_batch_free(c->b);
}

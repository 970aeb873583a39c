/* selector.h - the selectors as rows of one table, and the numbers that the engine derives from a
 * request's selector and a position: which tokens are candidates, how long the list is, where the
 * tail begins. Pure functions; no device call. SELECTION.md.
 *
 * A selector keeps all KV and chooses, for each decode step, layer and kv head, the tokens that the
 * step attends to. To add one: a value of cn_kv_select (engine/cinch.h), its name in
 * CN_SELECTOR_NAMES, a row in selector.c (docs/HACKING.md). */
#pragma once

#include "engine/ops.h"

/* In the order of cn_kv_select. */
#define CN_SELECTOR_NAMES "none|oracle|quest|ds|tls|spade|last|random|spec"
enum { CN_N_SELECTORS = 9 };

typedef struct cn_selector {
    const char *name;
    const char *params;    /* other members of a kv object that it reads: "select_tokens sinks" */
    uint32_t entry_tokens; /* of a list: 1 or 16 */
    bool has_tiles;        /* a stage over tiles comes first */
    bool predicts;         /* ranks by a query of the past: needs a ring, and candidates lag */
    bool ahead;            /* ranks before layer 0, once for all layers, with a retrieval head */
    bool away;             /* can rank for a home elsewhere (away.h): needs a ring there, unless it
                            * ranks ahead */
    uint32_t planes;       /* digest planes of a block: bit i is cn_block_plane i */
} cn_selector;

/* The row of a selector, which must be a value of cn_kv_select. */
const cn_selector *cn_selector_of(cn_kv_select select);

/* What a set of selectors needs together: bit i is cn_kv_select i. */
typedef struct cn_selector_needs {
    bool any;   /* some selector besides `none` */
    bool slots; /* some selector needs a ring of queries */
    bool away_slots; /* some selector needs one for a home elsewhere */
    bool labels, tiles;
    bool head;        /* some selector needs a retrieval head */
    uint32_t planes;  /* of a block */
    uint32_t digests; /* those of planes that the op digest writes */
} cn_selector_needs;
cn_selector_needs cn_selectors_need(uint32_t selectors);

/* The forms of the stages that requests of these selectors can have, for homes on the device. */
cn_sel_forms cn_selectors_forms(uint32_t selectors);

/* Checks the selection parameters and rounds select_tokens, recent_tokens and, for tiles of a home
 * elsewhere, sink_tokens up. `most` is the engine's default: a request's select_tokens,
 * select_tiles, select_window and, with a selector, sink_tokens must not exceed it. Call before
 * cn_policy_check. CN_ERR_ARG names field, value and limit. */
cn_status cn_selector_check(cn_kv_params *kv, uint32_t block_tokens, const cn_kv_params *most);

/* The stage that ranks tiles of 64 tokens, and that which ranks tokens. */
cn_sel_stage cn_selector_tile_stage(void);
cn_sel_stage cn_selector_token_stage(const cn_kv_params *kv);

/* What a decode step does for a sequence. */
typedef struct cn_select_span {
    bool listed; /* false: the step attends to all resident tokens, and nothing below is set */
    cn_sel_stage stage[CN_SELECT_STAGES]; /* stage 0: tiles, active only for has_tiles */
    /* Of a selector with `ahead`: what ranks tokens before layer 0, instead of stage 1, whose
     * numbers it uses. */
    cn_sel_stage ahead;
    uint32_t n[CN_SELECT_STAGES], base[CN_SELECT_STAGES], k[CN_SELECT_STAGES];
    uint32_t n_forced; /* first tokens, always in the list */
    uint32_t list_len; /* n_forced and the tokens of the selected entries; equal for all heads */
    uint32_t tail;     /* first token behind the candidates; the step attends to all from here */
} cn_select_span;

/* The span of the step that computes `position` (0-based) of a sequence with n_prompt prompt
 * tokens. It depends on these numbers alone, not on batch composition. kv has been checked. */
cn_select_span cn_select_span_at(const cn_kv_params *kv, uint32_t n_prompt, uint32_t position,
                                 uint32_t block_tokens);

/* The span of a step of an away request past its first commit: the tokens of its exchange area are
 * candidates if its selector ranks them again (`tls`). Then numbers are slots of its table. */
cn_select_span cn_select_span_away(const cn_kv_params *kv, uint32_t block_tokens);

/* Rows of the ring of recent queries that a request needs: W + 1; 0 without a ring. */
uint32_t cn_selector_ring_rows(const cn_kv_params *kv);

/* Returns true when a request needs a query slot together with its reservation: its policy observes
 * queries, or exchanges with its home read a ring of queries. */
bool cn_kv_needs_slot(const cn_kv_params *kv);

/* Rows of a query slot that a request uses as a ring: the query of position p is in row p modulo
 * this number. They are the observation window of its policy or the ring of its selector. 0: the
 * request uses no query slot. */
uint32_t cn_ring_rows(const cn_kv_params *kv);

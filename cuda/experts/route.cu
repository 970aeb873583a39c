/* route.cu - which experts each token takes, and the order of the pairs.
 *
 * A warp chooses for a token: a lane has PER neighbouring experts of logits [T,E] and keeps their
 * ranks as integers in the same order, so that the best of a warp is one instruction. Then one
 * block numbers the pairs by expert, then by token. Each warp has the pairs of some neighbouring
 * tokens. It counts them by expert, and finds the place of a pair from the counts of the warps
 * before it and the pairs before it in the warp. So the order depends on no race.
 *
 * Where experts are in groups, the warp ranks one group after another and leaves out the experts of
 * the groups that the token does not take. The ranks of a group are added as floats, as on the CPU.
 *
 * Up to FUSED_TOKENS tokens one launch does both, with one block. More take a grid of ceil(T / 8)
 * blocks, and then a block. Bytes moved: 4*T*E + 16*T*k. CPU version: cpu_experts.c. */
#include <math_constants.h>

#include "cuda/launch.cuh"
#include "cuda/util.cuh"

enum {
    FUSED_TOKENS = 16,
    CHOOSE_WARPS = 8,
    MOST_WARPS = 32, /* of the block that numbers */
    MOST_COUNTS = 16384, /* its counts in shared memory */
    AHEAD = 8 /* words that a lane loads at once */
};

/* ---- a token ---- */

/* Returns a word with the order of the floats; not a number is the lowest, and above 0. */
__device__ static inline uint32_t rank_word(float x)
{
    const uint32_t bits = __float_as_uint(x + 0.0f); /* -0 is 0 */
    if (isnan(x)) return 1;
    return bits >> 31 ? ~bits : bits | 0x80000000u;
}

/* Loads the lane's logits, and makes scores and ranks of them. Experts from E on have rank 0. */
template <int PER>
__device__ static inline void load_scores(float score[PER], uint32_t rank[PER],
                                          const cn_route_args &a, uint32_t token)
{
    const uint32_t n = a.router.n_experts, first = threadIdx.x % CN_WARP * PER;
    const float *logits = a.logits + (size_t)token * n;
    float most = -CUDART_INF_F, sum = 0.0f;
    float logit[PER];
#pragma unroll
    for (uint32_t i = 0; i < PER; i++) {
        logit[i] = first + i < n ? __ldcg(logits + first + i) : -CUDART_INF_F;
        most = fmaxf(most, logit[i]);
    }
#pragma unroll
    for (int offset = CN_WARP / 2; offset > 0; offset /= 2)
        most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, offset));
#pragma unroll
    for (uint32_t i = 0; i < PER; i++) {
        const bool sigmoid = a.router.score == CN_ROUTE_SIGMOID;
        score[i] = sigmoid ? 1.0f / (1.0f + expf(-logit[i])) : expf(logit[i] - most);
        if (first + i < n) sum += score[i];
    }
    sum = cn_warp_sum(sum);
#pragma unroll
    for (uint32_t i = 0; i < PER; i++) {
        const bool softmax = a.router.score == CN_ROUTE_SOFTMAX;
        if (softmax) score[i] /= sum;
        const bool by_logits = softmax && !a.bias && a.router.group_best < 2;
        const float base = by_logits ? logit[i] : score[i];
        const bool is_expert = first + i < n;
        rank[i] = is_expert ? rank_word(a.bias ? base + a.bias[first + i] : base) : 0;
    }
}

/* The float that has a rank word. */
__device__ static inline float rank_value(uint32_t word)
{
    return __uint_as_float(word >> 31 ? word & 0x7fffffffu : ~word);
}

/* The two best ranks of a lane, of a warp. */
typedef struct best_two {
    uint32_t best, second;
} best_two;

__device__ static inline best_two best_of_warp(best_two own)
{
    best_two all;
    all.best = __reduce_max_sync(0xffffffffu, own.best);
    const uint32_t owner = __ffs((int)__ballot_sync(0xffffffffu, own.best == all.best)) - 1;
    const uint32_t left = threadIdx.x % CN_WARP == owner ? own.second : own.best;
    all.second = __reduce_max_sync(0xffffffffu, left);
    return all;
}

/* Returns the rank of experts [first, end), which are a group. */
template <int PER>
__device__ static inline uint32_t rank_expert_group(const uint32_t rank[PER], uint32_t first,
                                                uint32_t end, uint32_t group_best)
{
    const uint32_t own = threadIdx.x % CN_WARP * PER;
    best_two two = {0, 0};
#pragma unroll
    for (uint32_t i = 0; i < PER; i++) {
        const uint32_t word = own + i >= first && own + i < end ? rank[i] : 0;
        two.second = max(two.second, min(two.best, word));
        two.best = max(two.best, word);
    }
    two = best_of_warp(two);
    if (group_best < 2) return two.best;
    return rank_word(rank_value(two.best) + (two.second ? rank_value(two.second) : -CUDART_INF_F));
}

/* Gives rank 0 to the experts of groups that the token does not take. Lane g has the ranks of
 * groups g and g + 32. */
template <int PER>
__device__ static inline void drop_expert_groups(uint32_t rank[PER], const cn_router &r)
{
    const uint32_t lane = threadIdx.x % CN_WARP, each = r.n_experts / r.n_groups;
    uint32_t low = 0, high = 0;
    for (uint32_t g = 0; g < r.n_groups; g++) {
        const uint32_t word = rank_expert_group<PER>(rank, g * each, (g + 1) * each, r.group_best);
        if (lane == g) low = word;
        if (lane + CN_WARP == g) high = word;
    }
    uint64_t taken = 0; /* a bit for each group */
    for (uint32_t j = 0; j < r.n_used_groups; j++) {
        const uint32_t most = __reduce_max_sync(0xffffffffu, max(low, high));
        const uint32_t lows = __ballot_sync(0xffffffffu, low == most);
        const uint32_t highs = __ballot_sync(0xffffffffu, high == most);
        const uint32_t g = lows ? __ffs((int)lows) - 1 : CN_WARP + __ffs((int)highs) - 1;
        taken |= UINT64_C(1) << g;
        if (lane == g) low = 0;
        if (lane + CN_WARP == g) high = 0;
    }
#pragma unroll
    for (uint32_t i = 0; i < PER; i++)
        if (!(taken >> (lane * PER + i) / each & 1)) rank[i] = 0;
}

/* Chooses the token's experts and their weights: lane j has the choice j. */
template <int PER>
__device__ static inline void choose_token_experts(uint32_t *expert, float *weight,
                                                   const cn_route_args &a, uint32_t token)
{
    const uint32_t lane = threadIdx.x % CN_WARP;
    float score[PER];
    uint32_t rank[PER];
    load_scores<PER>(score, rank, a, token);
    if (a.router.n_groups > 1) drop_expert_groups<PER>(rank, a.router);
    *expert = 0;
    *weight = 0.0f;
    for (uint32_t j = 0; j < a.router.n_used; j++) {
        uint32_t best = 0, at = 0;
        float best_score = 0.0f;
#pragma unroll
        for (uint32_t i = 0; i < PER; i++) {
            if (rank[i] <= best) continue;
            best = rank[i];
            best_score = score[i];
            at = i;
        }
        const uint32_t most = __reduce_max_sync(0xffffffffu, best);
        const int owner = __ffs((int)__ballot_sync(0xffffffffu, best == most)) - 1;
        const uint32_t place = __shfl_sync(0xffffffffu, at, owner);
        best_score = __shfl_sync(0xffffffffu, best_score, owner);
#pragma unroll
        for (uint32_t i = 0; i < PER; i++)
            if (lane == (uint32_t)owner && i == place) rank[i] = 0;
        if (lane != j) continue;
        *expert = (uint32_t)owner * PER + place;
        *weight = best_score;
    }
}

/* Chooses for a token, and stores the experts in place of the pairs. */
template <int PER>
__device__ static inline void route_of_token(const cn_route_args &a, uint32_t token)
{
    const uint32_t lane = threadIdx.x % CN_WARP, k = a.router.n_used;
    uint32_t expert;
    float weight;
    choose_token_experts<PER>(&expert, &weight, a, token);
    const float sum = cn_warp_sum(lane < k ? weight : 0.0f);
    if (lane >= k) return;
    if (a.router.normalized) weight /= sum + 1e-20f;
    a.weights[(size_t)token * k + lane] = weight * a.router.scale;
    a.pairs[(size_t)token * k + lane] = expert;
}

/* ---- the order of the pairs ---- */

/* The pairs of a warp of the block that numbers. */
typedef struct warp_pairs {
    uint32_t from, to;
} warp_pairs;

__device__ static inline warp_pairs pairs_of_warp(const cn_route_args &a)
{
    const uint32_t warps = blockDim.x / CN_WARP, warp = threadIdx.x / CN_WARP;
    const uint32_t each = (a.n_tokens + warps - 1) / warps, k = a.router.n_used;
    return {min(warp * each, a.n_tokens) * k, min((warp + 1) * each, a.n_tokens) * k};
}

/* Calls use(i, expert, in) for all pairs of the warp in order, 32 at a time. `in`: the lane has
 * one. */
template <typename F>
__device__ static inline void for_pairs(const cn_route_args &a, const F &use)
{
    const warp_pairs p = pairs_of_warp(a);
    const uint32_t lane = threadIdx.x % CN_WARP;
    for (uint32_t from = p.from; from < p.to; from += AHEAD * CN_WARP) {
        uint32_t expert[AHEAD];
#pragma unroll
        for (uint32_t i = 0; i < AHEAD; i++) {
            const uint32_t at = from + i * CN_WARP + lane;
            expert[i] = at < p.to ? a.pairs[at] : 0;
        }
#pragma unroll
        for (uint32_t i = 0; i < AHEAD; i++) {
            const uint32_t at = from + i * CN_WARP + lane;
            if (from + i * CN_WARP < p.to) use(at, expert[i], at < p.to);
        }
    }
}

/* counts[w,e] becomes the first pair of warp w with expert e. */
__device__ static inline void add_up_counts(uint32_t *counts, uint32_t *totals, uint32_t *starts,
                                            uint32_t n_experts)
{
    const uint32_t warps = blockDim.x / CN_WARP, lane = threadIdx.x % CN_WARP;
    for (uint32_t e = threadIdx.x; e < n_experts; e += blockDim.x) {
        uint32_t sum = 0;
        for (uint32_t w = 0; w < warps; w++) {
            const uint32_t own = counts[w * n_experts + e];
            counts[w * n_experts + e] = sum;
            sum += own;
        }
        totals[e] = sum;
    }
    __syncthreads();
    if (threadIdx.x < CN_WARP) { /* totals become sums of those before */
        const uint32_t each = (n_experts + CN_WARP - 1) / CN_WARP;
        const uint32_t from = min(lane * each, n_experts), to = min(from + each, n_experts);
        uint32_t own = 0;
        for (uint32_t e = from; e < to; e++) own += totals[e];
        uint32_t before = own;
#pragma unroll
        for (int offset = 1; offset < CN_WARP; offset *= 2) {
            const uint32_t other = __shfl_up_sync(0xffffffffu, before, offset);
            if (lane >= (uint32_t)offset) before += other;
        }
        if (lane == CN_WARP - 1) starts[n_experts] = before;
        before -= own;
        for (uint32_t e = from; e < to; e++) {
            const uint32_t n = totals[e];
            starts[e] = totals[e] = before;
            before += n;
        }
    }
    __syncthreads();
    for (uint32_t i = threadIdx.x; i < warps * n_experts; i += blockDim.x)
        counts[i] += totals[i % n_experts];
    __syncthreads();
}

/* Numbers the pairs. Called by the whole block. counts: [warps, E]; totals: [E]. */
__device__ static inline void number_block_pairs(const cn_route_args &a, uint32_t *counts,
                                                 uint32_t *totals)
{
    const uint32_t n = a.router.n_experts, k = a.router.n_used;
    const uint32_t lanes_before = (1u << threadIdx.x % CN_WARP) - 1;
    uint32_t *own = counts + threadIdx.x / CN_WARP * n;
    for (uint32_t i = threadIdx.x; i < blockDim.x / CN_WARP * n; i += blockDim.x) counts[i] = 0;
    __syncthreads();
    for_pairs(a, [&](uint32_t, uint32_t expert, bool in) {
        if (in) atomicAdd(own + expert, 1u);
    });
    __syncthreads();
    add_up_counts(counts, totals, a.starts, n);
    for_pairs(a, [&](uint32_t i, uint32_t expert, bool in) {
        __syncwarp(); /* after the stores of the last call */
        const uint32_t same = __match_any_sync(0xffffffffu, in ? expert : UINT32_MAX);
        const uint32_t first = in ? own[expert] : 0;
        __syncwarp();
        if (!in) return;
        const uint32_t before = __popc(same & lanes_before), place = first + before;
        if (before == 0) own[expert] = first + __popc(same);
        a.pairs[i] = place;
        a.pair_tokens[place] = i / k;
    });
}

/* ---- kernels ---- */

template <int PER>
__global__ static void __launch_bounds__(CHOOSE_WARPS *CN_WARP)
    choose_kernel(const cn_route_args a)
{
    const uint32_t token = blockIdx.x * CHOOSE_WARPS + threadIdx.x / CN_WARP;
    cn_overlap_next();
    cn_wait_previous();
    if (token < a.n_tokens) route_of_token<PER>(a, token);
}

/* PER 0: the experts are chosen already. */
template <int PER>
__global__ static void __launch_bounds__(MOST_WARPS *CN_WARP) number_kernel(const cn_route_args a)
{
    extern __shared__ uint32_t counts[];
    cn_overlap_next();
    cn_wait_previous();
    if constexpr (PER > 0) {
        const uint32_t warps = blockDim.x / CN_WARP;
        for (uint32_t t = threadIdx.x / CN_WARP; t < a.n_tokens; t += warps)
            route_of_token<PER>(a, t);
        __syncthreads();
    }
    number_block_pairs(a, counts, counts + blockDim.x / CN_WARP * a.router.n_experts);
}

typedef void (*route_fn)(const cn_route_args);
#define ROUTES(per) {per, choose_kernel<per>, number_kernel<per>}
static const struct {
    uint32_t per; /* experts of a lane */
    route_fn choose, both;
} kernels[] = {ROUTES(1), ROUTES(2), ROUTES(4), ROUTES(8), ROUTES(16), ROUTES(32)};

extern "C" cn_status cn_cuda_route(cn_stream *s, const cn_route_args *a)
{
    const cn_router *r = &a->router;
    if (r->n_experts == 0 || r->n_experts > CN_MAX_EXPERTS || r->n_used == 0 ||
        r->n_used > CN_MAX_USED || r->n_used > r->n_experts)
        return cn_fail(CN_ERR_SHAPE, "route: %u of %u experts: expected 1 to %d of 1 to %d",
                       r->n_used, r->n_experts, CN_MAX_USED, CN_MAX_EXPERTS);
    CN_TRY(cn_router_check_groups(r));
    if (a->n_tokens == 0) return CN_OK;
    uint32_t i = 0;
    while (kernels[i].per * CN_WARP < r->n_experts) i++;
    const uint32_t most = cn_min_u32(MOST_WARPS, MOST_COUNTS / r->n_experts);
    const bool fused = a->n_tokens <= FUSED_TOKENS;
    const uint32_t warps = cn_min_u32(most, cn_max_u32(fused ? a->n_tokens : most, 4));
    const cn_launch number = {dim3(1), warps * CN_WARP,
                              (warps + 1) * r->n_experts * sizeof(uint32_t)};
    if (fused) return cn_cuda_launch(s, "route", kernels[i].both, number, *a);
    const cn_launch choose = {dim3((unsigned)cn_ceil_div(a->n_tokens, CHOOSE_WARPS)),
                              CHOOSE_WARPS * CN_WARP};
    CN_TRY(cn_cuda_launch(s, "route", kernels[i].choose, choose, *a));
    return cn_cuda_launch(s, "route", number_kernel<0>, number, *a);
}

/* rope.c - RoPE frequencies with llama3 and YaRN scaling, and the cos/sin table. See rope.h.
 *
 * Each step rounds to f32 where transformers does. Products and quotients are therefore computed in
 * float, and only powers and logarithms in double. */
#include "engine/model/rope.h"

#include <math.h>

enum { MAX_HALF = 128 };
static const double PI = 3.14159265358979323846;

/* Llama 3.1: wavelengths beyond the original context are stretched by `factor`. Wavelengths well
 * inside it are unchanged, with a ramp between the two. */
static float scale_llama3(const cn_rope_scaling *s, float freq)
{
    float factor = (float)s->factor;
    float length = (float)s->original_max_position;
    float wavelen = (float)(2 * PI) / freq;
    if (wavelen < (float)(s->original_max_position / s->high_freq_factor)) return freq;
    if (wavelen > (float)(s->original_max_position / s->low_freq_factor)) return freq / factor;
    float smooth = (length / wavelen - (float)s->low_freq_factor) /
                   (float)(s->high_freq_factor - s->low_freq_factor);
    return (1 - smooth) * freq / factor + smooth * freq;
}

/* YaRN §3.2: the dimension pair that rotates `rotations` times over the original context. */
static double yarn_dimension(const cn_model_config *c, double rotations)
{
    return c->rotary * log(c->rope.original_max_position / (rotations * 2 * PI)) /
           (2 * log(c->rope_theta));
}

/* Pairs below `low` keep their frequency, those above `high` are interpolated by `factor`. */
static float scale_yarn(const cn_model_config *c, uint32_t i, float period)
{
    const cn_rope_scaling *s = &c->rope;
    double low = yarn_dimension(c, s->beta_fast), high = yarn_dimension(c, s->beta_slow);
    if (s->truncate) {
        low = floor(low);
        high = ceil(high);
    }
    low = fmax(low, 0);
    high = fmin(high, c->rotary - 1.0);
    if (low == high) high += 0.001;
    float ramp = ((float)i - (float)low) / (float)(high - low);
    float keep = 1 - fminf(fmaxf(ramp, 0), 1);
    return 1 / ((float)s->factor * period) * (1 - keep) + 1 / period * keep;
}

void cn_rope_inv_freq(const cn_model_config *c, float *inv_freq)
{
    for (uint32_t i = 0; i < cn_rope_dim(c) / 2; i++) {
        if (i >= c->rotary / 2) {
            inv_freq[i] = 0; /* dimensions without a position */
            continue;
        }
        const float exponent = (float)(2 * i) / (float)c->rotary;
        const float period = (float)pow(c->rope_theta, (double)exponent);
        switch (c->rope.type) {
        case CN_ROPE_DEFAULT:
            inv_freq[i] = 1 / period;
            break;
        case CN_ROPE_LLAMA3:
            inv_freq[i] = scale_llama3(&c->rope, 1 / period);
            break;
        case CN_ROPE_YARN:
            inv_freq[i] = scale_yarn(c, i, period);
            break;
        }
    }
}

void cn_rope_table(const cn_model_config *c, uint32_t first, uint32_t n_positions, float *cos_out,
                   float *sin_out)
{
    float inv_freq[MAX_HALF];
    uint32_t half = cn_rope_dim(c) / 2;
    CN_ASSERT(half <= MAX_HALF);
    cn_rope_inv_freq(c, inv_freq);
    float factor = (float)c->rope.attention_factor;
    for (size_t p = 0; p < n_positions; p++) {
        for (size_t i = 0; i < half; i++) {
            float angle = (float)(first + p) * inv_freq[i];
            cos_out[p * half + i] = (float)cos((double)angle) * factor;
            sin_out[p * half + i] = (float)sin((double)angle) * factor;
        }
    }
}

/* Vectors of 16 floats, and functions of them. Each number depends on its own lane only, but for the sums of lanes. */

#pragma once
#if !defined(__AVX512F__)
#error "these vectors need AVX-512: built for AVX2, a pass took twenty times as long"
#endif
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define LANES 16   /* floats of a vector */
#define PANEL 32   /* outputs of a panel: two vectors */
#define ROWS 12    /* tokens that a product takes at a time: their sums, two vectors each, stay in registers */
#define CHUNK 96   /* tokens whose feed-forward states stay in the cache */
#define THREADS 64 /* at most */

typedef float vf __attribute__((vector_size(4 * LANES)));
typedef float vf_any __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t vi __attribute__((vector_size(4 * LANES)));
typedef uint8_t vb __attribute__((vector_size(LANES)));
#define INLINE static inline __attribute__((always_inline))
#define EACH_ROW _Pragma("GCC unroll 16") for (int r = 0; r < rows; r++) /* unrolled: sums stay in registers */

INLINE vf load(const float *p) { return *(const vf_any *)p; }
INLINE void store(float *p, vf x) { *(vf_any *)p = x; }
INLINE vf select_(vi mask, vf a, vf b) { return (vf)(((vi)a & mask) | ((vi)b & ~mask)); }
INLINE vf all(float x) { return x - (vf){0}; }

INLINE float sum_lanes(vf x) {
    float total[LANES];
    store(total, x);
    for (int step = LANES / 2; step; step /= 2)
        for (int i = 0; i < step; i++) total[i] += total[i + step];
    return total[0];
}

INLINE vf exponential(vf x) {
    x = select_(x < -87.0f, all(-87.0f), x);
    x = select_(x > 88.0f, all(88.0f), x);
    vf n = (x * 1.44269504088896341f + 12582912.0f) - 12582912.0f; /* rounded to an integer */
    vf r = x - n * 0.693359375f + n * 2.12194440e-4f;
    vf p = all(1.9875691500e-4f);
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    return (vf)((vi)p + (__builtin_convertvector(n, vi) << 23));
}

/* x times the normal distribution function: 1 - erf(z), z = |x| / sqrt(2), by Abramowitz and Stegun, 7.1.26. */
INLINE vf gelu_exact(vf x) {
    vf z = (vf)((vi)x & 0x7fffffff) * 0.70710678118654752f;
    vf t = 1.0f / (z * 0.3275911f + 1.0f);
    vf p = all(1.061405429f);
    p = p * t - 1.453152027f;
    p = p * t + 1.421413741f;
    p = p * t - 0.284496736f;
    p = p * t + 0.254829592f;
    vf tail = p * t * exponential(-z * z) * 0.5f;
    return x * select_(x > 0.0f, 1.0f - tail, tail);
}

INLINE vf tanh_of(vf x) { return 1.0f - 2.0f / (exponential(2.0f * x) + 1.0f); }

INLINE vf activate(vf x, int kind) {
    if (kind == GELU_EXACT) return gelu_exact(x);
    if (kind == GELU) return x * 0.5f * (1.0f + tanh_of(0.79788456080286536f * (x + 0.044715f * x * x * x)));
    if (kind == TANH) return tanh_of(x);
    if (kind == RELU) return select_(x < 0.0f, all(0.0f), x);
    if (kind == SILU) return x / (1.0f + exponential(-x));
    return x;
}

#define PAIRS(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
INLINE vf halves(vf a, vf b) {
    return PAIRS(a, b, 0, 16, 2, 18, 4, 20, 6, 22, 8, 24, 10, 26, 12, 28, 14, 30) +
           PAIRS(a, b, 1, 17, 3, 19, 5, 21, 7, 23, 9, 25, 11, 27, 13, 29, 15, 31);
}
INLINE vf quarters(vf a, vf b) {
    return PAIRS(a, b, 0, 1, 16, 17, 4, 5, 20, 21, 8, 9, 24, 25, 12, 13, 28, 29) +
           PAIRS(a, b, 2, 3, 18, 19, 6, 7, 22, 23, 10, 11, 26, 27, 14, 15, 30, 31);
}
INLINE vf eighths(vf a, vf b) {
    return PAIRS(a, b, 0, 1, 2, 3, 16, 17, 18, 19, 8, 9, 10, 11, 24, 25, 26, 27) +
           PAIRS(a, b, 4, 5, 6, 7, 20, 21, 22, 23, 12, 13, 14, 15, 28, 29, 30, 31);
}
INLINE vf whole(vf a, vf b) {
    return PAIRS(a, b, 0, 1, 2, 3, 4, 5, 6, 7, 16, 17, 18, 19, 20, 21, 22, 23) +
           PAIRS(a, b, 8, 9, 10, 11, 12, 13, 14, 15, 24, 25, 26, 27, 28, 29, 30, 31);
}

/* The sums of 16 vectors' lanes. */
INLINE vf sums_of(const vf *v) {
    vf h[8], q[4];
    for (int i = 0; i < 8; i++) h[i] = halves(v[2 * i], v[2 * i + 1]);
    for (int i = 0; i < 4; i++) q[i] = quarters(h[2 * i], h[2 * i + 1]);
    return whole(eighths(q[0], q[1]), eighths(q[2], q[3]));
}

INLINE vf part(const float *p, int count) { /* fewer than LANES numbers */
    float values[LANES] = {0};
    memcpy(values, p, 4 * count);
    return load(values);
}

/* Memory of a thread */

static __thread float *scratch;
static __thread size_t scratch_size;

static float *reserve(size_t floats) {
    if (floats > scratch_size) {
        free(scratch);
        scratch_size = 0;
        scratch = aligned_alloc(64, (4 * floats + 63) / 64 * 64);
        if (scratch) scratch_size = floats;
    }
    return scratch;
}

/* Vectors of 16 floats (AVX-512) or 8 (AVX2), and functions of them. Each number depends on its own lane only, but for
 * the sums of lanes. */

#pragma once
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

/* LANES: floats of a vector. ROWS: tokens that a product takes at a time; their sums, two vectors each, stay in
 * registers. DOT adds the products of four bytes to each int32 lane; without it there is no int8. It is written out,
 * because GCC moves the sums of the intrinsic through memory. */
#if defined(__AVX512F__) /* 32 registers */
#define LANES 16
#define ROWS 12
#if defined(__AVX512VNNI__)
#define DOT(sum, x, w) __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(x), "v"(w))
#endif
#elif defined(__AVX2__) && defined(__FMA__) /* 16 registers */
#define LANES 8
#define ROWS 6
#if defined(__AVXVNNI__)
#define DOT(sum, x, w) __asm__("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum) : "x"(x), "x"(w))
#endif
#else
#error "these vectors need AVX-512, or AVX2 with FMA"
#endif

#define PANEL (2 * LANES) /* outputs of a panel */
#define CHUNK 96          /* tokens whose feed-forward states stay in the cache */
#define THREADS 64        /* at most */

typedef float vf __attribute__((vector_size(4 * LANES)));
typedef float vf_any __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t vi __attribute__((vector_size(4 * LANES)));
typedef int32_t vi_any __attribute__((vector_size(4 * LANES), aligned(1), may_alias));
typedef uint8_t vb __attribute__((vector_size(LANES)));
#define INLINE static inline __attribute__((always_inline))
#if defined(__clang__)
#define UNROLLED _Pragma("clang loop unroll(full)")
#else
#define UNROLLED _Pragma("GCC unroll 16")
#endif
#define EACH_ROW UNROLLED for (int r = 0; r < rows; r++) /* unrolled: sums stay in registers */

INLINE vf load(const float *p) { return *(const vf_any *)p; }
INLINE vi load_integers(const void *p) { return *(const vi_any *)p; }
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

/* One step of the sums of lanes: each lane has the sum of two lanes of a or of b that are `s` apart. */
#if defined(__clang__)
#define PICK(a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define PICK(a, b, ...) __builtin_shuffle(a, b, (vi){__VA_ARGS__})
#endif
#define NEAR(i, s) ((i) & (s) ? LANES + (i) - (s) : (i))
#define FAR(i, s) ((i) & (s) ? LANES + (i) : (i) + (s))
#define EIGHT(F, i, s) \
    F((i), s), F((i) + 1, s), F((i) + 2, s), F((i) + 3, s), F((i) + 4, s), F((i) + 5, s), F((i) + 6, s), F((i) + 7, s)
#if LANES == 16
#define INDICES(F, s) EIGHT(F, 0, s), EIGHT(F, 8, s)
#else
#define INDICES(F, s) EIGHT(F, 0, s)
#endif
#define FOLD(v, s) \
    for (int i = 0; i < LANES / (2 * (s)); i++) \
        v[i] = PICK(v[2 * i], v[2 * i + 1], INDICES(NEAR, s)) + PICK(v[2 * i], v[2 * i + 1], INDICES(FAR, s))

/* The sums of the lanes of LANES vectors, which are overwritten. */
INLINE vf sums_of(vf *v) {
    FOLD(v, 1);
    FOLD(v, 2);
    FOLD(v, 4);
#if LANES == 16
    FOLD(v, 8);
#endif
    return v[0];
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

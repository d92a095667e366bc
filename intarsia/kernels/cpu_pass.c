/* The layers of a pass on a CPU, in float32 or with the base's products in int8: see intarsia/encoder/compiled.py.
 *
 * A token's values are computed by the same operations in the same order, whatever other tokens the pass has, however
 * many threads run, and wherever the token lies. Only the attention of its own segment and the tensors of its own slot
 * enter them.
 *
 * Layouts: a weight [out, in] of the base lies in panels of PANEL outputs, [out / PANEL, in, PANEL]; in int8 in panels
 * [out / PANEL, in / 4, PANEL, 4]. The tensors of slots lie as PyTorch has them.
 */

#define _GNU_SOURCE
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#if defined(__AVX512VNNI__)
#include <immintrin.h>
#endif

#define LANES 16   /* floats of a vector; compilers split it where registers are shorter */
#define PANEL 32   /* outputs of a panel: two vectors */
#define ROWS 12    /* tokens that a product takes at a time: 24 sums stay in registers */
#define CHUNK 96   /* tokens whose feed-forward states stay in the cache */
#define THREADS 64 /* at most */

typedef float vf __attribute__((vector_size(4 * LANES)));
typedef float vf_any __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t vi __attribute__((vector_size(4 * LANES)));
typedef uint8_t vb __attribute__((vector_size(LANES)));
#define INLINE static inline __attribute__((always_inline))
#define EACH_ROW _Pragma("GCC unroll 16") for (int r = 0; r < rows; r++) /* unrolled: sums stay in registers */

enum { GELU_EXACT = 1, GELU = 2, RELU = 3, SILU = 4, TANH = 5 };
enum { OUTPUT, INPUT, NORMALISED }; /* what an adapter reads: of its sub-layer, or the base's norm of their sum */

typedef struct { /* a frozen linear layer */
    const void *weight;
    const float *bias, *scales; /* scales: of each output, in int8 */
    const int32_t *sums;        /* of the weights of each output, times 128, in int8 */
    int32_t inputs, outputs;
} Linear;

typedef struct {
    Linear qkv, dense, up, down;
    const float *gain[2], *bias[2]; /* the norms behind attention and feed-forward */
} Layer;

typedef struct { /* what a method does behind a sub-layer; the tensors of slot 0 */
    const float *down, *down_bias, *up, *up_bias; /* down NULL: no adapter */
    const float *gain, *bias;                     /* NULL: the base's norm */
    int64_t stride;                               /* floats from one slot to the next */
    int32_t size, activation, reads, restarts;    /* restarts: it is added to the sub-layer's own output */
} Site;

typedef struct { /* what a method does to the output of a linear layer; the tensors of slot 0 */
    const float *a, *b;  /* a difference of low rank; NULL: none */
    const float *bias;   /* in the place of the base's; NULL: the base's */
    int64_t stride;
    int32_t rank;
    float scale;         /* of the difference */
} Change;

typedef struct { int32_t table, slot; } Use; /* of a table of slots, by an owner; a stack of methods has several */

typedef struct { int32_t first, last, first_use, last_use; } Owner; /* of tokens; without uses: the plain base */

typedef struct {
    const Layer *layers;
    const Site *sites;         /* [table, layer, 2] */
    const Change *changes;     /* [table, layer, 6]: query, key, value, dense, up, down; NULL: none in this pass */
    const Use *uses;
    const Owner *owners;       /* they cover all tokens, in order */
    const int32_t *offsets;    /* [segments + 1] */
    const float *relative;     /* [heads, distances] a bias of the scores by key - query; NULL: none */
    float *states;             /* [tokens, width], replaced by the result */
    float *work;
    int32_t layer_count, first, last; /* layers to run: first (inclusive) to last (exclusive) */
    int32_t width, inner, heads, owner_count, segments, middle, distances;
    int32_t activation, int8, threads;
    float scale, eps;
} Pass;

/* Vectors */

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

/* x times the normal distribution function: with 1 - erf(z) from Abramowitz and Stegun, 7.1.26, for z = |x| / sqrt(2). */
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

/* Products with weights of the base */

INLINE void panel(const int rows, const float *x, int inputs, const float *w, const float *bias, float *y,
                  int64_t ld) {
    vf low[ROWS], high[ROWS];
    EACH_ROW low[r] = load(bias), high[r] = load(bias + LANES);
    for (int k = 0; k < inputs; k++) {
        vf a = load(w + PANEL * k), b = load(w + PANEL * k + LANES);
        EACH_ROW {
            float value = x[(int64_t)r * inputs + k];
            low[r] += value * a, high[r] += value * b;
        }
    }
    EACH_ROW {
        store(y + r * ld, low[r]), store(y + r * ld + LANES, high[r]);
    }
}

#if defined(__AVX512VNNI__)
/* Written out, because GCC moves the sums of the intrinsic through memory. */
#define DOT(sum, x, w) __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(x), "v"(w))
INLINE void panel_int8(const int rows, const uint8_t *x, const float *scale, int inputs, const int8_t *w,
                       const float *scales, const int32_t *sums, const float *bias, float *y, int64_t ld) {
    __m512i low[ROWS], high[ROWS];
    EACH_ROW low[r] = high[r] = _mm512_setzero_si512();
    for (int k = 0; k < inputs; k += 4) {
        __m512i a = _mm512_loadu_si512(w + PANEL * k), b = _mm512_loadu_si512(w + PANEL * k + 64);
        EACH_ROW {
            int32_t four;
            memcpy(&four, x + (int64_t)r * inputs + k, 4);
            __m512i value = _mm512_set1_epi32(four);
            DOT(low[r], value, a);
            DOT(high[r], value, b);
        }
    }
    vi sum_low, sum_high;
    memcpy(&sum_low, sums, 64), memcpy(&sum_high, sums + LANES, 64);
    EACH_ROW {
        vf left = __builtin_convertvector((vi)low[r] - sum_low, vf) * (load(scales) * scale[r]) + load(bias);
        vf right = __builtin_convertvector((vi)high[r] - sum_high, vf) * (load(scales + LANES) * scale[r]);
        store(y + r * ld, left), store(y + r * ld + LANES, right + load(bias + LANES));
    }
}
#endif

#define EACH_COUNT(CALL) \
    switch (rows) { \
        case 1: CALL(1); break; case 2: CALL(2); break; case 3: CALL(3); break; case 4: CALL(4); break; \
        case 5: CALL(5); break; case 6: CALL(6); break; case 7: CALL(7); break; case 8: CALL(8); break; \
        case 9: CALL(9); break; case 10: CALL(10); break; case 11: CALL(11); break; default: CALL(12); }

/* The tokens of a product, quantized in int8. */
typedef struct { const float *states; const uint8_t *bytes; const float *scales; } Input;

/* y [tokens, outputs] for the panels from `first` to `last`. */
static void product(Input x, int tokens, const Linear *of, int activation, float *y, int first, int last) {
    int blocks = (tokens + ROWS - 1) / ROWS, inputs = of->inputs;
    int64_t ld = of->outputs;
    for (int p = first; p < last; p++) {
        const float *bias = of->bias + PANEL * p;
        for (int b = 0; b < blocks; b++) {
            int from = (int64_t)tokens * b / blocks, rows = (int64_t)tokens * (b + 1) / blocks - from;
            float *out = y + from * ld + PANEL * p;
            if (!x.bytes) {
                const float *w = (const float *)of->weight + (int64_t)PANEL * inputs * p;
#define FLOATS(N) panel(N, x.states + (int64_t)from * inputs, inputs, w, bias, out, ld)
                EACH_COUNT(FLOATS)
            }
#if defined(__AVX512VNNI__)
            else {
                const int8_t *w = (const int8_t *)of->weight + (int64_t)PANEL * inputs * p;
#define BYTES(N) panel_int8(N, x.bytes + (int64_t)from * inputs, x.scales + from, inputs, w, of->scales + PANEL * p, \
                            of->sums + PANEL * p, bias, out, ld)
                EACH_COUNT(BYTES)
            }
#endif
        }
        for (int t = 0; activation && t < tokens; t++)
            for (int half = 0; half < PANEL; half += LANES) {
                float *at = y + t * ld + PANEL * p + half;
                store(at, activate(load(at), activation));
            }
    }
}

/* One token as bytes around 128, with its scale. */
static void quantize(const float *x, int width, uint8_t *bytes, float *scale) {
    vf most = all(0.0f);
    for (int k = 0; k < width; k += LANES) {
        vf size = (vf)((vi)load(x + k) & 0x7fffffff);
        most = select_(size > most, size, most);
    }
    float largest = 1e-30f, values[LANES];
    store(values, most);
    for (int i = 0; i < LANES; i++) largest = values[i] > largest ? values[i] : largest;
    float inverse = 127.0f / largest;
    *scale = largest / 127.0f;
    for (int k = 0; k < width; k += LANES) {
        vi rounded = (vi)(load(x + k) * inverse + (12582912.0f + 128.0f)) & 255;
        vb all_bytes = __builtin_convertvector(rounded, vb);
        memcpy(bytes + k, &all_bytes, LANES);
    }
}

/* Adapters: products with tensors of a slot */

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

/* y [tokens, outputs] = activation(x W' + b), or y + scale * (x W' + b) if `scale` is not 0; W [outputs, inputs]. The
 * rows of y are `ld` apart. */
static void slot_product(const float *x, int tokens, int inputs, const float *w, const float *b, int outputs,
                         int activation, float scale, float *y, int64_t ld) {
    int rest = inputs % LANES, even = inputs - rest;
    for (int i = 0; i < tokens; i += 4)
        for (int j = 0; j < outputs; j += 4) {
            const float *row[4], *column[4];
            for (int n = 0; n < 4; n++) { /* the last block repeats the last token and output */
                row[n] = x + (int64_t)(i + n < tokens ? i + n : tokens - 1) * inputs;
                column[n] = w + (int64_t)(j + n < outputs ? j + n : outputs - 1) * inputs;
            }
            vf sums[16];
            for (int n = 0; n < 16; n++) sums[n] = all(0.0f);
            for (int k = 0; k < even; k += LANES) {
                vf left[4], right[4];
                for (int n = 0; n < 4; n++) left[n] = load(row[n] + k), right[n] = load(column[n] + k);
                for (int n = 0; n < 16; n++) sums[n] += left[n / 4] * right[n % 4];
            }
            if (rest) {
                vf left[4], right[4];
                for (int n = 0; n < 4; n++) left[n] = part(row[n] + even, rest), right[n] = part(column[n] + even, rest);
                for (int n = 0; n < 16; n++) sums[n] += left[n / 4] * right[n % 4];
            }
            float bias[4] = {0}, out[LANES];
            for (int n = 0; b && n < 4 && j + n < outputs; n++) bias[n] = b[j + n];
            vf biases = {bias[0], bias[1], bias[2], bias[3], bias[0], bias[1], bias[2], bias[3],
                         bias[0], bias[1], bias[2], bias[3], bias[0], bias[1], bias[2], bias[3]};
            store(out, activate(sums_of(sums) + biases, activation));
            for (int m = 0; m < 4 && i + m < tokens; m++) {
                float *to = y + (i + m) * ld + j;
                for (int n = 0; n < 4 && j + n < outputs; n++)
                    to[n] = scale != 0.0f ? to[n] + scale * out[4 * m + n] : out[4 * m + n];
            }
        }
}

/* y = LayerNorm(h + x) for one token. */
static void add_and_normalise(const float *h, const float *x, int width, const float *gain, const float *bias, float eps,
                              float *y) {
    vf total = all(0.0f), squares = all(0.0f);
    for (int k = 0; k < width; k += LANES) total += load(h + k) + load(x + k);
    float mean = sum_lanes(total) / width;
    for (int k = 0; k < width; k += LANES) {
        vf away = load(h + k) + load(x + k) - mean;
        squares += away * away;
    }
    float factor = 1.0f / __builtin_sqrtf(sum_lanes(squares) / width + eps);
    for (int k = 0; k < width; k += LANES)
        store(y + k, (load(h + k) + load(x + k) - mean) * factor * load(gain + k) + load(bias + k));
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

/* Attention of one head within one segment. q, k and v lie in rows of 3 * width. */
INLINE void scores_of(const int rows, const float *q, int64_t ld, const float *keys, int depth, int padded, float *out) {
    for (int j = 0; j < padded; j += PANEL) {
        vf low[4], high[4];
        EACH_ROW low[r] = high[r] = all(0.0f);
        for (int c = 0; c < depth; c++) {
            vf a = load(keys + (int64_t)c * padded + j), b = load(keys + (int64_t)c * padded + j + LANES);
            EACH_ROW low[r] += q[r * ld + c] * a, high[r] += q[r * ld + c] * b;
        }
        EACH_ROW store(out + r * padded + j, low[r]), store(out + r * padded + j + LANES, high[r]);
    }
}

static float softmax(float *row, int length, int padded, float scale, const float *bias) {
    vf most = all(-3.0e38f), total = all(0.0f);
    float values[LANES], largest = -3.0e38f;
    if (bias) for (int j = 0; j < length; j++) row[j] = row[j] * scale + bias[j];
    else for (int j = 0; j < padded; j += LANES) store(row + j, load(row + j) * scale);
    for (int j = length; j < padded; j++) row[j] = -3.0e38f;
    for (int j = 0; j < padded; j += LANES) most = select_(load(row + j) > most, load(row + j), most);
    store(values, most);
    for (int i = 0; i < LANES; i++) largest = values[i] > largest ? values[i] : largest;
    for (int j = 0; j < padded; j += LANES) store(row + j, exponential(load(row + j) - largest));
    for (int j = length; j < padded; j++) row[j] = 0.0f;
    for (int j = 0; j < padded; j += LANES) total += load(row + j);
    return 1.0f / sum_lanes(total);
}

INLINE void mix(const int rows, const float *weights, int padded, const float *v, int64_t ld, int length, int depth,
                const float *factors, float *out, int64_t ld_out) {
    for (int c = 0; c < depth; c += LANES) {
        vf sums[4];
        EACH_ROW sums[r] = all(0.0f);
        for (int j = 0; j < length; j++) {
            vf value = load(v + j * ld + c);
            EACH_ROW sums[r] += weights[r * padded + j] * value;
        }
        EACH_ROW store(out + r * ld_out + c, sums[r] * factors[r]);
    }
}

static int attend(const Pass *pass, const float *qkv, int start, int length, int head, float *out) {
    int width = pass->width, depth = width / pass->heads, padded = (length + PANEL - 1) / PANEL * PANEL;
    int64_t ld = 3 * width;
    float *keys = reserve((size_t)(depth + 4) * padded), *scores = keys + (size_t)depth * padded, factors[4];
    if (!keys) return -1;
    const float *q = qkv + start * ld + head * depth, *k = q + width, *v = k + width;
    for (int c = 0; c < depth; c++) memset(keys + (size_t)c * padded + length, 0, 4 * (padded - length));
    for (int j = 0; j < length; j++)
        for (int c = 0; c < depth; c++) keys[(size_t)c * padded + j] = k[j * ld + c];
    out += (int64_t)start * width + head * depth;
    for (int i = 0; i < length; i += 4) {
        int rows = length - i < 4 ? length - i : 4;
        if (rows == 4) scores_of(4, q + i * ld, ld, keys, depth, padded, scores);
        else for (int r = 0; r < rows; r++) scores_of(1, q + (i + r) * ld, ld, keys, depth, padded, scores + r * padded);
        for (int r = 0; r < rows; r++) {
            const float *bias = pass->relative ? pass->relative + (int64_t)head * pass->distances + pass->middle - (i + r) : 0;
            factors[r] = softmax(scores + r * padded, length, padded, pass->scale, bias);
        }
        float *to = out + (int64_t)i * width;
        if (rows == 4) mix(4, scores, padded, v, ld, length, depth, factors, to, width);
        else for (int r = 0; r < rows; r++)
            mix(1, scores + r * padded, padded, v, ld, length, depth, factors + r, to + (int64_t)r * width, width);
    }
    return 0;
}

/* Threads. Either they take parts of whole segments, and wait for nobody; or a team shares every step of a pass with too
 * few segments, and its members meet after each. If other programs need the cores, meetings take long: then the first
 * member goes on alone. */

typedef struct {
    const Pass *pass;
    float *qkv, *mixed, *sub, *inner; /* of all tokens of the pass, but `inner`: of CHUNK tokens, for each thread */
    uint8_t *bytes;                   /* int8: CHUNK tokens of the widest input, for each thread */
    float *scales;
    atomic_int failed, next_part, joined, start; /* start: 1 the team begins, 2 it does not */
    atomic_int arrived, meeting, last_meeting;   /* last_meeting: after it the first member is alone */
    int64_t waited;                              /* nanoseconds, by the first member */
    int team, parts, bounds[2 * THREADS + 1];    /* team 1: the first segment of each part */
} Run;

#define MOST_WAITED 400000 /* nanoseconds in the meetings of a pass */
#define JOIN_TIME 200000   /* nanoseconds until a team is complete */

static int64_t now(void) {
    struct timespec at;
    clock_gettime(CLOCK_MONOTONIC, &at);
    return 1000000000LL * at.tv_sec + at.tv_nsec;
}

INLINE void pause_(int times) {
    if (times > 2000) sched_yield(); /* another thread may need this core */
#if defined(__x86_64__)
    else __builtin_ia32_pause();
#endif
}

/* Wait for the team; returns 1 if this member leaves. `team` becomes 1 when the first member goes on alone. */
static int meet(Run *run, int rank, int *team) {
    if (*team == 1) return 0;
    int meeting = atomic_load(&run->meeting);
    if (!rank && run->waited > MOST_WAITED) atomic_store(&run->last_meeting, meeting + 1);
    if (atomic_fetch_add(&run->arrived, 1) == *team - 1) {
        atomic_store(&run->arrived, 0);
        atomic_store(&run->meeting, meeting + 1);
    } else {
        int64_t began = rank ? 0 : now();
        for (int i = 0; atomic_load_explicit(&run->meeting, memory_order_acquire) == meeting; i++) pause_(i);
        if (!rank) run->waited += now() - began;
    }
    if (atomic_load(&run->last_meeting) != meeting + 1) return 0;
    *team = 1;
    return rank != 0;
}

/* A product in chunks of tokens, by a team; returns 1 if this member leaves. */
static int team_product(Run *run, int rank, int *team, int slot, const float *x, int tokens, const Linear *of,
                        int activation, float *y) {
    int panels = of->outputs / PANEL;
    for (int first = 0; first < tokens; first += CHUNK) {
        int count = tokens - first < CHUNK ? tokens - first : CHUNK;
        const float *chunk = x + (int64_t)first * of->inputs;
        Input input = {chunk, 0, 0};
        if (run->pass->int8) {
            int widest = run->pass->inner > run->pass->width ? run->pass->inner : run->pass->width;
            uint8_t *bytes = run->bytes + (int64_t)slot * CHUNK * widest;
            float *scales = run->scales + slot * CHUNK;
            if (meet(run, rank, team)) return 1; /* the last chunk's bytes are read */
            for (int i = count * rank / *team; i < count * (rank + 1) / *team; i++)
                quantize(chunk + (int64_t)i * of->inputs, of->inputs, bytes + (int64_t)i * of->inputs, scales + i);
            if (meet(run, rank, team)) return 1;
            input.bytes = bytes, input.scales = scales;
        }
        int from = panels * rank / *team, to = panels * (rank + 1) / *team;
        product(input, count, of, activation, y + (int64_t)first * of->outputs, from, to);
    }
    return 0;
}

/* h = h + adapter(h) for some tokens with the states x, at most CHUNK. */
static void adapt(const Pass *pass, int layer, int which, const Site *site, int64_t at, const float *x, float *h,
                 const float *origin, int tokens, float *memory) {
    int width = pass->width;
    float *hidden = memory, *sums = hidden + (size_t)CHUNK * site->size;
    const float *read = site->reads == INPUT ? x : h;
    if (site->reads == NORMALISED) {
        for (int64_t n = 0; n < tokens; n++)
            add_and_normalise(h + n * width, x + n * width, width, pass->layers[layer].gain[which],
                              pass->layers[layer].bias[which], pass->eps, sums + n * width);
        read = sums;
    }
    slot_product(read, tokens, width, site->down + at, site->down_bias + at, site->size, site->activation, 0.0f, hidden, site->size);
    if (site->restarts) memcpy(h, origin, (size_t)tokens * width * 4);
    slot_product(hidden, tokens, site->size, site->up + at, site->up_bias + at, width, 0, 1.0f, h, width);
}

/* Adapters and norm behind a sub-layer, for the tokens from `first` to `last`. */
static int behind(Run *run, int layer, int which, int first, int last) {
    const Pass *pass = run->pass;
    int width = pass->width;
    for (int o = 0; o < pass->owner_count; o++) {
        Owner owner = pass->owners[o];
        int from = owner.first > first ? owner.first : first, to = owner.last < last ? owner.last : last;
        if (from >= to) continue;
        const float *gain = pass->layers[layer].gain[which], *bias = pass->layers[layer].bias[which];
        int largest = 0, restarts = 0;
        for (int u = owner.first_use; u < owner.last_use; u++) { /* the topmost norm counts */
            const Site *site = pass->sites + ((int64_t)pass->uses[u].table * pass->layer_count + layer) * 2 + which;
            int64_t at = site->stride * pass->uses[u].slot;
            if (site->bias) {
                gain = site->gain ? site->gain + at : pass->layers[layer].gain[which];
                bias = site->bias + at;
            }
            if (site->down && site->size > largest) largest = site->size;
            restarts |= site->restarts;
        }
        float *memory = largest ? reserve((size_t)CHUNK * (largest + 2 * width)) : 0;
        if (largest && !memory) return -1;
        for (int t = from; largest && t < to; t += CHUNK) {
            int count = to - t < CHUNK ? to - t : CHUNK;
            float *h = run->sub + (int64_t)t * width, *origin = memory + (size_t)CHUNK * (largest + width);
            if (restarts) memcpy(origin, h, (size_t)count * width * 4);
            for (int u = owner.first_use; u < owner.last_use; u++) {
                const Site *site = pass->sites + ((int64_t)pass->uses[u].table * pass->layer_count + layer) * 2 + which;
                if (site->down)
                    adapt(pass, layer, which, site, site->stride * pass->uses[u].slot, pass->states + (int64_t)t * width, h,
                          origin, count, memory);
            }
        }
        for (int t = from; t < to; t++) {
            float *x = pass->states + (int64_t)t * width;
            add_and_normalise(run->sub + (int64_t)t * width, x, width, gain, bias, pass->eps, x);
        }
    }
    return 0;
}

/* Changes of the outputs y [.., outputs] of a linear layer, whose rows are `ld` apart, for the tokens from `first` to
 * `last`; x and y begin with the token `start`. */
static int change(Run *run, int layer, int which, const Linear *of, int column, const float *x, float *y, int outputs,
                  int start, int first, int last) {
    const Pass *pass = run->pass;
    int inputs = of->inputs;
    int64_t ld = of->outputs;
    for (int o = 0; o < pass->owner_count; o++) {
        Owner owner = pass->owners[o];
        int from = owner.first > first ? owner.first : first, to = owner.last < last ? owner.last : last;
        for (int u = owner.first_use; u < owner.last_use && from < to; u++) {
            const Change *found = pass->changes + ((int64_t)pass->uses[u].table * pass->layer_count + layer) * 6 + which;
            int64_t at = found->stride * pass->uses[u].slot;
            float *low = found->a ? reserve((size_t)CHUNK * found->rank) : 0;
            if (found->a && !low) return -1;
            for (int t = from; low && t < to; t += CHUNK) {
                int count = to - t < CHUNK ? to - t : CHUNK;
                slot_product(x + (int64_t)(t - start) * inputs, count, inputs, found->a + at, 0, found->rank, 0, 0.0f, low, found->rank);
                slot_product(low, count, found->rank, found->b + at, 0, outputs, 0, found->scale, y + (t - start) * ld + column, ld);
            }
            if (found->bias)
                for (int t = from; t < to; t++)
                    for (int k = 0; k < outputs; k++)
                        y[(t - start) * ld + column + k] += found->bias[at + k] - of->bias[column + k];
        }
    }
    return 0;
}

/* The layers for the segments from `from` to `to`, as a member of a team; `slot`: of the buffers of a thread. */
static void run_layers(Run *run, int rank, int team, int slot, int from, int to) {
    const Pass *pass = run->pass;
    int start = pass->offsets[from], tokens = pass->offsets[to] - start, width = pass->width, failed = 0;
    if (!tokens) return;
    float *x = pass->states + (int64_t)start * width, *mixed = run->mixed + (int64_t)start * width;
    float *sub = run->sub + (int64_t)start * width, *inner = run->inner + (int64_t)slot * CHUNK * pass->inner;
    float *qkv = run->qkv + (int64_t)start * 3 * width;
#define MEET \
    if (failed) atomic_store(&run->failed, 1); \
    if (meet(run, rank, &team)) return
#define PRODUCT(x, tokens, of, activation, y) \
    if (team_product(run, rank, &team, slot, x, tokens, of, activation, y)) return
#define MINE (start + (int64_t)tokens * rank / team)
#define AFTER (start + (int64_t)tokens * (rank + 1) / team)
    for (int l = pass->first; l < pass->last; l++) {
        const Layer *layer = pass->layers + l;
        PRODUCT(x, tokens, &layer->qkv, 0, qkv);
        MEET;
        if (pass->changes) {
            for (int n = 0; n < 3; n++) failed |= change(run, l, n, &layer->qkv, n * width, x, qkv, width, start, MINE, AFTER);
            MEET;
        }
        for (int item = rank; item < (to - from) * pass->heads; item += team) {
            int segment = from + item / pass->heads, first = pass->offsets[segment];
            failed |= attend(pass, run->qkv, first, pass->offsets[segment + 1] - first, item % pass->heads, run->mixed);
        }
        MEET;
        PRODUCT(mixed, tokens, &layer->dense, 0, sub);
        MEET;
        if (pass->changes) failed |= change(run, l, 3, &layer->dense, 0, mixed, sub, width, start, MINE, AFTER);
        failed |= behind(run, l, 0, MINE, AFTER);
        MEET;
        for (int first = 0; first < tokens; first += CHUNK) {
            int count = tokens - first < CHUNK ? tokens - first : CHUNK, begin = start + first;
            const float *rows = x + (int64_t)first * width;
            float *out = sub + (int64_t)first * width;
            PRODUCT(rows, count, &layer->up, pass->changes ? 0 : pass->activation, inner);
            MEET;
            if (pass->changes) {
                int one = begin + count * rank / team, end = begin + count * (rank + 1) / team;
                failed |= change(run, l, 4, &layer->up, 0, rows, inner, pass->inner, begin, one, end);
                for (int64_t i = (int64_t)(one - begin) * pass->inner; i < (int64_t)(end - begin) * pass->inner; i += LANES)
                    store(inner + i, activate(load(inner + i), pass->activation));
                MEET;
            }
            PRODUCT(inner, count, &layer->down, 0, out);
            MEET;
            if (pass->changes) {
                int one = begin + count * rank / team, end = begin + count * (rank + 1) / team;
                failed |= change(run, l, 5, &layer->down, 0, inner, out, width, begin, one, end);
                MEET;
            }
        }
        failed |= behind(run, l, 1, MINE, AFTER);
        MEET;
    }
}

static void take_parts(Run *run, int thread) {
    for (int part; (part = atomic_fetch_add(&run->next_part, 1)) < run->parts;)
        run_layers(run, 0, 1, thread, run->bounds[part], run->bounds[part + 1]);
}

static void take_part(Run *run, int thread) {
    if (run->team == 1) {
        take_parts(run, thread);
        return;
    }
    atomic_fetch_add(&run->joined, 1);
    for (int i = 0; !atomic_load(&run->start); i++) pause_(i);
    if (atomic_load(&run->start) == 1) run_layers(run, thread, run->team, 0, 0, run->pass->segments);
}

/* Workers sleep between passes. A worker that wakes after a pass has ended goes back to sleep. A process that is forked
 * starts its own. */

static pthread_mutex_t one_pass = PTHREAD_MUTEX_INITIALIZER, lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_cond_t work_given = PTHREAD_COND_INITIALIZER, work_done = PTHREAD_COND_INITIALIZER;
static int started, turn, wanted, running;
static int lonely, patience; /* passes that form no team, after teams that waited too long */
static Run *given;

static void *worker(void *number) {
    int mine = (int)(intptr_t)number, seen = 0;
    pthread_mutex_lock(&lock);
    for (;;) {
        while (turn == seen || !given || mine >= wanted) {
            seen = turn;
            pthread_cond_wait(&work_given, &lock);
        }
        seen = turn;
        Run *run = given;
        running++;
        pthread_mutex_unlock(&lock);
        take_part(run, mine);
        pthread_mutex_lock(&lock);
        if (--running == 0) pthread_cond_signal(&work_done);
    }
    return 0;
}

static void forget_workers(void) {
    pthread_mutex_init(&one_pass, 0), pthread_mutex_init(&lock, 0);
    pthread_cond_init(&work_given, 0), pthread_cond_init(&work_done, 0);
    started = turn = wanted = running = 0;
    given = 0;
}

static int start_workers(int threads) { /* returns 0 if they cannot be had */
    static int registered;
    if (!registered) pthread_atfork(0, 0, forget_workers), registered = 1;
    for (started = started ? started : 1; started < threads; started++) {
        pthread_t thread;
        pthread_attr_t detached;
        pthread_attr_init(&detached);
        pthread_attr_setdetachstate(&detached, PTHREAD_CREATE_DETACHED);
        int error = pthread_create(&thread, &detached, worker, (void *)(intptr_t)started);
        pthread_attr_destroy(&detached);
        if (error) return 0;
    }
    return 1;
}

/* Cut the segments into parts of similar numbers of tokens; return the largest part's tokens. */
static int cut(const Pass *pass, int parts, int *bounds) {
    int tokens = pass->offsets[pass->segments], segment = 0, largest = 0;
    bounds[0] = 0;
    for (int t = 1; t <= parts; t++) {
        int64_t goal = (int64_t)tokens * t / parts;
        while (segment < pass->segments && 2 * goal >= pass->offsets[segment] + pass->offsets[segment + 1]) segment++;
        bounds[t] = t == parts ? pass->segments : segment;
        int size = pass->offsets[bounds[t]] - pass->offsets[bounds[t - 1]];
        largest = size > largest ? size : largest;
    }
    return largest;
}

/* Have the workers take part in a pass, whose parts or team are set. */
static void run_together(Run *run, int threads) {
    pthread_mutex_lock(&lock);
    given = run, wanted = threads, turn++;
    pthread_cond_broadcast(&work_given);
    pthread_mutex_unlock(&lock);
    if (run->team > 1) {
        int64_t end = now() + JOIN_TIME;
        for (int i = 0; atomic_load(&run->joined) < threads - 1 && now() < end; i++) pause_(i);
        int complete = atomic_load(&run->joined) == threads - 1;
        atomic_store(&run->start, complete ? 1 : 2);
        if (complete) run_layers(run, 0, run->team, 0, 0, run->pass->segments);
        else run_layers(run, 0, 1, 0, 0, run->pass->segments);
        if (complete && !atomic_load(&run->last_meeting)) patience = 0;
        else lonely = patience = patience < 128 ? 2 * patience + 1 : 255;
    } else
        take_parts(run, 0);
    pthread_mutex_lock(&lock);
    given = 0;
    while (running) pthread_cond_wait(&work_done, &lock);
    pthread_mutex_unlock(&lock);
}

int64_t intarsia_work_bytes(const Pass *pass) {
    int64_t tokens = pass->offsets[pass->segments], threads = pass->threads;
    int64_t widest = pass->inner > pass->width ? pass->inner : pass->width;
    return 4 * (tokens * 5 * pass->width + threads * CHUNK * (pass->inner + 1)) + threads * CHUNK * widest + 256;
}

int intarsia_int8(void) {
#if defined(__AVX512VNNI__)
    return 1;
#else
    return 0;
#endif
}

/* Returns 0, or -1 if there was no memory. `work` has at least intarsia_work_bytes. */
int intarsia_run(const Pass *pass) {
    int threads = pass->threads < 1 ? 1 : pass->threads > THREADS ? THREADS : pass->threads;
    int64_t tokens = pass->offsets[pass->segments], width = pass->width;
    Run run = {.pass = pass, .team = 1, .parts = 1};
    run.qkv = pass->work, run.mixed = run.qkv + tokens * 3 * width, run.sub = run.mixed + tokens * width;
    run.inner = run.sub + tokens * width, run.scales = run.inner + (int64_t)threads * CHUNK * pass->inner;
    run.bytes = (uint8_t *)(run.scales + threads * CHUNK);
    run.bounds[1] = pass->segments;
    if (threads > 1 && !pthread_mutex_trylock(&one_pass)) { /* else another pass uses the workers */
        int together = start_workers(threads);
        if (together) {
            int parts = tokens >= 2 * threads * CHUNK ? 2 * threads : threads; /* a thread that is held up takes fewer */
            int largest = cut(pass, parts, run.bounds), unequal = 20LL * largest * parts > 23 * tokens;
            run.parts = parts;
            if (unequal && lonely) lonely--, together = pass->segments > 1;
            else if (unequal) run.team = threads;
        }
        if (together) run_together(&run, threads);
        pthread_mutex_unlock(&one_pass);
        if (together) return atomic_load(&run.failed) ? -1 : 0;
    }
    run_layers(&run, 0, 1, 0, 0, pass->segments);
    return atomic_load(&run.failed) ? -1 : 0;
}

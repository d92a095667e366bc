/* Products with weights of the base, in float32 or int8, and with tensors of a slot. */

#pragma once
#if defined(__AVX512VNNI__)
#include <immintrin.h>
#endif
#include "given.h"
#include "vectors.h"

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
                for (int n = 0; n < 4; n++)
                    left[n] = part(row[n] + even, rest), right[n] = part(column[n] + even, rest);
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

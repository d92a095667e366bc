/* Products with weights of the base, in float32 or int8, and with tensors of a slot. */

#pragma once
#include "given.h"
#include "vectors.h"

#define STEP (4 * PANEL) /* bytes of a panel that a product reads at a time: of one input, or of four in int8 */
#define SOON 4096        /* bytes between the weights in use and those that are fetched, in a product with one block */

INLINE void fetch(const char *ahead) {
    for (int line = 0; line < STEP; line += 64) __builtin_prefetch(ahead + line);
}

/* Both fetch weights for later into the cache: from `ahead`, `share` bytes a step. */
INLINE void panel(const int rows, const float *x, int inputs, const float *w, const float *bias, const char *ahead,
                  int share, float *y, int64_t ld) {
    vf low[ROWS], high[ROWS];
    EACH_ROW low[r] = load(bias), high[r] = load(bias + LANES);
    for (int k = 0; k < inputs; k++, ahead += share) {
        fetch(ahead);
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

#if defined(DOT)
INLINE void panel_int8(const int rows, const uint8_t *x, const float *scale, int inputs, const int8_t *w,
                       const float *scales, const int32_t *sums, const float *bias, const char *ahead, int share,
                       float *y, int64_t ld) {
    vi low[ROWS], high[ROWS];
    EACH_ROW low[r] = high[r] = (vi){0};
    for (int k = 0; k < inputs; k += 4, ahead += share) {
        fetch(ahead);
        vi a = load_integers(w + PANEL * k), b = load_integers(w + PANEL * k + 4 * LANES);
        EACH_ROW {
            int32_t four;
            memcpy(&four, x + (int64_t)r * inputs + k, 4);
            vi value = four - (vi){0};
            DOT(low[r], value, a);
            DOT(high[r], value, b);
        }
    }
    vi sum_low = load_integers(sums), sum_high = load_integers(sums + LANES);
    EACH_ROW {
        vf left = __builtin_convertvector(low[r] - sum_low, vf) * (load(scales) * scale[r]) + load(bias);
        vf right = __builtin_convertvector(high[r] - sum_high, vf) * (load(scales + LANES) * scale[r]);
        store(y + r * ld, left), store(y + r * ld + LANES, right + load(bias + LANES));
    }
}
#endif

#if ROWS == 12
#define COUNTS_TO_ROWS(CALL) \
    case 6: CALL(6); break; case 7: CALL(7); break; case 8: CALL(8); break; \
    case 9: CALL(9); break; case 10: CALL(10); break; case 11: CALL(11); break; default: CALL(12);
#else
#define COUNTS_TO_ROWS(CALL) default: CALL(6);
#endif
#define EACH_COUNT(CALL) \
    switch (rows) { \
        case 1: CALL(1); break; case 2: CALL(2); break; case 3: CALL(3); break; case 4: CALL(4); break; \
        case 5: CALL(5); break; COUNTS_TO_ROWS(CALL) }

/* The tokens of a product, quantized in int8. */
typedef struct { const float *states; const uint8_t *bytes; const float *scales; } Input;

/* y [tokens, outputs] for the panels from `first` to `last`. Each block of tokens fetches a part of the next panel. */
static void product(Input x, int tokens, const Linear *of, int activation, float *y, int first, int last) {
    int blocks = (tokens + ROWS - 1) / ROWS, inputs = of->inputs, share = STEP / blocks;
    int64_t ld = of->outputs, steps = x.bytes ? inputs / 4 : inputs;
    for (int p = first; p < last; p++) {
        const float *bias = of->bias + PANEL * p;
        const char *w = (const char *)of->weight + STEP * steps * p;
        for (int b = 0; b < blocks; b++) {
            int from = (int64_t)tokens * b / blocks, rows = (int64_t)tokens * (b + 1) / blocks - from;
            const char *ahead = w + (blocks > 1 ? STEP * steps + share * steps * b : SOON);
            float *out = y + from * ld + PANEL * p;
            if (!x.bytes) {
#define FLOATS(N) panel(N, x.states + (int64_t)from * inputs, inputs, (const float *)w, bias, ahead, share, out, ld)
                EACH_COUNT(FLOATS)
            }
#if defined(DOT)
            else {
#define BYTES(N) panel_int8(N, x.bytes + (int64_t)from * inputs, x.scales + from, inputs, (const int8_t *)w, \
                            of->scales + PANEL * p, of->sums + PANEL * p, bias, ahead, share, out, ld)
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
    enum { HEIGHT = LANES / 4, WIDTH = 4 }; /* tokens and outputs of a block: a vector's sums */
    int rest = inputs % LANES, even = inputs - rest;
    for (int i = 0; i < tokens; i += HEIGHT)
        for (int j = 0; j < outputs; j += WIDTH) {
            const float *row[HEIGHT], *column[WIDTH]; /* the last block repeats the last token and output */
            for (int n = 0; n < HEIGHT; n++) row[n] = x + (int64_t)(i + n < tokens ? i + n : tokens - 1) * inputs;
            for (int n = 0; n < WIDTH; n++) column[n] = w + (int64_t)(j + n < outputs ? j + n : outputs - 1) * inputs;
            vf sums[LANES];
            for (int n = 0; n < LANES; n++) sums[n] = all(0.0f);
            for (int k = 0; k < even; k += LANES) {
                vf left[HEIGHT], right[WIDTH];
                for (int n = 0; n < HEIGHT; n++) left[n] = load(row[n] + k);
                for (int n = 0; n < WIDTH; n++) right[n] = load(column[n] + k);
                for (int n = 0; n < LANES; n++) sums[n] += left[n / WIDTH] * right[n % WIDTH];
            }
            if (rest) {
                vf left[HEIGHT], right[WIDTH];
                for (int n = 0; n < HEIGHT; n++) left[n] = part(row[n] + even, rest);
                for (int n = 0; n < WIDTH; n++) right[n] = part(column[n] + even, rest);
                for (int n = 0; n < LANES; n++) sums[n] += left[n / WIDTH] * right[n % WIDTH];
            }
            float bias[LANES] = {0}, out[LANES];
            for (int n = 0; b && n < LANES; n++) bias[n] = j + n % WIDTH < outputs ? b[j + n % WIDTH] : 0.0f;
            store(out, activate(sums_of(sums) + load(bias), activation));
            for (int m = 0; m < HEIGHT && i + m < tokens; m++) {
                float *to = y + (i + m) * ld + j;
                for (int n = 0; n < WIDTH && j + n < outputs; n++)
                    to[n] = scale != 0.0f ? to[n] + scale * out[WIDTH * m + n] : out[WIDTH * m + n];
            }
        }
}

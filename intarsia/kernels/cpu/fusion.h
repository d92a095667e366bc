/* Attention of a token over what several adapters add to it (AdapterFusion). */

#pragma once
#include "given.h"
#include "products.h"

/* y [rows, inputs] = x W for a weight [outputs, inputs] and x [rows, outputs]; `inputs` are whole panels. */
INLINE void transposed(const int rows, const float *x, int outputs, const float *w, int inputs, float *y) {
    for (int k = 0; k < inputs; k += PANEL) {
        vf low[4], high[4];
        EACH_ROW low[r] = high[r] = all(0.0f);
        for (int o = 0; o < outputs; o++) {
            vf a = load(w + (int64_t)o * inputs + k), b = load(w + (int64_t)o * inputs + k + LANES);
            EACH_ROW low[r] += x[(int64_t)r * outputs + o] * a, high[r] += x[(int64_t)r * outputs + o] * b;
        }
        EACH_ROW store(y + (int64_t)r * inputs + k, low[r]), store(y + (int64_t)r * inputs + k + LANES, high[r]);
    }
}

/* Replace the scores of `count` parts by their softmax; `scores` has room for whole vectors. */
static void shares_of(float *scores, int count) {
    float most = scores[0], total = 0.0f;
    for (int p = 1; p < count; p++) most = scores[p] > most ? scores[p] : most;
    for (int p = 0; p < count; p += LANES) store(scores + p, exponential(load(scores + p) - most));
    for (int p = 0; p < count; p++) total += scores[p];
    for (int p = 0; p < count; p++) scores[p] /= total;
}

/* h = h + W_v of the changes [count, CHUNK, width], weighted by their attention, for some tokens. q (W_k c) is computed
 * as (q W_k) c; the key's bias adds the same to all scores. `memory`: 2 * CHUNK * width floats. */
static void fuse(const Fusion *fusion, int64_t at, const float *read, const float *changes, int count, int tokens,
                 int width, float *h, float *memory) {
    float *query = memory, *keyed = memory + (size_t)CHUNK * width, scores[MOST_FUSED + LANES] = {0};
    slot_product(read, tokens, width, fusion->query + at, fusion->query_bias + at, width, 0, 0.0f, query, width);
    int whole = tokens - tokens % 4;
    for (int64_t t = 0; t < whole; t += 4)
        transposed(4, query + t * width, width, fusion->key + at, width, keyed + t * width);
    for (int64_t t = whole; t < tokens; t++)
        transposed(1, query + t * width, width, fusion->key + at, width, keyed + t * width);
    for (int64_t t = 0; t < tokens; t++) {
        float *mixed = keyed + t * width;
        for (int p = 0; p < count; p++) {
            const float *change = changes + ((int64_t)p * CHUNK + t) * width;
            vf total = all(0.0f);
            for (int k = 0; k < width; k += LANES) total += load(mixed + k) * load(change + k);
            scores[p] = sum_lanes(total);
        }
        shares_of(scores, count);
        for (int k = 0; k < width; k += LANES) {
            vf total = all(0.0f);
            for (int p = 0; p < count; p++) total += scores[p] * load(changes + ((int64_t)p * CHUNK + t) * width + k);
            store(mixed + k, total);
        }
    }
    if (fusion->value)
        slot_product(keyed, tokens, width, fusion->value + at, 0, width, 0, 1.0f, h, width);
    else
        for (int64_t k = 0; k < (int64_t)tokens * width; k += LANES) store(h + k, load(h + k) + load(keyed + k));
}

/* Attention within a segment, and LayerNorm. */

#pragma once
#include "given.h"
#include "vectors.h"

/* y = LayerNorm(h + x) for one token. */
static void add_and_normalise(const float *h, const float *x, int width, const float *gain, const float *bias,
                              float eps, float *y) {
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

/* Attention of one head within one segment. q, k and v lie in rows of 3 * width. */
INLINE void scores_of(const int rows, const float *q, int64_t ld, const float *keys, int depth, int padded,
                      float *out) {
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

/* The factor of the probabilities in the place of `length` scores; the first `biased` have a bias, if any has. */
static float softmax(float *row, int biased, int length, int padded, float scale, const float *bias) {
    vf most = all(-3.0e38f), total = all(0.0f);
    float values[LANES], largest = -3.0e38f;
    if (bias) {
        for (int j = 0; j < biased; j++) row[j] = row[j] * scale + bias[j];
        for (int j = biased; j < length; j++) row[j] *= scale;
    } else for (int j = 0; j < padded; j += LANES) store(row + j, load(row + j) * scale);
    for (int j = length; j < padded; j++) row[j] = -3.0e38f;
    for (int j = 0; j < padded; j += LANES) most = select_(load(row + j) > most, load(row + j), most);
    store(values, most);
    for (int i = 0; i < LANES; i++) largest = values[i] > largest ? values[i] : largest;
    for (int j = 0; j < padded; j += LANES) store(row + j, exponential(load(row + j) - largest));
    for (int j = length; j < padded; j++) row[j] = 0.0f;
    for (int j = 0; j < padded; j += LANES) total += load(row + j);
    return 1.0f / sum_lanes(total);
}

/* Sums of the values v of `length` tokens, which are `ld` apart, and of the values `more` [size, depth] of prefixes. */
INLINE void mix(const int rows, const float *weights, int padded, const float *v, int64_t ld, int length, int depth,
                const float *more, int size, const float *factors, float *out, int64_t ld_out) {
    for (int c = 0; c < depth; c += LANES) {
        vf sums[4];
        EACH_ROW sums[r] = all(0.0f);
        for (int j = 0; j < length; j++) {
            vf value = load(v + j * ld + c);
            EACH_ROW sums[r] += weights[r * padded + j] * value;
        }
        for (int j = 0; j < size; j++) {
            vf value = load(more + j * depth + c);
            EACH_ROW sums[r] += weights[r * padded + length + j] * value;
        }
        EACH_ROW store(out + r * ld_out + c, sums[r] * factors[r]);
    }
}

/* The owner of a token, if its methods have prefixes in a layer; `size`: of all of them. */
static Owner prefixed(const Pass *pass, int layer, int token, int *size) {
    int low = 0, high = pass->owner_count - 1;
    while (low < high) {
        int middle = (low + high + 1) / 2;
        if (pass->owners[middle].first <= token) low = middle;
        else high = middle - 1;
    }
    Owner owner = pass->owners[low];
    *size = 0;
    for (int u = owner.first_use; u < owner.last_use; u++)
        *size += pass->prefixes[(int64_t)pass->uses[u].table * pass->layer_count + layer].size;
    return owner;
}

static int attend(const Pass *pass, int layer, const float *qkv, int start, int length, int head, float *out) {
    int width = pass->width, depth = width / pass->heads, size = 0;
    Owner owner = {0};
    if (pass->prefixes) owner = prefixed(pass, layer, start, &size);
    int all_keys = length + size, padded = (all_keys + PANEL - 1) / PANEL * PANEL;
    int64_t ld = 3 * width;
    float *keys = reserve((size_t)(depth + 4) * padded + (size_t)size * depth), factors[4];
    float *scores = keys + (size_t)depth * padded, *more = scores + (size_t)4 * padded;
    if (!keys) return -1;
    const float *q = qkv + start * ld + head * depth, *k = q + width, *v = k + width;
    for (int c = 0; c < depth; c++) memset(keys + (size_t)c * padded + all_keys, 0, 4 * (padded - all_keys));
    for (int j = 0; j < length; j++)
        for (int c = 0; c < depth; c++) keys[(size_t)c * padded + j] = k[j * ld + c];
    for (int u = owner.first_use, done = 0; done < size; u++) {
        const Prefix *prefix = pass->prefixes + (int64_t)pass->uses[u].table * pass->layer_count + layer;
        int64_t at = prefix->stride * pass->uses[u].slot + head * depth;
        for (int j = 0; j < prefix->size; j++, done++) {
            for (int c = 0; c < depth; c++)
                keys[(size_t)c * padded + length + done] = prefix->keys[at + (int64_t)j * width + c];
            memcpy(more + (size_t)done * depth, prefix->values + at + (int64_t)j * width, (size_t)depth * 4);
        }
    }
    out += (int64_t)start * width + head * depth;
    for (int i = 0; i < length; i += 4) {
        int rows = length - i < 4 ? length - i : 4;
        if (rows == 4) scores_of(4, q + i * ld, ld, keys, depth, padded, scores);
        else for (int r = 0; r < rows; r++)
            scores_of(1, q + (i + r) * ld, ld, keys, depth, padded, scores + r * padded);
        for (int r = 0; r < rows; r++) {
            const float *bias = 0; /* of the keys: it begins with the distance from this query to the first key */
            if (pass->relative) bias = pass->relative + (int64_t)head * pass->distances + pass->middle - (i + r);
            factors[r] = softmax(scores + r * padded, length, all_keys, padded, pass->scale, bias);
        }
        float *to = out + (int64_t)i * width;
        if (rows == 4) mix(4, scores, padded, v, ld, length, depth, more, size, factors, to, width);
        else for (int r = 0; r < rows; r++)
            mix(1, scores + r * padded, padded, v, ld, length, depth, more, size, factors + r, to + (int64_t)r * width,
                width);
    }
    return 0;
}

/* The gains of DoRA, which a slot keeps: they need the whole weight. */

#pragma once
#include "vectors.h"

#define LEAST_NORM 1e-12f /* avoids a division by 0 for rows of zeros */

/* gain [outputs] = (|W| + magnitude) / |W + scale B A| - 1 with the norms of rows, for a weight W [outputs, inputs] of
 * the base, a [rank, inputs] and b [outputs, rank]. */
void intarsia_magnitudes(const float *weight, const float *a, const float *b, const float *magnitude, int inputs,
                         int outputs, int rank, float scale, float *gain) {
    for (int o = 0; o < outputs; o++) {
        const float *row = weight + (int64_t)o * inputs, *factors = b + (int64_t)o * rank;
        vf plain = all(0.0f), changed = all(0.0f);
        for (int k = 0; k < inputs; k += LANES) {
            vf value = load(row + k), difference = all(0.0f);
            for (int r = 0; r < rank; r++) difference += factors[r] * load(a + (int64_t)r * inputs + k);
            plain += value * value;
            value += scale * difference;
            changed += value * value;
        }
        float before = __builtin_sqrtf(sum_lanes(plain)), norm = __builtin_sqrtf(sum_lanes(changed));
        if (norm < LEAST_NORM) norm = LEAST_NORM;
        gain[o] = (before - norm + magnitude[o]) / norm;
    }
}

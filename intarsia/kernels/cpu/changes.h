/* What methods do to the inputs and outputs of linear layers. */

#pragma once
#include "products.h"

/* Multiply `rows` rows, which are `ld` apart, by a gain [width]; a width of whole vectors. */
static void multiply(float *x, int64_t ld, int rows, const float *gain, int width) {
    for (int r = 0; r < rows; r++)
        for (int k = 0; k < width; k += LANES) store(x + r * ld + k, load(x + r * ld + k) * load(gain + k));
}

/* DoRA: scale the outputs y of `rows` tokens, which are `ld` apart, without their bias. */
static void add_magnitudes(float *y, int64_t ld, int rows, const float *gain, const float *bias, int width) {
    for (int r = 0; r < rows; r++)
        for (int k = 0; k < width; k += LANES) {
            vf old = load(y + r * ld + k);
            store(y + r * ld + k, old + load(gain + k) * (old - load(bias + k)));
        }
}

/* Changes of the outputs y [.., outputs] of a linear layer, whose rows are `ld` apart, for the tokens from `first` to
 * `last`; x and y begin with the token `start`. */
static int change(const Pass *pass, int layer, int which, const Linear *of, int column, const float *x, float *y,
                  int outputs, int start, int first, int last) {
    int inputs = of->inputs;
    int64_t ld = of->outputs;
    for (int o = 0; o < pass->owner_count; o++) {
        Owner owner = pass->owners[o];
        int from = owner.first > first ? owner.first : first, to = owner.last < last ? owner.last : last;
        for (int u = owner.first_use; u < owner.last_use && from < to; u++) {
            Use use = pass->uses[u];
            const Change *found = pass->changes + ((int64_t)use.table * pass->layer_count + layer) * 6 + which;
            int64_t at = found->stride * use.slot;
            float *low = found->a ? reserve((size_t)CHUNK * found->rank) : 0;
            if (found->a && !low) return -1;
            for (int t = from; low && t < to; t += CHUNK) {
                int count = to - t < CHUNK ? to - t : CHUNK;
                slot_product(x + (int64_t)(t - start) * inputs, count, inputs, found->a + at, 0, found->rank, 0, 0.0f,
                             low, found->rank);
                slot_product(low, count, found->rank, found->b + at, 0, outputs, 0, found->scale,
                             y + (t - start) * ld + column, ld);
            }
            float *mine = y + (from - start) * ld + column;
            const float *gain = found->gain + found->gain_stride * use.slot;
            if (found->gain && found->magnitudes)
                add_magnitudes(mine, ld, to - from, gain, of->bias + column, outputs);
            else if (found->gain)
                multiply(mine, ld, to - from, gain, outputs);
            if (found->bias)
                for (int t = from; t < to; t++)
                    for (int k = 0; k < outputs; k++)
                        y[(t - start) * ld + column + k] +=
                            found->weight * (found->bias[at + k] - of->bias[column + k]);
        }
    }
    return 0;
}

/* Scale the columns from `column` to `last_column` of the inputs x of a linear layer, whose rows are `ld` apart, for
 * the tokens from `first` to `last`; x begins with the token `start`. */
static void scale_inputs(const Pass *pass, int layer, int which, float *x, int64_t ld, int column, int last_column,
                         int start, int first, int last) {
    for (int o = 0; o < pass->owner_count; o++) {
        Owner owner = pass->owners[o];
        int from = owner.first > first ? owner.first : first, to = owner.last < last ? owner.last : last;
        for (int u = owner.first_use; u < owner.last_use && from < to; u++) {
            Use use = pass->uses[u];
            const Change *found = pass->changes + ((int64_t)use.table * pass->layer_count + layer) * 6 + which;
            const float *gain = found->input_gain;
            if (!gain) continue;
            gain += found->stride * use.slot + column;
            multiply(x + (from - start) * ld + column, ld, to - from, gain, last_column - column);
        }
    }
}

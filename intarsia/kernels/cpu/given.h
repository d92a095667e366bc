/* What Python gives: intarsia/encoder/compiled_structures.py has the same structures. */

#pragma once
#include <stdint.h>

enum { GELU_EXACT = 1, GELU = 2, RELU = 3, SILU = 4, TANH = 5 };
enum { MOST_FUSED = 64 }; /* parts of a fusion */
enum { FIRST = 1, FURTHER = 2 };
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
    int32_t mean, norm_mean;                      /* FIRST or FURTHER part of a mean with an adapter, with a norm */
    int32_t fused;                                /* a fusion attends to what it adds, instead */
    float weight, rest;                           /* of this part; of the base's norm, in a mean's first norm */
} Site;

typedef struct { /* attention over what the adapters before it add behind a sub-layer; the tensors of slot 0 */
    const float *query, *query_bias, *key; /* query NULL: none */
    const float *value;                    /* NULL: none */
    int64_t stride;
    int32_t reads;
} Fusion;

typedef struct { /* what a method does to the input and the output of a linear layer; the tensors of slot 0 */
    const float *a, *b;       /* a difference of low rank; NULL: none */
    const float *bias;        /* in the place of the base's; NULL: the base's */
    const float *gain;        /* of the output, or of the output without the base's bias; NULL: none */
    const float *input_gain;  /* of the input; NULL: none */
    int64_t stride, gain_stride;
    int32_t rank, magnitudes; /* magnitudes: the gain is that of DoRA, without the 1 */
    float scale, weight;      /* of the difference; of the bias */
} Change;

typedef struct { /* keys and values [size, width] beside those of a segment; the tensors of slot 0 */
    const float *keys, *values;
    int64_t stride;
    int32_t size; /* 0: none */
} Prefix;

typedef struct { int32_t table, slot; } Use; /* of a table of slots, by an owner; a stack of methods has several */

typedef struct { int32_t first, last, first_use, last_use; } Owner; /* of tokens; without uses: the plain base */

typedef struct {
    const Layer *layers;
    const Site *sites;         /* [table, layer, 2] */
    const Fusion *fusions;     /* [table, layer, 2]; NULL: none in this pass */
    const Change *changes;     /* [table, layer, 6]: query, key, value, dense, up, down; NULL: none in this pass */
    const Prefix *prefixes;    /* [table, layer]; NULL: none in this pass */
    const Use *uses;
    const Owner *owners;       /* they cover all tokens, in order */
    const int32_t *offsets;    /* [segments + 1] */
    const float *relative;     /* [heads, distances] a bias of the scores by key - query; NULL: none */
    float *states;             /* [tokens, width], replaced by the result */
    float *work;
    int32_t layer_count, first, last; /* layers to run: first (inclusive) to last (exclusive) */
    int32_t width, inner, heads, owner_count, segments, middle, distances;
    int32_t activation, int8, threads;
    int32_t scales_up;        /* some method scales the input of `up` */
    float scale, eps;
} Pass;

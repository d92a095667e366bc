/* The layers of a pass, for one thread: it computes segments alone, or every step together with a team. */

#pragma once
#include <sched.h>
#include <stdatomic.h>
#include <time.h>

#include "attention.h"
#include "changes.h"
#include "fusion.h"
#include "products.h"

/* Either threads take parts of whole segments, and wait for nobody; or a team shares every step of a pass with too few
 * segments, and its members meet after each. If other programs need the cores, meetings take long: then the first
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

/* What a method reads behind a sub-layer with the output h and the input x; `sums` has room for it. */
static const float *reading(const Pass *pass, int layer, int which, int reads, const float *x, const float *h,
                            int tokens, float *sums) {
    int width = pass->width;
    if (reads != NORMALISED) return reads == INPUT ? x : h;
    for (int64_t n = 0; n < tokens; n++)
        add_and_normalise(h + n * width, x + n * width, width, pass->layers[layer].gain[which],
                          pass->layers[layer].bias[which], pass->eps, sums + n * width);
    return sums;
}

/* h = h + adapter(h) for some tokens with the states x, at most CHUNK. The parts of a mean read what its first part
 * found in h, which `origin` keeps. `change` not NULL: adapter(h) goes there, and h stays. */
static void adapt(const Pass *pass, int layer, int which, const Site *site, int64_t at, const float *x, float *h,
                  float *origin, int tokens, float *memory, float *change) {
    int width = pass->width;
    float *hidden = memory, *sums = hidden + (size_t)CHUNK * site->size;
    if (site->mean == FIRST) memcpy(origin, h, (size_t)tokens * width * 4);
    const float *read = reading(pass, layer, which, site->reads, x, site->mean ? origin : h, tokens, sums);
    slot_product(read, tokens, width, site->down + at, site->down_bias + at, site->size, site->activation, 0.0f, hidden,
                 site->size);
    if (site->restarts) memcpy(h, origin, (size_t)tokens * width * 4);
    slot_product(hidden, tokens, site->size, site->up + at, site->up_bias + at, width, 0,
                 change ? 0.0f : site->weight, change ? change : h, width);
}

/* Add a task's norm to the mean of several, whose gain and bias lie in `mean`. */
static void add_norm(const Site *site, int64_t at, const float *gain, const float *bias, int width, float *mean) {
    float *mean_gain = mean, *mean_bias = mean + width;
    for (int k = 0; k < width; k++) {
        float before[2] = {mean_gain[k], mean_bias[k]};
        if (site->norm_mean == FIRST) before[0] = site->rest * gain[k], before[1] = site->rest * bias[k];
        mean_gain[k] = before[0] + site->weight * (site->gain ? site->gain[at + k] : gain[k]);
        mean_bias[k] = before[1] + site->weight * site->bias[at + k];
    }
}

/* Adapters and norm behind a sub-layer, for the tokens from `first` to `last`. */
static int behind(Run *run, int layer, int which, int first, int last) {
    const Pass *pass = run->pass;
    int width = pass->width;
    for (int o = 0; o < pass->owner_count; o++) {
        Owner owner = pass->owners[o];
        int from = owner.first > first ? owner.first : first, to = owner.last < last ? owner.last : last;
        if (from >= to) continue;
        const float *base_gain = pass->layers[layer].gain[which], *base_bias = pass->layers[layer].bias[which];
        const float *gain = base_gain, *bias = base_bias;
        int largest = 0, restarts = 0, means = 0, fused = 0;
        for (int u = owner.first_use; u < owner.last_use; u++) {
            const Site *site = pass->sites + ((int64_t)pass->uses[u].table * pass->layer_count + layer) * 2 + which;
            if (site->down && site->size > largest) largest = site->size;
            restarts |= site->restarts, means |= site->norm_mean, fused += site->fused;
        }
        int64_t room = largest ? (int64_t)CHUNK * (largest + 2 * width) : 0, changes_at = room;
        if (fused) room += (int64_t)CHUNK * width * (fused + 2);
        float *memory = room || means ? reserve(room + 2 * width) : 0, *mean = memory + room;
        if (!memory && (room || means)) return -1;
        for (int u = owner.first_use; u < owner.last_use; u++) { /* the topmost norm counts */
            const Site *site = pass->sites + ((int64_t)pass->uses[u].table * pass->layer_count + layer) * 2 + which;
            int64_t at = site->stride * pass->uses[u].slot;
            if (site->norm_mean) {
                add_norm(site, at, base_gain, base_bias, width, mean);
                gain = mean, bias = mean + width;
            } else if (site->bias) {
                gain = site->gain ? site->gain + at : base_gain;
                bias = site->bias + at;
            }
        }
        for (int t = from; largest && t < to; t += CHUNK) {
            int count = to - t < CHUNK ? to - t : CHUNK, collected = 0;
            float *h = run->sub + (int64_t)t * width, *origin = memory + (size_t)CHUNK * (largest + width);
            if (restarts) memcpy(origin, h, (size_t)count * width * 4);
            for (int u = owner.first_use; u < owner.last_use; u++) {
                Use use = pass->uses[u];
                int64_t place = ((int64_t)use.table * pass->layer_count + layer) * 2 + which;
                const Site *site = pass->sites + place;
                const float *x = pass->states + (int64_t)t * width;
                float *changes = memory + changes_at, *mine = changes + (int64_t)collected * CHUNK * width;
                if (site->down)
                    adapt(pass, layer, which, site, site->stride * use.slot, x, h, origin, count, memory,
                          site->fused ? mine : 0);
                collected += site->fused;
                const Fusion *fusion = pass->fusions ? pass->fusions + place : 0;
                if (!fusion || !fusion->query) continue;
                float *sums = memory + (size_t)CHUNK * largest;
                const float *read = reading(pass, layer, which, fusion->reads, x, h, count, sums);
                fuse(fusion, fusion->stride * use.slot, read, changes, collected, count, width, h, mine);
                collected = 0;
            }
        }
        for (int t = from; t < to; t++) {
            float *x = pass->states + (int64_t)t * width;
            add_and_normalise(run->sub + (int64_t)t * width, x, width, gain, bias, pass->eps, x);
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
            for (int n = 0; n < 3; n++)
                failed |= change(pass, l, n, &layer->qkv, n * width, x, qkv, width, start, MINE, AFTER);
            MEET;
        }
        for (int item = rank; item < (to - from) * pass->heads; item += team) {
            int segment = from + item / pass->heads, head = item % pass->heads, depth = width / pass->heads;
            int first = pass->offsets[segment], last = pass->offsets[segment + 1];
            failed |= attend(pass, l, run->qkv, first, last - first, head, run->mixed);
            if (pass->changes)
                scale_inputs(pass, l, 3, run->mixed, width, head * depth, (head + 1) * depth, 0, first, last);
        }
        MEET;
        PRODUCT(mixed, tokens, &layer->dense, 0, sub);
        MEET;
        if (pass->changes) failed |= change(pass, l, 3, &layer->dense, 0, mixed, sub, width, start, MINE, AFTER);
        failed |= behind(run, l, 0, MINE, AFTER);
        MEET;
        for (int first = 0; first < tokens; first += CHUNK) {
            int count = tokens - first < CHUNK ? tokens - first : CHUNK, begin = start + first;
            const float *rows = x + (int64_t)first * width;
            float *out = sub + (int64_t)first * width;
            if (pass->scales_up) { /* a copy of the inputs, where the outputs will be: the states stay as they are */
                int one = begin + count * rank / team, end = begin + count * (rank + 1) / team;
                memcpy(out + (int64_t)(one - begin) * width, rows + (int64_t)(one - begin) * width,
                       (size_t)(end - one) * width * 4);
                scale_inputs(pass, l, 4, out, width, 0, width, begin, one, end);
                rows = out;
                MEET;
            }
            PRODUCT(rows, count, &layer->up, pass->changes ? 0 : pass->activation, inner);
            MEET;
            if (pass->changes) {
                int one = begin + count * rank / team, end = begin + count * (rank + 1) / team;
                failed |= change(pass, l, 4, &layer->up, 0, rows, inner, pass->inner, begin, one, end);
                float *at = inner + (int64_t)(one - begin) * pass->inner;
                for (float *stop = inner + (int64_t)(end - begin) * pass->inner; at < stop; at += LANES)
                    store(at, activate(load(at), pass->activation));
                scale_inputs(pass, l, 5, inner, pass->inner, 0, pass->inner, begin, one, end);
                MEET;
            }
            PRODUCT(inner, count, &layer->down, 0, out);
            MEET;
            if (pass->changes) {
                int one = begin + count * rank / team, end = begin + count * (rank + 1) / team;
                failed |= change(pass, l, 5, &layer->down, 0, inner, out, width, begin, one, end);
                MEET;
            }
        }
        failed |= behind(run, l, 1, MINE, AFTER);
        MEET;
    }
}

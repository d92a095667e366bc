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

#include "layers.h"
#include "magnitudes.h"

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

int intarsia_lanes(void) { return LANES; }

int intarsia_panel(void) { return PANEL; }

int intarsia_int8(void) {
#if defined(DOT)
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
            /* Twice the parts, if they are not too small: a thread that is held up takes fewer. */
            int parts = tokens >= 2 * threads * CHUNK ? 2 * threads : threads;
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

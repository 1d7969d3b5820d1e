/* Rank program: times MPI's all-reduce, broadcast and reduce.
 *
 *     openmpi_rank OPERATIONS WARMUP REPEATS CALLS BYTES...
 *
 * OPERATIONS is a comma-separated list of all_reduce, broadcast and reduce. Rank 0 prints a JSON line for each operation and
 * size, with the fields and the checks of rank.py.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Elements are small integers. Their float sums are exact, so results are compared for equality. */
#define PERIOD 997

static int rank, world;

enum operation { ALL_REDUCE, BROADCAST, REDUCE, OPERATIONS };
static const char *const names[] = {"all_reduce", "broadcast", "reduce"};

static void check_allocated(const void *memory) {
    if (!memory) {
        fprintf(stderr, "openmpi_rank: out of memory\n");
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
}

/* Run an operation `calls` times, on one buffer after another. Set *right, add CPU seconds to *used, and return seconds, both
 * per call. The call's number is in the data, so stale results are wrong. */
static double once(enum operation what, float *buffers, int count, int calls, int run, int *right, double *used) {
    for (int call = 0; call < calls; call++)
        for (int i = 0; i < count; i++) {
            int one = i % PERIOD + run * calls + call;
            buffers[(size_t)call * count + i] = what != BROADCAST ? one + rank : rank == 0 ? one : 0;
        }
    MPI_Barrier(MPI_COMM_WORLD);
    double begun = MPI_Wtime();
    clock_t clock_begun = clock();
    for (int call = 0; call < calls; call++) {
        float *buffer = buffers + (size_t)call * count;
        if (what == ALL_REDUCE)
            MPI_Allreduce(MPI_IN_PLACE, buffer, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        else if (what == BROADCAST)
            MPI_Bcast(buffer, count, MPI_FLOAT, 0, MPI_COMM_WORLD);
        else
            MPI_Reduce(rank == 0 ? MPI_IN_PLACE : buffer, buffer, count, MPI_FLOAT, MPI_SUM, 0, MPI_COMM_WORLD);
    }
    double taken = (MPI_Wtime() - begun) / calls;
    *used += (double)(clock() - clock_begun) / CLOCKS_PER_SEC / calls;
    if (what == REDUCE && rank != 0)
        return taken;
    for (int call = 0; call < calls; call++)
        for (int i = 0; i < count; i++) {
            float one = i % PERIOD + run * calls + call;
            *right &= buffers[(size_t)call * count + i] == (what != BROADCAST ? world * one + world * (world - 1) / 2 : one);
        }
    return taken;
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &world);
    if (argc < 6) {
        fprintf(stderr, "usage: openmpi_rank OPERATIONS WARMUP REPEATS CALLS BYTES...\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    int warmup = atoi(argv[2]), repeats = atoi(argv[3]), calls = atoi(argv[4]);
    double *samples = malloc(repeats * sizeof *samples);
    check_allocated(samples);
    for (int size = 5; size < argc; size++) {
        int nbytes = atoi(argv[size]), count = nbytes / (int)sizeof(float);
        float *buffers = malloc((size_t)nbytes * calls);
        check_allocated(buffers);
        char asked[64];
        snprintf(asked, sizeof asked, "%s", argv[1]);
        for (char *word = strtok(asked, ","); word; word = strtok(NULL, ",")) {
            enum operation what = ALL_REDUCE;
            while (what < OPERATIONS && strcmp(word, names[what]))
                what++;
            if (what == OPERATIONS) {
                fprintf(stderr, "openmpi_rank: no operation %s\n", word);
                MPI_Abort(MPI_COMM_WORLD, 2);
            }
            int right = 1, ignored = 1;
            double used = 0;
            for (int run = 0; run < warmup; run++)
                once(what, buffers, count, calls, run, &ignored, &used);
            used = 0;
            for (int run = 0; run < repeats; run++)
                samples[run] = once(what, buffers, count, calls, warmup + run, &right, &used);
            used /= repeats;
            MPI_Allreduce(MPI_IN_PLACE, &used, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
            MPI_Allreduce(MPI_IN_PLACE, samples, repeats, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
            MPI_Allreduce(MPI_IN_PLACE, &right, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
            if (rank == 0) {
                printf("{\"case\": \"%s\", \"bytes\": %d, \"samples\": [", names[what], nbytes);
                for (int run = 0; run < repeats; run++)
                    printf("%s%.9f", run ? ", " : "", samples[run]);
                printf("], \"cpu_seconds\": %.9f, \"verified\": %s}\n", used, right ? "true" : "false");
                fflush(stdout);
            }
        }
        free(buffers);
    }
    free(samples);
    MPI_Finalize();
    return 0;
}

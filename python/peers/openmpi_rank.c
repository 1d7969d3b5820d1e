/* One rank of bench_peers.py: times MPI's all-reduce and broadcast.
 *
 *     openmpi_rank WARMUP REPEATS CALLS BYTES...
 *
 * Prints what gloo_rank.py prints, and checks results as it does: rank 0 writes a JSON line for each operation and size.
 */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

/* Integers, and small: their float sums are exact, so that results can be compared for equality. */
#define PERIOD 997

static int rank, world;

static void check_allocated(const void *memory) {
    if (!memory) {
        fprintf(stderr, "openmpi_rank: out of memory\n");
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
}

/* Runs an operation `calls` times, on buffers one after another, sets *right and adds this process's CPU time to *used; returns
 * its seconds, both for one call. The call's number is in the data: what an earlier one left is wrong. */
static double once(int reduce, float *buffers, int count, int calls, int run, int *right, double *used) {
    for (int call = 0; call < calls; call++)
        for (int i = 0; i < count; i++) {
            int one = i % PERIOD + run * calls + call;
            buffers[(size_t)call * count + i] = reduce ? one + rank : rank == 0 ? one : 0;
        }
    MPI_Barrier(MPI_COMM_WORLD);
    double begun = MPI_Wtime();
    clock_t clock_begun = clock();
    for (int call = 0; call < calls; call++) {
        float *buffer = buffers + (size_t)call * count;
        if (reduce)
            MPI_Allreduce(MPI_IN_PLACE, buffer, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
        else
            MPI_Bcast(buffer, count, MPI_FLOAT, 0, MPI_COMM_WORLD);
    }
    double taken = (MPI_Wtime() - begun) / calls;
    *used += (double)(clock() - clock_begun) / CLOCKS_PER_SEC / calls;
    for (int call = 0; call < calls; call++)
        for (int i = 0; i < count; i++) {
            float one = i % PERIOD + run * calls + call;
            *right &= buffers[(size_t)call * count + i] == (reduce ? world * one + world * (world - 1) / 2 : one);
        }
    return taken;
}

int main(int argc, char **argv) {
    MPI_Init(&argc, &argv);
    MPI_Comm_rank(MPI_COMM_WORLD, &rank);
    MPI_Comm_size(MPI_COMM_WORLD, &world);
    if (argc < 5) {
        fprintf(stderr, "usage: openmpi_rank WARMUP REPEATS CALLS BYTES...\n");
        MPI_Abort(MPI_COMM_WORLD, 2);
    }
    int warmup = atoi(argv[1]), repeats = atoi(argv[2]), calls = atoi(argv[3]);
    double *samples = malloc(repeats * sizeof *samples);
    check_allocated(samples);
    for (int size = 4; size < argc; size++) {
        int nbytes = atoi(argv[size]), count = nbytes / (int)sizeof(float);
        float *buffers = malloc((size_t)nbytes * calls);
        check_allocated(buffers);
        for (int reduce = 1; reduce >= 0; reduce--) {
            int right = 1, ignored = 1;
            double used = 0;
            for (int run = 0; run < warmup; run++)
                once(reduce, buffers, count, calls, run, &ignored, &used);
            used = 0;
            for (int run = 0; run < repeats; run++)
                samples[run] = once(reduce, buffers, count, calls, warmup + run, &right, &used);
            used /= repeats;
            MPI_Allreduce(MPI_IN_PLACE, &used, 1, MPI_DOUBLE, MPI_SUM, MPI_COMM_WORLD);
            MPI_Allreduce(MPI_IN_PLACE, samples, repeats, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
            MPI_Allreduce(MPI_IN_PLACE, &right, 1, MPI_INT, MPI_MIN, MPI_COMM_WORLD);
            if (rank == 0) {
                printf("{\"case\": \"%s\", \"bytes\": %d, \"samples\": [", reduce ? "allreduce" : "broadcast", nbytes);
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

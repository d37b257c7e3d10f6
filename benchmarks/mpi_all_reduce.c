/* An all-reduce of floats, timed: one line "BYTES MICROSECONDS CORRECT" a size. Independent of torch and of our worker.
   mpicc -O2 mpi_all_reduce.c -o mpi_all_reduce && mpirun -np 2 ./mpi_all_reduce 20 65536 1048576
   A barrier, then one call in place; the time of an iteration is the largest over ranks, of a size the median. */
#include <mpi.h>
#include <stdio.h>
#include <stdlib.h>

static int ascending(const void *a, const void *b) {
  double x = *(const double *)a, y = *(const double *)b;
  return (x > y) - (x < y);
}

int main(int argc, char **argv) {
  int rank, ranks;
  MPI_Init(&argc, &argv);
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &ranks);
  int iterations = argc > 2 ? atoi(argv[1]) : 0;
  double *times = malloc(sizeof(double) * (iterations > 0 ? iterations : 1));
  for (int place = 2; place < argc; place++) {
    long bytes = atol(argv[place]);
    int count = (int)(bytes / sizeof(float));
    float *data = malloc(bytes);
    for (int i = 0; i < count; i++) data[i] = (float)(rank + 1);
    MPI_Allreduce(MPI_IN_PLACE, data, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
    int right = data[0] == ranks * (ranks + 1) / 2.0f && data[count - 1] == data[0];
    for (int i = 0; i < count; i++) data[i] = 0.0f;
    for (int i = -3; i < iterations; i++) { /* three to warm up */
      MPI_Barrier(MPI_COMM_WORLD);
      double began = MPI_Wtime();
      MPI_Allreduce(MPI_IN_PLACE, data, count, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
      double took = MPI_Wtime() - began, slowest;
      MPI_Allreduce(&took, &slowest, 1, MPI_DOUBLE, MPI_MAX, MPI_COMM_WORLD);
      if (i >= 0) times[i] = slowest;
    }
    qsort(times, iterations, sizeof(double), ascending);
    if (rank == 0) printf("%ld %.3f %d\n", bytes, 1e6 * times[iterations / 2], right);
    free(data);
  }
  MPI_Finalize();
  return 0;
}

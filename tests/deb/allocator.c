// SPDX-License-Identifier: Apache-2.0
/* Allocates, writes its count and frees, every 10 ms until it is killed: allocator FILE LIMIT_BYTES
 *
 * FILE holds "<allocations> <failures> <too much granted>\n" at any time. A signal ends the
 * program, which whoever watches FILE notices. */
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#define CHUNK_BYTES (1u << 20)
#define PAUSE_NS 10000000L
#define CUDA_ERROR_OUT_OF_MEMORY 2

static struct {
	int (*init)(unsigned int);
	int (*retain)(void **, int);
	int (*set_current)(void *);
	int (*alloc)(uint64_t *, size_t);
	int (*free)(uint64_t);
} cuda;

static void load(void *driver, const char *name, void *function)
{
	*(void **)function = dlsym(driver, name);
	if (*(void **)function == NULL) {
		fprintf(stderr, "allocator: no %s\n", name);
		exit(1);
	}
}

int main(int argc, char **argv)
{
	void *driver = dlopen("libcuda.so.1", RTLD_NOW);
	void *context;
	unsigned long allocations = 0, failures = 0, excess = 0;

	if (argc != 3 || driver == NULL)
		return 1;
	load(driver, "cuInit", &cuda.init);
	load(driver, "cuDevicePrimaryCtxRetain", &cuda.retain);
	load(driver, "cuCtxSetCurrent", &cuda.set_current);
	load(driver, "cuMemAlloc_v2", &cuda.alloc);
	load(driver, "cuMemFree_v2", &cuda.free);
	if (cuda.init(0) || cuda.retain(&context, 0) || cuda.set_current(context))
		return 1;

	size_t limit_bytes = strtoull(argv[2], NULL, 10);
	int file = open(argv[1], O_WRONLY | O_CREAT | O_TRUNC, 0644);
	for (;;) {
		uint64_t pointer;
		char line[96];

		if (cuda.alloc(&pointer, CHUNK_BYTES) == 0 && cuda.free(pointer) == 0)
			allocations++;
		else
			failures++;
		if (cuda.alloc(&pointer, limit_bytes + 1) != CUDA_ERROR_OUT_OF_MEMORY)
			excess++;
		int length = snprintf(line, sizeof(line), "%010lu %010lu %010lu\n", allocations,
				      failures, excess);
		if (pwrite(file, line, (size_t)length, 0) != length)
			return 1;
		nanosleep(&(struct timespec){.tv_nsec = PAUSE_NS}, NULL);
	}
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * The few calls of the driver that the programs of this bench make, found as a framework finds
 * them: dlopen by soname, then dlsym. A call that fails ends the program with its name and code.
 */
#ifndef BENCH_GPU_CUDA_H
#define BENCH_GPU_CUDA_H

#include <dlfcn.h>
#include <sched.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define MIB ((size_t)1 << 20)
#define PROCESSOR 1

static inline void *cuda_function(const char *name)
{
	static void *library;
	void *function;

	if (library == NULL)
		library = dlopen("libcuda.so.1", RTLD_NOW);
	if (library == NULL) {
		fprintf(stderr, "%s\n", dlerror());
		exit(2);
	}
	function = dlsym(library, name);
	if (function == NULL) {
		fprintf(stderr, "%s: not in libcuda.so.1\n", name);
		exit(2);
	}
	return function;
}

static inline void must(int code, const char *what)
{
	if (code == 0)
		return;
	fprintf(stderr, "%s: error %d\n", what, code);
	exit(1);
}

static inline int64_t now_ns(void)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* What is compared runs on the same processor: they differ in speed. */
static inline void stay_on_a_processor(void)
{
	cpu_set_t set;

	CPU_ZERO(&set);
	CPU_SET(PROCESSOR, &set);
	if (sched_setaffinity(0, sizeof(set), &set) != 0)
		fprintf(stderr, "not on one processor\n");
}

/* cuInit, and the primary context of card 0 current. */
static inline void cuda_start(int64_t *init_ns, int64_t *context_ns)
{
	int (*init)(unsigned int) = cuda_function("cuInit");
	int (*retain)(void **, int) = cuda_function("cuDevicePrimaryCtxRetain");
	int (*set_current)(void *) = cuda_function("cuCtxSetCurrent");
	void *context = NULL;
	int64_t start = now_ns();

	must(init(0), "cuInit");
	*init_ns = now_ns() - start;
	start = now_ns();
	must(retain(&context, 0), "cuDevicePrimaryCtxRetain");
	must(set_current(context), "cuCtxSetCurrent");
	*context_ns = now_ns() - start;
}

#endif

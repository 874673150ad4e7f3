// SPDX-License-Identifier: Apache-2.0
/* launches SECONDS: six threads launch in streams of their own, which they make, capture, wait for
 * and destroy all the time. A call that fails ends the program. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#define THREADS 6
#define NON_BLOCKING 1
#define RELAXED 2

static void *library;
static void *context;
static void *kernel;
static double seconds;

static void *function(const char *name)
{
	return dlsym(library, name);
}

static void must(int code, const char *what)
{
	if (code == 0)
		return;
	fprintf(stderr, "%s: error %d\n", what, code);
	exit(1);
}

static double now(void)
{
	struct timespec time;

	clock_gettime(CLOCK_MONOTONIC, &time);
	return (double)time.tv_sec + (double)time.tv_nsec / 1e9;
}

static void launch(void *stream, unsigned int blocks, uint64_t work_ns)
{
	int (*call)(void *, unsigned int, unsigned int, unsigned int, unsigned int, unsigned int,
		    unsigned int, unsigned int, void *, void **, void **) =
		function("cuLaunchKernel");
	void *parameters[] = {&work_ns};

	must(call(kernel, blocks, 1, 1, 32, 1, 1, 0, stream, parameters, NULL), "cuLaunchKernel");
}

static void launch_graph(void *stream)
{
	int (*begin)(void *, int) = function("cuStreamBeginCapture_v2");
	int (*end)(void *, void **) = function("cuStreamEndCapture");
	int (*instantiate)(void **, void *, uint64_t) = function("cuGraphInstantiateWithFlags");
	int (*graph_launch)(void *, void *) = function("cuGraphLaunch");
	int (*wait)(void *) = function("cuStreamSynchronize");
	int (*destroy)(void *) = function("cuGraphExecDestroy");
	void *graph = NULL;
	void *instance = NULL;

	must(begin(stream, RELAXED), "cuStreamBeginCapture");
	for (int i = 0; i < 3; i++)
		launch(stream, 1, 20000);
	must(end(stream, &graph), "cuStreamEndCapture");
	must(instantiate(&instance, graph, 0), "cuGraphInstantiate");
	must(graph_launch(instance, stream), "cuGraphLaunch");
	must(wait(stream), "cuStreamSynchronize");
	must(destroy(instance), "cuGraphExecDestroy");
}

static void *run(void *unused)
{
	int (*set_current)(void *) = function("cuCtxSetCurrent");
	int (*make)(void **, unsigned int) = function("cuStreamCreate");
	int (*destroy)(void *) = function("cuStreamDestroy_v2");
	int (*wait)(void *) = function("cuStreamSynchronize");
	double end = now() + seconds;

	must(set_current(context), "cuCtxSetCurrent");
	for (unsigned int round = 0; now() < end; round++) {
		void *stream = NULL;

		must(make(&stream, NON_BLOCKING), "cuStreamCreate");
		for (int i = 0; i < 20; i++)
			launch(stream, 1 + round % 7, UINT64_C(20000) * (1 + round % 4));
		if (round % 3 == 0)
			launch_graph(stream);
		if (round % 2 == 1)
			must(wait(stream), "cuStreamSynchronize");
		must(destroy(stream), "cuStreamDestroy");
	}
	return unused;
}

int main(int argc, char **argv)
{
	pthread_t thread[THREADS];
	void *module = NULL;

	seconds = argc > 1 ? strtod(argv[1], NULL) : 1;
	library = dlopen("libcuda.so.1", RTLD_NOW);
	if (library == NULL)
		return 2;

	int (*init)(unsigned int) = function("cuInit");
	int (*retain)(void **, int) = function("cuDevicePrimaryCtxRetain");
	int (*set_current)(void *) = function("cuCtxSetCurrent");
	int (*load)(void **, const void *) = function("cuModuleLoadData");
	int (*get)(void **, void *, const char *) = function("cuModuleGetFunction");
	int (*wait)(void) = function("cuCtxSynchronize");

	must(init(0), "cuInit");
	must(retain(&context, 0), "cuDevicePrimaryCtxRetain");
	must(set_current(context), "cuCtxSetCurrent");
	must(load(&module, "kernels"), "cuModuleLoadData");
	must(get(&kernel, module, "busy_param"), "cuModuleGetFunction");
	for (int i = 0; i < THREADS; i++)
		pthread_create(&thread[i], NULL, run, NULL);
	for (int i = 0; i < THREADS; i++)
		pthread_join(thread[i], NULL);
	must(wait(), "cuCtxSynchronize");
	return 0;
}

// SPDX-License-Identifier: Apache-2.0
/* Calls that the driver refuses whatever memory there is: each in a process of its own. Prints
 * what each gave, a line each. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

#define BIG ((uint64_t)4 << 30) /* more than the limit, less than the card */
#define WILD ((uint64_t)0x1000) /* nothing is mapped there */
#define FLOAT 0x20

enum state {
	NOTHING, /* cuInit has not been called */
	INITIALISED,
	CURRENT, /* a context is current */
};

typedef int (*function)(uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t, uint64_t);

static void *cuda;
static void *nvml;
static uint64_t value;
static uint64_t other;
static uint64_t graph;

static int do_call(const char *name, uint64_t a, uint64_t b, uint64_t c, uint64_t d, uint64_t e,
		   uint64_t f, uint64_t g)
{
	void *address = dlsym(strncmp(name, "nvml", 4) == 0 ? nvml : cuda, name);
	function call;

	if (address == NULL)
		return -1;
	memcpy((void *)&call, (const void *)&address, sizeof(call));
	return call(a, b, c, d, e, f, g);
}

#define CALL_8(name, a, b, c, d, e, f, g, ...)                                                     \
	do_call(name, (uint64_t)(a), (uint64_t)(b), (uint64_t)(c), (uint64_t)(d), (uint64_t)(e),   \
		(uint64_t)(f), (uint64_t)(g))
#define CALL(...) CALL_8(__VA_ARGS__, 0, 0, 0, 0, 0, 0, 0, 0)
#define OUT ((uintptr_t) & value)

static int reach(enum state state)
{
	int code = 0;

	if (state >= INITIALISED)
		code = CALL("cuInit", 0);
	if (code == 0 && state >= CURRENT)
		code = CALL("cuCtxCreate_v2", OUT, 0, 0);
	if (code == 0 && state >= CURRENT)
		code = CALL("cuGraphCreate", (uintptr_t)&graph, 0);
	return code;
}

/* CUmemAllocationProp: type, handle types, location {type, id}, … */
static uintptr_t properties(int type, int location, int id)
{
	static int words[8];

	words[0] = type;
	words[2] = location;
	words[3] = id;
	return (uintptr_t)words;
}

/* CUmemPoolProps, and behind it what CUDA_MEM_ALLOC_NODE_PARAMS has. */
static uintptr_t node(int type, int id, uint64_t bytes)
{
	static uint64_t words[16];

	words[0] = (uint64_t)type;
	words[1] = 1 | (uint64_t)id << 32;
	words[13] = bytes;
	return (uintptr_t)words;
}

/* CUDA_ARRAY3D_DESCRIPTOR: the first three are an array's, too. */
static uintptr_t array(uint64_t width, uint64_t height, uint64_t depth, int format, int channels)
{
	static uint64_t words[5];

	words[0] = width;
	words[1] = height;
	words[2] = depth;
	words[3] = (uint64_t)(unsigned int)format | (uint64_t)channels << 32;
	words[4] = 0;
	return (uintptr_t)words;
}

static uintptr_t array2d(uint64_t width, uint64_t height, int format, int channels)
{
	static uint64_t words[3];

	words[0] = width;
	words[1] = height;
	words[2] = (uint64_t)(unsigned int)format | (uint64_t)channels << 32;
	return (uintptr_t)words;
}

#define NOT_REACHED 250

static int code_pipe[2];

static int tell(int code)
{
	return write(code_pipe[1], &code, sizeof(code)) == sizeof(code) ? 0 : NOT_REACHED;
}

static void show(enum state state, const char *text, pid_t child)
{
	static const char *const names[] = {"before cuInit", "without a context", "in a context"};
	int status = 0;
	int code = 0;

	waitpid(child, &status, 0);
	if (WIFSIGNALED(status))
		printf("%s %s: signal %d\n", names[state], text, WTERMSIG(status));
	else if (WEXITSTATUS(status) != 0)
		printf("%s %s: not reached\n", names[state], text);
	else if (read(code_pipe[0], &code, sizeof(code)) == sizeof(code))
		printf("%s %s: %d\n", names[state], text, code);
	fflush(stdout); /* the next child must not print it again */
}

#define TRY(state, ...)                                                                            \
	do {                                                                                       \
		pid_t child_ = fork();                                                             \
                                                                                                   \
		if (child_ == 0)                                                                   \
			_exit(reach(state) != 0 ? NOT_REACHED : tell(CALL(__VA_ARGS__)));          \
		show(state, #__VA_ARGS__, child_);                                                 \
	} while (0)

static void try_sizes(uint64_t bytes)
{
	printf("%#llx bytes:\n", (unsigned long long)bytes);
	TRY(CURRENT, "cuMemAlloc_v2", OUT, bytes);
	TRY(CURRENT, "cuMemAllocAsync", OUT, bytes, 0);
	TRY(CURRENT, "cuMemCreate", OUT, bytes, properties(1, 1, 0), 0);
	TRY(CURRENT, "cuMemAllocPitch_v2", OUT, &other, bytes, 1, 4);
	TRY(CURRENT, "cuMemAllocPitch_v2", OUT, &other, 1024, bytes, 4);
	TRY(CURRENT, "cuGraphAddMemAllocNode", OUT, graph, 0, 0, node(1, 0, bytes));
	TRY(CURRENT, "cuArrayCreate_v2", OUT, array2d(bytes, 1, FLOAT, 1));
	TRY(CURRENT, "cuArray3DCreate_v2", OUT, array(bytes, 1, 1, FLOAT, 1));
	TRY(CURRENT, "cuMipmappedArrayCreate", OUT, array(bytes, 1, 0, FLOAT, 1), 4);
	TRY(CURRENT, "cuCtxSetLimit", 0, bytes);
}

/* Before cuInit, without a context, and with one. */
static void try_all(enum state state)
{
	TRY(state, "cuMemAlloc_v2", 0, BIG);
	TRY(state, "cuMemAlloc_v2", OUT, 0);
	TRY(state, "cuMemAllocManaged", OUT, BIG, 7);
	TRY(state, "cuMemAllocManaged", OUT, BIG, 0);
	TRY(state, "cuMemAllocManaged", OUT, 0, 1);
	TRY(state, "cuMemAllocPitch_v2", OUT, &other, 1024, BIG >> 10, 5);
	TRY(state, "cuMemAllocPitch_v2", OUT, 0, 1024, BIG >> 10, 4);
	TRY(state, "cuMemAllocPitch_v2", OUT, &other, 0, BIG, 4);
	TRY(state, "cuMemAllocPitch_v2", OUT, &other, BIG, 0, 4);
	TRY(state, "cuMemAllocAsync", OUT, 0, 0);
	TRY(state, "cuMemAllocAsync", 0, BIG, 0);
	TRY(state, "cuMemAllocFromPoolAsync", OUT, BIG, 0, 0);
	TRY(state, "cuMemCreate", OUT, BIG, properties(1, 1, 99), 0);
	TRY(state, "cuMemCreate", OUT, BIG, properties(1, 1, -1), 0);
	TRY(state, "cuMemCreate", OUT, BIG + 1, properties(1, 1, 0), 0);
	TRY(state, "cuMemCreate", OUT, BIG, properties(9, 1, 0), 0);
	TRY(state, "cuMemCreate", OUT, BIG, properties(1, 1, 0), 7);
	TRY(state, "cuMemCreate", OUT, BIG, 0, 0);
	TRY(state, "cuMemCreate", OUT, 0, properties(1, 1, 0), 0);
	TRY(state, "cuMemCreate", 0, BIG, properties(1, 1, 0), 0);
	TRY(state, "cuMemPoolCreate", OUT, node(1, 99, 0));
	TRY(state, "cuMemPoolCreate", OUT, node(7, 0, 0));
	TRY(state, "cuMemPoolCreate", 0, node(1, 0, 0));
	TRY(state, "cuMemPoolSetAttribute", 0, 4, WILD);
	TRY(state, "cuMemPoolGetAttribute", 0, 4, WILD);
	TRY(state, "cuDevicePrimaryCtxRetain", OUT, 99);
	TRY(state, "cuDevicePrimaryCtxRetain", 0, 0);
	TRY(state, "cuCtxCreate_v2", OUT, 0, 99);
	TRY(state, "cuCtxCreate_v2", 0, 0, 0);
	TRY(state, "cuArrayCreate_v2", OUT, array2d(30000, 30000, 0x99, 4));
	TRY(state, "cuArrayCreate_v2", OUT, array2d(30000, 30000, FLOAT, 3));
	TRY(state, "cuArrayCreate_v2", OUT, array2d(0, 0, FLOAT, 4));
	TRY(state, "cuArrayCreate_v2", OUT, array2d(500000, 500000, FLOAT, 4));
	TRY(state, "cuArray3DCreate_v2", OUT, array(40000, 40000, 40000, FLOAT, 4));
	TRY(state, "cuArray3DCreate_v2", OUT, array(4096, 4096, 64, FLOAT, 3));
	TRY(state, "cuMipmappedArrayCreate", OUT, array(30000, 30000, 0, FLOAT, 3), 4);
	TRY(state, "cuMipmappedArrayCreate", OUT, array(30000, 30000, 0, FLOAT, 4), 0);
	TRY(state, "cuGraphAddMemAllocNode", OUT, 0, 0, 0, node(1, 0, BIG));
	TRY(state, "cuGraphAddMemAllocNode", OUT, 0, 0, 0, WILD);
	TRY(state, "cuGraphAddMemAllocNode", OUT, graph, 0, 0, node(1, 99, BIG));
	TRY(state, "cuGraphAddMemAllocNode", OUT, graph, 0, 1, node(1, 0, BIG));
	TRY(state, "cuGraphAddMemAllocNode", OUT, graph, 0, 0, node(1, 0, 0));
	TRY(state, "cuGraphAddMemAllocNode", 0, graph, 0, 0, node(1, 0, BIG));
}

int main(void)
{
	cuda = dlopen("libcuda.so.1", RTLD_NOW);
	nvml = dlopen("libnvidia-ml.so.1", RTLD_NOW);
	if (cuda == NULL || nvml == NULL || pipe(code_pipe) != 0)
		return 1;
	try_sizes((uint64_t)1 << 62);
	try_sizes((uint64_t)1 << 63);
	try_sizes(0 - ((uint64_t)2 << 20));
	try_sizes(UINT64_MAX);
	try_all(NOTHING);
	try_all(INITIALISED);
	try_all(CURRENT);
	TRY(CURRENT, "cuCtxSetLimit", 0, 512 << 10);
	TRY(INITIALISED, "cuCtxSetLimit", 0, 200 << 10);

	/* Where nothing may be looked at, and where there is no context. */
	TRY(NOTHING, "cuMemCreate", OUT, BIG, WILD, 0);
	TRY(NOTHING, "cuMemPoolCreate", OUT, WILD);
	TRY(NOTHING, "cuLaunchKernelEx", WILD, 0, 0, 0);
	TRY(NOTHING, "cuLaunchKernelEx", WILD, WILD, 0, 0);
	TRY(NOTHING, "cuLaunchCooperativeKernelMultiDevice", WILD, 1, 0);
	TRY(NOTHING, "cuMemMapArrayAsync", WILD, 1, 0);
	TRY(INITIALISED, "cuMemMapArrayAsync", WILD, 1, 0);
	TRY(INITIALISED, "cuMemAllocAsync", WILD, 1, 0);
	TRY(INITIALISED, "cuMemAllocAsync", WILD, BIG, 0);
	TRY(INITIALISED, "cuMemAlloc_v2", WILD, BIG);
	TRY(INITIALISED, "cuMemAllocManaged", OUT, BIG, 1);
	TRY(INITIALISED, "cuMemAllocPitch_v2", OUT, &other, 1024, BIG >> 10, 4);
	TRY(INITIALISED, "cuArrayCreate_v2", OUT, array2d(30000, 30000, FLOAT, 4));
	TRY(INITIALISED, "cuMemGetInfo_v2", WILD, WILD);
	TRY(INITIALISED, "cuDeviceTotalMem_v2", WILD, 99);
	TRY(NOTHING, "cuDeviceTotalMem_v2", WILD, 0);

	TRY(NOTHING, "nvmlDeviceGetComputeRunningProcesses_v3", 0, WILD, 0);
	TRY(NOTHING, "nvmlDeviceGetComputeRunningProcesses_v2", 0, WILD, 0);
	TRY(NOTHING, "nvmlDeviceGetComputeRunningProcesses", 0, WILD, 0);
	TRY(NOTHING, "nvmlDeviceGetRunningProcessDetailList", 0, WILD);
	TRY(NOTHING, "nvmlDeviceGetGraphicsRunningProcesses_v3", 0, WILD, 0);
	TRY(NOTHING, "nvmlDeviceGetMemoryInfo", 0, WILD);
	TRY(NOTHING, "nvmlDeviceGetMemoryInfo_v2", 0, WILD);
	TRY(NOTHING, "nvmlDeviceGetProcessUtilization", 0, WILD, WILD, 0);
	TRY(NOTHING, "nvmlDeviceGetUtilizationRates", 0, WILD);
	return 0;
}

// SPDX-License-Identifier: Apache-2.0
/* Many processes of one container. Arguments: how many, and `start` or `churn`.
 *
 * start: all wait for one signal, initialise at the same time, take 1 MiB each and print how it
 * went; then they hold it until stdin ends. churn: they allocate and free until they are killed;
 * a line is printed when all have begun. */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB ((size_t)1 << 20)

static struct {
	int (*cuInit)(unsigned int);
	int (*cuDevicePrimaryCtxRetain)(void **, int);
	int (*cuCtxSetCurrent)(void *);
	int (*cuMemAlloc_v2)(uint64_t *, size_t);
	int (*cuMemFree_v2)(uint64_t);
	int (*cuMemAllocAsync)(uint64_t *, size_t, void *);
	int (*cuCtxSynchronize)(void);
} cuda;

static void find(void *driver, const char *name, void *place)
{
	void *symbol = dlsym(driver, name);

	memcpy(place, (const void *)&symbol, sizeof(symbol));
}

static int start(void)
{
	void *driver = dlopen("libcuda.so.1", RTLD_NOW);
	void *context;

	find(driver, "cuInit", (void *)&cuda.cuInit);
	find(driver, "cuDevicePrimaryCtxRetain", (void *)&cuda.cuDevicePrimaryCtxRetain);
	find(driver, "cuCtxSetCurrent", (void *)&cuda.cuCtxSetCurrent);
	find(driver, "cuMemAlloc_v2", (void *)&cuda.cuMemAlloc_v2);
	find(driver, "cuMemFree_v2", (void *)&cuda.cuMemFree_v2);
	find(driver, "cuMemAllocAsync", (void *)&cuda.cuMemAllocAsync);
	find(driver, "cuCtxSynchronize", (void *)&cuda.cuCtxSynchronize);

	int status = cuda.cuInit(0);

	if (status == 0)
		status = cuda.cuDevicePrimaryCtxRetain(&context, 0);
	return status == 0 ? cuda.cuCtxSetCurrent(context) : status;
}

static void churn(unsigned int seed)
{
	uint64_t held[8] = {0};

	for (unsigned int i = 0;; i = (i + 1) % 8) {
		size_t bytes = (size_t)(rand_r(&seed) % 60 + 1) * MIB / 2;

		if (held[i] != 0)
			cuda.cuMemFree_v2(held[i]);
		held[i] = 0;
		if (rand_r(&seed) % 4 == 0)
			cuda.cuMemAllocAsync(&held[i], bytes, NULL);
		else
			cuda.cuMemAlloc_v2(&held[i], bytes);
		if (rand_r(&seed) % 8 == 0)
			cuda.cuCtxSynchronize();
	}
}

static void child(int go, int done, int is_churn)
{
	uint64_t address;
	char word;
	int status;

	if (is_churn == 0 && read(go, &word, 1) != 0)
		_exit(1);
	status = start();
	if (status == 0 && is_churn == 0)
		status = cuda.cuMemAlloc_v2(&address, MIB);
	word = (char)status;
	if (write(done, &word, 1) != 1)
		_exit(1);
	if (is_churn != 0 && status == 0)
		churn((unsigned int)getpid());
	while (read(STDIN_FILENO, &word, 1) > 0)
		;
	_exit(0);
}

int main(int argc, char **argv)
{
	int count = argc > 1 ? (int)strtol(argv[1], NULL, 10) : 1;
	int is_churn = argc > 2 && strcmp(argv[2], "churn") == 0;
	int go[2];
	int done[2];
	int good = 0;

	if (pipe(go) != 0 || pipe(done) != 0)
		return 1;
	for (int i = 0; i < count; i++) {
		pid_t pid = fork();

		if (pid == 0) {
			close(go[1]);
			child(go[0], done[1], is_churn);
		}
		if (is_churn != 0)
			printf("%d\n", (int)pid);
	}
	close(go[1]);
	for (int i = 0; i < count; i++) {
		char word = 1;

		if (read(done[0], &word, 1) != 1)
			return 1;
		good += word == 0;
	}
	printf("%d\n", good);
	fflush(stdout);
	while (wait(NULL) > 0)
		;
	return 0;
}

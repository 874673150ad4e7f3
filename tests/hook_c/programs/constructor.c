// SPDX-License-Identifier: Apache-2.0
/* A library whose constructor starts a thread that calls the driver, and waits for it. The loader
 * holds its lock meanwhile. */
#include <pthread.h>
#include <stdio.h>

extern int cuInit(unsigned int flags);
extern int cuDeviceTotalMem_v2(size_t *bytes, int device);
extern int nvmlInit_v2(void);

static void *run(void *argument)
{
	size_t bytes = 0;
	int status = cuInit(0);

	if (status == 0)
		status = cuDeviceTotalMem_v2(&bytes, 0);
	printf("%d %zu %d\n", status, bytes, nvmlInit_v2());
	fflush(stdout);
	return argument;
}

__attribute__((constructor)) static void begin(void)
{
	pthread_t thread;

	pthread_create(&thread, NULL, run, NULL);
	pthread_join(thread, NULL);
}

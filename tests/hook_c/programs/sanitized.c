// SPDX-License-Identifier: Apache-2.0
/* sanitized [LIBRARY]: an environment variable, a thread's result, and the total of a card. The
 * driver is loaded from LIBRARY, or linked (-DLINKED). Without LIBRARY it is not called. */
#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef LINKED
extern int cuInit(unsigned int flags);
extern int cuDeviceTotalMem_v2(size_t *bytes, int device);
#endif

static void *run(void *argument)
{
	return argument;
}

static int total_of(const char *library, size_t *bytes)
{
#ifdef LINKED
	(void)library;
	int status = cuInit(0);

	return status != 0 ? status : cuDeviceTotalMem_v2(bytes, 0);
#else
	void *driver = dlopen(library, RTLD_NOW);

	if (driver == NULL)
		return -2;

	int (*init)(unsigned int) = dlsym(driver, "cuInit");
	int (*total)(size_t *, int) = dlsym(driver, "cuDeviceTotalMem_v2");
	int status = init(0);

	return status != 0 ? status : total(bytes, 0);
#endif
}

int main(int argc, char **argv)
{
	const char *seen = getenv("MARK");
	char *mark = strdup(seen != NULL ? seen : "no environment");
	void *joined = NULL;
	pthread_t thread;
	size_t bytes = 0;
	int status = -1;

	pthread_create(&thread, NULL, run, mark);
	pthread_join(thread, &joined);
	if (argc > 1)
		status = total_of(argv[1], &bytes);
	printf("%s %d %zu\n", (char *)joined, status, bytes);
	free(mark);
	return 0;
}

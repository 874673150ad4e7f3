// SPDX-License-Identifier: Apache-2.0
/* Loads the object of deep_linked.c before it looks anything up, and runs it. With "namespace" for
 * the object: asks for the driver in a namespace of its own. */
#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

static int in_namespace(void)
{
	void *driver = dlmopen(LM_ID_NEWLM, "libcuda.so.1", RTLD_NOW);
	void *nvml = dlmopen(LM_ID_NEWLM, "libnvidia-ml.so.1", RTLD_NOW);

	if (driver == NULL || nvml == NULL)
		return 2;
	void *symbols[] = {dlsym(driver, "cuInit"), dlsym(nvml, "nvmlDeviceGetMemoryInfo")};
	int (*init)(unsigned int);
	int (*read_memory)(void *, void *);

	memcpy((void *)&init, (const void *)&symbols[0], sizeof(init));
	memcpy((void *)&read_memory, (const void *)&symbols[1], sizeof(read_memory));
	printf("%d %d\n", init(0), read_memory(NULL, NULL));
	return dlsym(driver, "cuNoSuchFunction") != NULL;
}

int main(int argc, char **argv)
{
	if (argc > 1 && strcmp(argv[1], "namespace") == 0)
		return in_namespace();

	void *object = dlopen(argv[1], RTLD_NOW | RTLD_DEEPBIND);
	void *symbol = object == NULL ? NULL : dlsym(object, "use");
	int (*use)(void);

	if (symbol == NULL) {
		puts(dlerror());
		return 2;
	}
	memcpy((void *)&use, (const void *)&symbol, sizeof(use));
	return use();
}

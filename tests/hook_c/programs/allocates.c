// SPDX-License-Identifier: Apache-2.0
/* allocates OBJECT: an allocator that looks something up at every call, as profilers do. The loader
 * calls it while it loads the object. Prints the total of a card. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

extern void *__libc_malloc(size_t size);

static int is_loading;
static void *looked_up;

void *malloc(size_t size)
{
	if (is_loading == 1) {
		is_loading = 2;
		looked_up = dlsym(RTLD_DEFAULT, "no_such_function");
		is_loading = 1;
	}
	return __libc_malloc(size);
}

int main(int argc, char **argv)
{
	size_t bytes = 0;

	if (argc != 2)
		return 2;
	is_loading = 1;
	void *object = dlopen(argv[1], RTLD_NOW);
	is_loading = 0;
	void *symbol = object == NULL ? NULL : dlsym(object, "total");
	int (*total)(size_t *);

	if (symbol == NULL) {
		puts(dlerror());
		return 3;
	}
	memcpy((void *)&total, (const void *)&symbol, sizeof(total));

	int status = total(&bytes);

	printf("%d %zu\n", status, bytes);
	return looked_up != NULL;
}

// SPDX-License-Identifier: Apache-2.0
/* Interposes `puts` as thousands of libraries do. If a wrapper of dlsym makes itself the caller,
 * RTLD_NEXT finds this very function again, and the program never ends. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

int puts(const char *text)
{
	static int depth;
	int (*real)(const char *);
	void *symbol = dlsym(RTLD_NEXT, "puts");

	memcpy((void *)&real, (const void *)&symbol, sizeof(real));
	if (real == puts || depth++ > 0)
		return -1;
	return real(text);
}

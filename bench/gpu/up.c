/* SPDX-License-Identifier: Apache-2.0
 *
 * up: starts CUDA, takes 1 MiB, prints "INIT_NS CONTEXT_NS ALLOC_NS", and waits for the end of
 * stdin.
 */
#include "cuda.h"

#include <unistd.h>

int main(void)
{
	int64_t init_ns;
	int64_t context_ns;
	uint64_t address = 0;
	char byte;

	cuda_start(&init_ns, &context_ns);

	int (*allocate)(uint64_t *, size_t) = cuda_function("cuMemAlloc_v2");
	int64_t start = now_ns();

	must(allocate(&address, MIB), "cuMemAlloc");
	printf("%lld %lld %lld\n", (long long)init_ns, (long long)context_ns,
	       (long long)(now_ns() - start));
	fflush(stdout);
	while (read(0, &byte, 1) > 0)
		continue;
	return 0;
}

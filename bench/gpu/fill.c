/* SPDX-License-Identifier: Apache-2.0
 *
 * fill MOST_MIB: takes memory in pieces of 64 MiB until a call is refused or MOST_MIB are taken,
 * frees it all, and prints "GRANTED_MIB CODE FREE_CODE". Something small for tools to run a program
 * in.
 */
#include "cuda.h"

#define PIECE_MIB 64
#define MOST_PIECES 4096

int main(int argc, char **argv)
{
	static uint64_t held[MOST_PIECES];
	unsigned long most = argc > 1 ? strtoul(argv[1], NULL, 10) / PIECE_MIB : MOST_PIECES;
	unsigned long count = 0;
	int64_t ignored;
	int code = 0;
	int free_code = 0;

	cuda_start(&ignored, &ignored);

	int (*allocate)(uint64_t *, size_t) = cuda_function("cuMemAlloc_v2");
	int (*give_back)(uint64_t) = cuda_function("cuMemFree_v2");

	while (count < most && count < MOST_PIECES && code == 0) {
		code = allocate(&held[count], PIECE_MIB * MIB);
		count += code == 0;
	}
	for (unsigned long i = 0; i < count; i++)
		free_code |= give_back(held[i]);
	printf("%lu %d %d\n", count * PIECE_MIB, code, free_code);
	return 0;
}

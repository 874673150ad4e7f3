/* SPDX-License-Identifier: Apache-2.0
 *
 * What the fuzz targets share. A target is one function over bytes; libFuzzer (fuzz.mk) feeds it,
 * and replay.c feeds it the committed corpus in `make test`.
 */
#ifndef VGPU_TESTS_FUZZ_H
#define VGPU_TESTS_FUZZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

/* A property that holds whatever the input. */
#define HOLDS(condition)                                                                           \
	do {                                                                                       \
		if (!(condition)) {                                                                \
			fprintf(stderr, "%s:%d: does not hold: %s\n", __FILE__, __LINE__,          \
				#condition);                                                       \
			abort();                                                                   \
		}                                                                                  \
	} while (0)

/* The input as a string of its own, so that a sanitizer sees a read past its end. */
static inline char *string_of(const uint8_t *data, size_t size)
{
	char *copy = malloc(size + 1);

	HOLDS(copy != NULL);
	if (size > 0)
		memcpy(copy, data, size);
	copy[size] = '\0';
	return copy;
}

#define WORDS_MAX 64

/* Cuts `text`, `size` bytes and a NUL, at its NULs into an argv; returns argc. */
static inline int words_of(char *text, size_t size, char *argv[WORDS_MAX + 2])
{
	static char own_name[] = "runtime";
	int argc = 0;

	argv[argc++] = own_name;
	for (size_t at = 0; at < size && argc <= WORDS_MAX; at += strlen(text + at) + 1)
		argv[argc++] = text + at;
	argv[argc] = NULL;
	return argc;
}

/* Whether `text` is one line without control characters, as engines show it. */
static inline bool is_line(const char *text)
{
	for (; *text != '\0'; text++)
		if ((unsigned char)*text < ' ' || *text == 0x7f)
			return false;
	return true;
}

#endif

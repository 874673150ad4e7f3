// SPDX-License-Identifier: Apache-2.0
/* The string functions that this library calls, also those that the compiler calls by itself.
 *
 * They are its own: libvgpu.map keeps them local and -Bsymbolic binds to them. A program may
 * replace libc's, as every sanitizer does, and the replacement may not work yet when it looks for
 * libc's function by dlsym, which is ours. */
#include <stddef.h>
#include <string.h>

/* A compiler that sees memcpy in this loop would call memcpy. */
#if defined(__clang__)
#define OWN __attribute__((visibility("hidden"), no_builtin, minsize))
#else
#define OWN                                                                                        \
	__attribute__((visibility("hidden"), optimize("no-tree-loop-distribute-patterns"),         \
		       no_sanitize("undefined")))
#endif

OWN void *memcpy(void *restrict to, const void *restrict from, size_t size)
{
	unsigned char *target = to;
	const unsigned char *source = from;

	while (size-- != 0)
		*target++ = *source++;
	return to;
}

OWN void *memmove(void *to, const void *from, size_t size)
{
	unsigned char *target = to;
	const unsigned char *source = from;

	if (target <= source)
		return memcpy(to, from, size);
	while (size-- != 0)
		target[size] = source[size];
	return to;
}

OWN void *memset(void *to, int value, size_t size)
{
	unsigned char *target = to;

	while (size-- != 0)
		*target++ = (unsigned char)value;
	return to;
}

OWN int memcmp(const void *one, const void *other, size_t size)
{
	const unsigned char *left = one;
	const unsigned char *right = other;

	for (; size != 0; size--, left++, right++)
		if (*left != *right)
			return *left - *right;
	return 0;
}

OWN void *memchr(const void *in, int value, size_t size)
{
	const unsigned char *at = in;

	for (; size != 0; size--, at++)
		if (*at == (unsigned char)value)
			return (void *)at;
	return NULL;
}

OWN size_t strlen(const char *text)
{
	size_t length = 0;

	while (text[length] != '\0')
		length++;
	return length;
}

OWN int strncmp(const char *one, const char *other, size_t size)
{
	for (; size != 0; size--, one++, other++)
		if (*one != *other || *one == '\0')
			return (unsigned char)*one - (unsigned char)*other;
	return 0;
}

OWN int strcmp(const char *one, const char *other)
{
	return strncmp(one, other, (size_t)-1);
}

OWN char *strncpy(char *restrict to, const char *restrict from, size_t size)
{
	size_t at = 0;

	for (; at < size && from[at] != '\0'; at++)
		to[at] = from[at];
	for (; at < size; at++)
		to[at] = '\0';
	return to;
}

OWN char *strchr(const char *text, int value)
{
	for (;; text++) {
		if (*text == (char)value)
			return (char *)text;
		if (*text == '\0')
			return NULL;
	}
}

OWN char *strrchr(const char *text, int value)
{
	char *found = NULL;

	for (;; text++) {
		if (*text == (char)value)
			found = (char *)text;
		if (*text == '\0')
			return found;
	}
}

/* SPDX-License-Identifier: Apache-2.0
 *
 * CHECK(condition) counts and, on failure, prints where; checks_end() is main's last line.
 */
#ifndef VGPU_TESTS_LAUNCHER_CHECK_H
#define VGPU_TESTS_LAUNCHER_CHECK_H

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

static unsigned checks_passed, checks_failed;

static inline void check(bool holds, const char *condition, const char *file, int line)
{
	if (holds) {
		checks_passed++;
		return;
	}
	checks_failed++;
	printf("%s:%d: %s\n", file, line, condition);
}

static inline bool same(const char *left, const char *right)
{
	return left == right || (left != NULL && right != NULL && strcmp(left, right) == 0);
}

static inline int checks_end(void)
{
	printf("%u passed, %u failed\n", checks_passed, checks_failed);
	return checks_failed == 0 ? 0 : 1;
}

#define CHECK(condition) check((condition), #condition, __FILE__, __LINE__)

#endif

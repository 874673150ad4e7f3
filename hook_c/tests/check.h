// SPDX-License-Identifier: Apache-2.0
/* RUN(test) runs a function and counts it; CHECK(condition) marks it failed and says where.
 * check_end() is main's last line. */
#ifndef VGPU_HOOK_CHECK_H
#define VGPU_HOOK_CHECK_H

#include <stdbool.h>
#include <stdio.h>

static unsigned int checks_passed, checks_failed;
static bool check_holds;

static inline void check(bool holds, const char *condition, const char *file, int line)
{
	if (holds)
		return;
	check_holds = false;
	printf("%s:%d: %s\n", file, line, condition);
}

static inline void check_run(void (*test)(void), const char *name)
{
	check_holds = true;
	test();
	if (check_holds) {
		checks_passed++;
		return;
	}
	checks_failed++;
	printf("%s failed\n", name);
}

static inline int check_end(void)
{
	printf("%u passed, %u failed\n", checks_passed, checks_failed);
	return checks_failed != 0;
}

#define CHECK(condition) check((condition), #condition, __FILE__, __LINE__)
#define RUN(test) check_run(test, #test)

#endif

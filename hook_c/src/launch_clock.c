// SPDX-License-Identifier: Apache-2.0
#include "launch_clock.h"

#include "sys.h"

#include <linux/futex.h>
#include <stdbool.h>

#define NS_PER_SECOND UINT64_C(1000000000)
#define ANCHOR_EVERY_NS UINT64_C(2000000)

struct clock_anchor clock_anchor;

/* One thread at a time; the others go without. */
static void set_anchor(uint64_t ticks, uint64_t ns)
{
	uint32_t changes = __atomic_load_n(&clock_anchor.changes, __ATOMIC_ACQUIRE);
	uint64_t passed_ns = ns - clock_anchor.ns;
	uint64_t passed_ticks = ticks - clock_anchor.ticks;

	if (changes % 2 != 0 || (clock_anchor.ns != 0 && passed_ns < ANCHOR_EVERY_NS) ||
	    !__atomic_compare_exchange_n(&clock_anchor.changes, &changes, changes + 1, false,
					 __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
		return;
	__atomic_thread_fence(__ATOMIC_RELEASE);
	if (clock_anchor.ns != 0 && passed_ticks != 0 && passed_ns < NS_PER_SECOND)
		__atomic_store_n(&clock_anchor.scale,
				 (passed_ns << CLOCK_SCALE_BITS) / passed_ticks, __ATOMIC_RELAXED);
	__atomic_store_n(&clock_anchor.ticks, ticks, __ATOMIC_RELAXED);
	__atomic_store_n(&clock_anchor.ns, ns, __ATOMIC_RELAXED);
	__atomic_store_n(&clock_anchor.changes, changes + 2, __ATOMIC_RELEASE);
}

uint64_t clock_ns(void)
{
	struct timespec now = {0};
	uint64_t ticks = clock_ticks();

	clock_gettime(CLOCK_MONOTONIC, &now);

	uint64_t ns = (uint64_t)now.tv_sec * NS_PER_SECOND + (uint64_t)now.tv_nsec;

	set_anchor(ticks, ns);
	return ns;
}

void clock_sleep(uint64_t ns)
{
	sys_sleep_ns((long)(ns < NS_PER_SECOND ? ns : NS_PER_SECOND - 1));
}

void clock_spin(uint64_t until_ns)
{
	while (clock_near_ns() < until_ns)
#if defined(__x86_64__)
		__builtin_ia32_pause();
#else
		__asm__ volatile("yield");
#endif
}

void clock_wait(const uint32_t *word, uint32_t seen, uint64_t ns)
{
	const struct timespec limit = {.tv_nsec =
					       (long)(ns < NS_PER_SECOND ? ns : NS_PER_SECOND - 1)};

	sys_call(SYS_futex, (uintptr_t)word, FUTEX_WAIT, seen, (uintptr_t)&limit, 0, 0);
}

void clock_wake(uint32_t *word)
{
	sys_call(SYS_futex, (uintptr_t)word, FUTEX_WAKE, INT32_MAX, 0, 0, 0);
}

// SPDX-License-Identifier: Apache-2.0
#include "launch_clock.h"

#include "sys.h"

#include <linux/futex.h>
#include <stdbool.h>

#define NS_PER_SECOND UINT64_C(1000000000)
#define ANCHOR_EVERY_NS UINT64_C(2000000)
#define ANCHOR_GOOD_FOR_NS UINT64_C(1000000000)
#define SCALE_BITS 24

/* The counter against CLOCK_MONOTONIC: where both stood, and ns a tick << SCALE_BITS. Written
 * under an odd `changes`. */
static struct anchor {
	uint32_t changes;
	uint64_t ticks;
	uint64_t ns;
	uint64_t scale; /* 0: not known yet */
} anchor;

static uint64_t read_ticks(void)
{
#if defined(__x86_64__)
	return __builtin_ia32_rdtsc();
#else
	uint64_t ticks;

	__asm__ volatile("mrs %0, cntvct_el0" : "=r"(ticks));
	return ticks;
#endif
}

/* One thread at a time; the others go without. */
static void set_anchor(uint64_t ticks, uint64_t ns)
{
	uint32_t changes = __atomic_load_n(&anchor.changes, __ATOMIC_ACQUIRE);
	uint64_t passed_ns = ns - anchor.ns;
	uint64_t passed_ticks = ticks - anchor.ticks;

	if (changes % 2 != 0 || (anchor.ns != 0 && passed_ns < ANCHOR_EVERY_NS) ||
	    !__atomic_compare_exchange_n(&anchor.changes, &changes, changes + 1, false,
					 __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
		return;
	__atomic_thread_fence(__ATOMIC_RELEASE);
	if (anchor.ns != 0 && passed_ticks != 0 && passed_ns < NS_PER_SECOND)
		__atomic_store_n(&anchor.scale, (passed_ns << SCALE_BITS) / passed_ticks,
				 __ATOMIC_RELAXED);
	__atomic_store_n(&anchor.ticks, ticks, __ATOMIC_RELAXED);
	__atomic_store_n(&anchor.ns, ns, __ATOMIC_RELAXED);
	__atomic_store_n(&anchor.changes, changes + 2, __ATOMIC_RELEASE);
}

uint64_t clock_ns(void)
{
	struct timespec now = {0};
	uint64_t ticks = read_ticks();

	clock_gettime(CLOCK_MONOTONIC, &now);

	uint64_t ns = (uint64_t)now.tv_sec * NS_PER_SECOND + (uint64_t)now.tv_nsec;

	set_anchor(ticks, ns);
	return ns;
}

uint64_t clock_near_ns(void)
{
	uint32_t changes = __atomic_load_n(&anchor.changes, __ATOMIC_ACQUIRE);
	uint64_t scale = __atomic_load_n(&anchor.scale, __ATOMIC_RELAXED);
	uint64_t ticks = read_ticks() - __atomic_load_n(&anchor.ticks, __ATOMIC_RELAXED);
	uint64_t ns = __atomic_load_n(&anchor.ns, __ATOMIC_RELAXED);

	__atomic_thread_fence(__ATOMIC_ACQUIRE);
	if (changes % 2 != 0 || scale == 0 || ticks > UINT64_C(1) << 36 ||
	    __atomic_load_n(&anchor.changes, __ATOMIC_RELAXED) != changes)
		return clock_ns();

	uint64_t passed_ns = (ticks * scale) >> SCALE_BITS;

	return passed_ns > ANCHOR_GOOD_FOR_NS ? clock_ns() : ns + passed_ns;
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

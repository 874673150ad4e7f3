// SPDX-License-Identifier: Apache-2.0
#include "waits.h"

#include "check.h"

#include <pthread.h>
#include <sched.h>

#define THREADS 2
#define ROUNDS 5000

static void test_nobody_waits(void)
{
	struct waits waits = {0};

	CHECK(waits_have_ended(&waits, &(struct waits_moment){0}));
	waits_leave(&waits, waits_enter(&waits));
	CHECK(waits_have_ended(&waits, &(struct waits_moment){0}));
}

static void test_a_wait_of_that_moment_counts_until_it_has_ended(void)
{
	struct waits waits = {0};

	for (int turns = 0; turns < 4; turns++) {
		uint32_t number = waits_enter(&waits);
		struct waits_moment moment = {0};

		CHECK(!waits_have_ended(&waits, &moment));
		CHECK(!waits_have_ended(&waits, &moment));
		waits_leave(&waits, number);
		CHECK(waits_have_ended(&waits, &moment));
		for (int i = 0; i < turns; i++)
			(void)waits_have_ended(&waits, &(struct waits_moment){0});
	}
}

static void test_a_later_wait_does_not_count(void)
{
	struct waits waits = {0};
	uint32_t now = waits_enter(&waits);

	for (int i = 0; i < 1000; i++) { /* there is always one */
		struct waits_moment moment = {0};

		CHECK(!waits_have_ended(&waits, &moment));
		uint32_t later = waits_enter(&waits);

		waits_leave(&waits, now);
		CHECK(waits_have_ended(&waits, &moment));
		now = later;
	}
}

/* One thing at a time is freed. Whoever waits and finds it first gives it back, and the others find
 * nothing. */
enum { NOTHING, FREED, BEING_GIVEN };

static struct waits shared;
static int thing;
static int stopped;

static void wait_for_the_card(void)
{
	uint32_t number = waits_enter(&shared);
	int freed = FREED;

	if (__atomic_compare_exchange_n(&thing, &freed, BEING_GIVEN, false, __ATOMIC_SEQ_CST,
					__ATOMIC_SEQ_CST)) {
		for (int i = 0; i < 10; i++) /* long enough for the others to go on */
			sched_yield();
		__atomic_store_n(&thing, NOTHING, __ATOMIC_SEQ_CST);
	}
	waits_leave(&shared, number);
}

static void *wait_again_and_again(void *unused)
{
	while (__atomic_load_n(&stopped, __ATOMIC_SEQ_CST) == 0) {
		wait_for_the_card();
		sched_yield();
	}
	return unused;
}

static void test_what_another_thread_gives_back_is_back(void)
{
	pthread_t thread[THREADS];
	int kept = 0;

	for (int i = 0; i < THREADS; i++)
		CHECK(pthread_create(&thread[i], NULL, wait_again_and_again, NULL) == 0);
	for (int round = 0; round < ROUNDS; round++) {
		__atomic_store_n(&thing, FREED, __ATOMIC_SEQ_CST);
		wait_for_the_card();

		struct waits_moment moment = {0};

		while (!waits_have_ended(&shared, &moment))
			sched_yield();
		kept += __atomic_load_n(&thing, __ATOMIC_SEQ_CST) != NOTHING;
	}
	__atomic_store_n(&stopped, 1, __ATOMIC_SEQ_CST);
	for (int i = 0; i < THREADS; i++)
		CHECK(pthread_join(thread[i], NULL) == 0);
	CHECK(kept == 0);
}

int main(void)
{
	RUN(test_nobody_waits);
	RUN(test_a_wait_of_that_moment_counts_until_it_has_ended);
	RUN(test_a_later_wait_does_not_count);
	RUN(test_what_another_thread_gives_back_is_back);
	return check_end();
}

// SPDX-License-Identifier: Apache-2.0
#include "quota.h"

#include "check.h"
#include "files.h"

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <time.h>

#define MIB (UINT64_C(1) << 20)

/* One process as the library sees itself; the files are those of the running test. */
static struct files files;
static struct limits limits;
static struct region region;
static struct quota quota;

static bool join(void)
{
	struct reason reason;

	memset(&limits, 0, sizeof(limits));
	memset(&region, 0, sizeof(region));
	memset(&quota, 0, sizeof(quota));
	quota.limits = &limits;
	quota.region = &region;
	if (limits_open(&limits, files.limits_path, &reason) &&
	    region_open(&region, files.usage_path, false, &reason) &&
	    region_claim(&region, &reason))
		return true;
	printf("says: %s\n", reason.text);
	return false;
}

static uint64_t used(void)
{
	return quota_look(&quota, 0).used_bytes;
}

static void test_the_limit_itself_is_granted_and_a_byte_more_is_not(void)
{
	CHECK(join());
	CHECK(quota_reserve(&quota, 0, 100 * MIB));
	CHECK(!quota_reserve(&quota, 0, 1));
	quota_release(&quota, 0, 100 * MIB);
	CHECK(!quota_reserve(&quota, 0, 100 * MIB + 1));
	CHECK(used() == 0);
}

static void test_sizes_near_the_end_of_64_bits_are_refused(void)
{
	static const uint64_t sizes[] = {UINT64_MAX, UINT64_MAX - 1, UINT64_MAX - 2 * MIB,
					 UINT64_C(1) << 63, (UINT64_C(1) << 63) + 1};

	CHECK(join());
	CHECK(quota_take(&quota, 0, 2 * MIB));
	for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
		CHECK(!quota_take(&quota, 0, sizes[i]));
		CHECK(!quota_reserve(&quota, 0, sizes[i]));
	}
	CHECK(used() == 2 * MIB);
	CHECK(files.usage->slot[region.slot].dev[0].refused == 10);
}

static void test_large_sizes_are_whole_slabs(void)
{
	static const struct {
		uint64_t asked;
		uint64_t taken;
	} rows[] = {{MIB + 1, 2 * MIB},
		    {2 * MIB, 2 * MIB},
		    {2 * MIB + 1, 4 * MIB},
		    {4 * MIB + 1, 6 * MIB},
		    {33 * MIB, 34 * MIB}};

	CHECK(join());
	for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
		CHECK(quota_take(&quota, 0, rows[i].asked));
		CHECK(used() == rows[i].taken);
		quota_give(&quota, 0, rows[i].asked);
		CHECK(used() == 0);
	}
}

static void test_small_sizes_share_slabs(void)
{
	CHECK(join());
	CHECK(quota_take(&quota, 0, 1));
	CHECK(used() == 2 * MIB);
	CHECK(quota_take(&quota, 0, MIB));
	CHECK(used() == 2 * MIB);
	CHECK(quota_take(&quota, 0, MIB));
	CHECK(used() == 4 * MIB);
	CHECK(quota_take(&quota, 0, 700 << 10)); /* of which two go into a slab */
	CHECK(used() == 4 * MIB);
	quota_give(&quota, 0, 700 << 10);
	quota_give(&quota, 0, 1);
	CHECK(used() == 4 * MIB); /* nobody knows which slab is empty */
	quota_give(&quota, 0, MIB);
	quota_give(&quota, 0, MIB);
	CHECK(used() == 0);
}

static void test_small_sizes_meet_the_limit(void)
{
	unsigned int granted = 0;

	CHECK(join());
	while (granted < 10000 && quota_take(&quota, 0, 64 << 10))
		granted++;
	CHECK(granted == 1600); /* 100 MiB of 64 KiB */
	CHECK(used() == 100 * MIB);
	while (granted-- > 0)
		quota_give(&quota, 0, 64 << 10);
	CHECK(used() == 0);
}

static void test_overhead_counts(void)
{
	files.limits->dev[0].overhead_bytes = 60 * MIB;
	CHECK(join());
	CHECK(used() == 60 * MIB);
	CHECK(!quota_take(&quota, 0, 41 * MIB));
	CHECK(quota_take(&quota, 0, 40 * MIB));
	files.limits->dev[0].overhead_bytes = UINT64_MAX;
	files.limits->seq += 2;
	CHECK(used() == UINT64_MAX);
	CHECK(!quota_take(&quota, 0, 1 * MIB));
}

static void test_a_new_limit_holds_at_once(void)
{
	CHECK(join());
	CHECK(quota_take(&quota, 0, 80 * MIB));
	files.limits->dev[0].memory_bytes = 200 * MIB;
	files.limits->seq += 2;
	CHECK(quota_take(&quota, 0, 120 * MIB));
	files.limits->dev[0].memory_bytes = 10 * MIB;
	files.limits->seq += 2;
	CHECK(!quota_take(&quota, 0, 2 * MIB));
	quota_give(&quota, 0, 120 * MIB);
	quota_give(&quota, 0, 80 * MIB);
	CHECK(quota_take(&quota, 0, 10 * MIB));
}

static void test_garbage_in_the_file_does_not_raise_the_own_limit(void)
{
	CHECK(join());
	CHECK(quota_take(&quota, 0, 90 * MIB));
	memset(files.usage->slot, 0, sizeof(files.usage->slot));
	files.usage->slots_high = 0;
	CHECK(!quota_take(&quota, 0, 12 * MIB));
	for (int i = 0; i < VGPU_MAX_SLOTS; i++)
		files.usage->slot[i].dev[0].used_bytes = (uint64_t)(-200 * (int64_t)MIB);
	files.usage->slots_high = VGPU_MAX_SLOTS;
	CHECK(!quota_take(&quota, 0, 12 * MIB));
}

/* What threads and processes may hold together, watched while they fight for it. */
static uint64_t in_hand;
static uint64_t most_in_hand;

static void *fight(void *argument)
{
	unsigned int seed = (unsigned int)(uintptr_t)argument;

	for (int round = 0; round < 1000; round++) {
		uint64_t bytes = (1 + (uint64_t)rand_r(&seed) % 20) * 2 * MIB;

		if (!quota_take(&quota, 0, bytes))
			continue;
		uint64_t now = __atomic_add_fetch(&in_hand, bytes, __ATOMIC_SEQ_CST);
		uint64_t most = __atomic_load_n(&most_in_hand, __ATOMIC_SEQ_CST);

		while (now > most &&
		       !__atomic_compare_exchange_n(&most_in_hand, &most, now, false,
						    __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST))
			;
		sched_yield();
		__atomic_sub_fetch(&in_hand, bytes, __ATOMIC_SEQ_CST);
		quota_give(&quota, 0, bytes);
	}
	return NULL;
}

static void test_threads_together_stay_within_the_limit(void)
{
	pthread_t threads[8];

	CHECK(join());
	most_in_hand = 0;
	for (uintptr_t i = 0; i < 8; i++)
		CHECK(pthread_create(&threads[i], NULL, fight, (void *)(i + 1)) == 0);
	for (int i = 0; i < 8; i++)
		pthread_join(threads[i], NULL);
	CHECK(most_in_hand > 40 * MIB);
	CHECK(most_in_hand <= 100 * MIB);
	CHECK(used() == 0);
}

/* What all processes have been granted and not yet given back: a lower bound of what the quota has
 * counted, so it may never pass the limit. `part` is one process's part of it, for who kills it:
 * named before it is added and after it is taken off, so that a kill in between makes the bound
 * lower, never higher. */
#define FIGHTERS 6
static struct {
	int64_t held;
	int64_t part[FIGHTERS];
	uint64_t over;
	uint64_t grants;
} *shared;

static void start_sharing(void)
{
	shared = mmap(NULL, sizeof(*shared), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1,
		      0);
	CHECK(shared != MAP_FAILED);
}

static void fight_once(unsigned int *seed, int self)
{
	int64_t bytes = 2 * (int64_t)MIB * (1 + rand_r(seed) % 20);

	if (!quota_take(&quota, 0, (uint64_t)bytes))
		return;
	__atomic_store_n(&shared->part[self], bytes, __ATOMIC_SEQ_CST);
	int64_t held = __atomic_add_fetch(&shared->held, bytes, __ATOMIC_SEQ_CST);

	__atomic_add_fetch(&shared->over, held > 100 * (int64_t)MIB, __ATOMIC_RELAXED);
	__atomic_add_fetch(&shared->grants, 1, __ATOMIC_RELAXED);
	sched_yield();
	__atomic_sub_fetch(&shared->held, bytes, __ATOMIC_SEQ_CST);
	__atomic_store_n(&shared->part[self], 0, __ATOMIC_SEQ_CST);
	quota_give(&quota, 0, (uint64_t)bytes);
}

static int next_fighter;

static int fight_as_process(const struct files *unused)
{
	unsigned int seed = (unsigned int)getpid();

	(void)unused;
	if (!join())
		return 1;
	for (int round = 0; round < 3000; round++)
		fight_once(&seed, next_fighter);
	return 0;
}

static int fight_for_ever(const struct files *unused)
{
	unsigned int seed = (unsigned int)getpid();

	(void)unused;
	if (!join())
		return 1;
	for (;;)
		fight_once(&seed, next_fighter);
}

static void test_processes_together_stay_within_the_limit(void)
{
	pid_t pids[FIGHTERS];

	start_sharing();
	for (next_fighter = 0; next_fighter < FIGHTERS; next_fighter++)
		pids[next_fighter] = spawn(fight_as_process, &files);
	for (int i = 0; i < FIGHTERS; i++)
		CHECK(collect(pids[i]) == 0);
	CHECK(shared->grants > 1000);
	CHECK(shared->over == 0);
	CHECK(join());
	CHECK(used() == 0);
	munmap(shared, sizeof(*shared));
}

static void nap(long ms)
{
	const struct timespec time = {.tv_nsec = ms * 1000000};

	nanosleep(&time, NULL);
}

/* What it holds is off the books of the test before it is off those of the quota. */
static void kill_fighter(pid_t pid, int index)
{
	int status;

	kill(pid, SIGSTOP);
	waitpid(pid, &status, WUNTRACED);
	__atomic_sub_fetch(&shared->held,
			   __atomic_exchange_n(&shared->part[index], 0, __ATOMIC_SEQ_CST),
			   __ATOMIC_SEQ_CST);
	kill(pid, SIGKILL);
	CHECK(collect(pid) == -SIGKILL);
}

static void test_processes_together_stay_within_the_limit_whoever_is_killed(void)
{
	pid_t pids[FIGHTERS];
	unsigned int seed = 1;

	start_sharing();
	for (next_fighter = 0; next_fighter < FIGHTERS; next_fighter++)
		pids[next_fighter] = spawn(fight_for_ever, &files);
	for (int round = 0; round < 150; round++) {
		nap(5);
		next_fighter = rand_r(&seed) % FIGHTERS;
		kill_fighter(pids[next_fighter], next_fighter);
		pids[next_fighter] = spawn(fight_for_ever, &files);
	}
	for (int i = 0; i < FIGHTERS; i++)
		kill_fighter(pids[i], i);
	CHECK(shared->grants > 1000);
	CHECK(shared->over == 0);
	CHECK(join());
	region_tend(&region, true);
	CHECK(used() == 0);
	munmap(shared, sizeof(*shared));
}

static void on_fresh_files(void (*test)(void), const char *name)
{
	files_make(&files, 100 * MIB);
	check_run(test, name);
	files_remove(&files);
}

#define RUN_ON_FILES(test) on_fresh_files(test, #test)

int main(void)
{
	RUN_ON_FILES(test_the_limit_itself_is_granted_and_a_byte_more_is_not);
	RUN_ON_FILES(test_sizes_near_the_end_of_64_bits_are_refused);
	RUN_ON_FILES(test_large_sizes_are_whole_slabs);
	RUN_ON_FILES(test_small_sizes_share_slabs);
	RUN_ON_FILES(test_small_sizes_meet_the_limit);
	RUN_ON_FILES(test_overhead_counts);
	RUN_ON_FILES(test_a_new_limit_holds_at_once);
	RUN_ON_FILES(test_garbage_in_the_file_does_not_raise_the_own_limit);
	RUN_ON_FILES(test_threads_together_stay_within_the_limit);
	RUN_ON_FILES(test_processes_together_stay_within_the_limit);
	RUN_ON_FILES(test_processes_together_stay_within_the_limit_whoever_is_killed);
	return check_end();
}

// SPDX-License-Identifier: Apache-2.0
#include "limits.h"

#include "check.h"
#include "files.h"

#include <pthread.h>
#include <string.h>

#define MIB (UINT64_C(1) << 20)

static struct files files;

static bool opens(struct limits *limits, struct reason *reason)
{
	memset(limits, 0, sizeof(*limits));
	return limits_open(limits, files.limits_path, reason);
}

static void test_a_good_file(void)
{
	static struct limits limits;
	struct reason reason;
	uint8_t other[16] = {9};

	files.limits->dev[0].overhead_bytes = 3;
	files.limits->dev[0].context_bytes = 4;
	CHECK(opens(&limits, &reason));
	CHECK(limits.count == 1);
	CHECK(limits.card[0].memory_bytes == 100 * MIB);
	CHECK(limits.card[0].overhead_bytes == 3);
	CHECK(limits.card[0].context_bytes == 4);
	CHECK(limits_find(&limits, files.limits->dev[0].uuid) == 0);
	CHECK(limits_find(&limits, other) == -1);
}

static void check_refused(const char *words)
{
	static struct limits limits;
	struct reason reason = {""};

	CHECK(!opens(&limits, &reason));
	if (strstr(reason.text, words) == NULL)
		printf("says: %s\n", reason.text);
	CHECK(strstr(reason.text, words) != NULL);
}

static void test_what_is_no_limits_file(void)
{
	struct vgpu_header good = files.limits->header;

	files.limits->header.magic = VGPU_USAGE_MAGIC;
	check_refused("is none");
	files.limits->header = good;
	files.limits->header.major++;
	check_refused("has version 2." NUMBER(VGPU_ABI_MINOR));
	files.limits->header = good;
	files.limits->header.size = 128;
	check_refused("calls itself 128 bytes");
	files.limits->header = good;
	files.limits->ndev = 0;
	check_refused("names 0 cards");
	files.limits->ndev = 17;
	check_refused("names 17 cards");
	files.limits->ndev = 1;
	files.limits->dev[0].memory_bytes = 0;
	check_refused("promises no memory");
	files.limits->dev[0].memory_bytes = 100 * MIB;
	files.limits->seq = 7;
	check_refused("stopped halfway");
}

static void test_a_newer_minor_version_is_read(void)
{
	static struct limits limits;
	struct reason reason;

	files.limits->header.minor = 99;
	files.limits->header.size += 4096;
	CHECK(opens(&limits, &reason));
}

static void test_a_missing_or_short_file(void)
{
	static struct limits limits;
	struct reason reason;

	CHECK(!limits_open(&limits, "/nowhere/limits", &reason));
	CHECK(strstr(reason.text, "/nowhere/limits") != NULL);
	CHECK(truncate(files.limits_path, 100) == 0);
	check_refused("has 100 bytes");
	CHECK(truncate(files.limits_path, 0) == 0);
	check_refused("has 0 bytes");
}

static void write_memory(uint64_t bytes)
{
	struct vgpu_limits *file = files.limits;

	__atomic_store_n(&file->seq, file->seq + 1, __ATOMIC_RELAXED);
	__atomic_thread_fence(__ATOMIC_RELEASE);
	__atomic_store_n(&file->dev[0].memory_bytes, bytes, __ATOMIC_RELAXED);
	__atomic_store_n(&file->dev[0].overhead_bytes, bytes / 2, __ATOMIC_RELAXED);
	__atomic_store_n(&file->seq, file->seq + 1, __ATOMIC_RELEASE);
}

static void test_a_change_is_seen(void)
{
	static struct limits limits;
	struct reason reason;

	CHECK(opens(&limits, &reason));
	write_memory(50 * MIB);
	limits_refresh(&limits);
	CHECK(limits.card[0].memory_bytes == 50 * MIB);
}

static void test_a_writer_that_stopped_halfway_changes_nothing(void)
{
	static struct limits limits;
	struct reason reason;

	CHECK(opens(&limits, &reason));
	files.limits->seq = 1;
	files.limits->dev[0].memory_bytes = 5;
	limits_refresh(&limits);
	CHECK(limits.card[0].memory_bytes == 100 * MIB);
}

static void test_a_limit_of_nothing_changes_nothing(void)
{
	static struct limits limits;
	struct reason reason;

	CHECK(opens(&limits, &reason));
	write_memory(0);
	limits_refresh(&limits);
	CHECK(limits.card[0].memory_bytes == 100 * MIB);
}

static void *write_often(void *argument)
{
	(void)argument;
	for (uint64_t i = 1; i <= 20000; i++)
		write_memory(i * 2 * MIB);
	return NULL;
}

/* Numbers of one copy belong together as long as one thread reads. */
static void test_copies_are_whole(void)
{
	static struct limits limits;
	struct reason reason;
	pthread_t writer;

	write_memory(2 * MIB);
	CHECK(opens(&limits, &reason));
	CHECK(pthread_create(&writer, NULL, write_often, NULL) == 0);
	while (limits_load(&limits.card[0].memory_bytes) != 40000 * MIB) {
		limits_refresh(&limits);
		CHECK(limits.card[0].memory_bytes == 2 * limits.card[0].overhead_bytes);
	}
	pthread_join(writer, NULL);
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
	RUN_ON_FILES(test_a_good_file);
	RUN_ON_FILES(test_what_is_no_limits_file);
	RUN_ON_FILES(test_a_newer_minor_version_is_read);
	RUN_ON_FILES(test_a_missing_or_short_file);
	RUN_ON_FILES(test_a_change_is_seen);
	RUN_ON_FILES(test_a_writer_that_stopped_halfway_changes_nothing);
	RUN_ON_FILES(test_a_limit_of_nothing_changes_nothing);
	RUN_ON_FILES(test_copies_are_whole);
	return check_end();
}

// SPDX-License-Identifier: Apache-2.0
#include "region.h"

#include "check.h"
#include "files.h"
#include "last_work.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>

#define MIB (UINT64_C(1) << 20)

static struct files files;

static bool join(struct region *region)
{
	struct reason reason;

	memset(region, 0, sizeof(*region));
	if (region_open(region, files.usage_path, false, &reason) && region_claim(region, &reason))
		return true;
	printf("says: %s\n", reason.text);
	return false;
}

static void nap(long ms)
{
	const struct timespec time = {.tv_sec = ms / 1000, .tv_nsec = ms % 1000 * 1000000};

	nanosleep(&time, NULL);
}

/* What others hold of a card, as soon as it is something; 0: it is nothing for too long. */
static uint64_t await_sum(struct region *region, unsigned int card)
{
	uint64_t sum = 0;

	for (int tries = 0; tries < 30000 && sum == 0; tries++) {
		nap(1);
		sum = region_sum(region, card);
	}
	return sum;
}

static void hold_bytes(struct region *region, unsigned int card, uint64_t bytes)
{
	region_ask(region, card, bytes);
	region_take(region, card, bytes);
}

/* Takes 7 MiB, says so through the card 1's count of the slot, and waits for its end. */
static int hold(const struct files *unused)
{
	struct region region;

	(void)unused;
	if (!join(&region))
		return 1;
	hold_bytes(&region, 0, 7 * MIB);
	hold_bytes(&region, 1, 1);
	nap(20000);
	return 0;
}

static pid_t start_holder(void)
{
	uint64_t before = 0;
	uint64_t after = 0;

	for (int i = 0; i < VGPU_MAX_SLOTS; i++)
		before += files.usage->slot[i].dev[1].used_bytes;
	pid_t pid = spawn(hold, &files);

	for (int tries = 0; tries < 2000 && after <= before; tries++) {
		after = 0;
		for (int i = 0; i < VGPU_MAX_SLOTS; i++)
			after += __atomic_load_n(&files.usage->slot[i].dev[1].used_bytes,
						 __ATOMIC_SEQ_CST);
		nap(1);
	}
	CHECK(after == before + 1);
	return pid;
}

static void end(pid_t pid)
{
	kill(pid, SIGKILL);
	collect(pid);
}

static void test_the_sum_counts_all_processes(void)
{
	struct region region;

	CHECK(join(&region));
	pid_t one = start_holder();
	pid_t two = start_holder();

	hold_bytes(&region, 0, MIB);
	CHECK(region_sum(&region, 0) == 15 * MIB);
	region_sub(&region, 0, MIB);
	CHECK(region_sum(&region, 0) == 14 * MIB);
	end(one);
	end(two);
}

static void test_what_is_asked_for_is_seen_and_not_held(void)
{
	struct region region;
	struct region other;

	CHECK(join(&region));
	CHECK(join(&other));
	const struct vgpu_usage_device *device = &region.usage->slot[region.slot].dev[0];

	region_ask(&region, 0, 3 * MIB);
	CHECK(region_sum(&region, 0) == 3 * MIB);
	CHECK(region_sum(&other, 0) == 3 * MIB);
	CHECK(device->used_bytes == 0);
	region_withdraw(&region, 0, 3 * MIB);
	CHECK(region_sum(&other, 0) == 0);
	region_ask(&region, 0, 5 * MIB);
	region_take(&region, 0, 5 * MIB);
	CHECK(device->used_bytes == 5 * MIB && device->asked_bytes == 0);
	CHECK(region_sum(&region, 0) == 5 * MIB);
	CHECK(region_sum(&other, 0) == 5 * MIB);
}

static void test_a_killed_process_is_cleared(void)
{
	struct region region;

	CHECK(join(&region));
	pid_t holder = start_holder();

	region_tend(&region, true);
	CHECK(region_sum(&region, 0) == 7 * MIB);
	end(holder);
	nap(60);
	region_tend(&region, false);
	CHECK(region_sum(&region, 0) == 0);
}

/* Has 40 ms of the card's time not charged on the first card, which are over; and on the second one
 * a launch that nobody knows the end of. */
static int leave_work(const struct files *unused)
{
	struct region region;
	struct vgpu_usage_slot *slot;
	struct timespec now;

	(void)unused;
	if (!join(&region))
		return 1;
	slot = &region.usage->slot[region.slot];
	clock_gettime(CLOCK_MONOTONIC, &now);
	slot->dev[0].pending_ns = last_work_word(UINT64_C(40000000), true);
	slot->dev[1].queue_end_ns =
		((uint64_t)now.tv_sec * 1000000000 + (uint64_t)now.tv_nsec) & ~UINT64_C(1);
	slot->dev[1].pending_ns = last_work_word(5000, false);
	nap(200);
	_exit(0);
}

static void test_what_the_dead_had_under_way_is_charged_once(void)
{
	const int64_t *owed;
	struct region region;

	CHECK(join(&region));
	for (unsigned int i = 0; i < VGPU_MAX_DEVICES; i++)
		region.usage->turn[i] = (struct vgpu_usage_turn){0};
	pid_t pid = spawn(leave_work, &files);

	collect(pid);
	for (int i = 0; i < 2; i++) {
		region_tend(&region, true);
		owed = &region.usage->turn[0].balance_ns;
		CHECK(*owed < -39999000 && *owed > -40001000);
		owed = &region.usage->turn[1].balance_ns;
		CHECK(*owed <= -200000000 && *owed >= -1001000000);
		CHECK(region.usage->turn[2].balance_ns == 0);
	}
}

/* Its slot is not free yet when another one comes. */
static void test_who_takes_the_slot_of_the_dead_charges_what_they_had_under_way(void)
{
	struct region region;

	files.usage->turn[0] = (struct vgpu_usage_turn){0};
	pid_t pid = spawn(leave_work, &files);

	collect(pid);
	CHECK(join(&region));
	CHECK(files.usage->turn[0].balance_ns < -39999000);
}

static void test_a_killed_process_that_nobody_collects_is_cleared(void)
{
	struct region region;

	CHECK(join(&region));
	pid_t holder = start_holder();

	kill(holder, SIGKILL);
	for (int tries = 0; tries < 100 && region_sum(&region, 0) != 0; tries++) {
		nap(10);
		region_tend(&region, true);
	}
	CHECK(region_sum(&region, 0) == 0);
	collect(holder);
}

/* The child inherits the driver's descriptors, and with them the memory. */
static int hold_and_fork(const struct files *unused)
{
	struct region region;

	(void)unused;
	if (!join(&region))
		return 1;
	hold_bytes(&region, 0, 7 * MIB);
	pid_t child = fork();

	if (child == 0) {
		nap(5000);
		_exit(0);
	}
	printf("%d\n", (int)child);
	hold_bytes(&region, 1, (uint64_t)child);
	nap(20000);
	return 0;
}

static void test_what_a_killed_process_held_counts_until_its_forked_child_has_ended(void)
{
	struct region region;
	uint64_t child = 0;
	struct vgpu_usage_slot *slot = NULL;

	CHECK(join(&region));
	pid_t holder = spawn(hold_and_fork, &files);

	child = await_sum(&region, 1);
	CHECK(child != 0);
	slot = &files.usage->slot[1];
	slot->dev[0].pending_ns = 1000;
	end(holder);
	region_tend(&region, true);
	CHECK(region_sum(&region, 0) == 7 * MIB);
	CHECK(slot->dev[0].pending_ns == 0);
	CHECK(slot->flags == VGPU_FLAG_KEPT);

	struct region other;

	CHECK(join(&other));
	CHECK(other.slot == 2);
	CHECK(kill((pid_t)child, SIGKILL) == 0);
	for (int tries = 0; tries < 100 && region_sum(&region, 0) != 0; tries++) {
		nap(10);
		region_tend(&region, true);
	}
	CHECK(region_sum(&region, 0) == 0);
}

static int hold_and_become_another_program(const struct files *unused)
{
	struct region region;

	(void)unused;
	if (!join(&region))
		return 1;
	hold_bytes(&region, 0, 7 * MIB);
	hold_bytes(&region, 1, 1);
	nap(300);
	execl("/bin/sleep", "sleep", "20", (char *)NULL);
	return 2;
}

/* PID and start time stay the same. */
static void test_who_becomes_another_program_holds_nothing_of_the_old_ones(void)
{
	struct region region;

	CHECK(join(&region));
	pid_t holder = spawn(hold_and_become_another_program, &files);

	CHECK(await_sum(&region, 1) != 0);
	CHECK(region_sum(&region, 0) == 7 * MIB);
	for (int tries = 0; tries < 500 && region_sum(&region, 0) != 0; tries++) {
		nap(10);
		region_tend(&region, true);
	}
	CHECK(region_sum(&region, 0) == 0);
	CHECK(kill(holder, 0) == 0);
	end(holder);
}

static void close_all(void)
{
	for (int fd = 3; fd < 4096; fd++)
		close(fd);
}

/* As a daemon does. */
static int hold_and_close(const struct files *unused)
{
	struct region region;

	(void)unused;
	if (!join(&region))
		return 1;
	close_all();
	hold_bytes(&region, 0, 7 * MIB);
	nap(300);
	int reused = open("/dev/null", O_RDONLY);
	struct stat status;

	region_tend(&region, false);
	/* The file is open again, and the descriptor that took the old number is untouched. */
	if (fcntl(reused, F_GETFD) < 0 || fstat(region.fd, &status) != 0 ||
	    status.st_ino != region.inode)
		return 2;
	return region_sum(&region, 0) == 7 * MIB ? 0 : 3;
}

static void test_who_closed_all_descriptors_before_it_used_a_card_is_let_in(void)
{
	struct region region;
	struct reason reason;

	memset(&region, 0, sizeof(region));
	CHECK(region_open(&region, files.usage_path, false, &reason));
	close(region.fd);
	close(region.kept_fd);
	CHECK(region_claim(&region, &reason));
	hold_bytes(&region, 0, 5 * MIB);
	CHECK(region_sum(&region, 0) == 5 * MIB);
}

static void test_a_process_that_closed_all_descriptors_keeps_its_slot(void)
{
	struct region region;

	CHECK(join(&region));
	pid_t holder = spawn(hold_and_close, &files);

	CHECK(await_sum(&region, 0) != 0);
	region_tend(&region, true);
	CHECK(region_sum(&region, 0) == 7 * MIB);
	CHECK(collect(holder) == 0);
}

/* Takes 7 MiB behind closed descriptors, and never looks at the file again. */
static int hold_behind_closed_descriptors(const struct files *unused)
{
	struct region region;

	(void)unused;
	if (!join(&region))
		return 1;
	close_all();
	hold_bytes(&region, 0, 7 * MIB);
	hold_bytes(&region, 1, 1);
	nap(20000);
	return 0;
}

static void test_who_closed_all_descriptors_is_seen_from_another_pid_namespace(void)
{
	struct region region;
	struct region late;
	struct reason reason;

	CHECK(join(&region));
	region.pidns++;
	pid_t holder = spawn(hold_behind_closed_descriptors, &files);

	CHECK(await_sum(&region, 1) != 0);
	region_tend(&region, true);
	CHECK(region_sum(&region, 0) == 7 * MIB);

	memset(&late, 0, sizeof(late));
	CHECK(region_open(&late, files.usage_path, false, &reason));
	late.pidns++;
	CHECK(region_claim(&late, &reason));
	CHECK(late.slot == 2);
	CHECK(region_sum(&late, 0) == 7 * MIB);
	end(holder);
	region_tend(&region, true);
	CHECK(region_sum(&region, 0) == 0);
}

static int close_and_fork(const struct files *unused)
{
	struct region region;

	(void)unused;
	if (!join(&region))
		return 1;
	hold_bytes(&region, 0, 7 * MIB);
	close_all();
	pid_t child = fork();

	if (child == 0) {
		nap(20000);
		_exit(0);
	}
	hold_bytes(&region, 1, (uint64_t)child);
	nap(20000);
	return 0;
}

/* Nothing that says that the parent lives is the child's. */
static void test_a_child_without_its_parents_descriptors_keeps_nothing_of_it(void)
{
	struct region region;
	uint64_t child = 0;

	CHECK(join(&region));
	pid_t holder = spawn(close_and_fork, &files);

	child = await_sum(&region, 1);
	CHECK(child != 0);
	CHECK(region_sum(&region, 0) == 7 * MIB);
	end(holder);
	region_tend(&region, true);
	CHECK(region_sum(&region, 0) == 0);
	CHECK(kill((pid_t)child, SIGKILL) == 0);
}

static void test_who_closed_all_descriptors_sees_at_once_that_another_has_ended(void)
{
	struct region region;

	CHECK(join(&region));
	pid_t holder = start_holder();

	region_tend(&region, true);
	close(region.fd);
	close(region.kept_fd);
	end(holder);
	region_tend(&region, true);
	CHECK(region_sum(&region, 0) == 0);
}

static void test_who_unmapped_what_it_did_not_know_is_seen_to_live(void)
{
	struct region region;
	struct region other;

	CHECK(join(&region));
	CHECK(join(&other));
	hold_bytes(&region, 0, 7 * MIB);
	CHECK(munmap(region.life, 4096) == 0);
	nap(60);
	region_tend(&region, false);
	region_tend(&other, true);
	CHECK(region_sum(&other, 0) == 7 * MIB);
	CHECK(files.usage->slot[region.slot].state == VGPU_SLOT_LIVE);
}

/* A descriptor that is no longer the usage file's shows no lock, and nobody has ended. */
static void test_who_cannot_be_proven_dead_counts(void)
{
	struct region region;
	pid_t holder = start_holder();

	CHECK(join(&region));
	int other = open("/dev/null", O_RDWR | O_CLOEXEC);

	CHECK(dup2(other, region.fd) == region.fd);
	close(other);
	region.path = "/nowhere/usage";
	region_tend(&region, true);
	CHECK(region_sum(&region, 0) == 7 * MIB);
	region.path = "/dev/null";
	region_tend(&region, true);
	CHECK(region_sum(&region, 0) == 7 * MIB);
	end(holder);
	region_tend(&region, true);
	CHECK(region_sum(&region, 0) == 7 * MIB);
	region.path = files.usage_path;
	region_tend(&region, true);
	CHECK(region_sum(&region, 0) == 0);
}

static void *live_on(void *unused)
{
	nap(60000);
	return unused;
}

/* Its first thread ends, another lives on. */
static int hold_and_end_the_first_thread(const struct files *unused)
{
	struct region region;
	pthread_t thread;

	(void)unused;
	if (!join(&region) || pthread_create(&thread, NULL, live_on, NULL) != 0)
		return 1;
	close(open(files.usage_path, O_RDONLY | O_CLOEXEC));
	hold_bytes(&region, 0, 7 * MIB);
	syscall(SYS_exit, 0);
	return 2;
}

static bool is_zombie(pid_t pid)
{
	char path[40];
	char text[256] = "";

	snprintf(path, sizeof(path), "/proc/%d/stat", (int)pid);
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t length = read(fd, text, sizeof(text) - 1);

	close(fd);
	return length > 0 && strstr(text, ") Z ") != NULL;
}

static void test_a_process_whose_first_thread_has_ended_keeps_its_slot(void)
{
	struct region region;

	CHECK(join(&region));
	pid_t holder = spawn(hold_and_end_the_first_thread, &files);

	for (int tries = 0; tries < 30000 && !is_zombie(holder); tries++)
		nap(1);
	CHECK(is_zombie(holder));
	region_tend(&region, true);
	CHECK(region_sum(&region, 0) == 7 * MIB);
	end(holder);
	region_tend(&region, true);
	CHECK(region_sum(&region, 0) == 0);
}

/* As somebody leaves it who writes into the file. */
static void test_an_owner_that_was_taken_for_dead_counts_again_at_once(void)
{
	struct region region;
	struct region other;

	CHECK(join(&region));
	CHECK(join(&other));
	hold_bytes(&region, 0, 5 * MIB);
	struct vgpu_usage_slot *slot = &files.usage->slot[region.slot];

	slot->dev[0].used_bytes = 0;
	slot->state = VGPU_SLOT_FREE;
	region_tend(&region, false);
	CHECK(files.usage->slot[region.slot].state == VGPU_SLOT_LIVE);
	CHECK(region_sum(&other, 0) == 5 * MIB);
}

/* Until it has another slot, the one that was its own is somebody else's. */
static void test_who_was_given_an_owners_slot_counts_for_that_owner(void)
{
	struct region region;

	CHECK(join(&region));
	hold_bytes(&region, 0, 5 * MIB);
	struct vgpu_usage_slot *slot = &files.usage->slot[region.slot];

	slot->gen++;
	slot->pid++;
	slot->dev[0].used_bytes = 7 * MIB;
	CHECK(region_sum(&region, 0) == 12 * MIB);
}

static void test_garbage_never_makes_the_sum_small(void)
{
	struct region region;

	CHECK(join(&region));
	hold_bytes(&region, 0, 5 * MIB);
	memset(files.usage->slot, 0xff, sizeof(files.usage->slot));
	files.usage->slots_high = UINT32_MAX;
	CHECK(region_sum(&region, 0) == UINT64_MAX);
	memset(files.usage->slot, 0, sizeof(files.usage->slot));
	files.usage->slots_high = 0;
	CHECK(region_sum(&region, 0) == 5 * MIB);
	region_sub(&region, 0, 5 * MIB);
	CHECK(region_sum(&region, 0) == 0);
}

static void test_a_word_that_goes_down_hides_nobody(void)
{
	struct region region;
	pid_t one = start_holder();

	CHECK(join(&region));
	CHECK(region.slot == 1);
	files.usage->slots_high = 0;
	CHECK(region_sum(&region, 0) == 7 * MIB);
	CHECK(files.usage->slots_high == VGPU_MAX_SLOTS);
	files.usage->slots_high = 1;
	CHECK(region_sum(&region, 0) == 7 * MIB);
	end(one);
}

static void test_a_word_that_was_never_seen_higher_hides_nobody(void)
{
	struct region region;

	CHECK(join(&region));
	CHECK(region.slot == 0);
	pid_t one = start_holder();

	files.usage->slots_high = 1;
	CHECK(region_sum(&region, 0) == 7 * MIB);
	end(one);
}

static void test_an_owner_whose_slot_was_overwritten_takes_another(void)
{
	struct region region;

	CHECK(join(&region));
	hold_bytes(&region, 0, 5 * MIB);
	memset(files.usage->slot, 0, sizeof(files.usage->slot));
	nap(60);
	region_tend(&region, false);
	CHECK(files.usage->slot[region.slot].state == VGPU_SLOT_LIVE);
	CHECK(files.usage->slot[region.slot].dev[0].used_bytes == 5 * MIB);
	CHECK(region_sum(&region, 0) == 5 * MIB);
}

static void test_a_slot_of_the_dead_is_taken_again(void)
{
	struct region region;

	end(start_holder());
	CHECK(join(&region));
	CHECK(region.slot == 0);
	CHECK(region_sum(&region, 0) == 0);
	CHECK(files.usage->slot[0].gen == 2);
}

static void test_the_1025th_process_is_refused(void)
{
	struct region region;
	struct reason reason;
	struct vgpu_usage_slot *slot = files.usage->slot;

	memset(&region, 0, sizeof(region));
	CHECK(region_open(&region, files.usage_path, false, &reason));
	for (int i = 0; i < VGPU_MAX_SLOTS; i++)
		slot[i] = (struct vgpu_usage_slot){.state = VGPU_SLOT_LIVE, .pid = 1};
	/* The locks of 1,024 owners that live. */
	struct flock locks = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_len = VGPU_MAX_SLOTS};
	int fd = open(files.usage_path, O_RDWR | O_CLOEXEC);

	CHECK(fcntl(fd, F_OFD_SETLK, &locks) == 0);
	CHECK(!region_claim(&region, &reason));
	CHECK(strstr(reason.text, "1024 processes") != NULL);
	close(fd);
	CHECK(region_claim(&region, &reason));
}

static void test_what_is_no_usage_file(void)
{
	struct region region = {0};
	struct reason reason;

	CHECK(!region_open(&region, "/nowhere/usage", false, &reason));
	files.usage->header.major = 2;
	CHECK(!region_open(&region, files.usage_path, false, &reason));
	CHECK(strstr(reason.text, "version 2." NUMBER(VGPU_ABI_MINOR)) != NULL);
	files.usage->header.magic = 0;
	CHECK(!region_open(&region, files.usage_path, false, &reason));
	CHECK(strstr(reason.text, "is none") != NULL);
	CHECK(truncate(files.usage_path, 4096) == 0);
	CHECK(!region_open(&region, files.usage_path, false, &reason));
	CHECK(strstr(reason.text, "has 4096 bytes") != NULL);
}

static int open_new(const struct files *unused)
{
	struct region region = {0};
	struct reason reason;

	(void)unused;
	return !(region_open(&region, "/tmp/vgpu-test-new.usage", true, &reason) &&
		 region_claim(&region, &reason));
}

static void test_developers_share_a_file_that_the_first_one_makes(void)
{
	pid_t pids[16];

	unlink("/tmp/vgpu-test-new.usage");
	for (int i = 0; i < 16; i++)
		pids[i] = spawn(open_new, &files);
	for (int i = 0; i < 16; i++)
		CHECK(collect(pids[i]) == 0);
	unlink("/tmp/vgpu-test-new.usage");
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
	RUN_ON_FILES(test_the_sum_counts_all_processes);
	RUN_ON_FILES(test_what_is_asked_for_is_seen_and_not_held);
	RUN_ON_FILES(test_a_killed_process_is_cleared);
	RUN_ON_FILES(test_what_the_dead_had_under_way_is_charged_once);
	RUN_ON_FILES(test_who_takes_the_slot_of_the_dead_charges_what_they_had_under_way);
	RUN_ON_FILES(test_a_killed_process_that_nobody_collects_is_cleared);
	RUN_ON_FILES(test_what_a_killed_process_held_counts_until_its_forked_child_has_ended);
	RUN_ON_FILES(test_who_becomes_another_program_holds_nothing_of_the_old_ones);
	RUN_ON_FILES(test_who_closed_all_descriptors_before_it_used_a_card_is_let_in);
	RUN_ON_FILES(test_a_process_that_closed_all_descriptors_keeps_its_slot);
	RUN_ON_FILES(test_who_closed_all_descriptors_is_seen_from_another_pid_namespace);
	RUN_ON_FILES(test_a_child_without_its_parents_descriptors_keeps_nothing_of_it);
	RUN_ON_FILES(test_who_closed_all_descriptors_sees_at_once_that_another_has_ended);
	RUN_ON_FILES(test_who_unmapped_what_it_did_not_know_is_seen_to_live);
	RUN_ON_FILES(test_who_cannot_be_proven_dead_counts);
	RUN_ON_FILES(test_a_process_whose_first_thread_has_ended_keeps_its_slot);
	RUN_ON_FILES(test_an_owner_that_was_taken_for_dead_counts_again_at_once);
	RUN_ON_FILES(test_who_was_given_an_owners_slot_counts_for_that_owner);
	RUN_ON_FILES(test_garbage_never_makes_the_sum_small);
	RUN_ON_FILES(test_a_word_that_goes_down_hides_nobody);
	RUN_ON_FILES(test_a_word_that_was_never_seen_higher_hides_nobody);
	RUN_ON_FILES(test_an_owner_whose_slot_was_overwritten_takes_another);
	RUN_ON_FILES(test_a_slot_of_the_dead_is_taken_again);
	RUN_ON_FILES(test_the_1025th_process_is_refused);
	RUN_ON_FILES(test_what_is_no_usage_file);
	RUN_ON_FILES(test_developers_share_a_file_that_the_first_one_makes);
	return check_end();
}

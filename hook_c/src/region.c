// SPDX-License-Identifier: Apache-2.0
#include "region.h"

#include "decimal.h"
#include "last_work.h"
#include "log.h"
#include "sys.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#define TEND_NS UINT64_C(50000000)
#define NO_SLOT UINT32_MAX

#ifndef F_OFD_SETLK
#define F_OFD_SETLK 37 /* Linux 3.15; not in the headers of glibc 2.17 */
#endif

/* Bytes of the usage file that stand for locks. */
enum {
	FIRST_LIFE = 0, /* by slot: its owner's address space exists */
	MAKE = VGPU_MAX_SLOTS,
	FIRST_KEPT,                                 /* by slot: its owner's descriptors exist */
	FIRST_CHANGE = FIRST_KEPT + VGPU_MAX_SLOTS, /* by slot: it changes its owner */
};

#define LIFE_BYTES 4096
#define PF_EXITING 0x4 /* of the flags in /proc/PID/stat */

/* A change takes some instructions, taking another slot some system calls; either may be stopped in
 * the middle for as long as the system likes. */
#define UPDATE_WAITS 100000
#define MOVE_WAITS 1000

static uint64_t now_ns(clockid_t clock)
{
	struct timespec time;

	clock_gettime(clock, &time);
	return (uint64_t)time.tv_sec * UINT64_C(1000000000) + (uint64_t)time.tv_nsec;
}

static int set_lock(int fd, int command, uint32_t byte, short type)
{
	struct flock lock = {
		.l_type = type, .l_whence = SEEK_SET, .l_start = (off_t)byte, .l_len = 1};

	return sys_fcntl(fd, command, (uintptr_t)&lock);
}

/* The lock under which a slot changes its owner. A record lock ends with the process that holds it,
 * whoever has copies of the descriptor. 0, or what the kernel says. */
static int lock_change(const struct region *region, uint32_t index, short type)
{
	return set_lock(region->fd, F_SETLK, FIRST_CHANGE + index, type);
}

/* False: a copy of an earlier owner's descriptor is still open. */
static bool lock_kept(const struct region *region, uint32_t index, short type)
{
	return set_lock(region->kept_fd, F_OFD_SETLK, FIRST_KEPT + index, type) == 0;
}

static bool is_usage_file(const struct region *region, int fd)
{
	struct stat status = {0};

	return sys_fstat(fd, &status) == 0 && status.st_dev == region->device &&
	       status.st_ino == region->inode;
}

/* Whether somebody holds the lock. "No" is what frees memory, so it must be proven: the kernel has
 * answered, and about the usage file. Another thread may close all descriptors at any moment. */
static bool is_locked(const struct region *region, uint32_t byte)
{
	struct flock lock = {
		.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)byte, .l_len = 1};

	return sys_fcntl(region->fd, F_GETLK, (uintptr_t)&lock) != 0 || lock.l_type != F_UNLCK ||
	       !is_usage_file(region, region->fd);
}

/* Whether a process of which /proc says this state and so many threads has yet to give its memory
 * back. The leader of a group becomes a zombie when it ends, whatever its threads do; the driver
 * takes memory back when the last of them ends, and a thread that has ended is counted no more. */
static bool is_there(char state, uint64_t threads)
{
	return (state != 'Z' && state != 'X') || threads > 1;
}

/* The next field of a line whose fields are parted by one blank; NULL: there is none. */
static const char *skip_fields(const char *field, unsigned int count)
{
	while (count-- > 0 && field != NULL) {
		field = strchr(field, ' ');
		field = field == NULL ? NULL : field + 1;
	}
	return field;
}

struct proc_stat {
	uint64_t start_time;
	uint64_t flags;
};

/* Reads /proc/PID/stat; false if there is no such process, or it only waits to be collected. */
static bool read_stat(const char *pid, struct proc_stat *stat)
{
	uint64_t threads;
	char path[40];
	char text[1024];

	snprintf(path, sizeof(path), "/proc/%s/stat", pid);

	int fd = sys_open(path, O_RDONLY | O_CLOEXEC, 0);

	if (fd < 0)
		return false;

	long length = sys_read(fd, text, sizeof(text) - 1);

	sys_close(fd);
	if (length <= 0)
		return false;
	text[length] = '\0';

	/* The second field is a name in brackets that may hold brackets and blanks. The third is
	 * the state, the ninth the flags, the 20th counts threads, the 22nd is the start time. */
	const char *state = strrchr(text, ')');

	if (state == NULL || state[1] != ' ')
		return false;
	state += 2;

	const char *field = skip_fields(state, 9 - 3);

	if (field == NULL || parse_decimal(&field, &stat->flags) != 0)
		return false;
	field = skip_fields(field, 20 - 9);
	if (field == NULL || parse_decimal(&field, &threads) != 0 || !is_there(*state, threads))
		return false;
	field = skip_fields(field, 22 - 20);
	return field != NULL && parse_decimal(&field, &stat->start_time) == 0;
}

/* Whether the owner is ending, and may not have closed the driver's descriptors, which gives the
 * memory back. The lock on FIRST_LIFE does not tell: do_exit gives up the address space (exit_mm)
 * and then the descriptors (exit_files), what they refer to is released later (exit_task_work) in
 * no promised order, and of several threads each step's last one may be another. PF_EXITING is set
 * before all of that; a process becomes a zombie, and a thread is counted no more, after all of it.
 * A process of another PID namespace has no name here: until then it is known by its lock on
 * FIRST_KEPT alone. */
static bool is_ending(const struct region *region, const struct vgpu_usage_slot *slot)
{
	struct proc_stat stat;
	char pid[16];

	if (slot->pidns != region->pidns)
		return false;
	snprintf(pid, sizeof(pid), "%u", slot->pid);
	return read_stat(pid, &stat) && stat.start_time == slot->start_time &&
	       (stat.flags & PF_EXITING) != 0;
}

/* Whether the owner of the slot has ended, or has become another program. */
static bool is_dead(const struct region *region, uint32_t index)
{
	return !is_locked(region, FIRST_LIFE + index) &&
	       !is_ending(region, &region->usage->slot[index]);
}

static uint64_t own_pidns(void)
{
	struct stat status = {0};
	int fd = sys_open("/proc/self/ns/pid", O_RDONLY | O_CLOEXEC, 0);

	if (fd < 0)
		return 0;

	int error = sys_fstat(fd, &status);

	sys_close(fd);
	return error == 0 ? status.st_ino : 0;
}

/* A high number: whatever a program does with the small ones (dup2, closing 3 to 20) is no
 * concern of ours. */
static int move_up(int fd)
{
	static const int floors[] = {1000, 500, 100};

	for (size_t i = 0; i < sizeof(floors) / sizeof(floors[0]); i++) {
		int moved = sys_fcntl(fd, F_DUPFD_CLOEXEC, (uintptr_t)floors[i]);

		if (moved >= 0) {
			sys_close(fd);
			return moved;
		}
	}
	return fd;
}

/* Developer mode: the first process makes the file. The record lock behind the last slot's byte
 * orders the first two; it falls with its holder, so the wait has an end. */
static bool make_file(int fd, struct reason *reason)
{
	const struct vgpu_header header = {.magic = VGPU_USAGE_MAGIC,
					   .major = VGPU_ABI_MAJOR,
					   .minor = VGPU_ABI_MINOR,
					   .size = sizeof(struct vgpu_usage)};
	struct flock lock = {.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = MAKE, .l_len = 1};
	struct stat status = {0};
	long written = sizeof(header);
	int error = sys_fcntl(fd, F_SETLKW, (uintptr_t)&lock);

	if (error == 0)
		error = sys_fstat(fd, &status);
	if (error != 0)
		return refuse(reason, "the usage file cannot be locked: %s", strerror(-error));
	if (status.st_uid != sys_user())
		return refuse(reason, "the usage file belongs to another user");
	if (status.st_size == 0) {
		error = sys_ftruncate(fd, sizeof(struct vgpu_usage));
		if (error == 0)
			written = sys_write(fd, &header, sizeof(header));
		if (written < 0)
			error = (int)written;
	}
	lock.l_type = F_UNLCK;
	sys_fcntl(fd, F_SETLK, (uintptr_t)&lock);
	if (error != 0)
		return refuse(reason, "the usage file cannot be written: %s", strerror(-error));
	return written == (long)sizeof(header) ||
	       refuse(reason, "the usage file cannot be written");
}

static bool check_header(const struct vgpu_header *header, struct reason *reason)
{
	if (header->magic != VGPU_USAGE_MAGIC)
		return refuse(reason, "the usage file is none: it begins with 0x%08x",
			      header->magic);
	if (header->major != VGPU_ABI_MAJOR)
		return refuse(reason, "the usage file has version %u.%u, this library knows %d.x",
			      header->major, header->minor, VGPU_ABI_MAJOR);
	return true;
}

static int open_file(const char *path, bool create)
{
	int fd = sys_open(path, O_RDWR | O_CLOEXEC | O_NOFOLLOW | (create ? O_CREAT : 0), 0600);

	return fd < 0 ? fd : move_up(fd);
}

bool region_open(struct region *region, const char *path, bool create, struct reason *reason)
{
	struct stat status = {0};
	struct proc_stat stat;
	int kept_fd;
	int fd = open_file(path, create);

	if (fd < 0)
		return refuse(reason, "%s: %s", path, strerror(-fd));
	if (create && !make_file(fd, reason)) {
		sys_close(fd);
		return false;
	}
	if (sys_fstat(fd, &status) != 0 || status.st_size < (off_t)sizeof(struct vgpu_usage)) {
		sys_close(fd);
		return refuse(reason, "the usage file has %lld bytes of %zu",
			      (long long)status.st_size, sizeof(struct vgpu_usage));
	}

	struct vgpu_usage *usage = sys_map(sizeof(*usage), PROT_READ | PROT_WRITE, fd);

	if (usage == NULL) {
		sys_close(fd);
		return refuse(reason, "the usage file cannot be mapped");
	}
	if (!check_header(&usage->header, reason)) {
		sys_unmap(usage, sizeof(*usage));
		sys_close(fd);
		return false;
	}
	kept_fd = open_file(path, false);
	if (kept_fd < 0) {
		sys_unmap(usage, sizeof(*usage));
		sys_close(fd);
		return refuse(reason, "%s: %s", path, strerror(-kept_fd));
	}
	region->fd = fd;
	region->kept_fd = kept_fd;
	region->path = path;
	region->device = status.st_dev;
	region->inode = status.st_ino;
	region->pid = sys_pid();
	region->pidns = own_pidns();
	region->start_time = read_stat("self", &stat) ? stat.start_time : 0;
	region->usage = usage;
	return true;
}

static void raise_word(uint32_t *word, uint32_t high)
{
	uint32_t seen = __atomic_load_n(word, __ATOMIC_RELAXED);

	while (seen < high && !__atomic_compare_exchange_n(word, &seen, high, true,
							   __ATOMIC_SEQ_CST, __ATOMIC_RELAXED))
		;
}

/* Called before the slot below `high` is written to, so that no honest owner is above the word. */
static void raise_slots_high(struct region *region, uint32_t high)
{
	raise_word(&region->usage->slots_high, high);
	raise_word(&region->seen_high, high);
}

/* Whether the slot right above the word had an owner, which raises the word before it writes. */
static bool is_owned_above(const struct region *region, uint32_t high)
{
	const uint32_t *word = &region->usage->slots_high;

	return high < VGPU_MAX_SLOTS &&
	       __atomic_load_n(&region->usage->slot[high].gen, __ATOMIC_ACQUIRE) != 0 &&
	       __atomic_load_n(word, __ATOMIC_SEQ_CST) <= high;
}

/* How many slots to look at. The word only ever grows: one that went down, or that leaves an owner
 * out, was forged. Then all slots count, for this process from now on and, as the word says so
 * again, for the others. */
static uint32_t slots_high(struct region *region)
{
	/* In this order: another thread may see the word grow in between. */
	uint32_t seen = __atomic_load_n(&region->seen_high, __ATOMIC_ACQUIRE);
	uint32_t high = __atomic_load_n(&region->usage->slots_high, __ATOMIC_SEQ_CST);

	if (high > VGPU_MAX_SLOTS)
		return VGPU_MAX_SLOTS;
	if (high < seen || is_owned_above(region, high)) {
		raise_slots_high(region, VGPU_MAX_SLOTS);
		return VGPU_MAX_SLOTS;
	}
	if (high > seen)
		raise_word(&region->seen_high, high);
	return high;
}

/* The path may lead elsewhere by now: locks on another file would be seen by nobody. */
static int open_again(const struct region *region)
{
	int fd = open_file(region->path, false);

	if (fd < 0 || is_usage_file(region, fd))
		return fd;
	sys_close(fd);
	return -ESTALE;
}

/* The lock that says that its owner lives. It is one of an open file of which nothing is left but a
 * mapping that forked children do not get. So it ends with the address space of the process, by
 * exit, exec or a kill, is seen from every PID namespace, and no closing of descriptors ends it. */
struct life_lock {
	int fd;
	void *page;
};

static void end_life(void *page)
{
	sys_unmap(page, LIFE_BYTES);
}

static bool open_life(const struct region *region, struct life_lock *life, struct reason *reason)
{
	life->fd = open_again(region);
	if (life->fd < 0)
		return refuse(reason, "%s: %s", region->path, strerror(-life->fd));
	life->page = sys_map(LIFE_BYTES, PROT_NONE, life->fd);
	/* Before there is a lock: a child that is forked in between keeps none. */
	if (life->page != NULL && sys_advise(life->page, LIFE_BYTES, MADV_DONTFORK) == 0)
		return true;
	if (life->page != NULL)
		end_life(life->page);
	sys_close(life->fd);
	return refuse(reason, "the usage file cannot be mapped");
}

/* Both locks of an owner, or none. */
static bool lock_slot(const struct region *region, int life_fd, uint32_t index)
{
	if (set_lock(life_fd, F_OFD_SETLK, FIRST_LIFE + index, F_WRLCK) != 0)
		return false;
	if (lock_kept(region, index, F_WRLCK))
		return true;
	set_lock(life_fd, F_OFD_SETLK, FIRST_LIFE + index, F_UNLCK);
	return false;
}

/* Called with the lock on the change. False if its owner lives, or a child of it. Nobody changes
 * numbers meanwhile; who wants to has asked, to find that out. */
static bool take_slot(struct region *region, int life_fd, uint32_t index)
{
	struct vgpu_usage_slot *slot = &region->usage->slot[index];

	if (__atomic_load_n(&slot->state, __ATOMIC_ACQUIRE) != VGPU_SLOT_FREE &&
	    !is_dead(region, index))
		return false;
	if (!lock_slot(region, life_fd, index))
		return false;
	if (__atomic_load_n(&slot->state, __ATOMIC_ACQUIRE) != VGPU_SLOT_FREE)
		last_work_charge(region->usage, slot, now_ns(CLOCK_MONOTONIC));
	raise_slots_high(region, index + 1);
	__atomic_store_n(&slot->state, VGPU_SLOT_CLAIMED, __ATOMIC_SEQ_CST);
	slot->pid = region->pid;
	slot->start_time = region->start_time;
	slot->pidns = region->pidns;
	slot->flags = 0;
	region->gen = __atomic_add_fetch(&slot->gen, 1, __ATOMIC_RELEASE);
	memset(slot->dev, 0, sizeof(slot->dev));
	for (unsigned int card = 0; card < VGPU_MAX_DEVICES; card++) {
		__atomic_store_n(&slot->dev[card].asked_bytes,
				 __atomic_load_n(&region->left[card], __ATOMIC_SEQ_CST),
				 __ATOMIC_SEQ_CST);
		__atomic_store_n(&slot->dev[card].used_bytes,
				 __atomic_load_n(&region->own[card], __ATOMIC_SEQ_CST),
				 __ATOMIC_SEQ_CST);
	}
	__atomic_store_n(&slot->state, VGPU_SLOT_LIVE, __ATOMIC_SEQ_CST);
	return true;
}

static bool is_held(int error)
{
	return error == -EAGAIN || error == -EACCES;
}

static bool claim_any(struct region *region, int life_fd, struct reason *reason)
{
	for (uint32_t index = 0; index < VGPU_MAX_SLOTS; index++) {
		int error = lock_change(region, index, F_WRLCK);

		if (is_held(error))
			continue;
		if (error != 0)
			return refuse(reason, "the usage file cannot be locked: %s",
				      strerror(-error));

		bool is_taken = take_slot(region, life_fd, index);

		lock_change(region, index, F_UNLCK);
		if (!is_taken)
			continue;
		__atomic_store_n(&region->slot, index, __ATOMIC_RELAXED);
		__atomic_store_n(&region->claimed, 1, __ATOMIC_RELEASE);
		return true;
	}
	return refuse(reason, "%d processes of this container use the GPU already", VGPU_MAX_SLOTS);
}

/* Takes a slot, and keeps what it had before until then. */
static bool claim(struct region *region, struct reason *reason)
{
	struct life_lock life;

	if (!open_life(region, &life, reason))
		return false;

	bool is_claimed = claim_any(region, life.fd, reason);
	void *unused = is_claimed ? region->life : life.page;

	if (is_claimed)
		region->life = life.page;
	if (unused != NULL)
		end_life(unused);
	/* Only now: to close any descriptor of the file ends this process's locks on changes. */
	sys_close(life.fd);
	return is_claimed;
}

/* Record locks do not keep two threads of one process apart; this word does. Whoever holds it does
 * a bounded number of system calls. */
static bool try_busy(struct region *region)
{
	return __atomic_exchange_n(&region->busy, 1, __ATOMIC_ACQUIRE) == 0;
}

static void end_busy(struct region *region)
{
	__atomic_store_n(&region->busy, 0, __ATOMIC_RELEASE);
}

/* False: it was closed, and cannot be opened again. */
static bool keep_open(const struct region *region, int *fd)
{
	int fresh;

	if (is_usage_file(region, *fd))
		return true;
	/* The number may be another file by now: it is not ours to close. */
	fresh = open_again(region);
	if (fresh >= 0)
		*fd = fresh;
	return fresh >= 0;
}

bool region_claim(struct region *region, struct reason *reason)
{
	for (int tries = 0; !try_busy(region); tries++) {
		if (tries == 10000)
			return refuse(reason, "another thread does not come to an end");
		sys_sleep_ns(100000);
	}

	/* A daemon may have closed them since they were opened. */
	bool is_open = keep_open(region, &region->fd) && keep_open(region, &region->kept_fd);
	bool claimed = is_open && claim(region, reason);

	end_busy(region);
	return is_open ? claimed
		       : refuse(reason, "%s was closed, and cannot be opened again", region->path);
}

static struct vgpu_usage_slot *own_slot(const struct region *region)
{
	return &region->usage->slot[__atomic_load_n(&region->slot, __ATOMIC_RELAXED)];
}

/* A number of the slot and its private twin are changed by two instructions. What is copied to
 * another slot in between would lack the change, or be changed twice: so whoever changes one says
 * so first, by one of the words that is_still looks at, and the slot stays the one that it is until
 * the word has its old value. */
static void say_change(struct region *region, uint64_t *word, uint64_t part)
{
	__atomic_fetch_add(word, part, __ATOMIC_SEQ_CST);
	for (int waits = 0; waits < UPDATE_WAITS; waits++) {
		if (__atomic_load_n(&region->moving, __ATOMIC_SEQ_CST) == 0)
			return;
		__atomic_fetch_sub(word, part, __ATOMIC_SEQ_CST);
		sys_yield();
		__atomic_fetch_add(word, part, __ATOMIC_SEQ_CST);
	}
	/* Whoever moves it does not come to an end. */
}

/* Whether nobody changes a number of the slot. */
static bool is_still(const struct region *region)
{
	for (unsigned int card = 0; card < VGPU_MAX_DEVICES; card++)
		if (__atomic_load_n(&region->asked[card], __ATOMIC_SEQ_CST) !=
		    __atomic_load_n(&region->left[card], __ATOMIC_SEQ_CST))
			return false;
	return __atomic_load_n(&region->updating, __ATOMIC_SEQ_CST) == 0;
}

/* False: some thread was stopped in the middle of a change. */
static bool begin_move(struct region *region)
{
	__atomic_store_n(&region->moving, 1, __ATOMIC_SEQ_CST);
	for (int waits = 0; waits < MOVE_WAITS; waits++) {
		if (is_still(region))
			return true;
		sys_yield();
	}
	__atomic_store_n(&region->moving, 0, __ATOMIC_SEQ_CST);
	return false;
}

static void end_move(struct region *region)
{
	__atomic_store_n(&region->moving, 0, __ATOMIC_SEQ_CST);
}

/* All changes of numbers that others sum are sequentially consistent, as are their reads: of two
 * processes that ask and then sum, at least one sees the other's question. The limit rests on
 * that. */
static void raise_number(uint64_t *number, uint64_t bytes)
{
	__atomic_fetch_add(number, bytes, __ATOMIC_SEQ_CST);
}

static void lower_number(uint64_t *number, uint64_t bytes)
{
	__atomic_fetch_sub(number, bytes, __ATOMIC_SEQ_CST);
}

void region_sub(struct region *region, unsigned int card, uint64_t bytes)
{
	say_change(region, &region->updating, 1);
	lower_number(&own_slot(region)->dev[card].used_bytes, bytes);
	lower_number(&region->own[card], bytes);
	lower_number(&region->updating, 1);
}

/* The question itself says that there is a change, and its end that it is over. */
void region_ask(struct region *region, unsigned int card, uint64_t bytes)
{
	say_change(region, &region->asked[card], bytes);
	raise_number(&own_slot(region)->dev[card].asked_bytes, bytes);
}

void region_withdraw(struct region *region, unsigned int card, uint64_t bytes)
{
	lower_number(&own_slot(region)->dev[card].asked_bytes, bytes);
	lower_number(&region->asked[card], bytes);
}

/* Held before it is no longer asked for: whoever sums in between counts it twice, never not at all.
 * Counted before it is held: a reader that sees no count grow sees no more held than was granted
 * when it began. */
void region_take(struct region *region, unsigned int card, uint64_t bytes)
{
	struct vgpu_usage_slot *slot = own_slot(region);

	raise_number(&slot->grants, 1);
	raise_number(&region->own[card], bytes);
	raise_number(&slot->dev[card].used_bytes, bytes);
	region_withdraw(region, card, bytes);
}

void region_leave(struct region *region, unsigned int card, uint64_t bytes)
{
	raise_number(&region->left[card], bytes);
}

void region_resume(struct region *region, unsigned int card, uint64_t bytes)
{
	say_change(region, &region->updating, 1);
	lower_number(&region->left[card], bytes);
	lower_number(&region->updating, 1);
}

static uint64_t add_saturating(uint64_t a, uint64_t b)
{
	return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

static bool owns_slot(const struct region *region, uint32_t index)
{
	const struct vgpu_usage_slot *slot = &region->usage->slot[index];

	return __atomic_load_n(&slot->state, __ATOMIC_RELAXED) == VGPU_SLOT_LIVE &&
	       __atomic_load_n(&slot->gen, __ATOMIC_RELAXED) == region->gen &&
	       slot->pid == region->pid;
}

uint64_t region_sum(struct region *region, unsigned int card)
{
	/* Asked before held, here and below: see region_take. */
	uint64_t sum = __atomic_load_n(&region->asked[card], __ATOMIC_SEQ_CST);
	uint32_t claimed = __atomic_load_n(&region->claimed, __ATOMIC_ACQUIRE);
	uint32_t slot = __atomic_load_n(&region->slot, __ATOMIC_RELAXED);
	/* What is another's by now counts like all others'. */
	uint32_t own = claimed && owns_slot(region, slot) ? slot : NO_SLOT;
	uint32_t high = slots_high(region);

	sum += __atomic_load_n(&region->own[card], __ATOMIC_SEQ_CST);
	for (uint32_t index = 0; index < high; index++) {
		const struct vgpu_usage_slot *other = &region->usage->slot[index];

		if (index == own ||
		    __atomic_load_n(&other->state, __ATOMIC_SEQ_CST) == VGPU_SLOT_FREE)
			continue;
		sum = add_saturating(
			sum, __atomic_load_n(&other->dev[card].asked_bytes, __ATOMIC_SEQ_CST));
		sum = add_saturating(
			sum, __atomic_load_n(&other->dev[card].used_bytes, __ATOMIC_SEQ_CST));
	}
	return sum;
}

uint32_t region_list(struct region *region, unsigned int card, struct region_process *list,
		     uint32_t room)
{
	uint32_t high = slots_high(region);
	uint32_t count = 0;

	for (uint32_t index = 0; index < high; index++) {
		const struct vgpu_usage_slot *slot = &region->usage->slot[index];
		uint64_t used = __atomic_load_n(&slot->dev[card].used_bytes, __ATOMIC_RELAXED);

		if (__atomic_load_n(&slot->state, __ATOMIC_ACQUIRE) != VGPU_SLOT_LIVE ||
		    slot->pidns != region->pidns || used == 0)
			continue;
		if (count < room)
			list[count] = (struct region_process){.pid = slot->pid, .used_bytes = used};
		count++;
	}
	return count;
}

void region_note_high(struct region *region, unsigned int card)
{
	uint64_t *high = &own_slot(region)->dev[card].high_bytes;
	uint64_t own = __atomic_load_n(&region->own[card], __ATOMIC_RELAXED);

	if (__atomic_load_n(high, __ATOMIC_RELAXED) < own)
		__atomic_store_n(high, own, __ATOMIC_RELAXED);
}

void region_note_refused(struct region *region, unsigned int card)
{
	__atomic_fetch_add(&own_slot(region)->dev[card].refused, 1, __ATOMIC_RELAXED);
}

/* The mapping is gone: whatever is at its place now is not ours. */
static void renew_life(struct region *region)
{
	struct life_lock life;
	struct reason reason;

	if (!open_life(region, &life, &reason))
		return; /* the next visit tries again */
	if (set_lock(life.fd, F_OFD_SETLK, FIRST_LIFE + region->slot, F_WRLCK) == 0)
		region->life = life.page;
	else
		end_life(life.page);
	sys_close(life.fd);
}

/* Called with `busy`. */
static void tend_own(struct region *region)
{
	uint32_t slot = region->slot;
	struct reason reason;

	if (!keep_open(region, &region->fd) || !keep_open(region, &region->kept_fd))
		return; /* the next visit tries again */
	if (owns_slot(region, slot)) {
		if (!is_locked(region, FIRST_LIFE + slot))
			renew_life(region);
		lock_kept(region, slot, F_WRLCK);
		return;
	}
	if (!begin_move(region))
		return;
	log_warning("slot %u was taken from its living owner", slot);
	if (claim(region, &reason))
		lock_kept(region, slot, F_UNLCK); /* never the same: its other lock was ours */
	else
		log_error("%s", reason.text);
	end_move(region);
}

/* Its owner is gone, and has left what it held to a forked child. */
static void keep_of_child(struct vgpu_usage_slot *slot)
{
	if ((slot->flags & VGPU_FLAG_KEPT) == 0)
		log_warning("process %u has ended, and what it held counts until its forked "
			    "children have",
			    slot->pid);
	slot->flags |= VGPU_FLAG_KEPT;
}

/* Called with `busy`. */
static void clear_dead(struct region *region)
{
	uint32_t high = slots_high(region);

	if (!keep_open(region, &region->fd))
		return; /* nobody can be proven dead */
	for (uint32_t index = 0; index < high; index++) {
		struct vgpu_usage_slot *slot = &region->usage->slot[index];

		if (__atomic_load_n(&slot->state, __ATOMIC_ACQUIRE) == VGPU_SLOT_FREE ||
		    (region->claimed && index == region->slot) ||
		    is_locked(region, FIRST_LIFE + index) ||
		    lock_change(region, index, F_WRLCK) != 0)
			continue;
		/* Once more, now that nobody else can change it. */
		if (__atomic_load_n(&slot->state, __ATOMIC_ACQUIRE) == VGPU_SLOT_FREE ||
		    !is_dead(region, index)) {
			lock_change(region, index, F_UNLCK);
			continue;
		}
		last_work_charge(region->usage, slot, now_ns(CLOCK_MONOTONIC));
		if (is_locked(region, FIRST_KEPT + index)) {
			keep_of_child(slot);
		} else {
			for (unsigned int card = 0; card < VGPU_MAX_DEVICES; card++) {
				__atomic_store_n(&slot->dev[card].asked_bytes, 0, __ATOMIC_SEQ_CST);
				__atomic_store_n(&slot->dev[card].used_bytes, 0, __ATOMIC_SEQ_CST);
			}
			__atomic_store_n(&slot->state, VGPU_SLOT_FREE, __ATOMIC_SEQ_CST);
		}
		lock_change(region, index, F_UNLCK);
	}
}

bool region_is_own(const struct region *region)
{
	return owns_slot(region, __atomic_load_n(&region->slot, __ATOMIC_RELAXED));
}

static bool is_due(const uint64_t *last, uint64_t now)
{
	uint64_t then = __atomic_load_n(last, __ATOMIC_RELAXED);

	return then > now || now - then >= TEND_NS; /* "later than now" can only be garbage */
}

bool region_is_alone(const struct region *region)
{
	return __atomic_load_n(&region->claimed, __ATOMIC_ACQUIRE) != 0 &&
	       __atomic_load_n(&region->slot, __ATOMIC_RELAXED) == 0 &&
	       __atomic_load_n(&region->seen_high, __ATOMIC_RELAXED) == 1 &&
	       __atomic_load_n(&region->usage->slots_high, __ATOMIC_RELAXED) == 1;
}

void region_tend(struct region *region, bool now)
{
	uint64_t clock = now_ns(CLOCK_MONOTONIC_COARSE);
	uint32_t slot = __atomic_load_n(&region->slot, __ATOMIC_RELAXED);
	bool own_is_due =
		region->claimed && (is_due(&region->tended_ns, clock) || !owns_slot(region, slot));

	if (!now && !own_is_due && !is_due(&region->usage->reaped_ns, clock))
		return;
	if (!try_busy(region))
		return;
	if (own_is_due) {
		tend_own(region);
		__atomic_store_n(&region->tended_ns, clock, __ATOMIC_RELAXED);
	}
	if (now || is_due(&region->usage->reaped_ns, clock)) {
		__atomic_store_n(&region->usage->reaped_ns, clock, __ATOMIC_RELAXED);
		clear_dead(region);
	}
	end_busy(region);
}

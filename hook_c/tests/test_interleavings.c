// SPDX-License-Identifier: Apache-2.0
/* The account under every order in which the instructions of its processes can come.
 *
 * region.c, quota.c and pool_account.c are compiled into this file with their atomic operations and
 * system calls replaced: before each that others can see, the running thread stops and a search
 * decides who goes on. It tries all orders, and leaves out those that lead to a state that it has
 * seen. A process may be killed at any such point and dies in the steps in which the kernel lets it
 * die. Memory is sequentially consistent here, as the operations that the limit rests on ask for.
 */
#include "check.h"

#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <ucontext.h>

#define VGPU_SYS_H /* its functions are below */

static void step(const volatile void *address);
static void note(uint64_t value);

static int sys_open(const char *path, int flags, unsigned int mode);
static long sys_read(int fd, void *buffer, size_t size);
static long sys_write(int fd, const void *buffer, size_t size);
static int sys_close(int fd);
static int sys_fcntl(int fd, int command, uintptr_t argument);
static int sys_fstat(int fd, struct stat *status);
static int sys_ftruncate(int fd, uint64_t size);
static void *sys_map(size_t size, int protection, int fd);
static void sys_unmap(void *address, size_t size);
static int sys_advise(void *address, size_t size, int advice);
static uint32_t sys_pid(void);
static uint32_t sys_user(void);
static void sys_sleep_ns(long ns);
static void sys_yield(void);
static int sim_clock(clockid_t clock, struct timespec *time);

/* What a thread has read is all that tells its state from that of another run. */
#define SEEN(address, operation)                                                                   \
	__extension__({                                                                            \
		step(address);                                                                     \
		__auto_type seen_ = (operation);                                                   \
		note((uint64_t)seen_);                                                             \
		seen_;                                                                             \
	})
#define __atomic_load_n(p, o) SEEN(p, __atomic_load_n(p, o))
#define __atomic_exchange_n(p, v, o) SEEN(p, __atomic_exchange_n(p, v, o))
#define __atomic_fetch_add(p, v, o) SEEN(p, __atomic_fetch_add(p, v, o))
#define __atomic_fetch_sub(p, v, o) SEEN(p, __atomic_fetch_sub(p, v, o))
#define __atomic_add_fetch(p, v, o) SEEN(p, __atomic_add_fetch(p, v, o))
#define __atomic_sub_fetch(p, v, o) SEEN(p, __atomic_sub_fetch(p, v, o))
#define __atomic_compare_exchange_n(p, e, v, w, s, f)                                              \
	SEEN(p, __atomic_compare_exchange_n(p, e, v, false, s, f))
#define __atomic_store_n(p, v, o) (step(p), __atomic_store_n(p, v, o))
#define clock_gettime(clock, time) sim_clock(clock, time)

/* NOLINTBEGIN(bugprone-suspicious-include) */
#include "../src/pool_account.c"
#include "../src/quota.c"
#include "../src/region.c"
/* NOLINTEND(bugprone-suspicious-include) */

#undef __atomic_load_n
#undef __atomic_exchange_n
#undef __atomic_fetch_add
#undef __atomic_fetch_sub
#undef __atomic_add_fetch
#undef __atomic_sub_fetch
#undef __atomic_compare_exchange_n
#undef __atomic_store_n

#define SLAB QUOTA_SLAB_BYTES
#define LIMIT (10 * SLAB)
#define POOL_LIMIT (3 * POOL_STEP)
#define PROCESSES 3
#define THREADS 4
#define STACK_BYTES ((size_t)128 << 10)
#define MOST_STEPS 2000
#define FD_USAGE 1000
#define FD_STAT 2000 /* + process */
#define FD_LIFE 3000 /* + process */

/* How the kernel ends a killed process: its leader is a zombie while a thread still ends; then the
 * address space, the descriptors and with them all locks are gone; then the driver has given back
 * the memory, and nothing is left of it. */
enum life {
	LIFE_WHOLE,
	LIFE_LEADER_GONE,
	LIFE_LOCKS_GONE,
	LIFE_MEMORY_GONE,
};

static struct process {
	struct region region;
	struct quota quota;
	struct limits limits;
	enum life life;
	bool may_be_killed;
	unsigned int threads;
	uint64_t held; /* of the card: between the driver's yes and the free */
} processes[PROCESSES];

static struct thread {
	struct process *process; /* NULL: watches from outside */
	void (*run)(void);
	uint64_t operation; /* how many it has begun */
	uint64_t history;   /* of this operation */
	jmp_buf place;
	bool begun;
	bool done;
	bool waits;  /* for a step of another thread */
	bool sleeps; /* until nobody else can go on */
} threads[THREADS];

static struct vgpu_usage usage;
/* By slot; process + 1. */
static uint32_t life_owner[VGPU_MAX_SLOTS];
static uint32_t change_owner[VGPU_MAX_SLOTS];
static struct thread *self; /* NULL: the search itself, for process `actor` */
static unsigned int actor;
static jmp_buf search_place;
static unsigned int process_count;
static unsigned int thread_count;
static uint64_t limit;
/* Of the first process; its number of what is reserved falls before the card has it. */
static struct tenant tenant;
static uint64_t pool_reserved;
static uint64_t pool_used;
static bool has_pool;
static bool may_pass;      /* the limit, and what is asked for */
static bool is_crowded;    /* others come to the pool and go whenever the driver is asked */
static bool has_passed;    /* a call has ended well with what was not granted */
static bool may_lose_slot; /* of the first process: somebody writes into the file */
static bool has_lost_slot;
static bool has_watcher;
/* With three threads all orders are too many: those in which no more often than this a thread is
 * stopped that could go on. Few are enough to find what goes wrong. */
#define NO_BOUND UINT32_MAX
static uint32_t most_switches;
static uint32_t switches;
static const struct thread *last;

/* --- threads ------------------------------------------------------------------------------- */

static uint64_t mix(uint64_t hash, uint64_t value)
{
	hash = ((hash ^ value) + 1) * UINT64_C(0x9e3779b97f4a7c15);
	return hash ^ hash >> 29;
}

static void note(uint64_t value)
{
	if (self != NULL)
		self->history = mix(self->history, value);
}

/* swapcontext is a system call, which is what this program would do most of the time: it only
 * brings a thread to its stack. */
static void stop(void)
{
	note(1); /* it has come further */
	if (_setjmp(self->place) == 0)
		_longjmp(search_place, 1);
}

static void thread_main(void)
{
	self->run();
	self->done = true;
	stop();
}

static void begin_thread(void)
{
	static ucontext_t contexts[THREADS];
	static ucontext_t nowhere;
	static char stacks[THREADS][STACK_BYTES];
	size_t index = (size_t)(self - threads);
	ucontext_t *context = &contexts[index];

	self->begun = true;
	if (context->uc_stack.ss_sp == NULL)
		getcontext(context);
	context->uc_stack.ss_sp = stacks[index];
	context->uc_stack.ss_size = STACK_BYTES;
	makecontext(context, thread_main, 0);
	swapcontext(&nowhere, context);
}

/* Until its next step that others can see. */
static void go_on(struct thread *thread)
{
	self = thread;
	if (_setjmp(search_place) == 0) {
		if (!thread->begun)
			begin_thread();
		_longjmp(thread->place, 1);
	}
	self = NULL;
}

/* Nobody else sees the words of a process with one thread, and nothing follows from those that are
 * for display or never change here. */
static bool is_shared(const volatile void *address)
{
	for (unsigned int i = 0; i < PROCESSES + 1; i++) {
		const struct vgpu_usage_slot *slot = &usage.slot[i];

		if (address == &slot->state || address == &slot->dev[0].used_bytes ||
		    address == &slot->dev[0].asked_bytes ||
		    (address == &slot->grants && has_watcher))
			return true;
	}
	if (address == &tenant.pool[0].at || address == &tenant.pool[0].word ||
	    address == &tenant.pool[0].past || address == &tenant.giving)
		return true;
	for (unsigned int i = 0; i < process_count; i++) {
		const struct region *region = &processes[i].region;

		if (processes[i].threads == 1)
			continue;
		if (address == &region->own[0] || address == &region->asked[0] ||
		    address == &region->busy ||
		    (may_lose_slot && (address == &region->updating || address == &region->moving ||
				       address == &region->left[0] || address == &region->slot)))
			return true;
	}
	return false;
}

static void step(const volatile void *address)
{
	if (self == NULL || !is_shared(address))
		return;
	stop();
}

static void sys_yield(void)
{
	if (self == NULL)
		return;
	self->waits = true;
	self->history = 0; /* a loop that looks again: how often does not matter */
	stop();
}

/* How long follows from the number of the try, which is all that is kept of those before it. */
static void sys_sleep_ns(long ns)
{
	if (self == NULL)
		return;
	/* How often it has slept for calls that are under way does not matter. */
	self->sleeps = ns == CROWD_WAIT_NS;
	self->history = self->sleeps ? 0 : mix(self->operation, (uint64_t)ns);
	stop();
}

/* --- system calls --------------------------------------------------------------------------- */

static uint32_t own_number(void)
{
	return self == NULL ? actor + 1 : (uint32_t)(self->process - processes) + 1;
}

/* Nobody forks here, so the lock that children inherit ends with the owner's. */
static int sys_fcntl(int fd, int command, uintptr_t argument)
{
	if (command == F_DUPFD_CLOEXEC)
		return fd;

	struct flock *lock = (struct flock *)argument; /* NOLINT */
	uint32_t byte = (uint32_t)lock->l_start;
	bool is_change = byte >= FIRST_CHANGE;
	uint32_t *owner =
		is_change ? &change_owner[byte - FIRST_CHANGE] : &life_owner[byte % VGPU_MAX_SLOTS];

	note(3);
	if (byte >= FIRST_KEPT && !is_change) {
		lock->l_type = F_UNLCK;
		return 0;
	}
	if (self != NULL)
		stop();
	if (command == F_GETLK) { /* also its own life: that is the lock of another open file */
		if (*owner == 0)
			lock->l_type = F_UNLCK;
		note(*owner);
		return 0;
	}
	if (*owner != 0 && (*owner != own_number() || fd >= FD_LIFE))
		return -EAGAIN;
	*owner = lock->l_type == F_UNLCK ? 0 : own_number();
	return 0;
}

static int sys_open(const char *path, int flags, unsigned int mode)
{
	(void)flags;
	(void)mode;
	note(4);
	if (self != NULL)
		stop();
	if (strcmp(path, "usage") == 0)
		return FD_LIFE + (int)own_number() - 1;

	unsigned int pid = (unsigned int)strtoul(path + strlen("/proc/"), NULL, 10);

	return pid >= 1 && pid <= process_count && processes[pid - 1].life != LIFE_MEMORY_GONE
		       ? FD_STAT + (int)pid - 1
		       : -ENOENT;
}

static long sys_read(int fd, void *buffer, size_t size)
{
	const struct process *process = &processes[fd - FD_STAT];
	bool is_whole = process->life == LIFE_WHOLE;

	note((uint64_t)process->life);
	return snprintf(buffer, size, "%d (a) b) %c 0 0 0 0 0 %d 0 0 0 0 0 0 0 0 0 0 %d 0 7 0",
			fd - FD_STAT + 1, is_whole ? 'S' : 'Z', is_whole ? 0 : PF_EXITING,
			process->life == LIFE_MEMORY_GONE ? 1 : 2);
}

static int sys_fstat(int fd, struct stat *status)
{
	(void)fd;
	(void)status;
	return 0;
}

static int sim_clock(clockid_t clock, struct timespec *time)
{
	(void)clock;
	*time = (struct timespec){.tv_sec = 1}; /* nothing is ever due by time alone */
	return 0;
}

static int sys_close(int fd)
{
	(void)fd;
	return 0;
}

/* Not reached: the files are open, and nobody makes one. */
static long sys_write(int fd, const void *buffer, size_t size)
{
	(void)fd;
	(void)buffer;
	(void)size;
	abort();
}

static int sys_ftruncate(int fd, uint64_t size)
{
	(void)fd;
	(void)size;
	abort();
}

/* Only to keep the file of a life open. */
static void *sys_map(size_t size, int protection, int fd)
{
	(void)size;
	(void)protection;
	return &processes[fd - FD_LIFE];
}

static int sys_advise(void *address, size_t size, int advice)
{
	(void)address;
	(void)size;
	(void)advice;
	return 0;
}

/* The one before: another slot has been taken. */
static void sys_unmap(void *address, size_t size)
{
	(void)address;
	(void)size;
	for (unsigned int slot = 0; slot < PROCESSES + 1; slot++)
		if (life_owner[slot] == own_number() &&
		    slot != processes[own_number() - 1].region.slot)
			life_owner[slot] = 0;
}

static uint32_t sys_pid(void)
{
	return own_number();
}

static uint32_t sys_user(void)
{
	abort();
}

void limits_refresh(struct limits *limits)
{
	(void)limits;
}

void log_text(unsigned int level, const char *text)
{
	(void)level;
	(void)text;
}

/* --- what holds at every moment -------------------------------------------------------------- */

static uint64_t sum_of_slots(bool asked)
{
	uint64_t sum = 0;

	for (unsigned int i = 0; i < PROCESSES + 1; i++)
		if (usage.slot[i].state != VGPU_SLOT_FREE)
			sum += asked ? usage.slot[i].dev[0].asked_bytes
				     : usage.slot[i].dev[0].used_bytes;
	return sum;
}

static uint64_t sum_of_cards_memory(void)
{
	uint64_t sum = 0;

	for (unsigned int i = 0; i < process_count; i++)
		if (processes[i].life != LIFE_MEMORY_GONE)
			sum += processes[i].held;
	return sum;
}

/* A slot that its owner has lost is missing in the account for a moment; its bytes are not. */
static const char *wrong_now(void)
{
	uint64_t account = sum_of_slots(false);

	if (account > limit && !has_lost_slot)
		return "the account is above the limit";
	if (has_passed)
		return "a call has got what was not granted";
	if (may_pass)
		return NULL;
	if (sum_of_cards_memory() > limit && !has_lost_slot)
		return "the card has given more than the limit";
	if (has_pool) /* what a pool has grown by is held when the call is over */
		account += sum_of_slots(true);
	if (account < sum_of_cards_memory() && !has_lost_slot)
		return "the account is below what is held";
	return NULL;
}

static const char *wrong_at_the_end(void)
{
	uint64_t held = sum_of_cards_memory();

	for (actor = 0; processes[actor].life != LIFE_WHOLE;)
		actor++;
	region_tend(&processes[actor].region, true);
	return sum_of_slots(false) != held ? "the account is not what the living hold"
	       : sum_of_slots(true) != 0   ? "something is still asked for"
					   : NULL;
}

/* --- the search ------------------------------------------------------------------------------ */

#define STATES (UINT64_C(1) << 22)

static uint64_t seen_states[STATES];
static uint64_t state_count;
static struct {
	unsigned int taken;
	unsigned int count;
} path[MOST_STEPS];
static unsigned int path_length;

static bool is_new_state(uint64_t key)
{
	key |= 1;
	for (uint64_t place = key >> 20 & (STATES - 1);; place = (place + 1) & (STATES - 1)) {
		if (seen_states[place] == key)
			return false;
		if (seen_states[place] == 0) {
			seen_states[place] = key;
			state_count++;
			return true;
		}
	}
}

static uint64_t state_key(void)
{
	uint64_t key = has_lost_slot;

	if (most_switches != NO_BOUND)
		key = mix(key, switches + ((uint64_t)(uintptr_t)last << 8));

	for (unsigned int i = 0; i < PROCESSES + 1; i++) {
		const struct vgpu_usage_slot *slot = &usage.slot[i];

		key = mix(key, slot->state | (uint64_t)slot->pid << 32);
		key = mix(key, slot->gen | (has_watcher ? slot->grants << 32 : 0));
		key = mix(key, slot->dev[0].used_bytes);
		key = mix(key, slot->dev[0].asked_bytes);
	}
	for (unsigned int i = 0; i < PROCESSES + 1; i++)
		key = mix(key, life_owner[i] | (uint64_t)change_owner[i] << 32);
	for (unsigned int i = 0; i < process_count; i++) {
		const struct process *process = &processes[i];

		key = mix(key, (uint64_t)process->life);
		key = mix(key, process->held);
		key = mix(key, process->region.own[0]);
		key = mix(key, process->region.asked[0]);
		key = mix(key, process->region.slot | (uint64_t)process->region.gen << 32);
		key = mix(key, process->region.busy | (uint64_t)process->region.moving << 8 |
				       process->region.updating << 16);
		key = mix(key, process->quota.small[0].bytes + process->quota.small[0].locked);
	}
	key = mix(key, tenant.pool[0].at);
	key = mix(key, tenant.pool[0].word);
	key = mix(key, tenant.pool[0].past);
	key = mix(key, tenant.giving);
	key = mix(key, pool_reserved);
	key = mix(key, pool_used);
	for (unsigned int i = 0; i < thread_count; i++) {
		key = mix(key, threads[i].history);
		key = mix(key, threads[i].operation);
		key = mix(key, (uint64_t)threads[i].sleeps << 2 | (uint64_t)threads[i].done << 1 |
				       threads[i].waits);
	}
	return key;
}

static bool is_running(const struct thread *thread)
{
	return !thread->done && !thread->waits && !thread->sleeps &&
	       (thread->process == NULL || thread->process->life == LIFE_WHOLE);
}

static void end_waits(const struct thread *but_of)
{
	for (unsigned int i = 0; i < thread_count; i++) {
		threads[i].waits &= &threads[i] == but_of;
		threads[i].sleeps &= but_of != NULL;
	}
}

static void drop_locks(uint32_t owner)
{
	for (unsigned int slot = 0; slot < PROCESSES + 1; slot++) {
		if (life_owner[slot] == owner)
			life_owner[slot] = 0;
		if (change_owner[slot] == owner)
			change_owner[slot] = 0;
	}
}

/* Threads that may go on, and then what may happen to processes. */
static unsigned int events(unsigned int wanted, bool act)
{
	unsigned int count = 0;

	for (unsigned int i = 0; i < thread_count; i++) {
		bool is_switch = last != NULL && last != &threads[i] && is_running(last);

		if (!is_running(&threads[i]) || (is_switch && switches >= most_switches))
			continue;
		if (act && count == wanted) {
			switches += is_switch;
			last = &threads[i];
			end_waits(&threads[i]);
			go_on(&threads[i]);
			return 0;
		}
		count++;
	}
	for (unsigned int i = 0; i < process_count; i++) {
		struct process *process = &processes[i];

		if (!process->may_be_killed || process->life == LIFE_MEMORY_GONE)
			continue;
		if (act && count == wanted) {
			process->life++;
			if (process->life == LIFE_LOCKS_GONE)
				drop_locks(i + 1);
			end_waits(NULL);
			return 0;
		}
		count++;
	}
	if (may_lose_slot && !has_lost_slot) {
		if (act && count == wanted) {
			struct vgpu_usage_slot *slot = &usage.slot[processes[0].region.slot];

			slot->dev[0].asked_bytes = 0;
			slot->dev[0].used_bytes = 0;
			slot->state = VGPU_SLOT_FREE;
			has_lost_slot = true;
			return 0;
		}
		count++;
	}
	return count;
}

static bool is_over(void)
{
	for (unsigned int i = 0; i < thread_count; i++)
		if (!threads[i].done &&
		    (threads[i].process == NULL || threads[i].process->life == LIFE_WHOLE))
			return false;
	return true;
}

static void begin(void (*set_up)(void))
{
	/* What a run has touched of it. */
	memset(&usage, 0, offsetof(struct vgpu_usage, slot[PROCESSES + 1]));
	memset(processes, 0, sizeof(processes));
	memset(threads, 0, sizeof(threads));
	memset(life_owner, 0, sizeof(life_owner[0]) * (PROCESSES + 1));
	memset(change_owner, 0, sizeof(change_owner[0]) * (PROCESSES + 1));
	process_count = 0;
	thread_count = 0;
	limit = LIMIT;
	tenant.pool[0] = (struct tenant_pool){.state = TENANT_POOL_LIVE};
	tenant.giving = 0;
	pool_reserved = 0;
	pool_used = 0;
	has_pool = false;
	may_pass = false;
	is_crowded = false;
	has_passed = false;
	may_lose_slot = false;
	has_watcher = false;
	most_switches = NO_BOUND;
	switches = 0;
	last = NULL;
	has_lost_slot = false;
	set_up();
}

/* One run: along the path, then always the first event. What is wrong, or NULL. */
static const char *run_once(void (*set_up)(void))
{
	const char *wrong = NULL;
	unsigned int idle = 0; /* how often in a row all that are left have waited */

	begin(set_up);
	for (unsigned int depth = 0; wrong == NULL; depth++) {
		unsigned int count = events(0, false);

		if (is_over() && count == 0)
			return wrong_at_the_end();
		if (count == 0) { /* what one waits for may have come before it began to */
			if (++idle > 2)
				return "nobody can go on";
			end_waits(NULL);
			count = events(0, false);
		} else {
			idle = 0;
		}
		if (depth == path_length) {
			if (!is_new_state(state_key()))
				return NULL;
			if (depth == MOST_STEPS)
				return "it does not come to an end";
			path[depth].taken = 0;
			path[depth].count = count;
			path_length++;
		}
		events(path[depth].taken, true);
		wrong = wrong_now();
	}
	return wrong;
}

static bool next_path(void)
{
	while (path_length > 0 && path[path_length - 1].taken + 1 == path[path_length - 1].count)
		path_length--;
	if (path_length == 0)
		return false;
	path[path_length - 1].taken++;
	return true;
}

/* True: every order is right. */
static bool search(void (*set_up)(void), const char *name)
{
	uint64_t runs = 0;

	memset(seen_states, 0, sizeof(seen_states));
	state_count = 0;
	path_length = 0;
	do {
		const char *wrong = run_once(set_up);

		runs++;
		if (wrong != NULL) {
			printf("%s: %s, after %u steps:", name, wrong, path_length);
			for (unsigned int i = 0; i < path_length; i++)
				printf(" %u", path[i].taken);
			printf("\n");
			return false;
		}
		if (state_count > STATES / 4 * 3) {
			printf("%s: more states than there is room for\n", name);
			return false;
		}
	} while (next_path());
	printf("%s: %llu states, %llu runs\n", name, (unsigned long long)state_count,
	       (unsigned long long)runs);
	return true;
}

/* --- what the processes do -------------------------------------------------------------------- */

static struct process *add_process(void)
{
	struct process *process = &processes[process_count++];

	process->region = (struct region){.usage = &usage,
					  .path = "usage",
					  .fd = FD_USAGE,
					  .pid = process_count,
					  .start_time = 7,
					  .pidns = 1};
	process->limits.count = 1;
	process->limits.card[0].memory_bytes = limit;
	process->quota.region = &process->region;
	process->quota.limits = &process->limits;
	/* They have come before the search begins. */
	uint32_t slot = process_count - 1;

	actor = slot;
	take_slot(&process->region, FD_LIFE + (int)slot, slot);
	process->region.life = process;
	process->region.slot = slot;
	process->region.claimed = 1;
	process->region.tended_ns = UINT64_C(1000000000);
	usage.reaped_ns = UINT64_C(1000000000);
	return process;
}

static void add_thread(struct process *process, void (*run)(void))
{
	threads[thread_count++] = (struct thread){.process = process, .run = run};
	if (process != NULL)
		process->threads++;
	else
		has_watcher = true;
}

static void begin_operation(void)
{
	self->history = ++self->operation;
}

static bool take(uint64_t bytes)
{
	begin_operation();
	if (!quota_take(&self->process->quota, 0, bytes))
		return false;
	self->process->held += bytes;
	stop();
	return true;
}

static void give(uint64_t bytes)
{
	begin_operation();
	self->process->held -= bytes;
	stop();
	quota_give(&self->process->quota, 0, bytes);
}

static void take_and_give_six(void)
{
	if (take(6 * SLAB))
		give(6 * SLAB);
}

static void take_and_give_six_twice(void)
{
	take_and_give_six();
	take_and_give_six();
}

static void take_and_give_four(void)
{
	if (take(4 * SLAB))
		give(4 * SLAB);
}

static void keep_four(void)
{
	take(4 * SLAB);
}

static void tend_now(void)
{
	region_tend(&self->process->region, true);
}

/* As a reader from outside does; runtime_shim and the bench have the same in Python. */
static bool watched_too_much;

static void watch(void)
{
	uint64_t before[2];
	uint64_t sum = 0;
	bool same = true;

	for (int i = 0; i < 2; i++) {
		stop();
		before[i] = usage.slot[i].grants;
		note(before[i]);
	}
	for (int i = 0; i < 2; i++) {
		stop();
		sum += usage.slot[i].dev[0].used_bytes;
		note(sum);
	}
	for (int i = 0; i < 2; i++) {
		stop();
		same &= before[i] == usage.slot[i].grants;
		note(same);
	}
	watched_too_much |= same && sum > LIMIT;
}

/* --- a pool of the driver --------------------------------------------------------------------- */

struct driver driver;

bool is_any_captured(void)
{
	return false;
}

void exchange_capture_mode(int *mode)
{
	(void)mode;
}

static int sim_pool_number(void *handle, int attribute, void *value)
{
	uint64_t *number = value;

	(void)handle;
	stop();
	*number = attribute == CU_MEMPOOL_ATTR_USED_MEM_CURRENT ? pool_used : pool_reserved;
	note(*number);
	if (is_crowded) {
		pool_pin(&tenant.pool[0]);
		swap_word(&tenant.pool[0], tenant.pool[0].word,
			  next_word(tenant.pool[0].word, held_of(tenant.pool[0].word)));
		pool_unpin(&tenant.pool[0]);
	}
	return CUDA_SUCCESS;
}

/* The driver's turn, which may make the pool grow for what another thread has freed meanwhile. */
static void driver_allocates(void)
{
	stop();
	pool_used += POOL_STEP;
	if (pool_used <= pool_reserved)
		return;
	self->process->held += pool_used - pool_reserved;
	pool_reserved = pool_used;
}

static bool allocate(uint64_t bytes)
{
	struct tenant_pool *pool = &tenant.pool[0];
	struct pool_call call = {.bytes = bytes};

	begin_operation();
	if (!pool_pin(pool))
		return false;
	if (!pool_call_begin(&tenant, pool, &call)) {
		pool_unpin(pool);
		return false;
	}
	driver_allocates();
	if (!pool_call_leave(&tenant, pool, &call)) {
		pool_call_end(&tenant, pool, &call);
		pool_unpin(pool);
	}
	return true;
}

static bool allocate_a_step(void)
{
	return allocate(POOL_STEP);
}

static void allocate_too_much(void)
{
	has_passed |= allocate(POOL_LIMIT + POOL_STEP);
}

static void free_a_step(void)
{
	begin_operation();
	stop();
	pool_used -= POOL_STEP;
}

static void use_a_step(void)
{
	if (allocate_a_step())
		free_a_step();
}

static void use_a_step_twice(void)
{
	use_a_step();
	use_a_step();
}

static void keep_a_step(void)
{
	allocate_a_step();
}

static void give_back_what_is_free(void)
{
	uint64_t free_bytes;

	pools_giving_begin(&tenant);
	stop();
	free_bytes = pool_reserved - pool_used;
	pool_reserved = pool_used;
	stop();
	self->process->held -= free_bytes;
	pools_giving_end(&tenant);
}

/* And then brings the account to it. */
static void trim_the_pool(void)
{
	begin_operation();
	give_back_what_is_free();
	if (pool_pin(&tenant.pool[0])) {
		pool_settle(&tenant, &tenant.pool[0]);
		pool_unpin(&tenant.pool[0]);
	}
}

static struct process *add_pool_process(void)
{
	struct process *process;

	limit = POOL_LIMIT;
	most_switches = 3;
	has_pool = true;
	process = add_process();
	tenant.quota.region = &process->region;
	tenant.quota.limits = &process->limits;
	driver.cuMemPoolGetAttribute = sim_pool_number;
	return process;
}

static void two_threads_of_a_pool(void)
{
	struct process *process = add_pool_process();

	add_thread(process, use_a_step_twice);
	add_thread(process, use_a_step_twice);
}

static void test_two_threads_of_a_pool(void)
{
	CHECK(search(two_threads_of_a_pool, __func__));
}

static void a_pool_that_is_trimmed(void)
{
	struct process *process = add_pool_process();

	most_switches = 2;
	add_thread(process, use_a_step_twice);
	add_thread(process, trim_the_pool);
	add_thread(process, keep_a_step);
}

static void test_a_pool_that_is_trimmed(void)
{
	CHECK(search(a_pool_that_is_trimmed, __func__));
}

static void take_and_give_two_steps(void)
{
	if (take(2 * POOL_STEP))
		give(2 * POOL_STEP);
}

/* Asks for nothing, and finds out afterwards that it has got something. */
static void try_a_tight_step(void)
{
	struct tenant_pool *pool = &tenant.pool[0];
	struct pool_call call = {.bytes = POOL_STEP};

	begin_operation();
	if (!pool_pin(pool))
		return;
	if (pool_call_begin_tight(&tenant, pool, &call, UINT64_MAX)) {
		driver_allocates();
		if (!pool_call_end(&tenant, pool, &call)) {
			stop();
			pool_used -= POOL_STEP;
			give_back_what_is_free();
			pool_settle(&tenant, pool);
		}
		pool_turn_end(pool, &call);
	}
	pool_unpin(pool);
}

static void a_tight_call(void)
{
	struct process *process = add_pool_process();

	may_pass = true;
	most_switches = 2;
	add_thread(process, use_a_step_twice);
	add_thread(process, keep_a_step);
	add_thread(process, try_a_tight_step);
}

/* It may bring the card above the limit for as long as it lasts; and then the account is right. */
static void test_a_tight_call(void)
{
	CHECK(search(a_tight_call, __func__));
}

/* Nothing of what is free in the pool is of use, which its numbers do not say. */
static void take_a_step_that_is_not_granted(void)
{
	struct tenant_pool *pool = &tenant.pool[0];
	struct pool_call call = {.bytes = POOL_STEP};

	begin_operation();
	if (!pool_pin(pool))
		return;
	if (pool_call_begin_tight(&tenant, pool, &call, UINT64_MAX)) {
		stop();
		pool_used += POOL_STEP;
		pool_reserved += POOL_STEP;
		self->process->held += POOL_STEP;
		has_passed = pool_call_end(&tenant, pool, &call);
		is_crowded = false;
		stop();
		pool_used -= POOL_STEP;
		give_back_what_is_free();
		pool_settle(&tenant, pool);
		pool_turn_end(pool, &call);
	}
	pool_unpin(pool);
}

/* The pool has all that is promised, and one step of it is in use. */
static struct process *add_full_pool_process(void)
{
	struct process *process = add_pool_process();

	may_pass = true;
	most_switches = 2;
	quota_reserve(&process->quota, 0, POOL_LIMIT);
	tenant.pool[0].word = next_word(0, POOL_LIMIT);
	process->held = POOL_LIMIT;
	pool_reserved = POOL_LIMIT;
	pool_used = POOL_STEP;
	return process;
}

static void a_full_pool(void)
{
	struct process *process = add_full_pool_process();

	add_thread(process, take_a_step_that_is_not_granted);
	add_thread(process, allocate_too_much);
	add_thread(process, allocate_too_much);
}

/* What others have asked for in vain hides nothing. */
static void test_a_full_pool(void)
{
	CHECK(search(a_full_pool, __func__));
}

static void a_full_pool_and_a_crowd(void)
{
	add_thread(add_full_pool_process(), take_a_step_that_is_not_granted);
	is_crowded = true;
}

/* And neither does a crowd. */
static void test_a_full_pool_and_a_crowd(void)
{
	CHECK(search(a_full_pool_and_a_crowd, __func__));
}

static void a_pool_and_a_process(void)
{
	struct process *process = add_pool_process();

	most_switches = 2;
	add_thread(process, use_a_step_twice);
	add_thread(process, trim_the_pool);
	add_thread(add_process(), take_and_give_two_steps);
}

static void test_a_pool_and_a_process(void)
{
	CHECK(search(a_pool_and_a_process, __func__));
}

static void two_that_do_not_fit_together(void)
{
	add_thread(add_process(), take_and_give_six_twice);
	add_thread(add_process(), take_and_give_six_twice);
}

static void test_two_processes(void)
{
	CHECK(search(two_that_do_not_fit_together, __func__));
}

static void three_that_fit_in_pairs(void)
{
	most_switches = 2;
	add_thread(add_process(), take_and_give_six);
	add_thread(add_process(), keep_four);
	add_thread(add_process(), keep_four);
}

static void test_three_processes(void)
{
	CHECK(search(three_that_fit_in_pairs, __func__));
}

static void two_threads_and_a_process(void)
{
	struct process *process = add_process();

	most_switches = 2;

	add_thread(process, take_and_give_six);
	add_thread(process, keep_four);
	add_thread(add_process(), keep_four);
}

static void test_two_threads_and_a_process(void)
{
	CHECK(search(two_threads_and_a_process, __func__));
}

static void one_may_be_killed(void)
{
	struct process *process = add_process();

	process->may_be_killed = true;
	add_thread(process, take_and_give_six);
	add_thread(add_process(), take_and_give_six);
	add_thread(&processes[1], tend_now);
}

/* It counts until its memory is back, and no longer. */
static void test_a_process_that_is_killed_anywhere(void)
{
	CHECK(search(one_may_be_killed, __func__));
}

static void one_loses_its_slot(void)
{
	struct process *process = add_process();

	most_switches = 2;
	may_lose_slot = true;
	add_thread(process, keep_four);
	add_thread(process, take_and_give_four);
	add_thread(process, tend_now);
}

/* Whatever its threads are at when it takes another: each change is there once. */
static void test_a_process_that_loses_its_slot_anywhere(void)
{
	CHECK(search(one_loses_its_slot, __func__));
}

static void two_and_a_watcher(void)
{
	add_thread(add_process(), take_and_give_six);
	add_thread(add_process(), take_and_give_six_twice);
	add_thread(NULL, watch);
}

static void test_a_watcher_that_sees_no_grant_sees_no_more_than_the_limit(void)
{
	watched_too_much = false;
	CHECK(search(two_and_a_watcher, __func__));
	CHECK(!watched_too_much);
}

int main(void)
{
	setvbuf(stdout, NULL, _IOLBF, 0);
	RUN(test_two_processes);
	RUN(test_three_processes);
	RUN(test_two_threads_and_a_process);
	RUN(test_a_process_that_is_killed_anywhere);
	RUN(test_a_process_that_loses_its_slot_anywhere);
	RUN(test_two_threads_of_a_pool);
	RUN(test_a_pool_that_is_trimmed);
	RUN(test_a_pool_and_a_process);
	RUN(test_a_tight_call);
	RUN(test_a_full_pool);
	RUN(test_a_full_pool_and_a_crowd);
	RUN(test_a_watcher_that_sees_no_grant_sees_no_more_than_the_limit);
	return check_end();
}

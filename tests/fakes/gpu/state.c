/* SPDX-License-Identifier: Apache-2.0
 *
 * Mapping, slots, liveness, and the one lock of the simulated GPU.
 */
#include "state.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define DEFAULT_DIRECTORY "/run/fakegpu"
#define KEEPER_STACK_BYTES ((size_t)16 * 1024)
#define LOCK_LOOK_NS 20000000 /* how long to wait before asking whether the owner lives */

/* Cleared by the kernel in the child of a fork, however it was made. */
struct membership {
	bool joined;
	unsigned int slot;
};

static struct fake_state *state;
static char state_path[PATH_MAX];
static struct membership *membership;
static bool ever_joined;
static pthread_mutex_t map_mutex = PTHREAD_MUTEX_INITIALIZER;
static pthread_mutex_t card_mutex = PTHREAD_MUTEX_INITIALIZER; /* threads, before state->lock */

static struct fake_state *map_file(void)
{
	const char *directory = getenv("FAKE_GPU_DIR");
	struct stat status;

	if (directory == NULL || directory[0] == '\0')
		directory = DEFAULT_DIRECTORY;
	int length = snprintf(state_path, sizeof(state_path), "%s/state", directory);
	if (length < 0 || (size_t)length >= sizeof(state_path))
		return NULL;
	int fd = open(state_path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		return NULL;
	void *memory = MAP_FAILED;
	if (fstat(fd, &status) == 0 && (uint64_t)status.st_size == sizeof(struct fake_state))
		memory = mmap(NULL, sizeof(struct fake_state), PROT_READ | PROT_WRITE, MAP_SHARED,
			      fd, 0);
	(void)close(fd);
	if (memory == MAP_FAILED)
		return NULL;
	struct fake_state *mapped = memory;
	if (mapped->magic != FAKE_STATE_MAGIC || mapped->version != FAKE_STATE_VERSION ||
	    mapped->size != sizeof(*mapped)) {
		(void)munmap(memory, sizeof(*mapped));
		return NULL;
	}
	return mapped;
}

struct fake_state *state_map(void)
{
	struct fake_state *mapped = __atomic_load_n(&state, __ATOMIC_ACQUIRE);

	if (mapped != NULL)
		return mapped;
	(void)pthread_mutex_lock(&map_mutex);
	if (state == NULL) {
		mapped = map_file();
		__atomic_store_n(&state, mapped, __ATOMIC_RELEASE);
	}
	mapped = state;
	(void)pthread_mutex_unlock(&map_mutex);
	return mapped;
}

/* --- the keeper: a thread with its own descriptor table ------------------------------------- */

/* A record lock dies as soon as its process closes any descriptor of the file, and a descriptor of
 * ours may be closed by an application that daemonises. The keeper's table is its own, so nobody
 * else can close what it holds. It shares the creator's thread-local storage, so after it has
 * reported it only sleeps, with all signals blocked. */
struct keeper {
	uint32_t reported; /* futex word */
	int error;
	unsigned int slot;
};

static struct flock slot_lock(unsigned int slot)
{
	return (struct flock){
		.l_type = F_WRLCK, .l_whence = SEEK_SET, .l_start = (off_t)slot, .l_len = 1};
}

/* The slot's last owner may have been killed with the lock of the cards in its name; nobody would
 * take it from a name that lives again. */
static bool try_slot(int fd, unsigned int slot)
{
	struct flock lock = slot_lock(slot);
	uint32_t owner = slot + 1;

	if (fcntl(fd, F_SETLK, &lock) != 0)
		return false;
	__atomic_compare_exchange_n(&state->lock, &owner, 0, false, __ATOMIC_SEQ_CST,
				    __ATOMIC_RELAXED);
	return true;
}

static bool claim_slot(int fd, unsigned int *slot)
{
	for (unsigned int i = 0; i < FAKE_MAX_PROCESSES; i++) {
		uint64_t word = __atomic_load_n(&state->process[i].state, __ATOMIC_ACQUIRE);
		if ((word & 3) == FAKE_SLOT_FREE && try_slot(fd, i)) {
			*slot = i;
			return true;
		}
	}
	for (unsigned int i = 0; i < FAKE_MAX_PROCESSES; i++) {
		if (try_slot(fd, i)) {
			*slot = i;
			return true;
		}
	}
	return false;
}

static int keeper_main(void *argument)
{
	struct keeper *keeper = argument;
	int error = 0;

#ifdef SYS_close_range
	if (syscall(SYS_close_range, 0U, ~0U, 0U) != 0)
#endif
		for (int fd = 0; fd < 1024; fd++)
			(void)syscall(SYS_close, fd);
	int fd = open(state_path, O_RDWR | O_CLOEXEC);
	if (fd < 0)
		error = errno;
	else if (!claim_slot(fd, &keeper->slot))
		error = EAGAIN;
	keeper->error = error;
	__atomic_store_n(&keeper->reported, 1, __ATOMIC_RELEASE);
	(void)syscall(SYS_futex, &keeper->reported, FUTEX_WAKE, 1, NULL, NULL, 0);
	if (error != 0)
		(void)syscall(SYS_exit, 0);
	for (;;)
		(void)syscall(SYS_ppoll, NULL, 0, NULL, NULL, 0);
	return 0;
}

/* Starts the keeper and waits until it holds a slot. */
static int start_keeper(unsigned int *slot)
{
	int flags = CLONE_VM | CLONE_FS | CLONE_SIGHAND | CLONE_THREAD | CLONE_SYSVSEM;
	/* Static: the keeper may touch it as long as the process lives. */
	static struct keeper keeper;
	sigset_t all;
	sigset_t before;

	char *stack = mmap(NULL, KEEPER_STACK_BYTES, PROT_READ | PROT_WRITE,
			   MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (stack == MAP_FAILED)
		return ENOMEM;
	(void)sigfillset(&all);
	(void)pthread_sigmask(SIG_SETMASK, &all, &before);
	keeper.reported = 0;
	int thread = clone(keeper_main, stack + KEEPER_STACK_BYTES, flags, &keeper);
	int error = thread < 0 ? errno : 0;
	while (error == 0 && __atomic_load_n(&keeper.reported, __ATOMIC_ACQUIRE) == 0)
		(void)syscall(SYS_futex, &keeper.reported, FUTEX_WAIT, 0, NULL, NULL, 0);
	(void)pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (error == 0)
		error = keeper.error;
	*slot = keeper.slot;
	return error;
}

/* --- joining ------------------------------------------------------------------------------- */

static void publish_slot(unsigned int slot)
{
	struct fake_process *process = &state->process[slot];
	uint64_t generation = (__atomic_load_n(&process->state, __ATOMIC_ACQUIRE) >> 2) + 1;

	__atomic_store_n(&process->state, generation << 2 | FAKE_SLOT_FREE, __ATOMIC_RELEASE);
	memset(process->held, 0, sizeof(process->held));
	process->pid = getpid();
	memset(process->name, 0, sizeof(process->name));
	(void)prctl(PR_GET_NAME, process->name);
	uint32_t high = __atomic_load_n(&state->processes_high, __ATOMIC_ACQUIRE);
	while (high < slot + 1 &&
	       !__atomic_compare_exchange_n(&state->processes_high, &high, slot + 1, false,
					    __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE))
		;
	__atomic_store_n(&process->state, generation << 2 | FAKE_SLOT_LIVE, __ATOMIC_RELEASE);
}

static int join_locked(void)
{
	if (membership == NULL) {
		void *page = mmap(NULL, (size_t)sysconf(_SC_PAGESIZE), PROT_READ | PROT_WRITE,
				  MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
		if (page == MAP_FAILED)
			return ENOMEM;
		(void)madvise(page, (size_t)sysconf(_SC_PAGESIZE), MADV_WIPEONFORK);
		membership = page;
	}
	unsigned int slot = 0;
	int error = start_keeper(&slot);
	if (error != 0)
		return error;
	publish_slot(slot);
	membership->slot = slot;
	__atomic_store_n(&membership->joined, true, __ATOMIC_RELEASE);
	ever_joined = true;
	return 0;
}

int state_join(void)
{
	if (state_map() == NULL)
		return ENOENT;
	if (state_self() != NULL)
		return 0;
	(void)pthread_mutex_lock(&map_mutex);
	int error = state_self() != NULL ? 0 : join_locked();
	(void)pthread_mutex_unlock(&map_mutex);
	return error;
}

struct fake_process *state_self(void)
{
	const struct membership *mine = __atomic_load_n(&membership, __ATOMIC_ACQUIRE);

	if (mine == NULL || !__atomic_load_n(&mine->joined, __ATOMIC_ACQUIRE))
		return NULL;
	return &state->process[mine->slot];
}

bool state_forked(void)
{
	return ever_joined && state_self() == NULL;
}

/* --- who lives ------------------------------------------------------------------------------ */

/* Opened for each look and closed again: a descriptor kept by a library may be closed, and its
 * number reused, by the application. The keeper's lock does not mind. */
struct observer observer_open(void)
{
	return (struct observer){.fd = open(state_path, O_RDWR | O_CLOEXEC)};
}

void observer_close(struct observer *observer)
{
	if (observer->fd >= 0)
		(void)close(observer->fd);
	observer->fd = -1;
}

bool observer_alive(const struct observer *observer, unsigned int slot, int *pid)
{
	struct flock lock = slot_lock(slot);

	*pid = 0;
	/* Without a descriptor nobody can be declared dead. */
	if (observer->fd < 0 || fcntl(observer->fd, F_GETLK, &lock) != 0)
		return true;
	if (lock.l_type == F_UNLCK)
		return false;
	*pid = lock.l_pid;
	return true;
}

static bool slot_live(unsigned int slot)
{
	uint64_t word = __atomic_load_n(&state->process[slot].state, __ATOMIC_ACQUIRE);

	return (word & 3) == FAKE_SLOT_LIVE;
}

/* Free the slots of the dead. The generation in the word keeps a new owner's slot untouched. */
static void reap(void)
{
	struct observer observer = observer_open();
	uint32_t high = __atomic_load_n(&state->processes_high, __ATOMIC_ACQUIRE);
	int pid = 0;

	for (unsigned int i = 0; i < high; i++) {
		uint64_t word = __atomic_load_n(&state->process[i].state, __ATOMIC_ACQUIRE);
		if ((word & 3) != FAKE_SLOT_LIVE || observer_alive(&observer, i, &pid))
			continue;
		(void)__atomic_compare_exchange_n(&state->process[i].state, &word,
						  (word & ~(uint64_t)3) | FAKE_SLOT_FREE, false,
						  __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE);
	}
	observer_close(&observer);
}

/* --- memory of the cards -------------------------------------------------------------------- */

static uint64_t *holding_of(struct fake_held *held, enum holding what)
{
	switch (what) {
	case HOLDING_CONTEXT:
		return &held->context_bytes;
	case HOLDING_MEMORY:
		return &held->memory_bytes;
	case HOLDING_HIDDEN:
		break;
	}
	return &held->hidden_bytes;
}

bool state_is_on(unsigned int entry, unsigned int card)
{
	return entry == card || state->card[entry].parent == card + 1;
}

static uint64_t sum_of_entry(unsigned int card)
{
	const struct fake_card *described = &state->card[card];
	uint64_t used = described->reserved_bytes +
			__atomic_load_n(&described->foreign_bytes, __ATOMIC_RELAXED);
	uint32_t high = __atomic_load_n(&state->processes_high, __ATOMIC_ACQUIRE);

	for (unsigned int i = 0; i < high; i++) {
		const struct fake_held *held = &state->process[i].held[card];
		if (!slot_live(i))
			continue;
		used += __atomic_load_n(&held->context_bytes, __ATOMIC_RELAXED) +
			__atomic_load_n(&held->memory_bytes, __ATOMIC_RELAXED) +
			__atomic_load_n(&held->hidden_bytes, __ATOMIC_RELAXED);
	}
	return used;
}

static uint64_t sum_used(unsigned int card)
{
	uint64_t used = 0;

	for (unsigned int entry = 0; entry < state->card_count && entry < FAKE_MAX_CARDS; entry++)
		if (state_is_on(entry, card))
			used += sum_of_entry(entry);
	return used;
}

uint64_t state_changes(void)
{
	return __atomic_load_n(&state->changes, __ATOMIC_SEQ_CST);
}

uint64_t state_used_bytes(unsigned int card)
{
	uint64_t used = 0;

	reap();
	for (int i = 0; i < STATE_SNAPSHOT_TRIES; i++) {
		uint64_t before = state_changes();
		used = sum_used(card);
		if (state_changes() == before)
			break;
	}
	return used;
}

/* One lock for all cards, owned by a slot: whoever has waited for long asks the kernel whether the
 * owner lives, and takes the lock from the dead. */
static void state_lock(uint32_t mine)
{
	const struct timespec look = {.tv_nsec = LOCK_LOOK_NS};

	(void)pthread_mutex_lock(&card_mutex);
	for (;;) {
		uint32_t owner = 0;
		for (int spin = 0; spin < 200; spin++) {
			owner = 0;
			if (__atomic_compare_exchange_n(&state->lock, &owner, mine, false,
							__ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
				return;
		}
		__atomic_store_n(&state->lock_contended, 1, __ATOMIC_SEQ_CST);
		long woken = syscall(SYS_futex, &state->lock, FUTEX_WAIT, owner, &look, NULL, 0);
		if (woken == 0 || errno != ETIMEDOUT)
			continue;
		int pid = 0;
		struct observer observer = observer_open();
		bool alive = owner == mine || observer_alive(&observer, owner - 1, &pid);
		observer_close(&observer);
		if (!alive && __atomic_compare_exchange_n(&state->lock, &owner, mine, false,
							  __ATOMIC_ACQUIRE, __ATOMIC_RELAXED))
			return;
	}
}

static void state_unlock(void)
{
	__atomic_store_n(&state->lock, 0, __ATOMIC_SEQ_CST);
	if (__atomic_exchange_n(&state->lock_contended, 0, __ATOMIC_SEQ_CST) != 0)
		(void)syscall(SYS_futex, &state->lock, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
	(void)pthread_mutex_unlock(&card_mutex);
}

bool state_take(unsigned int card, enum holding what, uint64_t bytes)
{
	struct fake_process *self = state_self();
	if (self == NULL)
		return false;
	uint64_t total = state->card[card].memory_bytes;
	uint64_t *holding = holding_of(&self->held[card], what);

	state_lock((uint32_t)(self - state->process) + 1);
	uint64_t used = sum_used(card);
	if (used > total || bytes > total - used) {
		reap();
		used = sum_used(card);
	}
	bool fits = used <= total && bytes <= total - used;
	if (fits) {
		(void)__atomic_fetch_add(&state->changes, 1, __ATOMIC_SEQ_CST);
		(void)__atomic_fetch_add(holding, bytes, __ATOMIC_SEQ_CST);
	}
	state_unlock();
	return fits;
}

void state_give(unsigned int card, enum holding what, uint64_t bytes)
{
	struct fake_process *self = state_self();
	if (self == NULL)
		return;
	uint64_t *holding = holding_of(&self->held[card], what);

	(void)__atomic_fetch_add(&state->changes, 1, __ATOMIC_SEQ_CST);
	(void)__atomic_fetch_sub(holding, bytes, __ATOMIC_SEQ_CST);
}

/* --- visibility and faults ------------------------------------------------------------------ */

static bool node_opens(const char *name, unsigned int minor)
{
	char path[192];

	int length =
		snprintf(path, sizeof(path), "%.127s/%s%u", state->node_directory, name, minor);
	if (length < 0)
		return false;
	int fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd >= 0) {
		(void)close(fd);
		return true;
	}
	/* The node is there and the device cgroup lets us in, but no driver answers: as good as it
	 * gets on a machine without a card. */
	return errno == ENXIO || errno == ENODEV;
}

bool state_card_visible(unsigned int card)
{
	const struct fake_card *described = &state->card[card];
	const char *check = getenv("FAKE_GPU_CHECK_NODES");
	bool wanted = state->check_nodes != 0;

	if (check != NULL)
		wanted = strcmp(check, "1") == 0;
	if (!wanted)
		return true;
	if (!node_opens("nvidia", described->minor))
		return false;
	return described->parent == 0 ||
	       (node_opens("nvidia-caps/nvidia-cap", described->gpu_instance_node) &&
		node_opens("nvidia-caps/nvidia-cap", described->compute_instance_node));
}

/* Until the delay is over, or the fault is taken back. */
static void sleep_for(const struct fake_fault *fault, const char *function)
{
	static const uint64_t most_ns = 1000000;

	for (uint64_t left = fault->delay_ns; left != 0;) {
		uint64_t part = left < most_ns ? left : most_ns;
		struct timespec delay = {.tv_nsec = (long)part};

		while (nanosleep(&delay, &delay) != 0 && errno == EINTR)
			;
		left -= part;
		if (strncmp(fault->name, function, sizeof(fault->name)) != 0)
			return;
	}
}

int state_fault(const char *function)
{
	struct fake_state *mapped = state_map();
	if (mapped == NULL)
		return 0;
	uint32_t high = __atomic_load_n(&mapped->faults_high, __ATOMIC_ACQUIRE);

	for (unsigned int i = 0; i < high && i < FAKE_MAX_FAULTS; i++) {
		struct fake_fault *fault = &mapped->fault[i];
		if (strncmp(fault->name, function, sizeof(fault->name)) != 0)
			continue;
		if (fault->pid != 0 && fault->pid != (uint32_t)getpid())
			continue;
		uint64_t call = __atomic_fetch_add(&fault->calls, 1, __ATOMIC_RELAXED);
		if (call < fault->skip || call - fault->skip >= fault->times)
			continue;
		sleep_for(fault, function);
		if (fault->code != 0)
			return fault->code;
	}
	return 0;
}

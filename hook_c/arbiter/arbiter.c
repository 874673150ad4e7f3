// SPDX-License-Identifier: Apache-2.0
#include "arbiter.h"

#include "slots.h"
#include "vgpu_abi.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#ifndef SYS_futex_waitv
#define SYS_futex_waitv 449 /* Linux 5.16 */
#endif

#define EXPORT __attribute__((visibility("default")))
#define NS_PER_SECOND UINT64_C(1000000000)
#define BEAT_NS UINT64_C(50000000)
#define POLL_NS UINT64_C(100000)  /* without futex_waitv, while cards are contended */
#define REST_NS UINT64_C(1000000) /* and else */
#define RING_NS UINT64_C(200000)  /* so long a want that was heard is not listened to again */
#define MOST_WEIGHT 1000000
#define MOST_WORDS 128 /* of one futex_waitv */
#define MOST_AHEAD_NS UINT64_C(2000000000)

/* The kernel's struct futex_waitv. */
struct word {
	uint64_t value;
	uint64_t address;
	uint32_t flags;
	uint32_t reserved;
};
#define WORD_FLAGS 2 /* 32 bits, shared */

struct container {
	struct vgpu_limits *limits;
	uint32_t *usage; /* never loaded from: the tenant may truncate the file */
	int usage_fd;
	uint32_t count;
	uint32_t want[VGPU_MAX_DEVICES];
	uint64_t granted_ns; /* as last written */
};

struct vgpu_arbiter {
	pthread_t thread;
	pthread_mutex_t lock; /* held by the thread but while it sleeps */
	uint32_t changed;     /* futex word of the thread's own */
	uint32_t is_ending;
	bool is_polling; /* the kernel has no futex_waitv */
	uint64_t beaten_ns;
	struct slots slots;
	struct container container[SLOTS_TENANTS];
	struct vgpu_usage usage; /* room to read one */
};

static uint64_t clock_ns(void)
{
	struct timespec now = {0};

	clock_gettime(CLOCK_MONOTONIC, &now);
	return (uint64_t)now.tv_sec * NS_PER_SECOND + (uint64_t)now.tv_nsec;
}

static void wake(uint32_t *word)
{
	syscall(SYS_futex, word, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

static bool read_exactly(int fd, void *buffer, size_t size, size_t offset)
{
	return pread(fd, buffer, size, (off_t)offset) == (ssize_t)size;
}

/* What the tenant says. What cannot be read says nothing. Only of who has the card it matters how
 * far its processes are: the others may have written a million bytes that say so. */
static void hear(struct vgpu_arbiter *arbiter, unsigned int number, uint64_t now_ns)
{
	struct slots_tenant *tenant = &arbiter->slots.tenant[number];
	struct container *container = &arbiter->container[number];
	struct vgpu_usage *usage = &arbiter->usage;
	size_t head = offsetof(struct vgpu_usage, slot);

	if (!read_exactly(container->usage_fd, usage, head, 0))
		return;
	tenant->is_punctual = usage->header.minor >= 3;
	for (uint32_t card = 0; card < container->count; card++)
		if (usage->turn[card].want != container->want[card]) {
			container->want[card] = usage->turn[card].want;
			tenant->wanted_ns = now_ns;
		}

	uint32_t slots = usage->slots_high < VGPU_MAX_SLOTS ? usage->slots_high : VGPU_MAX_SLOTS;

	if (tenant->is_owner &&
	    !read_exactly(container->usage_fd, usage->slot, slots * sizeof(usage->slot[0]), head))
		return;
	tenant->queue_end_ns = 0;
	tenant->is_syncing = false;
	for (uint32_t card = 0; tenant->is_owner && card < container->count; card++) {
		for (uint32_t i = 0; i < slots; i++) {
			uint64_t end_ns = usage->slot[i].dev[card].queue_end_ns;

			if (usage->slot[i].state != VGPU_SLOT_LIVE ||
			    end_ns > now_ns + MOST_AHEAD_NS)
				continue;
			tenant->is_syncing |= (end_ns & 1) != 0;
			if (end_ns > tenant->queue_end_ns)
				tenant->queue_end_ns = end_ns;
		}
	}
}

static void tell(struct vgpu_arbiter *arbiter, unsigned int number)
{
	const struct slots_tenant *tenant = &arbiter->slots.tenant[number];
	struct container *container = &arbiter->container[number];

	if (tenant->grant_until_ns == container->granted_ns)
		return;
	container->granted_ns = tenant->grant_until_ns;
	for (uint32_t card = 0; card < container->count; card++) {
		struct vgpu_limits_device *dev = &container->limits->dev[card];

		__atomic_store_n(&dev->grant_from_ns, tenant->grant_from_ns, __ATOMIC_RELAXED);
		__atomic_store_n(&dev->grant_until_ns, tenant->grant_until_ns, __ATOMIC_RELEASE);
		__atomic_add_fetch(&dev->gate, 1, __ATOMIC_RELEASE);
		if (tenant->grant_until_ns != 0)
			wake(&dev->gate);
	}
}

static void beat(struct vgpu_arbiter *arbiter, uint64_t now_ns)
{
	if (now_ns < arbiter->beaten_ns + BEAT_NS)
		return;
	arbiter->beaten_ns = now_ns;
	for (unsigned int i = 0; i < SLOTS_TENANTS; i++)
		if (arbiter->slots.tenant[i].is_used)
			__atomic_store_n(&arbiter->container[i].limits->arbiter_ns, now_ns,
					 __ATOMIC_RELEASE);
}

static void nap(uint64_t until_ns)
{
	const struct timespec until = {.tv_sec = (time_t)(until_ns / NS_PER_SECOND),
				       .tv_nsec = (long)(until_ns % NS_PER_SECOND)};

	clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, NULL);
}

/* Until a want or the list of tenants changes. The words are compared by the kernel, which has no
 * trouble with a file that has become too short: it says EFAULT. */
static void await(struct vgpu_arbiter *arbiter, uint64_t until_ns, uint32_t changed)
{
	static const size_t turns = offsetof(struct vgpu_usage, turn);
	struct word words[MOST_WORDS] = {{.value = changed,
					  .address = (uint64_t)(uintptr_t)&arbiter->changed,
					  .flags = WORD_FLAGS}};
	unsigned int count = 1;
	bool is_contended = false;
	uint64_t now_ns = clock_ns();

	for (unsigned int i = 0; i < SLOTS_TENANTS; i++) {
		const struct container *container = &arbiter->container[i];
		uint64_t deaf_until_ns = arbiter->slots.tenant[i].wanted_ns + RING_NS;

		if (!arbiter->slots.tenant[i].is_used)
			continue;
		/* Or who rings without a pause would keep a processor busy. */
		if (now_ns < deaf_until_ns) {
			until_ns = deaf_until_ns < until_ns ? deaf_until_ns : until_ns;
			continue;
		}
		is_contended |= container->granted_ns != 0 && container->granted_ns != UINT64_MAX;
		for (uint32_t card = 0; card < container->count && count < MOST_WORDS; card++)
			words[count++] = (struct word){
				.value = container->want[card],
				.address = (uint64_t)(uintptr_t)container->usage + turns +
					   card * sizeof(struct vgpu_usage_turn),
				.flags = WORD_FLAGS};
	}

	const struct timespec until = {.tv_sec = (time_t)(until_ns / NS_PER_SECOND),
				       .tv_nsec = (long)(until_ns % NS_PER_SECOND)};

	pthread_mutex_unlock(&arbiter->lock);
	if (!arbiter->is_polling &&
	    syscall(SYS_futex_waitv, words, count, 0, &until, CLOCK_MONOTONIC) < 0 &&
	    errno != ETIMEDOUT && errno != EAGAIN && errno != EINTR) {
		arbiter->is_polling = errno == ENOSYS;
		nap(now_ns + POLL_NS);
	} else if (arbiter->is_polling || count == MOST_WORDS) {
		uint64_t most_ns = now_ns + (is_contended ? POLL_NS : REST_NS);

		nap(until_ns < most_ns ? until_ns : most_ns);
	}
	pthread_mutex_lock(&arbiter->lock);
}

static void *run(void *data)
{
	struct vgpu_arbiter *arbiter = data;

	prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL);
	prctl(PR_SET_NAME, "vgpu-arbiter", 0UL, 0UL, 0UL);
	pthread_mutex_lock(&arbiter->lock);
	while (__atomic_load_n(&arbiter->is_ending, __ATOMIC_ACQUIRE) == 0) {
		uint32_t changed = __atomic_load_n(&arbiter->changed, __ATOMIC_ACQUIRE);
		uint64_t now_ns = clock_ns();
		uint64_t again_ns;

		beat(arbiter, now_ns);
		for (unsigned int i = 0; i < SLOTS_TENANTS; i++)
			if (arbiter->slots.tenant[i].is_used)
				hear(arbiter, i, now_ns);
		again_ns = slots_step(&arbiter->slots, now_ns);
		for (unsigned int i = 0; i < SLOTS_TENANTS; i++)
			if (arbiter->slots.tenant[i].is_used)
				tell(arbiter, i);
		if (again_ns > arbiter->beaten_ns + BEAT_NS)
			again_ns = arbiter->beaten_ns + BEAT_NS;
		await(arbiter, again_ns, changed);
	}
	pthread_mutex_unlock(&arbiter->lock);
	return NULL;
}

static void say_changed(struct vgpu_arbiter *arbiter)
{
	__atomic_add_fetch(&arbiter->changed, 1, __ATOMIC_RELEASE);
	wake(&arbiter->changed);
}

EXPORT struct vgpu_arbiter *vgpu_arbiter_start(void)
{
	struct vgpu_arbiter *arbiter = calloc(1, sizeof(*arbiter));
	sigset_t all;
	sigset_t before;

	if (arbiter == NULL)
		return NULL;
	pthread_mutex_init(&arbiter->lock, NULL);
	/* Signals are for the agent's own threads. */
	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &before);

	int error = pthread_create(&arbiter->thread, NULL, run, arbiter);

	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (error != 0) {
		free(arbiter);
		errno = error;
		return NULL;
	}
	return arbiter;
}

/* A container's lease on a file makes an open wait for up to 45 s, and with it the agent: with
 * O_NONBLOCK it fails at once, and the caller tries again. Source: fcntl(2), "Leases". */
#define OPEN_FLAGS (O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK)

static int map_limits(struct container *container, const char *path)
{
	int fd = open(path, O_RDWR | OPEN_FLAGS);
	struct stat status;
	void *file;

	if (fd < 0)
		return -errno;
	if (fstat(fd, &status) != 0 || status.st_size < (off_t)sizeof(struct vgpu_limits)) {
		close(fd);
		return -EINVAL;
	}
	file = mmap(NULL, sizeof(struct vgpu_limits), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
	close(fd);
	if (file == MAP_FAILED)
		return -ENOMEM;
	container->limits = file;
	return 0;
}

static int map_usage(struct container *container, const char *path)
{
	int fd = open(path, O_RDONLY | OPEN_FLAGS);
	void *file;

	if (fd < 0)
		return -errno;
	file = mmap(NULL, sizeof(struct vgpu_usage), PROT_READ, MAP_SHARED, fd, 0);
	if (file == MAP_FAILED) {
		close(fd);
		return -ENOMEM;
	}
	container->usage = file;
	container->usage_fd = fd;
	return 0;
}

static void unmap(struct container *container)
{
	if (container->limits != NULL)
		munmap(container->limits, sizeof(struct vgpu_limits));
	if (container->usage != NULL) {
		munmap(container->usage, sizeof(struct vgpu_usage));
		close(container->usage_fd);
	}
	*container = (struct container){0};
}

static uint32_t weight_of(uint32_t number)
{
	return number == 0 ? 1 : number < MOST_WEIGHT ? number : MOST_WEIGHT;
}

static void put(struct vgpu_arbiter *arbiter, int number, const struct container *container,
		uint64_t cards, uint32_t weight)
{
	arbiter->container[number] = *container;
	arbiter->slots.tenant[number] =
		(struct slots_tenant){.is_used = true, .weight = weight_of(weight), .cards = cards};
	/* Whatever an earlier agent has granted. */
	arbiter->container[number].granted_ns = UINT64_MAX - 1;
	__atomic_store_n(&container->limits->arbiter_ns, clock_ns(), __ATOMIC_RELEASE);
	slots_regroup(&arbiter->slots);
}

EXPORT int vgpu_arbiter_add(struct vgpu_arbiter *arbiter, const char *limits_path,
			    const char *usage_path, const uint32_t *cards, uint32_t count,
			    uint32_t weight)
{
	struct container container = {.count = count};
	uint64_t mask = 0;
	int number = 0;
	int error = count == 0 || count > VGPU_MAX_DEVICES ? -EINVAL : 0;

	for (uint32_t i = 0; i < count && error == 0; i++) {
		if (cards[i] >= SLOTS_CARDS)
			error = -EINVAL;
		else
			mask |= UINT64_C(1) << cards[i];
	}
	if (error == 0)
		error = map_limits(&container, limits_path);
	if (error == 0)
		error = map_usage(&container, usage_path);
	if (error != 0) {
		unmap(&container);
		return error;
	}
	pthread_mutex_lock(&arbiter->lock);
	while (number < SLOTS_TENANTS && arbiter->slots.tenant[number].is_used)
		number++;
	if (number < SLOTS_TENANTS)
		put(arbiter, number, &container, mask, weight);
	pthread_mutex_unlock(&arbiter->lock);
	if (number == SLOTS_TENANTS) {
		unmap(&container);
		return -ENOSPC;
	}
	say_changed(arbiter);
	return number;
}

EXPORT void vgpu_arbiter_set_weight(struct vgpu_arbiter *arbiter, int tenant, uint32_t weight)
{
	pthread_mutex_lock(&arbiter->lock);
	arbiter->slots.tenant[tenant].weight = weight_of(weight);
	pthread_mutex_unlock(&arbiter->lock);
}

EXPORT void vgpu_arbiter_remove(struct vgpu_arbiter *arbiter, int tenant)
{
	/* The thread sleeps on words of the mapping that goes: it is woken by the change. */
	pthread_mutex_lock(&arbiter->lock);
	unmap(&arbiter->container[tenant]);
	arbiter->slots.tenant[tenant] = (struct slots_tenant){0};
	slots_regroup(&arbiter->slots);
	pthread_mutex_unlock(&arbiter->lock);
	say_changed(arbiter);
}

EXPORT struct vgpu_arbiter_counts vgpu_arbiter_read(struct vgpu_arbiter *arbiter, int tenant)
{
	struct vgpu_arbiter_counts counts;

	pthread_mutex_lock(&arbiter->lock);
	counts = (struct vgpu_arbiter_counts){
		.held_ns = arbiter->slots.tenant[tenant].held_ns,
		.turns = arbiter->slots.tenant[tenant].turns,
	};
	pthread_mutex_unlock(&arbiter->lock);
	return counts;
}

EXPORT void vgpu_arbiter_stop(struct vgpu_arbiter *arbiter)
{
	__atomic_store_n(&arbiter->is_ending, 1, __ATOMIC_RELEASE);
	say_changed(arbiter);
	pthread_join(arbiter->thread, NULL);
	for (unsigned int i = 0; i < SLOTS_TENANTS; i++)
		if (arbiter->slots.tenant[i].is_used)
			unmap(&arbiter->container[i]);
	pthread_mutex_destroy(&arbiter->lock);
	free(arbiter);
}

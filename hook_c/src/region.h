// SPDX-License-Identifier: Apache-2.0
/* The usage file: what every process of this container holds on every card.
 *
 * Each process owns one slot and alone writes to it. There is no total, so there is none to
 * repair: the account is the sum over the slots of the living. The owner of a slot holds a lock of
 * the kernel on the byte of the file that has the slot's number, for as long as its address space
 * exists; that is how the others see that it lives. What cannot be proven dead counts. What a
 * process held stays with the card for as long as a forked child has the descriptors of the driver
 * that it inherited, so a second lock is one that such a child inherits, too.
 *
 * Everybody in the container may write anything into this file. What a process itself holds is
 * therefore also counted in its private memory, and that count is the one that its own limit is
 * checked against. A file that is truncated under a running process kills that process (SIGBUS)
 * and no other container: a tenant can do no more than that to itself. */
#ifndef VGPU_REGION_H
#define VGPU_REGION_H

#include "reason.h"
#include "vgpu_abi.h"

#include <sys/types.h>

/* Lives in memory that a forked child finds zeroed: the child starts without a slot. */
struct region {
	struct vgpu_usage *usage; /* NULL: not open; never unmapped */
	const char *path;
	int fd;       /* to ask for locks */
	void *life;   /* the mapping that holds the owner's lock; region.c */
	int kept_fd;  /* whose lock lasts until all copies are closed, of forked children too */
	dev_t device; /* of the file, to find out that the two are still ours */
	ino_t inode;
	uint32_t claimed; /* 1: `slot` is ours */
	uint32_t slot;
	uint32_t gen;
	uint32_t pid;
	uint32_t seen_high; /* the most that slots_high has ever said to this process */
	uint32_t busy;      /* 1 while a thread changes the ownership of a slot; only ever tried */
	uint32_t moving;    /* 1 while another slot is taken; nobody changes numbers then */
	uint64_t updating;  /* threads that give back at this moment */
	uint64_t start_time;
	uint64_t pidns;
	uint64_t tended_ns;
	uint64_t own[VGPU_MAX_DEVICES];   /* what this process holds; the truth about itself */
	uint64_t asked[VGPU_MAX_DEVICES]; /* what its threads have asked for and not yet got */
	uint64_t left[VGPU_MAX_DEVICES];  /* of that: no thread is at it */
};

/* Opens and maps the file. `create`: developer mode, make it if it is not there. One thread. */
bool region_open(struct region *region, const char *path, bool create, struct reason *reason);

/* Takes a slot. False: all are taken. One thread. */
bool region_claim(struct region *region, struct reason *reason);

/* Asks for so much more; whoever asks or sums after that sees it. Then takes it, which makes it
 * held, or withdraws, or the one with a part and the other with the rest. There is no other way to
 * hold something, so what is held is never more than was found to fit, at no moment. Any thread, no
 * lock; visible to all before it returns.
 *
 * Between the question and its end this process takes no other slot: a call of the driver may
 * stand between the two if it does not wait for the card. */
void region_ask(struct region *region, unsigned int card, uint64_t bytes);
void region_take(struct region *region, unsigned int card, uint64_t bytes);
void region_withdraw(struct region *region, unsigned int card, uint64_t bytes);

/* What has been asked for stays so, and nobody is at it; and somebody is again. */
void region_leave(struct region *region, unsigned int card, uint64_t bytes);
void region_resume(struct region *region, unsigned int card, uint64_t bytes);

/* Gives back of what is held. */
void region_sub(struct region *region, unsigned int card, uint64_t bytes);

/* What the container holds and has asked for: this process by its own count, the others by their
 * slots. Saturates: no garbage in the file makes it wrap to a small number. Any thread. */
uint64_t region_sum(struct region *region, unsigned int card);

/* A process of this container as it is known in this PID namespace, and what it holds of a card. */
struct region_process {
	uint32_t pid;
	uint64_t used_bytes;
};

/* Fills at most `room` places and returns how many there are. */
uint32_t region_list(struct region *region, unsigned int card, struct region_process *list,
		     uint32_t room);

/* Display only. */
void region_note_high(struct region *region, unsigned int card);
void region_note_refused(struct region *region, unsigned int card);

/* Whether our slot still is ours: everybody may write into the file. Any thread. */
bool region_is_own(const struct region *region);

/* Whether no other process has ever had a slot: then there are none of the dead. Any thread. */
bool region_is_alone(const struct region *region);

/* Clears the slots of the dead, at most every 50 ms a container by whoever comes first, and takes
 * care that we can still see the others (a daemon may have closed all its descriptors).
 * `now`: without waiting for the 50 ms. Any thread; never waits. */
void region_tend(struct region *region, bool now);

#endif

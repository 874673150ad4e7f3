/* SPDX-License-Identifier: Apache-2.0
 *
 * What the bytes of a config.json tell without parsing it. No I/O.
 *
 * A mark that is not meant as one (a name inside an argument) costs a question to the agent, which
 * parses; a mark that is overlooked could start a container without its limits. So the search takes
 * every spelling that runc or crun would take: blanks between tokens, keys in any case, escapes.
 */
#ifndef VGPU_LAUNCHER_MARKS_H
#define VGPU_LAUNCHER_MARKS_H

#include <stdbool.h>
#include <stddef.h>

enum {
	MARK_MANAGED = 1 << 0,   /* asks for a slice, or may hide that it does */
	MARK_DEVICE = 1 << 1,    /* somebody gave it a card: nodes, rules, CDI, hooks, UUIDs */
	MARK_NVIDIA = 1 << 2,    /* NVIDIA's variables: no device comes from them alone */
	MARK_ALLOW_ALL = 1 << 3, /* its device rules leave the cards open, as --privileged does */
	MARK_ASK = 1 << 4,       /* another name of vgpu's: a word that is misspelt or alone, or one
				  * that the kubelet makes of a Service's name, our own pods' too */
};

unsigned marks_find(const char *bytes, size_t length);

/* Whether a container with these marks may never start without the agent's verdict. */
static inline bool marks_bind(unsigned marks)
{
	return (marks & (MARK_MANAGED | MARK_DEVICE)) != 0;
}

#endif

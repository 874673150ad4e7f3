/* SPDX-License-Identifier: Apache-2.0
 *
 * The bundle directory and the bytes of its config.json.
 */
#ifndef VGPU_LAUNCHER_BUNDLE_H
#define VGPU_LAUNCHER_BUNDLE_H

enum bundle_state {
	BUNDLE_READ,
	BUNDLE_MISSING, /* not there or not readable: the runtime says so in its own words */
	BUNDLE_NO_FILE, /* config.json is no regular file: it can only be read once */
	BUNDLE_FAILED,  /* `error` tells why: the system is out of something */
};

struct bundle {
	int directory; /* O_PATH */
	unsigned marks;
	int error;
};

/* Opens the directory and searches `config`, relative to the working directory as crun has it, or
 * the bundle's config.json when that is NULL. A symbolic link is followed, as runc and crun do:
 * what is searched must be what they will read. */
enum bundle_state bundle_open(const char *path, const char *config, struct bundle *bundle);

#endif

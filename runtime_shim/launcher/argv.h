/* SPDX-License-Identifier: Apache-2.0
 *
 * The command line, read as runc and crun read it. No I/O.
 */
#ifndef VGPU_LAUNCHER_ARGV_H
#define VGPU_LAUNCHER_ARGV_H

#include <stdbool.h>

/* Everything points into argv; what was not given is NULL. */
struct command_line {
	const char *command;
	bool creates; /* the command reads config.json: create, run, restore */

	const char *root; /* global options */
	const char *log;
	const char *log_format;

	const char *bundle; /* options of a creating command; "." when not given */
	const char *pid_file;
	const char *config; /* crun's --config, when that is another file than config.json */
	const char *id;
};

struct command_line argv_parse(int argc, char **argv);

#endif

/* SPDX-License-Identifier: Apache-2.0 */
#include "argv.h"

#include <stddef.h>
#include <string.h>

#define ARRAY_LEN(array) (sizeof(array) / sizeof((array)[0]))
#define BARE ((size_t) - 1)
#define DROPPED ((size_t) - 2)
#define KEEP(field) offsetof(struct command_line, field)

struct option {
	const char *name;
	char letter;
	size_t value; /* BARE: it takes none; DROPPED: it takes one that nobody asks for; else KEEP
		       */
};

/* runc 1.0 to 1.3 and crun 1.0 to 1.23. */
static const struct option global_options[] = {
	{"root", 0, KEEP(root)},
	{"log", 0, KEEP(log)},
	{"log-format", 0, KEEP(log_format)},
	{"log-level", 0, DROPPED},
	{"criu", 0, DROPPED},
	{"rootless", 0, DROPPED},
	{"cgroup-manager", 0, DROPPED},
	{"debug", 0, BARE},
	{"systemd-cgroup", 0, BARE},
	{"help", 'h', BARE},
	{"version", 'v', BARE},
};

/* Options of create, run and restore together: none has two meanings. */
static const struct option creating_options[] = {
	{"bundle", 'b', KEEP(bundle)},
	{"pid-file", 0, KEEP(pid_file)},
	{"config", 'f', KEEP(config)},
	{"console-socket", 0, DROPPED},
	{"pidfd-socket", 0, DROPPED},
	{"preserve-fds", 0, DROPPED},
	{"image-path", 0, DROPPED},
	{"work-path", 0, DROPPED},
	{"manage-cgroups-mode", 0, DROPPED},
	{"network-lock", 0, DROPPED},
	{"empty-ns", 0, DROPPED},
	{"lsm-profile", 0, DROPPED},
	{"lsm-mount-context", 0, DROPPED},
	{"detach", 'd', BARE},
};

static const char *const commands[] = {
	"checkpoint", "create", "delete", "events", "exec",  "features", "help",
	"init",       "kill",   "list",   "mounts", "pause", "ps",       "restore",
	"resume",     "run",    "spec",   "start",  "state", "update",
};

static bool is_command(const char *word)
{
	for (size_t i = 0; i < ARRAY_LEN(commands); i++)
		if (strcmp(word, commands[i]) == 0)
			return true;
	return false;
}

static const struct option *by_letter(const struct option *options, size_t count, char letter)
{
	for (size_t i = 0; i < count; i++)
		if (letter != '\0' && options[i].letter == letter)
			return &options[i];
	return NULL;
}

/* The option of that name or, where `abbreviated`, the only one that begins so: getopt_long takes
 * that for crun. */
static const struct option *by_name(const struct option *options, size_t count, const char *name,
				    size_t length, bool abbreviated)
{
	const struct option *found = NULL;
	size_t candidates = 0;

	for (size_t i = 0; i < count; i++) {
		if (strncmp(options[i].name, name, length) != 0)
			continue;
		if (options[i].name[length] == '\0')
			return &options[i];
		found = &options[i];
		candidates++;
	}
	return abbreviated && candidates == 1 ? found : NULL;
}

static void keep(struct command_line *line, const struct option *option, const char *value)
{
	if (option->value != DROPPED)
		*(const char **)((char *)line + option->value) = value;
}

/* Reads the option argv[at] and returns the index after it and its value; *known tells whether it
 * is one of `options`. An unknown option is taken to have no value.
 *
 * Go's flag package (runc) makes no difference between one dash and two, and takes -b and --b for
 * the same; getopt (crun) lets letters stand together and a value follow its letter: -dbDIR. */
static int read_option(const struct option *options, size_t count, char **argv, int at,
		       struct command_line *line, bool *known)
{
	const char *word = argv[at] + 1;
	const char *name = word[0] == '-' ? word + 1 : word;
	const size_t length = strcspn(name, "=");
	const char *value = name[length] == '=' ? name + length + 1 : NULL;
	const struct option *option = length == 1
					      ? by_letter(options, count, name[0])
					      : by_name(options, count, name, length, name != word);

	if (option == NULL && name == word) {
		while ((option = by_letter(options, count, *word)) != NULL && option->value == BARE)
			word++;
		value = option != NULL && word[1] != '\0' ? word + 1 : NULL;
	}
	*known = option != NULL;
	if (option == NULL || option->value == BARE)
		return at + 1;
	if (value == NULL && argv[at + 1] != NULL)
		value = argv[++at];
	if (value != NULL)
		keep(line, option, value);
	return at + 1;
}

static bool is_option(const char *word)
{
	return word[0] == '-' && word[1] != '\0';
}

/* Finds the command and returns the index after it, or argc. */
static int parse_globals(int argc, char **argv, struct command_line *line)
{
	bool known = true;
	int at = 1;

	while (at < argc) {
		const char *word = argv[at];

		if (is_option(word) && strcmp(word, "--") != 0) {
			at = read_option(global_options, ARRAY_LEN(global_options), argv, at, line,
					 &known);
			continue;
		}
		at++;
		if (known ? strcmp(word, "--") != 0 : is_command(word)) {
			line->command = word;
			return at;
		}
		/* "--", or else the value of an option that is newer than this table: were it taken
		 * for the command, a create would go by unseen. */
		known = true;
	}
	return argc;
}

/* runc accepts options after the id, too. Both take exactly one word that is no option: the last
 * one is the id even when an option newer than this table has a value before it. */
static void parse_creating(int argc, char **argv, int at, struct command_line *line)
{
	bool known;

	line->bundle = ".";
	while (at < argc) {
		if (strcmp(argv[at], "--") == 0) {
			if (at + 1 < argc)
				line->id = argv[argc - 1];
			return;
		}
		if (is_option(argv[at]))
			at = read_option(creating_options, ARRAY_LEN(creating_options), argv, at,
					 line, &known);
		else
			line->id = argv[at++];
	}
}

struct command_line argv_parse(int argc, char **argv)
{
	struct command_line line = {0};
	int at = parse_globals(argc, argv, &line);

	line.creates = line.command != NULL &&
		       (strcmp(line.command, "create") == 0 || strcmp(line.command, "run") == 0 ||
			strcmp(line.command, "restore") == 0);
	if (line.creates)
		parse_creating(argc, argv, at, &line);
	if (line.config != NULL && strcmp(line.config, "config.json") == 0)
		line.config = NULL;
	return line;
}

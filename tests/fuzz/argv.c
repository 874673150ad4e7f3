/* SPDX-License-Identifier: Apache-2.0
 *
 * Command lines: words between NULs.
 */
#include "argv.h"

#include "fuzz.h"

static bool same(const char *left, const char *right)
{
	return left == right || (left != NULL && right != NULL && strcmp(left, right) == 0);
}

/* What is not given is NULL, what is given lies in a word. */
static void check_points_into(const char *value, int argc, char **argv)
{
	if (value == NULL)
		return;
	for (int i = 1; i < argc; i++)
		if (value >= argv[i] && value <= argv[i] + strlen(argv[i]))
			return;
	HOLDS(strcmp(value, ".") == 0);
}

static void append(char **to, char **words, int count)
{
	for (int i = 0; i < count; i++)
		to[i] = words[i];
}

/* A global option with a value changes nothing else, whichever way it is written. */
static void check_after_root(const struct command_line *plain, int argc, char **argv)
{
	static char joined[] = "--root=create", option[] = "--root", value[] = "create";
	char *longer[WORDS_MAX + 4] = {argv[0], joined};
	struct command_line line;

	append(longer + 2, argv + 1, argc);
	line = argv_parse(argc + 1, longer);
	HOLDS(same(line.command, plain->command) && line.creates == plain->creates);
	HOLDS(same(line.id, plain->id) && same(line.bundle, plain->bundle));
	HOLDS(same(line.root, plain->root != NULL ? plain->root : value));
	longer[1] = option;
	longer[2] = value;
	append(longer + 3, argv + 1, argc);
	line = argv_parse(argc + 2, longer);
	HOLDS(same(line.command, plain->command) && line.creates == plain->creates);
	HOLDS(same(line.id, plain->id) && same(line.bundle, plain->bundle));
}

/* A create that runc would see is seen: no options, or only those that stand alone. */
static void check_plain_create(int argc, char **argv)
{
	static char create[] = "create", id[] = "id";
	char *longer[WORDS_MAX + 4] = {argv[0]};
	struct command_line line;
	int count = 1;

	for (int i = 1; i < argc; i++)
		if (argv[i][0] == '-' && argv[i][1] == '-' && strchr(argv[i], '=') != NULL)
			longer[count++] = argv[i];
	longer[count++] = create;
	longer[count++] = id;
	longer[count] = NULL;
	line = argv_parse(count, longer);
	HOLDS(line.creates && same(line.id, id) && same(line.bundle, "."));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char *text = string_of(data, size), *argv[WORDS_MAX + 2];
	int argc = words_of(text, size, argv);
	struct command_line line = argv_parse(argc, argv);

	check_points_into(line.command, argc, argv);
	check_points_into(line.root, argc, argv);
	check_points_into(line.log, argc, argv);
	check_points_into(line.log_format, argc, argv);
	check_points_into(line.bundle, argc, argv);
	check_points_into(line.pid_file, argc, argv);
	check_points_into(line.config, argc, argv);
	check_points_into(line.id, argc, argv);
	HOLDS(!line.creates || line.command != NULL);
	HOLDS(!line.creates || line.bundle != NULL);
	HOLDS(line.creates || line.id == NULL);
	check_after_root(&line, argc, argv);
	check_plain_create(argc, argv);
	free(text);
	return 0;
}

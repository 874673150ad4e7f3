/* SPDX-License-Identifier: Apache-2.0 */
#include "argv.h"

#include "check.h"

#include <stdlib.h>

#define MAX_WORDS 32

/* Parses a line of words separated by one blank; "''" is the empty word. */
static struct command_line parse(const char *words)
{
	static char copy[1024];
	static char *argv[MAX_WORDS + 1];
	int argc = 0;
	char *rest = copy;
	char *word;

	snprintf(copy, sizeof(copy), "vgpu-container-runtime %s", words);
	while (argc < MAX_WORDS && (word = strsep(&rest, " ")) != NULL)
		argv[argc++] = strcmp(word, "''") == 0 ? word + 2 : word;
	argv[argc] = NULL;
	return argv_parse(argc, argv);
}

static void test_engines_create(void)
{
	struct command_line line =
		parse("--root /run/containerd/runc/k8s.io --log /b/log.json "
		      "--log-format json --systemd-cgroup create --bundle /b "
		      "--pid-file /b/init.pid --console-socket /tmp/pty.sock c1");

	CHECK(line.creates);
	CHECK(same(line.command, "create"));
	CHECK(same(line.root, "/run/containerd/runc/k8s.io"));
	CHECK(same(line.log, "/b/log.json"));
	CHECK(same(line.log_format, "json"));
	CHECK(same(line.bundle, "/b"));
	CHECK(same(line.pid_file, "/b/init.pid"));
	CHECK(same(line.id, "c1"));

	line = parse("create --bundle /u/userdata --pid-file /p c2"); /* podman */
	CHECK(line.creates && same(line.bundle, "/u/userdata") && same(line.id, "c2"));
	CHECK(line.root == NULL && line.log == NULL);

	line = parse("--root=/run/runc --systemd-cgroup create --bundle=/b c3"); /* CRI-O */
	CHECK(same(line.root, "/run/runc") && same(line.bundle, "/b") && same(line.id, "c3"));
}

static void test_commands_by_position(void)
{
	CHECK(!parse("exec c1 git create").creates);
	CHECK(!parse("state create").creates);
	CHECK(!parse("kill create 9").creates);
	CHECK(!parse("--root create state c").creates);
	CHECK(!parse("--root=/r features").creates);
	CHECK(!parse("--version").creates && parse("--version").command == NULL);
	CHECK(!parse("").creates);
	CHECK(!parse("--root").creates);
	CHECK(!parse("checkpoint --image-path create c").creates);
	CHECK(parse("--root create create c").creates);
	CHECK(parse("-- create c").creates);
	CHECK(parse("run c").creates && parse("restore c").creates);
}

static void test_valued_globals(void)
{
	static const char *const names[] = {"root", "log",      "log-format",    "log-level",
					    "criu", "rootless", "cgroup-manager"};
	char words[128];

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		snprintf(words, sizeof(words), "--%s run create x", names[i]);
		CHECK(same(parse(words).command, "create"));
		snprintf(words, sizeof(words), "-%s run create x", names[i]);
		CHECK(same(parse(words).command, "create"));
		snprintf(words, sizeof(words), "--%s=run state x", names[i]);
		CHECK(same(parse(words).command, "state"));
	}
}

static void test_options_newer_than_the_table(void)
{
	CHECK(parse("--newer create c").creates);
	CHECK(parse("--newer value create c").creates);
	CHECK(parse("--newer=value create c").creates);
	CHECK(!parse("--newer value state create").creates);
	CHECK(same(parse("create --newer value c").id, "c"));
	CHECK(same(parse("create --newer=value c").id, "c"));
}

static void test_spellings_of_bundle(void)
{
	static const char *const spellings[] = {
		"create -b /b c",       "create --bundle /b c",
		"create --bundle=/b c", "create -b=/b c",
		"create -bundle /b c",  "create -bundle=/b c",
		"create --b /b c",      "create -b/b c",
		"run -db/b c",          "run -db /b c",
		"create --bun /b c",    "create c --bundle /b",
		"create -b /a -b /b c", "create -b /b -- c",
		"run --detach -b /b c", "create --no-pivot -b /b --no-new-keyring c",
	};

	for (size_t i = 0; i < sizeof(spellings) / sizeof(spellings[0]); i++) {
		struct command_line line = parse(spellings[i]);

		CHECK(same(line.bundle, "/b"));
		CHECK(same(line.id, "c"));
	}
	CHECK(same(parse("create c").bundle, "."));
	CHECK(same(parse("create -b '' c").bundle, ""));
	CHECK(same(parse("create -b").bundle, "."));
	CHECK(same(parse("create -bu c").bundle, "u")); /* getopt's, not an abbreviation */
	CHECK(same(parse("create --p x c").bundle,
		   ".")); /* pid-file, pidfd-socket or preserve-fds */
	CHECK(same(parse("create -b/a=b c").bundle, "/a=b"));
}

static void test_values_of_creating_options_are_no_ids(void)
{
	static const char *const names[] = {
		"console-socket",
		"pidfd-socket",
		"preserve-fds",
		"image-path",
		"work-path",
		"network-lock",
		"empty-ns",
		"lsm-profile",
		"pid-file",
		"config",
		"bundle",
		"lsm-mount-context",
		"manage-cgroups-mode",
	};
	char words[128];

	for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
		snprintf(words, sizeof(words), "restore c --%s value", names[i]);
		CHECK(same(parse(words).id, "c"));
	}
	CHECK(parse("create").id == NULL);
	CHECK(parse("create --bundle /b").id == NULL);
	CHECK(parse("create --").id == NULL);
	CHECK(same(parse("create -").id, "-"));
	CHECK(same(parse("create -- -odd").id, "-odd"));
}

static void test_another_config_file(void)
{
	CHECK(same(parse("create -f other.json c").config, "other.json"));
	CHECK(same(parse("create --config=other.json c").config, "other.json"));
	CHECK(parse("create --config config.json c").config == NULL);
}

int main(void)
{
	test_engines_create();
	test_commands_by_position();
	test_valued_globals();
	test_options_newer_than_the_table();
	test_spellings_of_bundle();
	test_values_of_creating_options_are_no_ids();
	test_another_config_file();
	return checks_end();
}

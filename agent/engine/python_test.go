package engine

import (
	"context"
	"log/slog"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"
)

// write makes a program of this text.
func write(t *testing.T, path, text string) string {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

// realPython returns the host's Python. Scripts run it with -S, so that its installed packages do
// not count.
func realPython(t *testing.T) string {
	t.Helper()
	out, err := exec.Command("python3", "-c", "import sys; print(sys.executable)").Output()
	if err != nil {
		t.Skip("no python3 to ask: ", err)
	}
	return strings.TrimSpace(string(out))
}

// chosen returns the connector of the command that is chosen for the program, and the log.
func chosen(t *testing.T, program, kvOffload string, env ...string) (offload, log string) {
	t.Helper()
	runtime.LockOSThread() // the kernel ends the interpreter together with its parent's thread
	defer runtime.UnlockOSThread()
	c := valid(func(c *Config) { c.KVOffload, c.Binary, c.Env = kvOffload, program, env })
	var text logBuffer
	argv, vars := c.Command(Launch{Port: 9, Role: "both"})
	argv = c.fallback(Launch{Port: 9, Role: "both"}, program).choose(t.Context(), argv, environment(vars),
		slog.New(slog.NewTextHandler(&text, nil)))
	for _, o := range offloads[VLLM] {
		c.KVOffload = o
		if of, _ := c.Command(Launch{Port: 9, Role: "both"}); slices.Equal(of, argv) {
			return o, text.String()
		}
	}
	t.Fatalf("started as %q", argv)
	return "", ""
}

// TestConnectorOrFallback asks a real Python, with the package of deploy/vllm and without it.
func TestConnectorOrFallback(t *testing.T) {
	python, dir := realPython(t), t.TempDir()
	const text = " -S\nprint('serves')\n"
	lacks := write(t, filepath.Join(dir, "bare", "vllm"), "#!"+python+text)
	beside := write(t, filepath.Join(dir, "beside", "vllm"), "#!"+python+text)
	module := filepath.Join(connectorPackage, "connector.py")
	write(t, filepath.Join(dir, "beside", module), "print('a line of an imported module')\n")
	write(t, filepath.Join(dir, "fails", module), "print('a line')\ntry:\n    import blake3_of_nobody\n"+
		"except ImportError as e:\n    raise ImportError('older\\n' + str(e)) from e\n")
	write(t, filepath.Join(dir, "leaves", module), "import sys\nsys.exit('not this vLLM')\n")
	fails, leaves := "PYTHONPATH="+filepath.Join(dir, "fails"), "PYTHONPATH="+filepath.Join(dir, "leaves")
	link := filepath.Join(dir, "link")
	if err := os.Symlink(beside, link); err != nil {
		t.Fatal(err)
	}
	wrapper := write(t, filepath.Join(dir, "bare", "wrapper"), "#!/bin/sh\nexec "+lacks+" \"$@\"\n")
	broken := write(t, filepath.Join(dir, "bare", "python-broken"), "#!/bin/sh\necho no modules at all >&2\nexit 1\n")
	has := "PYTHONPATH=" + filepath.Join(dir, "beside")
	t.Chdir(filepath.Join(dir, "beside")) // a program does not see packages of its working directory
	for _, c := range []struct {
		name, program, kvOffload string
		env                      []string
		want, says               string
	}{
		{"lacks it", lacks, OffloadKVCached, nil, OffloadKVCachedS3, "level=WARN"},
		{"lacks it, beside NIXL", lacks, OffloadNIXLKVCached, nil, OffloadNIXLKVCachedS3, "-m pip install DIR/deploy/vllm"},
		{"cannot import it", lacks, OffloadKVCached, []string{fails}, OffloadKVCachedS3,
			`error="No module named 'blake3_of_nobody'"`},
		{"cannot import it, beside NIXL", lacks, OffloadNIXLKVCached, []string{leaves}, OffloadNIXLKVCachedS3,
			`error="SystemExit: not this vLLM"`},
		{"in PYTHONPATH", lacks, OffloadKVCached, []string{has}, OffloadKVCached, "a line of an imported module"},
		{"in PYTHONPATH, beside NIXL", lacks, OffloadNIXLKVCached, []string{has}, OffloadNIXLKVCached, "stream=stderr"},
		{"beside the program", beside, OffloadKVCached, nil, OffloadKVCached, "stream=stderr"},
		{"beside what the program links to", link, OffloadKVCached, nil, OffloadKVCached, "stream=stderr"},
		{"unknown", wrapper, OffloadKVCached, nil, OffloadKVCached, "level=INFO"},
		{"named", wrapper, OffloadKVCached, []string{"PYTHON=" + python}, OffloadKVCachedS3, "level=WARN"},
		{"named, has it", wrapper, OffloadKVCached, []string{"PYTHON=" + python, has}, OffloadKVCached, "a line"},
		{"fails", wrapper, OffloadKVCached, []string{"PYTHON=" + broken}, OffloadKVCached, "no modules at all"},
		{"no such Python", wrapper, OffloadKVCached, []string{"PYTHON=" + broken + "3"}, OffloadKVCached, "level=INFO"},
	} {
		got, log := chosen(t, c.program, c.kvOffload, c.env...)
		if got != c.want || !strings.Contains(log, c.says) || c.says == "" ||
			strings.Contains(log, "WARN") != (c.want != c.kvOffload) {
			t.Errorf("%s: %s, not %s: %s", c.name, got, c.want, log)
		}
	}
	if c := valid(func(c *Config) { c.KVOffload = OffloadKVCached }); c.fallback(Launch{Role: "decode"}, lacks) != nil {
		t.Error("the fallback of an engine that takes blocks over by the connector")
	}
	if valid(func(c *Config) { c.KVOffload = OffloadKVCachedS3 }).fallback(Launch{}, lacks) != nil {
		t.Error("kvcached-s3 has a fallback")
	}
}

// TestStartedWithFallback: the engine's process has the command that fits its Python.
func TestStartedWithFallback(t *testing.T) {
	python, dir := realPython(t), t.TempDir()
	said := filepath.Join(dir, "said")
	program := write(t, filepath.Join(dir, "vllm"), "#!"+python+" -S\nimport os, sys, time\nwith open('"+said+
		"~', 'w') as f: f.write(' '.join(sys.argv))\nos.rename('"+said+"~', '"+said+"')\ntime.sleep(3600)\n")
	_, log, stop := start(t, valid(func(c *Config) { c.KVOffload, c.Binary = OffloadKVCached, program }))
	eventually(t, "started", func() bool { _, err := os.Stat(said); return err == nil })
	stop()
	if argv, err := os.ReadFile(said); err != nil || !strings.Contains(string(argv), "TieringOffloadingSpec") ||
		!strings.Contains(log.String(), "level=WARN") {
		t.Errorf("%s, %v: %s", argv, err, log)
	}
}

// TestAskingEnds: a Python that does not answer ends with the agent, and holds the engine up no
// longer than the limit.
func TestAskingEnds(t *testing.T) {
	dir := t.TempDir()
	asked := filepath.Join(dir, "asked")
	hangs := write(t, filepath.Join(dir, "python"), "#!/bin/sh\necho $$ > "+asked+"~\nmv "+asked+"~ "+asked+
		"\nsleep 3600\n")
	program := write(t, filepath.Join(dir, "vllm"), "#!"+hangs+"\n")
	e, log, stop := start(t, valid(func(c *Config) { c.KVOffload, c.Binary = OffloadKVCached, program }))
	eventually(t, "asked", func() bool { _, err := os.Stat(asked); return err == nil })
	if run, reason := e.sup.running(); run != nil || reason != "engine not started yet" {
		t.Error("started before the answer:", reason)
	}
	stop()
	text, _ := os.ReadFile(asked)
	if pid, err := strconv.Atoi(strings.TrimSpace(string(text))); err != nil || !gone(pid) {
		t.Error("still asking", pid, err)
	}
	if _, reason := e.sup.running(); reason != "engine stopped" || strings.Contains(log.String(), "engine started") {
		t.Error(reason, log)
	}

	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	f := &fallback{limit: 10 * time.Millisecond}
	if _, err := f.asks(t.Context(), []string{hangs}, program, nil, slog.Default()); err == nil ||
		err.Error() != "no answer within 10ms" {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := f.asks(ctx, []string{hangs}, program, nil, slog.Default()); err != context.Canceled {
		t.Error(err)
	}
}

func TestInterpreter(t *testing.T) {
	dir := t.TempDir()
	for _, c := range []struct{ text, want string }{
		{"#!/opt/venv/bin/python3.12\nimport sys\n", "/opt/venv/bin/python3.12"},
		{"#! /usr/bin/python3\t-sP \r\n", "/usr/bin/python3|-sP"},
		{"#!/usr/bin/env python3\n", "/usr/bin/env|python3"},
		{"#!/usr/bin/env -S python3 -u\n", "/usr/bin/env|-S python3 -u"},
		{"#!/opt/pypy3", "/opt/pypy3"},
		{"#!/bin/sh\n'''exec' \"/long path/bin/python\" \"$0\" \"$@\"\n' '''\n", "/long path/bin/python"},
		{"#!/bin/sh\n'''exec' /long/bin/python3 \"$0\" \"$@\"\n' '''\n", "/long/bin/python3"},
		{"#!/bin/sh\n'''exec' \"$(dirname -- \"$(realpath -- \"$0\")\")\"/'python' \"$0\" \"$@\"\n' '''\n", dir + "/python"},
		{"#!/bin/sh\n'''exec' \"$HOME/python\" \"$0\" \"$@\"\n", "else"},
		{"#!/bin/sh\n'''exec' /bin/bash \"$0\" \"$@\"\n", "else"},
		{"#!/bin/sh\nexec python3 \"$@\"\n", "else"},
		{"#!/usr/bin/env bash\n", "else"},
		{"#!\n", "else"},
		{"#!" + strings.Repeat("x", 1<<16), "else"},
		{"\x7fELF", "else"},
		{"", "else"},
	} {
		got, err := interpreter(write(t, filepath.Join(dir, "vllm"), c.text), "else")
		if err != nil || strings.Join(got, "|") != c.want {
			t.Errorf("%.80q: %q, %v", c.text, got, err)
		}
	}
	if _, err := interpreter(filepath.Join(dir, "vllm"), ""); err == nil || !strings.Contains(err.Error(), "PYTHON") {
		t.Error(err)
	}
	if _, err := interpreter(dir+"/none", "else"); err == nil {
		t.Error("a program that is not there")
	}
}

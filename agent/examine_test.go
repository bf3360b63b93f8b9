package agent

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/cognitora/dataplane/internal/config"
	"github.com/cognitora/dataplane/internal/pki"
)

func TestCheckConfigExamines(t *testing.T) {
	dir := t.TempDir()
	key, empty := writeFile(t, dir, "key", "sk-1\n"), writeFile(t, dir, "empty", "")
	program := writeFile(t, dir, "engine", "#!/bin/sh\n")
	if err := os.Chmod(program, 0o700); err != nil {
		t.Fatal(err)
	}
	if err := pki.Bootstrap(filepath.Join(dir, "pki"), pki.Options{}); err != nil {
		t.Fatal(err)
	}
	own, other := pki.FilesIn(filepath.Join(dir, "pki"), pki.Agent), pki.FilesIn(filepath.Join(dir, "pki"), pki.Etcd)
	attached := "--engine http://127.0.0.1:8000 "
	before := tree(t, dir)
	for _, c := range []struct{ args, want string }{
		{attached + "--state-dir " + dir + "/a/b --engine.api_key_file " + key, ""},
		{attached + "--tls-ca " + own.CA + " --tls-cert " + own.Cert + " --tls-key " + own.Key, ""},
		{attached + "--listen unix://" + dir + "/s", ""},
		{"--engine.binary " + program + " --model some/model", ""},
		{"--engine.binary " + program + " --model " + dir, ""},
		{attached + "--engine.api_key_file " + dir + "/no",
			"engine.api_key_file: open " + dir + "/no: no such file or directory; name a file"},
		{attached + "--engine.api_key_file " + empty, "does not hold one key, of printable ASCII"},
		{"--engine https://h:1 --engine.ca " + key, "engine.ca: " + key + " holds no certificate"},
		{attached + "--state-dir " + key, "agent.state_dir: "},
		{attached + "--listen unix://" + dir + "/no/s", "agent.listen: the socket cannot be made"},
		{attached + "--etcd h:1 --push unix://" + dir + "/no/s", "agent.push: the socket cannot be made"},
		{attached + "--etcd h:1 --push off --telemetry proc --telemetry.bpf_root " + dir, ""},
		{attached + "--telemetry bpf --telemetry.bpf_root " + dir,
			"telemetry.bpf_root: bpf: " + dir + " is not in a BPF file system"},
		{attached + "--telemetry bpf --telemetry.bpf_cgroup " + dir + "/no",
			"telemetry.bpf_cgroup: " + dir + "/no does not exist"},
		{"--engine.binary " + program + " --model m --engine.offload.lmcache_config " + dir + "/no", ""},
		{"--engine.binary " + program + " --model m --kv-offload lmcache --engine.offload.lmcache_config " + key, ""},
		{"--engine.binary " + program + " --model m --kv-offload nixl+lmcache --engine.offload.lmcache_config " +
			dir + "/no", "engine.offload.lmcache_config: " + dir + "/no does not exist"},
		{attached + "--listen unix://" + dir + "/a@b", "agent.node_id: empty, and what listen"},
		{attached + "--tls-cert " + own.Cert + " --tls-key " + other.Key, "tls.cert: "},
		{attached + "--tls-ca " + empty + " --tls-cert " + own.Cert + " --tls-key " + own.Key, "tls.ca: "},
		{attached + "--etcd h:1 --etcd.ca " + dir + "/no", "etcd.ca: " + dir + "/no does not exist"},
		{"--engine.binary " + dir + "/no --model m", "engine.binary: "},
		{"--kind llama_cpp --engine.binary " + program + " --model " + dir + "/no.gguf",
			"engine.model: " + dir + "/no.gguf does not exist"},
		{"--kind openai_compat", "engine.url: empty"},
		{attached + "--state-dir " + key + " --engine.api_key_file " + empty + " --listen 127.0.0.1:no", "3 problems"},
	} {
		err := config.Load(&Config{}, config.Options{Program: "cgn-agent",
			Args: append(strings.Fields(c.args), "--check-config"), Out: io.Discard})
		if errors.Is(err, config.ErrAnswered) != (c.want == "") ||
			c.want != "" && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", c.args, err, c.want)
		}
	}
	if after := tree(t, dir); after != before {
		t.Errorf("the check left\n%s, there were\n%s", after, before)
	}
}

// tree lists the files below a directory.
func tree(t *testing.T, dir string) (list string) {
	t.Helper()
	err := filepath.WalkDir(dir, func(path string, _ fs.DirEntry, err error) error {
		list += path + "\n"
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return list
}

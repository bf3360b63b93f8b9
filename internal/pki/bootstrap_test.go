package pki

import (
	"crypto/x509"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

func bootstrap(t *testing.T, o Options) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "pki")
	if err := Bootstrap(dir, o); err != nil {
		t.Fatal(err)
	}
	return dir
}

func certificate(t *testing.T, name string) *x509.Certificate {
	t.Helper()
	c, err := readCertificate(name)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestBootstrapWritesPrivateFiles(t *testing.T) {
	dir := bootstrap(t, Options{})
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	if len(entries) != 2+2*len(Roles()) {
		t.Errorf("%d files, want a pair for the CA and each role", len(entries))
	}
	for _, e := range entries {
		if info, err := e.Info(); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s: mode %v, err %v", e.Name(), info.Mode(), err)
		}
	}
	if info, err := os.Stat(dir); err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("directory: %v, %v", info.Mode(), err)
	}
}

func TestBootstrapRefusesWhatIsNoHost(t *testing.T) {
	for host, ok := range map[string]bool{
		"gpu1": true, "gpu_1.example": true, "*.example": true, "::1": true, "10.0.0.7": true,
		"a b": false, "": false, "http://gpu1": false, "gpu1:9081": false, "-x": false, "a..b": false, "*": false,
		"a.*": false, "é": false,
	} {
		dir := filepath.Join(t.TempDir(), "pki")
		err := Bootstrap(dir, Options{Hosts: []string{host}, Roles: []Role{Ctl}})
		if (err == nil) != ok {
			t.Errorf("%q: %v", host, err)
		}
		if _, statErr := os.Stat(dir); (statErr == nil) != ok {
			t.Errorf("%q: the directory: %v", host, statErr)
		}
	}
}

func TestBootstrapCertificates(t *testing.T) {
	now := time.Date(2026, 5, 1, 12, 0, 0, 0, time.UTC)
	dir := bootstrap(t, Options{Hosts: []string{"gpu-7.example", "10.0.0.7"}, Now: now})
	ca := certificate(t, filepath.Join(dir, "ca.crt"))
	if !ca.IsCA || !ca.MaxPathLenZero {
		t.Error("the CA certificate is not a CA of leaves only")
	}
	for _, role := range Roles() {
		c := certificate(t, FilesIn(dir, role).Cert)
		if got := RoleOf(c); got != role {
			t.Errorf("role %q, want %q", got, role)
		}
		if err := c.CheckSignatureFrom(ca); err != nil {
			t.Errorf("%s: %v", role, err)
		}
		if c.VerifyHostname("gpu-7.example") != nil || c.VerifyHostname("10.0.0.7") != nil {
			t.Errorf("%s: hosts missing: %v %v", role, c.DNSNames, c.IPAddresses)
		}
		if c.NotAfter.After(ca.NotAfter) || !c.NotAfter.Equal(now.Add(DefaultLifetime)) {
			t.Errorf("%s ends %v", role, c.NotAfter)
		}
		if server := len(c.ExtKeyUsage) == 2; server == (role == Ctl) {
			t.Errorf("%s: usages %v", role, c.ExtKeyUsage)
		}
	}
}

func TestBootstrapRefusesToOverwrite(t *testing.T) {
	dir := bootstrap(t, Options{Roles: []Role{Router}})
	before := certificate(t, FilesIn(dir, Router).Cert)
	err := Bootstrap(dir, Options{})
	if !errors.Is(err, ErrExists) || !strings.Contains(err.Error(), "router.") {
		t.Fatalf("got %v", err)
	}
	if _, err := os.Stat(FilesIn(dir, Agent).Cert); err == nil {
		t.Error("a refused call wrote files")
	}
	if err := Bootstrap(dir, Options{Roles: []Role{Agent}}); err != nil {
		t.Fatalf("another role: %v", err)
	}
	if err := Bootstrap(dir, Options{Force: true}); err != nil {
		t.Fatalf("forced: %v", err)
	}
	after := certificate(t, FilesIn(dir, Router).Cert)
	if before.SerialNumber.Cmp(after.SerialNumber) == 0 {
		t.Error("force kept the certificate")
	}
	if err := before.CheckSignatureFrom(certificate(t, filepath.Join(dir, "ca.crt"))); err != nil {
		t.Errorf("force replaced the CA: %v", err)
	}
}

func TestBootstrapCapsLifetimeAtTheCA(t *testing.T) {
	dir := bootstrap(t, Options{CALifetime: time.Hour})
	ca, c := certificate(t, filepath.Join(dir, "ca.crt")), certificate(t, FilesIn(dir, Agent).Cert)
	if !c.NotAfter.Equal(ca.NotAfter) {
		t.Errorf("certificate ends %v, CA %v", c.NotAfter, ca.NotAfter)
	}
	err := Bootstrap(dir, Options{Force: true, Now: time.Now().Add(2 * time.Hour)})
	if err == nil || !strings.Contains(err.Error(), "make a new one") {
		t.Errorf("ended CA: %v", err)
	}
}

func TestBootstrapRefusesDamagedCA(t *testing.T) {
	for name, damage := range map[string]func(dir string) error{
		"no key":  func(d string) error { return os.Remove(filepath.Join(d, "ca.key")) },
		"no cert": func(d string) error { return os.Remove(filepath.Join(d, "ca.crt")) },
		"not PEM": func(d string) error { return os.WriteFile(filepath.Join(d, "ca.crt"), []byte("x"), 0o600) },
		"foreign key": func(d string) error {
			return os.Rename(filepath.Join(d, "agent.key"), filepath.Join(d, "ca.key"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := bootstrap(t, Options{})
			if err := damage(dir); err != nil {
				t.Fatal(err)
			}
			if err := Bootstrap(dir, Options{Force: true}); err == nil {
				t.Error("accepted")
			}
		})
	}
}

func TestBootstrapUnknownRole(t *testing.T) {
	if err := Bootstrap(t.TempDir(), Options{Roles: []Role{"../x"}}); err == nil {
		t.Error("accepted")
	}
}

// TestGroupsKeepReading checks that a renewed key has the group of the former one if the group
// could read that, and that nobody else can read either.
func TestGroupsKeepReading(t *testing.T) {
	dir := t.TempDir()
	if err := Bootstrap(dir, Options{Roles: []Role{Router, Agent}}); err != nil {
		t.Fatal(err)
	}
	group := os.Getgid()
	if os.Getuid() == 0 {
		group = 54321 // one that new files do not have anyway
	}
	key := FilesIn(dir, Router).Key
	if err := errors.Join(os.Chown(key, -1, group), os.Chmod(key, 0o644)); err != nil {
		t.Fatal(err)
	}
	if err := Bootstrap(dir, Options{Roles: []Role{Router, Agent}, Force: true}); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]fs.FileMode{key: 0o640, FilesIn(dir, Agent).Key: 0o600} {
		info, err := os.Stat(name)
		if err != nil || info.Mode() != want {
			t.Errorf("%s: %v, %v", name, info.Mode(), err)
		}
		if name == key && int(info.Sys().(*syscall.Stat_t).Gid) != group {
			t.Errorf("the key has another group: %+v", info.Sys())
		}
	}
}

package pki

import (
	"bytes"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestJoin: a host's certificates are signed elsewhere, and its keys never leave it.
func TestJoin(t *testing.T) {
	ca, host := t.TempDir(), filepath.Join(t.TempDir(), "pki")
	if err := Bootstrap(ca, Options{Roles: []Role{Router}}); err != nil {
		t.Fatal(err)
	}
	o := Options{Hosts: []string{"gpu2.example", "10.0.0.2"}, Roles: []Role{Agent, Router}}
	bundle, err := Request(host, o)
	if err != nil {
		t.Fatal(err)
	}
	if again, err := Request(host, o); err != nil || bytes.Contains(bundle, []byte("PRIVATE")) {
		t.Fatalf("asking again: %v; %s", err, again)
	}
	answer, grants, err := Sign(ca, bundle, Options{Roles: []Role{Agent, Router}})
	if err != nil || len(grants) != 2 || strings.Join(grants[0].Hosts, " ") != "gpu2.example 10.0.0.2" {
		t.Fatal(grants, err)
	}
	if roles, err := Accept(host, answer); err != nil || len(roles) != 2 {
		t.Fatal(roles, err)
	}
	id, err := Load(FilesIn(host, Agent))
	if err != nil {
		t.Fatal(err)
	}
	server, err := Load(FilesIn(ca, Router))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := dial(t, id.Server(true, Router), mustClient(t, server, "gpu2.example", Agent)); err != nil {
		t.Error("the joined host is not believed:", err)
	}
	if _, err := Request(host, o); !errors.Is(err, ErrExists) {
		t.Error("a host that has joined asks again:", err)
	}
}

func TestJoinRefuses(t *testing.T) {
	ca, other, host := t.TempDir(), t.TempDir(), t.TempDir()
	for _, dir := range []string{ca, other} {
		if err := Bootstrap(dir, Options{Roles: []Role{Router}}); err != nil {
			t.Fatal(err)
		}
	}
	bundle, err := Request(host, Options{Roles: []Role{Ctl}})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := Sign(ca, bundle, Options{Roles: []Role{Agent}}); !errors.Is(err, ErrRoleRefused) {
		t.Error("a role that was not to be let in:", err)
	}
	if _, _, err := Sign(host, bundle, Options{}); err == nil || !strings.Contains(err.Error(), "no CA in") {
		t.Error("no CA:", err)
	}
	damaged := bytes.Replace(bundle, []byte("\nM"), []byte("\nN"), 1)
	for _, bad := range [][]byte{nil, []byte("x"), damaged, append(bytes.Clone(bundle), "x"...),
		make([]byte, maxBundle+1)} {
		if _, _, err := Sign(ca, bad, Options{}); err == nil {
			t.Errorf("signed %.40q", bad)
		}
	}
	answer, _, err := Sign(ca, bundle, Options{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Accept(t.TempDir(), answer); err == nil {
		t.Error("accepted without a key")
	}
	if _, err := Accept(host, bundle); err == nil {
		t.Error("accepted a request")
	}
	foreign, err := os.ReadFile(filepath.Join(other, "ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	own, err := os.ReadFile(filepath.Join(ca, "ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Accept(host, bytes.Replace(answer, own, foreign, 1)); err == nil {
		t.Error("accepted what another CA has not signed")
	}
	if err := os.WriteFile(filepath.Join(host, "ca.crt"), foreign, 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Accept(host, answer); !errors.Is(err, ErrExists) {
		t.Error("replaced another fleet's CA:", err)
	}
}

package kvcached

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"time"

	"github.com/cognitora/dataplane/internal/pki"
)

// renewBefore is how long before their end certificates of our own making are made anew, at a
// start.
const renewBefore = 30 * 24 * time.Hour

// identity is the certificate shown to other caches. Without one in the
// configuration, and then all listeners are on loopback, a CA and certificates
// for this host alone are kept in the data directory.
func (d *Daemon) identity() (*pki.Identity, error) {
	if d.id != nil {
		return d.id, nil
	}
	files := pki.Files{CA: d.config.TLS.CA, Cert: d.config.TLS.Cert, Key: d.config.TLS.Key}
	if files.Cert == "" {
		var err error
		if files, err = d.ownCertificates(); err != nil {
			return nil, err
		}
	}
	id, err := pki.Load(files)
	if err != nil {
		return nil, fmt.Errorf("tls: %w", err)
	}
	d.id = id
	return id, nil
}

func (d *Daemon) ownCertificates() (pki.Files, error) {
	if d.config.Daemon.Data == "" {
		return pki.Files{}, errors.New("tls: certificates for this host alone are kept in kvcached.data, which is " +
			"empty; name a directory with --data DIR, or set tls.ca, tls.cert and tls.key")
	}
	dir := filepath.Join(d.config.Daemon.Data, "pki")
	files := pki.FilesIn(dir, pki.KVCached)
	if err := recoverCertificates(dir); err != nil {
		return files, fmt.Errorf("tls: certificates for this host alone in %s: %w; see that the daemon may write to "+
			"kvcached.data", dir, err)
	}
	old, err := pki.Load(files)
	if err == nil && time.Until(old.NotAfter()) > renewBefore {
		return files, nil
	}
	if _, statErr := os.Stat(files.Cert); err != nil && !errors.Is(statErr, fs.ErrNotExist) {
		return files, fmt.Errorf("tls: what the daemon made in %s cannot be used: %w; remove that directory to have "+
			"it made anew", dir, err)
	}
	if err := replaceCertificates(dir); err != nil {
		return files, fmt.Errorf("tls: certificates for this host alone: %w", err)
	}
	d.log.Info("certificates made for this host alone; other hosts need those of cgn-ctl pki bootstrap or join",
		"directory", dir)
	return files, nil
}

// replaceCertificates makes a CA and certificates beside dir and puts them into its place. The
// daemon may be killed at any moment: after recoverCertificates there are all of them, old or new,
// or none if there were none.
func replaceCertificates(dir string) error {
	for _, step := range replacement(dir) {
		if err := step(); err != nil {
			return err
		}
	}
	return nil
}

// replacement is the steps of replaceCertificates.
func replacement(dir string) []func() error {
	old, fresh := besides(dir)
	return []func() error{
		func() error { return os.RemoveAll(fresh) },
		func() error {
			return pki.Bootstrap(fresh, pki.Options{Roles: []pki.Role{pki.KVCached, pki.Ctl}, Force: true})
		},
		func() error { return syncDir(fresh) },
		func() error { return os.RemoveAll(old) },
		func() error {
			if err := os.Rename(dir, old); !errors.Is(err, fs.ErrNotExist) {
				return err
			}
			return nil
		},
		func() error { return os.Rename(fresh, dir) },
		func() error { return syncDir(filepath.Dir(dir)) },
		func() error { return os.RemoveAll(old) },
	}
}

// recoverCertificates ends a replacement that was cut short: with the old certificates where the
// new ones are not in their place.
func recoverCertificates(dir string) error {
	old, fresh := besides(dir)
	if _, err := os.Stat(dir); errors.Is(err, fs.ErrNotExist) {
		switch err := os.Rename(old, dir); {
		case err == nil:
			if err := syncDir(filepath.Dir(dir)); err != nil {
				return err
			}
		case !errors.Is(err, fs.ErrNotExist):
			return err
		}
	}
	return errors.Join(os.RemoveAll(old), os.RemoveAll(fresh))
}

// besides is where certificates are while they are replaced.
func besides(dir string) (old, fresh string) { return dir + ".old", dir + ".new" }

// syncDir makes what was created, renamed and removed in a directory durable.
func syncDir(dir string) error {
	f, err := os.Open(dir)
	if err != nil {
		return err
	}
	return errors.Join(f.Sync(), f.Close())
}

package kvcached

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/cognitora/dataplane/internal/pki"
)

// renewBefore is the remaining life of the daemon's self-made certificates below which a start
// makes new ones.
const renewBefore = 30 * 24 * time.Hour

// identity returns the certificate for other caches. Without tls.cert the daemon makes a CA and
// certificates for this host alone and keeps them in the data directory. All listeners of a daemon
// without tls.cert are on loopback.
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

// ownCertificates makes a new CA and certificates if those of the data directory cannot be used or
// expire soon. Renewal is safe because no other host has these certificates.
func (d *Daemon) ownCertificates() (pki.Files, error) {
	if d.config.Daemon.Data == "" {
		return pki.Files{}, errors.New("tls: certificates for this host alone are kept in kvcached.data, which is " +
			"empty; name a directory with --data DIR, or set tls.ca, tls.cert and tls.key")
	}
	dir := filepath.Join(d.config.Daemon.Data, "pki")
	files := pki.FilesIn(dir, pki.KVCached)
	d.log.Warn("without tls.cert the cache shows a certificate for this host alone; other hosts need those of cgn-ctl "+
		"pki bootstrap or join", "directory", dir)
	if old, err := pki.Load(files); err == nil && time.Until(old.NotAfter()) > renewBefore {
		return files, nil
	}
	err := os.RemoveAll(dir)
	if err == nil {
		err = pki.Bootstrap(dir, pki.Options{Roles: []pki.Role{pki.KVCached, pki.Ctl}})
	}
	if err != nil {
		return files, fmt.Errorf("tls: certificates for this host alone in %s: %w; see that the daemon may write to "+
			"kvcached.data", dir, err)
	}
	d.log.Info("certificates made for this host alone", "directory", dir)
	return files, nil
}

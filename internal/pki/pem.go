package pki

import (
	"crypto/ecdsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"

	"github.com/cognitora/dataplane/internal/rights"
)

const (
	certificateBlock = "CERTIFICATE"
	keyBlock         = "PRIVATE KEY"
)

// writePair writes the key before the certificate, each through a temporary file and a rename, so
// that a reader sees only whole files.
func writePair(certFile, keyFile string, der []byte, key *ecdsa.PrivateKey) error {
	if err := writeKey(keyFile, key); err != nil {
		return err
	}
	return writePEM(certFile, certificateBlock, der)
}

func writeKey(name string, key *ecdsa.PrivateKey) error {
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	return writePEM(name, keyBlock, pkcs8)
}

// writePEM writes a file for its owner only. The group of a file that it replaces keeps its right
// to read, so that a daemon of that group can read a renewed key.
func writePEM(name, kind string, der []byte) error {
	data := pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
	tmp := name + ".tmp"
	mode, group := fs.FileMode(0o600), -1
	var was unix.Stat_t
	if unix.Stat(name, &was) == nil && was.Mode&0o040 != 0 {
		mode, group = 0o640, int(was.Gid)
	}
	if err := writeSynced(tmp, data, mode, group); err != nil {
		return err
	}
	return os.Rename(tmp, name)
}

// writeSynced writes a file. The file is on disk before it gets its name, and only its owner may
// read it until it is complete.
func writeSynced(name string, data []byte, mode fs.FileMode, group int) error {
	f, err := os.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o600)
	if err != nil {
		return err
	}
	_, err = f.Write(data)
	// an existing temporary file keeps its old mode
	return errors.Join(err, f.Chown(-1, group), f.Chmod(mode), f.Sync(), f.Close())
}

func readCertificate(name string) (*x509.Certificate, error) {
	b, err := readBlock(name, certificateBlock)
	if err != nil {
		return nil, err
	}
	return x509.ParseCertificate(b)
}

func readKey(name string) (*ecdsa.PrivateKey, error) {
	b, err := readBlock(name, keyBlock)
	if err != nil {
		return nil, err
	}
	k, err := x509.ParsePKCS8PrivateKey(b)
	if err != nil {
		return nil, err
	}
	key, ok := k.(*ecdsa.PrivateKey)
	if !ok {
		return nil, errors.New("not an ECDSA key")
	}
	return key, nil
}

func readBlock(name, kind string) ([]byte, error) {
	data, err := rights.ReadFile(name)
	if err != nil {
		return nil, err
	}
	b, _ := pem.Decode(data)
	if b == nil || b.Type != kind {
		return nil, fmt.Errorf("%s: no PEM block %q", name, kind)
	}
	return b.Bytes, nil
}

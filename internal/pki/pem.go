package pki

import (
	"crypto/ecdsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"

	"github.com/cognitora/dataplane/internal/replace"
	"github.com/cognitora/dataplane/internal/rights"
)

const (
	certificateBlock = "CERTIFICATE"
	keyBlock         = "PRIVATE KEY"
)

// writePair writes the key before the certificate.
func writePair(certFile, keyFile string, der []byte, key *ecdsa.PrivateKey) error {
	if err := writeKey(keyFile, key); err != nil {
		return err
	}
	return writePEM(certFile, certificateBlock, der)
}

// writeKey writes a key. Of the mode of a key that it replaces, only the right of the group to read
// is kept beside the owner's.
func writeKey(name string, key *ecdsa.PrivateKey) error {
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	if was, err := os.Stat(name); err == nil && was.Mode().Perm()&^0o640 != 0 {
		if err := os.Chmod(name, was.Mode().Perm()&0o640); err != nil {
			return err
		}
	}
	return writePEM(name, keyBlock, pkcs8)
}

// writePEM makes a file for its owner only. A file that it replaces keeps its mode and owner.
func writePEM(name, kind string, der []byte) error {
	return replace.OwnedBytes(name, 0o600, pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der}))
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

package pki

import (
	"crypto/ecdsa"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"os"
)

const (
	certificateBlock = "CERTIFICATE"
	keyBlock         = "PRIVATE KEY"
)

// writePair writes key before certificate, each through a temporary file and
// a rename, so that a reader sees whole files only.
func writePair(certFile, keyFile string, der []byte, key *ecdsa.PrivateKey) error {
	pkcs8, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		return err
	}
	if err := writePEM(keyFile, keyBlock, pkcs8); err != nil {
		return err
	}
	return writePEM(certFile, certificateBlock, der)
}

func writePEM(name, kind string, der []byte) error {
	data := pem.EncodeToMemory(&pem.Block{Type: kind, Bytes: der})
	tmp := name + ".tmp"
	if err := os.WriteFile(tmp, data, 0o600); err != nil {
		return err
	}
	if err := os.Chmod(tmp, 0o600); err != nil { // a left-over keeps its old mode
		return err
	}
	return os.Rename(tmp, name)
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
	data, err := os.ReadFile(name)
	if err != nil {
		return nil, err
	}
	b, _ := pem.Decode(data)
	if b == nil || b.Type != kind {
		return nil, fmt.Errorf("%s: no PEM block %q", name, kind)
	}
	return b.Bytes, nil
}

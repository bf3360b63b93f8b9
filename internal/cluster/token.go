package cluster

import (
	"crypto/rand"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
)

// TokenFile is the file of Token in its directory.
const TokenFile = "instance"

// Token returns a program's Registration.Instance, which distinguishes it from another program with
// the same id. The token is stored in dir, which is made if it is missing, so that a restarted
// program takes its id back without waiting for the old lease to end. Without dir each start gets a
// new token. Errors are those of the files.
func Token(dir string) (string, error) {
	if dir == "" {
		return rand.Text(), nil
	}
	file := filepath.Join(dir, TokenFile)
	kept, err := os.ReadFile(file)
	if token := strings.TrimSpace(string(kept)); err == nil && token != "" {
		return token, nil
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return "", err
	}
	token := rand.Text()
	if err := os.MkdirAll(dir, 0o700); err != nil {
		return "", err
	}
	if err := os.WriteFile(file, []byte(token+"\n"), 0o600); err != nil {
		return "", err
	}
	return token, nil
}

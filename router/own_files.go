package router

import (
	"os"
	"path/filepath"
)

// validateFiles refuses a log that is the file of another setting: its lines would destroy that
// file. Devices and pipes may be two settings' file.
func (c *Config) validateFiles(bad problem) {
	files := [][2]string{
		{"auth.keys_file", c.Auth.KeysFile}, {"auth.isolation_secret_file", c.Auth.IsolationSecretFile},
		{"router.policy_file", c.Router.PolicyFile}, {"ratelimit.password_file", c.RateLimit.Password},
		{"tls.cert", c.TLS.Cert}, {"tls.key", c.TLS.Key}, {"tls.client_ca", c.TLS.ClientCA},
		{"admin_tls.cert", c.AdminTLS.Cert}, {"admin_tls.key", c.AdminTLS.Key},
	}
	for _, l := range c.Logs() {
		if !l.Named() {
			continue
		}
		for _, other := range files {
			if other[1] != "" && sameFile(l.File, other[1]) {
				bad(l.Setting, "%s is the file of %s too; give the log a file of its own", l.File, other[0])
			}
		}
		if c.Usage.Dir != "" && sameFile(filepath.Dir(l.File), c.Usage.Dir) {
			bad(l.Setting, "%s is in usage.dir, which has the files with use only; name one in another directory", l.File)
		}
		files = append(files, [2]string{l.Setting, l.File})
	}
}

// sameFile says whether two names are one file or directory, or will be once it is made.
func sameFile(a, b string) bool {
	x, errX := os.Stat(a)
	y, errY := os.Stat(b)
	if errX == nil && errY == nil {
		return os.SameFile(x, y) && (x.Mode().IsRegular() || x.IsDir())
	}
	a, errX = filepath.Abs(a)
	b, errY = filepath.Abs(b)
	return errX == nil && errY == nil && a == b
}

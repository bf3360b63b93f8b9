package rights

import (
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// othersRead are the bits of a mode by which others than the owner and the group read a file, or
// others than the owner change it.
const othersRead = 0o027

// Private returns an error if others than its owner and its group can read the secret in a file, or
// others than its owner can change it.
func Private(name string, info fs.FileInfo) error {
	if mode := info.Mode().Perm(); mode&othersRead != 0 {
		return fmt.Errorf("%s has the mode %#o, so others can read it or change it; chmod 600 it (640 for a group that reads "+
			"it)", name, mode)
	}
	return nil
}

// Kept returns an error if every user can replace the file: one of the directories in its path, or
// in the path of what it links to, is writable by all and not sticky.
func Kept(name string) error {
	paths := []string{name}
	if at, err := filepath.EvalSymlinks(name); err == nil && at != name {
		paths = append(paths, at)
	}
	for _, path := range paths {
		path, err := filepath.Abs(path)
		if err != nil {
			return err
		}
		for dir := filepath.Dir(path); ; dir = filepath.Dir(dir) {
			info, err := os.Stat(dir)
			if err == nil && info.Mode().Perm()&0o002 != 0 && info.Mode()&fs.ModeSticky == 0 {
				return fmt.Errorf("every user can replace %s, because the directory %s has the mode %#o; chmod o-w %s", name, dir,
					info.Mode().Perm(), dir)
			}
			if dir == filepath.Dir(dir) {
				break
			}
		}
	}
	return nil
}

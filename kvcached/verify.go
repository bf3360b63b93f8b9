package kvcached

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/cognitora/dataplane/kvcached/ssd"
)

// ErrDamaged says that Verify has found damaged data.
var ErrDamaged = errors.New("kvcached: the SSD tier is damaged")

// Verify reads the SSD tier in a data directory that no daemon uses, and reports the result. bad is
// called for each damage, and progress with the number of bytes read. With ErrDamaged the report is
// complete; with another error there is none. Damaged blocks are misses when the daemon runs again.
func Verify(ctx context.Context, data string, c SSDConfig, bad func(ssd.Damage),
	progress func(done, all int64)) (v ssd.Verified, err error) {
	dir := filepath.Join(data, ssdDir)
	if _, err := os.Stat(dir); err != nil {
		return v, fmt.Errorf("kvcached: no SSD tier: %w; name the directory that cgn-kvcached has as --data", err)
	}
	lock, err := LockDir(data)
	if err != nil {
		return v, err
	}
	defer lock.Close()
	key, err := (&Config{SSD: c}).sealingKey()
	if err != nil {
		return v, err
	}
	if err := ssd.Examine(dir, key); err != nil {
		return v, verifyError(err)
	}
	if v, err = ssd.Verify(ctx, ssd.VerifyOptions{Dir: dir, Key: key, Bad: bad, Progress: progress}); err != nil {
		return v, err
	}
	if v.Bad+v.Lost > 0 {
		err = ErrDamaged
	}
	if v.Bad == 1 {
		err = fmt.Errorf("%w in 1 place", err)
	} else if v.Bad > 1 {
		err = fmt.Errorf("%w in %d places", err, v.Bad)
	}
	if v.Dropped {
		err = fmt.Errorf("%w; the next start drops all blocks", err)
	}
	if v.Lost > 0 {
		err = fmt.Errorf("%w; %d of %d live blocks have no sound record; they are misses", err, v.Lost, v.Live)
	}
	return v, err
}

// verifyError adds the fix to an error that kept Verify from reading the tier.
func verifyError(err error) error {
	var key *ssd.KeyError
	switch {
	case !errors.As(err, &key):
		return err
	case !key.Sealed:
		return fmt.Errorf("%w; leave out --key-file", err)
	case !key.Given:
		return fmt.Errorf("%w; give the daemon's ssd.key_file with --key-file", err)
	}
	return fmt.Errorf("%w; give the key that the directory was made with, the daemon's ssd.key_file, with --key-file",
		err)
}

package kvabuse

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// disk is an ext4 filesystem in a file, mounted for one test.
type disk struct {
	t          *testing.T
	image, dir string
}

// newDisk makes and mounts a filesystem of size MiB.
func newDisk(t *testing.T, size int) *disk {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root, to mount a filesystem of its own")
	}
	for _, tool := range []string{"mkfs.ext4", "mount", "umount", "e2fsck"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("needs %s", tool)
		}
	}
	dir, err := os.MkdirTemp("", "kvdisk")
	if err != nil {
		t.Fatal(err)
	}
	f := &disk{t, filepath.Join(dir, "image"), filepath.Join(dir, "mounted")}
	t.Cleanup(func() {
		_ = exec.Command("umount", f.dir).Run()
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if err := errors.Join(os.WriteFile(f.image, nil, 0o600), os.Truncate(f.image, int64(size)<<20),
		os.Mkdir(f.dir, 0o700)); err != nil {
		t.Fatal(err)
	}
	f.run("mkfs.ext4", "-q", "-F", "-m", "0", f.image)
	if out, err := exec.Command("mount", "-o", "loop,errors=remount-ro", f.image, f.dir).CombinedOutput(); err != nil {
		t.Skipf("a filesystem in a file cannot be mounted here: %s", out)
	}
	return f
}

func (f *disk) run(argv ...string) {
	f.t.Helper()
	if out, err := exec.Command(argv[0], argv[1:]...).CombinedOutput(); err != nil {
		f.t.Fatalf("%s: %v: %s", strings.Join(argv, " "), err, out)
	}
}

// fill fills the filesystem completely.
func (f *disk) fill() {
	f.t.Helper()
	file, err := os.Create(filepath.Join(f.dir, "filler"))
	if err != nil {
		f.t.Fatal(err)
	}
	defer file.Close()
	for _, n := range []int{1 << 20, 4096} {
		b := make([]byte, n)
		for err == nil {
			_, err = file.Write(b)
		}
		if !errors.Is(err, unix.ENOSPC) {
			f.t.Fatal(err)
		}
		err = nil
	}
}

// makeReadOnly makes the filesystem report an error, which makes it read-only even with open files.
func (f *disk) makeReadOnly() {
	f.t.Helper()
	var at unix.Stat_t
	if err := unix.Stat(f.dir, &at); err != nil {
		f.t.Fatal(err)
	}
	link, err := os.Readlink(fmt.Sprintf("/sys/dev/block/%d:%d", unix.Major(at.Dev), unix.Minor(at.Dev)))
	if err == nil {
		err = os.WriteFile(filepath.Join("/sys/fs/ext4", filepath.Base(link), "trigger_fs_error"), []byte("1"), 0)
	}
	if err != nil {
		f.t.Skipf("the filesystem cannot be made read-only: %v", err)
	}
}

// breakDown makes every access to the filesystem fail with EIO until it is mounted again.
func (f *disk) breakDown() {
	f.t.Helper()
	d, err := os.Open(f.dir)
	if err != nil {
		f.t.Fatal(err)
	}
	defer d.Close()
	const shutdown, noFlush = 0x8004587d, 2 // EXT4_IOC_SHUTDOWN
	if err := unix.IoctlSetPointerInt(int(d.Fd()), shutdown, noFlush); err != nil {
		f.t.Skipf("the filesystem cannot be shut down: %v", err)
	}
}

// mend checks the filesystem and mounts it again. The filesystem must not be in use.
func (f *disk) mend() {
	f.t.Helper()
	f.run("umount", f.dir)
	_ = exec.Command("e2fsck", "-fy", f.image).Run() // exits with 1 after a repair
	f.run("mount", "-o", "loop,errors=remount-ro", f.image, f.dir)
}

// durablePuts tries several durable Puts and counts the successful ones.
func (k *killing) durablePuts() (done int, last error) {
	w := k.d.connect(k.t)
	defer w.close()
	for i, s := range k.subjects[:40] {
		if s.namespace == "" {
			continue
		}
		e := k.entries[i]
		next := e.begin(false, true, 0)
		if err := w.by["lease"].put(context.Background(), s, makePayload(s.name, next.version, 64<<10),
			putOptions{durable: true}); err != nil {
			last = err
			continue
		}
		e.acknowledged(next, true)
		done++
	}
	return done, last
}

// workFor loads the daemon for this time.
func (k *killing) workFor(d time.Duration) {
	k.dying.Store(false)
	wait := k.work()
	pause(d)
	k.dying.Store(true)
	wait()
	k.dying.Store(false)
	k.d.alive(k.t)
}

// onDisk returns a daemon whose data are on a disk of the test's own, after it was under load until
// much of its room on SSD was in use.
func onDisk(t *testing.T, mib int) (*killing, *disk) {
	t.Helper()
	f := newDisk(t, mib)
	k := newKilling(t, true, "--ram", "24MiB", "--ssd", "192MiB")
	k.d.data = filepath.Join(f.dir, "data")
	t.Cleanup(k.d.kill) // before the disk is removed
	k.d.start(t)
	eventually(t, "half of the room is in use", func() bool {
		k.workFor(time.Second)
		return k.d.metrics(t)["ssd_segment_bytes"] >= 96<<20
	})
	return k, f
}

// again kills the daemon and restarts it.
func (k *killing) again(between func()) {
	k.d.kill()
	for _, e := range k.entries {
		e.killed()
	}
	between()
	k.d.start(k.t)
	k.check()
}

// TestDiskFull takes away disk space that the SSD tier counts on.
func TestDiskFull(t *testing.T) {
	k, f := onDisk(t, 300)
	f.fill()
	k.broken.Store(true)
	k.workFor(3 * time.Second)
	eventually(t, "durable puts work within the room that there is", func() bool {
		n, err := k.durablePuts()
		return n > 0 && err == nil
	})
	m := k.d.metrics(t)
	t.Logf("full %.0f times: segments may take %.0f bytes; %.0f writes failed, %.0f of them for want of room",
		m["ssd_squeezes_total"],
		m["ssd_segment_limit_bytes"], m["ssd_write_errors_total"]+m["ssd_no_space_errors_total"],
		m["ssd_no_space_errors_total"])
	if m["ssd_squeezes_total"] == 0 || m["ssd_segment_limit_bytes"] == 0 {
		t.Error("the SSD tier has not shrunk")
	}
	k.again(func() {}) // it must start on a full disk
	k.workFor(time.Second)
	if err := os.Remove(filepath.Join(f.dir, "filler")); err != nil {
		t.Fatal(err)
	}
	eventually(t, "durable puts work again, without a restart", func() bool {
		n, err := k.durablePuts()
		return n > 0 && err == nil
	})
	k.broken.Store(false)
	k.workFor(time.Second)
	k.again(func() {})
	t.Log(&k.n)
}

// TestDiskReadOnly makes the filesystem read-only under a daemon that writes.
func TestDiskReadOnly(t *testing.T) {
	k, f := onDisk(t, 400)
	f.makeReadOnly()
	k.broken.Store(true)
	k.workFor(2 * time.Second)
	done, why := k.durablePuts()
	m := k.d.metrics(t)
	t.Logf("read-only: %d durable puts done, the last refused: %v; %.0f writes failed, %.0f of them for being "+
		"read-only; %.0f blocks read from SSD", done, why,
		m["ssd_write_errors_total"], m["ssd_read_only_errors_total"], m["ssd_reads_total"])
	if done > 0 || m["ssd_write_errors_total"]+m["ssd_read_only_errors_total"] == 0 {
		t.Error("writes to a read-only disk succeed")
	}
	if m["ssd_reads_total"] == 0 {
		t.Error("nothing is read from it any more")
	}
	k.d.kill()
	k.d.launch(t)
	eventually(t, "it says why it cannot start", func() bool { _, err := k.d.process.Usage(); return err != nil })
	why = k.d.process.Explain(io.EOF)
	t.Logf("started on a read-only disk: %v", why)
	if !strings.Contains(why.Error(), "read-only") {
		t.Error("it does not say why it does not start on a read-only disk")
	}
	k.again(f.mend)
	k.broken.Store(false)
	k.workFor(time.Second)
	t.Log(&k.n)
}

// TestDiskBroken makes every access to the disk fail with EIO.
func TestDiskBroken(t *testing.T) {
	k, f := onDisk(t, 400)
	f.breakDown()
	k.broken.Store(true)
	k.workFor(2 * time.Second)
	done, why := k.durablePuts()
	m := k.d.metrics(t)
	t.Logf("broken: %d durable puts done, the last refused: %v; %.0f writes and %.0f reads failed, %.0f promotions "+
		"were misses", done, why,
		m["ssd_write_errors_total"], m["ssd_read_errors_total"], m["promotions_failed_total"])
	if done > 0 || m["ssd_write_errors_total"] == 0 {
		t.Error("writes to a broken disk succeed")
	}
	k.again(f.mend)
	k.broken.Store(false)
	k.workFor(time.Second)
	t.Log(&k.n)
}

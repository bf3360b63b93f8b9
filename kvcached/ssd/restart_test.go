package ssd

import (
	"bufio"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// fillDir passes the directory to the process that fills it. The process reports when it is full,
// and goes on writing until it is killed.
const fillDir = "CGN_SSD_TEST_FILL"

const restartBlocks = 1_000_000

func restartOptions(dir string) Options {
	return Options{Dir: dir, Cap: 16 << 30, Logger: quiet}
}

// fillTier writes the blocks [from, to), which have no bytes.
func fillTier(tier *Tier, from, to int) error {
	const workers = 4
	failed := make(chan error, workers)
	for w := range workers {
		go func() {
			for i := from + w; i < to; i += workers {
				if err := tier.Write(ctx, manyTokens(i), nil, false); err != nil {
					failed <- err
					return
				}
			}
			failed <- nil
		}()
	}
	var err error
	for range workers {
		err = errors.Join(err, <-failed)
	}
	return err
}

func manyTokens(i int) Record {
	r := tokens(i)
	r.Addr.Digest = keyAddr(i).Digest
	return r
}

// fillChild writes the missing blocks, and then a few more, of which it deletes some. It then
// reports, and goes on writing.
func fillChild(dir string) {
	tier, err := Open(ctx, restartOptions(dir))
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
	<-tier.Ready()
	n := int(tier.Stats().Records)
	err = fillTier(tier, n, max(n, restartBlocks)+10_000)
	for i := n; err == nil && i < n+100; i++ {
		_, err = tier.Delete(ctx, manyTokens(i).Addr)
	}
	fmt.Println("filled", err)
	for i := restartBlocks * 2; err == nil; i++ {
		err = tier.Write(ctx, manyTokens(i), nil, false)
	}
	os.Exit(1)
}

// fillAndKill makes a process write a million blocks to dir, without those that exist, and kills it
// while it writes.
func fillAndKill(b *testing.B, dir string) {
	b.Helper()
	cmd := exec.Command(os.Args[0], "-test.run", "^$")
	cmd.Env = append(os.Environ(), fillDir+"="+dir)
	cmd.Stderr = os.Stderr
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		b.Fatal(err)
	}
	lines := bufio.NewScanner(out)
	said := lines.Scan() && lines.Text() == "filled <nil>"
	_ = cmd.Process.Kill()
	_ = cmd.Wait()
	if !said {
		b.Fatal("the child said: ", lines.Text())
	}
}

// restart opens the directory and closes it. It reports when the tier answers, when the index is
// loaded, and the CPU time until then.
func restart(b *testing.B, dir string) {
	b.Helper()
	var before, after unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &before)
	begun := time.Now()
	tier := open(b, restartOptions(dir))
	if _, err := tier.Read(ctx, manyTokens(restartBlocks/2).Addr, make([]byte, page)); err != nil {
		b.Fatal(err)
	}
	serving := time.Since(begun)
	<-tier.Ready()
	b.ReportMetric(serving.Seconds(), "s-serving")
	b.ReportMetric(time.Since(begun).Seconds(), "s-indexed")
	_ = unix.Getrusage(unix.RUSAGE_SELF, &after)
	b.ReportMetric(float64(after.Utime.Nano()+after.Stime.Nano()-before.Utime.Nano()-before.Stime.Nano())/1e9, "s-cpu")
	s := tier.Stats()
	if s.Records < restartBlocks {
		b.Fatal(s.Records, "records")
	}
	b.ReportMetric(float64(s.IndexBytes)/float64(s.Records), "B/record")
	mustClose(b, tier)
}

// BenchmarkRestart opens a directory of a million blocks without bytes, because their number takes
// the time. The directory's process was killed while it wrote, or had closed it.
func BenchmarkRestart(b *testing.B) {
	at, err := os.MkdirTemp(".", "bench") // not /tmp, which may be in memory
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = os.RemoveAll(at) })
	dir := filepath.Join(at, "d")
	b.Run("killed", func(b *testing.B) {
		for b.Loop() {
			b.StopTimer()
			fillAndKill(b, dir)
			b.StartTimer()
			restart(b, dir)
		}
		b.ReportMetric(0, "ns/op")
	})
	b.Run("closed", func(b *testing.B) {
		for b.Loop() {
			restart(b, dir)
		}
		b.ReportMetric(0, "ns/op")
	})
}

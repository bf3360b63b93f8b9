package ssd

import (
	"encoding/json"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/cognitora/dataplane/kv/block"
)

// fio runs one job for the given time and returns bytes per second. args set its file and options.
func fio(b *testing.B, rw string, jobs int, took time.Duration, args ...string) float64 {
	path, err := exec.LookPath("fio")
	if err != nil {
		b.Skip("fio is not installed")
	}
	cmd := exec.Command(path, "--name=x", "--bs=1M", "--rw="+rw, "--direct=1", "--ioengine=psync", "--thread",
		"--group_reporting",
		"--time_based", "--output-format=json", fmt.Sprintf("--numjobs=%d", jobs), fmt.Sprintf("--runtime=%dms",
			took.Milliseconds()))
	cmd.Args = append(cmd.Args, args...)
	out, err := cmd.Output()
	if err != nil {
		b.Fatal("fio: ", err)
	}
	var result struct {
		Jobs []struct {
			Read, Write struct{ BW_Bytes float64 }
		}
	}
	if err := json.Unmarshal(out, &result); err != nil {
		b.Fatal(err)
	}
	return result.Jobs[0].Read.BW_Bytes + result.Jobs[0].Write.BW_Bytes
}

// pairs measures ours and fio in turn, each after the disk has finished the other's writes. It
// reports the median of the ratios with its 95 % interval.
func pairs(b *testing.B, ours, theirs func() float64) {
	n := 5
	if os.Getenv("CGN_SOAK") != "" {
		n = 31
	}
	var ratios, rates []float64
	for i := range n {
		var a, f float64
		for turn := range 2 {
			unix.Sync()
			if (i+turn)%2 == 0 {
				a = ours()
			} else {
				f = theirs()
			}
		}
		ratios, rates = append(ratios, a/f), append(rates, a)
	}
	slices.Sort(ratios)
	slices.Sort(rates)
	// The median lies between these ranks with a probability of at least 95 % (5 pairs: 94 %), by
	// the binomial distribution. ratios begins with rank 1.
	low := max(0, int(math.Floor((float64(n)-1.96*math.Sqrt(float64(n)))/2))-1)
	b.ReportMetric(ratios[n/2], "x-fio")
	b.ReportMetric(ratios[low], "x-fio-low")
	b.ReportMetric(ratios[n-1-low], "x-fio-high")
	b.ReportMetric(rates[n/2]/1e6, "MB/s")
	b.ReportMetric(0, "ns/op")
	load, _ := os.ReadFile("/proc/loadavg")
	b.Logf("%d pairs; load %s", n, load)
}

const (
	mib   = 1 << 20
	slice = 400 * time.Millisecond // of each measurement
)

// plainMemory returns memory like fio's, with pages anywhere.
func plainMemory(b *testing.B) []byte {
	m, err := unix.Mmap(-1, 0, mib, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_ANON|unix.MAP_PRIVATE)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = unix.Munmap(m) })
	_ = unix.Madvise(m, unix.MADV_NOHUGEPAGE) // a kernel without huge pages refuses
	for i := range m {
		m[i] = byte(i * 7)
	}
	return m
}

func benchTier(b *testing.B, cap int64) (*Tier, string) {
	dir, err := os.MkdirTemp(".", "bench") // not /tmp, which may be in memory
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = os.RemoveAll(dir) })
	tier := open(b, Options{Dir: filepath.Join(dir, "d"), Cap: cap, Logger: quiet})
	b.Cleanup(func() { mustClose(b, tier) })
	return tier, dir
}

// BenchmarkReadFio reads random blocks of 1 MiB; fio reads from the same files: -bench ReadFio
// -benchtime 1x.
func BenchmarkReadFio(b *testing.B) {
	tier, _ := benchTier(b, 4<<30)
	payload := plainMemory(b)
	const n = 1024
	for i := range n {
		if err := tier.Write(ctx, record(i), payload, i == n-1); err != nil {
			b.Fatal(err)
		}
	}
	var files []string
	for _, s := range tier.segs.all() {
		if s.full {
			files = append(files, s.name)
		}
	}
	where := []string{"--filename=" + strings.Join(files, ":"), "--file_service_type=random", "--readonly"}
	for _, jobs := range []int{1, 4, 16} {
		b.Run(fmt.Sprint(jobs), func(b *testing.B) {
			var memory [][]byte
			for range jobs {
				memory = append(memory, plainMemory(b))
			}
			pairs(b, func() float64 {
				var bytes atomic.Int64
				var wg sync.WaitGroup
				begun := time.Now()
				for _, dst := range memory {
					wg.Go(func() {
						for time.Since(begun) < slice {
							if _, err := tier.Read(ctx, keyAddr(rand.IntN(n)), dst); err != nil {
								b.Error(err)
								return
							}
							bytes.Add(mib)
						}
					})
				}
				wg.Wait()
				return float64(bytes.Load()) / time.Since(begun).Seconds()
			}, func() float64 { return fio(b, "randread", jobs, slice, where...) })
		})
	}
}

// BenchmarkWriteFio writes blocks of 1 MiB one after the other, as fio does. Below the cap fio
// writes to new files with reserved space, and at the cap over a file that it has written before.
func BenchmarkWriteFio(b *testing.B) {
	for _, c := range []struct {
		name string
		cap  int64
		over bool
	}{{"below", 40 << 30, false}, {"at", 2 << 30, true}} {
		b.Run(c.name, func(b *testing.B) {
			tier, dir := benchTier(b, c.cap)
			payload := plainMemory(b)
			sum := block.Sum(payload) // the writer of the arena knows it
			i := 0
			put := func() {
				r := record(i)
				r.CRC, r.HasCRC = sum, true
				if err := tier.Write(ctx, r, payload, false); err != nil {
					b.Fatal(err)
				}
				i++
			}
			for c.over && int64(i)*mib < c.cap+c.cap/4 {
				put()
			}
			file := filepath.Join(dir, "fio")
			pairs(b, func() float64 {
				begun, first := time.Now(), i
				for time.Since(begun) < slice {
					put()
				}
				return float64(i-first) * mib / time.Since(begun).Seconds()
			}, func() float64 {
				if c.over {
					return fio(b, "write", 1, slice, "--filename="+file, "--size=1G", "--overwrite=1")
				}
				defer func() { _ = os.Remove(file) }()
				return fio(b, "write", 1, slice, "--filename="+file, "--size=4G", "--fallocate=posix")
			})
			s := tier.Stats()
			b.ReportMetric(float64(s.WrittenBytes+s.RowBytes)/float64(s.PayloadBytes), "amplification")
			b.Logf("%d segments made, %d of them in files of reclaimed ones", s.Reclaimed+uint64(s.Segments), s.Reused)
		})
	}
}
